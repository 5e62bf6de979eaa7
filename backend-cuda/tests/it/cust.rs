//! Tests of memory that `cust` and a device exchange.
//!
//! The tests are `#[ignore]`d: `cargo xtask test-gpu` runs them on a machine with an NVIDIA GPU.
#![cfg(feature = "cust")]

use std::sync::Arc;

use backend_api::{
    BufferHandle, Commit, Device, DeviceBuffer, ErrorKind, Fill, HostBuffer, HostMemory, Queue, Transfer,
};
use backend_cuda::{CudaDevice, CudaOptions};
use cust::context::Context;
use cust::memory::{CopyDestination, DeviceBuffer as CustBuffer};

/// A context of `cust`, and the device in it.
fn card() -> (Context, Arc<CudaDevice>) {
    let context = cust::quick_init().expect("an NVIDIA GPU and its driver");
    let device = CudaDevice::from_cust(&context, &CudaOptions::new()).expect("the card opens");
    (context, Arc::new(device))
}

fn numbers(count: u32) -> Vec<u32> {
    (0..count).map(|i| i.wrapping_mul(0x9E37_79B9) ^ 7).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn both_work_in_one_context() {
    let (context, device) = card();
    assert_eq!(device.context(), context.as_raw().cast());
    let current = CudaDevice::from_current(&CudaOptions::new()).unwrap();
    assert_eq!(current.context(), context.as_raw().cast());
    assert_eq!(current.card().info.identity, device.card().info.identity);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn without_a_context_nothing_is_adopted() {
    // This thread has no context.
    let error = CudaDevice::from_current(&CudaOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_of_cust_is_used_like_any_other_and_goes_back() {
    let (_context, device) = card();
    let theirs = numbers(10_000);
    let memory = device.import_cust(CustBuffer::from_slice(&theirs).unwrap()).unwrap();
    let queue = Queue::new(&device).unwrap();
    let host = HostBuffer::new(&device, 40_000, HostMemory::Pinned).unwrap();
    let copy = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 40_000 };
    device.wait(queue.submit(&[copy]).unwrap()).unwrap();
    let mut found = vec![0; 40_000];
    host.read(0, &mut found);
    assert!(
        found
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .eq(theirs.iter().copied())
    );
    // A range beyond the end is refused as with any memory.
    let beyond = Transfer::Download { from: memory.at(1), to: host.at(0), bytes: 40_000 };
    assert_eq!(queue.submit(&[beyond]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    // The conversion back waits for work in flight.
    queue.submit(&Fill { to: memory.at(0), bytes: 20_000, pattern: &[9, 0, 0, 0] }).unwrap();
    let (error, memory) = device.export_cust::<[u8; 7]>(memory).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let back: CustBuffer<u32> = device.export_cust(memory).unwrap();
    let mut found = vec![0_u32; 10_000];
    back.copy_to(&mut found).unwrap();
    assert!(found[..5000].iter().all(|&n| n == 9));
    assert_eq!(found[5000..], theirs[5000..]);
    let (error, _) = device.export_cust::<u32>(BufferHandle::unique()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownHandle);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_is_copied_in_both_directions_in_the_order_of_a_queue() {
    let (_context, device) = card();
    let queue = Queue::new(&device).unwrap();
    let theirs = numbers(4096);
    let from = CustBuffer::from_slice(&theirs).unwrap();
    let mut to = CustBuffer::from_slice(&vec![0_u32; 2048]).unwrap();
    let memory = DeviceBuffer::new(&device, 4 * 4096 + 64, Commit::Lazy).unwrap();
    // SAFETY: both are kept, and not touched, until the wait below.
    let ticket = unsafe {
        device.copy_from_cust(queue.handle(), &from, memory.at(64)).unwrap();
        queue.submit(&Fill { to: memory.at(64 + 4096), bytes: 4, pattern: &[1, 0, 0, 0] }).unwrap();
        device.copy_to_cust(queue.handle(), memory.at(64 + 4096), &mut to).unwrap()
    };
    device.wait(ticket).unwrap();
    let mut found = vec![0_u32; 2048];
    to.copy_to(&mut found).unwrap();
    assert_eq!(found[0], 1);
    assert_eq!(found[1..], theirs[1025..3072]);
    // SAFETY: no work is started.
    let refused = unsafe { device.copy_from_cust(queue.handle(), &from, memory.at(65)) };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}
