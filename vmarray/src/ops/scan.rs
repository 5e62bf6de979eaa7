//! Prefix sums (scans), and reductions along an axis.
//!
//! A prefix sum replaces each element by the sum of all elements up to it, or of all before it.
//!
//! Elements are added in blocks of [`BLOCK`], counted from the start of the view's store. The sums of
//! blocks are added in a binary [`tree`]. The order of additions, and so a float result, depends neither on
//! devices nor on the division of work.
//!
//! GPUs that can access each other's memory use special kernels: see [`on_cards`]. Otherwise one launch
//! computes the sum of each block, the host scans the sums, and another launch writes the prefix sums of each
//! block plus its carry (the sum of all earlier blocks). This reads all elements twice, and writes them once.
//! After Harris, Sengupta, Owens, "Parallel Prefix Sum (Scan) with CUDA", GPU Gems 3, chapter 39; within 32
//! threads the steps of Hillis and Steele.
//!
//! One work-group processes a block, which must be on one device, so pages must consist of whole blocks.
//! Otherwise the host scans the elements piece by piece. The host also does so if a device does not support
//! work-groups of this length.

mod along_axis;
mod block;
mod lines_on_cards;
mod listed;
mod number;
mod on_cards;
mod plan;
mod prefix_scan;
mod tree;
mod view;

pub use along_axis::Accumulation;
pub(crate) use along_axis::{
    Lines, added, converted, counted, greater, greater_or_nan, lesser, lesser_or_nan,
};
pub(crate) use lines_on_cards::Extreme;
pub use number::PrefixSummed;
pub(crate) use plan::PrefixScan;
pub(crate) use prefix_scan::{PIECE_BYTES, scan_lines};
pub use view::Scan;
