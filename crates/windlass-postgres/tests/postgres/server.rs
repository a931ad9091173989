//! Server settings, TLS, the schema, partitions, notices, and errors of opening.

use std::time::Duration;

use windlass_core::{Job, Report, Timestamp};
use windlass_postgres::{MIGRATIONS, PostgresStore};
use windlass_store::conformance::build::{at, claim, id, job, jobs, report};
use windlass_store::{Enqueue, Store, StoreError};
use windlass_testkit::cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_can_lose_acknowledged_writes_is_refused() {
    let url = cluster::database().await;
    let (_, database) = url.rsplit_once('/').unwrap();
    cluster::execute(
        &url,
        &format!("alter database {database} set synchronous_commit = off"),
    )
    .await;
    let refused = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, StoreError::CannotOpen { .. }),
        "{refused:?}"
    );
    let message = refused.to_string();
    assert!(message.contains("synchronous_commit is off"), "{message}");
    let options = cluster::options(&format!("{url}?allow_unsafe_durability=true"));
    PostgresStore::connect(options)
        .await
        .expect("if it is said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_together_migrate_once() {
    let url = cluster::empty_database().await;
    let refused = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap_err();
    let newest = MIGRATIONS.last().unwrap().number;
    assert!(
        matches!(refused, StoreError::WrongSchema { found: 0, needed } if needed == newest)
            && refused.to_string().contains("run `windlass migrate up`"),
        "{refused:?}"
    );
    let starts = (0..8).map(|_| {
        let options = cluster::options(&url);
        tokio::spawn(async move { PostgresStore::migrate(&options).await.unwrap().len() })
    });
    let mut applied = 0;
    for start in starts.collect::<Vec<_>>() {
        applied += start.await.unwrap();
    }
    assert_eq!(applied, MIGRATIONS.len());
    PostgresStore::connect(cluster::options(&url))
        .await
        .expect("it is up to date");
    cluster::execute(&url, "update windlass.migrations set checksum = 1").await;
    let refused = PostgresStore::migrate(&cluster::options(&url))
        .await
        .unwrap_err();
    assert!(matches!(refused, StoreError::Damaged { .. }), "{refused:?}");
    cluster::execute(
        &url,
        "insert into windlass.migrations values (99, 'later', 1)",
    )
    .await;
    for refused in [
        PostgresStore::migrate(&cluster::options(&url))
            .await
            .map(drop)
            .unwrap_err(),
        PostgresStore::connect(cluster::options(&url))
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert!(
            matches!(refused, StoreError::WrongSchema { found: 99, .. }),
            "{refused:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_and_name_of_the_server_are_verified() {
    let folder = tempfile::Builder::new()
        .prefix("windlass-postgres-")
        .tempdir()
        .unwrap()
        .keep();
    let tls = folder.join("tls");
    std::fs::create_dir(&tls).unwrap();
    let make = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        rcgen::generate_simple_self_signed(names).unwrap()
    };
    let (ours, other) = (make(&["localhost"]), make(&["localhost"]));
    std::fs::write(tls.join("server.crt"), ours.cert.pem()).unwrap();
    std::fs::write(tls.join("server.key"), ours.signing_key.serialize_pem()).unwrap();
    let roots = tempfile::tempdir().unwrap();
    let root = |name: &str, certificate: &rcgen::Certificate| {
        let path = roots.path().join(name);
        std::fs::write(&path, certificate.pem()).unwrap();
        path.display().to_string().replace('/', "%2F")
    };
    let (ours, other) = (root("ours.pem", &ours.cert), root("other.pem", &other.cert));
    for file in ["server.crt", "server.key"] {
        let mut readable = std::fs::metadata(tls.join(file)).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut readable, 0o644);
        std::fs::set_permissions(tls.join(file), readable).unwrap();
    }
    let server = cluster::Cluster::start_in(folder, &["ssl=on"]);
    std::fs::remove_dir_all(tls).unwrap(); // the server has its own copies
    let url = |host: &str, root: &str| {
        format!(
            "postgres://windlass@{host}:{}/postgres?sslmode=verify-full&sslrootcert={root}",
            server.port
        )
    };
    let migrate = async |url: String| PostgresStore::migrate(&cluster::options(&url)).await;
    migrate(url("localhost", &ours))
        .await
        .expect("its certificate is trusted");
    let store = PostgresStore::connect(cluster::options(&url("localhost", &ours)))
        .await
        .unwrap();
    let used = cluster::client(&server.url("postgres")).await;
    let count = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid) where ssl and usename = 'windlass'";
    let encrypted: i64 = used.query_one(count, &[]).await.unwrap().get(0);
    assert!(encrypted > 0, "the store's connections are encrypted");
    drop(store);
    migrate(url("localhost", &other))
        .await
        .expect_err("signed by somebody else");
    migrate(url("127.0.0.1", &ours))
        .await
        .expect_err("another name");
    let missing =
        PostgresStore::migrate(&cluster::options(&url("localhost", "%2Fno%2Fsuch"))).await;
    let missing = missing.unwrap_err();
    assert!(
        matches!(missing, StoreError::CannotOpen { .. }),
        "{missing:?}"
    );
    assert!(missing.to_string().contains("/no/such"), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_use_the_time_of_the_server() {
    let url = cluster::database().await;
    let one = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    let other = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    let mut last = Timestamp::MIN;
    for store in [&one, &other, &one, &other] {
        let now = store.time().await.unwrap().unwrap();
        assert!(now > last, "whatever the clocks of the nodes say");
        last = now;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_another_node_is_claimed_in_its_order() {
    let url = cluster::database().await;
    let one = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    let other = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    one.enqueue(Enqueue::all(jobs(1..20)), at(0)).await.unwrap();
    assert_eq!(one.claim(&claim(5), at(0)).await.unwrap().jobs.len(), 5);
    let urgent = Job {
        priority: 9,
        ..job(100)
    };
    let mut changes = one.changes();
    changes.mark_unchanged();
    other
        .enqueue(Enqueue::all(vec![urgent]), at(0))
        .await
        .unwrap();
    // The notice arrives within milliseconds. A node that misses it finds the job a second later.
    let mut found = false;
    for _ in 0..100 {
        let _ = tokio::time::timeout(Duration::from_millis(100), changes.changed()).await;
        let claimed = one.claim(&claim(1), at(0)).await.unwrap().jobs;
        if claimed.iter().any(|job| job.id == id(100)) {
            found = true;
            break;
        }
        assert!(!claimed.is_empty(), "others are taken meanwhile");
    }
    assert!(found);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_days_of_finished_jobs_are_dropped() {
    let url = cluster::database().await;
    let store = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    let client = cluster::client(&url).await;
    let days = "select count(*) from pg_inherits where inhparent = 'windlass.finished'::regclass";
    for _ in 0..100 {
        let count: i64 = client.query_one(days, &[]).await.unwrap().get(0);
        if count >= 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let now = store.time().await.unwrap().unwrap();
    let day = Duration::from_secs(86_400);
    let tomorrow = now.saturating_add(day);
    store
        .enqueue(Enqueue::all(jobs(1..4)), at(0))
        .await
        .unwrap();
    let running = store.claim(&claim(3), tomorrow).await.unwrap().jobs;
    let reports = running
        .iter()
        .map(|job| report(job, Report::Succeeded(None)));
    store.settle(reports.collect(), tomorrow).await.unwrap();
    assert_eq!(
        store.drop_history(tomorrow).await.unwrap(),
        0,
        "the day is not over"
    );
    let counts = store.counts(tomorrow).await.unwrap();
    assert_eq!(counts[&job(1).queue].succeeded, 3);
    // While another node creates partitions, this one drops none and tries again later.
    let mut dropped = 0;
    for _ in 0..100 {
        dropped += store
            .drop_history(tomorrow.saturating_add(day))
            .await
            .unwrap();
        if dropped >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(dropped, 2, "finished jobs and history of one day");
    assert_eq!(store.get(&[id(1)]).await.unwrap(), [None]);
    assert!(store.counts(tomorrow).await.unwrap().is_empty());
}

/// Returns the error of opening a URL. A migration and a store must give the same one.
async fn cannot_open(url: &str) -> String {
    let options = cluster::options(url);
    let version = PostgresStore::schema_version(&options)
        .await
        .expect_err("it cannot be opened");
    let alone = PostgresStore::connect(options)
        .await
        .expect_err("it cannot be opened");
    for refused in [&version, &alone] {
        assert!(
            matches!(refused, StoreError::CannotOpen { .. }),
            "{refused:?}"
        );
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
    }
    assert_eq!(version.to_string(), alone.to_string());
    alone.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_error_names_the_server_and_the_next_step() {
    let server = cluster::Cluster::start(&[]);
    let address = format!("127.0.0.1:{}", server.port);
    let setup = cluster::client(&server.url("postgres")).await;
    let sql = "create role ann login password 's3cret'; create role bob login;
               create role eve login; revoke create on database postgres from public;";
    setup.batch_execute(sql).await.unwrap();
    let rules = server.folder.join("data/pg_hba.conf");
    let trust = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(
        &rules,
        format!("host all ann all scram-sha-256\nhost all bob all reject\n{trust}"),
    )
    .unwrap();
    setup
        .batch_execute("select pg_reload_conf()")
        .await
        .unwrap();
    for (user, database, words) in [
        (
            "windlass",
            "nowhere",
            "database \"nowhere\" does not exist; create the database",
        ),
        (
            "nobody",
            "postgres",
            "role \"nobody\" does not exist; create the role",
        ),
        (
            "ann:wrong-s3cret",
            "postgres",
            "password authentication failed for user \"ann\"; correct the user and password",
        ),
        ("ann", "postgres", "password missing; correct the URL"),
        ("bob", "postgres", "user \"bob\""),
    ] {
        let mut message = cannot_open(&format!("postgres://{user}@{address}/{database}")).await;
        for _ in 0..100 {
            // The server reloads its rules with some delay.
            if message.contains(words) || user == "windlass" || user == "nobody" {
                break;
            }
            message = cannot_open(&format!("postgres://{user}@{address}/{database}")).await;
        }
        assert!(
            message.contains(words) && message.contains(&address),
            "{message}"
        );
        assert!(
            message.contains(&format!("database {database:?}")),
            "{message}"
        );
    }
    let eve = cluster::options(&format!("postgres://eve@{address}/postgres"));
    let message = PostgresStore::migrate(&eve).await.unwrap_err().to_string();
    assert!(
        message.contains("permission denied") && message.contains("grant"),
        "{message}"
    );
    drop(server);
    let message = cannot_open(&format!("postgres://ann:s3cret@{address}/jobs")).await;
    assert!(
        message.contains(&address) && message.contains("start the server"),
        "{message}"
    );
    let message = cannot_open("postgres://ann:s3cret@no-such-host.invalid/jobs").await;
    assert!(
        message.contains("no-such-host.invalid:5432") && message.contains("check the host"),
        "{message}"
    );
}
