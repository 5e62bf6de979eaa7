//! [`ChannelShare`]: all elements of one channel (share of a device), for operations with exclusive access.

use backend_api::Elements;

use super::run::Lane;
use crate::base::error::Error;
use crate::base::racy_slice::ExclusiveMemory;
use crate::base::registered_memory::RegisteredMemory;

/// Outcome of an operation on devices that had exclusive access to the elements, such as a sort.
#[derive(Debug)]
pub enum DeviceOutcome {
    Done,
    /// The device does not support the operation, or lacks memory. No element was moved.
    Unsupported,
    /// The operation failed. The elements are complete, but in an unspecified order.
    Failed(Error),
    /// The operation failed, and some or all elements are lost.
    Lost(Error),
}

/// The sort keys that one channel (share of a device) stores, and the values that move with the keys. Both
/// are contiguous in device memory, and no other thread accesses them.
pub struct ChannelShare<'a> {
    pub(crate) lane: Box<dyn Lane + Sync + 'a>,
    pub channel: u64,
    /// Index of the first key to sort, counted from the first element of the channel (share of a device).
    pub first: u64,
    pub keys: Elements<'a>,
    pub values: Option<Elements<'a>>,
}

impl std::fmt::Debug for ChannelShare<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelShare").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl ChannelShare<'_> {
    /// The size in bytes of a key and its value.
    pub(crate) fn bytes_of_each(&self) -> u64 {
        self.keys.stride + self.values.map_or(0, |values| values.stride)
    }
}

/// The distribution of pages over channels (shares of devices): channel `p % channels` stores page `p`.
#[derive(Clone, Copy, Debug)]
pub struct Striping {
    pub page_len: usize,
    pub channels: usize,
    /// Index of the first element to sort, in its array or source (program memory).
    pub start: usize,
}

/// A closure that changes elements on all channels (shares of devices), for example sorts them. Its arguments
/// are the elements of each nonempty channel, the distribution of all elements over the channels, and a
/// function to call before the first write.
pub type ShareWork<'a> = &'a mut dyn FnMut(&[ChannelShare<'_>], Striping, &mut dyn FnMut()) -> DeviceOutcome;

/// One device's part of the elements, in an operation on the program's memory. The device has imported this
/// memory, and the operation may change all elements of the part.
#[derive(Debug)]
pub struct ImportedShare<'a> {
    pub(crate) share: ChannelShare<'a>,
    /// The program's memory as imported by the device, and the offset in bytes of the first element.
    pub(crate) import: &'a RegisteredMemory,
    pub(crate) offset: u64,
}

/// Elements in the program's memory to which one operation has exclusive access. Several devices have
/// imported the memory, and each device works on a part of the elements.
#[derive(Debug)]
pub struct ImportedHome<'a> {
    pub(crate) memory: ExclusiveMemory<'a>,
    pub(crate) shares: Vec<ImportedShare<'a>>,
}

/// A closure that moves elements in the program's memory, by devices that have imported this memory.
pub type ImportedWork<'a> = &'a mut dyn FnMut(ImportedHome<'_>) -> DeviceOutcome;
