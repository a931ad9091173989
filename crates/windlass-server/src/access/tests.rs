//! Who gets in, and who does not.

use std::sync::Mutex;

use windlass_engine::{Ids, VirtualClock};
use windlass_memory::MemoryStore;

use super::*;

const HOME: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

fn noon() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a time")
}

fn later(seconds: u64) -> Timestamp {
    noon().saturating_add(Duration::from_secs(seconds))
}

/// An engine, and access to it as another node has it.
fn engine() -> Arc<Engine> {
    let clock = Arc::new(VirtualClock::new(noon()));
    Arc::new(Engine::new(
        Arc::new(MemoryStore::new()),
        clock,
        Ids::seeded(1),
    ))
}

fn access(engine: &Arc<Engine>) -> Access {
    Access::by_keys(Arc::clone(engine), WithoutKeys::Open)
}

/// A key; an admin has the first one.
async fn key(access: &Access, scope: Scope) -> ApiKey {
    let keys = access.keys().expect("access by keys");
    let first = keys.list().await.expect("a list").is_empty();
    if first && scope != Scope::Admin {
        let admin = new_key(Scope::Admin);
        keys.create(admin, noon()).await.expect("a key");
    }
    keys.create(new_key(scope), noon()).await.expect("a key").0
}

fn new_key(scope: Scope) -> NewKey {
    NewKey {
        name: "test".to_owned(),
        scopes: vec![scope],
        expires_at: Some(later(100)),
    }
}

fn header(key: &ApiKey) -> HeaderValue {
    HeaderValue::from_str(&format!("Bearer {}", key.reveal())).expect("a header")
}

#[tokio::test]
async fn access_by_one_key_accepts_only_that_key() {
    let (one, other) = (ApiKey::generate().unwrap(), ApiKey::generate().unwrap());
    let access = Access::by_one_key(&one);
    let check = async |key: Option<&ApiKey>| {
        let header = key.map(header);
        access
            .check(header.as_ref(), HOME, Scope::Admin, noon())
            .await
    };
    assert_eq!(check(Some(&one)).await.unwrap(), Caller::store());
    assert_eq!(check(None).await.unwrap_err().code(), "key_missing");
    for wrong in [&other, &one.with_secret_of(&other)] {
        assert_eq!(check(Some(wrong)).await.unwrap_err().code(), "key_unknown");
    }
    let (store, local) = (Caller::store(), Caller::local());
    let again = access.recheck(&store, Scope::Admin, noon()).await;
    assert!(again.is_ok());
    let other = access.recheck(&local, Scope::Read, noon()).await;
    assert!(other.is_err());
}

#[tokio::test]
async fn a_token_works_next_to_keys_but_only_from_this_machine() {
    let token = ApiKey::generate().unwrap();
    let own: IpAddr = "192.0.2.7".parse().unwrap();
    let access = access(&engine()).with_token(&token, own);
    let key = key(&access, Scope::Read).await;
    let check = async |key: &ApiKey, peer: Option<IpAddr>| {
        let header = header(key);
        let checked = access.check(Some(&header), peer, Scope::Read, noon());
        checked.await.map(|caller| caller.id)
    };
    for peer in [HOME, Some(own), "::ffff:127.0.0.1".parse().ok()] {
        assert_eq!(check(&token, peer).await.unwrap(), "store", "{peer:?}");
    }
    for peer in [None, "192.0.2.8".parse().ok(), "2001:db8::1".parse().ok()] {
        let refused = check(&token, peer).await.unwrap_err();
        assert_eq!(refused.code(), "key_unknown", "{peer:?}");
    }
    let elsewhere = "192.0.2.8".parse().ok();
    assert_eq!(check(&key, elsewhere).await.unwrap(), key.id());
}

#[tokio::test]
async fn a_server_without_keys_is_open_until_the_first_key_exists() {
    let access = access(&engine());
    let caller = access.check(None, HOME, Scope::Admin, noon()).await;
    assert_eq!(caller.unwrap(), Caller::local());
    let key = key(&access, Scope::Read).await;
    let refused = access.check(None, HOME, Scope::Read, noon()).await;
    assert!(matches!(refused, Err(Refused::Missing)));
    let id = key.id().to_owned();
    access.keys().unwrap().revoke(&id, noon()).await.unwrap();
    let refused = access.check(None, HOME, Scope::Read, noon()).await;
    assert!(
        matches!(refused, Err(Refused::Missing)),
        "a revoked key is refused"
    );
}

#[tokio::test]
async fn a_closed_server_without_keys_refuses_every_request() {
    let access = Access::by_keys(engine(), WithoutKeys::Closed);
    let refused = access.check(None, HOME, Scope::Read, noon()).await;
    assert!(matches!(refused, Err(Refused::Missing)));
}

#[tokio::test]
async fn a_key_grants_only_its_scopes_until_it_expires() {
    let access = access(&engine());
    let key = key(&access, Scope::Enqueue).await;
    let header = header(&key);
    let caller = access
        .check(Some(&header), HOME, Scope::Enqueue, noon())
        .await
        .unwrap();
    assert_eq!(
        (caller.id.as_str(), caller.name.as_str()),
        (key.id(), "test")
    );
    let refused = access
        .check(Some(&header), HOME, Scope::Admin, noon())
        .await;
    assert!(matches!(
        refused,
        Err(Refused::Scope {
            needed: Scope::Admin
        })
    ));
    let at_the_end = access
        .check(Some(&header), HOME, Scope::Enqueue, later(99))
        .await;
    assert!(at_the_end.is_ok());
    let refused = access
        .check(Some(&header), HOME, Scope::Enqueue, later(100))
        .await;
    assert!(matches!(refused, Err(Refused::Expired)));
}

#[tokio::test]
async fn a_wrong_secret_and_an_unknown_id_get_the_same_response() {
    let access = access(&engine());
    let known = key(&access, Scope::Read).await;
    let stranger = ApiKey::generate().unwrap();
    // The id of the one with the secret of the other, and a checksum that is right.
    let forged = ApiKey::parse(&known.with_secret_of(&stranger).reveal()).unwrap();
    for wrong in [forged, stranger] {
        let refused = access
            .check(Some(&header(&wrong)), HOME, Scope::Read, noon())
            .await
            .unwrap_err();
        assert!(matches!(refused, Refused::Unknown), "{refused:?}");
    }
    for nonsense in ["", "Bearer", "Bearer x", "Basic abc", "bearer wl_a_b_c"] {
        let nonsense = HeaderValue::from_static(nonsense);
        let refused = access
            .check(Some(&nonsense), HOME, Scope::Read, noon())
            .await;
        assert!(matches!(refused, Err(Refused::Malformed)));
    }
}

#[tokio::test]
async fn a_key_revoked_on_another_node_is_refused_a_second_later() {
    let engine = engine();
    let (here, there) = (access(&engine), access(&engine));
    let key = key(&here, Scope::Read).await;
    let header = header(&key);
    assert!(
        there
            .check(Some(&header), HOME, Scope::Read, noon())
            .await
            .is_ok()
    );
    here.keys().unwrap().revoke(key.id(), noon()).await.unwrap();
    let refused = here.check(Some(&header), HOME, Scope::Read, noon()).await;
    assert!(
        matches!(refused, Err(Refused::Revoked)),
        "at once where it was revoked"
    );
    let refused = there
        .check(Some(&header), HOME, Scope::Read, later(1))
        .await;
    assert!(matches!(refused, Err(Refused::Revoked)));
}

#[tokio::test]
async fn failed_attempts_are_throttled_and_reported_once_and_valid_keys_of_others_still_work() {
    let reported: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
    let reports = Arc::clone(&reported);
    let access = access(&engine()).on_throttle(Arc::new(move |id, _, _| {
        reports.lock().unwrap().push(id.map(str::to_owned));
    }));
    let victim = key(&access, Scope::Read).await;
    let other = key(&access, Scope::Read).await;
    let forged = victim.with_secret_of(&other);
    for _ in 0..5 {
        let refused = access
            .check(Some(&header(&forged)), HOME, Scope::Read, noon())
            .await;
        assert!(matches!(refused, Err(Refused::Unknown)));
    }
    assert_eq!(*reported.lock().unwrap(), [Some(victim.id().to_owned())]);
    // This address is refused even with the right secret; another address is not.
    let refused = access
        .check(Some(&header(&victim)), HOME, Scope::Read, noon())
        .await;
    assert!(matches!(refused, Err(Refused::Throttled { .. })));
    let elsewhere = Some("192.0.2.1".parse().unwrap());
    assert!(
        access
            .check(Some(&header(&victim)), elsewhere, Scope::Read, noon())
            .await
            .is_ok()
    );
    // A client that tries many ids must wait. Valid keys from the same address still work.
    let mut throttled = 0;
    for _ in 0..100 {
        let stranger = ApiKey::generate().unwrap();
        let refused = access
            .check(Some(&header(&stranger)), HOME, Scope::Read, noon())
            .await;
        throttled += u32::from(matches!(refused, Err(Refused::Throttled { .. })));
    }
    assert_eq!(throttled, 85);
    assert!(
        access
            .check(Some(&header(&other)), HOME, Scope::Read, noon())
            .await
            .is_ok()
    );
    assert_eq!(reported.lock().unwrap().len(), 2);
    assert!(
        access
            .check(Some(&header(&victim)), HOME, Scope::Read, later(60))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_throttled_address_cannot_guess_the_secret_of_an_id_without_limit() {
    let access = access(&engine());
    let victim = key(&access, Scope::Read).await;
    let nonsense = HeaderValue::from_static("Bearer wl_nonsense");
    for _ in 0..20 {
        let refused = access.check(Some(&nonsense), HOME, Scope::Read, noon());
        assert!(matches!(refused.await, Err(Refused::Malformed)));
    }
    let forged = header(&victim.with_secret_of(&ApiKey::generate().unwrap()));
    for _ in 0..5 {
        let refused = access.check(Some(&forged), HOME, Scope::Read, noon());
        assert!(matches!(refused.await, Err(Refused::Throttled { .. })));
    }
    let right = header(&victim);
    let refused = access.check(Some(&right), HOME, Scope::Read, noon());
    assert!(
        matches!(refused.await, Err(Refused::Throttled { .. })),
        "after five wrong secrets not even the right one is looked at"
    );
    let later = access.check(Some(&right), HOME, Scope::Read, later(1));
    assert!(later.await.is_ok(), "the wait of the id is over");
}

#[tokio::test]
async fn keys_are_stored_hashed_and_listed_with_their_last_use() {
    let engine = engine();
    let access = access(&engine);
    let key = key(&access, Scope::Read).await;
    let stored = engine.store().documents(KEYS, engine.now()).await.unwrap();
    let text = format!("{stored:?}");
    assert!(text.contains(&key.hash().to_hex()));
    let secret = key.reveal();
    let secret = secret.split('_').nth(2).unwrap();
    assert!(!text.contains(secret));
    access
        .check(Some(&header(&key)), HOME, Scope::Read, later(5))
        .await
        .unwrap();
    let keys = access.keys().unwrap();
    let used = loop {
        // The use is written aside.
        tokio::task::yield_now().await;
        let listed = keys.list().await.unwrap();
        let found = listed.iter().find(|info| info.id == key.id()).unwrap();
        if let Some(at) = found.last_used_at {
            break at;
        }
    };
    assert_eq!(used, later(5));
}

#[tokio::test]
async fn bad_names_and_times_are_refused_and_an_unknown_key_cannot_be_revoked() {
    let access = access(&engine());
    let keys = access.keys().unwrap();
    for (name, expires_at) in [("", None), ("a\nb", None), ("ok", Some(noon()))] {
        let scopes = vec![Scope::Read];
        let new = NewKey {
            name: name.to_owned(),
            scopes,
            expires_at,
        };
        assert!(
            matches!(keys.create(new, noon()).await, Err(KeyError::Invalid(_))),
            "{name}"
        );
    }
    let refused = keys.revoke("5CkDn0V9tQ1x", noon()).await;
    assert!(matches!(refused, Err(KeyError::NotFound(_))));
    for strange in [
        "",
        "nobody",
        "5CkDn0V9tQ1\0",
        "5CkDn0V9tQ1é",
        "5CkDn0V9tQ1xx",
    ] {
        let refused = keys.revoke(strange, noon()).await;
        assert!(matches!(refused, Err(KeyError::Invalid(_))), "{strange}");
    }
}

#[tokio::test]
async fn the_first_key_must_be_an_admin_key() {
    let access = access(&engine());
    let keys = access.keys().unwrap();
    for scope in Scope::ALL {
        let made = keys.create(new_key(scope), noon()).await;
        match scope {
            Scope::Admin => assert!(made.is_ok()),
            _ => {
                let refused = made.unwrap_err().to_string();
                assert!(
                    refused.contains("`scopes` must include `admin`"),
                    "{refused}"
                );
            }
        }
    }
    assert!(keys.create(new_key(Scope::Read), noon()).await.is_ok());
}

#[tokio::test]
async fn revoked_and_expired_keys_make_room_for_new_ones() {
    let keys = Keys::with_max(engine(), 3);
    let mut made = Vec::new();
    for seconds in 0..3 {
        let admin = NewKey {
            expires_at: (seconds == 2).then(|| later(60)),
            ..new_key(Scope::Admin)
        };
        made.push(keys.create(admin, later(seconds)).await.unwrap().1.id);
    }
    let create = |at| keys.create(new_key(Scope::Read), at);
    let refused = create(later(10)).await.unwrap_err().to_string();
    assert!(
        refused.contains("at most 3 in total: revoke some"),
        "{refused}"
    );
    keys.revoke(&made[1], later(20)).await.unwrap();
    let listed = async || {
        let listed = keys.list().await.unwrap();
        listed.into_iter().map(|key| key.id).collect::<Vec<_>>()
    };
    let second = create(later(30)).await.unwrap().1.id;
    assert_eq!(
        listed().await,
        [made[0].clone(), made[2].clone(), second.clone()]
    );
    let third = create(later(61)).await.unwrap().1.id;
    assert_eq!(
        listed().await,
        [made[0].clone(), second, third],
        "the expired key was removed"
    );
}

#[tokio::test]
async fn only_an_open_server_refuses_browsers_of_other_sites() {
    let access = access(&engine());
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static("evil.example"));
    let refused = access
        .check_browser(&Uri::from_static("/"), &headers, noon())
        .await
        .unwrap_err();
    assert_eq!(
        (refused.status(), refused.code()),
        (StatusCode::FORBIDDEN, "cross_site")
    );
    key(&access, Scope::Read).await;
    assert!(
        access
            .check_browser(&Uri::from_static("/"), &headers, noon())
            .await
            .is_ok()
    );
    assert!(
        Access::open()
            .check_browser(&Uri::from_static("/"), &headers, noon())
            .await
            .is_ok()
    );
}

/// Changes the document of a key as another version would.
async fn change_stored(engine: &Engine, id: &str, change: impl FnOnce(&mut serde_json::Value)) {
    let store = engine.store();
    let mut stored = store.document(KEYS, id, noon()).await.unwrap().unwrap();
    change(&mut stored.value);
    let any = windlass_store::Expected::Any;
    let put = store.put_document(KEYS, id, &stored.value, any, None, noon());
    put.await.unwrap();
}

#[tokio::test]
async fn an_unreadable_key_is_refused_and_the_others_still_work() {
    let engine = engine();
    let access = access(&engine);
    let (admin, newer) = (
        key(&access, Scope::Admin).await,
        key(&access, Scope::Read).await,
    );
    change_stored(&engine, newer.id(), |stored| {
        stored["scopes"] = serde_json::json!(["read", "tenant"]);
        stored["tenant"] = serde_json::json!("t");
    })
    .await;
    let access = self::access(&engine); // another node
    let check = |key: &ApiKey, scope| {
        let (access, header) = (access.clone(), header(key));
        async move { access.check(Some(&header), HOME, scope, noon()).await }
    };
    assert!(check(&admin, Scope::Admin).await.is_ok());
    let refused = check(&newer, Scope::Read).await;
    assert!(matches!(refused, Err(Refused::Unknown)), "{refused:?}");
    let keys = access.keys().unwrap();
    let listed = keys.list().await.unwrap();
    let unreadable: Vec<&str> = listed
        .iter()
        .filter(|key| key.unreadable)
        .map(|key| key.id.as_str())
        .collect();
    assert_eq!(unreadable, [newer.id()]);
    // It can be revoked, and keeps what the newer version knows of it.
    let revoked = keys.revoke(newer.id(), noon()).await.unwrap();
    assert_eq!(revoked.revoked_at, Some(noon()));
    let stored = engine.store().document(KEYS, newer.id(), noon()).await;
    assert_eq!(stored.unwrap().unwrap().value["tenant"], "t");
}

#[tokio::test]
async fn a_server_with_only_unreadable_keys_stays_closed() {
    for damage in [serde_json::json!({}), serde_json::json!("not a key")] {
        let engine = engine();
        let admin = key(&access(&engine), Scope::Admin).await;
        change_stored(&engine, admin.id(), |stored| *stored = damage.clone()).await;
        let access = access(&engine);
        assert!(!access.is_open(noon()).await.unwrap(), "{damage}");
        let keys = access.keys().unwrap();
        let revoked = keys.revoke(admin.id(), noon()).await.unwrap();
        assert!(revoked.revoked_at.is_some() && revoked.unreadable);
        assert!(keys.list().await.unwrap()[0].revoked_at.is_some());
        assert!(!access.is_open(noon()).await.unwrap(), "still {damage}");
    }
}
