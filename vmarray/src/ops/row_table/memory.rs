//! The memory of a table's rows, as the kernels of one GPU see it.

use std::ptr::NonNull;
use std::sync::Arc;

use backend_api::{
    AddressSpace, Device, Error, ErrorKind, HostMemory, Reach, Result, StreamLayout, StreamView,
};

use super::buffers::RowView;
use crate::base::registered_memory::RegisteredMemory;
use crate::engine::pager::Pager;

/// The place of the rows.
///
/// ```
/// use vmarray::rows::RowHome;
/// assert_ne!(RowHome::Gpu, RowHome::Ram);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RowHome {
    /// Memory of the GPU, or of GPUs that it maps.
    Gpu,
    /// RAM, or partly RAM: page-locked, and read by kernels over the bus.
    Ram,
    /// Files, or other devices whose memory kernels cannot access: threads of the host read the rows.
    Storage,
}

/// The ranges of memory over which the pages of a table are striped.
#[derive(Debug)]
pub(super) struct RowMemory {
    pub home: RowHome,
    /// Start address of each range, for kernels of the GPU.
    pub starts: Vec<u64>,
    page_bytes: u64,
    /// Bytes before the first row.
    offset: u64,
    /// Keeps memory in RAM page-locked.
    _locked: Vec<RegisteredMemory>,
}

impl RowMemory {
    /// Finds the memory of the rows of an array, from the byte `offset` on, for kernels of `device`.
    /// Page-locks memory in RAM.
    pub fn new(device: &Arc<dyn Device>, pager: &Pager, offset: u64) -> Result<Self> {
        let mut memory = Self {
            home: RowHome::Storage,
            starts: Vec::new(),
            page_bytes: pager.page_bytes() as u64,
            offset,
            _locked: Vec::new(),
        };
        if pager.channels().iter().any(|channel| channel.device().addresses().is_none()) {
            return Ok(memory);
        }
        memory.home = RowHome::Gpu;
        for channel in pager.channels() {
            let owner = channel.device();
            let addresses = owner.addresses().ok_or_else(|| refused(owner))?;
            let bytes = channel.slot_bytes();
            let address = addresses.address(channel.slot_memory(), bytes)?;
            let is_mapped = device.reaches(owner.info()) == Reach::Maps;
            // SAFETY: the channel's memory lives as long as the array, and the table ends before the array.
            unsafe { memory.add(device, owner, (addresses.space(), is_mapped), (address, bytes))? };
        }
        Ok(memory)
    }

    /// Uses memory that other code has allocated. Page-locks memory in RAM.
    ///
    /// # Safety
    /// The memory stays allocated until this is dropped.
    pub unsafe fn over(device: &Arc<dyn Device>, space: AddressSpace, place: (u64, u64)) -> Result<Self> {
        let mut memory =
            Self { home: RowHome::Gpu, starts: Vec::new(), page_bytes: 0, offset: 0, _locked: Vec::new() };
        // SAFETY: guaranteed by the caller.
        unsafe { memory.add(device, device, (space, false), place)? };
        Ok(memory)
    }

    /// Adds a range of memory of the device `owner`, given by its address and length.
    ///
    /// # Safety
    /// The memory stays allocated until this is dropped.
    unsafe fn add(
        &mut self,
        device: &Arc<dyn Device>,
        owner: &Arc<dyn Device>,
        (space, is_mapped): (AddressSpace, bool),
        (mut address, bytes): (u64, u64),
    ) -> Result<()> {
        if space == AddressSpace::Host {
            self.home = RowHome::Ram;
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize));
            if let Some(start) = start.filter(|_| bytes > 0) {
                // SAFETY: guaranteed by the caller. Only work of this table names the registration.
                let range =
                    unsafe { RegisteredMemory::new(device, start, bytes as usize, HostMemory::Pinned)? };
                let streams = device.stream_launcher().ok_or_else(|| no_streams(device))?;
                address = streams.kernel_address(range.at(0), bytes)?;
                self._locked.push(range);
            }
        } else if !is_mapped && device.addresses().map(|own| own.space()) != Some(space) {
            return Err(refused(owner));
        }
        self.starts.push(address);
        Ok(())
    }

    /// Returns the alignment of all chunks of rows of this length: the greatest power of two, at most 16.
    pub fn align(&self, row_bytes: u64) -> u64 {
        let pages = if self.starts.len() > 1 { self.page_bytes } else { 0 };
        let all = self.starts.iter().fold(row_bytes | self.offset | pages | 16, |all, start| all | start);
        1 << all.trailing_zeros()
    }

    /// Returns the view of the memory up to the end of `count` chunks, and the number of the first of them.
    pub fn view(&self, chunk: u64, count: u64) -> (RowView<'_>, u64) {
        let (ranges, first) = (self.starts.len(), self.offset / chunk);
        let page_len = if ranges == 1 { 1 } else { self.page_bytes / chunk };
        let layout = StreamLayout { page_len, ranges, ..StreamLayout::contiguous(chunk) };
        ((layout, StreamView { count: first + count, starts: &self.starts }), first)
    }
}

fn refused(owner: &Arc<dyn Device>) -> Error {
    Error::new(ErrorKind::Unsupported, "rows")
        .with_detail("the GPU of the lists cannot access this memory, so kernels cannot read rows there")
        .with_advice("store the table on that GPU or in RAM, or copy it there")
        .on(owner.info())
}

pub(super) fn no_streams(device: &Arc<dyn Device>) -> Error {
    Error::new(ErrorKind::Unsupported, "rows")
        .with_detail("the device has no streams of the program")
        .with_advice("use an NVIDIA GPU, or `gather` for lists in RAM")
        .on(device.info())
}
