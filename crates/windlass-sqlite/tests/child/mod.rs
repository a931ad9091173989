//! A child process that uses a store and prints what the store acknowledged, line by line.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use windlass_core::{
    ActionId, AttemptError, Failure, Job, JobId, Outcome, Patch, Report, Revival, State,
};
use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::*;
use windlass_store::{ActionStep, Change, Enqueue, Filter, ListedState, Page, Settled, StoreError};

use crate::recount;

/// The jobs whose enqueue or success the store acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// The numbers of the jobs, which say what each one contains.
    pub(crate) stored: Vec<u64>,
    pub(crate) done: Vec<JobId>,
    /// Jobs that the child may have removed.
    pub(crate) purging: Vec<JobId>,
    pub(crate) refusals: Vec<String>,
}

/// Enqueues, claims, settles, revives and purges a few jobs, `rounds` times.
pub(crate) fn run(path: &Path, first: u64, rounds: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let store = match SqliteStore::open(path, at(first), 0) {
        Ok(store) => Arc::new(store) as Opened,
        Err(error) => return print_line(&format!("refused {error}")),
    };
    runtime.block_on(async {
        for round in 0..rounds {
            step(&store, first + round * 10).await;
        }
    });
    print_line("end");
}

async fn step(store: &Opened, number: u64) {
    let numbers = number..number + 5;
    let batch: Vec<Job> = numbers.clone().map(child_job).collect();
    match store.enqueue(Enqueue::all(batch), at(number)).await {
        Ok(_) => numbers.for_each(|number| print_line(&format!("stored {number}"))),
        Err(error) => print_line(&format!("refused {error}")),
    }
    let claimed = match store.claim(&claim(5), at(number)).await {
        Ok(claimed) => claimed.jobs,
        Err(error) => return print_line(&format!("refused {error}")),
    };
    let reports = claimed.iter().zip(0..);
    let reports = reports.map(|(job, position)| report(job, end(position)));
    match store.settle(reports.collect(), at(number)).await {
        Ok(settled) => {
            let succeeded = |settled: &Settled| matches!(settled, Settled::Done(end) if end.outcome == Outcome::Succeeded);
            let done = claimed
                .iter()
                .zip(settled)
                .filter(|(_, settled)| succeeded(settled));
            done.for_each(|(job, _)| print_line(&format!("done {}", job.id)));
        }
        Err(error) => print_line(&format!("refused {error}")),
    }
    if let Err(error) = purge_and_revive(store, number).await {
        print_line(&format!("refused {error}"));
    }
}

/// Job number `number`, with a payload that differs from those of all others up to its last byte.
fn child_job(number: u64) -> Job {
    let filler = number.to_string().repeat(1 + number as usize % 90);
    Job {
        payload: payload(&format!(
            "{{\"number\":{number},\"filler\":\"{filler}\",\"end\":{number}}}"
        )),
        ..job(number)
    }
}

/// Three of five attempts succeed, one is retried, one is the last of its job.
fn end(position: u64) -> Report {
    match position {
        3 => Report::Failed(Failure::retryable(AttemptError::new("refused"))),
        4 => Report::Failed(Failure::unrecoverable(AttemptError::new("timed out"))),
        _ => Report::Succeeded(None),
    }
}

/// Removes one dead job, revives others and patches them. No job gets this twice, so that the results
/// can be counted again.
async fn purge_and_revive(store: &Opened, number: u64) -> Result<(), StoreError> {
    let dead = Filter::state(ListedState::Dead);
    let dead = store.list(&dead, Page::first(10), at(number)).await?.jobs;
    let never_revived = dead
        .iter()
        .filter(|job| job.interventions.revived.is_none());
    let mut ids: Vec<JobId> = never_revived.map(|job| job.id).collect();
    if ids.len() < 3 {
        return Ok(());
    }
    if let Some(id) = ids.pop() {
        print_line(&format!("purging {id}"));
        store
            .change(&[id], &Change::Purge, None, at(number))
            .await?;
    }
    let step = ActionStep {
        action: ActionId::from_u128(u128::from(number)),
        frozen_at: at(number),
        is_replay: true,
        seen: BTreeMap::new(),
    };
    let revive = Change::Revive(Revival::default());
    store.change(&ids, &revive, Some(&step), at(number)).await?;
    let bulk = ActionStep {
        action: ActionId::from_u128(recount::FIRST_BULK_ACTION + u128::from(number)),
        is_replay: false,
        ..step
    };
    let patch = Change::Patch(Patch {
        priority: Some(1),
        ..Patch::default()
    });
    store.change(&ids, &patch, Some(&bulk), at(number)).await?;
    Ok(())
}

fn print_line(line: &str) {
    // One write for each line, so that a killed process never prints half a line.
    let _ = std::io::stdout()
        .lock()
        .write_all(format!("{line}\n").as_bytes());
}

/// Starts this program as the child process.
pub(crate) fn start(wrapper: &[&str], path: &Path, first: u64, rounds: u64) -> Child {
    let program = std::env::current_exe().expect("this program");
    let program = program.to_str().expect("a path that is text");
    let mut words = wrapper.iter().copied().chain([program, "child"]);
    Command::new(words.next().expect("a program"))
        .args(words)
        .arg(path)
        .args([first.to_string(), rounds.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the child starts")
}

/// Reads the output of the child to its end. Calls `after_line` after each line with the number of
/// lines so far.
pub(crate) fn read_acknowledged(
    stdout: impl Read,
    mut after_line: impl FnMut(usize),
) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    for (number, line) in (1..).zip(lines) {
        match line.split_once(' ') {
            Some(("stored", id)) => acknowledged.stored.push(id.parse().expect("a number")),
            Some(("done", id)) => acknowledged.done.push(id.parse().expect("an id")),
            Some(("purging", id)) => acknowledged.purging.push(id.parse().expect("an id")),
            Some(("refused", why)) => acknowledged.refusals.push(why.to_owned()),
            _ => {}
        }
        after_line(number);
    }
    acknowledged
}

/// Opens the store and checks that everything acknowledged exists, intact and only once.
pub(crate) fn check(path: &Path, acknowledged: &Acknowledged) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let store: Opened =
        Arc::new(SqliteStore::open(path, at(1_000_000), 0).expect("it opens again"));
    runtime.block_on(async {
        for numbers in acknowledged.stored.chunks(1000) {
            let ids: Vec<JobId> = numbers.iter().copied().map(id).collect();
            let found = store.get(&ids).await.expect("it answers");
            for (number, found) in numbers.iter().zip(found) {
                let expected = child_job(*number);
                match found {
                    Some(job) => check_content(&job, &expected),
                    None => assert!(
                        acknowledged.purging.contains(&expected.id),
                        "job {number} was acknowledged but is missing"
                    ),
                }
            }
        }
        for ids in acknowledged.done.chunks(1000) {
            for job in store
                .get(ids)
                .await
                .expect("it answers")
                .into_iter()
                .flatten()
            {
                assert_eq!(job.state(), State::Succeeded, "job {} was done", job.id);
            }
        }
        // The index, which was rebuilt from the file, agrees with the file.
        let counts = store.counts(at(1_000_000)).await.expect("it answers");
        let counted: u64 = counts
            .values()
            .map(|count| count.ready + count.scheduled + count.succeeded + count.dead)
            .sum();
        assert!(counted + acknowledged.purging.len() as u64 >= acknowledged.stored.len() as u64);
        recount::check(&store, at(1_000_000)).await;
    });
}

/// Checks that the store kept every byte of what was enqueued.
fn check_content(job: &Job, expected: &Job) {
    let content = |job: &Job| {
        let (kind, queue) = (job.kind.clone(), job.queue.clone());
        (job.id, kind, queue, job.payload.clone(), job.created_at)
    };
    assert_eq!(content(job), content(expected));
}

/// Runs the child's part if this process is the child. Returns whether it is.
pub(crate) fn am_child() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, word, path, first, rounds] = arguments.as_slice() else {
        return false;
    };
    if word != "child" {
        return false;
    }
    let (first, rounds) = (first.parse(), rounds.parse());
    run(
        Path::new(path),
        first.expect("a number"),
        rounds.expect("a number"),
    );
    true
}
