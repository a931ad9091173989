use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T10:00:00Z";

fn queue(name: &str, ready: u64, dead: u64) -> Value {
    json!({
        "name": name, "depth": ready, "settings": {}, "settings_unreadable": false,
        "paused": null, "oldest_ready_at": null, "oldest_ready_ms": null,
        "counts": {
            "scheduled": 2, "ready": ready, "retrying": 1, "running": 3,
            "succeeded": 1200, "dead": dead, "cancelled": 0,
        },
        "last_minute": {"enqueued": 0, "succeeded": 0, "failed": 0, "retried": 0, "dead": 0},
    })
}

fn activity(queue: &str, enqueued: u64) -> Value {
    let none = json!({"fresh": 0, "retry": 0});
    let times = json!({"count": 5, "p50_ms": 3.0, "p95_ms": 1500.0, "p99_ms": 2000.0});
    json!({
        "queue": queue, "enqueued": enqueued, "started": none,
        "succeeded": {"fresh": 40, "retry": 2}, "failed": {"fresh": 1, "retry": 2},
        "timed_out": none, "lost": none, "snoozed": none, "released": none, "cancelled": none,
        "retried": 3, "dead": 0, "wait": times, "run": times,
    })
}

fn snapshot() -> Snapshot {
    let mut mail = queue("mail", 12, 0);
    mail["paused"] = json!({"by": "ops", "at": NOW, "reason": null});
    let queues = json!([queue("default", 0, 0), mail, queue("reports", 150_000, 7)]);
    let rates: Vec<windlass_api::QueueActivity> =
        serde_json::from_value(json!([activity("mail", 90)])).unwrap();
    let group = json!({
        "fingerprint": "270e7f6683829ec3", "queue": "reports", "kind": "report:nightly",
        "dead": 7, "retrying": 1, "first_seen_at": "2026-01-01T09:00:00Z",
        "last_seen_at": "2026-01-01T09:59:00Z", "hours": [],
        "sample": {"job_id": null, "error": "connection to db refused\n\u{1b}[31mmore"},
    });
    let worker = json!({
        "name": "mail-1", "about": {"queues": ["mail", "default"], "slots": 10},
        "heartbeat_at": "2026-01-01T09:59:55Z", "heartbeat_age_ms": 5000, "alive": true,
        "signal": "pause_claims",
    });
    Snapshot {
        at: NOW.parse().unwrap(),
        queues: serde_json::from_value(queues).unwrap(),
        last_minute: Some(
            rates
                .into_iter()
                .map(|row| (row.queue, row.activity))
                .collect(),
        ),
        failures: vec![serde_json::from_value(group).unwrap()],
        workers: vec![serde_json::from_value(worker).unwrap()],
        replays: Vec::new(),
    }
}

fn screen(snapshot: Option<Snapshot>) -> Screen {
    let mut screen = Screen::new(Duration::from_secs(2));
    if let Some(snapshot) = snapshot {
        screen.update(snapshot);
    }
    screen
}

/// Draws a screen of this size ten seconds after the data was read.
fn drawn(screen: &Screen, look: &Look, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let now: Timestamp = "2026-01-01T10:00:10Z".parse().unwrap();
    terminal
        .draw(|frame| draw(frame, screen, look, now))
        .unwrap();
    let text = terminal.backend().to_string();
    // The backend puts quotes around each line.
    let lines = text.lines().map(|line| line.trim_matches('"').trim_end());
    lines.map(|line| line.to_owned() + "\n").collect()
}

fn pressed(keys: &[KeyCode]) -> Look {
    let mut look = Look::default();
    for key in keys {
        look.press(KeyEvent::new(*key, KeyModifiers::NONE));
    }
    look
}

#[test]
fn an_ordinary_terminal_shows_queues_and_failures() {
    let shown = drawn(&screen(Some(snapshot())), &Look::default(), 80, 24);
    insta::assert_snapshot!(shown);
}

#[test]
fn keys_sort_the_queues_and_switch_the_panel() {
    let look = pressed(&[KeyCode::Right, KeyCode::Tab]);
    let shown = drawn(&screen(Some(snapshot())), &look, 100, 16);
    insta::assert_snapshot!(shown);
}

#[test]
fn small_terminals_show_what_fits() {
    let screen = screen(Some(snapshot()));
    insta::assert_snapshot!(drawn(&screen, &Look::default(), 40, 8));
    for (width, height) in [(1, 1), (3, 2), (10, 3), (20, 5), (200, 60), (80, 1)] {
        drawn(&screen, &pressed(&[KeyCode::Down; 9]), width, height);
    }
}

#[test]
fn scrolling_stops_at_the_last_queue() {
    let shown = drawn(
        &screen(Some(snapshot())),
        &pressed(&[KeyCode::Down; 9]),
        80,
        6,
    );
    assert!(
        shown.contains("reports") && !shown.contains("default"),
        "{shown}"
    );
}

#[test]
fn the_status_line_says_what_is_going_on() {
    let status = |screen: &Screen, look: &Look| {
        let shown = drawn(screen, look, 120, 4);
        shown.lines().nth(1).unwrap_or_default().to_owned()
    };
    let (running, paused) = (Look::default(), pressed(&[KeyCode::Char('p')]));
    assert_eq!(status(&screen(None), &running), "reading…");
    let mut current = screen(Some(snapshot()));
    assert_eq!(status(&current, &running), "every 2s, sorted by queue");
    assert_eq!(
        status(&current, &paused),
        "paused; data read 10s ago; p resumes"
    );
    current.fail("cannot connect\n\u{1b}[2J".to_owned());
    assert_eq!(
        status(&current, &running),
        "no answer, retrying every 2s; last data 10s ago: cannot connect \\u{1b}[2J"
    );
    let mut first = screen(None);
    first.fail("cannot connect".to_owned());
    assert_eq!(
        status(&first, &running),
        "no answer, retrying every 2s: cannot connect"
    );
    current.update(snapshot());
    assert_eq!(
        status(&current, &running),
        "every 2s, sorted by queue",
        "it recovers"
    );
}

#[test]
fn an_empty_store_says_so() {
    let empty = Snapshot {
        queues: Vec::new(),
        last_minute: None,
        failures: Vec::new(),
        workers: Vec::new(),
        ..snapshot()
    };
    let shown = drawn(&screen(Some(empty)), &Look::default(), 80, 24);
    assert!(
        shown.contains("no queues") && shown.contains("no failures"),
        "{shown}"
    );
}
