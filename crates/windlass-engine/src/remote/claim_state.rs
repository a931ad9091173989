//! What the claims of all remote workers share: retry credits, turns of queues, cached queue
//! settings, and the times of progress reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use windlass_core::fairness::{
    ClaimPlan, ClaimQueue, Guards, Pool, QueueDemand, Round, Slots, Taken, Turns,
};
use windlass_core::{JobId, QueueName, Timestamp, fixed_hash};

use crate::credits::Credits;
use crate::poison::lock;
use crate::queue_settings::OperatorSettings;

/// The maximum number of entries of each map. Forgetting one costs a little fairness and no job.
const REMEMBERED_MAX: usize = 10_000;
/// The number of locks for claims with an id.
const CLAIM_ID_LOCKS: usize = 32;
/// How long cached settings of a queue are valid.
const SETTINGS_FRESH: Duration = Duration::from_secs(1);

/// The shared state of the claims of remote workers.
#[derive(Debug, Default)]
pub(super) struct ClaimState {
    state: Mutex<SharedState>,
    /// Serialize claims with the same id. Different ids may share a lock.
    claim_id_locks: [tokio::sync::Mutex<()>; CLAIM_ID_LOCKS],
}

#[derive(Debug, Default)]
struct SharedState {
    credits: Credits,
    turns: BTreeMap<Vec<ClaimQueue>, Turns>,
    settings: BTreeMap<QueueName, (Timestamp, Arc<OperatorSettings>)>,
    progress: BTreeMap<JobId, ReportedProgress>,
    /// The queues of claims with an id, hashed.
    claim_queues: BTreeMap<u128, u64>,
}

/// The last progress report of a job: when it came, and what was stored.
#[derive(Debug)]
struct ReportedProgress {
    at: Timestamp,
    stored: StoredReports,
}

/// What this process has stored of the reports of a running attempt.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StoredReports {
    /// The version of the progress document.
    pub(super) progress: Option<u64>,
    /// Whether there is a log document.
    pub(super) log: bool,
}

impl ClaimState {
    /// Plans the next claim of a queue.
    pub(super) fn plan(&self, queue: &QueueName, guards: Guards, slots: Slots) -> ClaimPlan {
        let state = self.state();
        state.credits.plan(queue, guards, Pool::Single, slots)
    }

    /// Updates the retry credit of a queue after a claim.
    pub(super) fn count(&self, queue: &QueueName, guards: Guards, plan: &ClaimPlan, taken: Taken) {
        let mut state = self.state();
        state
            .credits
            .count(queue, guards, Pool::Single, plan, taken);
    }

    /// Updates the retry credit of a queue after a claim whose answer is lost.
    pub(super) fn count_lost(&self, queue: &QueueName, guards: Guards, plan: &ClaimPlan) {
        let mut state = self.state();
        state.credits.count_lost(queue, guards, Pool::Single, plan);
    }

    /// Returns the queue to claim from next, and how many jobs to take. Turns continue from claim
    /// to claim.
    pub(super) fn next_offer(
        &self,
        round: &mut Round,
        free: u32,
        queues: &[ClaimQueue],
    ) -> Option<(QueueName, u32)> {
        let state = &mut *self.state();
        let set = &state.settings;
        let taker = |queue: &ClaimQueue| {
            let weight = set.get(&queue.name).and_then(|(_, rules)| rules.weight);
            let (weight, most) = (weight.unwrap_or(queue.weight), free);
            (queue.name.clone(), QueueDemand { weight, most })
        };
        let takers = || queues.iter().map(taker).collect();
        evict(&mut state.turns);
        let turns: &mut Turns = state.turns.entry(queues.to_vec()).or_default();
        round.next(turns, free, takers)
    }

    /// Returns the cached settings of a queue, if they are recent.
    pub(super) fn settings(
        &self,
        queue: &QueueName,
        now: Timestamp,
    ) -> Option<Arc<OperatorSettings>> {
        let state = self.state();
        let (read_at, settings) = state.settings.get(queue)?;
        (now.since(*read_at) < SETTINGS_FRESH).then(|| Arc::clone(settings))
    }

    pub(super) fn keep_settings(
        &self,
        queue: &QueueName,
        settings: &Arc<OperatorSettings>,
        now: Timestamp,
    ) {
        let mut state = self.state();
        evict(&mut state.settings);
        state
            .settings
            .insert(queue.clone(), (now, Arc::clone(settings)));
    }

    /// Drops the cached settings of a queue, because they have changed.
    pub(super) fn forget_settings(&self, queue: &QueueName) {
        self.state().settings.remove(queue);
    }

    /// Whether a claim names the queues that the first claim with its id named. A claim id that
    /// this process has forgotten, or never saw, may name any queues.
    pub(super) fn keeps_queues(&self, claim_id: u128, queues: &[ClaimQueue]) -> bool {
        let names: BTreeSet<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
        let names = names.into_iter().collect::<Vec<_>>().join("\n");
        let hash = fixed_hash(names.as_bytes());
        let mut state = self.state();
        evict(&mut state.claim_queues);
        *state.claim_queues.entry(claim_id).or_insert(hash) == hash
    }

    /// Locks a claim id: a repeated claim waits until the first one is done.
    pub(super) async fn lock_claim_id(&self, claim_id: u128) -> tokio::sync::MutexGuard<'_, ()> {
        let [first, ..] = &self.claim_id_locks;
        let index = usize::try_from(claim_id % CLAIM_ID_LOCKS as u128).unwrap_or(0);
        self.claim_id_locks.get(index).unwrap_or(first).lock().await
    }

    /// Whether the last progress report of a job is at least `every` ago. If so, counts a new one.
    pub(super) fn may_report(&self, job: JobId, every: Duration, now: Timestamp) -> bool {
        let mut state = self.state();
        evict(&mut state.progress);
        let last = state.progress.entry(job).or_insert(ReportedProgress {
            at: Timestamp::MIN,
            stored: StoredReports::default(),
        });
        let allowed = now.since(last.at) >= every;
        if allowed {
            last.at = now;
        }
        allowed
    }

    /// Records what was stored of a job's last report.
    pub(super) fn reported(&self, job: JobId, stored: StoredReports) {
        if let Some(last) = self.state().progress.get_mut(&job) {
            last.stored.progress = stored.progress.or(last.stored.progress);
            last.stored.log |= stored.log;
        }
    }

    /// What this process has stored of a job's reports.
    pub(super) fn stored_reports(&self, job: JobId) -> StoredReports {
        let state = self.state();
        let last = state.progress.get(&job);
        last.map(|last| last.stored).unwrap_or_default()
    }

    /// Drops the progress entry of a job whose attempt has ended.
    pub(super) fn forget_progress(&self, job: JobId) {
        self.state().progress.remove(&job);
    }

    fn state(&self) -> MutexGuard<'_, SharedState> {
        lock(&self.state)
    }
}

fn evict<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    while map.len() >= REMEMBERED_MAX {
        map.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, weight: u32) -> ClaimQueue {
        ClaimQueue {
            name: QueueName::new(name).unwrap(),
            weight,
        }
    }

    #[test]
    fn turns_go_on_from_claim_to_claim() {
        let claims = ClaimState::default();
        let queues = [queue("a", 3), queue("b", 1)];
        let shares = || {
            let mut got = BTreeMap::new();
            for _ in 0..40 {
                let offer = claims.next_offer(&mut Round::default(), 1, &queues);
                let (queue, share) = offer.unwrap();
                *got.entry(queue).or_default() += share;
            }
            got.into_values().collect::<Vec<u32>>()
        };
        assert_eq!(shares(), [30, 10]);
        let set = OperatorSettings {
            guards: Guards::default(),
            weight: Some(1),
            retry: None,
            rate: None,
        };
        claims.keep_settings(&queues[0].name, &Arc::new(set), Timestamp::UNIX_EPOCH);
        assert_eq!(shares(), [20, 20], "operators set another weight");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let claims = ClaimState::default();
        for number in 0..(REMEMBERED_MAX + 10) {
            let job = JobId::from_u128(u128::try_from(number).unwrap());
            claims.may_report(job, Duration::ZERO, Timestamp::UNIX_EPOCH);
        }
        assert!(claims.state().progress.len() <= REMEMBERED_MAX);
    }
}
