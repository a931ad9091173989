//! How to test jobs without sleeping and without a server, including crashes.
//!
//! `cargo test -p windlass --example testing` runs the tests.
#![expect(clippy::print_stdout, reason = "examples print")]

use serde::{Deserialize, Serialize};
use windlass::{Context, Error, Failure, Job, Worker};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Invoice {
    order: u32,
}

impl Job for Invoice {
    const KIND: &'static str = "invoice";
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Mail {
    text: String,
}

impl Job for Mail {
    const KIND: &'static str = "mail";
}

/// The handler under test: writes an invoice and mails it.
async fn invoice(job: Invoice, ctx: Context) -> Result<(), Failure> {
    if ctx.attempt() == 1 {
        return Err("the printer is out of paper".into());
    }
    let text = format!("your invoice for order {}", job.order);
    ctx.enqueue(Mail { text }).await?;
    Ok(())
}

fn worker(client: &windlass::Client) -> Worker {
    Worker::new(client, ()).handle(invoice)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let kit = windlass::testing::TestKit::new();
    let id = kit.client().enqueue(Invoice { order: 7 }).await?.id;
    kit.worker(worker(kit.client())).await?.drain().await?;
    print!("{}", kit.timeline(id).await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass::testing::TestKit;

    #[tokio::test]
    async fn an_invoice_is_retried_and_mailed_once() {
        let kit = TestKit::new();
        let id = kit.client().enqueue(Invoice { order: 7 }).await.unwrap().id;
        let worker = kit.worker(worker(kit.client())).await.unwrap();
        worker.drain().await.unwrap();
        assert_eq!(
            kit.timeline(id).await.unwrap().outcomes(),
            ["failed", "succeeded"]
        );
        let text = "your invoice for order 7".to_owned();
        assert_eq!(kit.enqueued::<Mail>().await.unwrap(), [Mail { text }]);
    }

    #[tokio::test]
    async fn a_crash_after_the_mail_mails_twice_so_use_the_idempotency_key() {
        let kit = TestKit::new();
        let id = kit.client().enqueue(Invoice { order: 7 }).await.unwrap().id;
        let worker = kit.worker(worker(kit.client())).await.unwrap();
        worker.crash_after_claim().await.unwrap(); // the process dies before the handler starts
        kit.advance(std::time::Duration::from_secs(31));
        worker.pass().await.unwrap(); // finds the expired lease
        kit.advance(std::time::Duration::from_secs(1));
        worker.crash_before_settle().await.unwrap(); // the process dies after the handler
        worker.drain().await.unwrap();
        let timeline = kit.timeline(id).await.unwrap();
        assert_eq!(timeline.outcomes(), ["lost", "lost", "succeeded"]);
        assert_eq!(kit.enqueued::<Mail>().await.unwrap().len(), 2);
    }
}
