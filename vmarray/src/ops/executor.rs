//! Executor of device-side work: reductions, searches and gathers of elements in place, and writes to them.
//!
//! A store is an array, a source (memory of the program that devices work on), or staged rows (copies of
//! elements that a device cannot process in place). It divides its elements into [`Run`]s: contiguous
//! elements on a device. For a run, a device answers a [`Question`] ([`AskedRun`]), gathers elements
//! ([`Collecting`]), or makes a [`Change`] ([`Writing`]): an assignment, or a kernel of the program.
//!
//! While a question reads a run, no thread writes to the run. While a change writes a run, no other thread
//! accesses the run. Each store ensures this in its own way. In this table, a channel is a share of a device,
//! and a home slot is the place of a page in device memory:
//!
//! | store | runs | locks | order on the device |
//! |---|---|---|---|
//! | array | one for each channel, over its home slots; for writes, some slots at a time | reads: none; writes: exclusive locks of the pages | barriers between queues |
//! | source | contiguous slots of cached pages | locks of the pages | one queue for kernels |
//! | [staged rows](StagedRows) | copies, some MiB at a time | none: the calling thread owns the copies | one exclusive queue |

#[forbid(unsafe_code)]
mod change;
#[forbid(unsafe_code)]
mod channels;
#[forbid(unsafe_code)]
mod copy;
#[forbid(unsafe_code)]
mod fetch;
#[forbid(unsafe_code)]
mod in_ram;
#[cfg(all(test, feature = "host"))]
#[forbid(unsafe_code)]
pub(crate) mod kernel_testing;
mod library_kernel;
#[forbid(unsafe_code)]
mod operand_staging;
#[forbid(unsafe_code)]
mod peer_copy;
#[forbid(unsafe_code)]
mod question;
#[forbid(unsafe_code)]
mod run;
#[forbid(unsafe_code)]
mod share;
#[forbid(unsafe_code)]
mod staged;
#[forbid(unsafe_code)]
mod write;

pub use change::{Change, Examination, Operand, OperandStore, ResultStore};
pub(crate) use channels::{are_groups_within_pages, distinct, read_all, unsettled, within_channel};
pub(crate) use copy::{SHORT_BYTES, copies_within, copy_elements};
pub(crate) use fetch::put_from;
pub use in_ram::WorkQueue;
pub(crate) use library_kernel::{LibraryKernel, native_kernel};
pub(crate) use operand_staging::ReadOperand;
pub use peer_copy::PeerCopy;
pub use question::{Answer, Question, RunWork, TakenAnswer};
pub(crate) use question::{AnswerParts, AnyQuestion, AskedRun, Collecting, TakeParts};
pub use run::Run;
pub(crate) use run::{Lane, RunAccess};
pub use share::{
    ChannelShare, DeviceOutcome, ImportedHome, ImportedShare, ImportedWork, ShareWork, Striping,
};
pub(crate) use staged::{OwnQueue, StagedRows};
pub(crate) use write::{RefusedRun, STAGED_BYTES, WriteOutcome, Writing, in_parts};
