//! Failing calls: an operation that gets an error changes nothing, and can be repeated.

use windlass_core::Random;
use windlass_store::StoreError;
use windlass_store::conformance::build::Opened;

use crate::Depth;
use crate::crash::Checker;
use crate::disk::{Disk, EIO, ENOSPC, Fault, SYNC, TRUNCATE, WRITE};
use crate::dump::{counted, dump};
use crate::journal::{Files, Survivors, read_image, write_image};
use crate::script::{Step, steps};
use crate::session::{Session, check_folder, expected, memory, runtime, start};

/// Makes the first, second, … write of every operation fail, in one run of the script for each, in
/// every way or with the ways in turn. Returns how many writes failed and how many operations got
/// an error.
///
/// Truncations do not fail here: a failed one stops the store, like a failed sync.
pub(crate) fn every_write(disk: &Disk, depth: Depth) -> (u64, u64) {
    let (mut failed, mut refused) = (0, 0);
    for from in 1.. {
        let mut is_over = true;
        for fault in depth.faults_from(WRITE, from) {
            let run = run_with(disk, fault);
            failed += run.0;
            refused += run.1;
            is_over &= run.0 == 0;
        }
        if is_over {
            assert!(from > 10, "the operations write");
            break;
        }
    }
    (failed, refused)
}

impl Depth {
    /// A write fails once, and the store retries the operation by itself. Or all writes fail until
    /// the operation is answered; then the client repeats it.
    fn faults_from(self, kinds: u64, from: u64) -> Vec<Fault> {
        let fault = |error, count, tears| Fault {
            kinds,
            from,
            count,
            error,
            tears,
        };
        let ways = [
            fault(ENOSPC, 1, false),
            fault(EIO, 1, false),
            fault(ENOSPC, u64::MAX, true),
            fault(EIO, u64::MAX, false),
        ];
        let in_turn = (0..).zip(ways);
        let chosen = in_turn.filter(|(turn, _)| self.fails_in_all_ways || *turn == from % 4);
        chosen.map(|(_, fault)| fault).collect()
    }
}

/// Makes every write fail while a new store is created. Opening it again must work. Returns how
/// many runs that took.
pub(crate) fn every_write_of_opening(disk: &Disk, depth: Depth) -> u64 {
    let empty = expected(0, None);
    let mut runs = 0;
    for from in 1.. {
        let mut is_over = true;
        for fault in depth.faults_from(WRITE | TRUNCATE, from) {
            let folder = tempfile::tempdir().expect("a folder");
            let mut session = Session::new(folder.path());
            disk.watch(folder.path(), false);
            disk.fail(fault);
            let opened = session.open(start());
            let (_, failed) = disk.heal();
            disk.stop_watching();
            assert!(opened.is_ok() || failed > 0, "{fault:?}: {opened:?}");
            drop(session);
            let checked = check_folder(folder.path(), &[&empty], None);
            checked.unwrap_or_else(|problem| panic!("{fault:?}, opened again: {problem}"));
            is_over &= failed == 0;
            runs += 1;
        }
        if is_over {
            break;
        }
    }
    runs
}

/// Runs the script. Applies the fault to each operation. Returns how many calls failed and how many
/// operations got an error.
fn run_with(disk: &Disk, fault: Fault) -> (u64, u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut session = Session::new(folder.path());
    disk.watch(folder.path(), false);
    let model = memory();
    let (mut all_failed, mut refused) = (0, 0);
    session.open(start()).expect("it opens");
    runtime().block_on(async {
        for step in steps() {
            disk.fail(fault);
            let answer = session.run(&step).await;
            let (_, failed) = disk.heal();
            all_failed += failed;
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    refused += 1;
                    let is_expected = failed > 0 && is_refusal(&error, &step);
                    assert!(is_expected, "{fault:?}, {step:?}: {error:?}");
                    check_memory(&session, &model, &step).await;
                    let repeated = session.run(&step).await;
                    repeated.expect("the store works when the disk works")
                }
            };
            let correct = step.run(&model).await.expect("memory answers");
            assert_eq!(answer, correct, "{fault:?}, {step:?}");
            if failed > 0 {
                check_memory(&session, &model, &step).await;
            }
        }
        let now = crate::session::later();
        let found = dump(session.store(), now).await;
        assert!(
            found == dump(&model, now).await,
            "{fault:?}: it differs from memory"
        );
    });
    // What a killed process would leave now, and then what a closed store leaves.
    let copy = tempfile::tempdir().expect("a folder");
    write_image(&read_image(folder.path()), copy.path());
    disk.stop_watching();
    drop(session);
    let correct = expected(steps().len(), None);
    for folder in [copy.path(), folder.path()] {
        let checked = check_folder(folder, &[&correct], None);
        checked.unwrap_or_else(|problem| panic!("{fault:?}, opened again: {problem}"));
    }
    (all_failed, refused)
}

/// Whether the error says that nothing was written.
fn is_refusal(error: &StoreError, step: &Step) -> bool {
    match error {
        StoreError::StorageFull(_) | StoreError::Unavailable(_) => true,
        // Opening may name the path instead.
        _ => step.is_restart(),
    }
}

/// After an error, what the store counts in memory is what it was before.
async fn check_memory(session: &Session, model: &Opened, step: &Step) {
    let Some(store) = session.opened() else {
        return;
    };
    let found = counted(store, step.at).await;
    assert_eq!(found, counted(model, step.at).await, "after {step:?}");
}

/// Makes every sync of the script fail. The store stops for good, and what it acknowledged is
/// there after a restart; also if the kernel dropped what it could not sync. Returns how many syncs
/// failed.
pub(crate) fn every_sync(disk: &Disk, checker: &mut Checker, depth: Depth) -> u64 {
    for (count, from) in (0..).zip((1..).step_by(depth.failed_sync_every)) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut session = Session::new(folder.path());
        disk.watch(folder.path(), true);
        disk.fail(Fault {
            kinds: SYNC,
            from,
            count: 1,
            error: if from % 2 == 0 { ENOSPC } else { EIO },
            tears: false,
        });
        let progress = runtime().block_on(run_until_stopped(&mut session, from));
        drop(session);
        let (_, failed) = disk.heal();
        if failed == 0 {
            assert!(progress.0 == steps().len(), "all is acknowledged");
            disk.stop_watching();
            return count;
        }
        let records = disk.records();
        disk.stop_watching();
        let mut files = Files::default();
        for record in &records {
            files.apply(record);
        }
        let dropped = files.after_power_loss(Survivors::None, &mut Random::new(0));
        for image in [files.after_kill(), dropped] {
            let checked = checker.check(&image, progress);
            checked.unwrap_or_else(|problem| panic!("sync {from} failed: {problem}"));
        }
    }
    unreachable!("the script ends")
}

/// Runs the script until an operation fails. Returns how many were acknowledged, and whether the
/// next one may have taken effect.
async fn run_until_stopped(session: &mut Session, from: u64) -> (usize, bool) {
    if session.open(start()).is_err() {
        return (0, false);
    }
    for (acknowledged, step) in steps().iter().enumerate() {
        let Err(error) = session.run(step).await else {
            continue;
        };
        if step.is_restart() {
            return (acknowledged, true);
        }
        let is_unknown = matches!(error, StoreError::Indeterminate(_));
        assert!(is_unknown, "sync {from}, {step:?}: {error:?}");
        for step in steps()
            .iter()
            .skip(acknowledged)
            .take(3)
            .filter(|step| !step.is_restart())
        {
            let again = session.run(step).await;
            let is_stopped = matches!(again, Err(StoreError::Stopped(_)));
            assert!(is_stopped, "sync {from}, {step:?}: {again:?}");
        }
        return (acknowledged, true);
    }
    (steps().len(), false)
}
