//! The memory of a table's rows, as the kernels of one GPU see it.

use std::ptr::NonNull;
use std::sync::Arc;

use backend_api::{AddressSpace, Device, Error, ErrorKind, HostMemory, Reach, Result};

use crate::base::registered_memory::RegisteredMemory;
use crate::engine::channel::Channel;
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
    pub page_bytes: u64,
    /// Keeps memory in RAM page-locked.
    _locked: Vec<RegisteredMemory>,
}

impl RowMemory {
    /// Finds the memory of all elements of an array for kernels of `device`, and page-locks memory in RAM.
    pub fn new(device: &Arc<dyn Device>, pager: &Pager) -> Result<Self> {
        if pager.channels().iter().any(|channel| channel.device().addresses().is_none()) {
            return Ok(Self {
                home: RowHome::Storage,
                starts: Vec::new(),
                page_bytes: 0,
                _locked: Vec::new(),
            });
        }
        let (mut home, mut locked) = (RowHome::Gpu, Vec::new());
        let mut start = |channel: &Arc<Channel>| {
            let owner = channel.device();
            let Some(addresses) = owner.addresses() else {
                return Err(refused(owner, "its memory has no addresses"));
            };
            let (place, bytes) = (channel.slot_memory(), channel.slot_bytes());
            let address = addresses.address(place, bytes)?;
            match addresses.space() {
                AddressSpace::Host => {
                    home = RowHome::Ram;
                    let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))
                    else {
                        return Ok(0);
                    };
                    // SAFETY: the channel's memory lives as long as the array, and the table ends before the
                    // array. Only work of this table names the registration.
                    let range =
                        unsafe { RegisteredMemory::new(device, start, bytes as usize, HostMemory::Pinned)? };
                    let streams = device.stream_launcher().ok_or_else(|| no_streams(device))?;
                    let address = streams.kernel_address(range.at(0), bytes)?;
                    locked.push(range);
                    Ok(address)
                }
                space if is_mapped(device, owner, space) => Ok(address),
                _ => Err(refused(owner, "the GPU of the lists cannot access its memory")),
            }
        };
        let starts = pager.channels().iter().map(&mut start).collect::<Result<_>>()?;
        Ok(Self { home, starts, page_bytes: pager.page_bytes() as u64, _locked: locked })
    }

    /// Returns the alignment of all chunks of rows of this length: the greatest power of two, at most 16.
    pub fn align(&self, row_bytes: u64) -> u64 {
        let pages = if self.starts.len() > 1 { self.page_bytes } else { 0 };
        let all = self.starts.iter().fold(row_bytes | pages | 16, |all, start| all | start);
        1 << all.trailing_zeros()
    }
}

fn is_mapped(device: &Arc<dyn Device>, owner: &Arc<dyn Device>, space: AddressSpace) -> bool {
    let own = device.addresses().map(|addresses| addresses.space());
    own == Some(space) || device.reaches(owner.info()) == Reach::Maps
}

fn refused(owner: &Arc<dyn Device>, detail: &str) -> Error {
    Error::new(ErrorKind::Unsupported, "rows")
        .with_detail(format!("{detail}, so kernels cannot read rows there"))
        .with_advice("store the table on NVIDIA GPUs or in RAM, or copy it there")
        .on(owner.info())
}

pub(super) fn no_streams(device: &Arc<dyn Device>) -> Error {
    Error::new(ErrorKind::Unsupported, "rows")
        .with_detail("the device has no streams of the program")
        .with_advice("use an NVIDIA GPU, or `gather` for lists in RAM")
        .on(device.info())
}
