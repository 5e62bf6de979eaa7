//! Allocations of GPU memory, which queues and other devices access by address.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vmarray_support::warn;

use crate::context::CudaContext;
use crate::driver::{DriverResult, StreamHandle, check};
use crate::reserved::ReservedRange;

/// A queue of another device whose work uses memory of this device.
pub(crate) trait VisitingQueue: std::fmt::Debug + Send + Sync {
    /// Blocks until the work of the queue has ended.
    fn await_work(&self) -> DriverResult;
}

/// An allocation on the GPU. The drop releases it; no work in flight may use it then.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<CudaContext>,
    pub(crate) address: u64,
    bytes: AtomicU64,
    /// The number of bytes that the driver allocated, which may exceed `bytes`.
    allocated: u64,
    /// For extensible memory: its address range, and its greatest length in bytes.
    reserved: Option<(ReservedRange, u64)>,
    /// Queues of other devices whose work uses this memory.
    visitors: Mutex<Vec<Weak<dyn VisitingQueue>>>,
}

impl DeviceMemory {
    /// Allocates memory with unspecified contents. Allocates nothing for 0 bytes.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: u64) -> DriverResult<Self> {
        if let Some((address, allocated)) = context.kept.take(bytes) {
            let mut memory = Self::at(context, address, bytes);
            memory.allocated = allocated;
            return Ok(memory);
        }
        let mut address = 0;
        if bytes > 0 {
            let _current = context.enter()?;
            let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
            // SAFETY: writes one address.
            let find = || check(unsafe { (context.driver.table.mem_alloc)(&raw mut address, wanted) });
            context.find_memory(find)?;
        }
        Ok(Self::at(context, address, bytes))
    }

    fn at(context: &Arc<CudaContext>, address: u64, bytes: u64) -> Self {
        let (allocated, visitors) = (bytes, Mutex::default());
        let (context, bytes) = (Arc::clone(context), AtomicU64::new(bytes));
        Self { context, address, bytes, allocated, reserved: None, visitors }
    }

    /// Allocates memory that can grow to `most` bytes. Reserves addresses for `most_here` bytes.
    pub(crate) fn extensible(
        context: &Arc<CudaContext>,
        bytes: u64,
        most: u64,
        most_here: u64,
    ) -> DriverResult<Self> {
        let reserved = ReservedRange::new(context, most_here)?;
        reserved.extend(bytes)?;
        let mut memory = Self::at(context, reserved.address(), bytes);
        memory.reserved = Some((reserved, most));
        Ok(memory)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// For extensible memory, returns its address range and its greatest length in bytes.
    pub(crate) fn reserved(&self) -> Option<&(ReservedRange, u64)> {
        self.reserved.as_ref()
    }

    /// Makes the new length of extended memory visible to other threads.
    pub(crate) fn lengthen(&self, bytes: u64) {
        self.bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Takes over memory that other code allocated in this context.
    #[cfg(feature = "cust")]
    pub(crate) fn given(context: &Arc<CudaContext>, address: u64, bytes: u64) -> Self {
        Self::at(context, address, bytes)
    }

    /// Gives the memory to other code, which frees the returned address. The memory must not be extensible.
    #[cfg(feature = "cust")]
    pub(crate) fn give(mut self) -> u64 {
        *self.bytes.get_mut() = 0;
        self.address
    }

    pub(crate) fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Records a queue of another device whose work uses this memory.
    pub(crate) fn note_visitor(&self, queue: Weak<dyn VisitingQueue>) {
        let mut visitors = self.visitors.lock();
        if !visitors.iter().any(|visitor| std::ptr::addr_eq(visitor.as_ptr(), queue.as_ptr())) {
            visitors.retain(|visitor| visitor.strong_count() > 0);
            visitors.push(queue);
        }
    }

    /// Blocks until other devices' work on this memory has ended. Its id is no longer in the table.
    pub(crate) fn await_visitors(&self) {
        let visitors = std::mem::take(&mut *self.visitors.lock());
        for queue in visitors.iter().filter_map(Weak::upgrade) {
            if let Err(code) = queue.await_work() {
                // Ignore this error, because in a lost context no work runs any more.
                tracing::debug!(?code, "a device that used this memory was lost");
            }
        }
    }

    /// Enqueues writes of zeroes to a part of the memory in a stream.
    pub(crate) fn clear(&self, part: Range<u64>, stream: StreamHandle) -> DriverResult {
        let (start, bytes) = (self.address + part.start, (part.end - part.start) as usize);
        let _current = self.context.enter()?;
        // SAFETY: the range is of this allocation.
        check(unsafe { (self.context.driver.table.memset_d8_async)(start, 0, bytes, stream) })
    }

    /// Writes zeroes to all of the memory in the wiping stream, and blocks, which may delay other work.
    fn wipe(&self, wiper: StreamHandle) -> DriverResult {
        self.clear(0..self.bytes(), wiper)?;
        // SAFETY: the stream lives as long as the context.
        check(unsafe { (self.context.driver.table.stream_synchronize)(wiper) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let bytes = self.bytes();
        if bytes == 0 {
            return;
        }
        let wiped = self.context.wiper().map_or(Ok(()), |wiper| self.wipe(wiper));
        if let Err(code) = wiped {
            warn::not_wiped("memory", &self.context.name(), &format_args!("{code:?}"));
        }
        if self.reserved.is_some() {
            return;
        }
        if let Err(code) = self.context.keep(self.address, self.allocated) {
            tracing::debug!(?code, bytes, "cannot free device memory, because the device is lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_api::{Commit, Device, DeviceBuffer, ErrorKind};
    use vmarray_conformance::{Limits, Outcome, checks};

    use crate::fake::{FakeScene, device, driven, mapped_bytes};
    use crate::options::CudaOptions;

    #[test]
    fn memory_grows_behind_addresses_that_were_set_aside() {
        const PIECE: u64 = 2 << 20;
        let device = device(&CudaOptions::new());
        let check = checks().iter().find(|check| check.name == "memory_grows_in_its_place").unwrap();
        assert_eq!(check.run(&device, &Limits::default()), Outcome::Passed);
        let before = mapped_bytes();
        let memory = DeviceBuffer::extensible(&device, 10, 100 * PIECE, Commit::Proven).unwrap();
        assert_eq!(mapped_bytes() - before, PIECE);
        memory.extend(PIECE, Commit::Lazy).unwrap();
        assert_eq!(mapped_bytes() - before, PIECE, "it is there already");
        memory.extend(5 * PIECE + 1, Commit::Proven).unwrap();
        assert_eq!(mapped_bytes() - before, 6 * PIECE);
        // The driver has no more memory, or it cannot map its memory for this GPU or for all GPUs.
        type Change = fn(&mut crate::fake::Driven);
        let changes: [Change; 3] = [
            |driven| driven.no_bytes_above = Some(PIECE as usize),
            |driven| driven.short_maps = 1,
            |driven| driven.short_accesses = 1,
        ];
        for change in changes {
            driven(change);
            let error = memory.extend(50 * PIECE, Commit::Lazy).unwrap_err();
            assert_eq!((error.kind(), error.available_bytes().is_some()), (ErrorKind::OutOfMemory, true));
            driven(|driven| driven.no_bytes_above = None);
            assert_eq!((mapped_bytes() - before, memory.bytes()), (6 * PIECE, 5 * PIECE + 1));
        }
        memory.extend(50 * PIECE, Commit::Lazy).unwrap();
        let kind = |bytes| memory.extend(bytes, Commit::Lazy).map_err(|error| error.kind());
        assert_eq!(kind(100 * PIECE + 1), Err(ErrorKind::TooLarge));
        assert_eq!(kind(1 << 41), Err(ErrorKind::TooLarge));
        drop(memory);
        assert_eq!(mapped_bytes(), before, "all is given back");
        driven(|driven| driven.is_old = true);
        let error = DeviceBuffer::extensible(&device, 10, 100, Commit::Lazy).unwrap_err();
        driven(|driven| driven.is_old = false);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }

    #[test]
    fn device_memory_is_wiped_before_it_is_freed() {
        for wipes in [false, true] {
            let scene = FakeScene::new(1000);
            if wipes {
                scene.device.wipe_on_release().unwrap();
            }
            scene.host.write(0, &[7; 1000]);
            scene.device.wait(scene.queue.submit(&[scene.upload(1000)]).unwrap()).unwrap();
            driven(|driven| driven.freed = (0, 0));
            let FakeScene { device, queue, memory, host } = scene;
            drop(memory);
            assert_eq!(driven(|_| ()).freed, (1000, if wipes { 1000 } else { 0 }));
            drop((host, queue));
            assert_eq!(Arc::strong_count(&device), 1);
        }
    }

    #[test]
    fn a_card_that_is_full_is_wiped_all_the_same() {
        let scene = FakeScene::new(1000);
        driven(|driven| driven.no_streams = true);
        assert_eq!(scene.device.wipe_on_release().unwrap_err().kind(), ErrorKind::OutOfMemory);
        driven(|driven| driven.no_streams = false);
        scene.device.wipe_on_release().unwrap();
        scene.device.wipe_on_release().unwrap();
        scene.host.write(0, &[7; 1000]);
        scene.device.wait(scene.queue.submit(&[scene.upload(1000)]).unwrap()).unwrap();
        driven(|driven| (driven.no_streams, driven.freed) = (true, (0, 0)));
        let FakeScene { device, queue, memory, host } = scene;
        drop(memory);
        assert_eq!(driven(|_| ()).freed, (1000, 1000));
        drop((host, queue));
        let streams = driven(|_| ()).streams;
        drop(device);
        let after = driven(|driven| driven.no_streams = false);
        assert_eq!(after.streams, streams - 1, "the one that wipes went with the device");
    }
}
