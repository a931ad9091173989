//! The handlers of `windlass worker run`.

use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_client::{Attempt, Failure, Handled};
use windlass_core::{JobId, fixed_hash};

use super::exec::FixedCommand;
use super::waits;

/// The largest payload that `echo` returns as the result of the job.
const RESULT_BYTES_MAX: usize = 64 * 1024;

/// What the worker does with each job.
#[derive(Debug)]
pub(super) enum Handler {
    Echo,
    Sleep(Duration),
    Fail(Duration),
    Flaky(Duration, Share),
    Exec(FixedCommand),
}

impl Handler {
    pub(super) async fn run(&self, attempt: Attempt) -> Handled {
        match self {
            Handler::Echo => echo(&attempt),
            Handler::Sleep(duration) => {
                wait(&attempt, *duration).await?;
                Ok(Value::Null)
            }
            Handler::Fail(duration) => {
                wait(&attempt, *duration).await?;
                Err(Failure::new("the handler `fail` always fails"))
            }
            Handler::Flaky(duration, share) => {
                wait(&attempt, *duration).await?;
                if share.picks(attempt.job.id, attempt.job.attempt) {
                    return Err(Failure::new("the handler `flaky` failed this time"));
                }
                Ok(Value::Null)
            }
            Handler::Exec(command) => command.run(&attempt).await,
        }
    }
}

fn echo(attempt: &Attempt) -> Handled {
    let payload = attempt.job.payload.as_ref();
    let text = payload.map_or("null", |payload| payload.0.as_str());
    attempt.log(text);
    if text.len() > RESULT_BYTES_MAX {
        return Ok(json!(format!("a payload of {} bytes", text.len())));
    }
    attempt.payload()
}

async fn wait(attempt: &Attempt, duration: Duration) -> Result<(), Failure> {
    if duration.is_zero() {
        return Ok(());
    }
    attempt.log(waits(duration));
    tokio::select! {
        () = tokio::time::sleep(duration) => Ok(()),
        () = attempt.stop.cancelled() => Err(Failure::new("stopped before the time was over")),
    }
}

/// A share of all attempts, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share(f64);

impl Default for Share {
    fn default() -> Self {
        Share(0.5)
    }
}

impl Share {
    /// Whether an attempt belongs to the share. The same attempt always gets the same answer.
    fn picks(self, job: JobId, attempt: u32) -> bool {
        let hash = fixed_hash(format!("{job} {attempt}").as_bytes());
        #[expect(clippy::cast_precision_loss, reason = "the last bits do not matter")]
        let position = hash as f64 / u64::MAX as f64;
        position < self.0
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.parse().ok();
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        share
            .map(Share)
            .ok_or_else(|| "must be a number from 0 to 1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_picks_that_part_of_the_attempts_and_is_repeatable() {
        let picked = |share: f64| {
            let jobs = (0..2000).map(JobId::from_u128);
            jobs.filter(|job| Share(share).picks(*job, 1)).count()
        };
        assert_eq!((picked(0.0), picked(1.0)), (0, 2000));
        assert!((400..800).contains(&picked(0.3)), "{}", picked(0.3));
        assert_eq!(picked(0.3), picked(0.3));
        let job = JobId::from_u128(7);
        let attempts = (1..100).filter(|attempt| Share(0.5).picks(job, *attempt));
        assert!((20..80).contains(&attempts.count()), "attempts differ");
    }

    #[test]
    fn a_share_is_a_number_from_0_to_1() {
        assert_eq!("0.25".parse(), Ok(Share(0.25)));
        for text in ["-0.1", "1.5", "NaN", "x", ""] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
