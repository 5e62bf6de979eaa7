use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue, QueueHandle,
    Request, Scatter, Search, Ticket, Transfer,
};
use vmarray_conformance::reference::ReferenceDevice;
use vmarray_conformance::wrap::{Counting, WorkCounts};

fn device() -> Arc<Counting<ReferenceDevice>> {
    Arc::new(Counting::new(ReferenceDevice::new(10_000)))
}

#[test]
fn each_kind_of_work_is_counted() {
    let device = device();
    let (one, other) = (Queue::new(&device).unwrap(), Queue::new(&device).unwrap());
    let memory = DeviceBuffer::new(&device, 1000, Commit::Lazy).unwrap();
    let host = HostBuffer::new(&device, 1000, HostMemory::Pageable).unwrap();
    let elements = Elements { start: memory.at(0), count: 10, stride: 8 };
    device.reset();
    let up = Transfer::Upload { from: host.at(0), to: memory.at(0), bytes: 7 };
    let down = Transfer::Download { from: memory.at(0), to: host.at(500), bytes: 11 };
    let within = Transfer::Internal { from: memory.at(0), to: memory.at(500), bytes: 13 };
    let last = one.submit(&[up, down, up, within]).unwrap();
    one.submit(&[]).unwrap();
    other.order_after(last).unwrap();
    other.submit(&Fill { to: memory.at(0), bytes: 300, pattern: &[0] }).unwrap();
    let search =
        Search { elements, field_offset: 0, value: &[0], limit: 1, count_all: true, answer: host.at(0) };
    other.submit(&search).unwrap();
    host.write(0, &[0; 16]);
    other
        .submit(&Gather { elements: elements.into(), indices: host.at(0), count: 2, values: host.at(100) })
        .unwrap();
    let ticket = other
        .submit(&Scatter { elements: elements.into(), indices: host.at(0), count: 1, values: host.at(100) })
        .unwrap();
    device.wait(ticket).unwrap();
    device.poll(ticket).unwrap();
    device.wake(ticket, std::task::Waker::noop().clone());

    let all = device.counts().work;
    assert_eq!((all.submits, all.uploads, all.downloads, all.internals), (2, 2, 1, 1));
    assert_eq!((all.upload_bytes, all.download_bytes, all.internal_bytes), (14, 11, 13));
    assert_eq!((all.fills, all.fill_bytes, all.searches, all.search_bytes), (1, 300, 1, 80));
    assert_eq!((all.gathers, all.gather_bytes, all.scatters, all.scatter_bytes), (1, 16, 1, 8));
    assert_eq!((all.orders, all.waits, all.polls, all.wakes), (1, 1, 1, 1));
    assert_eq!(device.reset().work, all);
    assert_eq!(device.counts().work, WorkCounts::default());
}

#[test]
fn refused_and_failed_work_is_not_counted() {
    let device = device();
    let queue = Queue::new(&device).unwrap();
    let memory = DeviceBuffer::new(&device, 100, Commit::Lazy).unwrap();
    let host = HostBuffer::new(&device, 100, HostMemory::Pageable).unwrap();
    queue.submit(&Fill { to: memory.at(0), bytes: 101, pattern: &[1] }).unwrap_err();
    device.submit(&QueueHandle::unique(), &Request::Copies(&[], None)).unwrap_err();
    host.write(0, &5_u64.to_ne_bytes());
    let elements = Elements { start: memory.at(0), count: 5, stride: 8 };
    let failed = queue
        .submit(&Gather { elements: elements.into(), indices: host.at(0), count: 1, values: host.at(8) })
        .unwrap();
    device.wait(failed).unwrap_err();
    device.poll(Ticket { queue: QueueHandle::unique().id(), value: 1 }).unwrap_err();
    let all = device.counts().work;
    assert_eq!((all.fills, all.submits, all.gathers), (0, 0, 1));
    assert_eq!((all.refused, all.failed, all.waits, all.polls), (2, 2, 1, 1));
    DeviceBuffer::new(&device, 1 << 40, Commit::Lazy).unwrap_err();
    HostBuffer::new(&device, 10, HostMemory::Pinned).unwrap_err();
    assert_eq!(device.counts().refused, 2);
}

#[test]
fn memory_is_counted_while_it_is_held() {
    let device = device();
    let first = DeviceBuffer::new(&device, 3000, Commit::Lazy).unwrap();
    let second = DeviceBuffer::new(&device, 500, Commit::Proven).unwrap();
    drop(first);
    let host = HostBuffer::new(&device, 70, HostMemory::Pageable).unwrap();
    let counts = device.counts();
    assert_eq!((counts.allocations, counts.allocated_bytes), (2, 3500));
    assert_eq!((counts.host_allocations, counts.held_bytes, counts.host_held_bytes), (1, 500, 70));
    device.reset();
    let counts = device.counts();
    assert_eq!((counts.allocations, counts.held_bytes, counts.host_held_bytes), (0, 500, 70));
    drop((second, host));
    let counts = device.counts();
    assert_eq!((counts.held_bytes, counts.host_held_bytes), (0, 0));
}
