//! Where results and errors go, and which exit code they leave.

use std::fmt::Display;
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};
use windlass_client::Error as ClientError;
use windlass_core::Invalid;
use windlass_server::access::KeyError;
use windlass_server::secrets::SecretError;
use windlass_server::standalone::StartError;
use windlass_server::standalone::config::ConfigError;

/// The command could not be carried out.
const FAILED: u8 = 1;
/// The input breaks a rule. Wrong usage leaves the same code.
const REFUSED: u8 = 2;

/// Prints for people, or JSON for programs.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Output { json }
    }

    /// Prints a result in the form that was asked for.
    pub(crate) fn print(&self, json: &impl Serialize, text: impl Display) -> anyhow::Result<()> {
        let printed = if self.json {
            serde_json::to_string_pretty(json)? + "\n"
        } else {
            text.to_string()
        };
        Ok(std::io::stdout().lock().write_all(printed.as_bytes())?)
    }

    /// Prints a result on one line, for those who read line by line.
    pub(crate) fn print_line(&self, json: &Value, text: impl Display) -> std::io::Result<()> {
        let mut stdout = std::io::stdout().lock();
        match self.json {
            true => writeln!(stdout, "{json}"),
            false => writeln!(stdout, "{text}"),
        }
    }

    /// Tells an error on stderr; the exit code says whether the input is to blame.
    pub(crate) fn fail(&self, error: &anyhow::Error) -> ExitCode {
        let invalid = broken_rule(error);
        let remote = error.downcast_ref::<ClientError>();
        let remote = remote.and_then(ClientError::problem);
        let remote = remote.filter(|problem| matches!(problem.status, 400 | 413 | 422));
        let refused = invalid.is_some() || remote.is_some() || error.is::<ConfigError>();
        let code = if refused { REFUSED } else { FAILED };
        let told = if self.json {
            let field = invalid.map(Invalid::field);
            let pointer = || Some(remote?.errors.first()?.pointer.as_str());
            let field = field.or_else(pointer);
            json!({"error": {"message": format!("{error:#}"), "field": field}}).to_string()
        } else {
            format!("error: {error:#}")
        };
        // A reader that has gone away, as in `windlass … | head`, is not worth a message; nor is a closed stderr.
        if !is_broken_pipe(error) {
            let _ = writeln!(std::io::stderr(), "{told}");
        }
        ExitCode::from(code)
    }
}

/// The rule that the input breaks, if that is what went wrong.
fn broken_rule(error: &anyhow::Error) -> Option<&Invalid> {
    let of_key = || match error.downcast_ref()? {
        KeyError::Invalid(invalid) => Some(invalid),
        _ => None,
    };
    let of_secret = || match error.downcast_ref()? {
        SecretError::Invalid(invalid) => Some(invalid),
        _ => None,
    };
    let of_store = || match error.downcast_ref()? {
        StartError::Store { cause, .. } => match &**cause {
            windlass::Error::Invalid(invalid) => Some(invalid),
            _ => None,
        },
        _ => None,
    };
    let plain = error.downcast_ref::<Invalid>();
    plain.or_else(of_key).or_else(of_secret).or_else(of_store)
}

/// Tells what is wrong with the command line itself; `--help` and `--version` come here too.
pub(crate) fn fail_usage(error: &clap::Error) -> ExitCode {
    let asked_for_json = std::env::args().any(|argument| argument == "--json");
    if error.use_stderr() && asked_for_json {
        let message = error.render().to_string();
        let _ = writeln!(
            std::io::stderr(),
            "{}",
            json!({"error": {"message": message.trim(), "field": null}})
        );
    } else {
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(REFUSED))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
}
