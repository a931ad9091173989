//! The checker can fail: it catches every planted bug.

use windlass_sim::planted::{Bug, simulate_bug};
use windlass_sim::{Shape, simulate};

const SEEDS_MAX: u64 = 200;

/// The first seed that shows a bug and is clean without it, and the invariant that does not hold.
fn catch(bug: Bug) -> Option<(u64, String)> {
    let shape = Shape {
        jobs: 80,
        ..Shape::default()
    };
    for seed in 0..SEEDS_MAX {
        let run = simulate_bug(bug, seed, &shape).unwrap();
        if let Some(first) = run.violations.first()
            && simulate(seed, &shape).unwrap().violations.is_empty()
        {
            return Some((seed, first.invariant.name().to_owned()));
        }
    }
    None
}

#[test]
fn every_planted_bug_is_caught() {
    let mut table = String::from("| planted bug | caught by | at seed |\n|---|---|---|\n");
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        match catch(*bug) {
            Some((seed, invariant)) => {
                table.push_str(&format!("| {} | {invariant} | {seed} |\n", bug.text()));
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}\n{table}");
}
