//! What workers in any language ask for: jobs, more time, and to be heard.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value};
use windlass_core::fairness::{ClaimQueue, QueueOrder};
use windlass_core::fields::{Fields, RawFields, one_of, refuse_both};
use windlass_core::{Invalid, JobId, Kind, QueueName, WorkerName};

use crate::new_job::{OTHERS_BYTES_MAX, read_each, read_list};

/// The most jobs of one claim.
pub const CLAIM_LIMIT_MAX: u32 = 1000;
/// The most queues of one claim.
pub const CLAIM_QUEUES_MAX: usize = 100;
/// The most kinds, or ids, of one claim.
const NAMED_MAX: usize = 1000;
/// The longest name of a claim, in bytes.
const CLAIM_ID_BYTES_MAX: usize = 128;
/// The greatest share of a queue.
const WEIGHT_MAX: i64 = 1000;

/// A claim.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// From where, if it says.
    pub queues: Option<Vec<ClaimQueue>>,
    /// How it goes through them.
    pub order: QueueOrder,
    /// The kinds that the worker has handlers for; all but HTTP jobs if none are named.
    pub kinds: Option<BTreeSet<Kind>>,
    /// Only these jobs, if some are named.
    pub ids: Option<BTreeSet<JobId>>,
    /// At most so many.
    pub limit: u32,
    /// How long each lease lasts.
    pub lease: Option<Duration>,
    /// Asked again by the same name, it gets the same jobs.
    pub claim_id: Option<String>,
    /// How long it may wait until there is something.
    pub wait: Duration,
    /// Who claims.
    pub worker: Option<WorkerName>,
    /// How many slots the worker has in all, if it says.
    pub slots: Option<u32>,
    /// How many of them hold a retry.
    pub retries_running: u32,
}

impl ClaimRequest {
    /// Reads a claim.
    pub fn from_fields(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let mut fields = Fields::of(map);
        let words = [
            ("weighted", QueueOrder::Weighted),
            ("strict", QueueOrder::Strict),
        ];
        let order = fields.parsed("order", |text| one_of(text, &words))?;
        let slots = fields.integer("slots", 1, 1_000_000)?;
        let retries = fields.integer("retries_running", 0, 1_000_000)?;
        let limit = fields.integer("limit", 1, CLAIM_LIMIT_MAX.into())?;
        let claim = ClaimRequest {
            queues: read_queues(&mut fields)?,
            order: order.unwrap_or_default(),
            kinds: read_set(&mut fields, "kinds", Kind::new)?,
            ids: read_set(&mut fields, "ids", str::parse)?,
            limit: limit.and_then(|limit| limit.try_into().ok()).unwrap_or(1),
            lease: fields.duration("lease")?,
            claim_id: fields.parsed("claim_id", claim_name)?,
            wait: fields.duration("wait")?.unwrap_or_default(),
            worker: fields.parsed("worker", WorkerName::new)?,
            slots: slots.and_then(|slots| slots.try_into().ok()),
            retries_running: retries.and_then(|n| n.try_into().ok()).unwrap_or(0),
        };
        fields.finish()?;
        if claim.retries_running > 0 && claim.slots.is_none() {
            let rule = "says nothing without `slots`";
            return Err(Invalid::new("retries_running", rule));
        }
        Ok(claim)
    }
}

/// `queues` (names, or objects with a weight), or `queue`.
fn read_queues(fields: &mut Fields<'_>) -> Result<Option<Vec<ClaimQueue>>, Invalid> {
    let one = fields.parsed("queue", QueueName::new)?;
    let many = fields.list("queues")?;
    refuse_both(one.is_some() && many.is_some(), "queue", "queues")?;
    let Some(many) = many else {
        return Ok(one.map(|name| vec![ClaimQueue::plain(name)]));
    };
    if many.is_empty() || many.len() > CLAIM_QUEUES_MAX {
        let rule = format!(
            "must name 1 to {CLAIM_QUEUES_MAX} queues, got {}",
            many.len()
        );
        return Err(Invalid::new("queues", rule));
    }
    let mut queues: Vec<ClaimQueue> = Vec::with_capacity(many.len());
    for (place, value) in many.iter().enumerate() {
        let within = |error: Invalid| error.within(&format!("queues[{place}]"));
        let queue = match value {
            Value::String(name) => QueueName::new(name).map(ClaimQueue::plain),
            other => read_weighted(other),
        };
        let queue = queue.map_err(within)?;
        if queues.iter().any(|known| known.name == queue.name) {
            return Err(within(Invalid::new("", "is named twice")));
        }
        queues.push(queue);
    }
    Ok(Some(queues))
}

fn read_weighted(value: &Value) -> Result<ClaimQueue, Invalid> {
    let mut fields = Fields::new(value)?;
    let name = fields.parsed("name", QueueName::new)?;
    let weight = fields.integer("weight", 1, WEIGHT_MAX)?;
    fields.finish()?;
    Ok(ClaimQueue {
        name: name.ok_or_else(|| Invalid::new("name", "is required"))?,
        weight: weight
            .and_then(|weight| weight.try_into().ok())
            .unwrap_or(1),
    })
}

/// A list of different things, each read from its text; none if it is not given.
fn read_set<T: Ord>(
    fields: &mut Fields<'_>,
    name: &str,
    parse: impl Fn(&str) -> Result<T, Invalid>,
) -> Result<Option<BTreeSet<T>>, Invalid> {
    let Some(list) = fields.list(name)? else {
        return Ok(None);
    };
    if list.is_empty() || list.len() > NAMED_MAX {
        let rule = format!("must list 1 to {NAMED_MAX}, got {}", list.len());
        return Err(Invalid::new(name, rule));
    }
    let read = |(place, value): (usize, &Value)| {
        let text = value
            .as_str()
            .ok_or_else(|| Invalid::new("", "must be text"));
        text.and_then(&parse)
            .map_err(|error| error.within(&format!("{name}[{place}]")))
    };
    let set: Result<BTreeSet<T>, Invalid> = list.iter().enumerate().map(read).collect();
    set.map(Some)
}

fn claim_name(text: &str) -> Result<String, Invalid> {
    if text.is_empty() || text.len() > CLAIM_ID_BYTES_MAX || text.contains(char::is_control) {
        let rule = format!("must be 1 to {CLAIM_ID_BYTES_MAX} bytes without control characters");
        return Err(Invalid::new("", rule));
    }
    Ok(text.to_owned())
}

/// A running attempt, as its worker names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRef {
    /// The job.
    pub id: JobId,
    /// Which of its attempts.
    pub attempt: u32,
}

impl LeaseRef {
    /// Reads `id` (or `job_id`) and `attempt`.
    pub fn from_fields(fields: &mut Fields<'_>) -> Result<Self, Invalid> {
        let required = |name: &str| Invalid::new(name, "is required");
        let id: Option<JobId> = fields.parsed("id", str::parse)?;
        let other: Option<JobId> = fields.parsed("job_id", str::parse)?;
        refuse_both(id.is_some() && other.is_some(), "job_id", "id")?;
        let attempt = fields.integer("attempt", 1, u32::MAX.into())?;
        Ok(LeaseRef {
            id: id.or(other).ok_or_else(|| required("id"))?,
            attempt: attempt
                .and_then(|attempt| attempt.try_into().ok())
                .ok_or_else(|| required("attempt"))?,
        })
    }
}

/// A sign of life of a worker, with the leases it wants prolonged.
#[derive(Debug, Clone)]
pub struct RenewRequest {
    /// Who.
    pub worker: Option<WorkerName>,
    /// How long from now.
    pub lease: Option<Duration>,
    /// Which leases; none is only a sign of life.
    pub leases: Vec<LeaseRef>,
}

impl RenewRequest {
    /// Reads `worker`, `lease` and `leases`.
    pub fn read(parts: &RawFields, most: usize) -> Result<Self, Invalid> {
        parts.check_others("leases", OTHERS_BYTES_MAX)?;
        let others = parts.values_but("leases")?;
        let mut fields = Fields::of(&others);
        let worker = fields.parsed("worker", WorkerName::new)?;
        let lease = fields.duration("lease")?;
        fields.value("leases");
        fields.finish()?;
        let listed = if parts.has("leases") {
            read_list(parts, "leases", 0, most)?
        } else {
            Vec::new()
        };
        let read = |parts: RawFields| {
            let map = parts.values()?;
            let mut fields = Fields::of(&map);
            let lease = LeaseRef::from_fields(&mut fields)?;
            fields.finish()?;
            Ok(lease)
        };
        Ok(RenewRequest {
            worker,
            lease,
            leases: read_each(&listed, "leases", read).collect::<Result<_, _>>()?,
        })
    }
}

/// Reads how far an attempt is: `id`, `attempt`, `progress`, and `worker` if it says who it is.
pub fn read_progress(parts: &RawFields) -> Result<(LeaseRef, Option<WorkerName>, Value), Invalid> {
    let map = parts.values()?;
    let mut fields = Fields::of(&map);
    let of = LeaseRef::from_fields(&mut fields)?;
    let worker = fields.parsed("worker", WorkerName::new)?;
    let progress = fields.value("progress");
    let progress = progress.ok_or_else(|| Invalid::new("progress", "is required"))?;
    fields.finish()?;
    Ok((of, worker, progress.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(value: &Value) -> Result<ClaimRequest, Invalid> {
        ClaimRequest::from_fields(value.as_object().unwrap())
    }

    #[test]
    fn a_claim_says_all_it_may() {
        let id = JobId::from_u128(7);
        let read = claim(&json!({
            "queues": ["a", {"name": "b", "weight": 3}], "order": "strict", "kinds": ["k"], "ids": [id],
            "limit": 10, "lease": "1m", "claim_id": "c", "wait_ms": 500, "worker": "w", "slots": 12,
            "retries_running": 2,
        }))
        .unwrap();
        let weights: Vec<_> = read
            .queues
            .iter()
            .flatten()
            .map(|queue| queue.weight)
            .collect();
        assert_eq!(weights, [1, 3]);
        assert_eq!((read.order, read.limit), (QueueOrder::Strict, 10));
        assert_eq!(read.lease, Some(Duration::from_secs(60)));
        assert_eq!(read.wait, Duration::from_millis(500));
        assert_eq!((read.slots, read.retries_running), (Some(12), 2));
        assert!(read.ids.unwrap().contains(&id));
        let plain = claim(&json!({})).unwrap();
        assert_eq!(plain.queues, None);
        assert_eq!(
            (plain.limit, plain.lease, plain.wait),
            (1, None, Duration::ZERO)
        );
        let one = claim(&json!({"queue": "q"})).unwrap();
        assert_eq!(one.queues.unwrap()[0].name.as_str(), "q");
    }

    #[test]
    fn a_greedy_claim_is_refused_by_name() {
        for (value, field) in [
            (json!({"limit": 1_000_000}), "limit"),
            (json!({"limit": 0}), "limit"),
            (json!({"queues": []}), "queues"),
            (json!({"queues": ["a", "a"]}), "queues[1]"),
            (json!({"queues": [{"weight": 1}]}), "queues[0].name"),
            (
                json!({"queues": [{"name": "a", "weight": 0}]}),
                "queues[0].weight",
            ),
            (json!({"queue": "a", "queues": ["b"]}), "queue"),
            (json!({"kinds": ["a b"]}), "kinds[0]"),
            (json!({"ids": ["x"]}), "ids[0]"),
            (json!({"ids": []}), "ids"),
            (json!({"claim_id": ""}), "claim_id"),
            (json!({"worker": "a\nb"}), "worker"),
            (json!({"retries_running": 1}), "retries_running"),
            (json!({"colour": 1}), "colour"),
        ] {
            assert_eq!(claim(&value).unwrap_err().field(), field, "{value}");
        }
    }

    #[test]
    fn a_renewal_names_its_leases() {
        let id = JobId::from_u128(7);
        let text = json!({"worker": "w", "lease_ms": 5, "leases": [{"job_id": id, "attempt": 2}]});
        let parts = RawFields::parse(&text.to_string()).unwrap();
        let read = RenewRequest::read(&parts, 10).unwrap();
        assert_eq!(read.leases, [LeaseRef { id, attempt: 2 }]);
        let beat = RawFields::parse(r#"{"worker":"w"}"#).unwrap();
        assert!(RenewRequest::read(&beat, 10).unwrap().leases.is_empty());
        for (text, field) in [
            (json!({"leases": [{"id": id}]}), "leases[0].attempt"),
            (json!({"leases": [{"attempt": 1}]}), "leases[0].id"),
            (json!({"leases": [1, 2]}), "leases"),
        ] {
            let parts = RawFields::parse(&text.to_string()).unwrap();
            let refused = RenewRequest::read(&parts, 1).unwrap_err();
            assert_eq!(refused.field(), field, "{text}");
        }
    }
}
