//! The command line as people meet it: every example in the documentation is run and compared.

#[test]
fn commands_print_what_the_documentation_shows() {
    trycmd::TestCases::new()
        .case("tests/cmd/*.md")
        .case("../../docs/cli.md")
        .case("../../docs/schedules.md")
        .case("../../README.md");
}

#[test]
fn completions_are_printed_for_each_shell_and_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = crate::support::printed(&["completions", shell]);
        for command in ["serve", "secrets", "doctor"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    assert!(crate::support::printed(&["completions", "bash"]).contains("complete -F _windlass"));
    assert_eq!(crate::support::refused(&["completions", "basic"]).0, 2);
}
