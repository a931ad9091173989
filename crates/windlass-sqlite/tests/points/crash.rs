//! Crashes after every call: a killed process, and a machine that loses its power.
//!
//! One run of the script is recorded. What the disk holds after a crash follows from the recorded
//! calls, so every crash point costs an opening instead of a process and a run.

use windlass_core::Random;

use crate::Depth;
use crate::disk::{Disk, SYNC};
use crate::journal::{Files, Image, Record, Survivors, write_image};
use crate::script::{Step, steps};
use crate::session::{Session, check_folder, expected, fill_once, runtime, start};

/// A recorded run of the script.
pub(crate) struct Recording {
    pub(crate) records: Vec<Record>,
    /// How many calls there were when each operation was acknowledged. The first one opens the
    /// store.
    pub(crate) acknowledged: Vec<usize>,
}

/// Runs the script and records its calls.
pub(crate) fn record(disk: &Disk) -> Recording {
    let folder = tempfile::tempdir().expect("a folder");
    let mut session = Session::new(folder.path());
    disk.watch(folder.path(), true);
    session.open(start()).expect("it opens");
    let mut acknowledged = vec![disk.calls()];
    runtime().block_on(async {
        for step in steps() {
            fill_once(disk, &step);
            session.run(&step).await.expect("it is acknowledged");
            let (_, failed) = disk.heal();
            assert_eq!(failed == 1, step.is_full_once, "{step:?}");
            acknowledged.push(disk.calls());
        }
    });
    drop(session);
    let records = disk.records();
    disk.stop_watching();
    Recording {
        records,
        acknowledged,
    }
}

impl Recording {
    /// How many operations were acknowledged after this many calls, and whether the next one has
    /// made a call.
    fn progress(&self, calls: usize) -> (usize, bool) {
        let ended = self.acknowledged.partition_point(|ends| *ends <= calls);
        let last = ended
            .checked_sub(1)
            .and_then(|last| self.acknowledged.get(last));
        (
            ended.saturating_sub(1),
            last.is_some_and(|ends| *ends < calls),
        )
    }
}

/// Checks images of the disk against the script.
pub(crate) struct Checker {
    steps: Vec<Step>,
    /// What a store holds after each operation; first without any.
    expected: Vec<Vec<String>>,
    pub(crate) checked: usize,
}

impl Checker {
    pub(crate) fn new() -> Self {
        let steps = steps();
        let expected = (0..=steps.len()).map(|count| expected(count, None));
        Checker {
            expected: expected.collect(),
            steps,
            checked: 0,
        }
    }

    /// Checks an image that was taken when this many operations were acknowledged: the store has
    /// all of them, and the next one whole or not at all.
    pub(crate) fn check(
        &mut self,
        image: &Image,
        (acknowledged, is_in_flight): (usize, bool),
    ) -> Result<usize, String> {
        self.checked += 1;
        let until = acknowledged + usize::from(is_in_flight);
        let allowed = self.expected.iter().take(until + 1).skip(acknowledged);
        let allowed: Vec<_> = allowed.collect();
        check_folder(written(image).path(), &allowed, None)
    }

    /// Checks that a client can repeat the operation after the acknowledged ones, whose answer it
    /// did not get.
    fn check_repeated(&mut self, image: &Image, acknowledged: usize) -> Result<usize, String> {
        let Some(step) = self.steps.get(acknowledged) else {
            return Ok(0);
        };
        if !step.can_be_repeated() {
            return Ok(0);
        }
        self.checked += 1;
        let (absent, present) = (
            expected(acknowledged, Some(step)),
            expected(acknowledged + 1, Some(step)),
        );
        check_folder(written(image).path(), &[&absent, &present], Some(step))
    }
}

pub(crate) fn written(image: &Image) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write_image(image, folder.path());
    folder
}

/// Kills the process after every call, and cuts the power after every call. Returns what is wrong.
pub(crate) fn every_point(
    recording: &Recording,
    checker: &mut Checker,
    depth: Depth,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut collect = |crash: &str, checked: Result<usize, String>| {
        problems.extend(checked.err().map(|problem| format!("{crash}: {problem}")));
    };
    each_crash(Files::default(), &recording.records, depth, |crash| {
        let progress = recording.progress(crash.calls);
        collect(&crash.about, checker.check(&crash.image, progress));
        let (acknowledged, _) = progress;
        let is_answered_soon = recording.progress(crash.calls + depth.kill_every).0 > acknowledged;
        if crash.is_kill && is_answered_soon {
            let about = format!("{}, then repeated", crash.about);
            collect(&about, checker.check_repeated(&crash.image, acknowledged));
        }
    });
    problems
}

/// What a crash leaves.
pub(crate) struct Crash {
    pub(crate) about: String,
    /// The number of calls before the crash.
    calls: usize,
    is_kill: bool,
    pub(crate) image: Image,
}

/// Passes on what a kill leaves, unless it is the same as after the kill before, and what a power
/// loss may leave.
pub(crate) fn each_crash<'r>(
    mut files: Files<'r>,
    records: &'r [Record],
    depth: Depth,
    mut visit: impl FnMut(Crash),
) {
    const MODES: [Survivors; 4] = [
        Survivors::None,
        Survivors::LastIsTorn,
        Survivors::Some,
        Survivors::SomeSectors,
    ];
    let mut modes = MODES.into_iter().cycle();
    let mut last = None;
    for calls in 0..=records.len() {
        let call = calls.checked_sub(1);
        if let Some(record) = call.and_then(|call| records.get(call)) {
            files.apply(record);
        }
        let is_kill = calls % depth.kill_every == 0;
        let killed = is_kill.then(|| files.after_kill());
        if let Some(killed) = killed.filter(|killed| last.as_ref() != Some(killed)) {
            last = Some(killed.clone());
            visit(Crash {
                about: format!("killed after call {calls}"),
                calls,
                is_kill: true,
                image: killed,
            });
        }
        let is_loss = calls % depth.power_loss_every == 0;
        for loss in 0..depth.power_losses * u64::from(is_loss) {
            let mut random = Random::new(calls as u64 * 1000 + loss);
            let survivors = modes.next().expect("it is a cycle");
            visit(Crash {
                about: format!("no power after call {calls}, loss {loss} ({survivors:?})"),
                calls,
                is_kill: false,
                image: files.after_power_loss(survivors, &mut random),
            });
        }
    }
}

/// How often the checks found a disk that lies.
#[derive(Debug, Default)]
pub(crate) struct Lies {
    /// Operations whose writes to the WAL were not synced when they were acknowledged.
    pub(crate) wal: u64,
    pub(crate) wal_found: u64,
    /// Checkpoints whose pages were torn, because the WAL was removed before they were synced.
    pub(crate) pages: u64,
    pub(crate) pages_found: u64,
}

/// Lets the disk lie about syncs: it says that it did them. The checks must find what that costs, or
/// they prove nothing.
pub(crate) fn lie(recording: &Recording, checker: &mut Checker, depth: Depth) -> Lies {
    let mut lies = Lies::default();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ())); // a check that finds damage may panic, as it should
    let steps = steps();
    let spans = recording.acknowledged.windows(2).zip(&steps).enumerate();
    for (before, (span, step)) in spans {
        let &[start, end] = span else { continue };
        let progress = (before + 1, false);
        if step.is_restart() {
            let files = with_lies(recording, start, end, "jobs.db");
            for seed in 0..4 {
                let mut random = Random::new(seed);
                let image = files.after_power_loss(Survivors::SomeSectors, &mut random);
                lies.pages += 1;
                lies.pages_found += u64::from(checker.check(&image, progress).is_err());
            }
        } else if before % depth.lie_every == 0 && writes_only_the_wal(recording, start, end) {
            let files = with_lies(recording, start, end, "jobs.db-wal");
            let image = files.after_power_loss(Survivors::None, &mut Random::new(0));
            let checked = checker.check(&image, progress);
            lies.wal += 1;
            let is_lost = checked.is_err_and(|problem| problem.contains("something else"));
            lies.wal_found += u64::from(is_lost);
        }
    }
    std::panic::set_hook(hook);
    lies
}

/// The files after some calls. From `start` on, the syncs of one file do nothing.
fn with_lies<'r>(recording: &'r Recording, start: usize, end: usize, name: &str) -> Files<'r> {
    let mut files = Files::default();
    for (call, record) in recording.records.iter().enumerate().take(end) {
        let is_lie = call >= start && record.kind == SYNC && record.name == name;
        if !is_lie {
            files.apply(record);
        }
    }
    files
}

/// Whether an operation changed the store without a checkpoint.
fn writes_only_the_wal(recording: &Recording, start: usize, end: usize) -> bool {
    let calls = recording.records.get(start..end).unwrap_or_default();
    !calls.is_empty() && calls.iter().all(|record| record.name == "jobs.db-wal")
}
