//! Running workers on an in-memory store in paused time: time jumps to the next timer.

mod discovery;
mod faults;
mod lingering;
mod logs;
mod outage;
mod queues;
mod refused;
mod retention;
mod running;
mod shutdown;
