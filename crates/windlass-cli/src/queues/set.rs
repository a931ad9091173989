//! `windlass queues set`: changes settings of a queue.

use clap::Args;
use serde_json::{Map, Value, json};
use windlass_api::{CreateQueue, QueueSettings};
use windlass_client::Client;
use windlass_core::{Invalid, QueueName};

use super::view::settings;
use crate::backend::ApiArgs;
use crate::body::{body_with_nulls, flag_of_field, word_or_json};
use crate::output::{Cell, Output, table};

/// The word that resets a setting.
const DEFAULT: &str = "default";

#[derive(Debug, Args)]
#[command(after_help = "The value `default` resets a setting.")]
pub(crate) struct SetQueue {
    /// The name of the queue.
    queue: QueueName,

    /// Most jobs that may wait in the queue.
    #[arg(long, value_name = "N")]
    max_depth: Option<String>,

    /// Most jobs of the queue that run at once, on all nodes.
    #[arg(long, value_name = "N")]
    concurrency: Option<String>,

    /// Most jobs that start in a period, such as `100/1m`.
    #[arg(long, value_name = "COUNT/PERIOD")]
    rate: Option<String>,

    /// The retry policy: a preset, or a policy as JSON.
    #[arg(long, value_name = "PRESET|JSON")]
    retry: Option<String>,

    /// Share of the slots for retries while new jobs wait too: 0 to 1, or `off`.
    #[arg(long, value_name = "SHARE")]
    retry_fetch_ratio: Option<String>,

    /// Number of slots in each worker that never run a retry.
    #[arg(long, value_name = "N")]
    fresh_reserve: Option<String>,

    /// Most retries of the queue that run at once.
    #[arg(long, value_name = "N")]
    max_inflight_retries: Option<String>,

    /// Number of retries that each worker runs in a separate pool.
    #[arg(long, value_name = "N")]
    retry_lane: Option<String>,

    /// Share of the slots of a worker, relative to the other queues.
    #[arg(long, value_name = "N")]
    weight: Option<String>,

    /// Reset all settings that are not given to their defaults.
    #[arg(long)]
    reset: bool,

    /// Also set up a queue that does not exist yet.
    #[arg(long)]
    create: bool,

    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

impl SetQueue {
    fn given(&self) -> Vec<(&'static str, &str)> {
        let flags = [
            ("max_depth", &self.max_depth),
            ("concurrency", &self.concurrency),
            ("rate", &self.rate),
            ("retry", &self.retry),
            ("retry_fetch_ratio", &self.retry_fetch_ratio),
            ("fresh_reserve", &self.fresh_reserve),
            ("max_inflight_retries", &self.max_inflight_retries),
            ("retry_lane", &self.retry_lane),
            ("weight", &self.weight),
        ];
        let given = flags
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)));
        given.collect()
    }

    /// Returns the settings after the change.
    fn apply(&self, before: &QueueSettings) -> anyhow::Result<QueueSettings> {
        let mut fields = match json!(before) {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        for (name, text) in self.given() {
            fields.insert(name.to_owned(), value_of(name, text)?);
        }
        body_with_nulls(Value::Object(fields), flag_of_field)
    }
}

pub(super) async fn set(set: &SetQueue, client: &Client, output: &Output) -> anyhow::Result<()> {
    if set.given().is_empty() && !set.reset {
        let rule = "must be given, or another setting, or `--reset`";
        return Err(Invalid::new("--concurrency", rule).into());
    }
    let before = current(set, client).await?;
    let start = if set.reset {
        QueueSettings::default()
    } else {
        before.clone()
    };
    let after = set.apply(&start)?;
    if set.dry_run {
        let text = changes(&before, &after);
        return output.print(&json!({"before": before, "after": after}), text);
    }
    let create = CreateQueue {
        create: set.create.then_some(true),
    };
    let stored = client
        .put_queue_settings(&set.queue, &after, create)
        .await?;
    output.print(&stored, changes(&before, &stored))
}

/// Returns the settings that the queue has now.
async fn current(set: &SetQueue, client: &Client) -> anyhow::Result<QueueSettings> {
    let queue = match client.queue(&set.queue).await {
        Err(error) if set.create && error.code() == Some("not_found") => {
            return Ok(QueueSettings::default());
        }
        queue => queue?,
    };
    anyhow::ensure!(
        set.reset || !queue.settings_unreadable,
        "the server cannot read the settings of queue {}, so it cannot keep them; replace all of them with `--reset`",
        set.queue
    );
    Ok(queue.settings)
}

/// Returns the JSON of a setting.
fn value_of(name: &str, text: &str) -> Result<Value, Invalid> {
    if text == DEFAULT {
        return Ok(Value::Null);
    }
    if name == "rate" {
        let rule = "must be COUNT/PERIOD, such as `100/1m`";
        let (count, period) = text
            .split_once('/')
            .ok_or_else(|| Invalid::new("--rate", rule))?;
        let count: u64 = count.parse().map_err(|_| Invalid::new("--rate", rule))?;
        return Ok(json!({"count": count, "period": period}));
    }
    Ok(word_or_json(text))
}

/// Returns a table of the settings before and after.
fn changes(before: &QueueSettings, after: &QueueSettings) -> String {
    let (before, after): (Vec<_>, Vec<_>) = (settings(before).collect(), settings(after).collect());
    let value = |list: &[(String, String)], name: &str| {
        let found = list.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.clone())
    };
    let mut names: Vec<&String> = before.iter().chain(&after).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let row = |name: &String| {
        let cell = |list| Cell::optional(value(list, name));
        vec![Cell::new(name), cell(&before), cell(&after)]
    };
    if names.is_empty() {
        return "all settings are at their defaults\n".to_owned();
    }
    table(
        &["setting", "before", "after"],
        names.into_iter().map(row).collect(),
    )
}
