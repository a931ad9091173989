//! The figures that Prometheus gets.
#![cfg(feature = "prometheus")]

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::events::{Event, JobEvent, JobRef, Received, Recorder as _, ScheduleEvent};
use windlass::prometheus::PrometheusRecorder;
use windlass::retry::Preset;
use windlass::{Client, Context, DeadReason, Failure, Job, JobId, Schedule, Timestamp, Worker};

#[derive(Serialize, Deserialize)]
struct Ask {
    works: bool,
}

impl Job for Ask {
    const KIND: &'static str = "ask";
}

async fn ask(job: Ask, _: Context) -> Result<(), Failure> {
    if job.works { Ok(()) } else { Err("no".into()) }
}

/// The value of one line.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.trim().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_happens_is_counted() {
    let metrics = Arc::new(PrometheusRecorder::new());
    let client = Client::open_with_recorder("memory:", metrics.clone())
        .await
        .unwrap();
    let mut events = client.events();
    let works = client.enqueue(Ask { works: true }).await.unwrap().id;
    let dies = client
        .enqueue(Ask { works: false })
        .retry(Preset::FullJitter)
        .await
        .unwrap()
        .id;
    let mut delays = 0.0;
    let told = client.clone();
    let signal = async move {
        let _keep = told;
        loop {
            match events.next().await {
                Some(Received::Event(event)) => match &*event {
                    Event::Job {
                        what: JobEvent::Retried { delay, .. },
                        ..
                    } => {
                        delays += delay.as_secs_f64();
                    }
                    Event::Job {
                        what: JobEvent::Dead { .. },
                        job,
                        ..
                    } if job.id == dies => return delays,
                    _ => {}
                },
                other => panic!("{other:?}"),
            }
        }
    };
    let (tell, delays) = tokio::sync::oneshot::channel();
    let signal = async move {
        let _ = tell.send(signal.await);
    };
    let tick = Schedule::every("tick", Duration::from_secs(3600), Ask { works: true });
    let worker = Worker::new(&client, ()).handle(ask).schedules("s", [tick]);
    worker.run_until(signal).await.unwrap();
    let delays = delays.await.unwrap();
    let _ = works;
    let text = metrics.text();
    let queue = r#"{queue="default"}"#;
    let of = |name: &str| value(&text, &format!("windlass_{name}{queue}"));
    assert_eq!(of("retries_total"), 3.0);
    assert_eq!(of("retry_exhausted_total"), 1.0);
    assert_eq!(of("retry_latency_seconds_count"), 3.0);
    assert!((of("retry_latency_seconds_sum") - delays).abs() < 1e-6);
    assert_eq!(of("jobs_enqueued_total"), 2.0);
    assert_eq!(of("job_wait_seconds_count"), 5.0, "each claim");
    assert_eq!(of("job_run_seconds_count"), 5.0, "each attempt");
    for outcome in ["succeeded", "dead"] {
        let name =
            format!(r#"windlass_jobs_finished_total{{queue="default",outcome="{outcome}"}}"#);
        assert_eq!(value(&text, &name), 1.0);
    }
    assert!(value(&text, r#"windlass_store_op_seconds_count{op="claim"}"#) >= 4.0);
    assert!(text.contains("windlass_build_info{version="));
}

/// One of everything that is counted.
fn feed(recorder: &PrometheusRecorder) {
    let (at, time) = (Timestamp::UNIX_EPOCH, Duration::from_secs(1));
    let job = JobRef {
        id: JobId::from_u128(1),
        kind: "ask".parse().unwrap(),
        queue: "default".parse().unwrap(),
        attempt: 1,
        created_at: at,
    };
    let (failures, reason) = (1, DeadReason::Exhausted);
    for what in [
        JobEvent::Enqueued,
        JobEvent::Claimed {
            waited: time,
            lane: windlass_core::Lane::Fresh,
        },
        JobEvent::Succeeded { ran: time },
        JobEvent::Lost,
        JobEvent::Retried {
            run_at: at,
            delay: time,
            failures,
        },
        JobEvent::Dead { reason, failures },
        JobEvent::FailureGroupCreated {
            fingerprint: windlass_core::Fingerprint::OTHER,
        },
    ] {
        let job = job.clone();
        recorder.event(&Event::Job { at, job, what });
    }
    let range = windlass_core::schedule::SkippedRange {
        first: at,
        last: at,
        reason: windlass_core::schedule::SkipReason::Missed,
        count: Some(3),
    };
    let fired = ScheduleEvent::Fired {
        scheduled_for: at,
        job: job.id,
        lag: 2 * time,
    };
    for what in [ScheduleEvent::Skipped(range), fired] {
        recorder.event(&Event::Schedule {
            at,
            id: windlass_core::ScheduleId::from_u128(1),
            name: "s".parse().unwrap(),
            what,
        });
    }
    recorder.store_op("claim", time);
    recorder.slots(1, 2);
    recorder.workers(&[("rest", 1)].into());
    recorder.loop_restarted("sweeper");
    recorder.http_job("public", "2xx");
    recorder.http_request("GET", "/livez", 200, time);
    let counts = windlass_store::Counts {
        ready: 4,
        running: 5,
        oldest_ready: Some(at),
        ..windlass_store::Counts::default()
    };
    let now = at.saturating_add(7 * time);
    recorder.outcome_refused(&job.queue);
    recorder.dead_removed(&job.queue, 4);
    recorder.counts(&[(job.queue, counts)].into(), now);
}

#[test]
fn each_figure_has_its_value() {
    let recorder = PrometheusRecorder::new();
    feed(&recorder);
    let text = recorder.text();
    for (name, expected) in [
        (r#"leases_lost_total{queue="default"}"#, 1.0),
        (r#"outcomes_refused_total{queue="default"}"#, 1.0),
        (r#"dead_removed_total{queue="default"}"#, 4.0),
        (r#"schedule_skipped_total{reason="missed"}"#, 3.0),
        ("schedule_lag_seconds_count", 1.0),
        ("schedule_lag_seconds_sum", 2.0),
        (r#"queue_depth{queue="default",state="ready"}"#, 4.0),
        (r#"queue_depth{queue="default",state="running"}"#, 5.0),
        (r#"queue_oldest_ready_seconds{queue="default"}"#, 7.0),
        (r#"store_op_seconds_sum{op="claim"}"#, 1.0),
    ] {
        assert_eq!(
            value(&text, &format!("windlass_{name}")),
            expected,
            "{name}"
        );
    }
}

#[test]
fn every_metric_of_the_documentation_is_there_and_the_other_way_round() {
    let documented = include_str!("../../../../docs/metrics.md");
    let rows = documented
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let mut named: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
    let recorder = PrometheusRecorder::new();
    feed(&recorder);
    let text = recorder.text();
    let helped = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
    let mut there: Vec<String> = Vec::new();
    for line in helped {
        let name = line.split(' ').next().unwrap();
        there.push(name.to_owned());
    }
    named.sort_unstable();
    there.sort_unstable();
    assert_eq!(named, there);
}
