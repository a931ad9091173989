//! Lists: filters, pages, searches.

use serde_json::{Value, json};

use crate::support::{Answer, Server};

fn ids(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let data = answer.json["data"].as_array().unwrap();
    data.iter()
        .map(|job| job["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn every_filter_returns_only_matching_jobs() {
    let server = Server::open().await;
    let dead = server
        .job(&json!({"kind": "x:y", "payload": {"customer": {"id": 42}}, "max_attempts": 1}))
        .await;
    server
        .run(&json!({"outcome": "failed", "error": "Connection to 10.0.0.1 refused"}))
        .await;
    let tagged = server
        .job(&json!({"kind": "b", "queue": "mail", "tags": ["blue"], "unique_key": "u/1"}))
        .await;
    let retry = server
        .job(&json!({"kind": "r", "queue": "r", "retry": "patient"}))
        .await;
    server
        .run_claimed(
            &json!({"queue": "r"}),
            &json!({"outcome": "failed", "error": "x"}),
        )
        .await;
    let later = server.job(&json!({"kind": "b", "delay": "1h"})).await;
    let group = server.get("/api/v1/failures?state=dead").await;
    let group = group.text_at("/data/0/fingerprint");
    let created = server
        .get(&format!("/api/v1/jobs/{tagged}"))
        .await
        .text_at("/created_at");
    let finished = server
        .get(&format!("/api/v1/jobs/{dead}"))
        .await
        .text_at("/finished_at");
    let failed = server
        .get(&format!("/api/v1/jobs/{retry}"))
        .await
        .text_at("/failed_at");
    for (query, found) in [
        ("state=dead".to_owned(), vec![&dead]),
        ("state=scheduled".to_owned(), vec![&later, &retry]),
        ("retrying=true".to_owned(), vec![&retry]),
        ("retrying=false".to_owned(), vec![&later, &tagged, &dead]),
        (format!("failed_from={failed}"), vec![&retry]),
        (format!("failed_before={failed}"), vec![&dead]),
        (
            "replay=01890a5d-ac96-774b-bcce-b302099a8057".to_owned(),
            vec![],
        ),
        ("order=finished_at".to_owned(), vec![&dead]),
        (
            "order=created".to_owned(),
            vec![&later, &retry, &tagged, &dead],
        ),
        ("queue=mail".to_owned(), vec![&tagged]),
        ("kind=x:y".to_owned(), vec![&dead]),
        ("tag=blue".to_owned(), vec![&tagged]),
        ("unique_key=u%2F1".to_owned(), vec![&tagged]),
        ("reason=exhausted".to_owned(), vec![&dead]),
        ("reason=poison".to_owned(), vec![]),
        (
            format!("created_from={created}"),
            vec![&later, &retry, &tagged],
        ),
        (format!("created_before={created}"), vec![&dead]),
        (format!("finished_from={finished}"), vec![&dead]),
        (format!("finished_before={finished}"), vec![]),
        ("error=REFUSED".to_owned(), vec![&dead]),
        ("error=timeout".to_owned(), vec![]),
        (format!("fingerprint={group}"), vec![&dead]),
        (
            "payload_path=/customer/id&payload_value=42".to_owned(),
            vec![&dead],
        ),
        (
            "payload_path=/customer/id&payload_value=43".to_owned(),
            vec![],
        ),
        (
            "schedule=01890a5d-ac96-774b-bcce-b302099a8057".to_owned(),
            vec![],
        ),
        (String::new(), vec![&later, &retry, &tagged, &dead]),
    ] {
        let answer = server.get(&format!("/api/v1/jobs?{query}")).await;
        assert_eq!(ids(&answer).iter().collect::<Vec<_>>(), found, "{query}");
    }
}

#[tokio::test]
async fn pages_follow_one_another_to_the_end() {
    let server = Server::open().await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(server.job(&json!({"kind": "a", "tags": ["x y"]})).await);
    }
    made.reverse();
    let mut path = "/api/v1/jobs?limit=2&tag=x%20y".to_owned();
    let mut seen = Vec::new();
    for _ in 0..5 {
        let page = server.get(&path).await;
        seen.extend(ids(&page));
        let Some(cursor) = page.json["next_cursor"].as_str() else {
            assert!(page.header("link").is_none());
            break;
        };
        let link = page.header("link").unwrap();
        let next = link
            .strip_prefix('<')
            .unwrap()
            .strip_suffix(">; rel=\"next\"")
            .unwrap();
        assert!(next.contains(cursor), "{link}");
        path = next.to_owned();
    }
    assert_eq!(seen, made);
}

#[tokio::test]
async fn a_search_says_how_far_it_got() {
    let server = Server::open().await;
    for _ in 0..3 {
        server.job(&json!({"kind": "a", "payload": 1})).await;
    }
    let found = server
        .get("/api/v1/jobs?payload_path=&payload_value=2")
        .await;
    assert_eq!(
        (&found.json["data"], &found.json["scanned"]),
        (&json!([]), &json!(3))
    );
    assert_eq!(found.json["next_cursor"], Value::Null);
    assert_eq!(found.json["complete"], true);
    let plain = server.get("/api/v1/jobs").await;
    assert!(plain.json.get("scanned").is_none());
}

#[tokio::test]
async fn a_search_over_many_jobs_stops_and_continues() {
    let server = Server::open().await;
    let first = server.job(&json!({"kind": "a", "payload": "needle"})).await;
    let hay: Vec<Value> = vec![json!({"kind": "a"}); 10_000];
    server
        .post("/api/v1/jobs/bulk", &json!({"jobs": hay}))
        .await;
    server
        .post("/api/v1/jobs/bulk", &json!({"jobs": [{"kind": "a"}]}))
        .await;
    let page = server
        .get("/api/v1/jobs?payload_path=&payload_value=needle")
        .await;
    assert_eq!(
        (ids(&page).len(), &page.json["scanned"]),
        (0, &json!(10_000))
    );
    assert_eq!(page.json["complete"], false);
    assert!(page.json["scanned_until"].is_string());
    let cursor = page.text_at("/next_cursor");
    let page = server
        .get(&format!(
            "/api/v1/jobs?payload_path=&payload_value=needle&cursor={cursor}"
        ))
        .await;
    assert_eq!(ids(&page), [first]);
}

#[tokio::test]
async fn a_list_by_the_time_of_the_end_has_pages() {
    let server = Server::open().await;
    let mut ends = Vec::new();
    for queue in ["a", "b", "c"] {
        server.job(&json!({"kind": "k", "queue": queue})).await;
    }
    for queue in ["b", "c", "a"] {
        let claim = json!({"queue": queue});
        let outcome = json!({"outcome": "succeeded"});
        ends.push(server.run_claimed(&claim, &outcome).await);
    }
    ends.reverse();
    let first = server.get("/api/v1/jobs?order=finished_at&limit=2").await;
    assert_eq!(ids(&first), &ends[..2]);
    let cursor = first.text_at("/next_cursor");
    let rest = format!("/api/v1/jobs?order=finished_at&cursor={cursor}");
    assert_eq!(ids(&server.get(&rest).await), &ends[2..]);
    let mixed = server.get(&format!("/api/v1/jobs?cursor={cursor}")).await;
    assert_eq!(mixed.pointer(), "/cursor");
    let odd = server.get("/api/v1/jobs?order=priority").await;
    assert_eq!(odd.pointer(), "/order");
}

#[tokio::test]
async fn a_page_of_large_jobs_ends_early_and_none_is_left_out() {
    let server = Server::open().await;
    let large = "x".repeat(1_000_000);
    let mut created = Vec::new();
    for _ in 0..40 {
        created.push(server.job(&json!({"kind": "a", "payload": large})).await);
    }
    created.reverse();
    let (mut seen, mut pages) = (Vec::new(), 0);
    let mut path = "/api/v1/jobs?limit=1000".to_owned();
    loop {
        let page = server.get(&path).await;
        assert!(page.body.len() < 20_000_000, "{} bytes", page.body.len());
        seen.extend(ids(&page));
        pages += 1;
        match page.json["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/jobs?limit=1000&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, created);
    assert!(pages > 1, "40 MB are not one page");
}

#[tokio::test]
async fn paging_skips_jobs_that_were_enqueued_later() {
    let server = Server::open().await;
    let old = server.job(&json!({"kind": "a"})).await;
    let job = server.get(&format!("/api/v1/jobs/{old}")).await;
    let created = job.text_at("/created_at");
    let jobs: Vec<Value> = (0..9_999).map(|_| json!({"kind": "b"})).collect();
    for _ in 0..3 {
        server
            .post("/api/v1/jobs/bulk", &json!({"jobs": jobs}))
            .await;
    }
    let upto = server
        .get(&format!("/api/v1/jobs?created_before={created}"))
        .await;
    assert_eq!(
        (ids(&upto).len(), &upto.json["next_cursor"]),
        (0, &Value::Null)
    );
    let from = format!("/api/v1/jobs?created_from={created}&tag=none");
    let mut pages = 0;
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("{from}{cursor}")).await;
        assert!(ids(&page).is_empty());
        pages += 1;
        assert!(pages < 100, "it comes to an end");
        match page.json["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
}

#[tokio::test]
async fn jobs_are_made_due_by_their_ids() {
    let server = Server::open().await;
    let fresh = server.job(&json!({"kind": "a", "delay": "30d"})).await;
    let done = server.job(&json!({"kind": "a"})).await;
    server.run(&json!({"outcome": "succeeded"})).await;
    let named = server
        .post("/api/v1/jobs/run-now", &json!({"ids": [fresh, done]}))
        .await;
    assert_eq!(named.json["changed"], 1, "{named:?}");
    assert_eq!(named.json["conflicts"], 1, "{named:?}");
    let job = server.get(&format!("/api/v1/jobs/{fresh}")).await;
    assert_eq!(job.text_at("/state"), "ready");
    for (body, pointer) in [
        (json!({}), "/ids"),
        (json!({"ids": []}), "/ids"),
        (json!({"ids": ["x"]}), "/ids/0"),
        (json!({"ids": [fresh], "filter": {"kind": "a"}}), "/filter"),
    ] {
        let refused = server.post("/api/v1/jobs/run-now", &body).await;
        assert_eq!((refused.status, refused.pointer().as_str()), (422, pointer));
    }
}

#[tokio::test]
async fn a_list_refuses_the_cursors_of_other_lists() {
    let server = Server::open().await;
    let zeros = |count| "0".repeat(count);
    let lists = [
        ("jobs", format!("j{}", zeros(32))),
        ("queues", "q61".to_owned()),
        ("schedules", "s61".to_owned()),
        ("workers", "w61".to_owned()),
        ("audit", format!("a{}", zeros(16))),
        ("replays", format!("r{}", zeros(32))),
        ("bulk-actions", format!("b{}", zeros(32))),
        ("failures", "f".to_owned()),
    ];
    for (list, own) in &lists {
        for (_, cursor) in &lists {
            let path = format!("/api/v1/{list}?cursor={cursor}");
            let answer = server.get(&path).await;
            if cursor == own {
                assert_eq!(answer.status, 200, "{path}: {answer:?}");
                continue;
            }
            assert_eq!(answer.pointer(), "/cursor", "{path}");
            let rule = answer.text_at("/errors/0/rule");
            assert!(rule.contains("`next_cursor` of this list"), "{rule}");
        }
    }
}
