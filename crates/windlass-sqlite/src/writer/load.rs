//! Builds the index from the file when a store is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::Row;
use windlass_core::{Concurrency, JobId, Key, Lane, Random, Timestamp};
use windlass_store::stored::{OptionalFields, parse_interventions};
use windlass_store::{AttemptId, QueueLimits, StoreError, WorkerLocation};

use super::Writer;
use crate::error::{DriverError, DriverResult, if_readable};
use crate::index::{Entry, Hold, Running, Waiting};
use crate::row::{self, id_of, timestamp};

impl Writer<'_> {
    pub(super) fn load(&mut self) -> DriverResult<()> {
        self.load_queues()?;
        self.load_finished()?;
        self.load_holds()?;
        self.load_starts()?;
        self.load_jobs()?;
        self.index.commit();
        Ok(())
    }

    pub(super) fn load_queues(&mut self) -> DriverResult<()> {
        self.queues.clear();
        let mut statement = self.connection.prepare("select name, limits from queues")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (name, limits): (String, String) = (row.get(0)?, row.get(1)?);
            if let Ok(name) = name.parse() {
                self.queues.insert(name, QueueLimits::from_stored(&limits));
            }
        }
        Ok(())
    }

    /// Loads the numbers of finished jobs.
    fn load_finished(&mut self) -> DriverResult<()> {
        let mut statement = self
            .connection
            .prepare("select queue, state, count from tallies")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            self.index.tally(row.get(0)?, row.get(1)?, row.get(2)?);
        }
        Ok(())
    }

    fn load_holds(&mut self) -> DriverResult<()> {
        let mut statement = self
            .connection
            .prepare("select queue, key, id, until from holds")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Some((queue, key, hold)) = if_readable(read_hold(row))? {
                self.index.set_hold(queue, key, Some(hold));
            }
        }
        Ok(())
    }

    fn load_starts(&mut self) -> DriverResult<()> {
        let mut statement = self
            .connection
            .prepare("select queue, at, count from starts order by at")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let at = timestamp(row.get(1)?)?;
            for _ in 0..row.get::<_, u32>(2)? {
                self.index.note_start(row.get(0)?, at);
            }
        }
        Ok(())
    }

    fn load_jobs(&mut self) -> DriverResult<()> {
        let mut running = Vec::new();
        let mut claims: BTreeMap<[u8; 16], Vec<AttemptId>> = BTreeMap::new();
        {
            let mut statement = self
                .connection
                .prepare(include_str!("../../sql/load_jobs.sql"))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let id = id_of(row, 0)?;
                // An unreadable job stays in the file until a version that can read it opens the
                // store.
                match self.skip_unreadable(id, LoadedJob::read(row))? {
                    None => {}
                    Some(loaded) if loaded.is_running => {
                        if let Some(claim) = loaded.claim {
                            let attempt = AttemptId {
                                job: id,
                                attempt: loaded.attempt,
                            };
                            claims.entry(claim).or_default().push(attempt);
                        }
                        running.push((id, loaded.waiting.queue, loaded.waiting.kind));
                        self.hold_key(id, loaded);
                    }
                    Some(loaded) => {
                        let waiting = loaded.waiting.clone();
                        self.index.put(id, Entry::Waiting(waiting));
                        self.hold_key(id, loaded);
                    }
                }
                self.index.commit();
            }
        }
        for (id, queue, kind) in running {
            let found = row::find(self.connection, &mut self.names, id);
            let Some((job, _)) = self.skip_unreadable(id, found)?.flatten() else {
                continue;
            };
            self.index
                .put(id, Entry::Running(Arc::new(Running { job, queue, kind })));
        }
        for (claim, attempts) in claims {
            let claim = u128::from_be_bytes(claim);
            self.claims.add(WorkerLocation::Remote, claim, attempts);
        }
        self.claims.commit();
        Ok(())
    }

    fn hold_key(&mut self, id: JobId, loaded: LoadedJob) {
        if let Some(key) = loaded.key {
            let hold = Some(Hold { id, until: None });
            self.index.set_hold(loaded.waiting.queue, key, hold);
        }
    }

    /// Ends attempts whose worker ran in the previous process of this store: that process has
    /// ended, so there is no need to wait until the lease expires. Returns how many attempts were
    /// ended; the first sweep reports them. Remote workers may still be running, so their attempts
    /// continue. If the database refuses to end an attempt, a later sweep tries again.
    pub(crate) fn end_lost_attempts(
        &mut self,
        now: Timestamp,
        random: u64,
    ) -> Result<usize, StoreError> {
        match self.group_while_opening(|writer| writer.end_all_lost_attempts(now, random)) {
            Err(StoreError::Refused { .. }) => {}
            done => return done,
        }
        self.lost_at_opening.clear();
        let mut random = Random::new(random);
        for id in self.index.all_running() {
            let bits = random.bits();
            let ended = self.group_while_opening(|writer| match writer.has_remote_worker(id)? {
                (true, _) => Ok(None),
                (false, _) => writer.lose(id, now, bits).map(Some),
            });
            match ended {
                Err(StoreError::Refused { reason }) => {
                    tracing::warn!(job.id = %id, reason, "the database refused to end a lost attempt; trying again later");
                }
                lost => self.lost_at_opening.extend(lost?),
            }
        }
        Ok(self.lost_at_opening.len())
    }

    /// Returns whether the worker of a running job is remote, and the number of its retry policy.
    fn has_remote_worker(&self, id: JobId) -> DriverResult<(bool, Option<i64>)> {
        let mut statement = self
            .connection
            .prepare_cached("select claim is not null, policy from states where id = ?1")?;
        Ok(statement.query_row([row::blob(id)], |row| Ok((row.get(0)?, row.get(1)?)))?)
    }

    fn end_all_lost_attempts(&mut self, now: Timestamp, random: u64) -> DriverResult<usize> {
        let mut random = Random::new(random);
        let (mut lost, mut policies) = (0, BTreeSet::new());
        for id in self.index.all_running() {
            let (is_remote, policy) = self.has_remote_worker(id)?;
            if is_remote {
                policies.extend(policy);
                continue;
            }
            let attempt = self.lose(id, now, random.bits())?;
            self.lost_at_opening.push(attempt);
            lost += 1;
        }
        self.names.keep_policies(self.connection, &policies)?;
        Ok(lost)
    }
}

/// What the index needs to know about an active job.
struct LoadedJob {
    waiting: Waiting,
    key: Option<Key>,
    is_running: bool,
    attempt: u32,
    claim: Option<[u8; 16]>,
}

impl LoadedJob {
    fn read(row: &Row<'_>) -> DriverResult<Self> {
        let extra = row
            .get_ref(5)?
            .as_str_or_null()
            .map_err(rusqlite::Error::from)?;
        let extra = OptionalFields::parse(extra).map_err(DriverError::damaged)?;
        let state: Option<i64> = row.get(6)?;
        let run_at = match row.get::<_, Option<i64>>(7)? {
            Some(run_at) => run_at,
            None => row.get(4)?,
        };
        let failures: Option<u32> = row.get(8)?;
        let interventions = row.get_ref(11)?.as_str_or_null();
        let interventions = interventions.map_err(rusqlite::Error::from)?;
        let interventions = parse_interventions(interventions).map_err(DriverError::damaged)?;
        let attempt: Option<u32> = row.get(9)?;
        Ok(LoadedJob {
            waiting: Waiting {
                run_at: timestamp(run_at)?,
                deadline: extra.deadline.map(timestamp).transpose()?,
                concurrency: extra
                    .concurrency
                    .map(|(key, limit)| Arc::new(Concurrency { key, limit })),
                queue: row.get(1)?,
                kind: row.get(2)?,
                priority: row.get(3)?,
                // As `Job::lane` says.
                lane: if failures.unwrap_or(0) > 0 || interventions.revived.is_some() {
                    Lane::Retry
                } else {
                    Lane::Fresh
                },
                has_state: state.is_some(),
            },
            key: extra.unique.map(|(key, _, _)| key),
            is_running: state == Some(row::RUNNING),
            attempt: attempt.unwrap_or(0),
            claim: row.get(10)?,
        })
    }
}

fn read_hold(row: &Row<'_>) -> DriverResult<(u32, Key, Hold)> {
    let key: String = row.get(1)?;
    let key = key
        .parse()
        .map_err(|error| DriverError::damaged(format!("a unique key: {error}")))?;
    let hold = Hold {
        id: id_of(row, 2)?,
        until: Some(timestamp(row.get(3)?)?),
    };
    Ok((row.get(0)?, key, hold))
}
