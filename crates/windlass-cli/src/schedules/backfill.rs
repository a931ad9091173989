//! `windlass schedules backfill`: runs past occurrences that did not fire.

use clap::Args;
use serde_json::json;
use windlass_api::{Backfill, BackfillAnswer, Schedule, ScheduleView};
use windlass_client::Client;
use windlass_core::Timestamp;
use windlass_core::schedule::{Expression, Recurrence, Zone};

use super::preview::time;
use crate::backend::ApiArgs;
use crate::change::ChangeArgs;
use crate::clock;
use crate::output::Output;

/// The most occurrences of one backfill.
const OCCURRENCES_MAX: usize = 1000;

#[derive(Debug, Args)]
pub(crate) struct BackfillSchedule {
    /// The name or the id of the schedule.
    name: String,

    /// The start of the range: RFC 3339, or `2h` for two hours ago.
    #[arg(long, value_name = "TIME")]
    from: String,

    /// The end of the range [default: now].
    #[arg(long, value_name = "TIME")]
    to: Option<String>,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

pub(super) async fn backfill(
    args: &BackfillSchedule,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let from = time("--from", &args.from)?;
    let to = args.to.as_deref().map(|text| time("--to", text));
    let to = to.transpose()?.unwrap_or_else(clock::now);
    if args.change.dry_run || !args.change.yes {
        let count = count(client, &args.name, from, to).await?;
        let jobs = format!("up to {count} jobs");
        if args.change.dry_run {
            let text = format!("would create {jobs}, for occurrences that did not fire\n");
            return output.print(&json!({"occurrences": count}), text);
        }
        args.change.confirm("create", count, &jobs)?;
    }
    let (from, to) = (Some(from), Some(to));
    let range = Backfill { from, to };
    let created = client.backfill_schedule(&args.name, &range).await?;
    output.print(
        &BackfillAnswer { created },
        format!("created {created} jobs\n"),
    )
}

/// Counts the occurrences of a schedule in a range, up to the most that one backfill takes.
async fn count(
    client: &Client,
    name: &str,
    from: Timestamp,
    to: Timestamp,
) -> anyhow::Result<usize> {
    let schedule = match client.schedule(name).await? {
        ScheduleView::Readable(schedule) => schedule,
        ScheduleView::Unreadable(schedule) => {
            anyhow::bail!("the server cannot read the schedule: {}", schedule.error)
        }
    };
    let tick = std::time::Duration::from_micros(1);
    let firings = recurrence(&schedule)?;
    let firings = firings.after(from.saturating_sub(tick));
    let in_range = firings.take_while(|firing| firing.at <= to);
    Ok(in_range.take(OCCURRENCES_MAX).count())
}

fn recurrence(schedule: &Schedule) -> anyhow::Result<Recurrence> {
    let every = schedule.every.map(|every| every.0);
    Ok(Recurrence {
        expression: Expression::from_fields(schedule.cron.as_deref(), every, schedule.at)?,
        zone: Zone::new(&schedule.timezone)?,
        anchor: schedule.starts_at.unwrap_or(schedule.created_at),
        starts_at: schedule.starts_at,
        ends_at: schedule.ends_at,
    })
}
