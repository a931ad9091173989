//! Generates `docs/cli.md` from the definitions of the commands.
//!
//! The text of the page is `cli.md` next to this file. It has two kinds of marks: `<!-- commands jobs -->`
//! becomes the table of the verbs of `jobs`, `<!-- flags -->` the arguments and flags of every command.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use clap::{Arg, ArgAction, Command};

/// The headings of flags that many commands share. The page explains these flags once.
const SHARED: [&str; 4] = ["Filters", "Server or store", "Job", "HTTP job"];

/// Returns the page of a command line.
///
/// # Errors
///
/// Fails if a command has no mark on the page, or a mark names no command.
pub(super) fn page(text: &str, root: &Command) -> anyhow::Result<String> {
    let mut root = root.clone();
    root.build();
    let mut nouns: BTreeMap<&str, &Command> = shown(&root)
        .map(|command| (command.get_name(), command))
        .collect();
    let mut page = String::new();
    for line in text.lines() {
        let mark = line.strip_prefix("<!-- ");
        let mark = mark.and_then(|mark| mark.strip_suffix(" -->"));
        match mark.map(|mark| mark.split_once(' ').unwrap_or((mark, ""))) {
            Some(("commands", names)) => {
                let found: Vec<&Command> = names
                    .split(' ')
                    .map(|name| {
                        let command = nouns.remove(name);
                        command.with_context(|| format!("no command is named {name}"))
                    })
                    .collect::<anyhow::Result<_>>()?;
                add_commands(&mut page, &found)?;
            }
            Some(("flags", "")) => add_flags(&mut page, &root)?,
            _ => writeln!(page, "{line}")?,
        }
    }
    let missing: Vec<&str> = nouns.into_keys().collect();
    anyhow::ensure!(
        missing.is_empty(),
        "the page has no mark `<!-- commands … -->` for {}",
        missing.join(", ")
    );
    Ok(page)
}

/// Returns the commands below a command that help lists.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    let commands = command.get_subcommands();
    commands.filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// Returns the commands without subcommands below this one, or the command itself.
fn verbs(command: &Command) -> Vec<&Command> {
    if !command.has_subcommands() {
        return vec![command];
    }
    shown(command).flat_map(verbs).collect()
}

fn add_commands(page: &mut String, nouns: &[&Command]) -> anyhow::Result<()> {
    writeln!(page, "| command | what it does |\n|---|---|")?;
    for verb in nouns.iter().copied().flat_map(verbs) {
        let (name, anchor) = (full_name(verb), anchor(verb));
        let arguments: String = verb.get_positionals().map(argument).collect();
        let about = verb.get_about().map(ToString::to_string);
        let about = cell(&about.unwrap_or_default());
        writeln!(page, "| [`{name}{arguments}`](#{anchor}) | {about} |")?;
    }
    Ok(())
}

fn add_flags(page: &mut String, root: &Command) -> anyhow::Result<()> {
    let verbs = verbs(root);
    for heading in SHARED {
        let of_heading = |verb: &&Command| has_heading(verb, heading);
        let Some(verb) = verbs.iter().copied().find(of_heading) else {
            continue;
        };
        writeln!(page, "### {}\n", shared_title(heading))?;
        add_table(
            page,
            verb.get_arguments().filter(|arg| is_shared(arg, heading)),
        )?;
    }
    for verb in verbs {
        writeln!(page, "### `{}`\n", full_name(verb))?;
        let about = verb.get_about().map(ToString::to_string);
        writeln!(page, "{}\n", cell(&about.unwrap_or_default()))?;
        let is_own = |arg: &&Arg| {
            let shared = SHARED.iter().any(|heading| is_shared(arg, heading));
            !shared && !is_common(arg) && !arg.is_hide_set()
        };
        let own: Vec<&Arg> = verb.get_arguments().filter(is_own).collect();
        if !own.is_empty() {
            add_table(page, own.into_iter())?;
        }
        let links: Vec<String> = SHARED
            .iter()
            .filter(|heading| has_heading(verb, heading))
            .map(|heading| {
                let title = shared_title(heading);
                let anchor = title.to_lowercase().replace(' ', "-");
                format!("[{}](#{anchor})", title.to_lowercase())
            })
            .collect();
        if !links.is_empty() {
            writeln!(page, "Also takes {}.\n", links.join(", "))?;
        }
        if let Some(notes) = verb.get_after_help() {
            writeln!(page, "```text\n{}\n```\n", notes.to_string().trim_end())?;
        }
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    Ok(())
}

fn shared_title(heading: &str) -> String {
    match heading {
        "Filters" => "Flags that select jobs".to_owned(),
        "Server or store" => "Flags for the server or the store".to_owned(),
        "Job" => "Flags that describe a job".to_owned(),
        _ => "Flags that describe an HTTP job".to_owned(),
    }
}

fn is_shared(arg: &Arg, heading: &str) -> bool {
    arg.get_help_heading() == Some(heading) && !arg.is_positional()
}

fn has_heading(verb: &Command, heading: &str) -> bool {
    verb.get_arguments().any(|arg| is_shared(arg, heading))
}

/// Whether the page explains the flag once for all commands.
fn is_common(arg: &Arg) -> bool {
    matches!(
        arg.get_id().as_str(),
        "help" | "version" | "json" | "format"
    )
}

fn add_table<'a>(page: &mut String, args: impl Iterator<Item = &'a Arg>) -> anyhow::Result<()> {
    writeln!(page, "| argument or flag | meaning |\n|---|---|")?;
    for arg in args {
        writeln!(page, "| `{}` | {} |", name_of(arg), cell(&help_of(arg)))?;
    }
    writeln!(page)?;
    Ok(())
}

/// Returns the name of an argument, or a flag with its short form and value: `-o, --format FORMAT`.
fn name_of(arg: &Arg) -> String {
    if arg.is_positional() {
        return argument(arg).trim_start().to_owned();
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let longs = arg.get_long().into_iter();
    let longs = longs.chain(arg.get_visible_aliases().unwrap_or_default());
    let names = short
        .into_iter()
        .chain(longs.map(|long| format!("--{long}")));
    let names = names.collect::<Vec<_>>().join(", ");
    let is_switch = !matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    match arg.get_value_names() {
        Some([value]) if !is_switch => format!("{names} {value}").replace('|', "\\|"),
        _ => names,
    }
}

/// Returns an argument as the usage of a command shows it, after a space: ` ID`, ` [ID]…`.
fn argument(arg: &Arg) -> String {
    let name = arg.get_value_names().and_then(|names| names.first());
    let name = name.map_or_else(|| arg.get_id().to_string(), ToString::to_string);
    let name = name.to_uppercase();
    let name = if arg.is_required_set() {
        name
    } else {
        format!("[{name}]")
    };
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    format!(" {name}{}", if is_list { "…" } else { "" })
}

fn help_of(arg: &Arg) -> String {
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if let Some(variable) = arg.get_env() {
        let variable = variable.to_string_lossy();
        help.push_str(&format!(" [environment: {variable}]"));
    }
    let defaults = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy());
    let defaults = defaults.collect::<Vec<_>>().join(",");
    let is_switch = !matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    if !defaults.is_empty() && !is_switch && !arg.is_hide_default_value_set() {
        help.push_str(&format!(" [default: {defaults}]"));
    }
    help
}

/// Returns a text as the cell of a Markdown table.
fn cell(text: &str) -> String {
    let text = text.replace('\n', " ").replace('|', "\\|");
    text.replace('<', "&lt;")
}

fn full_name(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    name.to_owned()
}

fn anchor(command: &Command) -> String {
    full_name(command).replace(' ', "-")
}
