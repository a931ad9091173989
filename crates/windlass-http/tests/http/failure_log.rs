//! Failures of jobs of the scheduler form are logged.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_engine::CancellationToken;
use windlass_http::form::{FORM_META, FormFailureLog};

use crate::support::log::Log;
use crate::support::{Reply, Target, World, http_job};

#[tokio::test]
async fn a_failed_job_of_the_form_is_logged() {
    let log = Log::default();
    let _subscriber = tracing::subscriber::set_default(log.clone());
    let target = Target::replying(&[Reply::Status(503)]).await;
    let world = World::new();
    let stop = CancellationToken::new();
    let teller = FormFailureLog::listen(&world.engine);
    let logging = {
        let (engine, stop) = (Arc::clone(&world.engine), stop.clone());
        tokio::spawn(async move { teller.run(&engine, stop).await })
    };
    let mut job = http_job(json!({"url": target.url("/")}));
    job.meta.insert(FORM_META.to_owned(), true.into());
    let (job, _) = world.deliver_job(job).await;
    let expected = format!("Job {} failed after 3 retries, schedule deleted", job.id);
    let logged = async {
        while log.count(&expected) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let logged = tokio::time::timeout(Duration::from_secs(30), logged).await;
    assert!(logged.is_ok(), "{log:?}");
    stop.cancel();
    logging.await.unwrap();
    assert_eq!(log.count("scheduling retry"), 3);
}
