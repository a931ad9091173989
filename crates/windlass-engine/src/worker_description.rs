//! The description of a worker in its heartbeats. Workers in Rust programs and remote workers share
//! one format.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass_core::{Kind, QueueName, QueuePattern, Timestamp};
use windlass_store::Node;

/// A node or worker without a heartbeat for this long counts as dead.
const ALIVE_FOR: Duration = Duration::from_secs(60);

/// Whether a node or worker sent a heartbeat within the last minute.
pub fn is_alive(node: &Node, now: Timestamp) -> bool {
    now.since(node.beat_at) < ALIVE_FOR
}

/// What a worker says about itself.
#[derive(Debug, Clone, Default)]
pub struct WorkerDescription {
    /// The queues that it takes jobs from.
    pub queues: Option<Vec<QueueName>>,
    /// The patterns of the queues that it discovers.
    pub patterns: Vec<QueuePattern>,
    /// The kinds that it has handlers for. `None` means all kinds that are not reserved.
    pub kinds: Option<Vec<Kind>>,
    /// How many jobs it runs at once.
    pub slots: Option<u32>,
    /// The version of its program.
    pub version: Option<String>,
}

impl WorkerDescription {
    /// The JSON fields as they are stored. Unknown ones are `null`.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let queues = self.queues.iter().flatten().map(QueueName::as_str);
        let patterns = self.patterns.iter().map(QueuePattern::as_str);
        let served: Vec<&str> = queues.chain(patterns).collect();
        let served = (self.queues.is_some() || !self.patterns.is_empty()).then_some(served);
        let fields = [
            ("queues", json!(served)),
            ("kinds", json!(self.kinds)),
            ("slots", json!(self.slots)),
            ("version", json!(self.version)),
        ];
        let named = fields.map(|(name, value)| (name.to_owned(), value));
        named.into_iter().collect()
    }

    /// Whether a worker takes jobs from a queue, according to its stored description.
    pub fn takes_from(kept: &Value, queue: &QueueName) -> bool {
        let served = kept.get("queues").and_then(Value::as_array);
        let mut served = served.into_iter().flatten().filter_map(Value::as_str);
        // A queue name is a pattern that matches itself.
        served.any(|one| QueuePattern::new(one).is_ok_and(|one| one.matches(queue)))
    }

    /// Whether a worker names a queue itself, rather than only discovering it.
    pub fn names_queue(kept: &Value, queue: &QueueName) -> bool {
        names(kept, "queues", queue.as_str()) == Some(true)
    }

    /// Whether a worker takes jobs of a kind from a queue. A worker that names no kinds takes all
    /// but the reserved ones.
    pub fn takes(kept: &Value, queue: &QueueName, kind: &Kind, reserved: &BTreeSet<Kind>) -> bool {
        let named = names(kept, "kinds", kind.as_str());
        WorkerDescription::takes_from(kept, queue) && named.unwrap_or(!reserved.contains(kind))
    }
}

/// Whether a list of the stored description contains a name. `None` if there is no such list.
fn names(kept: &Value, list: &str, name: &str) -> Option<bool> {
    let list = kept.get(list)?.as_array()?;
    Some(list.iter().any(|one| one == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_takes_the_queues_and_kinds_that_it_names() {
        let kind_of = |name| Kind::new(name).unwrap();
        let (a, b, http) = (kind_of("a"), kind_of("b"), kind_of("http"));
        let queue = QueueName::default();
        let takes = |about: &WorkerDescription, kind: &Kind| {
            let kept = Value::Object(about.to_json());
            WorkerDescription::takes(&kept, &queue, kind, &BTreeSet::from([kind_of("http")]))
        };
        let all = WorkerDescription {
            queues: Some(vec![queue.clone()]),
            ..WorkerDescription::default()
        };
        assert!(takes(&all, &a));
        assert!(!takes(&all, &http), "a reserved kind must be named");
        let some = WorkerDescription {
            kinds: Some(vec![a.clone(), http.clone()]),
            ..all
        };
        let taken = [&a, &b, &http].map(|kind| takes(&some, kind));
        assert_eq!(taken, [true, false, true]);
        assert!(
            !takes(&WorkerDescription::default(), &a),
            "it names no queue"
        );
        let discovers = |pattern: &str| WorkerDescription {
            patterns: vec![QueuePattern::new(pattern).unwrap()],
            ..WorkerDescription::default()
        };
        assert!(takes(&discovers("d*"), &a) && !takes(&discovers("e*"), &a));
    }
}
