//! Prints results and errors, and chooses the exit code.

mod format;
mod table;
mod time;

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

pub(crate) use format::{Format, FormatArgs, Listed, json_line, list_table, word};
pub(crate) use table::{Cell, Column, Tone, details, table};
pub(crate) use time::{relative, took, with_relative};

/// The exit code of a command that failed.
const FAILED: u8 = 1;
/// The exit code for an invalid value and, from clap, for invalid usage.
const REFUSED: u8 = 2;

/// Prints text for people or JSON for programs.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Output { json }
    }

    /// Prints a result as text or, with `--json`, as JSON over several lines.
    pub(crate) fn print(&self, json: &impl Serialize, text: impl Display) -> anyhow::Result<()> {
        let printed = if self.json {
            serde_json::to_string_pretty(json)? + "\n"
        } else {
            text.to_string()
        };
        Ok(std::io::stdout().lock().write_all(printed.as_bytes())?)
    }

    /// Prints JSON over several lines, whatever the flags say.
    pub(crate) fn print_json(&self, json: &impl Serialize) -> anyhow::Result<()> {
        Output::new(true).print(json, "")
    }

    /// Prints a result on one line, so that a program can wait for this line.
    pub(crate) fn print_line(&self, json: &Value, text: impl Display) -> std::io::Result<()> {
        let mut stdout = std::io::stdout().lock();
        if self.json {
            writeln!(stdout, "{json}")
        } else {
            writeln!(stdout, "{text}")
        }
    }

    /// Prints an error to stderr. Returns [`REFUSED`] if the input is invalid, else [`FAILED`].
    pub(crate) fn fail(&self, error: &anyhow::Error) -> ExitCode {
        let invalid = broken_rule(error);
        let client_error = error.downcast_ref::<ClientError>();
        let is_invalid_request = matches!(client_error, Some(ClientError::Invalid { .. }));
        let problem = client_error.and_then(ClientError::problem);
        let problem = problem.filter(|problem| matches!(problem.status, 400 | 413 | 422));
        let refused = invalid.is_some()
            || problem.is_some()
            || is_invalid_request
            || error.is::<ConfigError>();
        let code = if refused { REFUSED } else { FAILED };
        let hint = error.downcast_ref().and_then(hint);
        let text = if self.json {
            let field = invalid.map(Invalid::field);
            let pointer = || Some(problem?.errors.first()?.pointer.as_str());
            let field = field.or_else(pointer);
            let message = format!("{error:#}");
            let error = match hint {
                Some(hint) => json!({"message": message, "field": field, "hint": hint}),
                None => json!({"message": message, "field": field}),
            };
            json!({"error": error}).to_string()
        } else {
            let hint = hint.map(|hint| format!("\nhint: {hint}"));
            format!("error: {error:#}{}", hint.unwrap_or_default())
        };
        // In `windlass … | head`, `head` may close the pipe early, which needs no message. If stderr
        // itself is closed, no one can read one.
        if !is_broken_pipe(error) {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
        ExitCode::from(code)
    }
}

/// Returns what to do about a failed request.
fn hint(error: &ClientError) -> Option<String> {
    let problem = match error {
        ClientError::Connect { cause, .. } if is_untrusted(&**cause) => {
            let hint = "if a private CA signed the certificate of the server, name the CA with `--ca FILE` or WINDLASS_CA";
            return Some(hint.to_owned());
        }
        ClientError::Connect { .. } => {
            let hint = "start a server with `windlass serve`, name another one with `--url`, or open a store directly with `--store` or `--data`";
            return Some(hint.to_owned());
        }
        error => error.problem()?,
    };
    let hint = match problem.status {
        401 => {
            "put a valid API key into WINDLASS_KEY; `windlass keys create --name NAME --scope SCOPE` creates one"
        }
        403 if problem.code == "scope_missing" => {
            "`windlass keys create --name NAME --scope SCOPE` creates a key with another scope"
        }
        _ => return problem.hint.clone(),
    };
    Some(hint.to_owned())
}

/// Whether a connection failed because the client does not trust the certificate of the server.
fn is_untrusted(cause: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(cause), |cause| cause.source());
    causes
        .map(ToString::to_string)
        .any(|text| text.contains("invalid peer certificate"))
}

/// Returns the rule that the input breaks, if the error has that cause.
fn broken_rule(error: &anyhow::Error) -> Option<&Invalid> {
    let key_rule = || match error.downcast_ref()? {
        KeyError::Invalid(invalid) => Some(invalid),
        _ => None,
    };
    let secret_rule = || match error.downcast_ref()? {
        SecretError::Invalid(invalid) => Some(invalid),
        _ => None,
    };
    let store_rule = || match error.downcast_ref()? {
        StartError::Store { cause, .. } => match &**cause {
            windlass::Error::Invalid(invalid) => Some(invalid),
            _ => None,
        },
        _ => None,
    };
    let invalid = error.downcast_ref::<Invalid>();
    let invalid = invalid.or_else(key_rule).or_else(secret_rule);
    invalid.or_else(store_rule)
}

/// Prints an error in the command line itself. clap also returns `--help` and `--version` as errors.
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
