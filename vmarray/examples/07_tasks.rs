//! A thousand asynchronous tasks on one thread. Each task follows a chain in an array: each element is the
//! index of the task's next one. While one task waits for a page, the others continue. Any executor works.
//!
//!     cargo run -p vmarray --example 07_tasks

use futures::executor::block_on;
use futures::future::try_join_all;
use vmarray::prelude::*;

const LEN: usize = 1 << 20;
const TASKS: usize = 1000;
const STEPS: usize = 50;
/// The distance from an element to the next one of its chain: odd, so that a chain visits all pages.
const STRIDE: usize = 15_485_863 % LEN;

fn main() -> vmarray::Result<()> {
    // The array has 1024 pages of 4 KiB, of which 64 fit into the cache in RAM.
    let next = VirtualArray::<u32>::builder(LEN).page_len(1024).cache_bytes(256 << 10).build()?;
    let chain: Vec<u32> = (0..LEN).map(|i| ((i + STRIDE) % LEN) as u32).collect();
    next.write(0, &chain)?;
    next.reset_stats();

    let starts = (0..TASKS).map(|task| task * (LEN / TASKS));
    let ends = block_on(try_join_all(starts.clone().map(|start| follow(&next, start))))?;

    let stats = next.stats().total();
    println!("{TASKS} tasks took {} steps, {} pages were fetched", TASKS * STEPS, stats.misses);
    println!("the first task ended at {}", ends[0]);
    for (start, end) in starts.zip(ends) {
        assert_eq!(end, (start + STEPS * STRIDE) % LEN);
    }
    Ok(())
}

async fn follow(next: &VirtualArray<u32>, start: usize) -> vmarray::Result<usize> {
    let mut at = start;
    for _ in 0..STEPS {
        at = next.get_async(at).await? as usize;
    }
    Ok(at)
}
