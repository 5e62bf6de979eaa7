//! Tests of guarantees that only the host device gives, in addition to the rules of all devices.

use std::sync::Arc;
use std::sync::mpsc;

use backend_api::expr::Geometry;
use backend_api::kernel::{Access, Body, HostItems, Memory, Op, Reg, Report, Type, VerifiedKernel, ViewDecl};
use backend_api::waker;
use backend_api::{
    Commit, Device, DeviceBuffer, DeviceKind, Elements, ErrorKind, Fill, HostBuffer, HostMemory, Launch,
    LaunchView, Queue, Request, Ticket, Transfer,
};
use backend_host::HostDevice;
use vmarray_store::FileDevice;

#[test]
fn memory_is_accounted_for() {
    let device = Arc::new(HostDevice::new(1000).unwrap());
    let first = DeviceBuffer::new(&device, 600, Commit::Lazy).unwrap();
    assert_eq!(device.memory().unwrap().free_bytes, 400);
    let error = DeviceBuffer::new(&device, 401, Commit::Proven).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!((error.bytes(), error.available_bytes()), (Some(401), Some(400)));
    assert_eq!(error.device(), device.info().to_string());
    let error = DeviceBuffer::new(&device, 1001, Commit::Lazy).unwrap_err();
    assert_eq!((error.kind(), error.available_bytes()), (ErrorKind::TooLarge, Some(1000)));
    drop(first);
    let _all = DeviceBuffer::new(&device, 1000, Commit::Proven).unwrap();
    assert_eq!(device.memory().unwrap().free_bytes, 0);
}

#[test]
fn a_device_larger_than_the_machine_refuses_proven_allocations() {
    let device = HostDevice::new(1 << 46).unwrap();
    assert_eq!(device.memory().unwrap().usable_bytes, 1 << 46);
    let error = device.allocate(1 << 45, Commit::Proven).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.available_bytes().unwrap() < 1 << 45);
}

#[test]
fn discovery_describes_the_machine() {
    let found = backend_host::devices();
    let device = HostDevice::builder().build().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].kind, &*found[0].backend), (DeviceKind::HostMemory, "host"));
    assert_eq!(found[0].total_bytes, device.info().total_bytes);
    let status = device.memory().unwrap();
    assert!(status.usable_bytes <= status.free_bytes && status.free_bytes <= status.total_bytes);
    assert!(status.usable_bytes > 0);
}

#[test]
fn devices_are_distinguished() {
    let [a, b] = [(); 2].map(|()| HostDevice::new(1).unwrap());
    assert_ne!(a.info().identity, b.info().identity);
}

#[test]
fn long_copies_are_shared_out_and_complete() {
    let device = Arc::new(HostDevice::builder().bytes(64 << 20).threads(3).build().unwrap());
    let queue = Queue::new(&device).unwrap();
    let bytes = 20_000_003;
    let memory = DeviceBuffer::new(&device, bytes as u64 + 5, Commit::Lazy).unwrap();
    let host = HostBuffer::new(&device, 2 * bytes, HostMemory::Pageable).unwrap();
    let source: Vec<u8> = (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    host.write(0, &source);
    // Submit one long copy and many short ones in a call.
    let (long, short) = (19_000_000_u64, 1_000_u64);
    let mut transfers = vec![Transfer::Upload { from: host.at(0), to: memory.at(5), bytes: long }];
    let mut at = long;
    while at < bytes as u64 {
        let part = short.min(bytes as u64 - at);
        transfers.push(Transfer::Upload { from: host.at(at), to: memory.at(5 + at), bytes: part });
        at += part;
    }
    queue.submit(&transfers).unwrap();
    let back = Transfer::Download { from: memory.at(5), to: host.at(bytes as u64), bytes: bytes as u64 };
    device.wait(queue.submit(&[back]).unwrap()).unwrap();
    let mut copy = vec![0; bytes];
    host.read(bytes, &mut copy);
    assert!(copy == source);
}

#[test]
fn work_completes_and_wakes_without_a_waiting_thread() {
    let device = Arc::new(HostDevice::builder().bytes(1 << 20).threads(1).build().unwrap());
    let queue = Queue::new(&device).unwrap();
    let memory = DeviceBuffer::new(&device, 100, Commit::Lazy).unwrap();
    let (sender, receiver) = mpsc::channel();
    for _ in 0..100 {
        let ticket = queue.submit(&Fill { to: memory.at(0), bytes: 100, pattern: b"x" }).unwrap();
        let sender = sender.clone();
        device.wake(ticket, waker(move || sender.send(()).unwrap()));
        receiver.recv().unwrap();
        device.poll(ticket).unwrap();
    }
    // Test the same with polls alone.
    let ticket = queue.submit(&[]).unwrap();
    while device.poll(ticket).unwrap() == backend_api::QueueProgress::Pending {
        std::thread::yield_now();
    }
}

/// The last owner of a device can be a waker, and so a worker of this device.
#[test]
fn a_waker_may_drop_the_device() {
    for _ in 0..50 {
        let device = Arc::new(HostDevice::builder().bytes(1 << 20).threads(2).build().unwrap());
        let queue = device.create_queue().unwrap();
        let buffer = device.allocate(1 << 20, Commit::Lazy).unwrap();
        let fill = Fill { to: buffer.at(0), bytes: 1 << 20, pattern: b"ab" };
        let tickets: Vec<Ticket> =
            (0..5).map(|_| device.submit(&queue, &Request::Fill(&fill)).unwrap()).collect();
        let (sender, receiver) = mpsc::channel();
        let last = parking_lot::Mutex::new(Some(Arc::clone(&device)));
        let drops = move || {
            drop(last.lock().take());
            sender.send(()).unwrap();
        };
        device.wake(tickets[0], waker(drops));
        drop(device);
        receiver.recv().unwrap();
    }
}

#[test]
fn queues_may_race_on_device_memory_without_harm() {
    let device = Arc::new(HostDevice::builder().bytes(1 << 20).threads(4).build().unwrap());
    let memory = DeviceBuffer::new(&device, 1 << 16, Commit::Lazy).unwrap();
    let host = HostBuffer::new(&device, 1 << 16, HostMemory::Pageable).unwrap();
    let queues: Vec<_> = (0..4).map(|_| Queue::new(&device).unwrap()).collect();
    for queue in &queues {
        queue.submit(&Fill { to: memory.at(0), bytes: 1 << 16, pattern: b"a" }).unwrap();
    }
    for turn in 0..200_u64 {
        for (queue, byte) in queues.iter().zip([b"a", b"b", b"c", b"d"]) {
            queue.submit(&Fill { to: memory.at(turn), bytes: 1 << 15, pattern: byte }).unwrap();
            queue
                .submit(&[Transfer::Download { from: memory.at(turn), to: host.at(0), bytes: 1 << 15 }])
                .unwrap();
        }
    }
    for queue in &queues {
        device.wait(queue.submit(&[]).unwrap()).unwrap();
    }
    let mut bytes = vec![0; 1 << 15];
    host.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| b"abcd".contains(byte)));
}

/// A kernel that writes 1, and whose native form writes 2.
fn two_faced() -> VerifiedKernel {
    let (of, [zero, one]) = (Memory::Value(Type::U32), [0, 1].map(Reg));
    let body = Body {
        registers: vec![Type::U64, Type::U32],
        views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, of)] }],
        code: vec![
            Op::Literal { to: zero, bits: 0 },
            Op::Literal { to: one, bits: 1 },
            Op::Store { view: 0, at: zero, offset: 0, of, value: one },
        ],
        ..Body::default()
    };
    let write_two = |items: &HostItems<'_>| {
        let failed = items.items().filter(|item| !items.view(0).store(*item, 0, 2_u32));
        // The launch must not write elements of another part.
        let failures = failed.count() as u64 + u64::from(items.view(0).store(items.items().end, 0, 3_u32));
        Report { failures, ..Report::default() }
    };
    VerifiedKernel::new(body).unwrap().with_host(write_two)
}

fn launched<D: Device>(device: D) -> Vec<u32> {
    const COUNT: u64 = 100_000;
    let device = Arc::new(device);
    let (queue, memory) =
        (Queue::new(&device).unwrap(), DeviceBuffer::new(&device, COUNT * 4, Commit::Lazy).unwrap());
    let host = HostBuffer::new(&device, COUNT as usize * 4 + 32, HostMemory::Pageable).unwrap();
    let views = [LaunchView::Run(Elements { start: memory.at(0), count: COUNT, stride: 4 })];
    let (kernel, report) = (two_faced(), host.at(COUNT * 4));
    queue
        .submit(&Launch { views: &views, ..Launch::new(&kernel, COUNT, Geometry::plain(0), report) })
        .unwrap();
    let back = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: COUNT * 4 };
    device.wait(queue.submit(&[back]).unwrap()).unwrap();
    let mut bytes = vec![0; COUNT as usize * 4 + 32];
    host.read(0, &mut bytes);
    let (numbers, report) = bytes.split_at(COUNT as usize * 4);
    assert_eq!(report, [0; 32]);
    numbers.as_chunks().0.iter().map(|number| u32::from_ne_bytes(*number)).collect()
}

#[test]
fn kernels_run_as_code_of_the_host_where_memory_has_addresses() {
    for threads in [1, 4] {
        let ram = HostDevice::builder().bytes(1 << 20).threads(threads).build().unwrap();
        assert_eq!(launched(ram), vec![2; 100_000]);
    }
    let file = FileDevice::builder(env!("CARGO_TARGET_TMPDIR")).create_temporary(1 << 20).unwrap();
    assert_eq!(launched(file), vec![1; 100_000]);
}
