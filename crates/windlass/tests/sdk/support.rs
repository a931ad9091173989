//! What the tests of the SDK share.

use std::time::Duration;

pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Runs each test on a kit in memory, on one in an SQLite file, and on one in a PostgreSQL database.
macro_rules! every_store {
    ($(async fn $name:ident($kit:ident: TestKit) $body:block)*) => {
        $(mod $name {
            use super::*;

            async fn test($kit: TestKit) $body

            #[tokio::test]
            async fn in_memory() {
                test(TestKit::new()).await;
            }

            #[tokio::test]
            async fn in_sqlite() {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
                test(TestKit::open(&url).await.unwrap()).await;
            }

            #[cfg(feature = "postgres")]
            #[tokio::test]
            async fn in_postgres() {
                let url = windlass_testkit::cluster::empty_database().await;
                test(TestKit::open(&url).await.unwrap()).await;
            }
        })*
    };
}

pub(crate) use every_store;
