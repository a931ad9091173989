//! `windlass schedules preview`: when a schedule will fire, or when a rule would.

use clap::Args;
use serde_json::Value;
use windlass_api::{BoundedInt, Firing, Page, Preview, PreviewParams};
use windlass_client::Client;
use windlass_core::{Invalid, Timestamp};

use super::fields::{RuleArgs, flag};
use crate::backend::ApiArgs;
use crate::body::body_of;
use crate::output::{Cell, Column, FormatArgs, Listed, Output, Tone, relative};

#[derive(Debug, Args)]
pub(crate) struct PreviewSchedule {
    /// The name or the id of the schedule. Without it, give a rule such as `--cron '0 2 * * *'`.
    #[arg(required_unless_present_any = ["cron", "every", "at"], conflicts_with = "from")]
    name: Option<String>,

    /// For a rule: only show occurrences at this time or later [default: now].
    #[arg(long, value_name = "TIME")]
    from: Option<Timestamp>,

    /// The number of occurrences, 1 to 1000.
    #[arg(short, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    n: u16,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    rule: RuleArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

pub(super) async fn preview(
    args: &PreviewSchedule,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let firings = match &args.name {
        Some(name) => {
            if let Some(field) = args.rule.fields().keys().next() {
                let rule = "is only for a preview without NAME: the schedule has a rule";
                return Err(Invalid::new(flag(field), rule).into());
            }
            let count = BoundedInt::new(args.n.into());
            client
                .preview_schedule(name, PreviewParams { count })
                .await?
        }
        None => client.preview_rule(&args.preview()?).await?,
    };
    output.print_list(format, &Page::single(firings))
}

impl PreviewSchedule {
    fn preview(&self) -> anyhow::Result<Preview> {
        let mut fields = self.rule.fields();
        fields.insert("count".to_owned(), self.n.into());
        let mut preview: Preview = body_of(Value::Object(fields), flag)?;
        preview.from = self.from;
        Ok(preview)
    }
}

impl Listed for Firing {
    const NOUN: &'static str = "occurrences";

    fn columns() -> Vec<Column<Firing>> {
        vec![
            Column::new("at", |firing, _| Cell::new(firing.at)),
            Column::new("local time", |firing, _| Cell::new(&firing.local)),
            Column::new("when", |firing, now| Cell::new(relative(firing.at, now))),
            Column::new("note", |firing, _| match &firing.note {
                Some(note) => Cell::new(note).tone(Tone::Waiting),
                None => Cell::optional(None::<&str>),
            }),
        ]
    }

    fn id(&self) -> String {
        self.at.to_string()
    }
}

/// Parses a time of a flag.
pub(super) fn time(flag: &str, text: &str) -> Result<Timestamp, Invalid> {
    let time = crate::filter::instant(text, crate::clock::now()).parse();
    time.map_err(|error: Invalid| Invalid::new(flag, error.rule()))
}
