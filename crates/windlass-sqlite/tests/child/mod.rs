//! A process that uses a store and tells on stdout what was acknowledged to it, line by line.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use windlass_core::{Job, JobId, Report, State};
use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::*;
use windlass_store::{Enqueue, Settled};

/// What was acknowledged: jobs that are stored, jobs that are done.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    pub(crate) stored: Vec<JobId>,
    pub(crate) done: Vec<JobId>,
    pub(crate) refusals: Vec<String>,
}

/// Uses the store at a path: `rounds` times it enqueues, claims and settles a few jobs.
pub(crate) fn run(path: &Path, first: u64, rounds: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let store = match SqliteStore::open(path, at(first), 0) {
        Ok(store) => Arc::new(store) as Opened,
        Err(error) => return tell(&format!("refused {error}")),
    };
    runtime.block_on(async {
        for round in 0..rounds {
            step(&store, first + round * 10).await;
        }
    });
    tell("end");
}

async fn step(store: &Opened, number: u64) {
    let batch: Vec<Job> = (number..number + 5).map(job).collect();
    let ids: Vec<JobId> = batch.iter().map(|job| job.id).collect();
    match store.enqueue(Enqueue::all(batch), at(number)).await {
        Ok(_) => ids.iter().for_each(|id| tell(&format!("stored {id}"))),
        Err(error) => tell(&format!("refused {error}")),
    }
    let claimed = match store.claim(&claim(3), at(number)).await {
        Ok(claimed) => claimed.jobs,
        Err(error) => return tell(&format!("refused {error}")),
    };
    let reports = claimed
        .iter()
        .map(|job| report(job, Report::Succeeded(None)))
        .collect();
    match store.settle(reports, at(number)).await {
        Ok(settled) => {
            let done = claimed
                .iter()
                .zip(settled)
                .filter(|(_, settled)| matches!(settled, Settled::Done(_)));
            done.for_each(|(job, _)| tell(&format!("done {}", job.id)));
        }
        Err(error) => tell(&format!("refused {error}")),
    }
}

fn tell(line: &str) {
    // One write for each line: what a killed process has told is whole.
    let _ = std::io::stdout()
        .lock()
        .write_all(format!("{line}\n").as_bytes());
}

/// Starts this program again as the child.
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

/// Reads what the child tells until it is silent; `heard` is called after each line with how many there were.
pub(crate) fn listen(told: impl Read, mut heard: impl FnMut(usize)) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    let lines = BufReader::new(told).lines().map_while(Result::ok);
    for (number, line) in (1..).zip(lines) {
        match line.split_once(' ') {
            Some(("stored", id)) => acknowledged.stored.push(id.parse().expect("an id")),
            Some(("done", id)) => acknowledged.done.push(id.parse().expect("an id")),
            Some(("refused", why)) => acknowledged.refusals.push(why.to_owned()),
            _ => {}
        }
        heard(number);
    }
    acknowledged
}

/// Opens the store and finds everything that was acknowledged, whole and once.
pub(crate) fn check(path: &Path, acknowledged: &Acknowledged) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let store: Opened =
        Arc::new(SqliteStore::open(path, at(1_000_000), 0).expect("it opens again"));
    runtime.block_on(async {
        for ids in acknowledged.stored.chunks(1000) {
            let found = store.get(ids).await.expect("it answers");
            for (id, job) in ids.iter().zip(found) {
                assert!(job.is_some(), "job {id} was acknowledged and is gone");
                let whole = job.is_some_and(|job| job.payload.as_str().starts_with("{\"number\":"));
                assert!(whole, "the payload of job {id} is whole");
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
        // Memory, which was read from disk, and disk agree.
        let counts = store.counts(at(1_000_000)).await.expect("it answers");
        let counted: u64 = counts
            .values()
            .map(|count| count.ready + count.scheduled + count.succeeded + count.dead)
            .sum();
        assert!(counted >= acknowledged.stored.len() as u64);
    });
}

/// The child's part, if this process is the child.
pub(crate) fn am_child() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, word, path, first, rounds] = arguments.as_slice() else {
        return false;
    };
    if word == "child" {
        run(
            Path::new(path),
            first.parse().expect("a number"),
            rounds.parse().expect("a number"),
        );
    }
    word == "child"
}
