//! What happens to jobs and schedules, as it happens, and what a worker's hooks see.

pub use windlass_core::{Failure as ReportedFailure, FailureClass, Report};
pub use windlass_engine::{
    Cancellation, Event, Heard, JobEvent, JobRef, Progress, Recorder, RunningAttempt,
    ScheduleEvent, StopReason, Stopped, Subscription,
};
