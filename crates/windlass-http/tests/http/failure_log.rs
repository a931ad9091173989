//! Failures of jobs of the scheduler form are logged.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use windlass_engine::CancellationToken;
use windlass_http::form::{FORM_META, FormFailureLog};

use crate::support::{Reply, Target, World, http_job};

/// Collects the messages of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().expect("no reader panics").push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_failed_job_of_the_form_is_logged() {
    let log = Log::default();
    let _subscriber = tracing::subscriber::set_default(log.clone());
    let target = Target::replying(&[Reply::Status(503)]).await;
    let world = World::new();
    let stop = CancellationToken::new();
    let teller = FormFailureLog::listen(&world.engine);
    let logging = {
        let (engine, stop) = (Arc::clone(&world.engine), stop.clone());
        tokio::spawn(async move { teller.run(&engine, stop).await })
    };
    let mut job = http_job(json!({"url": target.url("/")}));
    job.meta.insert(FORM_META.to_owned(), true.into());
    let (job, _) = world.deliver_job(job).await;
    let expected = format!("Job {} failed after 3 retries, schedule deleted", job.id);
    let logged = async {
        while !log.0.lock().unwrap().contains(&expected) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let logged = tokio::time::timeout(Duration::from_secs(30), logged).await;
    assert!(logged.is_ok(), "{:?}", log.0.lock().unwrap());
    stop.cancel();
    logging.await.unwrap();
    let count = |part: &str| {
        log.0
            .lock()
            .unwrap()
            .iter()
            .filter(|line| line.contains(part))
            .count()
    };
    assert_eq!(count("scheduling retry"), 3);
}
