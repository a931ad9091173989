//! Requests of HTTP jobs are counted by class of target and result.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use windlass_core::{QueueName, Timestamp};
use windlass_engine::{Event, Recorder};
use windlass_store::Counts;

use crate::support::{Reply, Target, World};

#[derive(Debug, Default)]
struct Results(Mutex<Vec<(&'static str, &'static str)>>);

impl Recorder for Results {
    fn event(&self, _: &Event) {}

    fn store_op(&self, _: &'static str, _: Duration) {}

    fn counts(&self, _: &BTreeMap<QueueName, Counts>, _: Timestamp) {}

    fn http_job(&self, target: &'static str, result: &'static str) {
        self.0
            .lock()
            .expect("no test panics here")
            .push((target, result));
    }
}

#[tokio::test]
async fn each_request_is_counted_once_also_on_a_connection_of_another_one() {
    let results = Arc::new(Results::default());
    let world = World::recorded(Arc::clone(&results) as Arc<dyn Recorder>);
    let replies = [Reply::Status(200), Reply::Status(404), Reply::Status(503)];
    let target = Target::replying(&replies).await;
    for _ in 0..3 {
        let once = json!({"url": target.url("/"), "permanent_statuses": ["4xx", "5xx"]});
        world.deliver(once).await;
    }
    world.deliver(json!({"url": "http://10.0.0.1/"})).await;
    let counted = results.0.lock().unwrap().clone();
    let expected = [
        ("opened", "2xx"),
        ("opened", "4xx"),
        ("opened", "5xx"),
        ("refused", "refused"),
    ];
    assert_eq!(counted, expected);
}
