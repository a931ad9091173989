//! Queues over all workers and nodes: their settings, their pauses, and which exist.

use std::collections::BTreeMap;

use windlass_core::fairness::{ClaimSettings, QueueSettings};
use windlass_core::fields::nearest;
use windlass_core::{Invalid, QueueName};
use windlass_engine::{
    QUEUE_SETTINGS, WorkerDescription, is_alive, read_all_claim_settings, read_claim_settings,
};
use windlass_store::{
    Counts, Expected, Filter, Node, PAUSE_REASON_CHARS_MAX, Page, Pause, QueueLimits, StoreError,
    Written, compare_and_set,
};

use super::Client;
use crate::error::Error;

/// What the store knows about a queue.
#[derive(Debug, Clone, Default)]
pub struct QueueInfo {
    /// How many of its jobs are in each state.
    pub counts: Counts,
    /// Who paused it, if it is paused.
    pub paused: Option<Pause>,
    /// Its settings. Those that cannot be read are at their defaults.
    pub settings: QueueSettings,
    /// Whether this version cannot read all of its settings.
    pub settings_unreadable: bool,
}

/// How a queue is claimed, or why that cannot be read.
type Claims = Result<ClaimSettings, Invalid>;

impl QueueInfo {
    fn new(counts: Option<Counts>, limits: Option<QueueLimits>, claims: Option<Claims>) -> Self {
        let limits = limits.unwrap_or_default();
        let claims = claims.unwrap_or_else(|| Ok(ClaimSettings::default()));
        QueueInfo {
            counts: counts.unwrap_or_default(),
            settings_unreadable: limits.unreadable || claims.is_err(),
            settings: QueueSettings {
                max_depth: limits.max_depth,
                concurrency: limits.concurrency,
                rate: limits.rate,
                claims: claims.unwrap_or_default(),
            },
            paused: limits.paused,
        }
    }
}

impl Client {
    /// Returns all queues that have jobs, settings or a pause, by name.
    pub async fn queues(&self) -> Result<BTreeMap<QueueName, QueueInfo>, Error> {
        let (store, now) = (self.engine.store(), self.now());
        let mut counts = store.counts(now).await?;
        let mut limits = store.queues().await?;
        let mut claims = read_all_claim_settings(store, now).await?;
        let names = counts.keys().chain(limits.keys()).chain(claims.keys());
        let names: Vec<QueueName> = names.cloned().collect();
        let mut queues = BTreeMap::new();
        for name in names {
            queues.entry(name).or_insert_with_key(|name| {
                let (counts, limits) = (counts.remove(name), limits.remove(name));
                QueueInfo::new(counts, limits, claims.remove(name))
            });
        }
        Ok(queues)
    }

    /// Returns one queue. A queue that does not exist looks like one without jobs and settings.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueInfo, Error> {
        let (store, now) = (self.engine.store(), self.now());
        let counts = store.counts(now).await?.remove(name);
        let limits = store.queues().await?.remove(name);
        let claims = read_claim_settings(store, name, now).await?;
        Ok(QueueInfo::new(counts, limits, Some(claims)))
    }

    /// Replaces all settings of a queue on all nodes. A pause of the queue stays.
    ///
    /// A setting that `settings` leaves out goes back to its default, also if this version cannot
    /// read its stored value.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the name is not valid; [`Error::QueueContended`] if other writers keep
    /// changing the queue.
    pub async fn set_queue(&self, name: &str, settings: &QueueSettings) -> Result<(), Error> {
        let (queue, store) = (parse_name(name)?, self.engine.store());
        check_reserved(&queue, settings)?;
        let contended = || Error::QueueContended(queue.clone());
        compare_and_set(contended, || async {
            let written = self.write_claims(&queue, settings, Expected::Any).await?;
            self.change_queue(&queue, |before| limits(settings, before.own_pause()))
                .await?;
            // The settings are in two places. If another writer replaced the document meanwhile,
            // the limits may now be ours and the document theirs, so both are written again.
            let name = queue.as_str();
            let document = store.document(QUEUE_SETTINGS, name, self.now()).await?;
            let current = document.map(|document| Written::Version(document.version));
            Ok((current == Some(written)).then_some(()))
        })
        .await
    }

    /// Sets up a queue that has no settings yet, and returns whether it did. If the queue has
    /// settings, nothing changes. A pause of the queue stays.
    ///
    /// # Errors
    ///
    /// As [`Client::set_queue`].
    pub async fn create_queue(&self, name: &str, settings: &QueueSettings) -> Result<bool, Error> {
        let (queue, store) = (parse_name(name)?, self.engine.store());
        check_reserved(&queue, settings)?;
        // The document decides which of several calls at the same time creates the settings.
        let written = self.write_claims(&queue, settings, Expected::Absent);
        let Written::Version(version) = written.await? else {
            return Ok(false);
        };
        let contended = || Error::QueueContended(queue.clone());
        let created = compare_and_set(contended, || async {
            let before = store.queues().await?.remove(&queue).unwrap_or_default();
            if before != limits(&QueueSettings::default(), before.paused.clone()) {
                return Ok(Some(false));
            }
            let limits = limits(settings, before.paused.clone());
            let written = store.put_queue(&queue, &limits, Some(&before)).await?;
            Ok(written.then_some(true))
        })
        .await?;
        if !created {
            // The limits were set without a document, so the new document is removed again.
            let ours = Expected::Version(version);
            store
                .remove_document(QUEUE_SETTINGS, queue.as_str(), ours)
                .await?;
        }
        Ok(created)
    }

    async fn write_claims(
        &self,
        queue: &QueueName,
        settings: &QueueSettings,
        expected: Expected,
    ) -> Result<Written, Error> {
        let value = settings.claims.to_json().into();
        let (store, now) = (self.engine.store(), self.now());
        let written =
            store.put_document(QUEUE_SETTINGS, queue.as_str(), &value, expected, None, now);
        Ok(written.await?)
    }

    /// Pauses a queue on all nodes: no worker claims its jobs until it is resumed.
    ///
    /// Jobs that are running continue, and new jobs can be enqueued. `by` says who paused it and
    /// `reason` why, for other operators. A reason has at most 500 characters.
    ///
    /// A queue that is paused already stays paused by whom and since when it was. A new reason
    /// replaces the old one.
    ///
    /// # Errors
    ///
    /// As [`Client::set_queue`], and [`Error::Invalid`] if the reason is empty or too long.
    pub async fn pause_queue(
        &self,
        name: &str,
        by: &str,
        reason: Option<&str>,
    ) -> Result<(), Error> {
        reason.map_or(Ok(()), check_pause_reason)?;
        let pause = Pause {
            by: by.to_owned(),
            at: self.now(),
            reason: reason.map(str::to_owned),
        };
        self.change_queue(&parse_name(name)?, |before| {
            let pause = match before.own_pause() {
                Some(first) => first.repeated(pause.clone()),
                None => pause.clone(),
            };
            QueueLimits {
                paused: Some(pause),
                unreadable: false,
                ..before
            }
        })
        .await
    }

    /// Resumes a paused queue.
    ///
    /// # Errors
    ///
    /// As [`Client::set_queue`].
    pub async fn resume_queue(&self, name: &str) -> Result<(), Error> {
        self.change_queue(&parse_name(name)?, |before| QueueLimits {
            paused: None,
            unreadable: false,
            ..before
        })
        .await
    }

    /// Changes the limits of a queue with compare-and-set, so that no concurrent change is lost.
    async fn change_queue(
        &self,
        queue: &QueueName,
        change: impl Fn(QueueLimits) -> QueueLimits,
    ) -> Result<(), Error> {
        let store = self.engine.store();
        let contended = || Error::QueueContended(queue.clone());
        compare_and_set(contended, || async {
            let before = store.queues().await?.remove(queue).unwrap_or_default();
            let limits = change(before.clone());
            let written = store.put_queue(queue, &limits, Some(&before)).await?;
            Ok(written.then_some(()))
        })
        .await
    }

    /// Returns [`Error::QueueNotFound`] if a queue does not exist.
    ///
    /// No one creates a queue before its first job. So a queue exists while it has jobs, finished
    /// ones included, while it has settings or a pause, or while a live worker names it. `default`
    /// always exists. Any other name is most likely a typo.
    pub async fn check_queue(&self, name: &QueueName) -> Result<(), Error> {
        let (store, now) = (self.engine.store(), self.now());
        let limits = store.queues().await?;
        // The cheapest reads come first; counting all jobs comes last.
        if *name == QueueName::default() || limits.contains_key(name) {
            return Ok(());
        }
        let has_settings = match store.document(QUEUE_SETTINGS, name.as_str(), now).await {
            Err(StoreError::Damaged { .. }) => true,
            settings => settings?.is_some(),
        };
        let filter = Filter {
            queue: Some(name.clone()),
            ..Filter::default()
        };
        let names_it =
            |node: &Node| is_alive(node, now) && WorkerDescription::names_queue(&node.about, name);
        if has_settings
            || !self.list(&filter, Page::first(1)).await?.jobs.is_empty()
            || self.workers().await?.iter().any(names_it)
        {
            return Ok(());
        }
        let counts = store.counts(now).await?;
        if counts.contains_key(name) {
            return Ok(());
        }
        let names = counts.keys().chain(limits.keys()).map(QueueName::as_str);
        Err(Error::QueueNotFound {
            queue: name.clone(),
            nearest: nearest(name.as_str(), names).map(str::to_owned),
        })
    }
}

fn parse_name(name: &str) -> Result<QueueName, Invalid> {
    QueueName::new(name).map_err(|error| error.within("queue"))
}

/// Refuses a limit that would drop Windlass's own jobs. All other settings only delay them.
fn check_reserved(queue: &QueueName, settings: &QueueSettings) -> Result<(), Invalid> {
    if queue.is_reserved() && settings.max_depth.is_some() {
        let rule = format!("must not be set for {queue}, because Windlass would lose its own jobs");
        return Err(Invalid::new("max_depth", rule));
    }
    Ok(())
}

fn check_pause_reason(reason: &str) -> Result<(), Invalid> {
    let length = reason.chars().count();
    if (1..=PAUSE_REASON_CHARS_MAX).contains(&length) && !reason.contains('\0') {
        return Ok(());
    }
    let rule = format!(
        "must be 1 to {PAUSE_REASON_CHARS_MAX} characters without NUL, got {length} characters"
    );
    Err(Invalid::new("reason", rule))
}

/// The part of the settings that the store itself enforces.
fn limits(settings: &QueueSettings, paused: Option<Pause>) -> QueueLimits {
    QueueLimits {
        paused,
        max_depth: settings.max_depth,
        concurrency: settings.concurrency,
        rate: settings.rate,
        unreadable: false,
    }
}
