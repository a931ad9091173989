//! The command `windlass`.

mod backup;
mod bench;
mod clock;
mod command;
mod migrate;
mod output;
mod policy;
mod reference;
mod schedule;

use std::process::ExitCode;

use clap::Parser;

use command::{Cli, Command};
use output::Output;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::fail_usage(&error),
    };
    let output = Output::new(cli.json);
    let done = match cli.command {
        Command::Policy(command) => policy::run(command, &output),
        Command::Schedule(command) => schedule::run(&command, &output),
        Command::Bench(command) => bench::run(&command, &output),
        Command::Migrate(command) => migrate::run(&command, &output),
        Command::Backup(command) => backup::run(&command, &output),
        Command::Completions { shell } => command::print_completions(shell),
        Command::Reference { page } => reference::print(page),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output.fail(&error),
    }
}
