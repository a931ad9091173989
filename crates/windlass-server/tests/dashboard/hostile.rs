//! Hostile text in every field that a page shows. No page may contain it as markup.

use serde_json::json;

use crate::support::Site;

/// Ways to turn text into markup, an attribute, a script or a URL.
const SEEDS: [&str; 20] = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>",
    "' onmouseover='alert(1)",
    "\" autofocus onfocus=\"alert(1)",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</pre></code><script>alert(1)</script>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "{{7*7}}{% raw %}<b>",
    "<!--<script>alert(1)</script>-->",
    "]]><script>alert(1)</script>",
    "<a href=javascript:alert(1)>x</a>",
    "<math><mi xlink:href=\"javascript:alert(1)\">",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<style>*{display:none}</style>",
    "<form action=//evil.example><button>",
    "\u{202e}<script>alert(1)</script>",
    "&lt;script&gt;&#x3C;script&#x3E;",
];

/// 200 strings: each seed with ten surroundings.
pub(crate) fn corpus() -> Vec<String> {
    let around: [fn(&str) -> String; 10] = [
        |seed| seed.to_owned(),
        |seed| format!("a{seed}z"),
        |seed| seed.to_uppercase(),
        |seed| format!("\"{seed}\""),
        |seed| format!("'{seed}'"),
        |seed| format!("\n{seed}\t"),
        |seed| format!("{seed}{seed}"),
        |seed| format!("=cmd|' /C calc'!A0 {seed}"),
        |seed| format!("é漢{seed}🦀"),
        |seed| seed.replace('<', "<\u{200b}<"),
    ];
    SEEDS
        .iter()
        .flat_map(|seed| around.iter().map(move |around| around(seed)))
        .collect()
}

/// Elements that no page of the dashboard has.
const FOREIGN: [&str; 6] = ["img", "iframe", "math", "style", "object", "embed"];

/// Links that leave this server or run something.
const URLS: [&str; 6] = [
    "href=\"javascript:",
    "href=\"data:",
    "href=\"//",
    "action=\"javascript:",
    "action=\"//",
    "src=\"//",
];

/// Returns the first tag that only a hostile string can have brought in.
pub(crate) fn injected(page: &str) -> Option<String> {
    let mut rest = page;
    while let Some((_, after)) = rest.split_once('<') {
        let (tag, next) = tag(after);
        rest = next;
        let lower = tag.to_lowercase();
        let name = lower
            .split([' ', '/', '>', '\n'])
            .next()
            .unwrap_or_default();
        let is_foreign = FOREIGN.contains(&name)
            || (name == "script" && !lower.contains("/assets/"))
            || names(&lower).any(|name| name.starts_with("on"))
            || URLS.iter().any(|url| lower.contains(url));
        if is_foreign {
            return Some(tag.to_owned());
        }
    }
    None
}

/// Splits off a tag. A `>` inside a quoted value does not end it.
fn tag(text: &str) -> (&str, &str) {
    let mut quote = None;
    for (index, letter) in text.char_indices() {
        match (quote, letter) {
            (None, '>') => return text.split_at(index),
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), letter) if open == letter => quote = None,
            _ => {}
        }
    }
    (text, "")
}

/// The names of the attributes of a tag.
fn names(tag: &str) -> impl Iterator<Item = &str> {
    let outside = tag.split('"').step_by(2);
    outside
        .flat_map(|part| part.split_whitespace())
        .map(|part| part.trim_end_matches('='))
}

#[test]
fn injected_markup_is_recognised() {
    let scripts = SEEDS
        .iter()
        .filter(|seed| seed.contains("<script") && !seed.contains("<!--"));
    for seed in scripts {
        assert!(injected(seed).is_some(), "{seed}");
    }
    for page in [
        "<a href=\"javascript:x\">",
        "<style>",
        "<p onclick=\"x\">",
        "<p title=\"\" onfocus=\"alert(1)\">",
    ] {
        assert!(injected(page).is_some(), "{page}");
    }
    assert_eq!(
        injected(r#"<p title="&lt;img onerror=x&gt; a > b"><script src="/assets/x.js"></script>"#),
        None
    );
    assert!(injected("<img src=x>").is_some());
}

/// The longest start of a text that a field takes, without control characters.
pub(crate) fn short(text: &str, bytes: usize) -> String {
    let mut short = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if short.len() + letter.len_utf8() > bytes {
            break;
        }
        short.push(letter);
    }
    short
}

/// Stores a dead job with `text` in every field that takes it, and asserts that the fields with
/// narrow rules refuse it.
pub(crate) async fn dead_job(site: &Site, text: &str) -> String {
    let worker = short(text, 128);
    let job = json!({
        "kind": "email:send", "queue": "hostile", "payload": {"text": text, text: 1},
        "meta": {"text": text}, "tags": [short(text, 64)], "max_attempts": 1,
        "concurrency_key": short(text, 128),
    });
    for name in ["kind", "queue"] {
        let mut refused = job.clone();
        refused[name] = json!(text);
        let refused = site.api("POST", "/api/v1/jobs", &refused).await;
        // A name may contain letters, digits and a colon, and so may a harmless string.
        assert!(refused.status == 422 || !text.contains('<'), "{refused:?}");
    }
    let created = site.api("POST", "/api/v1/jobs", &job).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let about = json!({"name": worker, "queues": ["hostile"], "kinds": [short(text, 64)], "version": worker});
    let registered = site.api("POST", "/api/v1/workers", &about).await;
    assert!(registered.status < 500, "{}", registered.text());
    let claim = json!({"queue": "hostile", "limit": 1, "worker": worker});
    let claimed = site.api("POST", "/api/v1/claim", &claim).await;
    assert_eq!(claimed.status, 200, "{}", claimed.text());
    let job = &claimed.json["data"][0];
    let error = json!({"message": text, "causes": [text]});
    let outcome = json!({"id": job["id"], "attempt": job["attempt"], "outcome": "failed", "error": error, "log": [text], "unrecoverable": true});
    let settled = json!({"worker": worker, "outcomes": [outcome]});
    let settled = site.api("POST", "/api/v1/settle", &settled).await;
    assert_eq!(settled.status, 200, "{}", settled.text());
    created.json["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn hostile_text_is_shown_as_text_on_every_page() {
    let site = Site::open().await;
    let corpus = corpus();
    assert_eq!(corpus.len(), 200);
    let mut paths: Vec<String> = crate::pages::PAGES
        .iter()
        .map(|path| path.replace("mail", "hostile"))
        .collect();
    for (index, hostile) in corpus.iter().enumerate() {
        let id = dead_job(&site, hostile).await;
        if index % 20 == 0 {
            let queue = format!("q{index}");
            site.enqueue(&queue, 1).await;
            let reason = json!({"reason": short(hostile, 400)});
            let pause = format!("/api/v1/queues/{queue}/pause");
            let paused = site.api("POST", &pause, &reason).await;
            assert_eq!(paused.status, 200, "{paused:?}");
            paths.push(format!("/jobs/{id}"));
        }
    }
    paths.extend(["/jobs?state=dead", "/queues/q0", "/dead", "/dead?as=jobs"].map(str::to_owned));
    let mut visitor = site.visitor();
    for hostile in corpus.iter().step_by(7) {
        let escaped: String = hostile.bytes().map(|byte| format!("%{byte:02X}")).collect();
        paths.push(format!("/jobs?error={escaped}"));
        paths.push(format!("/jobs?queue={escaped}"));
        paths.push(format!("/jobs?tag={escaped}"));
        paths.push(format!("/audit?target={escaped}"));
        paths.push(format!("/queues/{escaped}"));
        paths.push(format!("/{escaped}"));
        paths.push(format!("/jobs/all?error={escaped}"));
    }
    for path in paths {
        let page = visitor.get(&path).await;
        assert!(page.status < 500, "{path}: {}", page.text());
        assert_eq!(injected(&page.text()), None, "{path}");
    }
}

#[tokio::test]
async fn a_hostile_message_of_an_action_is_shown_as_text() {
    let site = Site::open().await;
    let mut visitor = site.visitor();
    visitor.get("/").await;
    for hostile in corpus().iter().step_by(11) {
        let fields = [("concurrency", hostile.as_str()), ("from", "/queues")];
        let refused = visitor.post("/queues/none/settings", &fields).await;
        assert_eq!(refused.status, 303, "{refused:?}");
        let page = visitor.get("/queues").await.text();
        assert!(page.contains("flash-bad"), "{page}");
        assert_eq!(injected(&page), None);
    }
}
