//! Schedules, on a real server.

use windlass_client::api::{
    Backfill, BoundedInt, DurationText, NewJob, NewSchedule, Preview, PreviewParams, PutSchedule,
    Schedule, SchedulePatch, ScheduleView,
};
use windlass_core::schedule::Overlap;
use windlass_core::{Kind, ScheduleName, Timestamp};

use crate::support::Server;

fn job(kind: &str) -> NewJob {
    NewJob::new(Kind::new(kind).expect("a kind"))
}

fn nightly() -> NewSchedule {
    NewSchedule {
        name: ScheduleName::new("reports/nightly").ok(),
        cron: Some("0 2 * * *".to_owned()),
        timezone: Some("Europe/Berlin".to_owned()),
        job: Some(job("report")),
        ..NewSchedule::default()
    }
}

fn readable(view: ScheduleView) -> Schedule {
    match view {
        ScheduleView::Readable(schedule) => *schedule,
        ScheduleView::Unreadable(schedule) => unreachable!("{schedule:?}"),
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

#[tokio::test]
async fn a_schedule_is_created_changed_listed_and_removed() {
    let server = Server::start().await;
    let client = server.client();
    let created = client.create_schedule(&nightly()).await.unwrap();
    assert_eq!(created.cron.as_deref(), Some("0 2 * * *"));
    assert_eq!(created.job.kind, job("report").kind);
    for schedule in ["reports/nightly", created.id.to_string().as_str()] {
        let read = readable(client.schedule(schedule).await.unwrap());
        assert_eq!((read.id, read.next_at), (created.id, created.next_at));
    }
    let patch = SchedulePatch {
        overlap: Some(Some(Overlap::Allow)),
        timezone: Some(None),
        ..SchedulePatch::default()
    };
    let edited = client.edit_schedule("reports/nightly", &patch);
    let edited = edited.await.unwrap();
    assert_eq!(
        (edited.overlap, edited.timezone.as_str()),
        (Overlap::Allow, "UTC")
    );
    let put = PutSchedule {
        every: Some(DurationText(std::time::Duration::from_secs(60))),
        job: Some(job("pulse")),
        ..PutSchedule::default()
    };
    let pulse = ScheduleName::new("pulse").unwrap();
    let pulse = client.put_schedule(&pulse, &put).await.unwrap();
    assert_eq!(pulse.every, put.every);
    let all = client.schedules().limit(1).all().await.unwrap();
    let names: Vec<&str> = all.iter().map(ScheduleView::name).collect();
    assert_eq!(names, ["pulse", "reports/nightly"]);
    client.delete_schedule("pulse").await.unwrap();
    let gone = client.schedule("pulse").await.unwrap_err();
    assert_eq!(gone.code(), Some("not_found"));
    let taken = client.create_schedule(&nightly()).await.unwrap_err();
    assert_eq!(taken.code(), Some("schedule_exists"));
    let name = edited.name;
    let none = client.replaced_schedule_payload(&name, "ab").await;
    assert_eq!(none.unwrap_err().code(), Some("not_found"));
}

#[tokio::test]
async fn a_schedule_is_paused_run_and_backfilled() {
    let server = Server::start().await;
    let client = server.client();
    client.create_schedule(&nightly()).await.unwrap();
    let name = "reports/nightly";
    let paused = client.pause_schedule(name).await.unwrap();
    assert_eq!((paused.paused, paused.next_at), (true, None));
    assert!(
        client
            .resume_schedule(name)
            .await
            .unwrap()
            .next_at
            .is_some()
    );
    let run = client.run_schedule_now(name).await.unwrap();
    let job = client.job(run).await.unwrap();
    assert_eq!(job.schedule_id, Some(paused.id));
    let range = Backfill {
        from: Some(at("2026-01-01T00:00:00Z")),
        to: Some(at("2026-01-03T00:00:00Z")),
    };
    let backfill = || client.backfill_schedule(name, &range);
    assert_eq!(backfill().await.unwrap(), 2);
    assert_eq!(backfill().await.unwrap(), 0, "an occurrence fires once");
    let occurrences = client.occurrences(name).limit(1).all().await.unwrap();
    assert_eq!(occurrences.len(), 3);
    assert_eq!(occurrences[2].scheduled_for, at("2026-01-01T01:00:00Z"));
    assert_eq!(occurrences[2].finished_at, Some(None), "it waits");
}

#[tokio::test]
async fn rules_and_schedules_are_previewed() {
    let server = Server::start().await;
    let client = server.client();
    client.create_schedule(&nightly()).await.unwrap();
    let params = PreviewParams {
        count: BoundedInt::new(3),
    };
    let next = client.preview_schedule("reports/nightly", params).await;
    assert_eq!(next.unwrap().len(), 3);
    let rule = Preview {
        cron: Some("0 2 * * *".to_owned()),
        from: Some(at("2026-01-01T02:00:00Z")),
        ..Preview::default()
    };
    let firings = client.preview_rule(&rule).await.unwrap();
    assert_eq!(firings.len(), 10);
    assert_eq!(firings[0].at, at("2026-01-01T02:00:00Z"));
    let refused = client.preview_rule(&Preview::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some("invalid"));
}
