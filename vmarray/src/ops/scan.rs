//! Scans and reductions along an axis.
//!
//! A prefix sum replaces each element by the sum of all elements up to it, or of all before it.
//!
//! Elements are added in blocks of [`BLOCK`], counted from the start of their store, and blocks in a binary
//! [`tree`]. The order of additions therefore depends neither on devices nor on the division of the work.
//!
//! GPUs with access to each other's memory use special kernels: see [`on_cards`]. Otherwise one launch
//! computes the sum of each block, the host scans the sums, and another launch writes the prefix sums of each
//! block plus its carry: two reads and one write of all elements. After Harris, Sengupta, Owens, "Parallel
//! Prefix Sum (Scan) with CUDA", GPU Gems 3, chapter 39; within 32 lanes the steps of Hillis and Steele.
//!
//! A group processes a block, so pages must consist of whole blocks. The host scans elements in other pages
//! piece by piece, and all elements if a device does not support groups of this length.

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
