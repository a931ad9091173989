//! A worker that runs: its loops, in memory, in paused time. No test sleeps: time jumps to the next timer.

mod discovery;
mod faults;
mod lingering;
mod queues;
mod refused;
mod retention;
mod running;
mod shutdown;
