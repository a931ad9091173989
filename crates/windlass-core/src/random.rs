//! Reproducible randomness: the same seed gives the same numbers on every machine.

/// A small random number generator (SplitMix64; Steele, Lea and Flood, 2014).
///
/// For jitter and forecasts, not for secrets. The caller chooses the seed.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Makes a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scramble(self.state)
    }
}

/// Picks a number from `low..=high`, evenly distributed over `bits`; `low` if the range is empty.
pub(crate) fn pick(low: u64, high: u64, bits: u64) -> u64 {
    let span = u128::from(high.saturating_sub(low)) + 1;
    let offset = (u128::from(bits) * span) >> 64;
    // The offset is at most `high - low`, so neither step leaves u64.
    low + u64::try_from(offset).unwrap_or(0)
}

/// A well-mixed hash of some bytes. It is the same on every machine and in every version.
pub fn fixed_hash(bytes: &[u8]) -> u64 {
    scramble(fnv1a(bytes)) // the upper bits of FNV alone are weak
}

/// FNV-1a with 64 bits; offset basis and prime as in RFC 9923.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Checks a costly law, with one random case for every `share` cases of other laws.
///
/// The macro `proptest!` would let `PROPTEST_CASES` override this smaller number.
#[cfg(test)]
pub(crate) fn check_few_cases<S: proptest::strategy::Strategy>(
    share: u32,
    cases: S,
    check: impl Fn(S::Value) -> Result<(), proptest::test_runner::TestCaseError>,
) {
    use proptest::test_runner::{Config, TestRunner};
    let config = Config {
        cases: Config::default().cases.div_ceil(share),
        failure_persistence: None,
        ..Config::default()
    };
    let checked = TestRunner::new(config).run(&cases, check);
    checked.unwrap_or_else(|error| panic!("{error}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_same_seed_gives_the_same_published_numbers() {
        // The first outputs of the reference implementation for seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
        assert_eq!(random.bits(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn a_draw_reaches_both_ends() {
        assert_eq!(pick(10, 20, 0), 10);
        assert_eq!(pick(10, 20, u64::MAX), 20);
        assert_eq!(pick(0, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(pick(7, 7, u64::MAX), 7);
        assert_eq!(pick(9, 3, u64::MAX), 9);
    }

    #[test]
    fn hashes_never_change() {
        assert_eq!(fnv1a(b"a"), 0xAF63_DC4C_8601_EC8C); // published test vectors
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_F739_67E8);
        assert_eq!(fixed_hash(b"windlass"), 16_817_903_322_841_109_383);
    }

    proptest! {
        #[test]
        fn a_draw_stays_inside(low in any::<u64>(), span in any::<u64>(), bits in any::<u64>()) {
            let high = low.saturating_add(span);
            prop_assert!((low..=high).contains(&pick(low, high, bits)));
        }
    }
}
