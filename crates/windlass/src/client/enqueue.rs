//! Jobs on their way into the store.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;

use serde_json::Value;
use windlass_core::{Invalid, Job as StoredJob, JobId, Kind, Payload, Timestamp};
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

/// An enqueue of one job, or of many: set options, then await it.
///
/// Awaiting returns `Answer`: a [`Receipt`] for one job, one receipt per job and in their order for many.
#[derive(Debug)]
#[must_use = "nothing is enqueued until it is awaited"]
pub struct Enqueue<'a, Answer = Receipt> {
    client: &'a Client,
    pub(crate) options: Options,
    defaults: Options,
    kind: Result<Kind, Invalid>,
    payloads: Result<Vec<(Payload, Option<String>)>, Invalid>,
    version: u32,
    answer: PhantomData<fn() -> Answer>,
}

impl<'a, Answer> Enqueue<'a, Answer> {
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
            answer: PhantomData,
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
            answer: PhantomData,
        }
    }

    /// Stores the jobs in steps of up to [`ENQUEUE_MAX`]. Each step stores all of its jobs or none.
    async fn store(self) -> Result<Vec<Receipt>, Error> {
        let client = self.client;
        let mut jobs = self.jobs()?;
        let total = jobs.len();
        let mut receipts = Vec::with_capacity(total);
        while !jobs.is_empty() {
            let rest = jobs.split_off(jobs.len().min(ENQUEUE_MAX));
            match store_step(client, jobs).await {
                Ok(stored) => receipts.extend(stored),
                Err(error) if receipts.is_empty() => return Err(error.into()),
                Err(source) => {
                    return Err(Error::EnqueuedInPart {
                        receipts,
                        total,
                        source,
                    });
                }
            }
            jobs = rest;
        }
        Ok(receipts)
    }

    /// The deadline of jobs that have none of their own, and no type with one.
    pub(crate) fn inherit_deadline(mut self, deadline: Timestamp) -> Self {
        let inherited = Options::new().deadline(deadline);
        self.defaults = self.defaults.over(inherited);
        self
    }

    /// The jobs, checked.
    fn jobs(self) -> Result<Vec<StoredJob>, Error> {
        let engine = &self.client.engine;
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

/// Stores all of these jobs or none.
async fn store_step(client: &Client, jobs: Vec<StoredJob>) -> Result<Vec<Receipt>, StoreError> {
    let answers = client.engine.enqueue(jobs, EnqueueMode::AllOrNone).await?;
    answers.into_iter().map(Receipt::try_from).collect()
}

impl<'a> IntoFuture for Enqueue<'a, Receipt> {
    type Output = Result<Receipt, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let receipt = self.store().await?.pop();
            Ok(receipt.expect("one job gets one receipt"))
        })
    }
}

impl<'a> IntoFuture for Enqueue<'a, Vec<Receipt>> {
    type Output = Result<Vec<Receipt>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.store())
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
