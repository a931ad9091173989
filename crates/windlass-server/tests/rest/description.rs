//! `openapi.json` is what the server answers, and what the repository keeps.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::Server;

#[tokio::test]
async fn the_description_is_the_committed_one() {
    let server = Server::open().await;
    let answer = server.get("/openapi.json").await;
    assert_eq!(answer.json, windlass_server::openapi());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let text = serde_json::to_string_pretty(&windlass_server::openapi()).unwrap() + "\n";
    if std::env::var_os("WINDLASS_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/openapi.json is old: run the tests with WINDLASS_UPDATE_DOCS=1"
    );
}

#[test]
fn the_guide_speaks_of_every_group_of_routes() {
    let guide = include_str!("../../../../docs/rest.md");
    let groups: BTreeSet<String> = windlass_server::routes()
        .iter()
        .filter_map(|route| {
            let path = route.path.strip_prefix("/api/v1/")?;
            path.split('/').next().map(str::to_owned)
        })
        .collect();
    assert!(groups.len() > 10, "{groups:?}");
    for group in groups {
        assert!(
            guide.contains(&format!("/{group}")),
            "{group} is not in docs/rest.md"
        );
    }
}
