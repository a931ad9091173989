//! What claims of remote workers share: what retries are owed in each queue and whose turn it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use windlass_core::fairness::{
    ClaimPlan, ClaimQueue, Guards, Pool, Round, Slots, Taken, Taker, Turns,
};
use windlass_core::{JobId, QueueName, Timestamp};

use crate::credits::Credits;
use crate::queue_settings::SetRules;

/// At most this many of each thing are remembered; what is beyond is forgotten, which costs a
/// little fairness and no job.
const REMEMBERED_MAX: usize = 10_000;
/// At most this many claims with an id go on at once.
const NAMED_TURNS: usize = 32;
/// Settings of a queue are read again after this time.
const SETTINGS_FRESH: Duration = Duration::from_secs(1);

/// What claims of remote workers share.
#[derive(Debug, Default)]
pub(super) struct Claims {
    state: Mutex<State>,
    /// Claims with an id take turns; those of different ids share a few.
    named: [tokio::sync::Mutex<()>; NAMED_TURNS],
}

#[derive(Debug, Default)]
struct State {
    credits: Credits,
    turns: BTreeMap<Vec<ClaimQueue>, Turns>,
    settings: BTreeMap<QueueName, (Timestamp, Arc<SetRules>)>,
    progress: BTreeMap<JobId, ReportedProgress>,
}

/// When a job last reported its progress, and the version of the document once it was written.
#[derive(Debug)]
struct ReportedProgress {
    at: Timestamp,
    version: Option<u64>,
}

impl Claims {
    /// What the next claim of a queue takes.
    pub(super) fn plan(&self, queue: &QueueName, guards: Guards, slots: Slots) -> ClaimPlan {
        let state = self.state();
        state.credits.plan(queue, guards, Pool::Single, slots)
    }

    /// Counts what a claim took.
    pub(super) fn count(&self, queue: &QueueName, guards: Guards, plan: &ClaimPlan, taken: Taken) {
        let mut state = self.state();
        state
            .credits
            .count(queue, guards, Pool::Single, plan, taken);
    }

    /// Which queue of a claim is asked next, and for how many jobs, in turns that go on from claim
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
            (queue.name.clone(), Taker { weight, most })
        };
        let takers = || queues.iter().map(taker).collect();
        make_room(&mut state.turns);
        let turns: &mut Turns = state.turns.entry(queues.to_vec()).or_default();
        round.next(turns, free, takers)
    }

    /// What is set about a queue, if it was read just now.
    pub(super) fn settings(&self, queue: &QueueName, now: Timestamp) -> Option<Arc<SetRules>> {
        let state = self.state();
        let (read_at, settings) = state.settings.get(queue)?;
        (now.since(*read_at) < SETTINGS_FRESH).then(|| Arc::clone(settings))
    }

    pub(super) fn keep_settings(
        &self,
        queue: &QueueName,
        settings: &Arc<SetRules>,
        now: Timestamp,
    ) {
        let mut state = self.state();
        make_room(&mut state.settings);
        state
            .settings
            .insert(queue.clone(), (now, Arc::clone(settings)));
    }

    /// What is set about a queue has changed.
    pub(super) fn forget_settings(&self, queue: &QueueName) {
        self.state().settings.remove(queue);
    }

    /// Whose turn it is among claims of the same id: one that is repeated waits for the first.
    pub(super) async fn turn(&self, claim: u128) -> tokio::sync::MutexGuard<'_, ()> {
        let [first, ..] = &self.named;
        let index = usize::try_from(claim % NAMED_TURNS as u128).unwrap_or(0);
        self.named.get(index).unwrap_or(first).lock().await
    }

    /// Whether a job may report its progress again already.
    pub(super) fn may_report(&self, job: JobId, every: Duration, now: Timestamp) -> bool {
        let mut state = self.state();
        make_room(&mut state.progress);
        let last = state.progress.entry(job).or_insert(ReportedProgress {
            at: Timestamp::MIN,
            version: None,
        });
        let may = now.since(last.at) >= every;
        if may {
            last.at = now;
        }
        may
    }

    /// The progress of a job was written as this version of its document.
    pub(super) fn reported(&self, job: JobId, version: u64) {
        if let Some(last) = self.state().progress.get_mut(&job) {
            last.version = Some(version);
        }
    }

    /// The version of the document that a job last wrote here.
    pub(super) fn progress_version(&self, job: JobId) -> Option<u64> {
        self.state().progress.get(&job)?.version
    }

    /// The attempt is over that reported its progress.
    pub(super) fn forget_progress(&self, job: JobId) {
        self.state().progress.remove(&job);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_room<K: Ord, V>(map: &mut BTreeMap<K, V>) {
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
        let claims = Claims::default();
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
        let set = SetRules {
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
        let claims = Claims::default();
        for number in 0..(REMEMBERED_MAX + 10) {
            let job = JobId::from_u128(u128::try_from(number).unwrap());
            claims.may_report(job, Duration::ZERO, Timestamp::UNIX_EPOCH);
        }
        assert!(claims.state().progress.len() <= REMEMBERED_MAX);
    }
}
