//! A store wrapper that injects faults: errors, hangs, delays and lost answers.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_store::{Store, StoreError, Wrapper};

/// A store with injected faults. The verbs are named as in the `Store` trait.
#[derive(Debug)]
pub struct Faulty {
    store: Arc<dyn Store>,
    faults: Mutex<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    /// These verbs fail without doing anything.
    fail: BTreeSet<&'static str>,
    /// These verbs do their work and then fail as indeterminate.
    forget: BTreeSet<&'static str>,
    /// These verbs never return.
    hang: BTreeSet<&'static str>,
    /// These verbs wait this long before they do anything.
    slow: BTreeMap<&'static str, Duration>,
    /// All verbs wait this long before they do anything.
    slow_all: Duration,
    /// These verbs wait this long before they return.
    slow_answer: BTreeMap<&'static str, Duration>,
    /// These verbs refuse their input.
    refuse: BTreeSet<&'static str>,
    /// All verbs fail.
    away: bool,
    /// The store has stopped for good.
    stopped: bool,
    /// How often each verb was called.
    asked: BTreeMap<&'static str, usize>,
}

impl Faulty {
    pub fn new(store: Arc<dyn Store>) -> Arc<Faulty> {
        Arc::new(Faulty {
            store,
            faults: Mutex::default(),
        })
    }

    /// Makes a verb fail without doing anything.
    pub fn fail(&self, verb: &'static str) {
        self.faults.lock().unwrap().fail.insert(verb);
    }

    /// Makes a verb do its work and then fail as indeterminate.
    pub fn lose_answers(&self, verb: &'static str) {
        self.faults.lock().unwrap().forget.insert(verb);
    }

    /// Makes a verb never return.
    pub fn hang(&self, verb: &'static str) {
        self.faults.lock().unwrap().hang.insert(verb);
    }

    /// Delays a verb before it does anything.
    pub fn slow(&self, verb: &'static str, by: Duration) {
        self.faults.lock().unwrap().slow.insert(verb, by);
    }

    /// Delays every verb before it does anything.
    pub fn slow_every_verb(&self, by: Duration) {
        self.faults.lock().unwrap().slow_all = by;
    }

    /// Delays the answer of a verb.
    pub fn slow_answer(&self, verb: &'static str, by: Duration) {
        self.faults.lock().unwrap().slow_answer.insert(verb, by);
    }

    /// Makes a verb refuse its input.
    pub fn refuse(&self, verb: &'static str) {
        self.faults.lock().unwrap().refuse.insert(verb);
    }

    /// Makes all verbs fail.
    pub fn away(&self) {
        self.faults.lock().unwrap().away = true;
    }

    /// Makes all verbs fail as those of a store that has stopped for good.
    pub fn stop_for_good(&self) {
        self.faults.lock().unwrap().stopped = true;
    }

    /// Removes all faults.
    pub fn heal(&self) {
        let mut faults = self.faults.lock().unwrap();
        let asked = std::mem::take(&mut faults.asked);
        *faults = Faults {
            asked,
            ..Faults::default()
        };
    }

    /// Returns how often a verb was called.
    pub fn asked(&self, verb: &str) -> usize {
        let faults = self.faults.lock().unwrap();
        faults.asked.get(verb).copied().unwrap_or(0)
    }

    /// Applies the faults before a verb. Returns whether its answer gets lost.
    async fn before(&self, verb: &'static str) -> Result<bool, StoreError> {
        let (slow, hangs, refuses, fails, forgets) = {
            let mut faults = self.faults.lock().unwrap();
            *faults.asked.entry(verb).or_default() += 1;
            let fails = faults.away || faults.fail.contains(verb);
            let hangs = faults.hang.contains(verb);
            let slow = faults.slow.get(verb).copied().unwrap_or(faults.slow_all);
            let refuses = faults.refuse.contains(verb);
            (slow, hangs, refuses, fails, faults.forget.contains(verb))
        };
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        if hangs {
            std::future::pending::<()>().await;
        }
        if refuses {
            let what = "this one is bad".to_owned();
            return Err(StoreError::Damaged { what, cause: None });
        }
        if fails {
            return Err(StoreError::Unavailable("out of order".into()));
        }
        if self.faults.lock().unwrap().stopped {
            return Err(StoreError::Stopped("a sync failed".into()));
        }
        Ok(forgets)
    }
}

impl Wrapper for Faulty {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let forgets = self.before(verb).await?;
        let answer = step.await;
        let slow = self.faults.lock().unwrap().slow_answer.get(verb).copied();
        if let Some(by) = slow {
            tokio::time::sleep(by).await;
        }
        if forgets {
            return Err(StoreError::Indeterminate("who knows".into()));
        }
        answer
    }
}
