//! `windlass migrate`, `windlass bench store --driver postgres` and servers on PostgreSQL.

use std::process::{Command, Output};

use crate::support::figures::Figures;
use windlass_testkit::cluster;

fn windlass(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(arguments)
        .output()
        .expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_migrated_and_measured() {
    let url = cluster::empty_database().await;
    let status = windlass(&["migrate", "status", "--url", &url]);
    assert!(text(&status.stdout).contains("missing"), "{status:?}");
    let up = windlass(&["migrate", "up", "--url", &url]);
    let applied = "applied 1 jobs, 2 failure groups, 3 functions, 4 concurrency keys\n";
    assert_eq!(text(&up.stdout), applied, "{up:?}");
    let again = windlass(&["migrate", "up", "--url", &url, "--json"]);
    let applied: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(applied, serde_json::json!({"applied": []}));
    let status = windlass(&["migrate", "status", "--url", &url]);
    assert!(text(&status.stdout).contains("applied"), "{status:?}");

    let small = [
        "--jobs",
        "200",
        "--batch",
        "30",
        "--clients",
        "2",
        "--backlog",
        "40",
        "--future",
        "50",
    ];
    let bench = ["store", "--driver", "postgres", "--url", &url];
    let figures = Figures::of(&[&bench[..], &small].concat());
    figures.check_rates(&[
        ("/enqueue_per_s", 200),
        ("/claim_settle_per_s", 200),
        ("/backlog_claim_per_s", 2 * 200),
        ("/lifecycle_per_s", 2 * 200),
        ("/postgres_baseline_per_s", 200),
    ]);
    figures.check_ratio("/ratio", "/lifecycle_per_s", "/postgres_baseline_per_s");
    let client = cluster::client(&url).await;
    let waiting: i64 = client
        .query_one("select count(*) from windlass.jobs", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(waiting, 40 + 50, "all else is done");
    let refused = windlass(&[&["bench"], &bench[..]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("the database already holds jobs"),
        "{refused:?}"
    );
}

#[test]
fn migrate_reports_connection_and_usage_errors() {
    let sql = windlass(&["migrate", "sql"]);
    assert!(
        text(&sql.stdout).contains("create table windlass.jobs"),
        "{sql:?}"
    );
    let nowhere = windlass(&["migrate", "up", "--url", "postgres://127.0.0.1:1/nowhere"]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    let wrong = windlass(&[
        "migrate",
        "up",
        "--url",
        "postgres://db/jobs?pool_size=many",
    ]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(text(&wrong.stderr).contains("pool_size"), "{wrong:?}");
    let missing = windlass(&["bench", "store", "--driver", "postgres"]);
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
    assert!(text(&missing.stderr).contains("--url"), "{missing:?}");
}

#[tokio::test]
async fn bench_run_drains_with_several_processes() {
    let url = cluster::database().await;
    let small = [
        "--jobs",
        "300",
        "--concurrency",
        "20",
        "--failing",
        "20",
        "--fresh-seconds",
        "1",
    ];
    let bench = [
        "bench",
        "run",
        "--json",
        "--store",
        &url,
        "--processes",
        "1,2",
    ];
    let measured = windlass(&[&bench[..], &small].concat());
    assert!(measured.status.success(), "{measured:?}");
    let figures: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    for (result, processes) in figures["processes"].as_array().unwrap().iter().zip([1, 2]) {
        assert_eq!(result["processes"], processes);
        assert!(result["drain_per_s"].as_f64() > Some(0.0), "{figures}");
    }
    let client = cluster::client(&url).await;
    let sql =
        "select count(*) from windlass.finished where queue in ('processes-1', 'processes-2')";
    let finished: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(finished, 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_share_a_database_and_its_keys() {
    let url = cluster::empty_database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (code, output) = crate::support::refused(&["keys", "list", "--store", &url]);
    assert!(
        code == 1 && output.contains("does not exist; check"),
        "{output}"
    );
    let status = windlass(&["migrate", "status", "--url", &url]);
    assert!(
        text(&status.stdout).contains("missing"),
        "nothing was created"
    );
    let admin = crate::support::printed(&[
        "keys", "create", "--name", "admin", "--scope", "admin", "--store", &url,
    ]);
    let admin = admin.trim();
    let start = || crate::support::Server::start(folder.path(), &["--store", &url]);
    let (here, there) = (start(), start());
    let job = serde_json::json!({"kind": "a"});
    let (status, made) = here.ask("POST", "/api/v1/jobs", Some(admin), Some(&job));
    assert_eq!(status, 201, "{made}");
    let path = format!("/api/v1/jobs/{}", made["id"].as_str().expect("an id"));
    assert_eq!(there.ask("GET", &path, Some(admin), None).0, 200);
    // The other server refuses a revoked key within a second.
    let new = serde_json::json!({"name": "short-lived", "scopes": ["read"]});
    let (_, key) = here.ask("POST", "/api/v1/keys", Some(admin), Some(&new));
    let (id, secret) = (
        key["id"].as_str().expect("an id"),
        key["key"].as_str().expect("a key"),
    );
    let known = |wanted: u16| {
        (0..600).any(|_| {
            let found = there.ask("GET", &path, Some(secret), None).0 == wanted;
            if !found {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            found
        })
    };
    assert!(known(200), "it is known everywhere");
    assert_eq!(
        here.ask("DELETE", &format!("/api/v1/keys/{id}"), Some(admin), None)
            .0,
        200
    );
    assert!(known(401), "it is revoked everywhere");
    // Both servers write to the same audit log.
    let verified = here.ask("GET", "/api/v1/audit/verify", Some(admin), None).1;
    assert_eq!(verified["broken"], serde_json::Value::Null, "{verified}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_and_the_workers_route_report_configuration_differences() {
    let url = cluster::empty_database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let start = |lease: &str| {
        let data = folder.path().display().to_string();
        let serve = ["serve", "--bind", "127.0.0.1:0", "--data", &data];
        let mut command = crate::support::command(&[&serve[..], &["--store", &url]].concat());
        command.env("WINDLASS_JOBS_LEASE", lease);
        crate::support::Server::spawn(command)
    };
    let output =
        |server: &crate::support::Server| server.get("/api/v1/workers")["differences"].clone();
    let doctor = || crate::support::printed(&["doctor", "--store", &url]);
    let here = start("30s");
    assert_eq!(output(&here), serde_json::json!([]));
    assert!(
        doctor().contains("have the same configuration"),
        "{}",
        doctor()
    );
    let _there = start("45s");
    let found = (0..600).any(|_| {
        let found = output(&here)[0].is_string();
        if !found {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        found
    });
    assert!(found, "the other server is heard");
    let differs = "servers differ in `jobs.lease`: \"30s\" on ";
    let sentences = output(&here);
    let sentence = sentences[0].as_str().expect("a sentence");
    assert!(sentence.starts_with(differs), "{sentence}");
    assert!(sentence.contains("\"45s\" on server-"), "{sentence}");
    let doctor = doctor();
    assert!(
        doctor.contains("warning  servers") && doctor.contains(differs),
        "{doctor}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_refuses_a_newer_schema_and_a_role_without_write_access() {
    let url = cluster::empty_database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("a plain path");
    let refused = |url: &str| {
        crate::support::refused(&[
            "serve",
            "--bind",
            "127.0.0.1:0",
            "--data",
            data,
            "--store",
            url,
        ])
    };
    let client = cluster::client(&url).await;
    // Without a schema and without the right to create one.
    client
        .batch_execute("create role guest login")
        .await
        .unwrap();
    let as_guest = url.replacen("windlass@", "guest@", 1);
    let (code, output) = refused(&as_guest);
    assert!(
        code == 1 && output.contains("permission denied"),
        "{output}"
    );
    assert!(windlass(&["migrate", "up", "--url", &url]).status.success());
    let newer =
        "insert into windlass.migrations (number, name, checksum) values (9999, 'later', 0)";
    client.batch_execute(newer).await.unwrap();
    let (code, output) = refused(&url);
    assert!(
        code == 1 && output.contains("9999") && output.contains("newer build"),
        "{output}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_not_ready_while_the_database_refuses_writes() {
    let url = cluster::empty_database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let serve = ["serve", "--bind", "127.0.0.1:0", "--data", &data];
    let mut command = crate::support::command(&[&serve[..], &["--store", &url]].concat());
    command.env("WINDLASS_JOBS_LEASE", "3s");
    let server = crate::support::Server::spawn(command);
    let database = url.rsplit('/').next().expect("a database");
    let client = cluster::client(&url).await;
    // The server's connections start again, with the new default of the database.
    let read_only = async |set: &str| {
        let sql = format!(
            "begin read write; alter database \"{database}\" {set}; commit; \
             select pg_terminate_backend(pid) from pg_stat_activity \
             where datname = '{database}' and pid <> pg_backend_pid()"
        );
        client.batch_execute(&sql).await.unwrap();
    };
    let until = |wanted: u16| {
        let answered = (0..3000).find_map(|_| {
            let (status, body) = server.ask("GET", "/readyz", None, None);
            if status != wanted {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            (status == wanted).then_some(body)
        });
        answered.unwrap_or_else(|| panic!("/readyz was never {wanted}"))
    };
    until(200);
    read_only("set default_transaction_read_only = on").await;
    until(503);
    assert_eq!(server.ask("GET", "/livez", None, None).0, 200);
    // The server stays not ready, although its connections answer reads again.
    server.get("/api/v1/queues");
    until(503);
    read_only("reset default_transaction_read_only").await;
    until(200);
}
