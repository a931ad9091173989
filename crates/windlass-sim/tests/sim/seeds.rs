//! No seed violates an invariant.

use windlass_sim::{Campaign, Driver, Shape, simulate};

/// Seeds that once found a bug, with the bug. They must stay clean.
const REGRESSIONS: [(Driver, u64, &str); 10] = [
    (Driver::Memory, 101_177, LOSSES),
    (Driver::Memory, 301_445, REPEAT),
    (Driver::Memory, 5_005_645, LOST_ANSWER),
    (Driver::Memory, 5_006_344, LATE_CLAIM),
    (Driver::Memory, 5_013_253, LOST_SLOTS),
    (Driver::Memory, 6_000_093, LOST_ANSWER),
    (Driver::Memory, 6_006_848, OLD_ACTION),
    (Driver::Memory, 7_208_946, SCHEDULE),
    (Driver::Sqlite, 2, SWEEP),
    (Driver::Sqlite, 27, DEADLINE),
];

const LOST_ANSWER: &str = "claims whose answers were lost gave retries the first slot each time";
const OLD_ACTION: &str =
    "an older bulk action changed a job, so that a newer one changed the job again";
const LOST_SLOTS: &str =
    "slots stayed taken if the store failed between the write of outcomes and a look-up";
const LATE_CLAIM: &str =
    "a claim that arrived late gave back a job that its repetition had got from another server";

// These were errors of the simulation and its checker.
const SCHEDULE: &str = "a node whose clock was behind fired a schedule after the store had been read for the last time";
const LOSSES: &str = "three losses in a row counted as a limit of their own";
const REPEAT: &str = "a repeated claim of a worker that stops seemed to be a new one";
const SWEEP: &str = "the first sweep after a restart seemed to end attempts again";
const DEADLINE: &str = "a deadline that had passed for one clock only counted as not passed";

/// `./test --long` simulates more seeds.
fn seeds(usual: u64, long: u64) -> u64 {
    let is_long = std::env::var_os("WINDLASS_TEST_LONG").is_some();
    if is_long { long } else { usual }
}

fn holds(driver: Driver, from: u64, seeds: u64) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let campaign = Campaign {
        from,
        seeds,
        shape: Shape {
            driver,
            ..Shape::default()
        },
        threads: cores,
        twice: false,
    };
    let report = campaign.run(|| {}).unwrap();
    if let Some(failure) = report.failures.first() {
        panic!(
            "repeat it with `cargo run -- sim --seeds 1 --from {} {}`\n{}",
            failure.seed,
            failure.shape.flags(),
            failure.text
        );
    }
    let (jobs, succeeded) = (report.jobs, report.succeeded);
    assert!(
        jobs > 0 && succeeded * 2 > jobs,
        "{succeeded} of {jobs} succeeded"
    );
}

#[test]
fn every_invariant_holds_on_memory() {
    holds(Driver::Memory, 0, seeds(40, 20_000));
}

#[test]
fn every_invariant_holds_on_sqlite() {
    holds(Driver::Sqlite, 1_000_000, seeds(5, 1000));
}

#[test]
fn seeds_that_found_bugs_stay_clean() {
    for (driver, seed, bug) in REGRESSIONS {
        let shape = Shape {
            driver,
            ..Shape::default()
        };
        let violations = simulate(seed, &shape).unwrap().violations;
        assert!(violations.is_empty(), "{bug}: {violations:#?}");
    }
}
