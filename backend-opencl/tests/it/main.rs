//! All integration tests of the crate, as one program: shared code is compiled and linked once.

use std::sync::Arc;

use backend_api::{Commit, DeviceBuffer, HostBuffer, HostMemory, Queue};
use backend_opencl::{Discovered, OpenClDevice, OpenClOptions, devices_matching};

mod conformance;
mod device;
mod stress;
mod wakers;

/// The devices that `VMARRAY_OPENCL_DEVICE` selects by index or by a part of the name, identity or
/// platform; without it, all. Without devices the tests print that and pass; with `VMARRAY_REQUIRE_DEVICE`
/// they fail.
fn chosen() -> Vec<Discovered> {
    let filter = std::env::var("VMARRAY_OPENCL_DEVICE").unwrap_or_default();
    let found = devices_matching(&filter);
    if found.is_empty() {
        println!("no OpenCL device (filter {filter:?}): skipped");
        assert!(std::env::var_os("VMARRAY_REQUIRE_DEVICE").is_none(), "no OpenCL device");
    }
    found
}

fn open(found: &Discovered, options: &OpenClOptions) -> Arc<OpenClDevice> {
    Arc::new(OpenClDevice::open(found, options).expect("a device that is listed opens"))
}

/// A device with a queue, and memory of each kind; the device memory holds zeroes.
struct Scene {
    device: Arc<OpenClDevice>,
    queue: Queue<OpenClDevice>,
    memory: DeviceBuffer<OpenClDevice>,
    host: HostBuffer<OpenClDevice>,
}

impl Scene {
    fn new(
        found: &Discovered,
        options: &OpenClOptions,
        memory: u64,
        (host, kind): (u64, HostMemory),
    ) -> Self {
        let device = open(found, options);
        Self {
            queue: Queue::new(&device).expect("a queue"),
            memory: DeviceBuffer::new(&device, memory, Commit::Proven).expect("device memory"),
            host: HostBuffer::new(&device, host as usize, kind).expect("host memory"),
            device,
        }
    }
}
