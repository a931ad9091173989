//! Tests of how a server starts, and of when it stops.

use axum::body::Body;
use axum::http::Request;
use tower::ServiceExt as _;

use super::*;
use crate::standalone::parts::tests::config;

#[tokio::test]
async fn a_loop_that_ends_early_stops_the_server() {
    let serve = std::future::pending::<usize>;
    let (running, stopped) = (CancellationToken::new(), CancellationToken::new());
    stopped.cancel();
    let mut loops = JoinSet::new();
    loops.spawn(async {});
    let ended = serve_with_loops(&mut loops, serve(), &running).await;
    assert!(matches!(ended, Err(RunError::LoopEnded(None))));
    // Loops may end during shutdown, but a panic is an error even then.
    loops.spawn(async {});
    loops.spawn(async { panic!("a loop breaks") });
    let ended = serve_with_loops(&mut loops, serve(), &stopped).await;
    assert!(matches!(ended, Err(RunError::LoopEnded(Some(error))) if error.is_panic()));
    loops.spawn(async {});
    let served = serve_with_loops(&mut loops, tokio::task::yield_now(), &stopped).await;
    assert!(served.is_ok());
    loops.spawn(async { panic!("a loop breaks") });
    assert!(all_ended(&mut loops).await.is_err());
}

#[tokio::test]
async fn a_server_reserves_space_for_the_first_audit_record() {
    let server = Server::start(config(&[("store", "memory:"), ("bind", "127.0.0.1:0")])).await;
    let app = server.expect("it starts").app;
    let head = app
        .store()
        .document(windlass_engine::AUDIT_TOPIC, "head", app.engine().now());
    assert!(head.await.unwrap().is_some());
}

#[tokio::test]
async fn the_dashboard_is_served_unless_it_is_off() {
    for (serve, status) in [("true", 200), ("false", 404)] {
        let settings = [("store", "memory:"), ("bind", "127.0.0.1:0")];
        let config = config(&[settings[0], settings[1], ("dashboard.serve", serve)]);
        let app = Server::start(config.clone()).await.expect("it starts").app;
        let request = Request::builder().uri("/").header("accept", "text/html");
        let request = request.header("host", "127.0.0.1").body(Body::empty());
        let routes = config.routes(app, "http://127.0.0.1");
        let answered = routes.oneshot(request.expect("a valid request")).await;
        assert_eq!(answered.expect("a router answers").status(), status);
    }
}
