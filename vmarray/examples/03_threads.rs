//! Four threads share an array without a lock: they increment the same elements, and take their next work
//! from a shared counter.
//!
//!     cargo run -p vmarray --example 03_threads

use vmarray::prelude::*;

const THREADS: usize = 4;
const ROLLS: usize = 100_000;

fn main() -> vmarray::Result<()> {
    // The array counts how often each sum of three dice occurs.
    let counts = VirtualArray::<u64>::new(19)?;
    // The number of the next block of rolls, which the next free thread takes.
    let next = VirtualArray::<u32>::new(1)?;

    let blocks = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..THREADS).map(|_| threads.spawn(|| roll(&counts, &next))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no thread panics"))
            .collect::<vmarray::Result<Vec<u32>>>()
    })?;

    for sum in 3..=18 {
        let count = counts.get(sum)?;
        println!("{sum:>2} {count:>6} {}", "#".repeat((count as usize * 400) / ROLLS));
    }
    println!("blocks by thread: {blocks:?}");
    // No thread lost a count, and no block was taken twice.
    assert_eq!(counts.sum(.., Field::whole())?, ROLLS as i128);
    assert_eq!(blocks.iter().sum::<u32>(), 100);
    Ok(())
}

/// Rolls dice in blocks of a thousand until no block is left; returns the number of its blocks.
fn roll(counts: &VirtualArray<u64>, next: &VirtualArray<u32>) -> vmarray::Result<u32> {
    let mut taken = 0;
    loop {
        // Take the next block: `update` reads and writes in one atomic step, and returns the old value.
        let block = next.update(0, |block| block + 1)?;
        if block as usize >= ROLLS / 1000 {
            return Ok(taken);
        }
        taken += 1;
        let mut state = u64::from(block) + 1;
        for _ in 0..1000 {
            let dice = [(); 3].map(|()| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                1 + (state >> 33) as usize % 6
            });
            counts.update(dice.iter().sum(), |count| count + 1)?;
        }
    }
}
