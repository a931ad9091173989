//! What a seed stands for: which faults and features exist, and how much of them.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass_core::Random;

use crate::planted::Bug;

macro_rules! ingredients {
    ($($name:ident = $text:literal,)*) => {
        /// A fault, or a feature of the workload. The seed chooses which of them a run has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Ingredient {
            $(#[doc = $text] $name,)*
        }

        impl Ingredient {
            /// All of them.
            pub const ALL: &[Ingredient] = &[$(Ingredient::$name),*];

            /// The name on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Ingredient::$name => $text,)* }
            }
        }
    };
}

ingredients! {
    Latency = "latency",
    FailBefore = "fail-before",
    FailAfter = "fail-after",
    Stall = "stall",
    Kill = "kill",
    Pause = "pause",
    Shutdown = "shutdown",
    Restart = "restart",
    ClockJump = "clock-jump",
    ClockSkew = "clock-skew",
    LostWakes = "lost-wakes",
    DoubledWakes = "doubled-wakes",
    Panic = "panic",
    Hang = "hang",
    Slow = "slow",
    Priorities = "priorities",
    Policies = "policies",
    AtMostOnce = "at-most-once",
    Deadlines = "deadlines",
    Unique = "unique",
    Limits = "limits",
    Keys = "keys",
    Schedules = "schedules",
    Snoozes = "snoozes",
    Operators = "operators",
    Pauses = "pauses",
    Actions = "actions",
    Replays = "replays",
    Remote = "remote",
}

impl std::str::FromStr for Ingredient {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Ingredient::ALL.iter().find(|one| one.name() == text);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = Ingredient::ALL.iter().map(|one| one.name()).collect();
            format!("must be one of {}", names.join(", "))
        })
    }
}

/// The store under the simulated nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Driver {
    /// `windlass-memory`.
    #[default]
    Memory,
    /// `windlass-sqlite`, in a temporary directory.
    Sqlite,
}

impl Driver {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Driver::Memory => "memory",
            Driver::Sqlite => "sqlite",
        }
    }
}

/// The size of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The store.
    pub driver: Driver,
    /// How many jobs clients submit.
    pub jobs: u32,
    /// The most nodes; the seed may choose fewer.
    pub nodes: u32,
    /// What the run must not have, even if the seed chooses it.
    pub without: BTreeSet<Ingredient>,
    /// A bug to plant, which the checker should catch.
    pub planted: Option<Bug>,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            driver: Driver::Memory,
            jobs: 200,
            nodes: 4,
            without: BTreeSet::new(),
            planted: None,
        }
    }
}

impl Shape {
    /// The flags of `windlass sim` for this shape: those that differ from the defaults.
    pub fn flags(&self) -> String {
        let default = Shape::default();
        let mut flags = Vec::new();
        if self.driver != default.driver {
            flags.push(format!("--driver {}", self.driver.name()));
        }
        if self.jobs != default.jobs {
            flags.push(format!("--jobs {}", self.jobs));
        }
        if self.nodes != default.nodes {
            flags.push(format!("--nodes {}", self.nodes));
        }
        if !self.without.is_empty() {
            let names: Vec<&str> = self.without.iter().map(|one| one.name()).collect();
            flags.push(format!("--without {}", names.join(",")));
        }
        if let Some(bug) = self.planted {
            flags.push(format!("--plant {}", bug.name()));
        }
        flags.join(" ")
    }
}

/// A run: a seed and its choices.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) driver: Driver,
    pub(crate) jobs: u32,
    pub(crate) nodes: u32,
    pub(crate) has: BTreeSet<Ingredient>,
    pub(crate) planted: Option<Bug>,
}

/// How long faults are injected.
pub(crate) const CHAOS: Duration = Duration::from_secs(16);
/// How long the drain may take afterwards.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(180);

impl Plan {
    pub(crate) fn new(seed: u64, shape: &Shape) -> Plan {
        let mut random = stream(seed, "plan", 0);
        // Some seeds have no faults at all, most have a few.
        let share = [0, 2, 3, 5][below(&mut random, 4) as usize];
        let mut has = BTreeSet::new();
        for one in Ingredient::ALL {
            let is_fault = *one < Ingredient::Priorities;
            let share = if is_fault { share } else { 6 };
            if below(&mut random, 10) < share {
                has.insert(*one);
            }
        }
        has.retain(|one| !shape.without.contains(one));
        let nodes = 1 + u32::try_from(below(&mut random, 4)).unwrap_or(0);
        Plan {
            seed,
            driver: shape.driver,
            jobs: shape.jobs,
            nodes: nodes.min(shape.nodes).max(1),
            has,
            planted: shape.planted,
        }
    }

    pub(crate) fn has(&self, one: Ingredient) -> bool {
        self.has.contains(&one)
    }

    /// The random bits of one concern. Other concerns do not change them.
    pub(crate) fn stream(&self, concern: &str, number: u64) -> Random {
        stream(self.seed, concern, number)
    }
}

fn stream(seed: u64, concern: &str, number: u64) -> Random {
    Random::new(crate::history::digest_of(&(seed, concern, number)))
}

/// A number from 0 to `limit - 1`.
pub(crate) fn below(random: &mut Random, limit: u64) -> u64 {
    (random.bits() >> 16) % limit.max(1)
}

/// A time from 0 to `limit`, in whole milliseconds.
pub(crate) fn time_below(random: &mut Random, limit: Duration) -> Duration {
    let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(below(random, millis))
}
