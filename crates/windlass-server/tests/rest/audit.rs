//! The audit log: its list, and what its records say.

use serde_json::{Value, json};

use crate::support::{Answer, Server};

/// `action target` of each record of a page.
fn acts(page: &Answer) -> Vec<String> {
    let rows = page.json["data"].as_array().unwrap();
    let act = |row: &Value| {
        let (action, target) = (row["action"].as_str(), row["target"].as_str());
        format!("{} {}", action.unwrap(), target.unwrap())
    };
    rows.iter().map(act).collect()
}

#[tokio::test]
async fn the_audit_log_lists_newest_first_with_filters_and_in_pages() {
    let server = Server::open().await;
    for queue in ["a", "b", "c"] {
        server.act(&format!("/api/v1/queues/{queue}/pause")).await;
    }
    server.act("/api/v1/queues/a/resume").await;
    let list = async |query: &str| server.get(&format!("/api/v1/audit?{query}")).await;
    let first = list("limit=3&action=queue.").await;
    let newest = ["queue.resume a", "queue.pause c", "queue.pause b"];
    assert_eq!(acts(&first), newest);
    let cursor = first.text_at("/next_cursor");
    let link = first.header("link").unwrap().to_owned();
    assert!(
        link.contains(&cursor) && link.contains("action=queue."),
        "{link}"
    );
    let rest = list(&format!("limit=3&action=queue.&cursor={cursor}")).await;
    assert_eq!(acts(&rest), ["queue.pause a"]);
    assert_eq!(rest.json["next_cursor"], json!(null));
    assert_eq!(
        (&rest.json["scanned"], rest.header("link")),
        (&json!(1), None)
    );
    assert_eq!(rest.json["scanned_until"], rest.json["data"][0]["at"]);

    assert_eq!(
        acts(&list("target=a").await),
        ["queue.resume a", "queue.pause a"]
    );
    assert_eq!(acts(&list("action=queue.resume").await), ["queue.resume a"]);
    assert_eq!(acts(&list("key=local&target=b").await), ["queue.pause b"]);
    assert!(acts(&list("key=somebody").await).is_empty());
    let at = rest.text_at("/data/0/at");
    assert_eq!(acts(&list(&format!("from={at}")).await).len(), 4);
    assert!(acts(&list(&format!("before={at}")).await).is_empty());
    for (query, pointer) in [
        ("from=soon", "/from"),
        ("before=soon", "/before"),
        ("cursor=x", "/cursor"),
        ("limit=1001", "/limit"),
        ("since=1", "/since"),
    ] {
        assert_eq!(list(query).await.pointer(), pointer, "{query}");
    }
}
