//! Conformance checks of invalid calls: they must return the right error, and have no effect.

use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
use backend_api::{
    BufferHandle, Commit, Compute, Device, DeviceBuffer, DeviceSpan, Elements, ErrorKind, Fill, Gather,
    HostAllocation, HostBuffer, HostMemory, HostSpan, Queue, QueueHandle, Request, Result, Scatter, Search,
    Ticket, Transfer,
};

use super::Context;
use super::context::assert_refused;
use super::reference::ReferenceDevice;
use super::scene::Scene;

/// Submits every kind of request that the device supports, with the given queue and memory. The requests are
/// valid for memory of 1024 bytes.
fn ask_for_everything(
    cx: &Context<'_>,
    queue: &QueueHandle,
    device_at: DeviceSpan<'_>,
    host_at: HostSpan<'_>,
) -> Vec<(&'static str, Result<Ticket>)> {
    let (elements, values) = (Elements { start: device_at, count: 8, stride: 8 }, host_at.plus(512));
    let upload = [Transfer::Upload { from: host_at, to: device_at, bytes: 8 }];
    let download = [Transfer::Download { from: device_at, to: host_at, bytes: 8 }];
    let internal = [Transfer::Internal { from: device_at, to: device_at.plus(512), bytes: 8 }];
    let fill = Fill { to: device_at, bytes: 8, pattern: &[1] };
    let search =
        Search { elements, field_offset: 0, value: &[1], limit: 2, count_all: true, answer: host_at };
    let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U32 }])
        .expect("the program must be valid");
    let action = Action::Histogram { value: Value(0), filter: None, bins: 2, answer: host_at };
    let compute = Compute { program: &program, sources: &[elements], geometry: Geometry::plain(0), action };
    let gather = Gather { elements: elements.into(), indices: host_at, count: 1, values };
    let scatter = Scatter { elements: elements.into(), indices: host_at, count: 1, values };
    let requests: [(_, Request<'_>); 8] = [
        ("upload", (&upload).into()),
        ("download", (&download).into()),
        ("internal", (&internal).into()),
        ("fill", (&fill).into()),
        ("search", (&search).into()),
        ("compute", (&compute).into()),
        ("gather", (&gather).into()),
        ("scatter", (&scatter).into()),
    ];
    let known = requests.into_iter().filter(|(_, request)| cx.knows(&[request.operation()]));
    known.map(|(name, request)| (name, cx.device().submit(queue, &request))).collect()
}

pub(super) fn unknown_names_are_refused(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 1024, 1024);
    let (memory, host) = (scene.at(0), scene.host_at(0));
    let device = &**cx.device();
    // The device under test must refuse the handles of this other device.
    let other = ReferenceDevice::new(4096);
    let other_queue = other.create_queue().expect("the creation of a queue must succeed");
    let other_memory =
        other.allocate(1024, Commit::Lazy).expect("the allocation of device memory must succeed");
    let other_host =
        other.allocate_host(1024, HostMemory::Pageable).expect("the allocation of host memory must succeed");
    let gone = {
        let memory = DeviceBuffer::new(cx.device(), 1024, Commit::Lazy)
            .expect("the allocation of device memory must succeed");
        let host = HostBuffer::new(cx.device(), 1024, HostMemory::Pageable)
            .expect("the allocation of host memory must succeed");
        // SAFETY: the device must refuse places in released memory.
        unsafe { (memory.at(0).detach(), host.at(0).detach()) }
    };
    let fresh = BufferHandle::unique();
    for (what, no_memory, no_host) in [
        ("that was given back", gone.0, gone.1),
        ("of another device", other_memory.at(0), other_host.at(0)),
        ("that no device gave", fresh.at(0), other_host.at(0)),
    ] {
        let queue = scene.queue.handle();
        let asked = [
            ("queue", ask_for_everything(cx, &QueueHandle::unique(), memory, host)),
            ("queue", ask_for_everything(cx, &other_queue, memory, host)),
            ("buffer", ask_for_everything(cx, queue, no_memory, host)),
            ("host memory", ask_for_everything(cx, queue, memory, no_host)),
        ];
        for (name, calls) in asked {
            for (call, result) in calls {
                match (name, call) {
                    ("host memory", "internal" | "fill") => {
                        cx.wait(result.expect("work without host memory must succeed"))
                    }
                    _ => {
                        let what = format!("{call} with a {name} {what}");
                        assert_refused(&what, result, ErrorKind::UnknownHandle);
                    }
                }
            }
        }
        if let Some(direct) = device.direct_reads() {
            let refused = direct.read_directly(no_memory, &mut [0; 8]);
            assert_refused(&format!("a direct read of a buffer {what}"), refused, ErrorKind::UnknownHandle);
        }
        if let Some(addresses) = device.addresses() {
            let refused = addresses.address(no_memory, 8);
            assert_refused(&format!("the address of a buffer {what}"), refused, ErrorKind::UnknownHandle);
        }
        scene.expected.copy_within(0..8, 512);
        scene.expected[..8].fill(1);
    }
    // The device must refuse an unknown handle even in a copy of 0 bytes.
    let nothing = Transfer::Upload { from: host, to: fresh.at(0), bytes: 0 };
    assert_refused(
        "a copy of 0 bytes to an unknown buffer",
        scene.queue.submit(&[nothing]),
        ErrorKind::UnknownHandle,
    );
    let refused = device.submit(&QueueHandle::unique(), &Request::Copies(&[], None));
    assert_refused("an empty batch in an unknown queue", refused, ErrorKind::UnknownHandle);
    release_unknown(device, &other, (fresh, other_queue, other_memory, other_host));
    scene.assert_as_expected("memory after calls with unknown handles");
}

/// Releases handles that the device does not know, which must have no effect on either device.
fn release_unknown(
    device: &dyn Device,
    other: &ReferenceDevice,
    (fresh, other_queue, other_memory, other_host): (BufferHandle, QueueHandle, BufferHandle, HostAllocation),
) {
    let address = other_host.address();
    let free = other.memory().expect("the query of the memory status must succeed").free_bytes;
    device.release_queue(QueueHandle::unique());
    device.release(fresh);
    device.release_queue(other_queue);
    device.release(other_memory);
    device.release_host(other_host);
    let still_free = other.memory().expect("the query of the memory status must succeed").free_bytes;
    assert_eq!(still_free, free, "a release on one device must not change another device's free memory");
    // SAFETY: the other device still owns this memory of 1024 bytes.
    let byte = unsafe { address.read() };
    assert_eq!(byte, 0, "a release on one device must not change another device's host memory");
}

/// Returns the offset and length of ranges that end beyond memory of `length` bytes, some by overflow.
fn outside(length: u64) -> [(u64, u64); 11] {
    let half = 1 << 63;
    [
        (length, 1),
        (length + 1, 0),
        (length - 1, 2),
        (0, length + 1),
        (u64::MAX, 0),
        (u64::MAX, 1),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
        (half, half),
        (u64::MAX - length + 1, length),
        (length, u64::MAX - length + 1),
    ]
}

pub(super) fn ranges_outside_are_refused(cx: &Context<'_>) {
    const LENGTH: u64 = 1000;
    let mut scene = Scene::new(cx, LENGTH as usize, LENGTH as usize);
    for (offset, bytes) in outside(LENGTH) {
        let what = |call: &str| format!("{call} of {bytes} bytes at byte {offset} of {LENGTH} bytes");
        let (memory, host) = (scene.memory.at(offset), scene.host.at(offset));
        let (start, host_start) = (scene.memory.at(0), scene.host.at(0));
        let copies = [
            Transfer::Upload { from: host, to: start, bytes },
            Transfer::Upload { from: host_start, to: memory, bytes },
            Transfer::Download { from: memory, to: host_start, bytes },
            Transfer::Download { from: start, to: host, bytes },
            Transfer::Internal { from: memory, to: start, bytes },
            Transfer::Internal { from: start, to: memory, bytes },
        ];
        for copy in copies {
            let refused = scene.queue.submit(&[copy]);
            assert_refused(&format!("{copy:?}"), refused, ErrorKind::InvalidArgument);
        }
        let direct = scene.cx.device().direct_reads().filter(|_| bytes <= 2 * LENGTH);
        if let Some(direct) = direct {
            let refused = direct.read_directly(memory, &mut vec![0; bytes as usize]);
            assert_refused(&what("a direct read"), refused, ErrorKind::InvalidArgument);
        }
        let fill = Fill { to: memory, bytes, pattern: &[1, 2, 3] };
        assert_refused(&what("a fill"), scene.queue.submit(&fill), ErrorKind::InvalidArgument);
    }
    scene.assert_as_expected("memory after invalid copies");
}

/// Asserts that the device returns `InvalidArgument` for this gather and for the same scatter.
#[track_caller]
fn assert_refuses(what: &str, queue: &Queue<dyn Device>, request: Gather<'_>) {
    let Gather { elements, indices, count, values } = request;
    assert_refused(&format!("a gather: {what}"), queue.submit(&request), ErrorKind::InvalidArgument);
    let scatter = queue.submit(&Scatter { elements, indices, count, values });
    assert_refused(&format!("a scatter: {what}"), scatter, ErrorKind::InvalidArgument);
}

/// Elements that end beyond memory of 1000 bytes: start, count and stride. In some of them the product of
/// count and stride overflows to a small number.
const ELEMENTS_OUTSIDE: [(u64, u64, u64); 9] = [
    (0, 126, 8),
    (1, 125, 8),
    (1000, 1, 1),
    (1001, 0, 1),
    (0, 1 << 61, 8),
    (0, 1 << 32, 1 << 32),
    (8, (1 << 61) + 1, 8),
    (u64::MAX, 1, 1),
    (0, u64::MAX, u64::MAX),
];

pub(super) fn kernels_on_ranges_outside_are_refused(cx: &Context<'_>) {
    if !cx.knows(&["search", "gather", "scatter"]) {
        return;
    }
    let mut scene = Scene::new(cx, 1000, 1000);
    scene.write_host(0, &[0; 64]);
    let (queue, answer) = (&scene.queue, scene.host.at(64));
    let fitting = Elements { start: scene.memory.at(0), count: 125, stride: 8 };
    let invalid = ErrorKind::InvalidArgument;
    let search = |elements, limit, answer| {
        queue.submit(&Search { elements, field_offset: 0, value: &[1], limit, count_all: true, answer })
    };
    for (start, count, stride) in ELEMENTS_OUTSIDE {
        let elements = Elements { start: scene.memory.at(start), count, stride };
        let what = format!("{elements:?} in 1000 bytes");
        assert_refused(&format!("a search: {what}"), search(elements, 0, answer), invalid);
        for count in [0, 1] {
            let (indices, values) = (scene.host.at(0), scene.host.at(128));
            assert_refuses(&what, queue, Gather { elements: elements.into(), indices, count, values });
        }
    }
    for (offset, limit) in
        [(992, 0), (984, 1), (888, 13), (0, 124), (0, u64::MAX), (1000, 0), (u64::MAX - 7, 1)]
    {
        let what = format!("an answer of {limit} indices at byte {offset}, in 1000 bytes");
        assert_refused(&what, search(fitting, limit, scene.host.at(offset)), invalid);
    }
    for (indices, count, values) in [
        (0, 126, 0),
        (1000, 1, 0),
        (0, 1, 993),
        (0, 50, 601),
        (0, 1 << 61, 0),
        (0, (1 << 61) + 1, 0),
        (0, u64::MAX, 0),
        (u64::MAX - 7, 1, 0),
        (0, 1, u64::MAX),
        (1008, 0, 0),
        (0, 0, 1001),
    ] {
        let what = format!("{count} indices at byte {indices}, values at byte {values}, in 1000 bytes");
        let (indices, values) = (scene.host.at(indices), scene.host.at(values));
        assert_refuses(&what, queue, Gather { elements: fitting.into(), indices, count, values });
    }
    scene.assert_as_expected("memory after invalid kernels");
}

pub(super) fn malformed_requests_are_refused(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 10_000, 10_000);
    let invalid = ErrorKind::InvalidArgument;
    let (queue, at, host) = (&scene.queue, scene.memory.at(0), scene.host.at(0));
    for bytes in [0, 10, 5000] {
        for pattern in [&[][..], &[1; Fill::PATTERN_MAX_BYTES + 1]] {
            let what = format!("a fill of {bytes} bytes with a pattern of {} bytes", pattern.len());
            assert_refused(&what, queue.submit(&Fill { to: at, bytes, pattern }), invalid);
        }
    }
    if !cx.knows(&["search", "gather", "scatter"]) {
        return scene.assert_as_expected("memory after malformed fills");
    }
    let search = |stride, field_offset, value: &[u8], answer| {
        let elements = Elements { start: at, count: 1, stride };
        queue.submit(&Search { elements, field_offset, value, limit: 1, count_all: true, answer })
    };
    assert_refused("a search for an empty value", search(8, 0, &[], host), invalid);
    let long = [1; Search::VALUE_MAX_BYTES + 1];
    assert_refused("a search for a value that is too long", search(5000, 0, &long, host), invalid);
    for (stride, offset, bytes) in
        [(8, 8, 1), (8, 7, 2), (8, 0, 9), (8, u64::MAX, 1), (1, 1, 1), (8, u64::MAX - 3, 8)]
    {
        let what = format!("a search for {bytes} bytes at byte {offset} of elements of {stride} bytes");
        assert_refused(&what, search(stride, offset, &vec![1; bytes], host), invalid);
    }
    for offset in [1, 2, 4, 7, 9, 12] {
        let odd = scene.host.at(offset);
        assert_refused("an answer that is not aligned", search(8, 0, &[1], odd), invalid);
        let elements = Elements { start: at, count: 1, stride: 8 };
        for count in [0, 1] {
            let values = scene.host.at(100);
            let request = Gather { elements: elements.into(), indices: odd, count, values };
            assert_refuses("indices that are not aligned", queue, request);
        }
    }
    for count in [0, 1] {
        let elements = Elements { start: at, count, stride: 0 };
        assert_refused("elements of 0 bytes", search(0, 0, &[1], host), invalid);
        let request = Gather { elements: elements.into(), indices: host, count: 0, values: host };
        assert_refuses("elements of 0 bytes", queue, request);
    }
    scene.assert_as_expected("memory after malformed requests");
}

pub(super) fn internal_copies_that_overlap_are_refused(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 1000, 0);
    for (from, to, bytes) in [(0, 0, 1), (0, 1, 2), (1, 0, 2), (0, 99, 100), (99, 0, 100), (500, 501, 499)] {
        let copy = scene.internal(from, to, bytes);
        assert_refused(&format!("{copy:?}"), scene.queue.submit(&[copy]), ErrorKind::InvalidArgument);
    }
    scene.submit(&[scene.internal(5, 5, 0), scene.internal(0, 100, 100), scene.internal(300, 200, 100)]);
    scene.assert_as_expected("copies that touch but do not overlap");
}

pub(super) fn a_refused_batch_changes_nothing(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 10_000, 10_000);
    let good = [scene.upload(0, 5000, 1000), scene.download(0, 5000, 1000), scene.internal(0, 7000, 1000)];
    let never_given = BufferHandle::unique();
    let unknown = Transfer::Upload { from: scene.host_at(0), to: never_given.at(0), bytes: 1 };
    let outside = scene.upload(9_999, 0, 2);
    for (bad, kind) in [(unknown, ErrorKind::UnknownHandle), (outside, ErrorKind::InvalidArgument)] {
        for place in 0..=good.len() {
            let mut batch = good.to_vec();
            batch.insert(place, bad);
            assert_refused("a batch with one invalid copy", scene.queue.submit(&batch), kind);
            let ticket = scene.queue.submit(&[]).expect("an empty batch must succeed");
            scene.settle(ticket);
            scene.assert_as_expected("memory after an invalid batch");
        }
    }
}
