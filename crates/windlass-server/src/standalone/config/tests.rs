//! Tests of loading and printing configurations.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;
use tempfile::TempDir;
use windlass_core::retry::RetryPolicy;

use super::*;

mod refused;

/// Creates a file that only its owner can read.
fn file(content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("windlass.toml");
    std::fs::write(&path, content).expect("a file");
    allow(&path, 0o600);
    (dir, path)
}

fn allow(path: &std::path::Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("permissions");
}

fn load(content: impl AsRef<[u8]>) -> Result<Config, ConfigError> {
    let (_dir, path) = file(content);
    Config::load(&Sources {
        file: Some(path),
        ..Sources::default()
    })
}

/// Returns the problems of an invalid file, without its directory.
fn refused(content: impl AsRef<[u8]>) -> Vec<String> {
    let problems = load(content).expect_err("a problem").0;
    let texts = problems.iter().map(|problem| {
        let text = problem.to_string();
        text.rsplit_once("/windlass.toml")
            .map_or(text.clone(), |(_, rest)| rest.to_owned())
    });
    texts.collect()
}

fn with(
    environment: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Result<Config, ConfigError> {
    Config::load(&Sources {
        file: None,
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
        flags: flags
            .iter()
            .map(|(key, value)| (*key, (*value).into()))
            .collect(),
    })
}

const MASTER_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Another value than the default of every setting, which goes together with all the other ones.
const OTHERS: &[(&str, &str)] = &[
    ("bind", r#""0.0.0.0:9000""#),
    ("data", r#""/srv/windlass""#),
    ("store", r#""postgres://ann@db/jobs""#),
    ("behind_proxy", "true"),
    ("insecure", "true"),
    ("hosts", r#"["jobs.example"]"#),
    ("tls.certificate", r#""cert.pem""#),
    ("tls.key", r#""key.pem""#),
    ("log.format", r#""json""#),
    ("log.level", r#""warn,windlass_server=debug""#),
    ("jobs.lease", r#""45s""#),
    ("jobs.lease_max", r#""2h""#),
    ("jobs.sweep_every", r#""1s""#),
    ("jobs.retry", r#""patient""#),
    ("jobs.retry_cap", "7"),
    ("jobs.payload_bytes", "2000"),
    ("http.bulk_bytes", "400000"),
    ("http.idempotency_keys", "5000"),
    ("http.header_time", r#""11s""#),
    ("http.header_bytes", "33000"),
    ("http.header_fields", "90"),
    ("http.body_time", r#""31s""#),
    ("http.body_bytes_per_second", "1000"),
    ("http.write_time", r#""32s""#),
    ("http.write_bytes", "1001"),
    ("http.idle_time", r#""1m 30s""#),
    ("http.connections", "500"),
    ("http.connections_per_address", "50"),
    ("http.streams", "10"),
    ("http.wait_max", r#""20s""#),
    ("http.waiting_max", "7"),
    ("http_jobs.run", "false"),
    ("http_jobs.concurrency", "7"),
    ("http_jobs.per_host", "3"),
    ("http_jobs.allow_targets", r#"["10.0.0.0/8"]"#),
    ("http_jobs.connect_timeout", r#""2s""#),
    ("http_jobs.outcome_retry_max", r#""3m""#),
    ("http_jobs.ca_file", r#""ca.pem""#),
    ("http_jobs.public_url", r#""https://jobs.example""#),
    ("dashboard.serve", "false"),
    ("dashboard.environment", r#""production""#),
    ("dashboard.colour", r#""red""#),
    ("dashboard.read_only", "true"),
    ("dashboard.proxies", r#"["10.0.0.5/32"]"#),
    ("dashboard.proxy_secret", r#"{ env = "OLD" }"#),
    ("dashboard.proxy_secret_header", r#""x-secret""#),
    ("dashboard.user_header", r#""x-user""#),
    ("dashboard.groups_header", r#""x-groups""#),
    (
        "dashboard.people",
        r#"{ "group:ops" = "admin", "mara" = "operate" }"#,
    ),
    ("retention.finished", r#""8d""#),
    ("retention.dead", r#""30d""#),
    ("retention.queues", r#"{ "mail" = "14d" }"#),
    ("retention.replaced_payloads", r#""2d""#),
    ("shutdown.grace", r#""5s""#),
    ("secrets.master_key", r#"{ env = "MASTER" }"#),
    ("secrets.old_keys", r#"[{ env = "OLD" }]"#),
];

fn others() -> impl Iterator<Item = (&'static str, &'static str)> {
    OTHERS.iter().copied()
}

#[test]
fn every_setting_is_read_from_a_file_and_shown_with_its_line() {
    assert_eq!(
        others().count(),
        SETTINGS.len(),
        "each setting has another value above"
    );
    let content: Vec<_> = others()
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    let (_dir, path) = file(content.join("\n"));
    let environment = [("MASTER", MASTER_KEY), ("OLD", MASTER_KEY)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = Config::load(&Sources {
        file: Some(path.clone()),
        environment: environment.into(),
        flags: Vec::new(),
    })
    .unwrap();
    for (place, ((key, wanted), (shown_key, shown))) in others().zip(config.shown()).enumerate() {
        assert_eq!((shown_key, shown.as_str()), (key, wanted));
        let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
        assert_ne!(setting.default, wanted, "{key}");
        let line = place + 1;
        assert_eq!(
            config.origin(key),
            Origin::File {
                path: path.clone(),
                line
            }
        );
    }
}

#[test]
fn the_environment_wins_over_the_file_and_flags_win_over_both() {
    let (_dir, path) = file("bind = \"127.0.0.1:1\"\ndata = \"file\"\nstore = \"sqlite:file\"");
    let config = Config::load(&Sources {
        file: Some(path),
        environment: vec![
            ("WINDLASS_BIND".into(), "127.0.0.1:2".into()),
            ("WINDLASS_DATA".into(), "variable".into()),
            ("PATH".into(), "/bin".into()),
        ],
        flags: vec![("bind", "localhost:3".into())],
    })
    .unwrap();
    assert_eq!(config.bind.to_string(), "127.0.0.1:3");
    assert_eq!(config.origin("bind"), Origin::Flag("--bind".into()));
    assert_eq!(config.data, PathBuf::from("variable"));
    assert_eq!(config.store.as_ref().unwrap().reveal(), "sqlite:file");
    assert_eq!(config.origin("log.level"), Origin::Default);
}

#[test]
fn every_setting_has_a_variable_that_is_read_as_text() {
    let plain = |value: &str| match value.strip_prefix('"') {
        Some(text) => text.trim_end_matches('"').to_owned(),
        None => value.replace(['[', ']', '{', '}', '"', ' '], ""),
    };
    for (key, value) in others() {
        let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
        let text = if setting.secret && value.contains("env") {
            MASTER_KEY.to_owned()
        } else {
            plain(value)
        };
        let mut environment = vec![(setting.variable(), text)];
        // What another rule wants beside it.
        for (name, value) in [
            ("WINDLASS_BEHIND_PROXY", "true"),
            ("WINDLASS_TLS_KEY", "k"),
            ("WINDLASS_TLS_CERTIFICATE", "c"),
            ("WINDLASS_JOBS_PAYLOAD_BYTES", "1000"),
            ("WINDLASS_HTTP_CONNECTIONS_PER_ADDRESS", "5"),
            ("WINDLASS_SECRETS_MASTER_KEY", MASTER_KEY),
            ("WINDLASS_DASHBOARD_PROXIES", "10.0.0.5/32"),
            ("WINDLASS_DASHBOARD_PROXY_SECRET", "hush"),
        ] {
            if !environment.iter().any(|(known, _)| known == name) {
                environment.push((name.to_owned(), value.to_owned()));
            }
        }
        let sources = Sources {
            environment,
            ..Sources::default()
        };
        let config = Config::load(&sources).unwrap();
        assert_eq!(config.origin(key), Origin::Variable(setting.variable()));
    }
}

#[test]
fn secrets_that_others_may_read_are_refused_and_no_secret_is_shown() {
    let content = "store = \"postgres://ann:s3cret@db/jobs\"\n";
    let (_dir, path) = file(content);
    let sources = |path: &PathBuf| Sources {
        file: Some(path.clone()),
        ..Sources::default()
    };
    let config = Config::load(&sources(&path)).unwrap();
    assert!(!format!("{config:?} {} {}", config.to_text(), config.to_json()).contains("s3cret"));
    allow(&path, 0o644);
    let problem = Config::load(&sources(&path)).unwrap_err().to_string();
    assert!(
        problem.contains(
            ":1: `store` is a secret in a file that other users may read: run `chmod 600 "
        ),
        "{problem}"
    );
    let (_dir, plain) = file("store = \"postgres://ann@db/jobs\"\n");
    allow(&plain, 0o644);
    assert!(
        Config::load(&sources(&plain)).is_ok(),
        "nothing secret in it"
    );
    // By reference to a file, which must be private itself; a variable may name it too.
    let (_secret_dir, secret) = file("postgres://ann:s3cret@db/jobs\n");
    let (_dir, by_file) = file(format!("store = {{ file = {secret:?} }}"));
    allow(&by_file, 0o644);
    let config = Config::load(&sources(&by_file)).unwrap();
    assert_eq!(
        config.store.as_ref().unwrap().reveal(),
        "postgres://ann:s3cret@db/jobs"
    );
    assert!(config.to_text().contains("{ file = "));
    let named = with(&[("WINDLASS_STORE_FILE", secret.to_str().unwrap())], &[]).unwrap();
    assert_eq!(
        named.store.unwrap().reveal(),
        "postgres://ann:s3cret@db/jobs"
    );
    allow(&secret, 0o640);
    let problem = Config::load(&sources(&by_file)).unwrap_err().to_string();
    assert!(
        problem.contains("which other users may read: run `chmod 600"),
        "{problem}"
    );
    let flagged = with(&[], &[("store", "postgres://ann:s3cret@db/jobs")]).unwrap();
    assert!(
        flagged.warnings[0].contains("--store contains a secret"),
        "{:?}",
        flagged.warnings
    );
}

#[test]
fn a_retry_policy_is_a_name_a_table_or_json_and_survives_a_round_trip() {
    let policy = serde_json::json!({"preset": "full-jitter", "max_retries": 9, "base_ms": 250});
    let wanted = RetryPolicy::from_json(&policy).unwrap();
    let table = "{ preset = \"full-jitter\", max_retries = 9, base_ms = 250 }";
    let in_file = load(format!("jobs.retry = {table}")).unwrap();
    assert_eq!(in_file.retry, wanted);
    let section = load(
        "[jobs.retry]\npreset = \"full-jitter\"\nmax_retries = 9\nbase_ms = 250\n[http]\nstreams = 7\n",
    );
    assert_eq!(section.unwrap().retry, wanted);
    let variable = with(&[("WINDLASS_JOBS_RETRY", &policy.to_string())], &[]).unwrap();
    assert_eq!(variable.retry, wanted);
    let shown = variable.shown();
    let shown = shown.iter().find(|(key, _)| *key == "jobs.retry").unwrap();
    let again = load(format!("jobs.retry = {}", shown.1)).unwrap();
    assert_eq!(again.retry, wanted);
    assert_eq!(
        variable.to_json()["jobs.retry"]["value"],
        wanted.to_json(),
        "values are JSON, not TOML in a text"
    );
}

#[test]
fn the_example_file_lists_every_default_and_is_valid() {
    let example = Config::example();
    let defaults = with(&[], &[]).unwrap();
    let loaded = load(&example).unwrap();
    assert_eq!(
        loaded.shown(),
        defaults.shown(),
        "as it is, it changes nothing"
    );
    let settings: Vec<&str> = example
        .lines()
        .map(|line| {
            line.strip_prefix("# ")
                .filter(|rest| rest.contains(" = "))
                .unwrap_or(line)
        })
        .collect();
    let spelled_out = load(settings.join("\n")).unwrap();
    assert_eq!(
        spelled_out.shown(),
        defaults.shown(),
        "the example file shows the real defaults"
    );
    for setting in SETTINGS {
        assert_ne!(
            spelled_out.origin(setting.key),
            Origin::Default,
            "{}",
            setting.key
        );
    }
}

#[test]
fn printed_values_show_their_source() {
    let config = with(
        &[("WINDLASS_LOG_LEVEL", "debug")],
        &[("bind", "127.0.0.1:1")],
    )
    .unwrap();
    let text = config.to_text();
    assert_eq!(text.lines().count(), SETTINGS.len());
    assert!(
        text.contains("# --bind") && text.contains("# WINDLASS_LOG_LEVEL"),
        "{text}"
    );
    assert_eq!(
        config.to_json()["log.level"]["origin"],
        "WINDLASS_LOG_LEVEL"
    );
    let json = config.to_json();
    assert_eq!(json["insecure"]["value"], false);
    assert_eq!(json["http.streams"]["value"], 100);
    assert_eq!(json["hosts"]["value"], serde_json::json!([]));
    assert_eq!(json["bind"]["value"], "127.0.0.1:1");
    assert_eq!(json["retention.dead"]["value"], serde_json::Value::Null);
}

proptest! {
    #[test]
    fn random_files_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = load(bytes);
    }

    #[test]
    fn random_lines_are_read_or_refused(
        key in prop::sample::select(SETTINGS.iter().map(|setting| setting.key).collect::<Vec<_>>()),
        value in "\\PC{0,40}",
    ) {
        let _ = load(format!("{key} = {value}"));
        let _ = load(format!("{key} = {value:?}"));
        let _ = with(&[], &[(key, &value)]);
    }
}
