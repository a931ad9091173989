//! `windlass bench store`, `windlass bench run`, `windlass bench operators`, `windlass bench pages` and `windlass backup`.

use std::process::{Command, Output};

fn windlass(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(arguments)
        .output()
        .expect("it starts")
}

#[test]
fn bench_store_measures_sqlite_and_backup_copies_the_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (store, copy) = (path("jobs.db"), path("copy.db"));
    let small = [
        "--jobs",
        "300",
        "--batch",
        "7",
        "--clients",
        "3",
        "--backlog",
        "50",
        "--future",
        "40",
    ];
    let arguments = [&["bench", "store", "--json", "--path", &store][..], &small].concat();
    let measured = windlass(&arguments);
    assert!(measured.status.success(), "{measured:?}");
    let figures: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    for key in [
        "disk_baseline_per_s",
        "sqlite_baseline_per_s",
        "ratio",
        "enqueue_per_s",
        "claim_settle_per_s",
        "lifecycle_per_s",
        "empty_claim_per_s",
        "backlog_claim_per_s",
        "syncs_per_job",
        "reopen_ms",
    ] {
        assert!(
            figures[key].as_f64().is_some_and(|figure| figure > 0.0),
            "{key}: {figures}"
        );
    }
    for key in [
        "disk_bytes_per_job",
        "memory_bytes_per_job",
        "longest_pause_ms",
    ] {
        assert!(figures[key].is_number(), "{key}: {figures}");
    }
    assert!(windlass(&["backup", &store, &copy]).status.success());
    let counted = |path: &str, sql: &str| {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection
            .query_row(sql, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let all = "select count(*) from jobs";
    assert_eq!(counted(&copy, all), counted(&store, all));
    assert_eq!(
        counted(&copy, all),
        10 * 300 + 50 + 40,
        "once, three times three parts, and what waits beside them"
    );
    let waiting = "select count(*) from jobs left join states using (id) where states.id is null";
    assert_eq!(counted(&copy, waiting), 50 + 40);
    let refused = windlass(&["backup", &store, &copy]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("already exists"));
    let refused = windlass(&arguments);
    assert_eq!(refused.status.code(), Some(1), "the file already exists");
    // Flags of another driver are refused.
    for (driver, flag) in [
        ("sqlite", "--url"),
        ("memory", "--url"),
        ("memory", "--path"),
    ] {
        let refused = windlass(&["bench", "store", "--driver", driver, flag, "somewhere"]);
        assert_eq!(refused.status.code(), Some(2), "{driver} {flag}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(flag));
    }
}

#[test]
fn bench_store_measures_memory() {
    let measured = windlass(&[
        "bench", "store", "--driver", "memory", "--jobs", "100", "--batch", "5", "--json",
    ]);
    let figures: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    assert!(figures["lifecycle_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(figures["reopen_ms"], 0.0, "there is no file to open again");
}

#[test]
fn bench_run_measures_jobs_through_the_sdk() {
    for store in [&[][..], &["--store", "memory:"][..]] {
        let small = [
            "bench",
            "run",
            "--json",
            "--jobs",
            "300",
            "--concurrency",
            "20",
            "--failing",
            "20",
            "--fresh-seconds",
            "1",
        ];
        let measured = windlass(&[&small[..], store].concat());
        assert!(measured.status.success(), "{measured:?}");
        let figures: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
        for key in [
            "fdatasync_ms",
            "enqueue_one_per_s",
            "enqueue_bulk_per_s",
            "drain_per_s",
        ] {
            assert!(
                figures[key].as_f64().is_some_and(|figure| figure > 0.0),
                "{key}: {figures}"
            );
        }
        for times in [
            &figures["pickup_ms"],
            &figures["storm"]["calm_ms"],
            &figures["storm"]["storm_ms"],
            &figures["storm"]["unguarded_ms"],
        ] {
            assert!(
                times["p50"].as_f64() > Some(0.0) && times["p99"].is_number(),
                "{figures}"
            );
        }
        assert_eq!(figures["storm"]["handler_ms"], 5.0);
        assert_eq!(figures["storm"]["missing"], 0);
        assert!(
            figures["storm"]["failures_per_s"].as_f64() > Some(0.0),
            "{figures}"
        );
    }
    let refused = windlass(&["bench", "run", "--store", "mysql://host"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn bench_pages_loads_every_page_of_the_dashboard() {
    let small = [
        "bench", "pages", "--json", "--jobs", "2000", "--groups", "20", "--reads", "1",
    ];
    let measured = windlass(&small);
    assert!(measured.status.success(), "{measured:?}");
    let figures: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    assert_eq!(
        (&figures["jobs"], &figures["failure_groups"]),
        (&2000.into(), &20.into())
    );
    let pages = figures["pages"].as_array().unwrap();
    for path in [
        "/", "/jobs", "/queues", "/dead", "/lab", "/workers", "/audit",
    ] {
        let page = pages.iter().find(|page| page["path"] == path).expect(path);
        assert!(page["bytes"].as_u64() > Some(1000), "{page}");
        assert!(page["first_ms"].as_f64() > Some(0.0), "{page}");
        assert!(page["ms"]["p50"].as_f64() > Some(0.0), "{page}");
    }
    let all = windlass(&[
        "bench", "pages", "--jobs", "200", "--groups", "2", "--reads", "1",
    ]);
    let text = String::from_utf8(all.stdout).unwrap();
    assert!(text.starts_with("200 dead jobs of 2 causes"), "{text}");
}

#[test]
fn bench_operators_measures_reads_and_bulk_actions() {
    let small = [
        "bench",
        "operators",
        "--json",
        "--jobs",
        "12000",
        "--reads",
        "2",
        "--seconds",
        "1",
    ];
    let measured = windlass(&small);
    assert!(measured.status.success(), "{measured:?}");
    let figures: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    assert_eq!(figures["jobs"], 12_000);
    assert_eq!(figures["failure_groups"], 1000);
    assert!(figures["fill_s"].as_f64() > Some(0.0), "{figures}");
    assert!(figures["calm_ms"]["p50"].as_f64() > Some(0.0), "{figures}");
    let reads = figures["reads"].as_array().unwrap();
    let found = |name: &str, page: &str| {
        let is_meant = |read: &&serde_json::Value| read["name"] == name && read["page"] == page;
        let read = reads.iter().find(is_meant).unwrap();
        assert!(read["ms"]["p50"].as_f64() > Some(0.0), "{read}");
        (
            read["jobs"].as_u64().unwrap(),
            read["examined"].as_u64().unwrap(),
        )
    };
    assert_eq!(found("failure groups", "all"), (1000, 0));
    assert_eq!(found("counts of queues", "all"), (10, 0));
    assert_eq!(found("all dead", "first"), (100, 100));
    assert_eq!(found("all dead, by end", "first"), (100, 100));
    assert_eq!(found("all dead", "deep"), (100, 100));
    assert_eq!(found("by cause", "first"), (12, 12));
    for name in ["by error text", "by payload"] {
        let (jobs, examined) = found(name, "first");
        assert!(jobs <= 1 && examined == 10_000, "{figures}");
        let (jobs, examined) = found(name, "deep");
        assert!(jobs <= 1 && examined == 1200, "{figures}");
    }
    for name in ["by queue and kind", "by reason", "by cause, by end"] {
        let (jobs, examined) = found(name, "first");
        assert!(jobs > 1 && jobs <= 100 && examined > 1000, "{figures}");
    }
    let actions = figures["actions"].as_array().unwrap();
    assert_eq!(actions.len(), 6);
    for action in actions {
        assert!(action["jobs"].as_u64() > Some(0), "{action}");
        assert!(action["jobs_per_s"].as_f64() > Some(0.0), "{action}");
        let with_fresh = action["name"].as_str().unwrap().ends_with("fresh jobs");
        assert_eq!(action["pick_up_ms"].is_object(), with_fresh, "{action}");
        assert_eq!(
            action["fresh_jobs"].as_u64() > Some(0),
            with_fresh,
            "{action}"
        );
    }
}
