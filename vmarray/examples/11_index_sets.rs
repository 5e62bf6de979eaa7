//! Joins two index sets (tables of integer tuples) in three ways: in RAM; in RAM, but with the result in an
//! array; and on the devices, with both inputs in arrays. The workload `join` of `cargo xtask bench` measures
//! such joins.
//!
//!     cargo run -p vmarray --example 11_index_sets
//!
//! Both sets have four columns of values from 0 to 1000, and two dimensions in common. The arrays are on the
//! devices of the machine, or on the devices that the environment variable `VMARRAY_DEVICES` names.

use vmarray::IndexSet;
use vmarray::index_set::{Combine, Dimension, PagedIndexSet};

const TUPLES: usize = 1 << 16;
/// The maximum RAM of an array's cache, in bytes.
const CACHE_BYTES: usize = 1 << 20;
/// The working memory of a join whose inputs are in arrays, in bytes.
const MEMORY_BYTES: usize = 4 << 20;

fn main() -> vmarray::Result<()> {
    let (a, b) = (random([0, 1, 2, 3], 1)?, random([0, 2, 5, 6], 2)?);
    let in_ram = a.combine(&b)?;
    println!("{} results with dimensions {:?}", in_ram.len(), in_ram.dimensions());

    // `run` counts the tuples of the result. `to_paged` writes these tuples to an array.
    let combination = Combine::new(&a, &b).run()?;
    let paged = combination.to_paged(|array| array.cache_bytes(CACHE_BYTES))?;
    assert_eq!(paged.to_index_set(..)?, in_ram);

    // Store the inputs in arrays as well. The join then cuts the second input into blocks, and writes the
    // results block after block.
    let in_pages = |set| PagedIndexSet::from_index_set(set, |array| array.cache_bytes(CACHE_BYTES));
    let (paged_a, paged_b) = (in_pages(&a)?, in_pages(&b)?);
    let combination = Combine::new(&paged_a, &paged_b).memory_bytes(MEMORY_BYTES).run()?;
    let (mut by_blocks, mut sorted) = (combination.to_index_set()?, in_ram.clone());
    by_blocks.sort()?;
    sorted.sort()?;
    assert_eq!(by_blocks, sorted);

    // If a device is a GPU, it computes the join.
    assert_eq!(paged_a.combine(&paged_b)?.to_index_set(..)?, in_ram);
    Ok(())
}

fn random(dimensions: [Dimension; 4], seed: u64) -> vmarray::Result<IndexSet> {
    let mut state = seed;
    let value = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 1001
    };
    IndexSet::from_values(dimensions, (0..4 * TUPLES).map(value).collect())
}
