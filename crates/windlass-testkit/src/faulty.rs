//! A store that fails, hangs or forgets to wake when it is told to.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_store::{Store, StoreError, Wrapper};

#[derive(Debug)]
pub struct Faulty {
    store: Arc<dyn Store>,
    faults: Mutex<Faults>,
}

#[derive(Debug, Default)]
struct Faults {
    /// These verbs fail, and do nothing.
    fail: BTreeSet<&'static str>,
    /// These verbs do what they should, and then say that they do not know.
    forget: BTreeSet<&'static str>,
    /// These verbs never answer.
    hang: BTreeSet<&'static str>,
    /// These verbs take so long before they do anything.
    slow: BTreeMap<&'static str, Duration>,
    /// The answers of these verbs take so long.
    slow_answer: BTreeMap<&'static str, Duration>,
    /// These verbs refuse what they are asked.
    refuse: BTreeSet<&'static str>,
    /// Everything fails.
    away: bool,
    /// It has stopped for good.
    stopped: bool,
    /// How often each verb was asked.
    asked: BTreeMap<&'static str, usize>,
}

impl Faulty {
    pub fn new(store: Arc<dyn Store>) -> Arc<Faulty> {
        Arc::new(Faulty {
            store,
            faults: Mutex::default(),
        })
    }

    pub fn fail(&self, verb: &'static str) {
        self.faults.lock().unwrap().fail.insert(verb);
    }

    pub fn forget(&self, verb: &'static str) {
        self.faults.lock().unwrap().forget.insert(verb);
    }

    pub fn hang(&self, verb: &'static str) {
        self.faults.lock().unwrap().hang.insert(verb);
    }

    pub fn slow(&self, verb: &'static str, by: Duration) {
        self.faults.lock().unwrap().slow.insert(verb, by);
    }

    pub fn slow_answer(&self, verb: &'static str, by: Duration) {
        self.faults.lock().unwrap().slow_answer.insert(verb, by);
    }

    pub fn refuse(&self, verb: &'static str) {
        self.faults.lock().unwrap().refuse.insert(verb);
    }

    pub fn away(&self) {
        self.faults.lock().unwrap().away = true;
    }

    pub fn stop_for_good(&self) {
        self.faults.lock().unwrap().stopped = true;
    }

    pub fn heal(&self) {
        let mut faults = self.faults.lock().unwrap();
        let asked = std::mem::take(&mut faults.asked);
        *faults = Faults {
            asked,
            ..Faults::default()
        };
    }

    pub fn asked(&self, verb: &str) -> usize {
        let faults = self.faults.lock().unwrap();
        faults.asked.get(verb).copied().unwrap_or(0)
    }

    /// Whether the verb is done, and whether its answer comes through.
    async fn before(&self, verb: &'static str) -> Result<bool, StoreError> {
        let (slow, hangs, refuses, fails, forgets) = {
            let mut faults = self.faults.lock().unwrap();
            *faults.asked.entry(verb).or_default() += 1;
            let fails = faults.away || faults.fail.contains(verb);
            let hangs = faults.hang.contains(verb);
            let slow = faults.slow.get(verb).copied();
            let refuses = faults.refuse.contains(verb);
            (slow, hangs, refuses, fails, faults.forget.contains(verb))
        };
        if let Some(by) = slow {
            tokio::time::sleep(by).await;
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
