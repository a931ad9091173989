//! Kills a server repeatedly while many clients enqueue jobs. Every acknowledged job must exist once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Server, ask, command, free_address};
use serde_json::json;

const CLIENTS: u64 = 500;
const KILLS: usize = 10;
/// The number of jobs that the server acknowledges between two kills.
const JOBS_BETWEEN: u64 = 200;

/// What the clients share.
struct World {
    address: SocketAddr,
    acknowledged: Mutex<Vec<String>>,
    count: AtomicU64,
    is_finished: AtomicBool,
}

/// Enqueues jobs, each with its own unique key, until the test ends. If a response is lost, sends the
/// job again with the same key.
fn client(world: &World, client: u64) {
    let mut number = 0;
    while !world.is_finished.load(Ordering::SeqCst) {
        let key = format!("{client}-{number}");
        let job = json!({"kind": "count", "unique_key": key, "payload": {"key": key}});
        match ask(world.address, "POST", "/api/v1/jobs", None, Some(&job)) {
            Ok((200 | 201, _)) => {
                world.acknowledged.lock().expect("no panic").push(key);
                world.count.fetch_add(1, Ordering::SeqCst);
                number += 1;
            }
            Ok((503, _)) | Err(_) => std::thread::sleep(Duration::from_millis(5)),
            Ok((status, answer)) => assert_eq!(status, 201, "{answer}"),
        }
    }
}

#[test]
fn every_acknowledged_job_exists_once_after_ten_kills() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("a plain path").to_owned();
    // Always the same port, so that clients can reconnect. Every client has its own connection.
    let free = free_address();
    let start = || {
        let mut serve = command(&[
            "serve",
            "--bind",
            &free.to_string(),
            "--data",
            &data,
            "--log-level",
            "error",
        ]);
        serve.env("WINDLASS_HTTP_CONNECTIONS_PER_ADDRESS", "1000");
        Server::spawn(serve)
    };
    let world = Arc::new(World {
        address: free,
        acknowledged: Mutex::default(),
        count: AtomicU64::new(0),
        is_finished: AtomicBool::new(false),
    });
    let mut server = start();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let world = Arc::clone(&world);
            std::thread::spawn(move || client(&world, number))
        })
        .collect();
    for round in 1..=KILLS {
        let enough = JOBS_BETWEEN * u64::try_from(round).unwrap();
        while world.count.load(Ordering::SeqCst) < enough {
            assert!(
                !clients.iter().all(std::thread::JoinHandle::is_finished),
                "the clients failed"
            );
            std::thread::yield_now();
        }
        server.signal("KILL");
        server.wait();
        server = start();
    }
    world.is_finished.store(true, Ordering::SeqCst);
    for client in clients {
        client.join().expect("no client failed");
    }
    let mut stored: BTreeMap<String, u32> = BTreeMap::new();
    let mut path = "/api/v1/jobs?limit=1000".to_owned();
    loop {
        let page = server.get(&path);
        for job in page["data"].as_array().expect("jobs") {
            *stored
                .entry(job["unique_key"].as_str().expect("a key").to_owned())
                .or_default() += 1;
        }
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/api/v1/jobs?limit=1000&cursor={cursor}");
    }
    let acknowledged = world.acknowledged.lock().unwrap();
    assert!(acknowledged.len() >= KILLS * usize::try_from(JOBS_BETWEEN).unwrap());
    for key in &*acknowledged {
        assert_eq!(stored.get(key), Some(&1), "{key}");
    }
    assert!(stored.values().all(|count| *count == 1), "no key twice");
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
}
