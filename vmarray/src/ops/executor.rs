//! Executor of device-side work: reductions and searches of elements in place, and writes to them.
//!
//! A store (array, source or staged rows) provides [`Run`]s: contiguous elements on a device. The store
//! itself starts and ends the work on its runs, because each store prevents data races in its own way. No
//! thread writes to a run while a question reads it. No other thread accesses a run while a change writes it:
//!
//! | store | runs | protected by | order on the device |
//! |---|---|---|---|
//! | array | one for each channel, over its home slots; to write, some slots at a time | nothing; to write, claims of its pages | `queue_barriers` |
//! | source | contiguous slots of cached pages | locks of its pages | one queue for kernels |
//! | rows that are [staged](StagedRows) | copies, some MiB at a time | ownership by the calling thread | one exclusive queue |
//!
//! The work on a run is the same for all stores. A device answers a [`Question`] ([`AskedRun`]), gathers
//! elements ([`Collecting`]), or makes a [`Change`] ([`Writing`]): an assignment, or a kernel of the program.

mod change;
mod channels;
mod copy;
mod fetch;
mod in_ram;
mod library_kernel;
mod operand_staging;
mod peer_copy;
mod question;
mod run;
mod share;
mod staged;
mod write;

pub use change::{Change, Examination, Operand, OperandStore, ResultStore};
pub(crate) use channels::{are_groups_within_pages, distinct, read_all, unsettled, within_channel};
pub(crate) use copy::{SHORT_BYTES, copies_within, copy_elements};
pub(crate) use fetch::put_from;
pub use in_ram::WorkQueue;
pub(crate) use library_kernel::LibraryKernel;
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
