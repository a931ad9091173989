//! No seed violates an invariant.

use windlass_sim::{Driver, Ingredient, Shape, shrink, simulate};

/// Clocks that jump or differ are left out: the checker compares rates and claim order with the
/// clock of the caller, but a store never lets its time go back.
const WITHOUT: [Ingredient; 2] = [Ingredient::ClockJump, Ingredient::ClockSkew];

/// How many runs to try to make a failing one smaller.
const SHRINKS_MAX: u32 = 200;

/// A number that can be set, to repeat a seed or to run more of them.
fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn holds(driver: Driver, from: u64, many: u64) {
    let shape = Shape {
        driver,
        without: WITHOUT.into(),
        ..Shape::default()
    };
    let (mut jobs, mut succeeded) = (0, 0);
    for seed in from..from + many {
        let run = simulate(seed, &shape).unwrap();
        let (all, good) = run.jobs();
        jobs += all;
        succeeded += good;
        if !run.violations.is_empty() {
            let shrunk = shrink(run, &shape, SHRINKS_MAX).unwrap();
            let (shape, run) = (shrunk.shape, shrunk.run);
            panic!(
                "repeat it with `WINDLASS_SIM_FROM={seed} WINDLASS_SIM_SEEDS=1 cargo test -p windlass-sim`\n\
                 the smallest run is {shape:?}\n{}",
                run.violations[0].describe(&run.history)
            );
        }
    }
    assert!(
        jobs > 0 && succeeded * 2 > jobs,
        "{succeeded} of {jobs} succeeded"
    );
}

#[test]
fn every_invariant_holds_on_memory() {
    holds(
        Driver::Memory,
        number("WINDLASS_SIM_FROM", 0),
        number("WINDLASS_SIM_SEEDS", 40),
    );
}

#[test]
fn every_invariant_holds_on_sqlite() {
    holds(
        Driver::Sqlite,
        number("WINDLASS_SIM_FROM", 1_000_000),
        number("WINDLASS_SIM_SEEDS", 5),
    );
}
