//! Conformance checks of fills: requests that write a repeated pattern to device memory.

use backend_api::Fill;

use super::Context;
use super::scene::Scene;

pub(super) fn fills_of_nothing(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 100, 0);
    for at in [0, 1, 100] {
        scene.fill(at, 0, &[1, 2, 3]);
    }
    scene.assert_as_expected("fills of no bytes");
    let none = cx.memory(0);
    cx.wait(cx.fill(&scene.queue, &none, 0, &[1]));
}

pub(super) fn fills_with_patterns_of_every_length(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 40_000, 0);
    let lengths = (1..=70).chain([100, 127, 128, 255, 256, 257, 1000, 1024, 4095, 4096]);
    for length in lengths {
        let pattern = cx.noise(length as u64, length);
        // The lengths are, in this order: 3.5 patterns, 1 pattern, 4 patterns, and a third of a pattern.
        scene.fill(length % 67, 3 * length + length / 2, &pattern);
        scene.fill(15_000 + length % 5, length, &pattern);
        scene.fill(20_000 + length % 3, 4 * length, &pattern);
        scene.fill(37_000 + length % 11, length / 3, &pattern);
        scene.assert_as_expected(&format!("patterns of {length} bytes"));
    }
}

pub(super) fn fills_of_every_small_size_and_alignment(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 70 * 128, 0);
    for (round, length) in [1, 2, 3, 4, 8, 16].into_iter().enumerate() {
        let pattern = cx.noise(round as u64 + 40, length);
        for k in 0..=64 {
            scene.fill(k * 128 + k, (k * 5 + round) % 63, &pattern);
        }
        scene.assert_as_expected(&format!("small fills with {length} bytes"));
    }
}

pub(super) fn fills_of_large_and_odd_sizes(cx: &Context<'_>) {
    let room = (cx.limits().bytes / 8) as usize;
    let mut scene = Scene::new(cx, room, 0);
    for (length, at, bytes) in
        [(1, 0, room), (4, 4, room - 4), (8, 1, room - 2), (7, 3, room - 9), (4096, 5, room - 5)]
    {
        scene.fill(at, bytes, &cx.noise(length as u64, length));
        scene.assert_as_expected(&format!("{bytes} bytes of a pattern of {length}"));
    }
}

pub(super) fn fill_patterns_are_copied_before_the_call_returns(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 1 << 20, 0);
    for length in [1, 5, 8, 4096] {
        let mut pattern = vec![0xA1; length];
        let at = scene.at(0);
        let ticket = scene
            .queue
            .submit(&Fill { to: at, bytes: 1 << 20, pattern: &pattern })
            .expect("the fill must succeed");
        pattern.fill(0x2B);
        scene.settle(ticket);
        scene.expected.fill(0xA1);
        scene.assert_as_expected("a pattern that was changed after the call");
        let ticket = scene
            .queue
            .submit(&Fill { to: at, bytes: 1 << 20, pattern: &pattern })
            .expect("the fill must succeed");
        drop(pattern);
        scene.settle(ticket);
        scene.expected.fill(0x2B);
        scene.assert_as_expected("a pattern that was freed after the call");
    }
}
