//! The admin listener of a program, login links, and signals to workers of programs.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::prometheus::PrometheusRecorder;
use windlass::{Client, Context, Failure, Job, Worker};
use windlass_server::access::{Access, LoginLinks, WithoutKeys};
use windlass_server::{AdminError, AdminListener, Settings, admin};
use windlass_testkit::client::{self, Answer, PATIENCE};

use crate::support::Server;

const HERE: &str = "127.0.0.1:0";

fn address(admin: &AdminListener) -> SocketAddr {
    let (_, address) = admin.url().split_once("//").unwrap();
    address.parse().unwrap()
}

async fn ask(
    admin: &AdminListener,
    key: Option<&str>,
    (method, path): (&str, &str),
    body: Option<Value>,
) -> Answer {
    let key = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<(&str, &str)> = key.iter().map(|key| ("Authorization", &**key)).collect();
    let body = body.map(|body| body.to_string());
    let body = body.as_deref().map(str::as_bytes);
    let request = client::request(address(admin), method, path, &headers, body);
    client::exchange(address(admin), &request).await
}

const JOBS: (&str, &str) = ("GET", "/api/v1/jobs");
const NEW_JOB: (&str, &str) = ("POST", "/api/v1/jobs");
const NEW_KEY: (&str, &str) = ("POST", "/api/v1/keys");

#[tokio::test]
async fn only_the_token_and_the_keys_of_the_store_give_access() {
    let client = Client::open("memory:").await.unwrap();
    let admin = admin(&client).bind(HERE).await.unwrap();
    let token = admin.token().unwrap();
    assert_eq!(ask(&admin, None, JOBS, None).await.code(), "key_missing");
    let new = json!({"name": "ann", "scopes": ["read"]});
    let refused = ask(&admin, None, NEW_KEY, Some(new.clone())).await;
    assert_eq!(refused.status, 401, "no key is created without a key");
    assert_eq!(ask(&admin, Some(token), JOBS, None).await.status, 200);
    let first = json!({"name": "root", "scopes": ["admin"]});
    ask(&admin, Some(token), NEW_KEY, Some(first)).await;
    let created = ask(&admin, Some(token), NEW_KEY, Some(new)).await;
    let key = created.text_at("/key");
    assert_eq!(ask(&admin, Some(&key), JOBS, None).await.status, 200);
    let job = Some(json!({"kind": "a"}));
    assert_eq!(ask(&admin, Some(&key), NEW_JOB, job).await.status, 403);
    let other = windlass_server::admin(&client).bind(HERE).await.unwrap();
    let wrong = ask(&other, Some(token), JOBS, None).await;
    assert_eq!(wrong.code(), "key_unknown", "a token is for one start");
    assert!(!format!("{admin:?}").contains(token));
}

#[tokio::test]
async fn an_address_for_other_machines_needs_tls_or_a_proxy_and_a_key() {
    let client = Client::open("memory:").await.unwrap();
    let public = admin(&client).bind("0.0.0.0:0").await.unwrap_err();
    assert!(matches!(public, AdminError::Public { .. }), "{public}");
    let proxied = || admin(&client).behind_proxy();
    for address in ["0.0.0.0:0", HERE] {
        let refused = proxied().bind(address).await.unwrap_err();
        assert!(matches!(refused, AdminError::NoKeys { .. }), "{refused}");
    }
    let name = admin(&client).bind("localhost:0").await.unwrap_err();
    assert!(name.to_string().contains("127.0.0.1:0"), "{name}");
    let here = admin(&client).bind(HERE).await.unwrap();
    let new = json!({"name": "ann", "scopes": ["admin"]});
    let created = ask(&here, here.token(), NEW_KEY, Some(new)).await;
    assert_eq!(created.status, 201, "{created:?}");
    proxied().bind(HERE).await.unwrap();
}

#[tokio::test]
async fn with_tls_there_is_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let path = folder.path().join("jobs.db");
    let client = Client::open(&format!("sqlite:{}", path.display()))
        .await
        .unwrap();
    let admin = admin(&client)
        .tls(certificate, key)
        .bind(HERE)
        .await
        .unwrap();
    assert!(admin.url().starts_with("https://"), "{admin:?}");
    assert_eq!(admin.token(), None);
    let lock = std::fs::read_to_string(folder.path().join("jobs.db.lock")).unwrap();
    assert!(
        lock.contains(admin.url()) && !lock.contains("token"),
        "{lock}"
    );
}

#[tokio::test]
async fn settings_and_metrics_are_used() {
    let recorder = Arc::new(PrometheusRecorder::new());
    let client = Client::open_with_recorder("memory:", Arc::clone(&recorder) as _);
    let client = client.await.unwrap();
    let settings = Settings {
        payload_bytes_max: 10,
        ..Settings::default()
    };
    let admin = admin(&client).settings(settings).metrics(recorder);
    let admin = admin.bind(HERE).await.unwrap();
    let large = json!({"kind": "a", "payload": "more than ten bytes"});
    let refused = ask(&admin, admin.token(), NEW_JOB, Some(large)).await;
    assert_eq!(refused.status, 413, "{refused:?}");
    let metrics = ask(&admin, admin.token(), ("GET", "/metrics"), None).await;
    assert!(metrics.text().contains("windlass_"), "{metrics:?}");
}

#[tokio::test]
async fn a_store_has_one_listener_which_ends_when_it_is_stopped_or_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let lock = folder.path().join("jobs.db.lock");
    let published = || std::fs::read_to_string(&lock).unwrap().contains("token ");
    let client = Client::open(&url).await.unwrap();
    let first = admin(&client).bind(HERE).await.unwrap();
    assert!(published());
    let second = admin(&client).bind(HERE).await.unwrap_err();
    assert!(matches!(second, AdminError::LockFile(_)), "{second}");
    let gone = address(&first);
    first.stop().await.unwrap();
    assert!(!published());
    assert!(tokio::net::TcpStream::connect(gone).await.is_err());
    let dropped = admin(&client).bind(HERE).await.unwrap();
    let gone = address(&dropped);
    assert!(published());
    drop(dropped);
    assert!(!published());
    let closed = async {
        while tokio::net::TcpStream::connect(gone).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.unwrap();
}

#[tokio::test]
async fn a_login_link_is_created_by_its_caller_and_audited_without_its_secret() {
    let server = Server::closed().await;
    let created = server.post("/api/v1/login-links", &json!({})).await;
    assert_eq!(created.status, 401, "{created:?}");
    let client = Client::open("memory:").await.unwrap();
    let admin = admin(&client).bind(HERE).await.unwrap();
    let links = ("POST", "/api/v1/login-links");
    let created = ask(&admin, admin.token(), links, None).await;
    assert_eq!(created.status, 201, "{created:?}");
    let path = created.text_at("/path");
    let link = path.strip_prefix("/login?link=").unwrap();
    let audit = ask(&admin, admin.token(), ("GET", "/api/v1/audit"), None).await;
    assert_eq!(audit.text_at("/data/0/action"), "login_link.create");
    assert!(!audit.text().contains(link), "{audit:?}");
    // The listener accepts its token, so the link of the token's holder is good there. Another
    // server of the store knows no such caller.
    let engine = Arc::clone(windlass::admin::engine_of(&client));
    let access = Access::by_keys(Arc::clone(&engine), WithoutKeys::Closed);
    let links = LoginLinks::new(engine);
    let redeemed = links.redeem(&access, link, client.now()).await;
    let refused = redeemed.unwrap_err().to_string();
    assert!(refused.contains("API key is invalid"), "{refused}");
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Nothing;

impl Job for Nothing {
    const KIND: &'static str = "nothing";
}

async fn nothing(_: Nothing, _: Context) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn signals_reach_a_worker_of_the_program_and_a_server_obeys_none() {
    let client = Client::open("memory:").await.unwrap();
    let admin = admin(&client).bind(HERE).await.unwrap();
    let worker = Worker::new(&client, ()).name("w").handle(nothing);
    let worker = tokio::spawn(worker.run_until(std::future::pending::<()>()));
    let state = async |expected: &str| {
        let reached = async {
            loop {
                let listed = ask(&admin, admin.token(), ("GET", "/api/v1/workers"), None).await;
                if listed.json["data"][0]["state"] == expected {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        assert!(reached.is_ok(), "{expected}");
    };
    let send = async |path: &'static str| ask(&admin, admin.token(), ("POST", path), None).await;
    state("running").await;
    let paused = send("/api/v1/workers/w/pause-claims").await;
    assert_eq!(paused.text_at("/signal"), "pause_claims");
    state("claims_paused").await;
    let id = client.enqueue(Nothing).await.unwrap().id;
    assert_eq!(send("/api/v1/workers/w/resume").await.status, 200);
    client.wait(id, PATIENCE).await.unwrap();
    assert_eq!(send("/api/v1/workers/w/stop").await.status, 200);
    let stopped = tokio::time::timeout(PATIENCE, worker).await.unwrap();
    stopped.unwrap().unwrap();
    let store = windlass::admin::engine_of(&client).store();
    let about = json!({"role": "server"});
    store.beat("server-1", &about, client.now()).await.unwrap();
    let refused = send("/api/v1/workers/server-1/stop").await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (409, "obeys_no_signals")
    );
}
