//! The checker can fail: it catches every planted bug. `docs/planted-bugs.md` says how.

use std::collections::BTreeSet;
use std::path::PathBuf;

use windlass_sim::checker::Invariant;
use windlass_sim::{Bug, Shape, simulate};

const SEEDS_MAX: u64 = 400;

const HEADER: &str = "\
# Planted bugs

A checker that never fails proves nothing. So the tests plant these bugs, one at a time, and the checker must find each
of them. The table names the first invariant that a run with the bug breaks; most runs break others too. The seed is the
first one that shows the bug and is clean without it:

```sh
windlass sim --jobs 80 --seeds 1 --plant fire-twice --from SEED
```

| `--plant` | what is broken | found by | seed |
|---|---|---|---|
";

fn shape(bug: Bug) -> Shape {
    Shape {
        driver: bug.driver(),
        jobs: 80,
        ..Shape::default()
    }
}

/// The invariants that do not hold with a planted bug, if the seed is clean without it.
fn found(bug: Bug, seed: u64) -> Vec<Invariant> {
    let planted = Shape {
        planted: Some(bug),
        ..shape(bug)
    };
    let violations = simulate(seed, &planted).unwrap().violations;
    let found = violations.iter().map(|violation| violation.invariant);
    let found: Vec<Invariant> = found.collect();
    let is_clean = || simulate(seed, &shape(bug)).unwrap().violations.is_empty();
    if found.is_empty() || !is_clean() {
        return Vec::new();
    }
    found
}

fn row(bug: Bug, invariant: Invariant, seed: u64) -> String {
    let flag = match bug.driver() {
        windlass_sim::Driver::Memory => String::new(),
        driver => format!(" --driver {}", driver.name()),
    };
    let name = bug.name();
    format!("| `{name}`{flag} | {} | {invariant} | {seed} |", bug.text())
}

fn page() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/planted-bugs.md")
}

/// The seed that the page names for a bug.
fn documented(page: &str, bug: Bug) -> Option<u64> {
    let begin = format!("| `{}`", bug.name());
    let line = page.lines().find(|line| line.starts_with(&begin))?;
    line.trim_end_matches(" |").rsplit(' ').next()?.parse().ok()
}

#[test]
fn every_planted_bug_is_caught() {
    let updates = std::env::var_os("WINDLASS_UPDATE_DOCS").is_some();
    let committed = std::fs::read_to_string(page()).unwrap_or_default();
    let (mut fresh, mut missed) = (HEADER.to_owned(), Vec::new());
    let mut can_fail = BTreeSet::new();
    for bug in Bug::ALL {
        let seeds = if updates {
            0..SEEDS_MAX
        } else {
            let seed = documented(&committed, *bug).unwrap_or(0);
            seed..seed + 1
        };
        let mut caught = seeds.map(|seed| (seed, found(*bug, seed)));
        match caught.find(|(_, found)| !found.is_empty()) {
            Some((seed, found)) => {
                fresh.push_str(&(row(*bug, found[0], seed) + "\n"));
                can_fail.extend(found);
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}\n{fresh}");
    fresh.push_str("\n## Invariants\n\n| invariant | what must hold |\n|---|---|\n");
    for invariant in Invariant::ALL {
        fresh.push_str(&format!("| {invariant} | {} |\n", invariant.text()));
    }
    if updates {
        std::fs::write(page(), &fresh).unwrap();
    } else {
        assert!(
            fresh == committed,
            "docs/planted-bugs.md is out of date; run: WINDLASS_UPDATE_DOCS=1 cargo test -p windlass-sim planted"
        );
    }
    let all: BTreeSet<Invariant> = Invariant::ALL.iter().copied().collect();
    let untested: Vec<_> = all.difference(&can_fail).collect();
    assert!(untested.is_empty(), "no planted bug breaks {untested:?}");
}
