//! Statistics of queues, as a program reads them.

use windlass::admin::{QueueName, StatisticsPeriod};
use windlass::{Client, Error, Job};

use crate::support::seconds;

#[derive(serde::Serialize, serde::Deserialize)]
struct Ping;

impl Job for Ping {
    const KIND: &'static str = "ping";
}

#[tokio::test(start_paused = true)]
async fn a_process_that_only_enqueues_writes_statistics() {
    let client = Client::open("memory:").await.unwrap();
    client.enqueue_many(&[Ping, Ping]).await.unwrap();
    client.enqueue(Ping).queue("other").await.unwrap();
    // Records end with every ten seconds of the client's clock. It is slower than the paused time,
    // because it follows the machine's clock, which stands still meanwhile.
    tokio::time::sleep(seconds(20.0)).await;
    let now = client.now();
    let read = |queue: Option<&'static str>| {
        let range = now.saturating_sub(seconds(60.0))..now.saturating_add(seconds(1.0));
        let queue = queue.map(|name| QueueName::new(name).unwrap());
        let client = client.clone();
        async move { client.statistics(range, None, queue.as_ref()).await }
    };
    let all = read(None).await.unwrap();
    assert_eq!(all.range.period(), StatisticsPeriod::TenSeconds);
    assert_eq!((all.total().enqueued, all.queues.queues.len()), (3, 2));
    let other = read(Some("other")).await.unwrap();
    assert_eq!(other.total().enqueued, 1);
    let points: Vec<u64> = other.points.values().map(|point| point.enqueued).collect();
    assert_eq!(points, [1]);
}

#[tokio::test]
async fn a_range_that_is_not_kept_is_refused() {
    let client = Client::open("memory:").await.unwrap();
    let now = client.now();
    let day = seconds(24.0 * 3600.0);
    let old = now.saturating_sub(40 * day)..now;
    let refused = client.statistics(old, None, None).await.unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    let fine = now.saturating_sub(2 * day)..now;
    let refused = client.statistics(fine, Some(seconds(60.0)), None).await;
    assert!(refused.unwrap_err().to_string().contains("multiple of 1h"));
}
