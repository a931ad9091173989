//! The faults of a run, and when they happen.

use std::time::Duration;

use windlass_store::StoreError;

use super::Simulation;
use super::plan::{CHAOS, Ingredient, Plan, below, time_below};

/// A fault that begins or ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Sets how bad the network and the store are for a node.
    Weather(u32, u64),
    /// The store does not answer a node for this long.
    Stall(u32, Duration),
    /// The process of a node ends.
    Kill(u32),
    /// It starts again.
    Start(u32),
    /// The process of a node is asked to stop (SIGTERM).
    Shutdown(u32),
    /// The one process that has the store open ends, with all nodes in it, and starts again.
    Restart,
    /// The process of a node stops (SIGSTOP).
    Stop(u32),
    /// It continues.
    Continue(u32),
    /// The wall clock of a node jumps by this many microseconds.
    Jump(u32, i64),
}

/// How far the wall clock of a node is off from the beginning, in microseconds.
pub(crate) fn skew(plan: &Plan, number: u32) -> i64 {
    let mut random = plan.stream("skew", u64::from(number));
    let off = below(&mut random, 800_000) as i64 - 400_000;
    if plan.has(Ingredient::ClockSkew) {
        off
    } else {
        0
    }
}

/// All faults with their times, in order.
pub(crate) fn faults(plan: &Plan) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    for node in 0..plan.nodes {
        let mut random = plan.stream("faults", u64::from(node));
        for _ in 0..4 {
            let at = time_below(&mut random, CHAOS);
            faults.push((at, Fault::Weather(node, random.bits())));
        }
        let mut window = |most: u64| {
            let at = time_below(&mut random, CHAOS);
            (
                at,
                at + Duration::from_millis(50 + below(&mut random, most)),
                random.bits(),
            )
        };
        for _ in 0..2 {
            let (from, to, _) = window(6000);
            if plan.has(Ingredient::Kill) {
                faults.push((from, Fault::Kill(node)));
                faults.push((to.min(CHAOS), Fault::Start(node)));
            }
            let (from, to, _) = window(4000);
            if plan.has(Ingredient::Shutdown) {
                faults.push((from, Fault::Shutdown(node)));
                faults.push((to.min(CHAOS), Fault::Start(node)));
            }
            let (from, to, _) = window(7000);
            if plan.has(Ingredient::Pause) {
                faults.push((from, Fault::Stop(node)));
                faults.push((to.min(CHAOS), Fault::Continue(node)));
            }
            let (from, to, _) = window(5000);
            if plan.has(Ingredient::Stall) {
                faults.push((from, Fault::Stall(node, to)));
            }
            let (at, _, bits) = window(1000);
            if plan.has(Ingredient::ClockJump) {
                let ahead = (bits % 8_000_000) as i64 - 2_000_000;
                faults.push((at, Fault::Jump(node, ahead)));
            }
        }
    }
    let mut random = plan.stream("restarts", 0);
    for _ in 0..2 {
        let at = time_below(&mut random, CHAOS);
        if plan.has(Ingredient::Restart) {
            faults.push((at, Fault::Restart));
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

impl Simulation<'_> {
    pub(super) async fn inject(&mut self, fault: Fault) -> Result<(), StoreError> {
        let node = match fault {
            Fault::Restart => return self.restart().await,
            Fault::Weather(node, _)
            | Fault::Stall(node, _)
            | Fault::Kill(node)
            | Fault::Start(node)
            | Fault::Shutdown(node)
            | Fault::Stop(node)
            | Fault::Continue(node)
            | Fault::Jump(node, _) => node,
        };
        let found = self.nodes.iter().find(|one| one.number == node);
        let Some(found) = found else { return Ok(()) };
        match fault {
            Fault::Weather(_, bits) => {
                let plan = &self.plan;
                let part = |one: Ingredient, value: u64| if plan.has(one) { value } else { 0 };
                found.tap.set_faults(|faults| {
                    let latency = part(Ingredient::Latency, [2, 20, 200][(bits % 3) as usize]);
                    faults.latency = Duration::from_millis(latency);
                    faults.fail_before = part(
                        Ingredient::FailBefore,
                        [0, 30, 300][(bits >> 8) as usize % 3],
                    );
                    faults.fail_after = part(
                        Ingredient::FailAfter,
                        [0, 30, 300][(bits >> 16) as usize % 3],
                    );
                    faults.lost_wakes = part(Ingredient::LostWakes, 700);
                    faults.doubled_wakes = plan.has(Ingredient::DoubledWakes);
                });
            }
            Fault::Stall(_, until) => found.tap.set_faults(|faults| faults.stalled_until = until),
            Fault::Kill(_) if !found.is_dead() => found.kill(&self.world),
            Fault::Start(_) if found.is_dead() || found.is_stopping() => {
                // A process that does not stop in time is killed.
                if !found.is_dead() {
                    found.kill(&self.world);
                }
                let ahead = std::sync::Arc::clone(&found.ahead);
                self.start_node(node, ahead);
            }
            Fault::Shutdown(_) if !found.is_dead() => found.shut_down(&self.world),
            Fault::Stop(_) if !found.is_dead() => found.gate.close(),
            Fault::Continue(_) => found.gate.open(),
            Fault::Jump(_, micros) => found.jump(micros),
            Fault::Kill(_)
            | Fault::Start(_)
            | Fault::Stop(_)
            | Fault::Shutdown(_)
            | Fault::Restart => {}
        }
        Ok(())
    }
}
