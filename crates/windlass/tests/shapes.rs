//! What the compiler says of a handler that has the wrong shape: where, and what it wants instead.
#![allow(unexpected_cfgs, reason = "only this test sets it, to compile itself")]

/// Handlers that do not compile.
#[cfg(wrong_shape)]
mod wrong {
    use windlass::{Client, Context, Job, Worker};

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Right;

    impl Job for Right {
        const KIND: &'static str = "right";
    }

    struct Wrong;
    struct App;

    async fn without_context(_: Right) -> Result<(), std::io::Error> {
        Ok(())
    }

    async fn with_another_state(_: Right, _: Context<App>) -> Result<(), std::io::Error> {
        Ok(())
    }

    async fn without_result(_: Right, _: Context) {}

    async fn of_no_job(_: Wrong, _: Context) -> Result<(), std::io::Error> {
        Ok(())
    }

    fn not_async(_: Right, _: Context) -> Result<(), std::io::Error> {
        Ok(())
    }

    async fn without_error(_: Right, _: Context) -> Result<(), u32> {
        Ok(())
    }

    fn workers(client: &Client) {
        let _ = Worker::new(client, ()).handle(without_context);
        let _ = Worker::new(client, ()).handle(with_another_state);
        let _ = Worker::new(client, ()).handle(without_result);
        let _ = Worker::new(client, ()).handle(of_no_job);
        let _ = Worker::new(client, ()).handle(not_async);
        let _ = Worker::new(client, ()).handle(without_error);
        let _ = Worker::new(client, ()).handle("no function at all");
    }
}

#[test]
fn each_wrong_shape_is_named_with_what_is_wanted() {
    let cargo = std::process::Command::new(env!("CARGO"))
        .args(["rustc", "--package", "windlass", "--test", "shapes"])
        .args([
            "--all-features",
            "--profile",
            "check",
            "--quiet",
            "--locked",
        ])
        .args(["--", "--cfg", "wrong_shape"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(!cargo.status.success(), "they must not compile");
    let told = String::from_utf8_lossy(&cargo.stderr);
    for wanted in [
        "handle(without_context)",
        "Context<()>) -> _`", // what the state of the worker makes it
        "handle(without_result)",
        "`Wrong` is not a job",
        "a job is a type that implements `Serialize` and `Deserialize` and has a kind",
        "is not a future",
        "is not implemented for `u32`",
        "is not a handler of a worker whose state is `()`",
    ] {
        assert!(told.contains(wanted), "{wanted:?} is not in:\n{told}");
    }
}
