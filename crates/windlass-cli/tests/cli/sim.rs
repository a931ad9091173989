//! `windlass sim`.

use serde_json::Value;

use crate::support::{printed, refused, windlass};

#[test]
fn sim_simulates_seeds_and_repeats_them_exactly() {
    let small = ["sim", "--seeds", "4", "--jobs", "30", "--json"];
    let simulate = |threads| -> Value {
        let printed = printed(&[&small[..], &["--threads", threads, "--twice"]].concat());
        serde_json::from_str(&printed).unwrap()
    };
    let (first, second) = (simulate("2"), simulate("1"));
    assert_eq!(first["seeds"], 4);
    assert_eq!(first["failures"], Value::Array(Vec::new()));
    assert!(first["succeeded"].as_u64().unwrap() > 30, "{first}");
    assert!(first["seeds_per_minute_and_core"].as_f64().unwrap() > 0.0);
    assert_eq!(first["digest"], second["digest"], "{first} {second}");
}

#[test]
fn sim_prints_the_command_that_repeats_the_smallest_failing_run() {
    // Few ingredients are left, so that shrinking tries few runs.
    let without = "kill,pause,shutdown,restart,clock-jump,clock-skew,latency,fail-before,fail-after,stall,lost-wakes,\
        doubled-wakes,panic,hang,slow,schedules,operators,pauses,actions,replays,remote,unique,keys,limits,snoozes";
    let plant = ["sim", "--json", "--plant", "claim-too-many", "--seeds", "1"];
    let failed = windlass(&[&plant[..], &["--jobs", "60", "--without", without]].concat());
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let found: Value = serde_json::from_slice(&failed.stdout).unwrap();
    let failure = &found["failures"][0];
    assert_eq!(failure["invariant"], "I13", "{found}");
    let repeat = failure["repeat"].as_str().unwrap();
    let repeat: Vec<&str> = repeat.split(' ').skip(1).chain(["--json"]).collect();
    let again = windlass(&repeat);
    assert_eq!(again.status.code(), Some(1), "{repeat:?}");
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["failures"][0]["text"], failure["text"]);
    let jobs: u64 = again["jobs"].as_u64().unwrap();
    assert!(jobs < 60, "shrunk to {jobs} jobs");
}

#[test]
fn sim_refuses_unknown_faults_and_bugs() {
    for (flag, example) in [("--without", "kill"), ("--plant", "fire-twice")] {
        let (code, error) = refused(&["sim", flag, "nothing"]);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(example), "{error}");
    }
}
