//! Makes a failing run smaller: fewer jobs, fewer nodes, fewer faults and features.

use windlass_store::StoreError;

use crate::{Ingredient, Run, Shape, simulate};

/// A smaller run of a failing seed that still violates the same invariant.
#[derive(Debug)]
pub struct Shrunk {
    /// The size of the run.
    pub shape: Shape,
    /// The run.
    pub run: Run,
    /// How many runs were tried.
    pub tried: u32,
}

/// Shrinks a failing run. Tries at most `most` runs.
pub fn shrink(failing: Run, shape: &Shape, most: u32) -> Result<Shrunk, StoreError> {
    let mut shrunk = Shrunk {
        shape: shape.clone(),
        run: failing,
        tried: 0,
    };
    let mut goes_on = true;
    while goes_on && shrunk.tried < most {
        goes_on = false;
        for smaller in smaller_shapes(&shrunk.shape) {
            if shrunk.tried >= most {
                break;
            }
            shrunk.tried += 1;
            let run = simulate(shrunk.run.seed, &smaller)?;
            if fails_alike(&shrunk.run, &run) {
                shrunk.shape = smaller;
                shrunk.run = run;
                goes_on = true;
                break;
            }
        }
    }
    Ok(shrunk)
}

fn fails_alike(before: &Run, after: &Run) -> bool {
    let first = before
        .violations
        .first()
        .map(|violation| violation.invariant);
    after
        .violations
        .iter()
        .any(|violation| Some(violation.invariant) == first)
}

/// Shapes that are a step smaller, the largest steps first.
fn smaller_shapes(shape: &Shape) -> Vec<Shape> {
    let mut smaller = Vec::new();
    for jobs in [
        shape.jobs / 2,
        shape.jobs * 3 / 4,
        shape.jobs.saturating_sub(1),
    ] {
        if jobs > 0 && jobs < shape.jobs {
            smaller.push(Shape {
                jobs,
                ..shape.clone()
            });
        }
    }
    for nodes in 1..shape.nodes {
        smaller.push(Shape {
            nodes,
            ..shape.clone()
        });
    }
    for one in Ingredient::ALL {
        if !shape.without.contains(one) {
            let mut without = shape.without.clone();
            without.insert(*one);
            smaller.push(Shape {
                without,
                ..shape.clone()
            });
        }
    }
    smaller
}
