//! The verification snippets of `docs/http-jobs.md` do what they say. Needs python3, node and go, which `./test` installs.

#[expect(unreachable_pub, reason = "shown to users as part of their crate")]
mod verify;

use std::process::Command;

use serde_json::{Value, json};
use windlass_core::Timestamp;
use windlass_http::{SigningKey, sign};

const DOCS: &str = include_str!("../../../../docs/http-jobs.md");
const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const BODY: &str = r#"{"order": 7, "name": "Zoë"}"#;
const SENT: i64 = 1_767_268_800;

/// The first block of a language in the documentation.
fn snippet(language: &str) -> &'static str {
    let start = format!("```{language}\n");
    let (_, rest) = DOCS.split_once(&start).expect("the language is there");
    let (code, _) = rest.split_once("```").expect("the block ends");
    code
}

/// What a receiver is given, and whether it should believe it.
fn cases() -> Vec<(Value, bool)> {
    let at = Timestamp::from_micros(SENT * 1_000_000).expect("a time");
    let keys = [NEW, OLD].map(|secret| SigningKey::parse(secret).expect("a secret"));
    let [new, old] = &keys;
    let signed = |keys: &[SigningKey]| sign(keys, "msg_1", at, BODY.as_bytes()).expect("signed");
    let (one, both) = (
        signed(std::slice::from_ref(old)),
        signed(&[new.clone(), old.clone()]),
    );
    let case = |secret: &str, id: &str, timestamp: &str, signature: &str, body: &str, now: i64| json!({"secret": secret, "id": id, "timestamp": timestamp, "signature": signature, "body": body, "now": now});
    let sent = SENT.to_string();
    vec![
        (case(OLD, "msg_1", &sent, &one, BODY, SENT + 300), true),
        (case(OLD, "msg_1", &sent, &both, BODY, SENT - 300), true),
        (case(NEW, "msg_1", &sent, &both, BODY, SENT), true),
        (case(NEW, "msg_1", &sent, &one, BODY, SENT), false),
        (case(OLD, "msg_1", &sent, &one, "{}", SENT), false),
        (case(OLD, "msg_2", &sent, &one, BODY, SENT), false),
        (case(OLD, "msg_1", &sent, &one, BODY, SENT + 301), false),
        (
            case(OLD, "msg_1", &(SENT + 1).to_string(), &one, BODY, SENT),
            false,
        ),
        (case(OLD, "msg_1", "soon", &one, BODY, SENT), false),
        (case(OLD, "msg_1", &sent, "", BODY, SENT), false),
        (
            case(OLD, "msg_1", &sent, &one.replace("v1,", "v2,"), BODY, SENT),
            false,
        ),
        (
            case(OLD, "msg_1", &sent, &format!("v1,AAAA {one}"), BODY, SENT),
            true,
        ),
    ]
}

/// Runs a program in another language on the cases. Returns its answer for each.
fn answers(command: &mut Command) -> Vec<bool> {
    let given: Vec<Value> = cases().into_iter().map(|(case, _)| case).collect();
    let output = command.arg(json!(given).to_string()).output();
    let output = output.expect("a language is missing; ./test installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("a list")
}

fn expected() -> Vec<bool> {
    cases().into_iter().map(|(_, good)| good).collect()
}

#[test]
fn rust() {
    assert_eq!(
        snippet("rust"),
        include_str!("snippets/verify.rs"),
        "the docs show what is tested"
    );
    let text = |case: &Value, name: &str| case[name].as_str().unwrap().to_owned();
    let verified = |case: &Value| {
        let (id, timestamp) = (text(case, "id"), text(case, "timestamp"));
        let head = (id.as_str(), timestamp.as_str(), &*text(case, "signature"));
        let now = case["now"].as_i64().unwrap();
        verify::verify(
            &text(case, "secret"),
            head,
            text(case, "body").as_bytes(),
            now,
        )
    };
    let answers: Vec<bool> = cases().iter().map(|(case, _)| verified(case)).collect();
    assert_eq!(answers, expected());
}

#[test]
fn python() {
    let folder = tempfile::tempdir().unwrap();
    let driver = r#"
import json, sys
def believed(case):
    headers = {"webhook-id": case["id"], "webhook-timestamp": case["timestamp"], "webhook-signature": case["signature"]}
    return verify(case["secret"], headers, case["body"].encode(), case["now"])
print(json.dumps([believed(case) for case in json.loads(sys.argv[1])]))
"#;
    let file = folder.path().join("verify.py");
    std::fs::write(&file, format!("{}{driver}", snippet("python"))).unwrap();
    assert_eq!(answers(Command::new("python3").arg(file)), expected());
}

#[test]
fn node() {
    let folder = tempfile::tempdir().unwrap();
    let driver = r#"
const believed = (one) => verify(one.secret, {
  "webhook-id": one.id, "webhook-timestamp": one.timestamp, "webhook-signature": one.signature,
}, Buffer.from(one.body), one.now);
console.log(JSON.stringify(JSON.parse(process.argv[2]).map(believed)));
"#;
    let file = folder.path().join("verify.mjs");
    std::fs::write(&file, format!("{}{driver}", snippet("js"))).unwrap();
    assert_eq!(answers(Command::new("node").arg(file)), expected());
}

#[test]
fn go() {
    let folder = tempfile::tempdir().unwrap();
    let driver = r#"package main

import (
	"encoding/json"
	"net/http"
	"os"
	"time"
)

func main() {
	var cases []struct {
		Secret, Id, Timestamp, Signature, Body string
		Now                                    int64
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &cases); err != nil {
		panic(err)
	}
	answers := []bool{}
	for _, one := range cases {
		header := http.Header{}
		header.Set("webhook-id", one.Id)
		header.Set("webhook-timestamp", one.Timestamp)
		header.Set("webhook-signature", one.Signature)
		answers = append(answers, Verify(one.Secret, header, []byte(one.Body), time.Unix(one.Now, 0)))
	}
	json.NewEncoder(os.Stdout).Encode(answers)
}
"#;
    let snippet = snippet("go").replacen("package webhook", "package main", 1);
    let files = [("verify.go", snippet.as_str()), ("main.go", driver)].map(|(name, code)| {
        let file = folder.path().join(name);
        std::fs::write(&file, code).unwrap();
        file
    });
    let mut run = Command::new("go");
    run.arg("run").args(files).env("GO111MODULE", "off");
    assert_eq!(answers(&mut run), expected());
}

#[test]
fn every_refusal_code_of_the_form_is_in_the_docs() {
    let source = include_str!("../../src/form.rs");
    let codes = source.split('"').filter(|part| {
        let code = part.starts_with("INVALID_") || part.starts_with("UNKNOWN_");
        code && part
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    });
    let mut found = 0;
    for code in codes {
        assert!(DOCS.contains(&format!("`{code}`")), "{code}");
        found += 1;
    }
    assert!(found >= 10);
}
