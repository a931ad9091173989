//! What needs someone: sentences made by rules from the state of the queues.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_api::{Activity, FailureGroup, Queue, QueuePause, Replay, Worker};
use windlass_core::{ActionState, Timestamp};

use crate::series::retry_rate;
use crate::show::{self, Zone};

/// Above this share of retried attempts, a queue needs someone. The alert rule has the same bound.
pub(crate) const RETRY_RATE_MAX: f64 = 0.10;
/// Fewer attempts say nothing about the share.
const ATTEMPTS_MIN: u64 = 20;
/// A job that was ready for longer needs someone. The alert rule has the same bound.
const OLDEST_READY_MAX: Duration = Duration::from_secs(300);
/// Without any worker, a job that was ready for longer needs someone.
const NO_WORKER_AFTER: Duration = Duration::from_secs(60);
/// At least this many queues that one person paused for one reason are one entry.
const PAUSED_TOGETHER: usize = 3;
/// The most entries that the page shows at once. The others open with a click.
pub(super) const SHOWN_MAX: usize = 4;

/// Something that needs a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) tone: Tone,
    /// What is wrong.
    pub(super) what: String,
    /// Why, and what it means.
    pub(super) why: String,
    /// Links to a next step: text and path.
    pub(super) links: Vec<(String, String)>,
    /// A queue that can be resumed.
    pub(super) resume: Option<String>,
}

/// How urgent something is. The worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tone {
    Alert,
    Paused,
    Warning,
}

impl Tone {
    pub(super) fn glyph(self) -> &'static str {
        match self {
            Tone::Alert | Tone::Warning => "warn",
            Tone::Paused => "paused",
        }
    }

    pub(super) fn colour(self) -> &'static str {
        match self {
            Tone::Alert => "dead",
            Tone::Paused | Tone::Warning => "retrying",
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Tone::Alert => "Alert",
            Tone::Paused => "Paused",
            Tone::Warning => "Warning",
        }
    }
}

/// What the rules look at.
pub(super) struct Evidence<'a> {
    pub(super) queues: &'a [Queue],
    pub(super) workers: &'a [Worker],
    pub(super) differences: &'a [String],
    pub(super) groups: &'a [FailureGroup],
    pub(super) replays: &'a [Replay],
    /// The last minutes of each queue with a high retry rate, and for how long it has been high.
    pub(super) retries: &'a [(String, Activity, Duration)],
    /// How many jobs died in the last hour.
    pub(super) died: u64,
    pub(super) now: Timestamp,
    pub(super) zone: &'a Zone,
}

/// Whether the retry rate of a queue needs someone.
pub(super) fn retries_too_much(activity: &Activity) -> bool {
    activity.run.count >= ATTEMPTS_MIN
        && retry_rate(activity).is_some_and(|rate| rate > RETRY_RATE_MAX)
}

/// Returns what needs someone, the worst first.
pub(super) fn needs(evidence: &Evidence<'_>) -> Vec<Need> {
    let mut needs: Vec<Need> = evidence
        .retries
        .iter()
        .map(|retries| evidence.retrying(retries))
        .collect();
    needs.extend(evidence.no_worker());
    needs.extend(
        evidence
            .queues
            .iter()
            .filter_map(|queue| evidence.old(queue)),
    );
    needs.extend(evidence.all_paused());
    needs.extend(evidence.replays.iter().filter_map(stopped));
    needs.extend(evidence.dying());
    needs.extend(evidence.late_workers());
    needs.extend(evidence.differences.iter().map(|difference| Need {
        tone: Tone::Warning,
        what: "Servers of this store are configured differently".to_owned(),
        why: difference.clone(),
        links: vec![("Open workers".to_owned(), "/workers".to_owned())],
        resume: None,
    }));
    needs.sort_by_key(|need| need.tone);
    needs
}

fn queue_path(name: &str) -> String {
    format!("/queues/{}", crate::fields::escaped(name))
}

impl Evidence<'_> {
    fn retrying(&self, (name, activity, lasting): &(String, Activity, Duration)) -> Need {
        let rate = show::percent(retry_rate(activity));
        let bound = show::percent(Some(RETRY_RATE_MAX)).replace(".0", "");
        let lasting = match lasting.is_zero() {
            true => "in the last 5 minutes".to_owned(),
            false => format!("above {bound} for {}", show::duration(*lasting)),
        };
        let queue = self.queues.iter().find(|queue| queue.name.as_str() == name);
        let mut why = Vec::new();
        let group = self
            .groups
            .iter()
            .filter(|group| group.queue.as_str() == name);
        if let Some(group) = group.max_by_key(|group| group.retrying + group.dead) {
            let error = group.sample.error.as_deref();
            why.push(error.map_or_else(
                || format!("cause {}", group.fingerprint),
                |error| show::clipped(error, 90),
            ));
            why.push(format!(
                "since {}",
                self.zone.short(group.first_seen_at, self.now)
            ));
        }
        if let Some(queue) = queue {
            why.push(format!(
                "{} wait to retry, {} dead",
                show::count(queue.counts.retrying),
                show::count(queue.counts.dead)
            ));
        }
        if let Some(wait) = activity.wait.p95_ms {
            why.push(format!("jobs start within {} (p95)", show::millis(wait)));
        }
        Need {
            tone: Tone::Alert,
            what: format!("{name} retries {rate} of its attempts, {lasting}"),
            why: why.join(" · "),
            links: vec![
                (
                    "See the cause".to_owned(),
                    format!("/dead?queue={}", crate::fields::escaped(name)),
                ),
                (
                    format!("Open {}", show::clipped(name, 24)),
                    queue_path(name),
                ),
            ],
            resume: None,
        }
    }

    fn old(&self, queue: &Queue) -> Option<Need> {
        let age = Duration::from_millis(queue.oldest_ready_ms?);
        let name = queue.name.as_str();
        let is_listed = self.retries.iter().any(|(listed, ..)| listed == name);
        if age <= OLDEST_READY_MAX || queue.paused.is_some() || is_listed {
            return None;
        }
        let limit = queue.settings.concurrency.map(|limit| limit.to::<u64>());
        let why = match limit {
            Some(limit) if queue.counts.running >= limit => {
                format!("all {limit} slots of the queue are in use")
            }
            _ if queue.counts.running == 0 => {
                "no job of the queue is running: does a worker take from it?".to_owned()
            }
            _ => format!(
                "{} run, {} are ready",
                show::count(queue.counts.running),
                show::count(queue.counts.ready)
            ),
        };
        Some(Need {
            tone: Tone::Alert,
            what: format!(
                "{}: a job has been ready for {}",
                queue.name,
                show::duration(age)
            ),
            why,
            links: vec![("See why".to_owned(), queue_path(queue.name.as_str()))],
            resume: None,
        })
    }

    /// Paused queues. Those that one person paused for one reason are one entry if they are many.
    fn all_paused(&self) -> Vec<Need> {
        let mut together: BTreeMap<_, Vec<&Queue>> = BTreeMap::new();
        for queue in self.queues {
            if let Some(pause) = &queue.paused {
                together
                    .entry((&pause.by, &pause.reason))
                    .or_default()
                    .push(queue);
            }
        }
        let needs = |queues: Vec<&Queue>| match queues.len() {
            PAUSED_TOGETHER.. => self.paused_together(&queues).into_iter().collect(),
            _ => {
                let needs = queues.into_iter().filter_map(|queue| self.paused(queue));
                needs.collect::<Vec<_>>()
            }
        };
        together.into_values().flat_map(needs).collect()
    }

    fn paused_together(&self, queues: &[&Queue]) -> Option<Need> {
        let first = queues
            .iter()
            .filter_map(|queue| queue.paused.as_ref())
            .min_by_key(|pause| pause.at)?;
        let which = match queues.len() == self.queues.len() {
            true => format!("All {} queues", queues.len()),
            false => format!("{} queues", queues.len()),
        };
        let waiting: u64 = queues.iter().map(|queue| queue.depth).sum();
        Some(Need {
            tone: Tone::Paused,
            what: format!("{which} are paused; {}", jobs_wait(waiting)),
            why: self.who_paused(first),
            links: vec![("Resume all…".to_owned(), "/all-queues/resume".to_owned())],
            resume: None,
        })
    }

    fn who_paused(&self, pause: &QueuePause) -> String {
        let reason = pause
            .reason
            .as_deref()
            .map(|reason| format!(": “{}”", show::visible(reason)));
        format!(
            "by {} at {}{}",
            show::visible(&pause.by),
            self.zone.short(pause.at, self.now),
            reason.unwrap_or_default()
        )
    }

    fn paused(&self, queue: &Queue) -> Option<Need> {
        let pause = queue.paused.as_ref()?;
        let oldest = queue.oldest_ready_ms.map(Duration::from_millis);
        let oldest = oldest.map(|age| format!(", the oldest for {}", show::duration(age)));
        let jobs = jobs_wait(queue.depth);
        Some(Need {
            tone: Tone::Paused,
            what: format!(
                "{} is paused; {jobs}{}",
                queue.name,
                oldest.unwrap_or_default()
            ),
            why: self.who_paused(pause),
            links: Vec::new(),
            resume: Some(queue.name.to_string()),
        })
    }

    /// No worker at all takes jobs. Servers run only HTTP jobs.
    fn no_worker(&self) -> Option<Need> {
        let is_worker = |worker: &&Worker| worker.alive && !worker.name.starts_with("server-");
        let waits = |queue: &&Queue| {
            let age = queue.oldest_ready_ms.map(Duration::from_millis);
            queue.paused.is_none() && age.is_some_and(|age| age > NO_WORKER_AFTER)
        };
        let ready: u64 = self
            .queues
            .iter()
            .filter(waits)
            .map(|queue| queue.counts.ready)
            .sum();
        let none = self.workers.iter().filter(is_worker).count() == 0;
        (none && ready > 0).then(|| Need {
            tone: Tone::Alert,
            what: format!("No worker is alive, and {} jobs are ready", show::count(ready)),
            why: "Only this server runs jobs, and it runs HTTP jobs alone. Start a worker for the other kinds.".to_owned(),
            links: vec![("Open workers".to_owned(), "/workers".to_owned())],
            resume: None,
        })
    }

    fn dying(&self) -> Option<Need> {
        if self.died == 0 || !self.retries.is_empty() {
            return None;
        }
        let jobs = if self.died == 1 {
            "1 job".to_owned()
        } else {
            format!("{} jobs", show::count(self.died))
        };
        let latest = self.groups.iter().max_by_key(|group| group.last_seen_at);
        let error = latest.and_then(|group| group.sample.error.as_deref());
        Some(Need {
            tone: Tone::Warning,
            what: format!("{jobs} died in the last hour"),
            why: error.map_or_else(
                || "They used up their attempts or cannot succeed.".to_owned(),
                |error| format!("latest: {}", show::clipped(error, 120)),
            ),
            links: vec![("See the causes".to_owned(), "/dead".to_owned())],
            resume: None,
        })
    }

    fn late_workers(&self) -> Option<Need> {
        let late: Vec<&Worker> = self.workers.iter().filter(|worker| !worker.alive).collect();
        let first = late.first()?;
        let age = show::duration(Duration::from_millis(first.heartbeat_age_ms));
        let others = match late.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        Some(Need {
            tone: Tone::Warning,
            what: format!(
                "{}{others} sent no heartbeat for {age}",
                show::visible(&first.name)
            ),
            why: "The leases of its jobs expire, and other workers run them again.".to_owned(),
            links: vec![("Open workers".to_owned(), "/workers".to_owned())],
            resume: None,
        })
    }
}

fn jobs_wait(count: u64) -> String {
    match count {
        1 => "1 job waits".to_owned(),
        _ => format!("{} jobs wait", show::count(count)),
    }
}

/// A replay that stopped itself and that no one has continued or aborted.
fn stopped(replay: &Replay) -> Option<Need> {
    if replay.state != ActionState::Stopped {
        return None;
    }
    Some(Need {
        tone: Tone::Warning,
        what: format!(
            "A replay stopped itself: {} of {} jobs failed again",
            show::count(replay.failed_again),
            show::count(replay.revived)
        ),
        why: format!(
            "“{}”, by {} · {} recovered, {} untouched",
            show::clipped(&replay.reason, 80),
            show::visible(&replay.created_by),
            show::count(replay.recovered),
            show::count(replay.to_do)
        ),
        links: vec![(
            "Open the replay".to_owned(),
            format!("/actions/replays/{}", replay.id),
        )],
        resume: None,
    })
}
