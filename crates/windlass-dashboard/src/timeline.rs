//! The attempts of a job on one scale: waits, the range that jitter allows, runs, and the plan.
//!
//! Pure: times go in, positions in percent of the width come out. A page draws them.

use std::time::Duration;

use windlass_core::Timestamp;
use windlass_core::retry::RetryPolicy;

/// How time becomes width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Linear, up to the next attempt.
    Linear,
    /// Logarithmic, so that short early waits can be seen next to long late ones.
    Log,
    /// Linear, with every planned attempt.
    Whole,
}

impl Scale {
    /// The scale with a name of a URL.
    pub(crate) fn named(name: Option<&str>) -> Scale {
        match name {
            Some("log") => Scale::Log,
            Some("all") => Scale::Whole,
            _ => Scale::Linear,
        }
    }
}

/// An attempt that has started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ran {
    pub(crate) attempt: u32,
    /// Failed attempts before this one.
    pub(crate) failures_before: u32,
    pub(crate) started_at: Timestamp,
    /// When it ended. `None` while it runs.
    pub(crate) finished_at: Option<Timestamp>,
    /// Whether its end counts as a failure, after which the policy chooses a delay.
    pub(crate) has_failed: bool,
}

/// An attempt that may follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) attempt: u32,
    pub(crate) earliest_at: Timestamp,
    pub(crate) nominal_at: Timestamp,
    pub(crate) latest_at: Timestamp,
}

/// A range of the width, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Extent {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

impl Extent {
    pub(crate) fn width(self) -> f64 {
        self.to - self.from
    }
}

/// The row of one attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lane {
    pub(crate) attempt: u32,
    /// From the end of the attempt before to the start of this one.
    pub(crate) wait: Option<Extent>,
    pub(crate) waited: Option<Duration>,
    /// Where jitter may put the start.
    pub(crate) band: Option<Extent>,
    /// From the start to the end. `None` if it has not started.
    pub(crate) run: Option<Extent>,
    pub(crate) ran: Option<Duration>,
    /// The start without jitter, of an attempt that has not started.
    pub(crate) planned: Option<f64>,
}

/// A label of the axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tick {
    pub(crate) position: f64,
    pub(crate) at: Timestamp,
}

/// Rows with a shared scale.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timeline {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) ticks: Vec<Tick>,
    /// Whether labels need seconds.
    pub(crate) has_seconds: bool,
    /// Whether labels need days.
    pub(crate) has_days: bool,
    pub(crate) now: Option<f64>,
}

/// Lays out the attempts that have started, oldest first, and the plan. `policy` is the policy that
/// applies now: it says where jitter may have put each retry.
pub(crate) fn layout(
    attempts: &[Ran],
    plan: &[Planned],
    policy: Option<&RetryPolicy>,
    now: Timestamp,
    scale: Scale,
) -> Timeline {
    let shown = match scale {
        Scale::Whole => plan,
        Scale::Linear | Scale::Log => plan.get(..1).unwrap_or_default(),
    };
    let bands = bands(attempts, policy);
    let next_band = shown
        .first()
        .and_then(|next| band_of_next(attempts, next, policy));
    let axis = Axis::new(attempts, shown, &bands, next_band, now, scale);
    let mut lanes = Vec::new();
    let mut ended: Option<Timestamp> = None;
    for (ran, band) in attempts.iter().zip(&bands) {
        let end = ran.finished_at.unwrap_or(now).max(ran.started_at);
        lanes.push(Lane {
            attempt: ran.attempt,
            wait: ended.map(|ended| axis.extent(ended, ran.started_at)),
            waited: ended.map(|ended| ran.started_at.since(ended)),
            band: band.map(|(from, to)| axis.extent(from, to)),
            run: Some(axis.extent(ran.started_at, end)),
            ran: Some(end.since(ran.started_at)),
            planned: None,
        });
        ended = ran.finished_at;
    }
    for (index, planned) in shown.iter().enumerate() {
        let band = match index {
            0 => next_band,
            _ => Some((planned.earliest_at, planned.latest_at)),
        };
        lanes.push(Lane {
            attempt: planned.attempt,
            wait: ended.map(|ended| axis.extent(ended, planned.nominal_at)),
            waited: ended.map(|ended| planned.nominal_at.since(ended)),
            band: band
                .filter(|(from, to)| from < to)
                .map(|(from, to)| axis.extent(from, to)),
            run: None,
            ran: None,
            planned: Some(axis.position(planned.nominal_at)),
        });
        ended = Some(planned.nominal_at);
    }
    Timeline {
        lanes,
        ticks: axis.ticks(),
        has_seconds: axis.step < Duration::from_secs(60),
        has_days: axis.step >= Duration::from_secs(86_400),
        now: axis.contains(now).then(|| axis.position(now)),
    }
}

type Band = Option<(Timestamp, Timestamp)>;

/// Where jitter may have put each attempt that has started.
fn bands(attempts: &[Ran], policy: Option<&RetryPolicy>) -> Vec<Band> {
    let mut previous: Option<Duration> = None;
    let mut before: Option<&Ran> = None;
    let mut bands = Vec::new();
    for ran in attempts {
        let failed = before.filter(|before| before.has_failed);
        let ended = failed.and_then(|before| before.finished_at);
        bands.push(ended.zip(policy).map(|(ended, policy)| {
            let range = policy.delay_range(ran.failures_before, previous);
            (
                ended.saturating_add(range.min),
                ended.saturating_add(range.max),
            )
        }));
        previous = ended.map(|ended| ran.started_at.since(ended));
        before = Some(ran);
    }
    bands
        .into_iter()
        .map(|band| band.filter(|(from, to)| from < to))
        .collect()
}

/// Where jitter may have put the attempt that is due next.
fn band_of_next(attempts: &[Ran], next: &Planned, policy: Option<&RetryPolicy>) -> Band {
    let last = attempts.last()?;
    let Some(ended) = last.finished_at else {
        return Some((next.earliest_at, next.latest_at));
    };
    let policy = policy.filter(|_| last.has_failed)?;
    let before = attempts
        .iter()
        .rev()
        .nth(1)
        .and_then(|before| before.finished_at);
    let previous = before.map(|before| last.started_at.since(before));
    let range = policy.delay_range(last.failures_before + 1, previous);
    Some((
        ended.saturating_add(range.min),
        ended.saturating_add(range.max),
    ))
}

/// Turns times into positions.
struct Axis {
    from: Timestamp,
    to: Timestamp,
    scale: Scale,
    step: Duration,
}

/// The distances between labels, from which the axis takes the shortest that gives few labels.
const STEPS: [u64; 24] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 31_536_000,
];

/// The most labels of an axis.
const TICKS_MAX: u64 = 6;

impl Axis {
    fn new(
        attempts: &[Ran],
        plan: &[Planned],
        bands: &[Band],
        next_band: Band,
        now: Timestamp,
        scale: Scale,
    ) -> Axis {
        let ran = attempts
            .iter()
            .flat_map(|ran| [ran.started_at, ran.finished_at.unwrap_or(now)]);
        let planned = plan.iter().flat_map(|one| [one.nominal_at, one.latest_at]);
        let bands = bands
            .iter()
            .flatten()
            .chain(next_band.as_ref())
            .map(|(_, to)| *to);
        let times: Vec<Timestamp> = ran.chain(planned).chain(bands).collect();
        let first = times.iter().min().copied().unwrap_or(now);
        let last = times.iter().max().copied().unwrap_or(now);
        // Now is a part of the picture as long as the job is not finished.
        let last = if plan.is_empty() { last } else { last.max(now) };
        let first = if attempts.is_empty() {
            first.min(now)
        } else {
            first
        };
        let length = last.since(first).max(Duration::from_millis(10));
        let margin = length / 50;
        let from = if scale == Scale::Log {
            first
        } else {
            first.saturating_sub(margin)
        };
        let to = first.saturating_add(length).saturating_add(margin);
        let seconds = to.since(from).as_secs();
        let step = STEPS.into_iter().find(|step| seconds / step <= TICKS_MAX);
        let step = Duration::from_secs(step.unwrap_or(31_536_000));
        Axis {
            from,
            to,
            scale,
            step,
        }
    }

    fn contains(&self, at: Timestamp) -> bool {
        (self.from..=self.to).contains(&at)
    }

    fn position(&self, at: Timestamp) -> f64 {
        let length = self.to.since(self.from).as_secs_f64();
        let since = at.since(self.from).as_secs_f64().min(length);
        match self.scale {
            Scale::Linear | Scale::Whole => since / length * 100.0,
            Scale::Log => {
                // The first thousandth of the length is linear, so that the start is not infinite.
                let unit = length / 1000.0;
                (since / unit).ln_1p() / 1000.0f64.ln_1p() * 100.0
            }
        }
    }

    fn extent(&self, from: Timestamp, to: Timestamp) -> Extent {
        Extent {
            from: self.position(from),
            to: self.position(to.max(from)),
        }
    }

    fn ticks(&self) -> Vec<Tick> {
        let tick = |at: Timestamp| Tick {
            position: self.position(at),
            at,
        };
        if self.scale == Scale::Log {
            let length = self.to.since(self.from);
            let parts = [1000, 200, 40, 8, 1].map(|part| self.from.saturating_add(length / part));
            return std::iter::once(self.from).chain(parts).map(tick).collect();
        }
        let step = i64::try_from(self.step.as_micros()).unwrap_or(i64::MAX);
        let first = self
            .from
            .as_micros()
            .div_euclid(step)
            .saturating_add(1)
            .saturating_mul(step);
        let times = std::iter::successors(Some(first), |at| at.checked_add(step));
        let times = times.map_while(Timestamp::from_micros);
        times
            .take_while(|at| *at <= self.to)
            .take(10)
            .map(tick)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::retry::Preset;

    fn at(seconds: u64) -> Timestamp {
        let midnight: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        midnight.saturating_add(Duration::from_secs(seconds))
    }

    fn failed(attempt: u32, from: u64, to: u64) -> Ran {
        Ran {
            attempt,
            failures_before: attempt - 1,
            started_at: at(from),
            finished_at: Some(at(to)),
            has_failed: true,
        }
    }

    fn planned(attempt: u32, earliest: u64, nominal: u64, latest: u64) -> Planned {
        Planned {
            attempt,
            earliest_at: at(earliest),
            nominal_at: at(nominal),
            latest_at: at(latest),
        }
    }

    #[test]
    fn positions_are_to_scale() {
        let attempts = [failed(1, 0, 10), failed(2, 50, 60)];
        let timeline = layout(&attempts, &[], None, at(500), Scale::Linear);
        let [first, second] = &timeline.lanes[..] else {
            panic!("two lanes");
        };
        let per_second = first.run.unwrap().width() / 10.0;
        assert!((second.run.unwrap().width() - 10.0 * per_second).abs() < 1e-9);
        assert!((second.wait.unwrap().width() - 40.0 * per_second).abs() < 1e-9);
        assert_eq!(second.waited, Some(Duration::from_secs(40)));
        assert_eq!(first.wait, None);
        assert_eq!(
            timeline.now, None,
            "the job is finished, so now may be far away"
        );
    }

    #[test]
    fn a_band_shows_where_jitter_may_put_a_retry() {
        let policy = Preset::FullJitter.policy();
        let attempts = [failed(1, 0, 1), failed(2, 1, 2)];
        let next = planned(3, 3, 3, 3);
        let timeline = layout(&attempts, &[next], Some(&policy), at(2), Scale::Linear);
        let bands: Vec<bool> = timeline
            .lanes
            .iter()
            .map(|lane| lane.band.is_some())
            .collect();
        assert_eq!(bands, [false, true, true]);
        let band = timeline.lanes[2].band.unwrap();
        let second = timeline.lanes[0].run.unwrap().width();
        assert!(
            (band.width() - second).abs() < 0.01,
            "0 to 1 s after the second failure"
        );
        assert!(timeline.lanes[2].planned.is_some() && timeline.lanes[2].run.is_none());
        assert!(timeline.now.is_some());
    }

    #[test]
    fn only_the_whole_plan_shows_later_attempts() {
        let plan = [planned(2, 10, 10, 10), planned(3, 20, 30, 40)];
        let attempts = [failed(1, 0, 1)];
        let lanes = |scale| layout(&attempts, &plan, None, at(5), scale).lanes.len();
        assert_eq!(
            (lanes(Scale::Linear), lanes(Scale::Log), lanes(Scale::Whole)),
            (2, 2, 3)
        );
        let whole = layout(&attempts, &plan, None, at(5), Scale::Whole);
        assert!(whole.lanes[2].band.is_some());
    }

    #[test]
    fn positions_stay_inside_and_keep_their_order() {
        let attempts = [failed(1, 0, 1), failed(2, 5, 5), failed(3, 4000, 4100)];
        for scale in [Scale::Linear, Scale::Log, Scale::Whole] {
            let timeline = layout(
                &attempts,
                &[planned(4, 9000, 9000, 9000)],
                None,
                at(5000),
                scale,
            );
            let starts: Vec<f64> = timeline
                .lanes
                .iter()
                .map(|lane| {
                    lane.run
                        .map_or_else(|| lane.planned.unwrap(), |run| run.from)
                })
                .collect();
            assert!(starts.is_sorted(), "{starts:?}");
            assert!(starts.iter().all(|start| (0.0..=100.0).contains(start)));
            assert!(timeline.ticks.len() >= 2 && timeline.ticks.len() <= 8);
        }
    }

    #[test]
    fn a_job_that_never_started_has_an_axis_from_now_to_its_start() {
        let timeline = layout(&[], &[planned(1, 60, 60, 60)], None, at(0), Scale::Linear);
        assert_eq!(timeline.lanes.len(), 1);
        assert!(timeline.now.unwrap() < timeline.lanes[0].planned.unwrap());
    }
}
