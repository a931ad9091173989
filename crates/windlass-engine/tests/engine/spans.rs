//! Every attempt has a span that names its job, and log lines of its handler are inside it.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use windlass_core::Report;
use windlass_testkit::world::{World, new_job, worker};

/// Records the spans of attempts, and the log lines inside them.
#[derive(Default)]
struct Spy {
    spans: Mutex<Vec<String>>,
    inside: AtomicBool,
    logged_inside: AtomicBool,
    /// The warnings.
    warned: Mutex<Vec<String>>,
}

struct Shared(Arc<Spy>);

#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

const ATTEMPT: u64 = 1;
const OTHER: u64 = 2;

impl Subscriber for Shared {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        if span.metadata().name() != "attempt" {
            return Id::from_u64(OTHER);
        }
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.0.spans.lock().unwrap().push(fields.0);
        Id::from_u64(ATTEMPT)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() == tracing::Level::WARN {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.0.warned.lock().unwrap().push(fields.0);
        }
        if event.metadata().target() == "handler" {
            let inside = self.0.inside.load(Ordering::SeqCst);
            self.0.logged_inside.store(inside, Ordering::SeqCst);
        }
    }

    fn enter(&self, span: &Id) {
        if span.into_u64() == ATTEMPT {
            self.0.inside.store(true, Ordering::SeqCst);
        }
    }

    fn exit(&self, span: &Id) {
        if span.into_u64() == ATTEMPT {
            self.0.inside.store(false, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn an_attempt_has_a_span_with_its_job() {
    let spy = Arc::new(Spy::default());
    let _guard = tracing::subscriber::set_default(Shared(Arc::clone(&spy)));
    let world = World::memory();
    let build = worker(1).with("mail", |_| async {
        tracing::info!(target: "handler", "sending");
        Report::Succeeded(None)
    });
    let (worker, _) = build.build(&world);
    let id = world.enqueue(new_job("mail")).await;
    worker.drain(&world.clock).await.unwrap();
    let spans = spy.spans.lock().unwrap().clone();
    let expected = format!(" job.id={id} job.kind=mail job.queue=default job.attempt=1");
    assert_eq!(spans, [expected]);
    assert!(spy.logged_inside.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_handler_that_blocks_the_runtime_is_logged() {
    let spy = Arc::new(Spy::default());
    let _guard = tracing::subscriber::set_default(Shared(Arc::clone(&spy)));
    let world = World::memory();
    let clock = world.clock.clone();
    let build = worker(1).succeeds("quick").on("blocks", move |_| {
        clock.advance(std::time::Duration::from_secs(6)); // as if the thread were blocked for 6 s
        Report::Succeeded(None)
    });
    let (worker, _) = build.build(&world);
    world.enqueue(new_job("quick")).await;
    worker.drain(&world.clock).await.unwrap();
    assert!(spy.warned.lock().unwrap().is_empty());
    let id = world.enqueue(new_job("blocks")).await;
    worker.drain(&world.clock).await.unwrap();
    let warned = spy.warned.lock().unwrap().join("\n");
    let message = "the handler blocked its thread for 6 s; use `ctx.blocking`";
    assert!(warned.contains(message), "{warned}");
    assert!(warned.contains(&id.to_string()), "{warned}");
}
