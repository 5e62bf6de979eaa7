//! The same measurements with devices that were opened with other options.

use std::sync::Arc;
use std::time::Duration;

use backend_api::{Commit, DeviceBuffer, HostBuffer, HostMemory, Queue};
use backend_opencl::{Discovered, OpenClDevice, Options, PinnedAccess, Waiting};

use crate::{Outcome, Rig, batches, reads_of_threads};

fn rig(found: &Discovered, options: &Options, bytes: u64) -> Outcome<Rig> {
    let device = Arc::new(OpenClDevice::open(found, options)?);
    let frames = HostBuffer::new(&device, bytes as usize, HostMemory::Pinned)?;
    let memory = DeviceBuffer::new(&device, bytes, Commit::Proven)?;
    let queue = Queue::new(&device)?;
    Ok(Rig { device, queue, memory, frames, bytes })
}

pub fn all(found: &Discovered, bytes: u64) -> Outcome<()> {
    println!("ways to wait: reads of 4 KiB and waits, in thousands a second, from 1, 2, 4, 8, 16 threads");
    for (waiting, micros) in [
        (Waiting::Spin, 0),
        (Waiting::Spin, 20),
        (Waiting::Spin, 500),
        (Waiting::BackOff, 20),
        (Waiting::BackOff, 500),
        (Waiting::Together, 20),
        (Waiting::Together, 500),
    ] {
        let options = Options::new().with_waiting(waiting, Duration::from_micros(micros));
        let rig = rig(found, &options, 32 << 20)?;
        let rates: Vec<_> = [1, 2, 4, 8, 16]
            .into_iter()
            .map(|threads| reads_of_threads(&rig, threads, 4000).map(|rate| format!("{rate:8.1}")))
            .collect::<Outcome<_>>()?;
        println!("  {:<9} up to {micros:>3} us {}", format!("{waiting:?}"), rates.join(" "));
    }
    for access in [PinnedAccess::Copies, PinnedAccess::Kernels, PinnedAccess::NvidiaKernels] {
        let rig = rig(found, &Options::new().with_pinned_access(access), bytes)?;
        println!("pinned access {access:?}: kernels reach it: {}", rig.device.kernels_reach_pinned_memory());
        if access == PinnedAccess::Copies || rig.device.kernels_reach_pinned_memory() {
            batches(&rig)?;
        }
    }
    Ok(())
}
