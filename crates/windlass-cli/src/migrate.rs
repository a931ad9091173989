//! `windlass migrate`: manages the schema of a PostgreSQL database.

use clap::{Args, Subcommand};
use serde_json::json;
use windlass_postgres::{MIGRATIONS, Options, PostgresStore};

use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Create the schema or bring it up to date. Concurrent runs wait for each other.
    Up(DatabaseArgs),
    /// List all migrations, each `applied` or `missing`.
    Status(DatabaseArgs),
    /// Print the SQL of all migrations, to review it or to run it by hand.
    Sql,
}

#[derive(Debug, Args)]
pub(crate) struct DatabaseArgs {
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
            let text = if names.is_empty() {
                "the schema is up to date\n".to_owned()
            } else {
                format!("applied {}\n", names.join(", "))
            };
            output.print(&json!({"applied": names}), text)
        }
        MigrateCommand::Status(database) => {
            let options = Options::parse(&database.url)?;
            let version = runtime.block_on(PostgresStore::schema_version(&options))?;
            let mut text = String::new();
            let mut rows = Vec::new();
            for migration in MIGRATIONS {
                let state = if migration.number <= version {
                    "applied"
                } else {
                    "missing"
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
            let migrations = MIGRATIONS.map(|migration| {
                format!(
                    "-- {} {}\n{}",
                    migration.number, migration.name, migration.sql
                )
            });
            let text = format!(
                "create schema if not exists windlass;\n\n{}",
                migrations.join("\n")
            );
            output.print(&json!({"sql": text}), &text)
        }
    }
}
