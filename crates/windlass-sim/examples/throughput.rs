//! How many seeds per minute one core simulates.
//!
//! `cargo run --release -p windlass-sim --example throughput -- 500 [sqlite]`
#![allow(clippy::print_stdout, reason = "its figures are what it is for")]
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::time::Instant;

use windlass_sim::{Driver, Shape, simulate};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let many = arguments.next().and_then(|text| text.parse().ok());
    let driver = match arguments.next().as_deref() {
        Some("sqlite") => Driver::Sqlite,
        _ => Driver::Memory,
    };
    let shape = Shape {
        driver,
        ..Shape::default()
    };
    let (many, started) = (many.unwrap_or(500_u64), Instant::now());
    let (mut events, mut violations) = (0, 0);
    for seed in 0..many {
        match simulate(seed, &shape) {
            Ok(run) => {
                events += run.history.entries.len();
                violations += usize::from(!run.violations.is_empty());
                if let Some(first) = run.violations.first() {
                    println!("seed {seed}: {}: {}", first.invariant, first.what);
                }
            }
            Err(error) => println!("seed {seed}: {error}"),
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let minute = many as f64 / seconds * 60.0;
    println!(
        "{many} seeds, {events} events, {violations} with violations: {seconds:.1} s, {minute:.0} seeds per minute"
    );
}
