//! Monte Carlo: estimates π by random points. Each random number is a function of the index of the work-item
//! (GPU thread) and the number of the draw. So the generator has no state, and the order of work-items has no
//! effect.

use crate::setting::Setting;
use vmarray::kernel::{
    At, Own,
    random::{philox, unit_f32},
};
use vmarray::{Result, prelude::*};

/// Counts the points in the circle, among `draws` random points in the unit square.
#[vmarray::kernel]
fn inside(item: u32, draws: u32, seed: u32) -> u32 {
    let mut count = 0;
    for draw in 0..draws {
        let bits = philox([item, draw, 0, 0], [seed, 0]);
        let (x, y) = (unit_f32(bits[0]), unit_f32(bits[1]));
        if x * x + y * y < 1.0 {
            count += 1;
        }
    }
    count
}

/// The kernel: the launch adds up the values that all work-items return.
#[vmarray::kernel]
fn throw(at: At<1>, draws: u32, seed: u32, hits: &mut Own<u32>) -> u32 {
    hits.set(inside(at.index() as u32, draws, seed));
    hits.get()
}

fn run(on: &mut Setting, items: usize, draws: u32, seed: u32) -> Result<(u64, Vec<u32>)> {
    let mut hits = on.array(&vec![0_u32; items])?;
    let all = throw::sum((draws, seed, &mut hits))?;
    Ok((all as u64, hits.to_vec(..)?))
}

pub fn show(on: &mut Setting) -> Result<()> {
    let (items, draws) = (1000, 250);
    let (hits, _) = run(on, items, draws, 1)?;
    let pi = 4.0 * hits as f64 / f64::from(items as u32 * draws);
    println!("    π is about {pi:.4}");
    assert!((pi - std::f64::consts::PI).abs() < 0.015);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let (items, draws, seed) = (1 + on.below(1500), on.below(20) as u32, on.number() as u32);
    // The host calls the same function as the kernel, because a kernel function is an ordinary Rust function.
    let truth: Vec<u32> = (0..items as u32).map(|item| inside(item, draws, seed)).collect();
    let all = truth.iter().map(|hits| u64::from(*hits)).sum();
    assert_eq!(run(on, items, draws, seed)?, (all, truth));
    Ok(())
}
