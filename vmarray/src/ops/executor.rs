//! Executor of device-side work: reductions and searches of elements in place, and writes to them.
//!
//! A store (an array, a source or staged rows) divides its elements into [`Run`]s: contiguous elements on a
//! device. A device executes one of three works on a run: it answers a [`Question`] ([`AskedRun`]), gathers
//! elements ([`Collecting`]), or makes a [`Change`] ([`Writing`]): an assignment, or a kernel of the program.
//!
//! Each store prevents data races on its runs in its own way. While a question reads a run, no thread writes
//! to the run. While a change writes a run, no other thread accesses the run. In this table, a channel is a
//! share of a device, and a home slot is the place of a page in device memory:
//!
//! | store | runs | protected by | order on the device |
//! |---|---|---|---|
//! | array | one for each channel, over its home slots; to write, some slots at a time | nothing; to write, claims of its pages | `queue_barriers` |
//! | source | contiguous slots of cached pages | locks of its pages | one queue for kernels |
//! | rows that are [staged](StagedRows) | copies, some MiB at a time | ownership by the calling thread | one exclusive queue |

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
