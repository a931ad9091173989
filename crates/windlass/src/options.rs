//! What can be said about a job beside its payload.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass_core::retry::{AttemptLimit, Preset, RetryPolicy};
use windlass_core::{
    Concurrency, Deadline, Delivery, Invalid, Key, Kind, NewJob, OnDuplicate, Payload, QueueName,
    Start, Tag, Timeout, Timestamp, Unique,
};

/// Options of a job: its defaults, or what one enqueue says. What is not said is at its default.
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
    /// The first thing that was wrong.
    invalid: Option<Invalid>,
}

/// A retry policy, or the name of a preset.
#[derive(Debug, Clone)]
pub enum Retry {
    /// A policy of one's own.
    Policy(RetryPolicy),
    /// One that has a name.
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

/// The same options on everything that enqueues.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $of:ty),*) $body:expr;)*) => {
        impl Options {
            /// Everything at its default.
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
    /// Where it waits; `default` if not said.
    queue(name: &str) |options, name| {
        options.queue = Some(QueueName::new(name).map_err(|error| error.within("queue"))?);
        Ok(())
    };
    /// How urgent it is: higher runs first.
    priority(priority: i16) |options, priority| {
        options.priority = Some(priority);
        Ok(())
    };
    /// It starts so long after the enqueue at the earliest.
    delay(delay: Duration) |options, delay| {
        options.start = Some(Start::After(delay));
        Ok(())
    };
    /// It starts then at the earliest.
    run_at(at: Timestamp) |options, at| {
        options.start = Some(Start::At(at));
        Ok(())
    };
    /// It is never started again by itself once it was started: for what must not happen twice.
    at_most_once() |options| {
        options.delivery = Some(Delivery::AtMostOnce);
        Ok(())
    };
    /// How many attempts may fail in all.
    max_attempts(count: u32) |options, count| {
        options.max_attempts = Some(i64::from(count));
        Ok(())
    };
    /// How many retries may follow the first attempt.
    max_retries(count: u32) |options, count| {
        options.max_retries = Some(i64::from(count));
        Ok(())
    };
    /// How long one attempt may take; an hour if not said.
    timeout(timeout: Duration) |options, timeout| {
        options.timeout = Some(Timeout::After(timeout));
        Ok(())
    };
    /// An attempt may take as long as it likes.
    no_timeout() |options| {
        options.timeout = Some(Timeout::None);
        Ok(())
    };
    /// No attempt starts after it.
    deadline(at: Timestamp) |options, at| {
        options.deadline = Some(Deadline::At(at));
        Ok(())
    };
    /// No attempt starts so long after the enqueue.
    expires_in(span: Duration) |options, span| {
        options.deadline = Some(Deadline::After(span));
        Ok(())
    };
    /// While a job with this key waits or runs in its queue, another one is not enqueued.
    unique_key(key: &str) |options, key| {
        options.unique_key = Some(Key::new(key).map_err(|error| error.within("unique_key"))?);
        Ok(())
    };
    /// The unique key is held for so long after the enqueue, even if the job is over before.
    unique_for(span: Duration) |options, span| {
        options.unique_for = Some(span);
        Ok(())
    };
    /// A waiting job with the same unique key takes the new payload and `run_at` (debounce).
    replace_duplicate() |options| {
        options.on_duplicate = Some(OnDuplicate::Replace);
        Ok(())
    };
    /// It starts only while fewer than `limit` jobs are running with this key, over all queues and nodes.
    concurrency_key(key: &str, limit: u32) |options, key, limit| {
        let key = Key::new(key).map_err(|error| error.within("concurrency_key"))?;
        options.concurrency = Some(Concurrency { key, limit });
        Ok(())
    };
    /// A label for people and search; may be said again.
    tag(tag: &str) |options, tag| {
        options.tags.push(Tag::new(tag).map_err(|error| error.within("tags"))?);
        Ok(())
    };
    /// Something for people and programs; may be said again.
    meta(name: &str, value: Value) |options, name, value| {
        options.meta.insert(name.to_owned(), value);
        Ok(())
    };
}

impl<Answer> crate::client::Enqueue<'_, Answer> {
    /// How retries are timed: a preset, or a policy of one's own.
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.options = self.options.retry(policy);
        self
    }
}

impl Options {
    /// How retries are timed: a preset, or a policy of one's own.
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.retry = Some(policy.into().into_policy());
        self
    }

    /// What is not said here is as the defaults say. The policy of the defaults is the kind's, which the worker knows.
    pub(crate) fn over(self, defaults: Options) -> Options {
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

    /// The job that is asked for.
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
            let rule = "is required where `unique_for` or `replace_duplicate` is given";
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
