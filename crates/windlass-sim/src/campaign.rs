//! Many seeds, on many threads. Each seed is a simulation on one thread.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use windlass_store::StoreError;

use crate::checker::Invariant;
use crate::{Run, Shape, shrink, simulate};

/// How many runs to try to make a failing one smaller.
const SHRINKS_MAX: u32 = 200;
/// After this many failing seeds, the campaign stops.
const FAILURES_MAX: usize = 10;

/// Many seeds.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The first seed.
    pub from: u64,
    /// How many seeds.
    pub seeds: u64,
    /// The size of each run.
    pub shape: Shape,
    /// How many seeds run at once.
    pub threads: usize,
    /// Whether to run every seed twice and compare the histories.
    pub twice: bool,
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct Report {
    /// How many seeds ran. Less than asked for if too many failed.
    pub seeds: u64,
    /// How many jobs there were in all runs.
    pub jobs: usize,
    /// How many of them succeeded.
    pub succeeded: usize,
    /// How many events the histories have.
    pub events: usize,
    /// A digest of all histories. Equal for equal campaigns, on every machine.
    pub digest: u64,
    /// Seeds that failed, the lowest first.
    pub failures: Vec<Failure>,
}

/// A seed that failed.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The invariant that does not hold. `None` if the simulation panicked, or if two runs of the
    /// seed differ.
    pub invariant: Option<Invariant>,
    /// What is wrong, with the events that show it.
    pub text: String,
    /// The run. For the first seed with each invariant, the smallest that fails alike.
    pub shape: Shape,
}

impl Campaign {
    /// Runs all seeds. Calls `done` after each.
    ///
    /// # Errors
    ///
    /// Fails if a simulation could not run, for example because the disk is full.
    pub fn run(&self, done: impl Fn() + Sync) -> Result<Report, StoreError> {
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let result = Mutex::new(Ok(Report::default()));
        thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let number = next.fetch_add(1, Ordering::SeqCst);
                        if number >= self.seeds {
                            return;
                        }
                        let part = self.run_seed(self.from.wrapping_add(number));
                        let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                        match (&mut *result, part) {
                            (Ok(all), Ok(part)) => all.add(part),
                            (all @ Ok(_), Err(error)) => *all = Err(error),
                            (Err(_), _) => {}
                        }
                        let failures = result.as_ref().map_or(0, |all| all.failures.len());
                        if result.is_err() || failures >= FAILURES_MAX {
                            stop.store(true, Ordering::SeqCst);
                        }
                        drop(result);
                        done();
                    }
                });
            }
        });
        let mut report = result
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)?;
        report.failures.sort_by_key(|failure| failure.seed);
        let mut shrunk = BTreeSet::new();
        for failure in &mut report.failures {
            if failure.invariant.is_some() && shrunk.insert(failure.invariant) {
                failure.shrink()?;
            }
        }
        Ok(report)
    }

    /// Runs one seed.
    fn run_seed(&self, seed: u64) -> Result<Report, StoreError> {
        let failed = |invariant, text| Failure {
            seed,
            invariant,
            text,
            shape: self.shape.clone(),
        };
        let caught = catch_unwind(AssertUnwindSafe(|| simulate(seed, &self.shape)));
        let run = match caught {
            Ok(run) => run?,
            Err(panic) => {
                let text = format!("the simulation panicked: {}", message(&*panic));
                return Ok(Report {
                    seeds: 1,
                    failures: vec![failed(None, text)],
                    ..Report::default()
                });
            }
        };
        let mut report = Report::of(&run);
        if self.twice {
            let again = simulate(seed, &self.shape)?;
            if let Some(text) = difference(&run, &again) {
                report.failures.push(failed(None, text));
                return Ok(report);
            }
        }
        if let Some(violation) = run.violations.first() {
            let text = violation.describe(&run.history);
            report
                .failures
                .push(failed(Some(violation.invariant), text));
        }
        Ok(report)
    }
}

impl Failure {
    /// Looks for a smaller run that fails alike.
    fn shrink(&mut self) -> Result<(), StoreError> {
        let run = simulate(self.seed, &self.shape)?;
        let shrunk = shrink(run, &self.shape, SHRINKS_MAX)?;
        if let Some(violation) = shrunk.run.violations.first() {
            self.invariant = Some(violation.invariant);
            self.text = violation.describe(&shrunk.run.history);
            self.shape = shrunk.shape;
        }
        Ok(())
    }
}

impl Report {
    fn of(run: &Run) -> Report {
        let (jobs, succeeded) = run.jobs();
        Report {
            seeds: 1,
            jobs,
            succeeded,
            events: run.history.entries.len(),
            digest: run.history.digest(),
            failures: Vec::new(),
        }
    }

    /// The digests are added, so that their order does not count.
    fn add(&mut self, part: Report) {
        self.seeds += part.seeds;
        self.jobs += part.jobs;
        self.succeeded += part.succeeded;
        self.events += part.events;
        self.digest = self.digest.wrapping_add(part.digest);
        self.failures.extend(part.failures);
    }
}

/// Where the histories of two runs of one seed differ.
fn difference(one: &Run, other: &Run) -> Option<String> {
    if one.history.digest() == other.history.digest() {
        return None;
    }
    let (one, other) = (&one.history.entries, &other.history.entries);
    let pairs = one.iter().zip(other).enumerate();
    let first = pairs.into_iter().find(|(_, (one, other))| one != other);
    Some(match first {
        Some((index, (one, other))) => {
            format!("two runs differ at event {index}:\n  {one:?}\n  {other:?}\n")
        }
        None => format!(
            "two runs differ in length: {} and {} events\n",
            one.len(),
            other.len()
        ),
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}
