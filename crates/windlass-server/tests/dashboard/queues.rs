//! All queues at once: pausing and resuming them, how they changed, and the order of their table.

use serde_json::{Value, json};
use windlass_server::access::Scope;
use windlass_testkit::browser::Browser;

use crate::support::{Site, Visitor, blocking};

async fn pause(site: &Site, queue: &str, reason: &str) {
    let path = format!("/api/v1/queues/{queue}/pause");
    let paused = site.api("POST", &path, &json!({"reason": reason})).await;
    assert_eq!(paused.status, 200, "{paused:?}");
}

/// The reason for which a queue is paused. `null` if it is not paused.
async fn reason(site: &Site, queue: &str) -> Value {
    let path = format!("/api/v1/queues/{queue}");
    let queue = site.api("GET", &path, &json!({})).await.json;
    queue["paused"]["reason"].clone()
}

/// The path of the action that undoes the last one, which the next page offers.
async fn undo_path(visitor: &mut Visitor, page: &str) -> String {
    let page = visitor.get(page).await.text();
    let (before, _) = page.split_once(" data-undo>").expect("an action to undo");
    let (_, path) = before.rsplit_once("action=\"").expect("a form");
    path.trim_end_matches('"').to_owned()
}

#[tokio::test]
async fn all_queues_are_paused_with_one_reason_and_the_pause_is_undone() {
    let site = Site::open().await;
    for queue in ["mail", "other", "reports"] {
        site.enqueue(queue, 1).await;
    }
    pause(&site, "reports", "the export kills the worker").await;
    let mut visitor = site.visitor();
    let form = visitor.get("/all-queues/pause").await.text();
    assert!(form.contains("Pause 2 queues?"), "{form}");
    assert!(form.contains("1 queue paused already"), "{form}");
    let names = [("queue", "mail"), ("queue", "other"), ("queue", "reports")];
    let fields = [names[0], names[1], names[2], ("reason", "the disk is full")];
    let done = visitor.post("/all-queues/pause", &fields).await;
    assert_eq!(done.header("location"), Some("/queues"), "{done:?}");
    assert_eq!(reason(&site, "mail").await, "the disk is full");
    assert_eq!(reason(&site, "other").await, "the disk is full");
    let undo = undo_path(&mut visitor, "/queues").await;
    visitor.post(&undo, &[]).await;
    assert_eq!(reason(&site, "mail").await, Value::Null);
    assert_eq!(reason(&site, "other").await, Value::Null);
    assert_eq!(
        reason(&site, "reports").await,
        "the export kills the worker",
        "a queue that was paused before keeps its pause and its reason"
    );
}

#[tokio::test]
async fn paused_queues_are_resumed_as_chosen() {
    let site = Site::open().await;
    for queue in ["mail", "other"] {
        site.enqueue(queue, 1).await;
        pause(&site, queue, "the <disk> is full").await;
    }
    let mut visitor = site.visitor();
    let form = visitor.get("/all-queues/resume").await.text();
    assert!(form.contains("2 queues are paused"), "{form}");
    assert!(
        form.contains("checked") && !form.contains("<disk>"),
        "{form}"
    );
    let from = ("from", "/all-queues/resume");
    let none = visitor.post("/all-queues/resume", &[from]).await;
    assert_eq!(none.header("location"), Some("/all-queues/resume"));
    visitor
        .post("/all-queues/resume", &[("queue", "mail"), from])
        .await;
    assert_eq!(reason(&site, "mail").await, Value::Null);
    assert_eq!(reason(&site, "other").await, "the <disk> is full");
    let page = visitor.get("/queues").await.text();
    assert!(page.contains("Resumed 1 queue."), "{page}");
    assert!(page.contains("Pause all…") && page.contains("Resume all…"));
}

#[tokio::test]
async fn a_person_who_may_only_read_pauses_nothing() {
    let site = Site::open().await;
    site.enqueue("mail", 1).await;
    site.key(&[Scope::Admin]).await;
    let (key, _) = site.key(&[Scope::Read]).await;
    let mut visitor = site.visitor();
    visitor.sign_in(&key).await;
    let page = visitor.get("/queues").await.text();
    assert!(!page.contains("Pause all"), "{page}");
    visitor
        .post("/all-queues/pause", &[("queue", "mail")])
        .await;
    let page = visitor.get("/queues").await.text();
    assert!(page.contains("Paused 0 of 1 queue"), "{page}");
    assert!(page.contains("1, all claiming"), "{page}");
}

#[tokio::test]
async fn queues_that_were_paused_together_are_one_need_and_others_open_with_a_click() {
    let site = Site::open().await;
    for index in 0..6 {
        let queue = format!("queue-{index}");
        site.enqueue(&queue, 1).await;
        pause(&site, &queue, &format!("reason {index}")).await;
    }
    let page = site.visitor().get("/").await.text();
    let (_, needs) = page.split_once("id=\"needs\"").expect("what needs someone");
    let (needs, _) = needs.split_once("</section>").expect("its end");
    let (shown, more) = needs.split_once("<details").expect("more needs");
    assert_eq!(shown.matches("is paused").count(), 4, "{shown}");
    assert!(more.contains("2 more") && more.contains("queue-5 is paused"));

    let other = Site::open().await;
    for index in 0..3 {
        let queue = format!("queue-{index}");
        other.enqueue(&queue, 2).await;
        pause(&other, &queue, "the disk is full").await;
    }
    let page = other.visitor().get("/").await.text();
    assert!(
        page.contains("All 3 queues are paused; 6 jobs wait"),
        "{page}"
    );
    assert_eq!(page.matches("the disk is full").count(), 1);
    assert!(page.contains("/all-queues/resume"));
}

#[tokio::test]
async fn the_table_of_queues_draws_the_depth_of_each() {
    let site = Site::open().await;
    site.enqueue("mail", 3).await;
    site.enqueue("other", 1).await;
    let page = site.visitor().get("/queues").await.text();
    let title = "<title>Jobs that wait or run, last hour: 3 now</title><path";
    assert!(page.contains(title), "{page}");
    assert_eq!(page.matches("<title>Jobs that wait or run").count(), 2);
}

#[tokio::test]
async fn only_a_limit_that_is_set_has_a_bar() {
    let site = Site::open().await;
    site.enqueue("mail", 3).await;
    let mut visitor = site.visitor();
    let page = visitor.get("/queues/mail").await.text();
    assert!(page.contains("3, no limit"), "{page}");
    let bars = |page: &str| page.matches("class=\"bar\"").count();
    assert_eq!(
        bars(&page),
        1,
        "only retries have a limit by default: {page}"
    );
    let settings = json!({"max_depth": 10});
    let path = "/api/v1/queues/mail/settings";
    let saved = site.api("PUT", path, &settings).await;
    assert_eq!(saved.status, 200, "{saved:?}");
    let page = visitor.get("/queues/mail").await.text();
    assert!(page.contains("<title>3 of 10</title>"), "{page}");
    assert_eq!(bars(&page), 2, "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_keeps_its_order_while_its_figures_change() {
    let site = Site::open().await;
    site.enqueue("mail", 5).await;
    site.enqueue("other", 1).await;
    let names =
        "[...document.querySelectorAll('#queues [data-row]')].map((row) => row.dataset.row).join()";
    let url = site.url("/queues");
    let browser = blocking(move || {
        let browser = Browser::start();
        browser.open(&url);
        assert_eq!(browser.run(&format!("return {names}")), "mail,other");
        browser.press_until(
            "j",
            "a row",
            "return document.querySelector('[data-row].at')?.dataset.row === 'mail'",
        );
        browser
    })
    .await;
    site.enqueue("other", 90).await;
    site.enqueue("third", 40).await;
    blocking(move || {
        browser.until(
            "the new figures",
            "return document.querySelector('[data-row=other] .num')?.textContent === '91'",
        );
        browser.until(
            "the new queue, last",
            &format!("return {names} === 'mail,other,third'"),
        );
        assert_eq!(
            browser.run("return document.querySelector('[data-row].at')?.dataset.row"),
            "mail",
            "the row of the keyboard stays"
        );
    })
    .await;
}
