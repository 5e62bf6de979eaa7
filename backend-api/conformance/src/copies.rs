//! Conformance checks of single copies: every small size, every alignment, and every direction.

use backend_api::{HostMemory, Transfer};

use super::Context;
use super::scene::Scene;

/// Copy lengths in bytes, around the units by which devices copy: words, vectors, cache lines, pages.
pub(super) const SMALL: [usize; 30] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127,
    128, 129,
];

pub(super) fn copies_of_nothing(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 100, 200);
    for (at, host) in [(0, 0), (1, 7), (100, 200), (50, 200), (100, 3)] {
        let copies =
            [scene.upload(host, at, 0), scene.download(at, host, 0), scene.internal(at, 100 - at, 0)];
        for copy in copies {
            let ticket = scene.submit(&[copy]);
            scene.settle(ticket);
        }
        scene.submit(&copies);
        scene.assert_as_expected("copies of no bytes");
    }
    let (none, no_host) = (cx.memory(0), cx.host(0));
    let copies = [
        Transfer::Upload { from: no_host.at(0), to: none.at(0), bytes: 0 },
        Transfer::Download { from: none.at(0), to: no_host.at(0), bytes: 0 },
        Transfer::Internal { from: none.at(0), to: none.at(0), bytes: 0 },
    ];
    let ticket =
        scene.queue.submit(&copies).expect("copies of 0 bytes between buffers of 0 bytes must succeed");
    scene.settle(ticket);
}

/// Copies bytes from host memory to the device, within the device, and back, for all pairs of offsets in
/// `places`. Submits three batches. For a pair `(one, other)`, the upload copies from `other` in host memory
/// to `one` in device memory. The internal copy goes from `one` to `far + other`. The download goes from
/// there to `far + one` in host memory.
fn there_and_back(scene: &mut Scene<'_>, places: &[(usize, usize)], far: usize, bytes: usize) {
    let copies: [Vec<_>; 3] = [
        places.iter().map(|&(one, other)| scene.upload(other, one, bytes)).collect(),
        places.iter().map(|&(one, other)| scene.internal(one, far + other, bytes)).collect(),
        places.iter().map(|&(one, other)| scene.download(far + other, far + one, bytes)).collect(),
    ];
    copies.iter().for_each(|copies| _ = scene.submit(copies));
}

pub(super) fn copies_of_every_small_size_and_alignment(cx: &Context<'_>) {
    const PIECE: usize = 256;
    let mut scene = Scene::new(cx, 66 * PIECE * 2, 66 * PIECE * 2);
    for bytes in SMALL {
        // Entry `k` of `places` has two offsets. The first is `k` bytes after an aligned offset; the distance
        // of the second from an aligned offset varies.
        let places: Vec<_> = (0..=64).map(|k| (k * PIECE + k, k * PIECE + (k * 7 + bytes) % 65)).collect();
        let far = 66 * PIECE;
        for (round, &(one, other)) in places.iter().enumerate() {
            // In some rounds, submit each copy in its own call first. The call below submits all copies at
            // once.
            if (round + bytes) % 16 == 0 {
                scene.submit(&[scene.upload(one, other, bytes)]);
                scene.submit(&[scene.internal(other, far + one, bytes)]);
                scene.submit(&[scene.download(far + one, far + other, bytes)]);
            }
        }
        scene.assert_as_expected(&format!("single copies of {bytes} bytes"));
        there_and_back(&mut scene, &places, far, bytes);
        scene.assert_as_expected(&format!("copies of {bytes} bytes at every alignment"));
    }
}

pub(super) fn copies_between_every_pair_of_alignments(cx: &Context<'_>) {
    const STEP: usize = 128;
    const ROOM: usize = 17 * 17 * STEP;
    let mut scene = Scene::new(cx, 2 * ROOM, 2 * ROOM);
    for bytes in [3, 16, 37] {
        let places: Vec<_> = (0..17 * 17).map(|k| (k * STEP + k / 17, k * STEP + k % 17)).collect();
        there_and_back(&mut scene, &places, ROOM, bytes);
        scene.assert_as_expected(&format!("copies of {bytes} bytes between every pair of alignments"));
    }
}

pub(super) fn copies_of_large_and_odd_sizes(cx: &Context<'_>) {
    let room = (cx.limits().bytes / 8) as usize;
    let mut scene = Scene::new(cx, 2 * room, 2 * room);
    let sizes =
        [255, 256, 257, 4095, 4096, 4097, 8192, 65_535, 65_536, 65_537, 100_003, room - 65, room - 64];
    for (i, bytes) in sizes.into_iter().enumerate() {
        let (one, other) = ([0, 1, 64, 3][i % 4], [0, 1, 0, 62, 17][i % 5]);
        scene.submit(&[scene.upload(one, other, bytes)]);
        scene.submit(&[scene.internal(other, room + one, bytes)]);
        scene.submit(&[scene.download(room + one, room + other, bytes)]);
        // Compare all memory only once after several large copies, to save time.
        if bytes < room / 2 || i + 1 == sizes.len() {
            scene.assert_as_expected(&format!("copies of {bytes} bytes"));
        }
    }
    // Copy the whole memory in one request.
    scene.submit(&[scene.upload(0, 0, 2 * room)]);
    scene.assert_as_expected("an upload of everything");
    scene.fill(0, 2 * room, b"0123456789");
    scene.submit(&[scene.download(0, 0, 2 * room)]);
    scene.assert_as_expected("a download of everything");
}

pub(super) fn copies_within_and_between_buffers(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 10_000, 10_000);
    // Copy between neighbouring ranges that touch but do not overlap, in both directions.
    for bytes in [1, 2, 7, 8, 31, 64, 100, 2048] {
        scene.submit(&[scene.internal(333, 333 + bytes, bytes)]);
        scene.submit(&[scene.internal(5000, 5000 - bytes, bytes)]);
        scene.assert_as_expected(&format!("neighbours of {bytes} bytes"));
    }
    // Copy the bytes through two other buffers and back to the first buffer.
    let others = [cx.memory(777), cx.memory(777)];
    let hop = |from, to| Transfer::Internal { from, to, bytes: 700 };
    let path = [scene.memory.at(1234), others[0].at(77), others[1].at(0), scene.memory.at(7001)];
    for pair in path.windows(2) {
        scene.queue.submit(&[hop(pair[0], pair[1])]).expect("a copy between buffers must succeed");
    }
    scene.expected.copy_within(1234..1934, 7001);
    scene.assert_as_expected("copies by way of other buffers");
}

pub(super) fn copies_with_every_kind_of_host_memory(cx: &Context<'_>) {
    for kind in [HostMemory::Pageable, HostMemory::Pinned] {
        let Some(host) = cx.host_of(kind, 20_000) else {
            cx.skip("the system refuses pinned memory; pageable memory was checked");
            continue;
        };
        assert_eq!((host.kind(), host.bytes()), (kind, 20_000));
        let mut scene = Scene::with_host(cx, 20_000, host);
        scene.submit(&[scene.upload(1, 2, 9_999)]);
        scene.submit(&[scene.download(3, 10_005, 9_991)]);
        scene.submit(&[scene.upload(10_000, 10_001, 9_999)]);
        scene.assert_as_expected(&format!("{kind:?} memory"));
    }
}
