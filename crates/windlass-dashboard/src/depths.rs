//! How many jobs of each queue waited or ran over the last hour, for the tables of queues.
//!
//! Statistics are read in stretches of five minutes, each for all queues at once. What happened in
//! a stretch that is over does not change, so this node reads it once for all tabs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use windlass_api::{Activity, Statistics};
use windlass_core::Timestamp;

use crate::backend::Backend;
use crate::failure::Failure;
use crate::fields::escaped;
use crate::series::ended;
use crate::snapshot::read;

/// The length of a stretch.
const STRETCH: Duration = Duration::from_secs(300);
/// How far the depths reach back.
const SPAN: Duration = Duration::from_secs(3600);
/// Processes write their statistics every 10 s, so a stretch is complete some time after its end.
const COMPLETE_AFTER: Duration = Duration::from_secs(30);
/// How long the stretch that is not over yet is kept.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// By how much the depth of each queue changed.
type Changes = HashMap<String, i64>;

/// Reads and keeps what happened in the last hour.
#[derive(Default)]
pub(crate) struct DepthReader(tokio::sync::Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The stretches that are over, by their start.
    over: BTreeMap<Timestamp, Arc<Changes>>,
    last: Option<(Instant, Depths)>,
}

/// The changes of the last hour.
#[derive(Clone, Default)]
pub(crate) struct Depths(Arc<Vec<(Timestamp, Arc<Changes>)>>);

impl DepthReader {
    /// Returns the changes up to now. Concurrent callers share one read.
    pub(crate) async fn get(&self, backend: &dyn Backend) -> Result<Depths, Failure> {
        let mut kept = self.0.lock().await;
        if let Some((at, depths)) = &kept.last
            && at.elapsed() < FRESH_FOR
        {
            return Ok(depths.clone());
        }
        let now = backend.now();
        let begin = start_of(now.saturating_sub(SPAN));
        kept.over.retain(|start, _| *start >= begin);
        let mut stretches = Vec::new();
        let mut start = begin;
        while start < now {
            let end = start.saturating_add(STRETCH);
            let is_over = end.saturating_add(COMPLETE_AFTER) <= now;
            let changes = match kept.over.get(&start) {
                Some(changes) => Arc::clone(changes),
                None => Arc::new(changes_in(backend, start, end.min(now)).await?),
            };
            if is_over {
                kept.over.insert(start, Arc::clone(&changes));
            }
            stretches.push((end.min(now), changes));
            start = end;
        }
        let depths = Depths(Arc::new(stretches));
        kept.last = Some((Instant::now(), depths.clone()));
        Ok(depths)
    }
}

/// The start of the stretch that contains an instant.
fn start_of(at: Timestamp) -> Timestamp {
    let length = i64::try_from(STRETCH.as_micros()).unwrap_or(i64::MAX);
    let into = at.as_micros().rem_euclid(length).unsigned_abs();
    at.saturating_sub(Duration::from_micros(into))
}

async fn changes_in(
    backend: &dyn Backend,
    from: Timestamp,
    to: Timestamp,
) -> Result<Changes, Failure> {
    let path = format!(
        "/api/v1/stats?from={}&to={}&step=5m",
        escaped(&from.to_string()),
        escaped(&to.to_string())
    );
    let statistics: Statistics = read(backend, &path).await?;
    let change = |activity: &Activity| activity.enqueued as i64 - ended(activity) as i64;
    let queues = statistics.queues.iter();
    let changes = queues.map(|queue| (queue.queue.to_string(), change(&queue.activity)));
    Ok(changes.filter(|(_, change)| *change != 0).collect())
}

impl Depths {
    /// Returns the depth of a queue at equal distances over the last hour, counted backwards from
    /// `depth` now. Jobs that operators revived, cancelled or deleted while they waited are no
    /// attempts, so the line is an estimate.
    pub(crate) fn of(&self, queue: &str, depth: u64) -> Vec<f64> {
        let Some((now, _)) = self.0.last() else {
            return Vec::new();
        };
        // The depth at the end of each stretch, the latest first.
        let mut known: Vec<(f64, f64)> = Vec::new();
        let mut depth = depth as f64;
        for (end, changes) in self.0.iter().rev() {
            known.push((now.since(*end).as_secs_f64(), depth.max(0.0)));
            depth -= changes.get(queue).copied().unwrap_or(0) as f64;
        }
        if let Some((end, _)) = self.0.first() {
            let begin = end.saturating_sub(STRETCH);
            known.push((now.since(begin).as_secs_f64(), depth.max(0.0)));
        }
        let points = SPAN.as_secs() / STRETCH.as_secs();
        let age = |point: u64| STRETCH.as_secs_f64() * (points - point) as f64;
        (0..=points).map(|point| at(&known, age(point))).collect()
    }
}

/// The depth at an age, on a straight line between the known depths around it.
fn at(known: &[(f64, f64)], age: f64) -> f64 {
    let after = known.iter().position(|(known, _)| *known >= age);
    let Some(after) = after else {
        return known.last().map_or(0.0, |(_, depth)| *depth);
    };
    let (later, earlier) = (known.get(after.saturating_sub(1)), known.get(after));
    match (later, earlier) {
        (Some((from, low)), Some((to, high))) if to > from => {
            low + (high - low) * (age - from) / (to - from)
        }
        (_, Some((_, depth))) => *depth,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instant(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_stretch_starts_at_a_multiple_of_five_minutes() {
        assert_eq!(
            start_of(instant("2026-03-17T12:34:56Z")),
            instant("2026-03-17T12:30:00Z")
        );
    }

    #[test]
    fn depths_are_counted_backwards_and_placed_to_scale() {
        let changes = |change| Arc::new(Changes::from([("mail".to_owned(), change)]));
        let mut stretches: Vec<_> = (0..12_u32)
            .map(|index| {
                let end = instant("2026-03-17T11:40:00Z").saturating_add(STRETCH * index);
                (end, changes(0))
            })
            .collect();
        // Ten jobs came in the last whole stretch, and four more in the minute after it.
        stretches[11].1 = changes(10);
        stretches.push((instant("2026-03-17T12:36:00Z"), changes(4)));
        let depths = Depths(Arc::new(stretches));
        let mail = depths.of("mail", 14);
        assert_eq!(mail.len(), 13);
        assert_eq!((mail[0], mail[10], mail[12]), (0.0, 0.0, 14.0));
        // Five minutes ago is four fifths into the last whole stretch, seen from its end.
        assert!((mail[11] - 2.0).abs() < 1e-9, "{mail:?}");
        assert_eq!(depths.of("other", 3), vec![3.0; 13]);
        assert_eq!(Depths::default().of("mail", 1), Vec::<f64>::new());
    }
}
