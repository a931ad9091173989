//! Processes that tests start: their own program again, and examples.

use std::path::Path;
use std::process::Command;

/// This test program again, with one of its tests, such as `kill::the_worker`: what that test prints
/// comes through, and the process may be killed.
pub fn this_program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// An example of the crate in a folder, as a run of all tests has built it beside this program.
///
/// It is built now where only this test is run, with the features of a run of all tests: others would
/// compile every dependency again.
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
