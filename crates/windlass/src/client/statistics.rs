//! Statistics of queues.

use std::ops::Range;
use std::time::Duration;

use windlass_core::statistics::StatisticsRange;
use windlass_core::{QueueName, Timestamp};
use windlass_engine::StatisticsSeries;

use super::Client;
use crate::error::Error;

impl Client {
    /// Returns what happened in a range of time, in steps: jobs enqueued, attempts by outcome, wait
    /// and run times. Of one queue, or of all queues.
    ///
    /// The numbers are the sum over all processes that have the store open, which write them every
    /// 10 s. They are kept for 2 hours in steps of 10 s, for 24 hours in steps of a minute, and for
    /// 30 days in steps of an hour. Without a `step`, the answer has the finest steps that are kept
    /// for the whole range.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass::{Client, Error};
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// let now = client.now();
    /// let hour = now.saturating_sub(Duration::from_secs(3600))..now;
    /// let statistics = client.statistics(hour, Some(Duration::from_secs(60)), None).await?;
    /// for (minute, numbers) in &statistics.points {
    ///     println!("{minute}: {} enqueued, {} failed", numbers.enqueued, numbers.failed.total());
    /// }
    /// let median = statistics.total().wait.percentile(500);
    /// println!("half of the jobs started within {median:?}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the range starts more than 30 days ago, if the step is not a multiple of
    /// the finest step that is kept for the range, or if the answer would have more than 2,000
    /// points.
    pub async fn statistics(
        &self,
        range: Range<Timestamp>,
        step: Option<Duration>,
        queue: Option<&QueueName>,
    ) -> Result<StatisticsSeries, Error> {
        let range = StatisticsRange::new(range.start, range.end, step, self.now())?;
        Ok(self.engine.statistics(range, queue).await?)
    }
}
