//! The command line as people meet it: every example in the documentation is run and compared.

#[test]
fn commands_print_what_the_documentation_shows() {
    trycmd::TestCases::new()
        .case("tests/cmd/*.md")
        .case("../../docs/cli.md")
        .case("../../docs/schedules.md")
        .case("../../README.md");
}
