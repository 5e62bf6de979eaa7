//! Tests that page-locked memory is requested on the NUMA node of its device.

use std::sync::Arc;

use backend_api::numa::{Processors, assume, memory_policy};
use backend_api::{Device, DeviceInfo, HostAllocation, HostBuffer, HostMemory, Result};
use parking_lot::Mutex;
use vmarray_conformance::reference::ReferenceDevice;

/// A device on a node, which notes the policy at each allocation of host memory.
#[derive(Debug)]
struct Attached {
    inner: ReferenceDevice,
    info: DeviceInfo,
    seen: Mutex<Vec<Option<libc::c_int>>>,
}

// SAFETY: all calls are forwarded.
unsafe impl Device for Attached {
    backend_api::forward! { self => self.inner;
        memory create_queue release_queue allocate release import_host release_host
        wipe_on_release sync submit prepare
        kernel_facts poll wait wake reaches order_after
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.seen.lock().push(memory_policy());
        self.inner.allocate_host(bytes, kind)
    }
}

#[test]
fn page_locked_memory_is_asked_for_near_its_device() {
    assume(0, Processors::of(0).unwrap());
    if memory_policy().is_none() {
        return;
    }
    let seen = |node, kind| {
        let inner = ReferenceDevice::new(1 << 20);
        let mut info = inner.info().clone();
        info.numa_node = node;
        let device = Arc::new(Attached { inner, info, seen: Mutex::default() });
        // The reference device has no page-locked memory, but the request alone sets the policy that the test
        // checks.
        let _ = HostBuffer::new(&device, 100, kind);
        assert_eq!(memory_policy(), Some(libc::MPOL_DEFAULT));
        device.seen.lock().clone()
    };
    assert_eq!(seen(Some(0), HostMemory::Pinned), [Some(libc::MPOL_PREFERRED)]);
    assert_eq!(seen(None, HostMemory::Pinned), [Some(libc::MPOL_DEFAULT)]);
    // The system applies the policy when the program first touches the pages.
    assert_eq!(seen(Some(0), HostMemory::Pageable), [Some(libc::MPOL_DEFAULT)]);
}
