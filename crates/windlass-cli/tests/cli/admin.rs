//! `windlass keys`, `secrets` and `audit`: beside a store, and through a running server.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use crate::support::{Server, command, printed, session};
use serde_json::{Value, json};

const MASTER_KEY: &str = "WINDLASS_SECRETS_MASTER_KEY";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A command with variables and something on stdin; its exit code, and what it said.
fn run(variables: &[(&str, &str)], arguments: &[&str], stdin: &[u8]) -> (i32, String) {
    let mut child = command(arguments);
    child.envs(variables.iter().map(|(name, value)| (name, value.trim())));
    let piped = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    // One that refuses early does not read all of it.
    let _ = child.stdin.take().expect("its stdin").write_all(stdin);
    let done = child.wait_with_output().expect("its end");
    let told = [done.stdout, done.stderr].concat();
    let code = done.status.code().unwrap_or(-1);
    (code, String::from_utf8_lossy(&told).into_owned())
}

#[test]
fn a_lost_master_key_is_no_dead_end() {
    let folder = folder();
    let data = text(folder.path());
    let (lost, new) = (
        printed(&["secrets", "new-key"]),
        printed(&["secrets", "new-key"]),
    );
    let put = ["secrets", "put", "hook", "--any-host", "--data", data];
    assert_eq!(run(&[(MASTER_KEY, &lost)], &put, b"s3cret").0, 0);
    let (code, told) = run(&[(MASTER_KEY, &new)], &put, b"s3cret");
    assert!(
        code == 1 && told.contains("was encrypted with the master key"),
        "{told}"
    );
    for keys in [&[][..], &[(MASTER_KEY, new.as_str())]] {
        let listed = run(keys, &["secrets", "list", "--data", data], b"");
        assert_eq!(listed, (0, "hook  any host\n".to_owned()));
    }
    let remove = ["secrets", "remove", "hook", "--data", data];
    assert_eq!(run(&[], &remove, b"").0, 0);
    let mut serve = command(&["serve", "--bind", "127.0.0.1:0", "--data", data]);
    serve.env(MASTER_KEY, new.trim());
    assert!(Server::spawn(serve).stop().0.success());
}

#[test]
fn commands_that_look_make_no_store() {
    let folder = folder();
    let typo = folder.path().join("typo");
    let data = ["--data", text(&typo)];
    let commands = [
        &["keys", "list"][..],
        &["keys", "revoke", "5CkDn0V9tQ1x"],
        &["audit", "list"],
        &["audit", "verify"],
        &["secrets", "list"],
        &["secrets", "remove", "hook"],
        &["secrets", "rotate"],
    ];
    let commands = commands.map(|arguments| [arguments, &data].concat());
    let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
    insta::assert_snapshot!(session(folder.path(), &commands));
    assert!(!typo.exists(), "looking makes nothing");
    let told = printed(&[&["doctor"][..], &data].concat());
    assert!(told.contains("not there yet, a start makes it"), "{told}");
    assert!(!typo.exists(), "the doctor makes nothing");
}

#[test]
fn a_secret_that_is_too_long_or_empty_is_refused_and_none_is_cut() {
    let folder = folder();
    let key = printed(&["secrets", "new-key"]);
    let data = text(folder.path());
    let most = vec![b'x'; 64 * 1024];
    let with = |end: &[u8]| [&most[..], end].concat();
    for (secret, code) in [
        (Vec::new(), 2),
        (b"\n".to_vec(), 2),
        (vec![0xff], 2),
        (with(b"y"), 2),
        (with(b"\r\nmore"), 2),
        (with(b"\r\n\r\n"), 2),
        (with(b"\r\n"), 0),
        (most.clone(), 0),
    ] {
        let put = ["secrets", "put", "hook", "--any-host", "--data", data];
        let (left, told) = run(&[(MASTER_KEY, &key)], &put, &secret);
        assert_eq!(left, code, "{} bytes: {told}", secret.len());
        assert!(code == 0 || told.contains("`secret` must"), "{told}");
    }
    // The path of one with this name would be the path of an action.
    let rotate = ["secrets", "put", "rotate", "--any-host", "--data", data];
    let (code, told) = run(&[(MASTER_KEY, &key)], &rotate, b"s3cret");
    assert!(code == 2 && told.contains("must not be `rotate`"), "{told}");
}

#[test]
fn a_running_server_is_asked_for_secrets_keys_and_the_audit_log() {
    let folder = folder();
    let data = folder.path().join("data");
    let admin = printed(&[
        "keys",
        "create",
        "--name",
        "admin",
        "--scope",
        "admin",
        "--data",
        text(&data),
    ]);
    let master = printed(&["secrets", "new-key"]);
    let arguments = ["serve", "--bind", "127.0.0.1:0", "--data", text(&data)];
    let mut serve = command(&arguments);
    serve.env(MASTER_KEY, master.trim());
    let server = Server::spawn(serve);
    // Once by the flag, and once by the variable.
    let with_key = [("WINDLASS_KEY", admin.as_str())];
    let asked = |arguments: &[&str], stdin: &[u8]| {
        let url = ["--url", server.url.as_str()];
        run(&with_key, &[arguments, &url].concat(), stdin)
    };
    let hosts = [
        "--host",
        "API.example.com",
        "--host",
        "*.hooks.example:8443",
    ];
    let put = [&["secrets", "put", "hook"][..], &hosts].concat();
    let (code, told) = asked(&put, b"s3cret\n");
    assert_eq!(code, 0, "{told}");
    let by_variable = [with_key[0], ("WINDLASS_URL", server.url.as_str())];
    let listed = run(&by_variable, &["secrets", "list"], b"");
    let row = "hook  api.example.com *.hooks.example:8443\n";
    assert_eq!(listed, (0, row.to_owned()));
    // A secret without hosts is refused, unless every host is meant.
    let (code, told) = asked(&["secrets", "put", "other"], b"s3cret");
    assert!(code == 2 && told.contains("--any-host"), "{told}");
    let (code, told) = asked(&["secrets", "put", "other", "--host", "*"], b"s3cret");
    assert!(code == 2 && told.contains("must be a host"), "{told}");
    let (code, told) = asked(&["secrets", "rotate"], b"");
    assert!(code == 0 && told.starts_with("0 secrets"), "{told}");
    // What breaks a rule leaves 2 through a server too, and names stay one part of a path.
    let (code, told) = asked(
        &["secrets", "put", "a/../rotate?x", "--any-host"],
        b"s3cret",
    );
    assert!(code == 2 && told.contains("`name` must be"), "{told}");
    let (code, told) = asked(
        &["--json", "secrets", "put", "a b", "--any-host"],
        b"s3cret",
    );
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((code, &told["error"]["field"]), (2, &json!("/name")));
    let (code, told) = asked(&["keys", "revoke", "a/b#c"], b"");
    assert!(code == 2 && told.contains("`id` must be"), "{told}");
    for path in ["/api/v1/secrets/a%00b", "/api/v1/keys/5CkDn0V9tQ1%00"] {
        let (status, problem) = server.ask("DELETE", path, Some(admin.trim()), None);
        assert_eq!(
            (status, &problem["code"]),
            (422, &json!("invalid")),
            "{path}"
        );
    }
    let (code, told) = asked(&["secrets", "remove", "hook"], b"");
    assert_eq!(code, 0, "{told}");
    assert_eq!(asked(&["secrets", "list"], b""), (0, String::new()));
    // The audit log, in parts and with a hash that was kept.
    let all = asked(&["audit", "list"], b"").1;
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 4, "{all}");
    assert!(
        all.contains("*.hooks.example:8443"),
        "the audit log names the hosts: {all}"
    );
    let first = |line: &str| line.split_whitespace().next().unwrap_or("").to_owned();
    let numbers: Vec<String> = lines.iter().map(|line| first(line)).collect();
    assert_eq!(numbers, ["4", "3", "2", "1"], "newest first");
    let part = asked(&["audit", "list", "--limit", "2"], b"").1;
    let (rows, more) = part
        .trim_end()
        .rsplit_once('\n')
        .expect("a line about more");
    assert_eq!(rows.lines().collect::<Vec<_>>(), lines[..2]);
    let cursor = more.strip_prefix("more: --cursor ").expect("a cursor");
    let rest = asked(&["audit", "list", "--cursor", cursor], b"").1;
    assert_eq!(rest.lines().collect::<Vec<_>>(), lines[2..]);
    // Each filter, through the server; beside the store below.
    let from = lines[1].split_whitespace().nth(1).expect("a time");
    let filters: [(&[&str], &[&str]); 6] = [
        (&["--action", "secret.remove"], &lines[..1]),
        (&["--action", "secret."], &lines[..3]),
        (
            &["--key", "admin", "--target", "hook"],
            &[lines[0], lines[2]],
        ),
        (&["--key", "local"], &lines[3..]),
        (&["--from", from], &lines[..2]),
        (&["--before", from], &lines[2..]),
    ];
    for (filter, expected) in filters {
        let listed = asked(&[&["audit", "list"], filter].concat(), b"").1;
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected, "{filter:?}");
    }
    let verified = asked(&["audit", "verify"], b"").1;
    let hash = verified.trim().rsplit(' ').next().expect("a hash");
    assert_eq!(asked(&["audit", "verify", "--known", hash], b"").0, 0);
    let (code, told) = asked(&["audit", "verify", "--known", "0123&limit=1"], b"");
    assert!(code == 1 && told.contains("is missing"), "{told}");
    assert!(server.stop().0.success());
    // The same beside the store.
    let beside = |more: &[&str]| {
        let arguments = [&["audit", "list", "--data", text(&data)], more].concat();
        printed(&arguments)
    };
    assert_eq!(beside(&["--limit", "2"]), part, "the limit");
    assert_eq!(beside(&["--cursor", cursor]), rest);
    for (filter, expected) in filters {
        let listed = beside(filter);
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

#[test]
fn the_first_key_of_an_open_server_is_an_admins() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    let reader = json!({"name": "reader", "scopes": ["read"]});
    let (status, problem) = server.ask("POST", "/api/v1/keys", None, Some(&reader));
    assert_eq!(
        (status, &problem["errors"][0]["pointer"]),
        (422, &json!("/scopes"))
    );
    assert_eq!(
        server.ask("GET", "/api/v1/keys", None, None).0,
        200,
        "still open"
    );
    let admin = json!({"name": "admin", "scopes": ["admin"]});
    let admin = server.post("/api/v1/keys", &admin);
    let admin = admin["key"].as_str().expect("a key");
    let made = server.ask("POST", "/api/v1/keys", Some(admin), Some(&reader));
    assert_eq!(made.0, 201);
}

#[test]
fn a_refusal_names_the_flag_that_was_given() {
    let folder = folder();
    let create = [
        "keys",
        "create",
        "--name",
        "a",
        "--data",
        text(folder.path()),
    ];
    insta::assert_snapshot!(session(
        folder.path(),
        &[
            &[&create[..], &["--scope", "everything"]].concat(),
            &[&create[..], &["--scope", "read"]].concat(),
            &[&create[..], &["--scope", "admin", "--expires-in", "soon"]].concat(),
        ],
    ));
}
