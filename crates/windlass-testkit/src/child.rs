//! Child processes of tests: the test program itself, and examples.

use std::path::Path;
use std::process::Command;

/// A command that runs this test program again with a single test, such as `kill::the_worker`. Its
/// output is not captured, and the process may be killed.
pub fn this_program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// A command that runs an example of a crate, which a run of all tests has built.
///
/// If the example is missing or older than its source, this builds it with the features of a run of
/// all tests. Other features would compile every dependency again.
pub fn example(crate_folder: &str, name: &str) -> Command {
    let this = std::env::current_exe().expect("this program");
    let folder = this.parent().and_then(Path::parent).expect("a folder");
    let program = folder.join("examples").join(name);
    let source = format!("{crate_folder}/examples/{name}.rs");
    let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    if written(&program) <= written(source.as_ref()) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--workspace", "--all-features"]);
        let built = cargo.args(["--example", name]).status();
        assert!(built.expect("cargo starts").success(), "{name} is built");
    }
    Command::new(program)
}
