//! Does the card work, and how fast is it? Checks every operation against a naive answer, then measures.
//!
//!     cargo run --release -p vmarray-backend-cuda --example cuda_check -- [smoke] [latency] [queued]
//!     [copies] [threads] [search] [indexed] [pinned] [compute]
//!
//! Without words everything is done. Ends with an error if an answer was wrong, and says so where there is no
//! card.

mod compute;
mod measure;
mod raw;
mod smoke;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cards = backend_cuda::devices();
    if cards.is_empty() {
        println!("no NVIDIA card, or no driver");
        return ExitCode::SUCCESS;
    }
    for card in &cards {
        let (major, minor) = card.compute_capability;
        println!(
            "{}: {} [{}], {:.1} GiB, compute capability {major}.{minor}, {} multiprocessors, {} copy engines, \
             NUMA node {:?}, display {}, {}",
            card.index,
            card.info,
            card.info.aliases.join(" "),
            card.info.total_bytes as f64 / (1_u64 << 30) as f64,
            card.multiprocessors,
            card.info.copy_engines,
            card.info.numa_node,
            card.drives_display,
            card.info.driver
        );
        match card.memory() {
            Ok(status) => println!("   {status:?}"),
            Err(error) => println!("   {error}"),
        }
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wants = |word: &str| words.is_empty() || words.iter().any(|w| w == word);
    let result = (|| {
        // Keeps the card's context alive from one part to the next.
        let _open = backend_cuda::CudaDevice::open(cards[0].index)?;
        if wants("smoke") {
            for card in &cards {
                smoke::run(card.index)?;
            }
        }
        let index = cards[0].index;
        if wants("latency") {
            measure::latency(index)?;
        }
        if wants("queued") {
            measure::queued(index)?;
        }
        if wants("copies") {
            measure::copies(index)?;
        }
        if wants("threads") {
            measure::threads(index)?;
        }
        if wants("search") {
            measure::search(index)?;
        }
        if wants("indexed") {
            measure::indexed(index)?;
        }
        if wants("pinned") {
            measure::pinned(index)?;
        }
        if wants("compute") {
            compute::run(index)?;
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })();
    match result {
        Ok(()) => {
            println!("done");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}
