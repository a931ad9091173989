//! Runs every example of the documentation and compares the output, and checks the help texts.

use crate::support::{printed, refused};

#[test]
fn commands_print_what_the_documentation_shows() {
    trycmd::TestCases::new()
        .case("tests/cmd/*.md")
        .case("../../docs/cli.md")
        .case("../../docs/schedules.md")
        .case("../../README.md");
}

/// Adds the help of a command and of all commands below it.
fn add_help(words: &[&str], all: &mut String) {
    let arguments = [words, &["--help"]].concat();
    let text = printed(&arguments);
    all.push_str(&format!("$ windlass {}\n{text}\n", arguments.join(" ")));
    let (_, list) = text.split_once("Commands:\n").unwrap_or_default();
    let lines = list.lines().map_while(|line| line.strip_prefix("  "));
    let names = lines.filter(|line| !line.starts_with(' ')); // not the second line of a description
    for name in names.filter_map(|line| line.split(' ').next()) {
        if name != "help" {
            add_help(&[words, &[name]].concat(), all);
        }
    }
}

#[test]
fn every_command_has_help() {
    let mut all = String::new();
    add_help(&[], &mut all);
    insta::assert_snapshot!(all);
}

#[test]
fn man_pages_describe_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a plain path");
    printed(&["man", path]);
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a page");
    assert!(page("windlass.1").contains("durable job queue"));
    assert!(page("windlass-jobs-edit.1").contains("run\\-at"));
    assert!(page("windlass-schedules-put.1").contains("cron"));
    let missing = folder.path().join("missing");
    let (code, output) = refused(&["man", missing.to_str().expect("a plain path")]);
    assert!(
        code == 1 && output.contains("cannot write man pages"),
        "{output}"
    );
}

#[test]
fn completions_name_the_commands_in_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        for command in ["serve", "secrets", "doctor"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    assert!(printed(&["completions", "bash"]).contains("complete -F _windlass"));
    assert_eq!(refused(&["completions", "basic"]).0, 2);
}
