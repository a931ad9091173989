//! `windlass schedules next`: when a rule fires, computed without a server.

use std::fmt;

use clap::Args;
use serde::Serialize;
use windlass_core::schedule::{Expression, Firing, Recurrence, Zone};
use windlass_core::{Invalid, Timestamp};

use crate::clock;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct NextOccurrences {
    /// The expression, in quotes.
    expression: String,

    /// The IANA time zone of the expression, such as Europe/Berlin.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,

    /// Print occurrences after this time, such as 2026-01-01T00:00:00Z [default: now].
    #[arg(long, value_name = "RFC3339")]
    from: Option<String>,

    /// The number of occurrences, 1 to 1000.
    #[arg(short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    n: u16,
}

pub(super) fn next(command: &NextOccurrences, output: &Output) -> anyhow::Result<()> {
    let NextOccurrences {
        expression,
        tz,
        from,
        n,
    } = command;
    let zone = Zone::new(tz)?;
    let from = match from {
        Some(text) => text
            .parse()
            .map_err(|error: Invalid| error.within("from"))?,
        None => clock::now(),
    };
    let recurrence = Recurrence::new(expression.parse::<Expression>()?, zone, from);
    let firings: Vec<Firing> = recurrence.after(from).take(usize::from(*n)).collect();
    if firings.is_empty() {
        let rule = format!("has no occurrence after {from}; the schedule would never fire");
        return Err(Invalid::new("expression", rule).into());
    }
    let next = firings.iter().map(FiringJson::new).collect();
    output.print(
        &NextJson { next },
        OccurrencesText(&recurrence.zone, &firings),
    )
}

#[derive(Serialize)]
struct NextJson {
    next: Vec<FiringJson>,
}

#[derive(Serialize)]
struct FiringJson {
    at: Timestamp,
    note: Option<String>,
}

impl FiringJson {
    fn new(firing: &Firing) -> Self {
        FiringJson {
            at: firing.at,
            note: firing.note.map(|note| note.to_string()),
        }
    }
}

/// Formats occurrences for people: the instant, the local time and a note.
struct OccurrencesText<'a>(&'a Zone, &'a [Firing]);

impl fmt::Display for OccurrencesText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OccurrencesText(zone, firings) = self;
        for firing in *firings {
            write!(f, "{}", firing.at)?;
            if **zone != Zone::utc() {
                write!(f, "  {}", zone.local(firing.at))?;
            }
            if let Some(note) = &firing.note {
                write!(f, "  ({note})")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
