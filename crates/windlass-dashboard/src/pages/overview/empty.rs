//! The page before the first job: exact commands that work here.

use askama::Template;

use crate::backend::SignedIn;
use crate::frame::{Frame, Look};
use crate::site::PageResult;
use crate::visit::Visit;

/// The URL that commands use if nothing else is configured.
const URL_DEFAULT: &str = "http://127.0.0.1:8080";

#[derive(Template)]
#[template(path = "empty.html")]
struct EmptyPage {
    frame: Frame,
    store: String,
    /// The variables to set first, if the defaults do not lead here.
    exports: Option<String>,
    enqueue: &'static str,
    enqueue_curl: String,
    work: &'static str,
    claim_curl: String,
    call_url: &'static str,
}

pub(super) fn page(visit: &Visit, frame: Frame) -> PageResult {
    let about = visit.site().backend().about();
    let with_key = visit.identity().signed_in != SignedIn::Locally;
    let mut exports = Vec::new();
    if about.url != URL_DEFAULT {
        exports.push(format!("export WINDLASS_URL={}", about.url));
    }
    if with_key {
        exports.push("export WINDLASS_KEY=wl_…".to_owned());
    }
    let key = if with_key {
        " -H \"Authorization: Bearer $WINDLASS_KEY\""
    } else {
        ""
    };
    let post = |path: &str, body: &str| {
        format!(
            "curl -X POST {}/api/v1/{path}{key} \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'",
            about.url
        )
    };
    visit.page(&EmptyPage {
        store: match about.store_path.is_empty() {
            true => about.store.clone(),
            false => about.store_path.clone(),
        },
        exports: (!exports.is_empty()).then(|| exports.join("\n")),
        enqueue: r#"windlass enqueue email:send '{"to": "ann@example.org"}' --queue mail"#,
        enqueue_curl: post(
            "jobs",
            r#"{"kind": "email:send", "payload": {"to": "ann@example.org"}, "queue": "mail"}"#,
        ),
        work: "windlass worker run flaky --queue mail",
        claim_curl: post("claim", r#"{"queue": "mail", "lease": "10s"}"#),
        call_url: r#"windlass enqueue --http-url https://example.com/hook --http-body '{"id": 17}'"#,
        frame,
    })
}
