//! [`ChannelShare`]: all elements of one channel, for operations with exclusive access to device memory, such
//! as sorts.

use backend_api::Elements;

use super::run::Lane;
use crate::base::error::Error;
use crate::base::racy_slice::ExclusiveMemory;
use crate::base::registered_memory::RegisteredMemory;

/// Outcome of work of devices that had exclusive access to the elements.
#[derive(Debug)]
pub enum DeviceOutcome {
    Done,
    /// The device does not support it, or lacks memory. No element was moved.
    Unsupported,
    /// The elements are in an unspecified order.
    Failed(Error),
    /// Some or all elements are lost.
    Lost(Error),
}

/// The sort keys of one channel, and the values that move with them. Both are contiguous, and no other code
/// accesses them.
pub struct ChannelShare<'a> {
    pub(crate) lane: Box<dyn Lane + Sync + 'a>,
    pub channel: u64,
    /// Index of the share's first key among the elements of the channel.
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
    /// Bytes of a key and its value.
    pub(crate) fn bytes_of_each(&self) -> u64 {
        self.keys.stride + self.values.map_or(0, |values| values.stride)
    }
}

/// The distribution of a store's elements: channel `p % channels` has page `p`.
#[derive(Clone, Copy, Debug)]
pub struct Striping {
    pub page_len: usize,
    pub channels: usize,
    /// Index of the first sorted element.
    pub start: usize,
}

/// A closure that changes the elements of all channels; each share has the elements of one channel, and is
/// not empty. The closure calls its last argument before its first write.
pub type ShareWork<'a> = &'a mut dyn FnMut(&[ChannelShare<'_>], Striping, &mut dyn FnMut()) -> DeviceOutcome;

/// The share of one device in work on elements that are stored in the program's memory. The work uses all
/// memory of the share.
#[derive(Debug)]
pub struct ImportedShare<'a> {
    pub(crate) share: ChannelShare<'a>,
    /// The program's memory as imported by the device, and the offset of the first element in it.
    pub(crate) import: &'a RegisteredMemory,
    pub(crate) offset: u64,
}

/// Elements in the program's memory that one operation uses exclusively, with shares of the devices that have
/// imported the memory. The import of each share has the elements at the offset of the share.
#[derive(Debug)]
pub struct ImportedHome<'a> {
    pub(crate) memory: ExclusiveMemory<'a>,
    pub(crate) shares: Vec<ImportedShare<'a>>,
}

/// Work that moves elements through the memory of the devices that have imported them.
pub type ImportedWork<'a> = &'a mut dyn FnMut(ImportedHome<'_>) -> DeviceOutcome;
