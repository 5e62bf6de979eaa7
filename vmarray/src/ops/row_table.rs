//! Row tables: reads and writes of rows by lists of ids that are in the memory of a GPU, in the order of a
//! stream of the program.
//!
//! The calling thread enqueues kernels on the stream and returns. It waits for nothing, and copies neither
//! ids nor rows through the host.

#[forbid(unsafe_code)]
mod buffers;
mod builder;
#[forbid(unsafe_code)]
mod cache;
#[forbid(unsafe_code)]
mod formats;
#[forbid(unsafe_code)]
mod gather;
mod host_reads;
#[forbid(unsafe_code)]
mod kernels;
mod launches;
mod memory;
#[forbid(unsafe_code)]
mod order;
mod table;
#[cfg(all(test, feature = "host"))]
#[forbid(unsafe_code)]
mod tests;

pub use buffers::{Bags, IdBuffer, OutOfRange, RowBuffer};
pub use builder::RowTableBuilder;
pub use cache::RowCacheStats;
pub use formats::RowFormat;
pub use memory::RowHome;
pub use table::RowTable;
