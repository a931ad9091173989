//! HTTP jobs in a Rust program, without a server.

use windlass::State;
use windlass::testing::TestKit;
use windlass_core::Timeout;
use windlass_http::{HTTP_TIMEOUT_DEFAULT, HttpJobs};

use crate::support::{Reply, Target, local};

#[path = "../../examples/webhooks.rs"]
#[expect(dead_code, reason = "its `main` is for people")]
mod webhooks;

#[tokio::test]
async fn a_program_delivers_webhooks_from_queues_that_it_discovers() {
    let target = Target::replying(&[Reply::Status(204)]).await;
    let kit = TestKit::new();
    let http = HttpJobs::new(local()).unwrap();
    let jobs = webhooks::enqueue(kit.client(), &target.url("/hook"))
        .await
        .unwrap();
    let worker = webhooks::worker(kit.client(), &http);
    kit.worker(worker).await.unwrap().drain().await.unwrap();
    for id in jobs {
        let job = kit.client().get(id).await.unwrap().unwrap();
        assert_eq!(job.state(), State::Succeeded);
        assert_eq!(job.timeout, Timeout::After(HTTP_TIMEOUT_DEFAULT));
    }
    let seen = target.seen();
    let mut tenants: Vec<&str> = seen.iter().map(|one| one.text()).collect();
    tenants.sort();
    assert_eq!(tenants.len(), 2, "{tenants:?}");
    assert!(tenants[0].contains("tenant-1") && tenants[1].contains("tenant-2"));
}
