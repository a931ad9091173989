//! `windlass keys`, `secrets` and `audit`, on a store and through a running server.

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

/// Runs a command with environment variables and stdin. Returns its exit code and all its output.
fn run(variables: &[(&str, &str)], arguments: &[&str], stdin: &[u8]) -> (i32, String) {
    let mut child = command(arguments);
    child.envs(variables.iter().map(|(name, value)| (name, value.trim())));
    let piped = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    // A command that fails early does not read all of stdin.
    let _ = child.stdin.take().expect("its stdin").write_all(stdin);
    let done = child.wait_with_output().expect("its end");
    let output = [done.stdout, done.stderr].concat();
    let code = done.status.code().unwrap_or(-1);
    (code, String::from_utf8_lossy(&output).into_owned())
}

#[test]
fn secrets_of_a_lost_master_key_can_be_listed_and_deleted() {
    let folder = folder();
    let data = text(folder.path());
    let (lost, new) = (
        printed(&["secrets", "new-key"]),
        printed(&["secrets", "new-key"]),
    );
    let put = ["secrets", "put", "hook", "--any-host", "--data", data];
    assert_eq!(run(&[(MASTER_KEY, &lost)], &put, b"s3cret").0, 0);
    let (code, output) = run(&[(MASTER_KEY, &new)], &put, b"s3cret");
    assert!(
        code == 1 && output.contains("was encrypted with the master key"),
        "{output}"
    );
    for keys in [&[][..], &[(MASTER_KEY, new.as_str())]] {
        let listed = run(keys, &["secrets", "list", "--data", data], b"");
        assert_eq!(listed, (0, "NAME  HOSTS\nhook  any host\n".to_owned()));
    }
    let remove = ["secrets", "remove", "hook", "--data", data];
    assert_eq!(run(&[], &remove, b"").0, 0);
    let mut serve = command(&["serve", "--bind", "127.0.0.1:0", "--data", data]);
    serve.env(MASTER_KEY, new.trim());
    assert!(Server::spawn(serve).stop().0.success());
}

#[test]
fn commands_that_only_read_create_no_store() {
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
    assert!(!typo.exists(), "reading creates nothing");
    let output = printed(&[&["doctor"][..], &data].concat());
    assert!(
        output.contains("does not exist yet; `windlass serve` creates it"),
        "{output}"
    );
    assert!(!typo.exists(), "doctor creates nothing");
}

#[test]
fn secrets_put_refuses_a_secret_that_is_empty_or_too_long() {
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
        let (left, output) = run(&[(MASTER_KEY, &key)], &put, &secret);
        assert_eq!(left, code, "{} bytes: {output}", secret.len());
        assert!(code == 0 || output.contains("`secret` must"), "{output}");
    }
    // The URL of a secret with this name would be the URL of an action.
    let rotate = ["secrets", "put", "rotate", "--any-host", "--data", data];
    let (code, output) = run(&[(MASTER_KEY, &key)], &rotate, b"s3cret");
    assert!(
        code == 2 && output.contains("must not be `rotate`"),
        "{output}"
    );
}

#[test]
fn secrets_keys_and_audit_work_through_a_running_server() {
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
    // The server is named by the flag and, below, by the variable.
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
    let (code, output) = asked(&put, b"s3cret\n");
    assert_eq!(code, 0, "{output}");
    let by_variable = [with_key[0], ("WINDLASS_URL", server.url.as_str())];
    let listed = run(&by_variable, &["secrets", "list"], b"");
    let row = "NAME  HOSTS\nhook  api.example.com *.hooks.example:8443\n";
    assert_eq!(listed, (0, row.to_owned()));
    // A secret needs hosts or `--any-host`.
    let (code, output) = asked(&["secrets", "put", "other"], b"s3cret");
    assert!(code == 2 && output.contains("--any-host"), "{output}");
    let (code, output) = asked(&["secrets", "put", "other", "--host", "*"], b"s3cret");
    assert!(code == 2 && output.contains("must be a host"), "{output}");
    let (code, output) = asked(&["secrets", "rotate"], b"");
    assert!(
        code == 0 && output.starts_with("re-encrypted 0 secrets"),
        "{output}"
    );
    // An invalid value exits with 2 through a server too, and names are escaped in the URL.
    let (code, output) = asked(
        &["secrets", "put", "a/../rotate?x", "--any-host"],
        b"s3cret",
    );
    assert!(code == 2 && output.contains("`name` must be"), "{output}");
    let (code, output) = asked(
        &["--json", "secrets", "put", "a b", "--any-host"],
        b"s3cret",
    );
    let output: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!((code, &output["error"]["field"]), (2, &json!("/name")));
    let (code, output) = asked(&["keys", "revoke", "a/b#c"], b"");
    assert!(code == 2 && output.contains("`id` must be"), "{output}");
    for path in ["/api/v1/secrets/a%00b", "/api/v1/keys/5CkDn0V9tQ1%00"] {
        let (status, problem) = server.ask("DELETE", path, Some(admin.trim()), None);
        assert_eq!(
            (status, &problem["code"]),
            (422, &json!("invalid")),
            "{path}"
        );
    }
    let (code, output) = asked(&["secrets", "remove", "hook"], b"");
    assert_eq!(code, 0, "{output}");
    assert_eq!(
        asked(&["secrets", "list"], b""),
        (0, "no secrets\n".to_owned())
    );
    // The audit log, page by page and with a known hash.
    let audit = |more: &[&str]| {
        let list = ["audit", "list", "-o", "ndjson"];
        asked(&[&list[..], more].concat(), b"").1
    };
    let all = audit(&[]);
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 4, "{all}");
    assert!(
        all.contains("*.hooks.example:8443"),
        "the audit log names the hosts: {all}"
    );
    let record = |line: &str| serde_json::from_str::<Value>(line).expect("a record");
    let numbers: Vec<Value> = lines
        .iter()
        .map(|line| record(line)["number"].clone())
        .collect();
    assert_eq!(numbers, [4, 3, 2, 1], "newest first");
    let part = audit(&["--limit", "2"]);
    let (rows, more) = part
        .trim_end()
        .rsplit_once('\n')
        .expect("a line about more");
    assert_eq!(rows.lines().collect::<Vec<_>>(), lines[..2]);
    let cursor = more
        .strip_prefix("more records: --cursor ")
        .expect("a cursor");
    let rest = audit(&["--cursor", cursor]);
    assert_eq!(rest.lines().collect::<Vec<_>>(), lines[2..]);
    // Each filter through the server; below, on the store.
    let from = record(lines[1]);
    let from = from["at"].as_str().expect("a time");
    let filters: [(&[&str], &[&str]); 6] = [
        (&["--action", "secret.remove"], &lines[..1]),
        (&["--action", "secret."], &lines[..3]),
        (
            &["--key", "admin", "--target", "hook"],
            &[lines[0], lines[2]],
        ),
        (&["--key", "store"], &lines[3..]),
        (&["--from", from], &lines[..2]),
        (&["--before", from], &lines[2..]),
    ];
    for (filter, expected) in filters {
        let listed = audit(filter);
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected, "{filter:?}");
    }
    let verified = asked(&["audit", "verify"], b"").1;
    let hash = verified.trim().rsplit(' ').next().expect("a hash");
    assert_eq!(asked(&["audit", "verify", "--known", hash], b"").0, 0);
    let (code, output) = asked(&["audit", "verify", "--known", "0123&limit=1"], b"");
    assert!(code == 1 && output.contains("is missing"), "{output}");
    assert!(server.stop().0.success());
    // The same on the store.
    let on_store = |more: &[&str]| {
        let list = ["audit", "list", "-o", "ndjson", "--data", text(&data)];
        printed(&[&list[..], more].concat())
    };
    assert_eq!(on_store(&["--limit", "2"]).trim_end(), rows, "the limit");
    assert_eq!(on_store(&["--cursor", cursor]), rest);
    for (filter, expected) in filters {
        let listed = on_store(filter);
        assert_eq!(listed.lines().collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

#[test]
fn the_first_key_of_a_server_must_have_the_scope_admin() {
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
fn keys_create_names_the_invalid_flag() {
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
