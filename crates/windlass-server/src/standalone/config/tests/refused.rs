//! Tests of invalid configurations and their error messages.

use super::*;

#[test]
fn all_problems_are_reported_at_once_with_line_and_nearest_name() {
    let content = "bnid = \"127.0.0.1:1\"\n\n[http]\nheader_tiem = \"1s\"\nidle_time = 60\nconnections = -1\n[jobs]\nlease = \"1 parsec\"\n[zebra]\nx = 1\n";
    assert_eq!(
        refused(content),
        [
            ":1: `bnid` is not a setting: did you mean `bind`?",
            ":4: `http.header_tiem` is not a setting: did you mean `http.header_time`?",
            ":9: `zebra` is not a setting: `windlass config print` lists all settings",
            ":8: `jobs.lease` must be a duration like \"1m 30s\" (units w d h m s ms us), got \"1 parsec\"",
            ":5: `http.idle_time` must be a duration like \"1m 30s\", got an integer",
            ":6: `http.connections` must be at least 0",
        ]
    );
    // Invalid values do not hide broken rules about other settings.
    assert_eq!(
        refused("jobs.lease_max = \"10s\"\nlog.format = \"xml\"\ntls.key = \"k\"\n"),
        [
            ":2: `log.format` must be `text` or `json`, got \"xml\"",
            "`tls.certificate` is required with `tls.key`",
            ":1: `jobs.lease_max` must be at least `jobs.lease`",
        ]
    );
    assert_eq!(
        refused("http = 3\n"),
        [":1: `http` is a section, not a setting: write `[http]`"]
    );
    let doubled = refused("data = \"a\"\ndata = \"b\"\n");
    assert!(doubled[0].starts_with(":2: duplicate key"), "{doubled:?}");
    let broken = refused("data = \"a\"\nbind = [\n");
    assert!(
        broken[0].starts_with(":2: ") || broken[0].starts_with(":3: "),
        "{broken:?}"
    );
    assert_eq!(
        refused("  \n"),
        [":1: is empty: run `windlass config init` for an example"]
    );
    assert_eq!(refused(b"data = \"a\"\n\xff\xfe"), [":2: must be UTF-8"]);
    let missing = Config::load(&Sources {
        file: Some("/nowhere/windlass.toml".into()),
        ..Sources::default()
    });
    assert!(
        missing
            .unwrap_err()
            .to_string()
            .contains("/nowhere/windlass.toml: cannot be read")
    );
    let unknown = with(&[("WINDLASS_BNID", "x")], &[])
        .unwrap_err()
        .to_string();
    assert!(
        unknown.contains("WINDLASS_BNID: is not a setting: did you mean `WINDLASS_BIND`?"),
        "{unknown}"
    );
}

#[test]
fn what_cannot_work_is_refused_with_the_rule() {
    for (content, rule) in [
        (
            "jobs.lease = \"2s\"\njobs.sweep_every = \"1s\"",
            "`jobs.lease` must be at least three times `jobs.sweep_every`: 3s",
        ),
        ("jobs.lease = \"0s\"", "`jobs.lease` must be from 1s to 1d"),
        (
            "jobs.lease_max = \"10s\"",
            "`jobs.lease_max` must be at least `jobs.lease`",
        ),
        (
            "jobs.sweep_every = \"0s\"",
            "`jobs.sweep_every` must be more than 0",
        ),
        (
            "jobs.retry = \"often\"",
            "`jobs.retry` must be one of standard, ",
        ),
        (
            "jobs.payload_bytes = 0",
            "`jobs.payload_bytes` must be from 1 to ",
        ),
        (
            "http.bulk_bytes = 2000",
            "`jobs.payload_bytes` must be at most `http.bulk_bytes` minus 262144, ",
        ),
        (
            "http.bulk_bytes = 1048576",
            "`jobs.payload_bytes` must be at most `http.bulk_bytes` minus 262144, ",
        ),
        (
            "jobs.retry = { preset = \"standard\", max_attempts = 1001 }",
            "`jobs.retry` is invalid: `max_attempts` must be",
        ),
        (
            "jobs.retry = { preset = \"standard\", often = 1 }",
            "`jobs.retry` is invalid: `often`",
        ),
        (
            "jobs.retry_cap = 0",
            "`jobs.retry_cap` must be from 1 to 1000, got 0",
        ),
        (
            "secrets.master_key = \"abc\"",
            "`secrets.master_key` must be 64 hexadecimal digits",
        ),
        (
            "log.level = \"wran\"",
            "`log.level` must be a level (error, warn, info, debug, trace, off) or a filter like",
        ),
        ("log.level = \"info,wran\"", "`log.level` must be a level"),
        (
            "http_jobs.public_url = \"not a url\"",
            "`http_jobs.public_url` must be a URL like https://jobs.example.org",
        ),
        (
            "http_jobs.public_url = \"ftp://jobs.example\"",
            "`http_jobs.public_url` must be a URL like https://jobs.example.org",
        ),
        (
            "hosts = [\"http://x:1/\"]",
            "`hosts` must be host names like \"jobs.example.org\" or IP addresses",
        ),
        ("hosts = [\"*\"]", "`hosts` must be host names like"),
        ("hosts = [\"x:80\"]", "`hosts` must be host names like"),
        (
            "http.connections = 0",
            "`http.connections` must be from 1 to 1000000, got 0",
        ),
        (
            "http.connections = 10",
            "`http.connections_per_address` must be at most `http.connections`",
        ),
        (
            "http.waiting_max = 0",
            "`http.waiting_max` must be from 1 to 1000000, got 0",
        ),
        (
            "retention.finished = \"12h\"",
            "`retention.finished` must be a whole number of days, at least one, like \"7d\"",
        ),
        (
            "retention.finished = \"0d\"",
            "`retention.finished` must be a whole number of days",
        ),
        (
            "retention.dead = \"36h\"",
            "`retention.dead` must be a whole number of days",
        ),
        (
            "retention.queues.mail = \"1h\"",
            "`retention.queues` must be a whole number of days",
        ),
        (
            "retention.queues = { \"a b\" = \"1d\" }",
            "`retention.queues` has an invalid queue name, which must be",
        ),
        (
            "tls.key = \"k\"",
            "`tls.certificate` is required with `tls.key`",
        ),
        (
            "tls.certificate = \"c\"",
            "`tls.key` is required with `tls.certificate`",
        ),
        (
            "log.level = \"loud=very\"",
            "`log.level` must be a level or a filter",
        ),
        (
            "log.format = \"xml\"",
            "`log.format` must be `text` or `json`, got \"xml\"",
        ),
        (
            "store = \"mysql://x\"",
            "`store` must begin with `sqlite:`, `postgres://` or `memory:`",
        ),
        (
            "bind = \"8080\"",
            "`bind` must be an address and a port like 127.0.0.1:8080, got \"8080\"",
        ),
        (
            concat!(
                "secrets.old_keys = [\"00112233445566778899aabbccddeeff",
                "00112233445566778899aabbccddeeff\"]"
            ),
            "`secrets.old_keys` need a current `secrets.master_key` too",
        ),
        (
            "secrets.master_key = { env = \"NOT_SET\" }",
            "`secrets.master_key` names the variable NOT_SET, which is not set",
        ),
        (
            "secrets.master_key = { path = \"x\" }",
            "`secrets.master_key` must be a secret: ",
        ),
        (
            "secrets.master_key = { file = \"/nowhere\" }",
            "`secrets.master_key` names the file /nowhere, which cannot be read",
        ),
    ] {
        let problems = refused(content);
        assert!(
            problems.iter().any(|problem| problem.contains(rule)),
            "{content}: {problems:?}"
        );
    }
}

#[test]
fn a_public_bind_needs_tls_a_proxy_or_a_plain_word() {
    for public in [
        "0.0.0.0:80",
        "[::]:80",
        "192.0.2.1:80",
        "[::ffff:192.0.2.1]:80",
    ] {
        let problem = with(&[], &[("bind", public)]).unwrap_err().to_string();
        assert!(
            problem.contains("--bind: `bind` is reachable from other machines without TLS"),
            "{problem}"
        );
        for covered in [("insecure", "true"), ("behind_proxy", "true")] {
            assert!(with(&[], &[("bind", public), covered]).is_ok());
        }
        let tls = [("bind", public), ("tls.key", "k"), ("tls.certificate", "c")];
        assert!(with(&[], &tls).is_ok());
    }
    for private in [
        "127.0.0.1:80",
        "[::1]:80",
        "127.9.9.9:0",
        "[::ffff:127.0.0.1]:80",
    ] {
        assert!(with(&[], &[("bind", private)]).is_ok(), "{private}");
    }
}

#[test]
fn variables_that_tell_where_a_service_is_are_none_of_ours_and_near_misses_are_refused() {
    let service = [
        ("WINDLASS_SERVICE_HOST", "10.0.0.7"),
        ("WINDLASS_SERVICE_PORT", "8080"),
        ("WINDLASS_SERVICE_PORT_HTTP", "8080"),
        ("WINDLASS_PORT", "tcp://10.0.0.7:8080"),
        ("WINDLASS_PORT_8080_TCP", "tcp://10.0.0.7:8080"),
        ("WINDLASS_PORT_8080_TCP_PROTO", "tcp"),
        ("WINDLASS_PORT_8080_TCP_PORT", "8080"),
        ("WINDLASS_PORT_8080_TCP_ADDR", "10.0.0.7"),
        ("WINDLASS_SERVER_SERVICE_HOST", "10.0.0.8"),
        ("WINDLASS_SERVER_PORT_80_TCP", "tcp://10.0.0.8:80"),
    ];
    assert!(with(&service, &[]).is_ok());
    for typo in ["WINDLASS_PORTS", "WINDLASS_PORT_HTTP", "WINDLASS_BIND_PORT"] {
        let environment = [&service[..], &[(typo, "8080")]].concat();
        let message = with(&environment, &[]).unwrap_err().to_string();
        assert!(
            message.contains(&format!("{typo}: is not a setting")),
            "{message}"
        );
    }
    let alone = with(&[("WINDLASS_PORT", "8080")], &[]).unwrap_err();
    assert!(
        alone
            .to_string()
            .contains("WINDLASS_PORT: is not a setting")
    );
}

#[test]
fn a_problem_names_the_source_as_the_user_wrote_it() {
    let (_dir, secret) = file("memory:\n");
    let twice = [
        ("WINDLASS_STORE", "memory:"),
        ("WINDLASS_STORE_FILE", secret.to_str().unwrap()),
    ];
    let message = with(&twice, &[]).unwrap_err().to_string();
    assert!(
        message
            .contains("WINDLASS_STORE_FILE: conflicts with WINDLASS_STORE: set only one of them"),
        "{message}"
    );
    let log = with(&[("WINDLASS_LOG", "debug")], &[]).unwrap_err();
    assert!(log.to_string().contains("WINDLASS_LOG: is not a setting"));
    let target = with(&[], &[("http_jobs.allow_targets", "everywhere")]).unwrap_err();
    assert!(
        target
            .to_string()
            .contains("--allow-target: `http_jobs.allow_targets`"),
        "{target}"
    );
}

#[test]
fn problems_with_files_are_reported_together_with_all_others() {
    let (_dir, path) = file(
        "bind = \"x\"\ntls.certificate = \"/nowhere/cert.pem\"\ntls.key = \"/nowhere/key.pem\"\nhttp_jobs.ca_file = \"/nowhere/ca.pem\"\n",
    );
    let sources = Sources {
        file: Some(path),
        ..Sources::default()
    };
    let message = Config::load_for_server(&sources).unwrap_err().to_string();
    for problem in [
        ":1: `bind` must be an address",
        ":2: `tls.certificate` cannot be used: cannot read the certificate in /nowhere/cert.pem",
        ":4: `http_jobs.ca_file` names the file /nowhere/ca.pem, which cannot be read",
    ] {
        assert!(message.contains(problem), "{problem}: {message}");
    }
    let message = Config::load(&sources).unwrap_err();
    assert_eq!(
        message.0.len(),
        1,
        "other commands do not need the files: {message}"
    );
}
