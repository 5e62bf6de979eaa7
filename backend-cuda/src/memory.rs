//! Memory of the card.

use std::sync::{Arc, Weak};

use backend_api::tell;
use parking_lot::Mutex;

use crate::context::Context;
use crate::driver::{Outcome, StreamHandle, check};
use crate::queue::Queue;

/// An allocation on the card; given back on drop, at which nothing may be in flight on it.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Queues of other devices that were given a place in it.
    visitors: Mutex<Vec<Weak<Queue>>>,
}

impl DeviceMemory {
    /// Memory with unspecified contents. Nothing is allocated for 0 bytes.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64) -> Outcome<Self> {
        let mut address = 0;
        if bytes > 0 {
            let _current = context.enter()?;
            let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
            // SAFETY: writes one address.
            check(unsafe { (context.driver.table.mem_alloc)(&raw mut address, wanted) })?;
        }
        Ok(Self { context: Arc::clone(context), address, bytes, visitors: Mutex::default() })
    }

    /// Memory that somebody else allocated in this context and now gives away.
    #[cfg(feature = "cust")]
    pub(crate) fn given(context: &Arc<Context>, address: u64, bytes: u64) -> Self {
        Self { context: Arc::clone(context), address, bytes, visitors: Mutex::default() }
    }

    /// Gives it away: the address, which the receiver frees.
    #[cfg(feature = "cust")]
    pub(crate) fn give(mut self) -> u64 {
        self.bytes = 0;
        self.address
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Notes that a queue of another device is given a place in it.
    pub(crate) fn note_visitor(&self, queue: &Arc<Queue>) {
        let mut visitors = self.visitors.lock();
        let is_known = |visitor: &Weak<Queue>| std::ptr::eq(visitor.as_ptr(), Arc::as_ptr(queue));
        if !visitors.iter().any(is_known) {
            visitors.retain(|visitor| visitor.strong_count() > 0);
            visitors.push(Arc::downgrade(queue));
        }
    }

    /// Blocks until the work of other devices' queues on it is over. Its name is forgotten.
    pub(crate) fn await_visitors(&self) {
        let visitors = std::mem::take(&mut *self.visitors.lock());
        for queue in visitors.iter().filter_map(Weak::upgrade) {
            if !queue.is_reached(queue.newest())
                && let Err(code) = queue.drain_for_sure()
            {
                // Nothing runs any more in a context that is lost.
                tracing::debug!(?code, "a device was lost that used memory of another");
            }
        }
    }

    /// Writes zeroes to all of it, in the order of a stream.
    pub(crate) fn clear(&self, stream: StreamHandle) -> Outcome {
        let _current = self.context.enter()?;
        // SAFETY: the range is this allocation.
        check(unsafe {
            (self.context.driver.table.memset_d8_async)(self.address, 0, self.bytes as usize, stream)
        })
    }

    /// Writes zeroes to all of it and waits for that, in the stream that is there for it: others may be held
    /// up.
    fn wipe(&self, wiper: StreamHandle) -> Outcome {
        self.clear(wiper)?;
        // SAFETY: the stream lives as long as the context.
        check(unsafe { (self.context.driver.table.stream_synchronize)(wiper) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let wiped = self.context.wiper().map_or(Ok(()), |wiper| self.wipe(wiper));
        if let Err(code) = wiped {
            tell::not_wiped("memory", &self.context.name(), &format_args!("{code:?}"));
        }
        let freed = self.context.enter().and_then(|_current| {
            // SAFETY: the address came from `mem_alloc`, and the owner made sure that nothing is in flight.
            check(unsafe { (self.context.driver.table.mem_free)(self.address) })
        });
        if let Err(code) = freed {
            tracing::debug!(
                ?code,
                bytes = self.bytes,
                "device memory was not given back: the device is lost"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_api::{Device, ErrorKind};

    use crate::fake::{Scene, driven};

    #[test]
    fn device_memory_is_wiped_before_it_is_freed() {
        for wipes in [false, true] {
            let scene = Scene::new(1000);
            if wipes {
                scene.device.wipe_on_release().unwrap();
            }
            scene.host.write(0, &[7; 1000]);
            scene.device.wait(scene.queue.submit(&[scene.upload(1000)]).unwrap()).unwrap();
            driven(|driven| driven.freed = (0, 0));
            let Scene { device, queue, memory, host } = scene;
            drop(memory);
            assert_eq!(driven(|_| ()).freed, (1000, if wipes { 1000 } else { 0 }));
            drop((host, queue));
            assert_eq!(Arc::strong_count(&device), 1);
        }
    }

    #[test]
    fn a_card_that_is_full_is_wiped_all_the_same() {
        let scene = Scene::new(1000);
        driven(|driven| driven.no_streams = true);
        assert_eq!(scene.device.wipe_on_release().unwrap_err().kind(), ErrorKind::OutOfMemory);
        driven(|driven| driven.no_streams = false);
        scene.device.wipe_on_release().unwrap();
        scene.device.wipe_on_release().unwrap();
        scene.host.write(0, &[7; 1000]);
        scene.device.wait(scene.queue.submit(&[scene.upload(1000)]).unwrap()).unwrap();
        driven(|driven| (driven.no_streams, driven.freed) = (true, (0, 0)));
        let Scene { device, queue, memory, host } = scene;
        drop(memory);
        assert_eq!(driven(|_| ()).freed, (1000, 1000));
        drop((host, queue));
        let streams = driven(|_| ()).streams;
        drop(device);
        let after = driven(|driven| driven.no_streams = false);
        assert_eq!(after.streams, streams - 1, "the one that wipes went with the device");
    }
}
