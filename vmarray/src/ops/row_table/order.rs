//! The order of a long list of ids: neighbouring rows one after the other, found by kernels on the stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, Error, ErrorKind, HostBuffer, HostMemory, Queue, Result, StreamId, Transfer,
};
use parking_lot::Mutex;

use super::buffers::{CheckedList, RowExtent};
use super::kernels::{BLOCK, BUCKETS};
use super::launches::{RowKernel, RowLaunch, StreamCall};

/// The least number of ids that are put in order.
const ORDERED_MIN: u64 = 16384;

/// Most groups of a kernel that reads rows in RAM. Fewer rows in flight are closer to one another, so the GPU
/// translates fewer distinct addresses. On an H200, 65 536 rows of 256 bytes took 0.74 of the time of 99
/// groups.
pub(super) const GROUPS_OF_RAM: u64 = 33;

/// Memory of a stream: the counts of buckets, and the order of a list.
#[derive(Debug)]
struct ListOrder {
    memory: DeviceBuffer<dyn Device>,
    most: u64,
}

/// The memory for the orders of lists, for each stream.
#[derive(Debug)]
pub(super) struct ListOrders {
    device: Arc<dyn Device>,
    streams: Mutex<BTreeMap<u64, ListOrder>>,
    /// Memory that became too short. Kernels in flight may still use it.
    retired: Mutex<Vec<DeviceBuffer<dyn Device>>>,
}

const COUNT_BYTES: u64 = 4 * BUCKETS as u64;

impl ListOrders {
    pub fn new(device: &Arc<dyn Device>) -> Self {
        Self { device: Arc::clone(device), streams: Mutex::default(), retired: Mutex::default() }
    }

    /// Returns the address of the stream's memory, with room for `count` numbers.
    fn memory(&self, stream: StreamId, count: u64) -> Result<u64> {
        let mut streams = self.streams.lock();
        if let Some(found) = streams.get(&stream.0).filter(|found| found.most >= count) {
            return address(&self.device, &found.memory);
        }
        let most = count.next_power_of_two().max(1 << 16);
        let memory = DeviceBuffer::new(&self.device, COUNT_BYTES + 4 * most, Commit::Lazy)?;
        let start = address(&self.device, &memory)?;
        let before = streams.insert(stream.0, ListOrder { memory, most });
        self.retired.lock().extend(before.map(|order| order.memory));
        Ok(start)
    }

    /// Enqueues kernels that put a list in order. Returns the order; an empty one for short lists.
    pub fn order(
        &self,
        call: StreamCall<'_>,
        list: &CheckedList,
        rows: u64,
    ) -> crate::base::error::Result<RowExtent> {
        let count = list.count;
        if !(ORDERED_MIN..u64::from(u32::MAX)).contains(&count) || rows == 0 {
            return Ok(RowExtent::default());
        }
        let memory = self.memory(call.stream, count)?;
        let (counts, order) =
            (RowExtent::new(BUCKETS as u64, memory), RowExtent::new(count, memory + COUNT_BYTES));
        // The buckets are the upper bits of the ids.
        let bits_of_id = (rows - 1).checked_ilog2().map_or(0, |log| log + 1);
        let bits = u64::from(bits_of_id.saturating_sub(BUCKETS.ilog2()));
        let views = [list.ids.of(4), counts.of(4), order.of(4)];
        let groups = count.div_ceil(BLOCK as u64);
        let values = &[count, rows, bits, list.id_words][..];
        let launches = [
            (RowKernel::Clear, (BUCKETS / BLOCK) as u64, &views[1..2], &[BUCKETS as u64][..]),
            (RowKernel::CountIds, groups, &views[..2], values),
            (RowKernel::StartBuckets, 1, &views[1..2], &[]),
            (RowKernel::PlaceIds, groups, &views, values),
        ];
        // A bucket's number is below `BUCKETS`, and a place below `count`.
        for (kernel, groups, views, values) in launches {
            call.launch(&RowLaunch { kernel, groups, views, values })?;
        }
        Ok(order)
    }
}

/// Returns the address of memory of the device, for kernels.
pub(super) fn address(device: &Arc<dyn Device>, memory: &DeviceBuffer<dyn Device>) -> Result<u64> {
    let addresses = device.addresses().ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "rows").with_detail("the device's memory has no addresses")
    })?;
    addresses.address(memory.at(0), memory.bytes())
}

/// Copies bytes to new memory of the device. Blocks.
pub(super) fn uploaded(device: &Arc<dyn Device>, bytes: &[u8]) -> Result<DeviceBuffer<dyn Device>> {
    let (queue, memory) = (Queue::new(device)?, DeviceBuffer::new(device, bytes.len() as u64, Commit::Lazy)?);
    let host = HostBuffer::new(device, bytes.len(), HostMemory::Pageable)?;
    host.write(0, bytes);
    let copy = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: bytes.len() as u64 };
    device.wait(queue.submit(&[copy])?)?;
    Ok(memory)
}
