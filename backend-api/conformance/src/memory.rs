//! Conformance checks of a device's properties, its memory allocation, and its errors when memory is short.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use backend_api::{
    Commit, Device, DeviceBuffer, ErrorKind, Fill, HostAllocation, HostBuffer, HostMemory, Transfer,
};

use super::Context;
use super::context::{assert_bytes, assert_holds, assert_refused};
use super::scene::{Gathered, Scattered, Scene};

pub(super) fn the_information_is_plausible(cx: &Context<'_>) {
    let info = cx.device().info();
    assert!(
        !info.backend.is_empty() && !info.name.is_empty(),
        "a device must have a backend and a name: {info:?}"
    );
    let form =
        |name: &str| name.split_once(':').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    assert!(form(&info.identity), "an identity must have the form kind:name, not {:?}", info.identity);
    for alias in &info.aliases {
        assert!(form(alias), "an alias must have the form kind:name, not {alias:?}");
        assert_ne!(*alias, info.identity, "an alias must differ from the identity");
    }
    assert!(info.total_bytes > 0, "a device must have memory");
    assert!(
        (1..=info.total_bytes).contains(&info.largest_allocation_bytes),
        "the largest allocation of {} bytes is not between 1 and {} bytes",
        info.largest_allocation_bytes,
        info.total_bytes
    );
    assert!(info.copy_engines >= 1, "a device must have at least one copy engine");
    assert_eq!(*info, *cx.device().info(), "the information about a device must not change");
}

pub(super) fn the_memory_status_is_plausible(cx: &Context<'_>) {
    let bytes = cx.limits().bytes / 4;
    let held = cx.memory(bytes);
    let status = cx.device().memory().expect("the query of the memory status must succeed");
    assert!(
        status.total_bytes >= bytes,
        "the total memory is less than the {bytes} allocated bytes: {status:?}"
    );
    assert!(status.free_bytes <= status.total_bytes, "the free memory exceeds the total: {status:?}");
    assert!(
        status.usable_bytes <= status.free_bytes,
        "the usable memory exceeds the free memory: {status:?}"
    );
    drop(held);
}

pub(super) fn allocations_of_nothing_are_valid(cx: &Context<'_>) {
    let _memory = [Commit::Lazy, Commit::Proven].map(|commit| {
        DeviceBuffer::new(cx.device(), 0, commit)
            .expect("an allocation of 0 bytes of device memory must succeed")
    });
    let [host, _other] = [cx.host(0), cx.host(0)];
    assert_eq!(host.bytes(), 0);
    host.read(0, &mut []);
    host.write(0, &[]);
}

pub(super) fn new_host_memory_is_zeroed_and_aligned(cx: &Context<'_>) {
    for kind in [HostMemory::Pageable, HostMemory::Pinned] {
        for bytes in [1, 100, 4096, 4097, 100_000, 1 << 20] {
            // Allocate several times, so that the check includes reused memory.
            for _ in 0..3 {
                let Some(host) = cx.host_of(kind, bytes) else {
                    cx.skip("the system refuses pinned memory; pageable memory was checked");
                    continue;
                };
                assert_eq!(
                    (host.bytes(), host.kind()),
                    (bytes, kind),
                    "wrong length or kind of new host memory"
                );
                let aligned = host.address().addr().get().is_multiple_of(4096);
                assert!(aligned, "{bytes} bytes of {kind:?} memory are not aligned to 4096 bytes");
                assert_holds("new host memory", &host, 0, &vec![0; bytes]);
                host.write(0, &vec![0xFF; bytes]);
            }
        }
    }
}

pub(super) fn pieces_of_host_memory_do_not_overlap(cx: &Context<'_>) {
    let pieces: Vec<_> = [1, 4095, 4096, 4097, 0, 10_000, 64, 64].map(|bytes| cx.host(bytes)).into();
    for (i, piece) in pieces.iter().enumerate() {
        piece.write(0, &vec![i as u8 + 1; piece.bytes()]);
    }
    for (i, piece) in pieces.iter().enumerate() {
        assert_holds("one of several pieces of host memory", piece, 0, &vec![i as u8 + 1; piece.bytes()]);
    }
}

pub(super) fn pieces_of_device_memory_do_not_overlap(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 60_000, 60_000);
    let pieces = [1, 4095, 4096, 4097, 0, 10_000, 64, 64].map(|bytes| cx.memory(bytes));
    for (piece, pattern) in pieces.iter().zip(1..) {
        cx.fill(&scene.queue, piece, piece.bytes(), &[pattern]);
    }
    let mut at = 0;
    for (piece, pattern) in pieces.iter().zip(1..) {
        let bytes = piece.bytes();
        let copy = Transfer::Internal { from: piece.at(0), to: scene.memory.at(at as u64), bytes };
        scene.queue.submit(&[copy]).expect("the internal copy must succeed");
        scene.expected[at..][..bytes as usize].fill(pattern);
        at += bytes as usize;
    }
    scene.assert_as_expected("several pieces of device memory");
}

pub(super) fn more_memory_than_there_is_is_refused(cx: &Context<'_>) {
    let total = cx.device().info().total_bytes;
    for bytes in [u64::MAX, u64::MAX - 4095, 1 << 63, 1 << 50, total.saturating_mul(4)] {
        if bytes <= total {
            continue;
        }
        for commit in [Commit::Lazy, Commit::Proven] {
            let error = DeviceBuffer::new(cx.device(), bytes, commit)
                .expect_err("an allocation beyond the device's memory must fail");
            assert!(
                matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::TooLarge),
                "wrong kind of error for {bytes} bytes on a device of {total} bytes: {error}"
            );
            assert_eq!(
                error.bytes(),
                Some(bytes),
                "the error must state the number of requested bytes: {error}"
            );
            if error.kind() == ErrorKind::OutOfMemory {
                assert!(
                    error.available_bytes().is_some(),
                    "the error must state the number of available bytes: {error}"
                );
            }
        }
    }
    for bytes in [usize::MAX, usize::MAX - 4096, isize::MAX as usize, 1 << 60] {
        for kind in [HostMemory::Pageable, HostMemory::Pinned] {
            let error = HostBuffer::new(cx.device(), bytes, kind)
                .expect_err("an allocation of more host memory than can exist must fail");
            let pin = kind == HostMemory::Pinned && error.kind() == ErrorKind::PinRefused;
            let fits = pin || error.kind() == ErrorKind::OutOfMemory;
            assert!(fits, "wrong kind of error for {bytes} bytes of {kind:?} memory: {error}");
        }
    }
    let mut scene = Scene::new(cx, 1000, 1000);
    scene.submit(&[scene.upload(1, 0, 999)]);
    scene.assert_as_expected("a copy after refused allocations");
}

/// Allocates extensible memory. Returns `None` and skips the check if the device has no extensible memory.
fn extensible(cx: &Context<'_>, bytes: u64, most: u64) -> Option<DeviceBuffer<dyn Device>> {
    match DeviceBuffer::extensible(cx.device(), bytes, most, Commit::Lazy) {
        Ok(memory) => Some(memory),
        Err(error) => {
            assert_eq!(
                error.kind(),
                ErrorKind::Unsupported,
                "wrong kind of error for memory that grows: {error}"
            );
            cx.skip("the device has no memory that grows");
            None
        }
    }
}

pub(super) fn memory_grows_in_its_place(cx: &Context<'_>) {
    let most = cx.limits().bytes / 4;
    for first in [0, 1, 4096, 100_000] {
        let Some(memory) = extensible(cx, first, most) else { return };
        let (queue, host) = (cx.queue(), cx.host(most as usize));
        let (mut expected, mut place) = (Vec::new(), 0_u64);
        let lengths = [first, first + 1, 70_000, 70_000, 10, 1_000_003, most];
        for (step, (length, pattern)) in lengths.into_iter().zip(1_u8..).enumerate() {
            let commit = if step % 2 == 0 { Commit::Lazy } else { Commit::Proven };
            memory.extend(length, commit).expect("an extension up to the maximum length must succeed");
            let now = place.max(length);
            assert_eq!(memory.bytes(), now, "wrong length of memory after an extension");
            // The fill writes all added bytes, and no byte after them.
            let fill = Fill { to: memory.at(place), bytes: now - place, pattern: &[pattern] };
            let ticket = queue.submit(&fill).expect("a fill of the added bytes must succeed");
            expected.resize(now as usize, pattern);
            let beyond = Fill { bytes: now - place + 1, ..fill };
            assert_refused("a fill beyond the end", queue.submit(&beyond), ErrorKind::InvalidArgument);
            // Extend the memory while the fill may be in flight.
            place = now;
            let _ = ticket;
        }
        let copy = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: most };
        cx.device()
            .wait(queue.submit(&[copy]).expect("the download must succeed"))
            .expect("a download of all bytes must succeed");
        assert_holds("the contents of extended memory", &host, 0, &expected);
        // All parts of an extended buffer form one range. This copy crosses the boundaries between parts that
        // were added at different times.
        let (from, to, bytes) = (50_000, most / 2 + 1, most / 3);
        let within = Transfer::Internal { from: memory.at(from), to: memory.at(to), bytes };
        queue.submit(&[within]).expect("a copy across parts must succeed");
        expected.copy_within(from as usize..(from + bytes) as usize, to as usize);
        cx.device()
            .wait(queue.submit(&[copy]).expect("the download must succeed"))
            .expect("a download of all bytes must succeed");
        assert_holds("a copy across parts that were added", &host, 0, &expected);
    }
}

pub(super) fn memory_that_cannot_grow_stays_as_it_is(cx: &Context<'_>) {
    let total = cx.device().info().total_bytes;
    let Some(memory) = extensible(cx, 1000, 100_000) else { return };
    let (queue, host) = (cx.queue(), cx.host(1000));
    cx.fill(&queue, &memory, 1000, b"abc");
    let kind =
        |memory: &DeviceBuffer<dyn Device>, bytes| memory.extend(bytes, Commit::Lazy).map_err(|e| e.kind());
    for bytes in [100_001, total.saturating_mul(2), u64::MAX] {
        assert_eq!(
            kind(&memory, bytes),
            Err(ErrorKind::TooLarge),
            "wrong result of an extension to {bytes} bytes, beyond the maximum of 100000"
        );
    }
    let fixed = cx.memory(1000);
    assert_eq!(kind(&fixed, 1000), Ok(()), "an extension to the current length must succeed");
    assert_eq!(kind(&fixed, 1001), Err(ErrorKind::TooLarge), "memory of fixed length must not be extended");
    let shorter = DeviceBuffer::extensible(cx.device(), 1000, 999, Commit::Lazy);
    assert_refused("a maximum length below the initial length", shorter, ErrorKind::InvalidArgument);
    // If a device accepts a maximum length beyond the device's memory, extend the buffer to such a length.
    let (large, most) = (total.saturating_mul(2), total.saturating_mul(4));
    if let Ok(growing) = DeviceBuffer::extensible(cx.device(), 0, most, Commit::Lazy) {
        let error = growing
            .extend(large, Commit::Lazy)
            .expect_err("an allocation beyond the device's memory must fail");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(
            error.bytes().is_some() && error.available_bytes().is_some(),
            "the error must state the requested and the available bytes: {error}"
        );
        assert_eq!(growing.bytes(), 0);
    }
    assert_eq!(memory.bytes(), 1000);
    let copy = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 1000 };
    cx.device()
        .wait(queue.submit(&[copy]).expect("the download must succeed"))
        .expect("the download must succeed");
    let expected: Vec<u8> = b"abc".iter().copied().cycle().take(1000).collect();
    assert_holds("the contents of memory after a failed extension", &host, 0, &expected);
}

pub(super) fn memory_that_was_given_back_can_be_had_again(cx: &Context<'_>) {
    let bytes = cx.limits().bytes / 2;
    let total = cx.device().info().total_bytes;
    let queue = cx.queue();
    // Allocate and release memory in a loop: on a small device, more bytes in total than the device has; on a
    // large device, at least ten times.
    let rounds = (2 * total / bytes).clamp(10, 50);
    for round in 0..rounds {
        let memory = cx.memory(bytes);
        let fill = Fill { to: memory.at(bytes - 100), bytes: 100, pattern: &[round as u8] };
        queue.submit(&fill).expect("the fill must succeed");
    }
    let ends = [(); 64].map(|()| (cx.queue(), cx.host(10)));
    for (queue, host) in ends {
        drop(host);
        queue.submit(&[]).expect("an empty batch must succeed");
    }
}

pub(super) fn a_full_device_says_so_and_goes_on(cx: &Context<'_>) {
    let total = cx.device().info().total_bytes;
    if total > cx.limits().bytes {
        return cx.skip(format!("filling {total} bytes is beyond the limit of {} bytes", cx.limits().bytes));
    }
    let mut scene = Scene::new(cx, 4096, 4096);
    let piece = total / 7;
    for _ in 0..2 {
        let mut held = Vec::new();
        let error = loop {
            match DeviceBuffer::new(cx.device(), piece, Commit::Proven) {
                Ok(memory) => held.push(memory),
                Err(error) => break error,
            }
            assert!(
                held.len() <= 7,
                "{} pieces of {piece} bytes were allocated on a device of {total} bytes",
                held.len()
            );
        };
        assert_eq!(
            error.kind(),
            ErrorKind::OutOfMemory,
            "wrong kind of error for an allocation on a full device: {error}"
        );
        assert_eq!(error.bytes(), Some(piece), "{error}");
        assert!(
            error.available_bytes().is_some_and(|available| available < piece),
            "wrong available bytes: {error}"
        );
        scene.submit(&[scene.upload(0, 1, 4095)]);
        scene.assert_as_expected("a copy on a full device");
        held.pop();
        held.push(
            DeviceBuffer::new(cx.device(), piece, Commit::Proven)
                .expect("an allocation must succeed after a release of the same length"),
        );
    }
}

/// Returns the likely boundaries between driver allocations in a buffer of `bytes` bytes, in ascending order.
/// A backend may join allocations of the largest length, of a rounded length, or of equal lengths.
fn likely_seams(largest: usize, bytes: usize) -> Vec<usize> {
    let rounded = [512, 4096, 1 << 16, 1 << 21].map(|to| largest / to * to);
    let even = [2, 3].map(|pieces| bytes.div_ceil(pieces));
    let units = [largest, 1 << largest.ilog2()].into_iter().chain(rounded).chain(even);
    let mut seams: Vec<_> = units
        .filter(|&unit| unit > 0)
        .flat_map(|unit| (1..=4).map(move |k| k * unit).chain([(bytes - 1) / unit * unit]))
        .filter(|seam| (1..bytes).contains(seam))
        .collect();
    seams.sort_unstable();
    seams.dedup();
    seams
}

pub(super) fn buffers_larger_than_one_piece_are_one(cx: &Context<'_>) {
    const HOST_BYTES: usize = 20_000;
    let piece = cx.device().info().largest_allocation_bytes;
    let wanted = piece.saturating_mul(2).saturating_add(5000);
    let usable = cx.device().memory().expect("the query of the memory status must succeed").usable_bytes;
    if wanted.saturating_add(HOST_BYTES as u64) > cx.limits().bytes.min(usable) {
        return cx.skip(format!(
            "two pieces need {wanted} bytes, which exceed the suite's limits or the device's memory"
        ));
    }
    let bytes = wanted as usize;
    let seams = likely_seams(piece as usize, bytes);
    let mut scene = Scene::new(cx, bytes, HOST_BYTES);
    // Returns the start of a range of `length` bytes, of which `before` bytes precede the seam (the boundary
    // of two driver allocations). The start is clamped to keep the range inside the memory.
    let around = |seam: usize, before: usize, length: usize| seam.saturating_sub(before).min(bytes - length);
    for &seam in &seams {
        for k in 0..30 {
            let size = 2 * k + 1;
            scene.submit(&[scene.upload(k, around(seam, k + 1, size), size)]);
            scene.submit(&[scene.download(around(seam, 5 * k, 150), 1000 + k * 200, 150)]);
        }
    }
    scene.assert_as_expected("copies across seams");
    for size in [1, 2, 8, 100, 4096] {
        for pair in seams.windows(2) {
            // The size is at most half of the distance between two seams (boundaries of allocations), so that
            // source and target are disjoint.
            let size = size.min((pair[1] - pair[0]) / 2);
            let (one, other) = (around(pair[0], size / 2, size), around(pair[1], size / 3, size));
            scene.submit(&[scene.internal(one, other, size)]);
            scene.submit(&[scene.internal(other, one, size)]);
            scene.submit(&[scene.upload(size % 7, one, size)]);
        }
        scene.assert_as_expected("copies from seam to seam");
        for &seam in &seams {
            let length = (7 * size).min(bytes);
            scene.fill(around(seam, 3 * size, length), length, &cx.noise(size as u64, size));
        }
        scene.assert_as_expected("fills across seams");
        scene.fill(3, bytes - 10, &cx.noise(size as u64 + 9, size));
        scene.assert_as_expected("a fill across all seams");
    }
    let knows_kernels = cx.knows(&["search", "gather", "scatter"]);
    for stride in [1, 7, 8, 100].into_iter().filter(|_| knows_kernels) {
        let count = 100.min(bytes / stride);
        let value = cx.noise(stride as u64, stride.min(8));
        let mut hay = cx.noise(77, count * stride);
        for i in [0, 49, 50, 51, 99].into_iter().filter(|&i| i < count) {
            hay[i * stride..][..value.len()].copy_from_slice(&value);
        }
        for &seam in &seams {
            // Let one element cross the seam (the boundary of two driver allocations) in its middle.
            let start = around(seam, count / 2 * stride + stride / 2, hay.len());
            scene.put(start, &hay);
            let elements = scene.elements(start, count, stride);
            scene.search(elements, (0, &value), (100, true), 0);
            scene.write_indices(0, &(0..count as u64).rev().collect::<Vec<_>>());
            let ticket = scene.indexed(Gathered, elements, count, [0, 800]);
            scene.settle(ticket);
            let ticket = scene.indexed(Scattered, elements, count, [0, 801]);
            scene.settle(ticket);
        }
        scene.assert_as_expected("kernels across seams");
    }
}

pub(super) fn proven_memory_is_memory(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 1 << 20, 1 << 20);
    for bytes in [1, 4096, 100_001, 1 << 20] {
        let proven = DeviceBuffer::new(cx.device(), bytes, Commit::Proven)
            .expect("the allocation of `Commit::Proven` memory must succeed");
        assert_eq!(proven.bytes(), bytes);
        let (there, back) = (scene.at(0), proven.at(0));
        let copies = [(there, back), (back, there)].map(|(from, to)| Transfer::Internal { from, to, bytes });
        scene.queue.submit(&copies[..1]).expect("the internal copy must succeed");
        scene.fill(0, bytes as usize, &[3]);
        scene.queue.submit(&copies[1..]).expect("the internal copy must succeed");
        let noise = cx.noise(1, bytes as usize);
        scene.expected[..bytes as usize].copy_from_slice(&noise);
        scene.assert_as_expected("the contents of proven memory");
    }
}

pub(super) fn imported_memory_is_copied_from_and_to(cx: &Context<'_>) {
    const BYTES: usize = 50_000;
    for kind in [HostMemory::Pageable, HostMemory::Pinned] {
        for skew in [0, 1, 13, 4096] {
            // Give the vector an arbitrary alignment, because a program's memory has any alignment.
            let mut memory = cx.noise(3, BYTES + skew);
            let address = NonNull::from(&mut memory[skew..]).cast::<u8>();
            // SAFETY: the vector lives until `Imported` has released it, and only copies access it until
            // then.
            let imported = match unsafe { cx.device().import_host(address, BYTES, kind) } {
                Err(error) if matches!(error.kind(), ErrorKind::PinRefused | ErrorKind::Unsupported) => {
                    cx.skip(format!(
                        "the device does not import {kind:?} memory, which is optional: {error}"
                    ));
                    continue;
                }
                host => {
                    let host = host.expect(
                        "the import of host memory must succeed or return `Unsupported` or `PinRefused`",
                    );
                    Imported { device: &**cx.device(), host: ManuallyDrop::new(host) }
                }
            };
            let scene = Scene::new(cx, BYTES, 0);
            let at = |offset| imported.host.at(offset);
            let copies = [
                Transfer::Upload { from: at(1), to: scene.memory.at(0), bytes: 20_000 },
                Transfer::Download { from: scene.memory.at(3), to: at(30_000), bytes: 19_990 },
            ];
            let tickets = copies.map(|copy| scene.queue.submit(&[copy]).expect("the copy must succeed"));
            cx.wait(tickets[1]);
            let beyond = Transfer::Upload { from: at(BYTES as u64 - 1), to: scene.memory.at(0), bytes: 2 };
            let refused = scene.queue.submit(&[beyond]);
            assert_refused("a copy beyond imported memory", refused, ErrorKind::InvalidArgument);
            // SAFETY: the vector is still alive, and the device must refuse this place.
            let forgotten = unsafe { imported.host.at(0).detach() };
            drop(imported);
            let mut expected = cx.noise(3, BYTES + skew);
            expected.copy_within(skew + 4..skew + 19_994, skew + 30_000);
            assert_bytes("imported memory", &memory, &expected);
            let (from, to) = (forgotten, scene.memory.at(0));
            let refused = scene.queue.submit(&[Transfer::Upload { from, to, bytes: 1 }]);
            assert_refused("a copy from released imported memory", refused, ErrorKind::UnknownHandle);
        }
    }
}

pub(super) fn wiping_spares_used_and_imported_memory(cx: &Context<'_>) {
    const BYTES: usize = 50_000;
    let mut scene = Scene::new(cx, BYTES, BYTES);
    scene.fill(0, BYTES, &[7, 8, 9]);
    for _ in 0..2 {
        if let Err(error) = cx.device().wipe_on_release() {
            assert_eq!(
                error.kind(),
                ErrorKind::Unsupported,
                "wrong kind of error of a device that does not wipe memory: {error}"
            );
            return cx.skip(format!("wiping: {error}"));
        }
    }
    let mut memory = cx.noise(3, BYTES);
    let address = NonNull::from(&mut memory[..]).cast::<u8>();
    // SAFETY: the vector lives until `Imported` has released it, and only copies access it until then.
    if let Ok(host) = unsafe { cx.device().import_host(address, BYTES, HostMemory::Pageable) } {
        let imported = Imported { device: &**cx.device(), host: ManuallyDrop::new(host) };
        let copy = Transfer::Upload { from: imported.host.at(0), to: scene.memory.at(0), bytes: 1000 };
        cx.wait(scene.queue.submit(&[copy]).expect("the copy must succeed"));
        scene.expected[..1000].copy_from_slice(&cx.noise(3, BYTES)[..1000]);
        drop(imported);
        assert_bytes("imported memory", &memory, &cx.noise(3, BYTES));
    }
    for _ in 0..3 {
        let mut other = Scene::new(cx, BYTES, BYTES);
        other.submit(&[other.upload(0, 0, BYTES)]);
    }
    scene.assert_as_expected("memory that is kept while other memory is wiped");
}

/// Releases imported memory on drop, also in a panic: the device must not keep a freed vector's address.
struct Imported<'a> {
    device: &'a dyn Device,
    /// The imported host memory, which `drop` releases.
    host: ManuallyDrop<HostAllocation>,
}

impl Drop for Imported<'_> {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        self.device.release_host(unsafe { ManuallyDrop::take(&mut self.host) });
    }
}
