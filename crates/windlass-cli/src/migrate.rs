//! `windlass migrate`: the schema of a PostgreSQL database.

use clap::{Args, Subcommand};
use serde_json::json;
use windlass_postgres::{MIGRATIONS, Options, PostgresStore};

use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Brings the schema up to date. Several at once wait for one another.
    Up(Database),
    /// Tells which migrations were applied, and which are missing.
    Status(Database),
    /// Prints the migrations, for a person to look at or to run.
    Sql,
}

#[derive(Debug, Args)]
pub(crate) struct Database {
    /// The database, such as postgres://user@host/database.
    #[arg(
        long,
        value_name = "URL",
        env = "WINDLASS_POSTGRES_URL",
        hide_env_values = true
    )]
    url: String,
}

pub(crate) fn run(command: &MigrateCommand, output: &Output) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match command {
        MigrateCommand::Up(database) => {
            let options = Options::parse(&database.url)?;
            let applied = runtime.block_on(PostgresStore::migrate(&options))?;
            let names: Vec<String> = applied
                .iter()
                .map(|migration| format!("{} {}", migration.number, migration.name))
                .collect();
            let text = match names.is_empty() {
                true => "the schema is up to date\n".to_owned(),
                false => format!("applied {}\n", names.join(", ")),
            };
            output.print(&json!({"applied": names}), text)
        }
        MigrateCommand::Status(database) => {
            let options = Options::parse(&database.url)?;
            let version = runtime.block_on(PostgresStore::schema_version(&options))?;
            let mut text = String::new();
            let mut rows = Vec::new();
            for migration in MIGRATIONS {
                let state = match migration.number <= version {
                    true => "applied",
                    false => "missing",
                };
                text.push_str(&format!(
                    "{:>4} {:12} {state}\n",
                    migration.number, migration.name
                ));
                rows.push(
                    json!({"number": migration.number, "name": migration.name, "state": state}),
                );
            }
            output.print(&rows, text)
        }
        MigrateCommand::Sql => {
            let all = MIGRATIONS.map(|migration| {
                format!(
                    "-- {} {}\n{}",
                    migration.number, migration.name, migration.sql
                )
            });
            let text = format!(
                "create schema if not exists windlass;\n\n{}",
                all.join("\n")
            );
            output.print(&json!({"sql": text}), &text)
        }
    }
}
