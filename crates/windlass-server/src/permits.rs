//! Permits for requests that stay open. Their number is limited, and one key cannot use all of
//! them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;

use crate::access::Caller;
use crate::poison::lock;
use crate::problem::Problem;

/// The permits for one type of open request. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Permits(Arc<PermitPool>);

#[derive(Debug)]
struct PermitPool {
    what: &'static str,
    max: usize,
    held: Mutex<HeldPermits>,
}

#[derive(Debug, Default)]
struct HeldPermits {
    total: usize,
    by_key: BTreeMap<String, usize>,
}

impl Permits {
    /// Creates `max` permits. `what` names the open requests in errors: "long polls".
    pub(crate) fn new(what: &'static str, max: usize) -> Self {
        Permits(Arc::new(PermitPool {
            what,
            max,
            held: Mutex::default(),
        }))
    }

    /// The most permits that one key can hold: half of all, at least one.
    fn key_max(&self) -> usize {
        (self.0.max / 2).max(1)
    }

    /// Takes a permit. Callers without a key, on an open server, share all permits.
    pub(crate) fn take(&self, caller: &Caller) -> Result<Permit, Problem> {
        let what = self.0.what;
        let mut held = lock(&self.0.held);
        if held.total >= self.0.max {
            return Err(Problem::busy(&format!("open {what}")));
        }
        let key_max = self.key_max();
        let held_by_key = held.by_key.get(&caller.id).copied().unwrap_or_default();
        if caller.id != Caller::LOCAL && held_by_key >= key_max {
            let detail = format!("this key has {key_max} open {what}, its limit; retry after 1 s");
            let status = StatusCode::TOO_MANY_REQUESTS;
            let problem = Problem::new(status, "too_many_requests", detail)
                .hint("share one long poll between several workers, or use a separate key for each service");
            return Err(problem.retry_after(Duration::from_secs(1)));
        }
        held.total += 1;
        *held.by_key.entry(caller.id.clone()).or_default() += 1;
        Ok(Permit {
            permits: self.clone(),
            key: caller.id.clone(),
        })
    }
}

/// A permit. Dropping it returns it to the pool.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Permits,
    key: String,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut held = lock(&self.permits.0.held);
        held.total -= 1;
        if let Some(count) = held.by_key.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                held.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Caller {
        Caller {
            id: id.to_owned(),
            ..Caller::local()
        }
    }

    #[test]
    fn one_key_can_hold_half_of_the_permits() {
        let permits = Permits::new("long polls", 4);
        let first = permits.take(&key("a")).unwrap();
        let _second = permits.take(&key("a")).unwrap();
        assert_eq!(permits.take(&key("a")).unwrap_err().status(), 429);
        let _third = permits.take(&key("b")).unwrap();
        let _fourth = permits.take(&key("c")).unwrap();
        assert_eq!(permits.take(&key("d")).unwrap_err().status(), 503);
        drop(first);
        let _again = permits.take(&key("d")).unwrap();
        assert_eq!(lock(&permits.0.held).by_key.len(), 4);
    }

    #[test]
    fn every_key_can_hold_one_permit_and_callers_without_a_key_share_all() {
        let permits = Permits::new("long polls", 1);
        let only = permits.take(&key("a")).unwrap();
        drop(only);
        assert!(lock(&permits.0.held).by_key.is_empty());
        let permits = Permits::new("long polls", 3);
        let all: Vec<_> = (0..3).map(|_| permits.take(&Caller::local())).collect();
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(permits.take(&Caller::local()).unwrap_err().status(), 503);
    }
}
