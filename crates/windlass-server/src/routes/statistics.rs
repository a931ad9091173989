//! Statistics of queues.

use std::time::Duration;

use windlass::admin::StatisticsSeries;
use windlass_api::{
    Activity, DurationText, QueueActivity, Statistics, StatisticsParams, StatisticsPoint,
};
use windlass_core::{QueueName, Timestamp};

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{Params, Reply};
use crate::problem::Problem;

/// The length of the range if the request does not give its start.
const RANGE_DEFAULT: Duration = Duration::from_secs(3600);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/stats", Scope::Read, read)
            .summary(
                "queues",
                "Returns what happened in a range of time, in steps: jobs enqueued, attempts by outcome, wait and \
                 run times. Adds up all processes of the store; each of them writes its numbers every 10 s.",
            )
            .status(200, "The statistics."),
    ]
}

async fn read(
    call: Call,
    Params(params): Params<StatisticsParams>,
) -> Result<Reply<Statistics>, Problem> {
    let to = params.to.unwrap_or(call.now);
    let from = params.from.unwrap_or(to.saturating_sub(RANGE_DEFAULT));
    let step = params.step.map(|step| step.0);
    let client = &call.app.client;
    let series = client.statistics(from..to, step, params.queue.as_ref());
    Ok(Reply::ok(view(&series.await?)))
}

fn view(series: &StatisticsSeries) -> Statistics {
    let point = |(at, numbers): (&Timestamp, _)| StatisticsPoint {
        at: *at,
        activity: Activity::from(numbers),
    };
    let queue = |(queue, numbers): (&QueueName, _)| QueueActivity {
        queue: queue.clone(),
        activity: Activity::from(numbers),
    };
    let other = &series.queues.other;
    Statistics {
        from: series.range.from(),
        to: series.range.to(),
        step: DurationText(series.range.step()),
        data: series.points.iter().map(point).collect(),
        totals: Activity::from(&series.total()),
        queues: series.queues.queues.iter().map(queue).collect(),
        other: (!other.is_empty()).then(|| Activity::from(other)),
    }
}
