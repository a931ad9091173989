//! Jobs on their way into the store.

use std::future::IntoFuture;
use std::pin::Pin;

use serde_json::Value;
use windlass_core::{Invalid, Job as StoredJob, JobId, Kind, Payload};
use windlass_store::{ENQUEUE_MAX, EnqueueMode, Enqueued, StoreError};

use super::{Client, kind_of, payload_of};
use crate::error::Error;
use crate::job::{Job, VERSION};
use crate::options::Options;

/// What became of a job that was enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Receipt {
    /// The job; where its unique key was taken, the one that was there first.
    pub id: JobId,
    /// Its unique key was taken: nothing new was stored.
    pub duplicate: bool,
    /// The job that was there first has another payload.
    pub payload_differs: bool,
    /// The job that was there first has the new payload and `run_at` now.
    pub replaced: bool,
}

/// An enqueue of one job, or of many: say options, then await it.
///
/// Awaiting it answers a [`Receipt`]; for many jobs, use [`Enqueue::all`].
#[derive(Debug)]
#[must_use = "nothing is enqueued until it is awaited"]
pub struct Enqueue<'a> {
    client: &'a Client,
    pub(crate) options: Options,
    defaults: Options,
    kind: Result<Kind, Invalid>,
    payloads: Result<Vec<(Payload, Option<String>)>, Invalid>,
    version: u32,
}

impl<'a> Enqueue<'a> {
    pub(super) fn typed<T: Job>(client: &'a Client, jobs: &[T]) -> Self {
        Enqueue {
            client,
            options: Options::new(),
            defaults: T::defaults(),
            kind: kind_of::<T>(),
            payloads: jobs
                .iter()
                .map(|job| Ok((payload_of(job)?, job.unique_key())))
                .collect(),
            version: T::VERSION,
        }
    }

    pub(super) fn json(client: &'a Client, kind: &str, payload: &Value) -> Self {
        Enqueue {
            client,
            options: Options::new(),
            defaults: Options::new(),
            kind: Kind::new(kind).map_err(|error| error.within("kind")),
            payloads: payload_of(payload).map(|payload| vec![(payload, None)]),
            version: 1,
        }
    }

    /// Stores all of them in steps of up to 10,000, each all or none; one receipt for each, in order.
    pub async fn all(self) -> Result<Vec<Receipt>, Error> {
        let client = self.client;
        let mut jobs = self.jobs()?;
        let mut receipts = Vec::with_capacity(jobs.len());
        while !jobs.is_empty() {
            let rest = jobs.split_off(jobs.len().min(ENQUEUE_MAX));
            for answer in client.engine.enqueue(jobs, EnqueueMode::AllOrNone).await? {
                receipts.push(answer.try_into()?);
            }
            jobs = rest;
        }
        Ok(receipts)
    }

    /// The jobs, checked.
    fn jobs(self) -> Result<Vec<StoredJob>, Error> {
        let engine = self.client.engine();
        let now = engine.now();
        let mut said = self.options;
        if self.version > 1 {
            said = said.meta(VERSION, self.version.into());
        }
        let options = said.clone().over(self.defaults.clone());
        let kind = self.kind?;
        let made = self.payloads?.into_iter().map(|(payload, unique_key)| {
            let options = match unique_key {
                None => options.clone(),
                Some(key) => {
                    let own = Options::new().unique_key(&key);
                    said.clone().over(own.over(self.defaults.clone()))
                }
            };
            let new = options.into_new_job(kind.clone(), payload)?;
            Ok(new.into_job(engine.ids().job(now), now)?)
        });
        made.collect()
    }
}

impl<'a> IntoFuture for Enqueue<'a> {
    type Output = Result<Receipt, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let receipts = self.all().await?;
            let none = || Invalid::new("jobs", "must be at least one").into();
            receipts.into_iter().next().ok_or_else(none)
        })
    }
}

impl TryFrom<Enqueued> for Receipt {
    type Error = StoreError;

    /// What the store answered; an error where the queue is full, as nothing was stored then.
    fn try_from(answer: Enqueued) -> Result<Self, StoreError> {
        let plain = |id| Receipt {
            id,
            duplicate: false,
            payload_differs: false,
            replaced: false,
        };
        match answer {
            Enqueued::Created(id) => Ok(plain(id)),
            Enqueued::Duplicate {
                id,
                payload_differs,
            } => Ok(Receipt {
                duplicate: true,
                payload_differs,
                ..plain(id)
            }),
            Enqueued::Replaced(id) => Ok(Receipt {
                duplicate: true,
                replaced: true,
                ..plain(id)
            }),
            Enqueued::QueueFull { queue, max_depth } => {
                Err(StoreError::QueueFull { queue, max_depth })
            }
        }
    }
}
