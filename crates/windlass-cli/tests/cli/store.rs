//! `windlass bench store`, `windlass bench run`, `windlass bench operators`, `windlass bench pages` and `windlass backup`.

use std::process::{Command, Output};

use crate::support::figures::Figures;

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
    let arguments = [&["store", "--path", &store][..], &small].concat();
    let figures = Figures::of(&arguments);
    // The rates of claims, lifecycles and bare SQLite are medians of three: one run took longer.
    figures.check_rates(&[
        ("/enqueue_per_s", 300),
        ("/claim_settle_per_s", 300),
        ("/empty_claim_per_s", 2 * 300),
        ("/backlog_claim_per_s", 2 * 300),
        ("/lifecycle_per_s", 2 * 300),
        ("/disk_baseline_per_s", 300),
        ("/sqlite_baseline_per_s", 2 * 300),
    ]);
    figures.check_ratio("/ratio", "/lifecycle_per_s", "/sqlite_baseline_per_s");
    figures.check_positive(&["/reopen_ms"]);
    // A batch of seven jobs is enqueued, claimed and settled in at most three commits.
    let syncs = figures.number("/syncs_per_job");
    assert!(0.0 < syncs && syncs <= 3.0 / 7.0 + 0.05, "{syncs}");
    for key in [
        "/disk_bytes_per_job",
        "/memory_bytes_per_job",
        "/longest_pause_ms",
    ] {
        let figure = figures.number(key);
        assert!((0.0..1e6).contains(&figure), "{key}: {figure}");
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
    let refused = windlass(&[&["bench"], &arguments[..]].concat());
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
    let figures = Figures::of(&[
        "store", "--driver", "memory", "--jobs", "100", "--batch", "5",
    ]);
    figures.check_rates(&[("/lifecycle_per_s", 2 * 100), ("/enqueue_per_s", 100)]);
    assert_eq!(
        figures.json["reopen_ms"], 0.0,
        "there is no file to open again"
    );
}

#[test]
fn bench_run_measures_jobs_through_the_sdk() {
    for store in [&[][..], &["--store", "memory:"][..]] {
        let small = [
            "run",
            "--jobs",
            "300",
            "--concurrency",
            "20",
            "--failing",
            "20",
            "--fresh-seconds",
            "2",
        ];
        let figures = Figures::of(&[&small[..], store].concat());
        figures.check_positive(&["/fdatasync_ms", "/storm/failures_per_s"]);
        figures.check_rates(&[
            ("/enqueue_one_per_s", 300),
            ("/enqueue_bulk_per_s", 300),
            ("/drain_per_s", 300),
        ]);
        for times in [
            "/pickup_ms",
            "/storm/calm_ms",
            "/storm/storm_ms",
            "/storm/unguarded_ms",
        ] {
            figures.check_percentiles(times);
        }
        assert_eq!(figures.json["storm"]["handler_ms"], 5.0);
        assert_eq!(figures.json["storm"]["missing"], 0);
    }
    let refused = windlass(&["bench", "run", "--store", "mysql://host"]);
    assert_eq!(refused.status.code(), Some(2));
    let refused = windlass(&["bench", "run", "--processes", "2"]);
    assert_eq!(refused.status.code(), Some(2), "one process owns the file");
}

#[test]
fn bench_schedules_measures_how_late_they_fire() {
    let small = ["--schedules", "50", "--rounds", "1"];
    let measured = windlass(&[&["bench", "schedules", "--json"][..], &small].concat());
    assert!(measured.status.success(), "{measured:?}");
    let figures: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    let round = &figures["rounds"][0];
    assert_eq!(round["fired"], 50);
    assert!(round["lag_ms"]["p99"].as_f64() > Some(0.0), "{figures}");
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
