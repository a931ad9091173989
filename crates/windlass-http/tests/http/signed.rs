//! Signed requests, as a receiver checks them.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use standardwebhooks::Webhook;
use windlass_core::{DeadReason, State};
use windlass_engine::{Clock as _, SystemClock};
use windlass_http::{HttpJobs, KeyError, SecretHosts, SigningKey, SigningKeys, WebhookSecret};
use windlass_memory::MemoryStore;

use crate::support::{Reply, Seen, Target, World, error_of, local, system};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

#[derive(Debug)]
struct Secrets;

#[async_trait]
impl SigningKeys for Secrets {
    async fn secret(&self, name: &str) -> Result<WebhookSecret, KeyError> {
        let (secrets, host): (&[&str], &str) = match name {
            "shop" => (&[OLD], "127.0.0.1"),
            "changing" => (&[NEW, OLD], "127.0.0.1"),
            "elsewhere" => (&[OLD], "api.example.com"),
            _ => return Err(KeyError::Unknown(name.to_owned())),
        };
        let parse = |secret: &&str| SigningKey::parse(secret).expect("a secret");
        Ok(WebhookSecret {
            keys: secrets.iter().map(parse).collect(),
            hosts: SecretHosts::parse(&[host]).expect("a host"),
        })
    }
}

fn world() -> World {
    let http = HttpJobs::with(local(), system(), Arc::new(Secrets)).expect("settings");
    // A receiver compares with the time of its machine.
    let now = SystemClock::new().now();
    World::starting(http, Arc::new(MemoryStore::new()), now)
}

pub(crate) fn verified(secret: &str, seen: &Seen) -> bool {
    let mut headers = http::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        if let Some(value) = seen.headers.get(name) {
            headers.insert(name, value.parse().expect("a header"));
        }
    }
    let webhook = Webhook::new(secret).expect("a secret");
    webhook.verify(&seen.body, &headers).is_ok()
}

#[tokio::test]
async fn a_receiver_can_check_every_attempt() {
    let target = Target::replying(&[Reply::Status(500), Reply::Status(200)]).await;
    let world = world();
    let payload = json!({"url": target.url("/"), "body": {"order": 7}, "sign": "shop"});
    let (job, _) = world.deliver(payload).await;
    assert_eq!(job.state(), State::Succeeded);
    let seen = target.seen();
    assert!(verified(OLD, &seen[0]) && verified(OLD, &seen[1]));
    assert!(!verified(NEW, &seen[0]));
    let mut tampered = seen[0].clone();
    tampered.body.push(b' ');
    assert!(!verified(OLD, &tampered));
    assert!(!seen[0].headers["webhook-id"].contains('.'));
}

#[tokio::test]
async fn several_names_and_both_keys_of_a_changing_secret_sign() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let world = world();
    world
        .deliver(json!({"url": target.url("/"), "body": "x", "sign": "changing"}))
        .await;
    world
        .deliver(json!({"url": target.url("/"), "body": "x", "sign": ["shop", "changing"]}))
        .await;
    let seen = target.seen();
    assert!(verified(OLD, &seen[0]) && verified(NEW, &seen[0]));
    assert_eq!(seen[1].headers["webhook-signature"].split(' ').count(), 3);
}

#[tokio::test]
async fn a_secret_signs_nothing_for_a_host_that_is_not_its_own() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let world = world();
    let payload = json!({"url": target.url("/"), "body": "x", "sign": ["shop", "elsewhere"]});
    let (job, history) = world.deliver(payload).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Unrecoverable));
    assert!(error_of(&history[0]).contains("\"elsewhere\" must not sign requests to this host"));
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn without_its_secret_a_request_is_not_sent() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let world = world();
    let (job, history) = world
        .deliver(json!({"url": target.url("/"), "sign": "nobody"}))
        .await;
    assert_eq!(
        job.state(),
        State::Dead(DeadReason::Exhausted),
        "a secret may yet be made"
    );
    assert!(error_of(&history[0]).contains("there is no webhook secret named \"nobody\""));
    assert_eq!(target.connections(), 0);
}
