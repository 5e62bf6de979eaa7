//! A `Session` launches thousands of kernels in order. The program does not wait between them. Each kernel
//! reads the results of the previous one. Here heat spreads along a rod with one hot end.
//!
//!     cargo run --release -p vmarray --example 14_session

use std::time::Instant;

use vmarray::kernel::{Anywhere, At, Own, Session};
use vmarray::prelude::*;

const LEN: usize = 100;
const STEPS: usize = 4000;

/// Simulates a time step: each temperature moves towards the mean of its neighbours; both ends stay.
#[vmarray::kernel]
fn step(at: At<1>, rate: f32, old: &Anywhere<f32>, new: &mut Own<f32>) {
    let (i, last) = (at.index(), old.len() - 1);
    if i == 0 || i == last {
        new.set(old[i]);
    } else {
        new.set(old[i] + rate * (old[i - 1] - 2.0 * old[i] + old[i + 1]));
    }
}

fn main() -> vmarray::Result<()> {
    let mut now = VirtualArray::<f32>::new(LEN)?;
    let mut next = now.empty_like(LEN)?;
    now.set(0, 100.0)?;

    let begin = Instant::now();
    let mut session = Session::new();
    let (a, b) = (session.hold(&mut now)?, session.hold(&mut next)?);
    for _ in 0..STEPS / 2 {
        step::run_in(&mut session, (0.4, a, b))?;
        step::run_in(&mut session, (0.4, b, a))?;
    }
    let submitted = begin.elapsed();
    session.finish()?;
    let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / STEPS as f64;
    println!(
        "{:.1} µs to submit a step, {:.1} µs until it is done, on {}",
        each(submitted),
        each(begin.elapsed()),
        now.homes()[0].replicas[0].device
    );

    let heat = now.to_vec(..)?;
    for row in (0..10).rev() {
        let line = heat.iter().step_by(2).map(|heat| if *heat > row as f32 * 10.0 { '#' } else { ' ' });
        println!("{}", line.collect::<String>().trim_end());
    }
    // The same steps, computed on the host, give the same bits.
    let (mut rod, mut other) = (vec![0_f32; LEN], vec![0_f32; LEN]);
    rod[0] = 100.0;
    for _ in 0..STEPS {
        other[0] = rod[0];
        for i in 1..LEN - 1 {
            other[i] = rod[i] + 0.4 * (rod[i - 1] - 2.0 * rod[i] + rod[i + 1]);
        }
        std::mem::swap(&mut rod, &mut other);
    }
    assert_eq!(heat, rod);
    Ok(())
}
