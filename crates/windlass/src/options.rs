//! Options of a job: everything about it but its kind and payload.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass_core::retry::{AttemptLimit, Preset, RetryPolicy};
use windlass_core::{
    Concurrency, Deadline, Delivery, Invalid, Key, Kind, NewJob, OnDuplicate, Payload, QueueName,
    Start, Tag, Timeout, Timestamp, Unique,
};

/// Options of a job: queue, priority, time, retries, timeout, keys and labels.
///
/// The same options exist in two places. [`Job::defaults`](crate::Job::defaults) returns those of
/// all jobs of a type, and the methods of [`Enqueue`](crate::Enqueue) override them for one enqueue.
/// Tags and `meta` of both are merged. A [`Schedule`](crate::Schedule) takes them with
/// [`Schedule::options`](crate::Schedule::options).
///
/// ```
/// use std::time::Duration;
///
/// use serde::{Deserialize, Serialize};
/// use windlass::{Client, Job, Options};
///
/// #[derive(Serialize, Deserialize)]
/// struct Export {
///     account: u32,
/// }
///
/// impl Job for Export {
///     const KIND: &'static str = "export";
///
///     fn defaults() -> Options {
///         Options::new().queue("slow").timeout(Duration::from_secs(600)).tag("export")
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windlass::Error> {
/// let client = Client::open("memory:").await?;
/// let receipt = client
///     .enqueue(Export { account: 7 })
///     .priority(5)
///     .concurrency_key("account-7", 1) // at most one job of this account runs at a time
///     .expires_in(Duration::from_secs(24 * 3600))
///     .await?;
/// let job = client.get(receipt.id).await?.expect("it is stored");
/// assert_eq!((job.queue.as_str(), job.priority), ("slow", 5));
/// # Ok(())
/// # }
/// ```
///
/// An invalid value is reported as [`Error::Invalid`](crate::Error::Invalid) when the job is
/// enqueued.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Options {
    queue: Option<QueueName>,
    priority: Option<i16>,
    start: Option<Start>,
    delivery: Option<Delivery>,
    max_attempts: Option<i64>,
    max_retries: Option<i64>,
    retry: Option<Arc<RetryPolicy>>,
    timeout: Option<Timeout>,
    deadline: Option<Deadline>,
    unique_key: Option<Key>,
    unique_for: Option<Duration>,
    on_duplicate: Option<OnDuplicate>,
    concurrency: Option<Concurrency>,
    tags: Vec<Tag>,
    meta: BTreeMap<String, Value>,
    /// The first invalid value.
    invalid: Option<Invalid>,
}

/// A retry policy: a [`Preset`] or your own [`RetryPolicy`].
///
/// Both convert into it, so methods such as [`Options::retry`] accept either.
#[derive(Debug, Clone)]
pub enum Retry {
    /// Your own policy.
    Policy(RetryPolicy),
    /// A policy with a name.
    Preset(Preset),
}

impl From<RetryPolicy> for Retry {
    fn from(policy: RetryPolicy) -> Self {
        Retry::Policy(policy)
    }
}

impl From<Preset> for Retry {
    fn from(preset: Preset) -> Self {
        Retry::Preset(preset)
    }
}

impl Retry {
    pub(crate) fn into_policy(self) -> Arc<RetryPolicy> {
        Arc::new(match self {
            Retry::Policy(policy) => policy,
            Retry::Preset(preset) => preset.policy(),
        })
    }
}

/// Defines the same methods on [`Options`] and on [`Enqueue`](crate::Enqueue).
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $of:ty),*) $body:expr;)*) => {
        impl Options {
            /// Returns options in which everything is at its default.
            pub fn new() -> Self {
                Options::default()
            }

            $($(#[$doc])* pub fn $name(mut self, $($argument: $of),*) -> Self {
                let set: fn(&mut Options, $($of),*) -> Result<(), Invalid> = $body;
                if let Err(invalid) = set(&mut self, $($argument),*) {
                    self.invalid.get_or_insert(invalid);
                }
                self
            })*
        }

        impl<Answer> crate::client::Enqueue<'_, Answer> {
            $($(#[$doc])* pub fn $name(mut self, $($argument: $of),*) -> Self {
                self.options = self.options.$name($($argument),*);
                self
            })*
        }
    };
}

options! {
    /// Sets the queue that the job waits in. The default is `default`.
    queue(name: &str) |options, name| {
        options.queue = Some(QueueName::new(name).map_err(|error| error.within("queue"))?);
        Ok(())
    };
    /// Sets the priority: within a queue, jobs with a higher priority run first. The default is 0.
    priority(priority: i16) |options, priority| {
        options.priority = Some(priority);
        Ok(())
    };
    /// Delays the first attempt: it starts this long after the enqueue, or later.
    delay(delay: Duration) |options, delay| {
        options.start = Some(Start::After(delay));
        Ok(())
    };
    /// Sets the time of the first attempt: it starts at this instant or later.
    run_at(at: Timestamp) |options, at| {
        options.start = Some(Start::At(at));
        Ok(())
    };
    /// Never starts the job a second time automatically, for work that must not happen twice.
    ///
    /// If its worker dies, the job is dead with the reason
    /// [`DeadReason::Lost`](crate::DeadReason::Lost), because it may have run. A person then decides:
    /// [`Client::resolve`](crate::Client::resolve) or [`Client::revive`](crate::Client::revive).
    /// Without this option, a job runs at least once.
    at_most_once() |options| {
        options.delivery = Some(Delivery::AtMostOnce);
        Ok(())
    };
    /// Limits how many attempts may fail before the job is dead, the first one included.
    ///
    /// Overrides the limit of the retry policy. The cap of the worker
    /// ([`Worker::attempt_cap`](crate::Worker::attempt_cap)) still applies. With 0, the policy sets
    /// the limit.
    max_attempts(count: u32) |options, count| {
        options.max_attempts = Some(i64::from(count));
        Ok(())
    };
    /// Limits how many retries may follow the first attempt: one less than `max_attempts`.
    max_retries(count: u32) |options, count| {
        options.max_retries = Some(i64::from(count));
        Ok(())
    };
    /// Sets how long one attempt may take. The default is 1 h. A timeout is a failure.
    timeout(timeout: Duration) |options, timeout| {
        options.timeout = Some(Timeout::After(timeout));
        Ok(())
    };
    /// Removes the timeout: an attempt may take any time.
    no_timeout() |options| {
        options.timeout = Some(Timeout::None);
        Ok(())
    };
    /// Sets the deadline: no attempt starts after this instant, and the job is dead instead.
    deadline(at: Timestamp) |options, at| {
        options.deadline = Some(Deadline::At(at));
        Ok(())
    };
    /// Sets the deadline relative to the enqueue.
    expires_in(span: Duration) |options, span| {
        options.deadline = Some(Deadline::After(span));
        Ok(())
    };
    /// Sets the unique key: while a job with this key is waiting or running in the same queue,
    /// another enqueue stores nothing.
    ///
    /// The second enqueue returns the existing job, see
    /// [`Receipt::duplicate`](crate::Receipt::duplicate).
    unique_key(key: &str) |options, key| {
        options.unique_key = Some(Key::new(key).map_err(|error| error.within("unique_key"))?);
        Ok(())
    };
    /// Holds the unique key for at least this long after the enqueue, even if the job finishes
    /// earlier. Requires a unique key.
    unique_for(span: Duration) |options, span| {
        options.unique_for = Some(span);
        Ok(())
    };
    /// Replaces the payload and `run_at` of a waiting job with the same unique key (debounce).
    /// Requires a unique key.
    replace_duplicate() |options| {
        options.on_duplicate = Some(OnDuplicate::Replace);
        Ok(())
    };
    /// Sets the concurrency key: at most `limit` jobs with this key run at the same time, over all
    /// queues and nodes.
    concurrency_key(key: &str, limit: u32) |options, key, limit| {
        let key = Key::new(key).map_err(|error| error.within("concurrency_key"))?;
        options.concurrency = Some(Concurrency { key, limit });
        Ok(())
    };
    /// Adds a tag, for people and for [`Filter::tag`](crate::Filter::tag). At most 32.
    tag(tag: &str) |options, tag| {
        options.tags.push(Tag::new(tag).map_err(|error| error.within("tags"))?);
        Ok(())
    };
    /// Adds an entry to `meta`, for people and programs. At most 64 entries and 16 KiB of JSON.
    meta(name: &str, value: Value) |options, name, value| {
        options.meta.insert(name.to_owned(), value);
        Ok(())
    };
}

impl<Answer> crate::client::Enqueue<'_, Answer> {
    /// Sets the retry policy of the jobs: a [`Preset`] or your own [`RetryPolicy`].
    ///
    /// It overrides the policies of the kind, the queue and the worker.
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.options = self.options.retry(policy);
        self
    }
}

impl Options {
    /// Sets the retry policy: a [`Preset`] or your own [`RetryPolicy`]. See
    /// [`retry`](crate::retry) for the order in which policies apply.
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.retry = Some(policy.into().into_policy());
        self
    }

    /// Fills options that are not set from the defaults.
    ///
    /// The retry policy is not taken over: the policy of the defaults belongs to the kind, and the
    /// worker applies it.
    pub(crate) fn with_defaults(self, defaults: Options) -> Options {
        let mut tags = defaults.tags;
        tags.extend(self.tags);
        let mut meta = defaults.meta;
        meta.extend(self.meta);
        let limited = self.max_attempts.is_some() || self.max_retries.is_some();
        let (max_attempts, max_retries) = if limited {
            (self.max_attempts, self.max_retries)
        } else {
            (defaults.max_attempts, defaults.max_retries)
        };
        Options {
            queue: self.queue.or(defaults.queue),
            priority: self.priority.or(defaults.priority),
            start: self.start.or(defaults.start),
            delivery: self.delivery.or(defaults.delivery),
            max_attempts,
            max_retries,
            retry: self.retry,
            timeout: self.timeout.or(defaults.timeout),
            deadline: self.deadline.or(defaults.deadline),
            unique_key: self.unique_key.or(defaults.unique_key),
            unique_for: self.unique_for.or(defaults.unique_for),
            on_duplicate: self.on_duplicate.or(defaults.on_duplicate),
            concurrency: self.concurrency.or(defaults.concurrency),
            tags,
            meta,
            invalid: self.invalid.or(defaults.invalid),
        }
    }

    pub(crate) fn retry_of_kind(&self) -> Option<Arc<RetryPolicy>> {
        self.retry.clone()
    }

    /// Builds the job, or returns the first invalid value.
    pub(crate) fn into_new_job(self, kind: Kind, payload: Payload) -> Result<NewJob, Invalid> {
        if let Some(invalid) = self.invalid {
            return Err(invalid);
        }
        let plain = NewJob::new(kind);
        let unique = self.unique_key.map(|key| Unique {
            key,
            unique_for: self.unique_for,
            on_duplicate: self.on_duplicate.unwrap_or_default(),
        });
        if unique.is_none() && (self.unique_for.is_some() || self.on_duplicate.is_some()) {
            let rule = "is required with `unique_for` or `replace_duplicate`";
            return Err(Invalid::new("unique_key", rule));
        }
        Ok(NewJob {
            payload,
            queue: self.queue.unwrap_or_default(),
            priority: self.priority.unwrap_or(plain.priority),
            start: self.start.unwrap_or_default(),
            delivery: self.delivery.unwrap_or_default(),
            max_attempts: AttemptLimit::from_either(self.max_attempts, self.max_retries)?,
            retry: self.retry,
            timeout: self.timeout,
            deadline: self.deadline,
            unique,
            concurrency: self.concurrency,
            tags: self.tags,
            meta: self.meta,
            ..plain
        })
    }
}
