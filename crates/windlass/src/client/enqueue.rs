//! Enqueuing: options and payloads become stored jobs.

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

/// The answer to an enqueue: the id of the job, and whether the job is a duplicate.
///
/// ```
/// # use windlass::{Client, Job};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Sync { account: u32 }
/// # impl Job for Sync { const KIND: &'static str = "sync"; }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windlass::Error> {
/// let client = Client::open("memory:").await?;
/// let first = client.enqueue(Sync { account: 1 }).unique_key("account-1").await?;
/// let second = client.enqueue(Sync { account: 1 }).unique_key("account-1").await?;
/// assert!(!first.duplicate);
/// assert!(second.duplicate); // nothing was stored
/// assert_eq!(second.id, first.id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Receipt {
    /// The job. For a duplicate, this is the existing job that holds the unique key.
    pub id: JobId,
    /// Whether another job holds the unique key, so that no new job was stored.
    pub duplicate: bool,
    /// Whether the existing job has another payload than the duplicate.
    pub payload_differs: bool,
    /// Whether the existing job took over the new payload and `run_at`, see
    /// [`Options::replace_duplicate`].
    pub replaced: bool,
}

/// An enqueue of one or many jobs, before it is sent: set options, then await it.
///
/// [`Client::enqueue`] and [`Client::enqueue_many`] return it. The methods are those of [`Options`],
/// and take precedence over the [defaults](Job::defaults) of the job's type. Awaiting it returns
/// `Answer`: a [`Receipt`] for one job, a `Vec` with one receipt per job for many.
///
/// The first invalid option is reported when the enqueue is awaited.
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

    /// Stores the jobs in batches of up to [`ENQUEUE_MAX`]. Each batch is stored completely or not at all.
    async fn store(self) -> Result<Vec<Receipt>, Error> {
        let client = self.client;
        let mut jobs = self.jobs()?;
        let total = jobs.len();
        let mut receipts = Vec::with_capacity(total);
        while !jobs.is_empty() {
            let rest = jobs.split_off(jobs.len().min(ENQUEUE_MAX));
            match store_batch(client, jobs).await {
                Ok(stored) => receipts.extend(stored),
                Err(error) if receipts.is_empty() => return Err(error.into()),
                Err(source) => {
                    return Err(Error::PartiallyEnqueued {
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

    /// Sets the deadline of jobs for which neither the enqueue nor their type sets one.
    pub(crate) fn inherit_deadline(mut self, deadline: Timestamp) -> Self {
        let inherited = Options::new().deadline(deadline);
        self.defaults = self.defaults.with_defaults(inherited);
        self
    }

    /// Builds the jobs and checks them.
    fn jobs(self) -> Result<Vec<StoredJob>, Error> {
        let engine = &self.client.engine;
        let now = engine.now();
        let mut explicit = self.options;
        if self.version > 1 {
            explicit = explicit.meta(VERSION, self.version.into());
        }
        let options = explicit.clone().with_defaults(self.defaults.clone());
        let kind = self.kind?;
        let jobs = self.payloads?.into_iter().map(|(payload, unique_key)| {
            let options = match unique_key {
                None => options.clone(),
                Some(key) => {
                    let of_job = Options::new().unique_key(&key);
                    let defaults = of_job.with_defaults(self.defaults.clone());
                    explicit.clone().with_defaults(defaults)
                }
            };
            let new = options.into_new_job(kind.clone(), payload)?;
            Ok(new.into_job(engine.ids().job(now), now)?)
        });
        jobs.collect()
    }
}

impl Client {
    /// Stores up to 10,000 jobs that the program built itself, with ids of its own. Returns one
    /// receipt per job, in their order, or why the store refused that job.
    ///
    /// For programs that accept jobs from others, as the Windlass server does. To repeat a call
    /// safely, give the jobs the same ids: a job whose id exists is not stored again.
    pub async fn enqueue_jobs(
        &self,
        jobs: Vec<StoredJob>,
        mode: EnqueueMode,
    ) -> Result<Vec<Result<Receipt, StoreError>>, StoreError> {
        let answers = self.engine.enqueue(jobs, mode).await?;
        Ok(answers.into_iter().map(Receipt::try_from).collect())
    }
}

/// Stores all of these jobs or none.
async fn store_batch(client: &Client, jobs: Vec<StoredJob>) -> Result<Vec<Receipt>, StoreError> {
    let receipts = client.enqueue_jobs(jobs, EnqueueMode::AllOrNone).await?;
    receipts.into_iter().collect()
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

    /// Converts the answer of the store. A full queue is an error, because nothing was stored.
    fn try_from(answer: Enqueued) -> Result<Self, StoreError> {
        let created = |id| Receipt {
            id,
            duplicate: false,
            payload_differs: false,
            replaced: false,
        };
        match answer {
            Enqueued::Created(id) => Ok(created(id)),
            Enqueued::Duplicate {
                id,
                payload_differs,
            } => Ok(Receipt {
                duplicate: true,
                payload_differs,
                ..created(id)
            }),
            Enqueued::Replaced(id) => Ok(Receipt {
                duplicate: true,
                replaced: true,
                ..created(id)
            }),
            Enqueued::QueueFull { queue, max_depth } => {
                Err(StoreError::QueueFull { queue, max_depth })
            }
        }
    }
}
