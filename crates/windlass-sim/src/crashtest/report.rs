//! What a crash test did and found, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// The result of a crash test.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The command that repeats the run.
    pub repeat: String,
    /// The seed of all choices. The moments of the faults still depend on the machine.
    pub seed: u64,
    /// The kind of store.
    pub store: String,
    /// The number of servers.
    pub nodes: usize,
    /// How many seconds the faults lasted.
    pub fault_seconds: u64,
    /// How many seconds the servers and workers then took to finish all jobs.
    pub drain_seconds: u64,
    /// What was done to the processes and the database.
    pub faults: Faults,
    /// How many calls enqueued jobs, by their answer.
    pub enqueues: Enqueues,
    /// How many jobs the store has, by state.
    pub jobs: BTreeMap<String, u64>,
    /// How many attempts ended in which way.
    pub attempts: BTreeMap<String, u64>,
    /// How many handlers started, and how many effects they had.
    pub starts: u64,
    /// See `starts`.
    pub effects: u64,
    /// How many ends of attempts the store confirmed to workers.
    pub acknowledged_ends: u64,
    /// The largest log of a process in bytes.
    pub largest_log_bytes: u64,
    /// Damage that was done to copies of the history, and whether the checker found it.
    pub planted: BTreeMap<String, bool>,
    /// What does not hold.
    pub violations: Vec<String>,
    /// Processes that ended by themselves, did not start, or did not stop.
    pub problems: Vec<String>,
    /// Where the logs are, if something was found.
    pub logs: Option<String>,
}

/// What was done to the processes and the database.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Faults {
    /// Servers that got SIGKILL.
    pub servers_killed: u64,
    /// Workers that got SIGKILL.
    pub workers_killed: u64,
    /// Servers that got SIGSTOP, and SIGCONT later.
    pub servers_stopped: u64,
    /// Workers that got SIGSTOP, and SIGCONT later.
    pub workers_stopped: u64,
    /// Cuts of one or all connections to the database.
    pub cuts: u64,
    /// Times in which the database got and sent nothing.
    pub stalls: u64,
    /// Immediate stops of the database server, each followed by a start.
    pub database_restarts: u64,
    /// SIGKILLs of the postmaster, each followed by a start.
    pub postmaster_kills: u64,
    /// Failovers to the standby after the primary was killed.
    pub failovers: u64,
}

/// Calls that enqueue jobs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Enqueues {
    /// Jobs that an answer confirmed.
    pub acknowledged: u64,
    /// Jobs that were refused or held by another job's unique key.
    pub refused_or_duplicate: u64,
    /// Jobs whose call has no answer: each is stored or not.
    pub unknown: u64,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.problems.is_empty() && self.planted.values().all(|f| *f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = &self.faults;
        let shown = |counts: &BTreeMap<String, u64>| {
            let counts = counts.iter().map(|(name, count)| format!("{count} {name}"));
            counts.collect::<Vec<_>>().join(", ")
        };
        let seconds = windlass_core::format_duration;
        let (took, drained) = (
            seconds(Duration::from_secs(self.fault_seconds)),
            seconds(Duration::from_secs(self.drain_seconds)),
        );
        writeln!(
            f,
            "crash test on {}, {} nodes, seed {}",
            self.store, self.nodes, self.seed
        )?;
        writeln!(f, "  faults for {took}, then drained in {drained}")?;
        writeln!(
            f,
            "  killed       {} servers, {} workers",
            faults.servers_killed, faults.workers_killed
        )?;
        writeln!(
            f,
            "  stopped      {} servers, {} workers (SIGSTOP, then SIGCONT)",
            faults.servers_stopped, faults.workers_stopped
        )?;
        writeln!(
            f,
            "  database     {} immediate restarts, {} postmaster kills, {} failovers, {} cuts, {} stalls",
            faults.database_restarts,
            faults.postmaster_kills,
            faults.failovers,
            faults.cuts,
            faults.stalls
        )?;
        let enqueues = &self.enqueues;
        writeln!(
            f,
            "  enqueued     {} jobs acknowledged, {} unknown, {} refused or duplicate",
            enqueues.acknowledged, enqueues.unknown, enqueues.refused_or_duplicate
        )?;
        writeln!(f, "  jobs         {}", shown(&self.jobs))?;
        writeln!(f, "  attempts     {}", shown(&self.attempts))?;
        writeln!(
            f,
            "  handlers     {} starts, {} effects, {} ends acknowledged",
            self.starts, self.effects, self.acknowledged_ends
        )?;
        let found = self.planted.values().filter(|found| **found).count();
        let planted = self.planted.len();
        writeln!(
            f,
            "  self-check   the checker found {found} of {planted} planted damages"
        )?;
        writeln!(f, "  violations   {}", self.violations.len())?;
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        writeln!(f, "  problems     {}", self.problems.len())?;
        for problem in &self.problems {
            writeln!(f, "    {problem}")?;
        }
        if let Some(logs) = &self.logs {
            writeln!(f, "  logs         {logs}")?;
        }
        writeln!(f, "  repeat       {}", self.repeat)
    }
}
