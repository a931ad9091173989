//! The faults of a crash test.

use std::time::Duration;

use tokio::time::Instant;
use windlass_core::Random;

use super::cluster::Stop;
use super::error::CrashTestError;
use super::process::{Kind, Seat};
use super::report::Faults;
use super::stage::{Database, Stage};

/// The time between two faults.
const PAUSE_MS: std::ops::Range<u64> = 20..400;
/// The longest SIGSTOP: longer than a lease.
const STOPPED_MS_MAX: u64 = 4_000;
/// The longest time in which the database gets and sends nothing.
const STALLED_MS_MAX: u64 = 3_000;
/// The longest time until a killed process starts again.
const RESTART_MS_MAX: u64 = 300;
/// How often the processes are looked after.
const TICK: Duration = Duration::from_millis(20);

/// Does faults at random.
pub(super) struct Nemesis {
    random: Random,
    pub(super) faults: Faults,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Pause,
    Cut,
    CutAll,
    Stall,
    Restart,
    FailOver,
}

impl Nemesis {
    pub(super) fn new(seed: u64) -> Self {
        Nemesis {
            random: Random::new(seed),
            faults: Faults::default(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.bits() % bound.max(1)
    }

    fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }

    /// Does faults for this long. A database that belongs to the test restarts and fails over at
    /// least once.
    pub(super) async fn run(
        &mut self,
        stage: &mut Stage,
        duration: Duration,
    ) -> Result<(), CrashTestError> {
        let started = Instant::now();
        while started.elapsed() < duration {
            let pause = PAUSE_MS.start + self.below(PAUSE_MS.end - PAUSE_MS.start);
            let next = Instant::now() + Duration::from_millis(pause);
            while Instant::now() < next {
                stage.tend()?;
                tokio::time::sleep(TICK).await;
            }
            let fault = self.choose(
                stage,
                started.elapsed().as_secs_f64() / duration.as_secs_f64(),
            );
            self.apply(fault, stage).await?;
        }
        Ok(())
    }

    fn choose(&mut self, stage: &Stage, progress: f64) -> Fault {
        let has_cluster = stage
            .database
            .as_ref()
            .is_some_and(|database| database.cluster.is_some());
        let faults = &self.faults;
        let restarts = faults.database_restarts + faults.postmaster_kills;
        if has_cluster && progress > 0.3 && restarts == 0 {
            return Fault::Restart;
        }
        if has_cluster && progress > 0.6 && faults.failovers == 0 {
            return Fault::FailOver;
        }
        match (self.below(100), stage.database.is_some()) {
            (0..70, _) | (70..90, false) => Fault::Kill,
            (70..80, _) | (90.., false) => Fault::Pause,
            (80..88, true) => Fault::Cut,
            (88..92, true) => Fault::CutAll,
            (92..95, true) => Fault::Stall,
            (95..97, true) if has_cluster => Fault::Restart,
            (97.., true) if has_cluster => Fault::FailOver,
            (_, true) => Fault::Cut,
        }
    }

    async fn apply(&mut self, fault: Fault, stage: &mut Stage) -> Result<(), CrashTestError> {
        match fault {
            Fault::Kill => return self.kill(stage).await,
            Fault::Pause => return self.pause(stage),
            _ => {}
        }
        let (bits, stalled) = (self.random.bits(), self.millis(STALLED_MS_MAX));
        let stop = if self.below(2) == 0 {
            Stop::Immediate
        } else {
            Stop::Kill
        };
        let Some(Database { proxy, cluster }) = &mut stage.database else {
            return Ok(());
        };
        match (fault, cluster) {
            (Fault::Restart, Some(cluster)) => {
                cluster.restart(stop).await?;
                match stop {
                    Stop::Immediate => self.faults.database_restarts += 1,
                    Stop::Kill => self.faults.postmaster_kills += 1,
                }
            }
            (Fault::FailOver, Some(cluster)) => {
                // What is acknowledged from now on is on the standby.
                cluster.wait_for_standby().await?;
                cluster.fail_over(stop).await?;
                proxy.point_to(Some(("127.0.0.1", cluster.port())));
                proxy.cut_all();
                self.faults.failovers += 1;
                cluster.add_standby().await?;
            }
            (Fault::Stall, _) => {
                proxy.stall(stalled);
                self.faults.stalls += 1;
            }
            (Fault::CutAll, _) => {
                proxy.cut_all();
                self.faults.cuts += 1;
            }
            _ => {
                proxy.cut_one(bits);
                self.faults.cuts += 1;
            }
        }
        Ok(())
    }

    /// Chooses a running process: a server as often as a worker. Mostly one that is ready, so that
    /// there is progress.
    fn victim<'a>(&mut self, stage: &'a mut Stage) -> Option<&'a mut Seat> {
        let is_any = self.below(10) == 0;
        let kind = if self.below(2) == 0 {
            Kind::Server
        } else {
            Kind::Worker
        };
        let bits = self.random.bits();
        let seats = stage
            .seats
            .iter_mut()
            .filter(|seat| seat.kind == kind && seat.is_running() && (is_any || seat.is_ready()));
        let mut seats: Vec<_> = seats.collect();
        let index = usize::try_from(bits % seats.len().max(1) as u64).unwrap_or(0);
        (index < seats.len()).then(|| seats.swap_remove(index))
    }

    /// Kills a process.
    async fn kill(&mut self, stage: &mut Stage) -> Result<(), CrashTestError> {
        let pause = self.millis(RESTART_MS_MAX);
        let Some(seat) = self.victim(stage) else {
            return Ok(());
        };
        seat.kill(pause).await?;
        match seat.kind {
            Kind::Server => self.faults.servers_killed += 1,
            Kind::Worker => self.faults.workers_killed += 1,
        }
        Ok(())
    }

    /// Stops a process for a while.
    fn pause(&mut self, stage: &mut Stage) -> Result<(), CrashTestError> {
        let pause = self.millis(STOPPED_MS_MAX);
        let Some(seat) = self.victim(stage) else {
            return Ok(());
        };
        seat.pause(pause)?;
        match seat.kind {
            Kind::Server => self.faults.servers_stopped += 1,
            Kind::Worker => self.faults.workers_stopped += 1,
        }
        Ok(())
    }
}
