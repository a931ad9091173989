//! The command `windlass`.

mod action;
mod audit;
mod backend;
mod backup;
#[cfg(feature = "bench")]
mod bench;
mod body;
mod bulk;
mod change;
mod clock;
mod command;
mod config;
#[cfg(feature = "crashtest")]
mod crashtest;
mod doctor;
mod enqueue;
mod failures;
mod filter;
mod hooks;
mod job_args;
mod jobs;
mod keys;
mod list;
mod migrate;
mod open;
mod output;
mod owner;
mod policy;
mod progress;
mod queues;
mod reference;
mod replay;
mod schedules;
mod secrets;
mod serve;
mod server_url;
#[cfg(feature = "sim")]
mod sim;
mod stats;
mod tail;
mod top;
mod worker;
mod workers;

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
    let result = match cli.command {
        Command::Serve(command) => serve::run(&command, &output),
        Command::Config(command) => config::run(&command, &output),
        Command::Doctor(command) => doctor::run(&command, &output),
        Command::Enqueue(command) => enqueue::run(&command, &output),
        Command::Jobs(command) => jobs::run(&command, &output),
        Command::Queues(command) => queues::run(&command, &output),
        Command::Failures(command) => failures::run(&command, &output),
        Command::Hooks(command) => hooks::run(&command, &output),
        Command::Replay(command) => replay::run(&command, &output),
        Command::Bulk(command) => bulk::run(&command, &output),
        Command::Workers(command) => workers::run(&command, &output),
        Command::Nodes(command) => workers::nodes(&command, &output),
        Command::Stats(command) => stats::run(&command, &output),
        Command::Tail(command) => tail::run(&command, &output),
        Command::Top(command) => top::run(&command),
        Command::Worker(command) => worker::run(&command, &output),
        Command::Open(command) => open::run(&command, &output),
        Command::Keys(command) => keys::run(&command, &output),
        Command::Secrets(command) => secrets::run(&command, &output),
        Command::Audit(command) => audit::run(&command, &output),
        Command::Policy(command) => policy::run(command, &output),
        Command::Schedules(command) => schedules::run(&command, &output),
        #[cfg(feature = "bench")]
        Command::Bench(command) => bench::run(&command, &output),
        #[cfg(feature = "crashtest")]
        Command::CrashTest(command) => crashtest::run(&command, &output),
        #[cfg(feature = "crashtest")]
        Command::CrashTestWorker(command) => crashtest::run_worker(command),
        #[cfg(feature = "sim")]
        Command::Sim(command) => sim::run(&command, &output),
        Command::Migrate(command) => migrate::run(&command, &output),
        Command::Backup(command) => backup::run(&command, &output),
        Command::Restore(command) => backup::restore(&command, &output),
        Command::Completions { shell } => command::print_completions(shell),
        Command::Man { dir } => command::write_man_pages(&dir, &output),
        Command::Reference { page } => reference::print(page),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output.fail(&error),
    }
}
