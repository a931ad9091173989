//! `windlass jobs list`, `history` and `why`.

use windlass_api::{BoundedInt, HistoryParams, JobOrder, Page, Why};
use windlass_client::Client;

use super::{JobHistory, ListJobs, Order, ShowJob};
use crate::clock;
use crate::output::{Cell, Column, Listed, Output, with_relative, word};

pub(super) async fn list(list: &ListJobs, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&list.format)?;
    let filter = list.filter.to_filter()?;
    let order = match list.order {
        Order::Created => JobOrder::Created,
        Order::FinishedAt => JobOrder::FinishedAt,
    };
    let page = list.list.read(|| client.jobs_by(order, &filter)).await?;
    output.print_list(format, &page)
}

pub(super) async fn history(
    history: &JobHistory,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&history.format)?;
    let params = HistoryParams {
        limit: BoundedInt::new(history.limit.into()),
        ..HistoryParams::default()
    };
    let attempts = client.job_history_with(history.id, &params).await?;
    output.print_list(format, &Page::single(attempts))
}

pub(super) async fn why(why: &ShowJob, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&why.format)?;
    let why = client.why(why.id).await?;
    output.print_one(format, &why, || text(&why))
}

impl Listed for Why {
    const NOUN: &'static str = "jobs";

    fn columns() -> Vec<Column<Why>> {
        vec![Column::new("id", |why, _| Cell::new(why.id))]
    }

    fn id(&self) -> String {
        self.id.to_string()
    }
}

fn text(why: &Why) -> String {
    let now = clock::now();
    let mut text = format!("job {} is {}\n", why.id, word(&why.state));
    for reason in &why.reasons {
        text.push_str(&format!("- {}\n", reason.text));
    }
    if let Some(death) = &why.death {
        text.push_str(&format!("\nwhy it died: {}\n", death.text));
        if let Some(error) = &death.last_error {
            text.push_str(&format!("last error: {error}\n"));
        }
    }
    if let Some(revive) = &why.revive {
        text.push_str(&match revive.allowed {
            true => format!(
                "\n`windlass jobs revive {}` runs it again: {} attempts left, the first {}\n",
                why.id,
                revive.attempts_left,
                with_relative(revive.run_at, now)
            ),
            false => "\nit cannot be revived:\n".to_owned(),
        });
        for refusal in &revive.refusals {
            text.push_str(&format!("- {}\n", refusal.text));
        }
    }
    Cell::new(text).into_text()
}
