//! One seed, one history.

use windlass_sim::{Driver, Shape, simulate};

fn repeats(driver: Driver, seeds: std::ops::Range<u64>) {
    let shape = Shape {
        driver,
        jobs: 60,
        ..Shape::default()
    };
    for seed in seeds {
        let first = simulate(seed, &shape).unwrap().history;
        let second = simulate(seed, &shape).unwrap().history;
        let differs = first.entries.iter().zip(&second.entries);
        let differs = differs.enumerate().find(|(_, (one, other))| one != other);
        assert_eq!(first.digest(), second.digest(), "seed {seed}: {differs:#?}");
        assert!(first.entries.len() > 100, "seed {seed}: too little happens");
    }
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    repeats(Driver::Memory, 0..30);
}

#[test]
fn a_seed_gives_the_same_history_every_time_on_sqlite() {
    repeats(Driver::Sqlite, 100..104);
}

#[test]
fn two_seeds_give_two_histories() {
    let digest = |seed| simulate(seed, &Shape::default()).unwrap().history.digest();
    assert_ne!(digest(1), digest(2));
}
