//! Prefix sums (scans), and reductions along an axis.
//!
//! A prefix sum replaces each element by the sum of all elements up to it, or of all before it.
//!
//! Elements are added in blocks of [`BLOCK`], counted from the start of their store, and the sums of blocks
//! in a binary [`tree`]. The order therefore depends neither on devices nor on the division of work.
//!
//! GPUs that can access each other's memory use special kernels: see [`on_cards`]. Otherwise one launch
//! computes the sum of each block, the host scans the sums, and another launch writes the prefix sums of each
//! block plus its carry. All elements are read twice and written once. After Harris, Sengupta, Owens,
//! "Parallel Prefix Sum (Scan) with CUDA", GPU Gems 3, chapter 39; within 32 threads the steps of Hillis and
//! Steele.
//!
//! One group of GPU threads processes a block, so pages must consist of whole blocks. Otherwise the host
//! scans the elements piece by piece. It also does so if a device does not support groups of this length.

mod along_axis;
mod block;
mod listed;
mod number;
mod on_cards;
mod plan;
mod prefix_scan;
mod tree;
mod view;

pub(crate) use along_axis::{Lines, added, converted, counted, greater, lesser};
pub use number::PrefixSummed;
pub(crate) use plan::PrefixScan;
pub(crate) use prefix_scan::{PIECE_BYTES, scan_lines};
pub use view::Scan;
