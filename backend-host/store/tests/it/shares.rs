//! Tests of stores that are divided into growing buffers. The file keeps the buffers' lengths and contents.

use std::sync::Arc;

use backend_api::{Commit, Device, DeviceBuffer, ErrorKind, Fill, HostBuffer, HostMemory, Queue, Transfer};
use vmarray_store::StoreDevice;
use vmarray_support::private_dir;

const PAGE_BYTES: u64 = 96;

fn read(device: &Arc<StoreDevice>, buffer: &DeviceBuffer<StoreDevice>, bytes: u64) -> Vec<u8> {
    let (queue, host) =
        (Queue::new(device).unwrap(), HostBuffer::new(device, bytes as usize, HostMemory::Pageable));
    let host = host.unwrap();
    let copy = Transfer::Download { from: buffer.at(0), to: host.at(0), bytes };
    device.wait(queue.submit(&[copy]).unwrap()).unwrap();
    let mut into = vec![0; bytes as usize];
    host.read(0, &mut into);
    into
}

fn fill(device: &Arc<StoreDevice>, buffer: &DeviceBuffer<StoreDevice>, at: u64, bytes: u64, value: u8) {
    let queue = Queue::new(device).unwrap();
    device.wait(queue.submit(&Fill { to: buffer.at(at), bytes, pattern: &[value] }).unwrap()).unwrap();
}

#[test]
fn shares_grow_and_are_there_again() {
    let path = std::env::temp_dir().join(private_dir::random_name());
    let device = Arc::new(StoreDevice::create(&path, PAGE_BYTES as usize, 0, b"", [0; 3]).unwrap());
    device.share_out(3);
    let most = 1000 * PAGE_BYTES;
    let buffers: Vec<_> =
        (0..3).map(|_| DeviceBuffer::extensible(&device, 0, most, Commit::Lazy).unwrap()).collect();
    // Each buffer has its written bytes, at any place in the file, and zeroes elsewhere.
    let mut expected = vec![Vec::new(); 3];
    for step in 1..40_u64 {
        let share = (step * 7 % 3) as usize;
        let (buffer, expected) = (&buffers[share], &mut expected[share]);
        let before = expected.len() as u64;
        let bytes = before + step * 131 % 4000;
        buffer.extend(bytes, Commit::Lazy).unwrap();
        expected.resize(bytes as usize, 0);
        let start = before - before.min(50);
        // In some rounds leave a gap at the end.
        let end = bytes - (bytes - start).min(step % 3 * 200);
        fill(&device, buffer, start, end - start, step as u8);
        expected[start as usize..end as usize].fill(step as u8);
        assert_eq!(read(&device, buffer, bytes), *expected, "step {step}");
    }
    assert_eq!(buffers[0].extend(most + 1, Commit::Lazy).unwrap_err().kind(), ErrorKind::TooLarge);
    buffers[0].extend(1, Commit::Lazy).unwrap();
    let none_left = DeviceBuffer::extensible(&device, 0, most, Commit::Lazy).unwrap_err();
    assert_eq!(none_left.kind(), ErrorKind::OutOfMemory);
    device.set_note([1, 2, 3]).unwrap();
    device.sync().unwrap();
    // A later note is not in the copy, and the drop of the device stores it.
    device.set_note([4, 5, 6]).unwrap();
    let copy = std::env::temp_dir().join(private_dir::random_name());
    std::fs::copy(&path, &copy).unwrap();
    drop(buffers);
    drop(device);
    for (path, note) in [(&path, [4, 5, 6]), (&copy, [1, 2, 3])] {
        let device = Arc::new(StoreDevice::open(path).unwrap());
        assert_eq!(device.note(), note);
        device.share_out(3);
        // Only the first two pages of the last buffer must remain.
        device.clear_share(2, 2);
        for (share, expected) in expected.iter().enumerate() {
            let bytes = expected.len() as u64;
            let buffer = DeviceBuffer::new(&device, bytes, Commit::Lazy).unwrap();
            let mut expected = expected.clone();
            if share == 2 {
                expected[2 * PAGE_BYTES as usize..].fill(0);
            }
            assert_eq!(read(&device, &buffer, bytes), expected, "share {share}");
        }
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn stores_that_are_not_shared_out_do_not_grow() {
    let path = std::env::temp_dir().join(private_dir::random_name());
    let device = Arc::new(StoreDevice::create(&path, PAGE_BYTES as usize, 10, b"", [0; 3]).unwrap());
    let refused = DeviceBuffer::extensible(&device, 0, 1000, Commit::Lazy).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let buffer = DeviceBuffer::new(&device, 100, Commit::Lazy).unwrap();
    assert_eq!(buffer.extend(200, Commit::Lazy).unwrap_err().kind(), ErrorKind::TooLarge);
    drop((buffer, device));
    let device = StoreDevice::open_read_only(&path).unwrap();
    assert_eq!(device.set_note([1; 3]).unwrap_err().kind(), ErrorKind::ReadOnly);
    std::fs::remove_file(&path).unwrap();
}
