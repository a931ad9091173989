//! Tests of storing, decrypting, rotating and refusing secrets.

use proptest::prelude::*;
use windlass_engine::{Ids, SystemClock};
use windlass_memory::MemoryStore;
use windlass_store::{Store, Wrapper};

use super::*;

fn engine() -> Arc<Engine> {
    let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(SystemClock::new()));
    Arc::new(Engine::new(store, clock, Ids::seeded(1)))
}

fn hosts() -> SecretHosts {
    SecretHosts::parse(&["api.example.com", "*.hooks.example:8443"]).expect("hosts")
}

fn key() -> MasterKey {
    MasterKey::generate().expect("randomness")
}

fn secrets(engine: &Arc<Engine>, key: &MasterKey, old: &[&MasterKey]) -> Secrets {
    let old = old.iter().map(|key| (*key).clone()).collect();
    Secrets::new(Arc::clone(engine), Some(key.clone()), old)
}

async fn stored(engine: &Engine) -> Vec<Document> {
    engine
        .store()
        .documents(COLLECTION, engine.now())
        .await
        .expect("documents")
}

#[tokio::test]
async fn a_secret_is_read_back_and_the_store_has_no_plain_text() {
    let (engine, key) = (engine(), key());
    let secrets = secrets(&engine, &key, &[]);
    secrets.put("hook", b"s3cret", &hosts()).await.unwrap();
    secrets.put("hook", b"s3cret", &hosts()).await.unwrap();
    assert_eq!(
        secrets.get("hook").await.unwrap().unwrap().value.as_slice(),
        b"s3cret"
    );
    assert!(secrets.get("other").await.unwrap().is_none());
    let [listed] = &secrets.list().await.unwrap()[..] else {
        panic!("one secret");
    };
    assert_eq!((listed.name.as_str(), listed.any_host), ("hook", false));
    assert_eq!(Some(&listed.hosts), hosts().names().as_ref());
    assert_eq!(secrets.hosts("hook").await.unwrap(), Some(hosts()));
    assert_eq!(secrets.hosts("other").await.unwrap(), None);
    assert_eq!(secrets.hosts("no name").await.unwrap(), None);
    let text = format!("{:?} {:?} {:?}", stored(&engine).await, secrets, key);
    assert!(!text.contains("s3cret") && !text.contains(&HEXLOWER.encode(b"s3cret")));
    assert!(!text.contains(&key.reveal()));
    assert!(secrets.remove("hook").await.unwrap());
    assert!(!secrets.remove("hook").await.unwrap());
}

#[tokio::test]
async fn a_wrong_or_missing_key_is_refused_and_nothing_is_overwritten() {
    let engine = engine();
    secrets(&engine, &key(), &[])
        .put("hook", b"s3cret", &hosts())
        .await
        .unwrap();
    let before = stored(&engine).await;
    let wrong = secrets(&engine, &key(), &[&key()]);
    assert!(matches!(
        wrong.check().await,
        Err(SecretError::WrongMasterKey { .. })
    ));
    assert!(matches!(
        wrong.get("hook").await,
        Err(SecretError::WrongMasterKey { .. })
    ));
    assert!(matches!(
        wrong.rotate().await,
        Err(SecretError::WrongMasterKey { .. })
    ));
    let none = Secrets::new(Arc::clone(&engine), None, Vec::new());
    assert!(none.check().await.is_err());
    assert!(matches!(
        none.put("new", b"x", &hosts()).await,
        Err(SecretError::NoMasterKey)
    ));
    assert_eq!(stored(&engine).await, before);
}

#[tokio::test]
async fn keys_are_rotated_while_the_old_one_is_configured() {
    let (engine, old, new) = (engine(), key(), key());
    secrets(&engine, &old, &[])
        .put("a", b"1", &hosts())
        .await
        .unwrap();
    let both = secrets(&engine, &new, &[&old]);
    both.check().await.unwrap();
    both.put("b", b"2", &hosts()).await.unwrap();
    assert_eq!(both.get("a").await.unwrap().unwrap().value.as_slice(), b"1");
    assert_eq!(both.rotate().await.unwrap(), 1);
    assert_eq!(both.rotate().await.unwrap(), 0);
    let only_new = secrets(&engine, &new, &[]);
    only_new.check().await.unwrap();
    let rotated = only_new.get("a").await.unwrap().unwrap();
    assert_eq!(
        (rotated.value.as_slice(), rotated.hosts),
        (&b"1"[..], hosts())
    );
}

/// A store in which another node encrypts a secret with its own key before each of the first writes.
#[derive(Debug)]
struct Raced {
    store: Arc<MemoryStore>,
    other: Secrets,
    left: std::sync::atomic::AtomicUsize,
}

impl Wrapper for Raced {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        use std::sync::atomic::Ordering::SeqCst;
        let less = |left: usize| left.checked_sub(1);
        if verb == "put_document" && self.left.fetch_update(SeqCst, SeqCst, less).is_ok() {
            let put = self.other.put("hook", b"anew", &hosts()).await;
            put.expect("the other node writes");
        }
        step.await
    }
}

async fn rotate_during_writes(writes: usize) -> (Arc<Engine>, MasterKey, Result<u64, SecretError>) {
    let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(SystemClock::new()));
    let engine = Engine::new(
        Arc::clone(&store) as _,
        Arc::clone(&clock) as _,
        Ids::seeded(1),
    );
    let (engine, old, new) = (Arc::new(engine), key(), key());
    let other = secrets(&engine, &old, &[]);
    other.put("hook", b"1", &hosts()).await.expect("a secret");
    let left = writes.into();
    let raced = Arc::new(Raced { store, other, left });
    let raced = Engine::new(raced, clock, Ids::seeded(2));
    let rotated = secrets(&Arc::new(raced), &new, &[&old]).rotate().await;
    (engine, new, rotated)
}

#[tokio::test]
async fn rotation_continues_until_no_secret_uses_an_old_key() {
    let (engine, new, rotated) = rotate_during_writes(1).await;
    assert_eq!(rotated.unwrap(), 1);
    let only_new = secrets(&engine, &new, &[]);
    let hook = only_new.get("hook").await.unwrap().unwrap();
    assert_eq!(
        hook.value.as_slice(),
        b"anew",
        "what the other node wrote, and nothing lost"
    );
    let (_, _, rotated) = rotate_during_writes(usize::MAX).await;
    assert!(matches!(rotated, Err(SecretError::StillOld)));
}

#[tokio::test]
async fn a_changed_or_moved_secret_cannot_be_decrypted() {
    let (engine, key) = (engine(), key());
    let secrets = secrets(&engine, &key, &[]);
    secrets.put("hook", b"s3cret", &hosts()).await.unwrap();
    let sealed = stored(&engine).await.remove(0).value;
    let store = engine.store();
    for (name, field, value) in [
        ("moved", "key", sealed["key"].clone()),
        ("changed", "sealed", "00".into()),
        ("renonced", "nonce", "ff".repeat(24).into()),
        ("short", "nonce", "ff".into()),
        ("nonsense", "sealed", "zz".into()),
        ("hook", "hosts", serde_json::json!(["evil.example"])),
        ("hook", "hosts", serde_json::json!(["not a host"])),
        ("hook", "hosts", Value::Null),
    ] {
        let mut value_of = sealed.clone();
        value_of[field] = value;
        store
            .put_document(
                COLLECTION,
                name,
                &value_of,
                Expected::Any,
                None,
                engine.now(),
            )
            .await
            .unwrap();
        assert!(
            matches!(secrets.get(name).await, Err(SecretError::Changed(_))),
            "{name}"
        );
    }
}

#[tokio::test]
async fn bad_names_sizes_and_keys_are_refused() {
    let secrets = secrets(&engine(), &key(), &[]);
    for name in ["", "a b", "a/b", "é", "a\0b", ".", "..", &"x".repeat(129)] {
        assert!(
            matches!(
                secrets.put(name, b"x", &hosts()).await,
                Err(SecretError::Invalid(_))
            ),
            "{name}"
        );
        let removed = secrets.remove(name).await;
        assert!(matches!(removed, Err(SecretError::Invalid(_))), "{name}");
        let got = secrets.get(name).await;
        assert!(matches!(got, Err(SecretError::Invalid(_))), "{name}");
    }
    let action = secrets.put("rotate", b"x", &hosts()).await;
    assert!(matches!(action, Err(SecretError::Invalid(_))));
    for size in [0, SECRET_BYTES_MAX + 1] {
        let refused = secrets.put("a", &vec![0; size], &hosts()).await;
        assert!(matches!(refused, Err(SecretError::Invalid(_))), "{size}");
    }
    secrets
        .put("a", &vec![0; SECRET_BYTES_MAX], &hosts())
        .await
        .unwrap();
    for text in ["", "00", &"0".repeat(63), &"g".repeat(64), &"0".repeat(66)] {
        assert!(MasterKey::parse(text).is_err(), "{text}");
    }
    assert!(MasterKey::parse(&format!(" {}\n", key().reveal())).is_ok());
}

proptest! {
    #[test]
    fn random_text_is_no_master_key(text in "\\PC{0,70}") {
        let _ = MasterKey::parse(&text);
    }
}
