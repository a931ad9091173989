//! Seeds of tests that draw what they do at random.

use std::iter::Chain;
use std::ops::Range;

use windlass_engine::Ids;

/// How many times as many seeds a long run tries.
const LONG: u64 = 20;

/// Whether this is a long run: `./test --long` sets `WINDLASS_TEST_LONG`.
pub fn is_long() -> bool {
    std::env::var_os("WINDLASS_TEST_LONG").is_some()
}

/// Returns `count` seeds from `first` on. A long run adds 20 times as many new ones.
///
/// If `WINDLASS_TEST_SEED` is set, it is the only seed. If the test panics, the seed is printed.
pub fn seeds(first: u64, count: u64) -> Seeds {
    let only = std::env::var("WINDLASS_TEST_SEED").ok();
    let only = only.map(|seed| seed.parse().expect("WINDLASS_TEST_SEED is a number"));
    // Far from fixed seeds, and without an overflow at the end.
    let drawn = (Ids::unpredictable().bits() >> 1) | (1 << 32);
    choose(first..first + count, only, is_long().then_some(drawn))
}

fn choose(fixed: Range<u64>, only: Option<u64>, drawn: Option<u64>) -> Seeds {
    let more = (fixed.end - fixed.start) * LONG;
    let seeds = match (only, drawn) {
        (Some(seed), _) => (seed..seed + 1).chain(0..0),
        (None, Some(drawn)) => fixed.chain(drawn..drawn + more),
        (None, None) => fixed.chain(0..0),
    };
    Seeds {
        seeds,
        current: None,
    }
}

/// Seeds to try, one after the other.
#[derive(Debug)]
pub struct Seeds {
    seeds: Chain<Range<u64>, Range<u64>>,
    current: Option<u64>,
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.current = self.seeds.next();
        self.current
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(seed) = self.current.filter(|_| std::thread::panicking()) {
            eprintln!("seed {seed} failed; run only it with WINDLASS_TEST_SEED={seed}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_adds_new_seeds_and_one_seed_can_be_repeated() {
        let chosen = |only, drawn| choose(5..7, only, drawn).collect::<Vec<u64>>();
        assert_eq!(chosen(None, None), [5, 6]);
        assert_eq!(chosen(Some(9), Some(1000)), [9]);
        let long = chosen(None, Some(1000));
        assert_eq!(long.len(), 2 + 40);
        assert_eq!(long[..3], [5, 6, 1000]);
        assert_eq!(long[41], 1039);
    }
}
