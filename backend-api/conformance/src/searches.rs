//! Conformance checks of `Search` requests: the results must equal the results of a naive search.

use backend_api::wrap::SplitMix64;
use backend_api::{Elements, Search};

use super::context::assert_holds;
use super::scene::Scene;
use super::{Context, reference};

/// Returns element lengths in bytes for searches: of common types and records, and too long for registers.
pub(super) fn strides() -> impl Iterator<Item = usize> {
    (1..=64).chain([65, 96, 100, 127, 128, 255, 256, 257, 1000, 4096])
}

/// Creates elements for a search. An element for which `matches` is true has `value` at `field_offset`; the
/// other elements differ from it in one byte. More copies of `value` follow after the last element, to detect
/// a search that reads beyond the end.
fn haystack(
    count: usize,
    stride: usize,
    field_offset: usize,
    value: &[u8],
    matches: impl Fn(usize) -> bool,
) -> Vec<u8> {
    let mut random = SplitMix64::new((count * 31 + stride) as u64);
    let mut bytes = vec![0; count * stride];
    random.fill(&mut bytes);
    for (i, element) in bytes.chunks_exact_mut(stride).enumerate() {
        let field = &mut element[field_offset..field_offset + value.len()];
        field.copy_from_slice(value);
        if !matches(i) {
            // Change one bit of the value: in its first byte, in its last byte, or in a random byte.
            let n = value.len();
            let wrong = [0, n - 1, random.index(n)][i % 3];
            field[wrong] ^= 1 << random.below(8);
        }
    }
    bytes.extend(value.repeat(2 * stride / value.len() + 2));
    bytes
}

pub(super) fn searches_of_nothing(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 100, 200);
    for (start, stride, limit) in [(0, 1, 0), (100, 8, 5), (50, 4096, u64::MAX)] {
        for count_all in [false, true] {
            let elements = scene.elements(start, 0, stride);
            scene.search(elements, (0, &[1]), (limit, count_all), 40);
            scene.assert_as_expected("a search of no elements");
        }
    }
    let none = cx.memory(0);
    let elements = Elements { start: none.at(0), count: 0, stride: 8 };
    let answer = scene.host.at(0);
    let search = Search { elements, field_offset: 0, value: &[1; 8], limit: 9, count_all: true, answer };
    let ticket = scene.queue.submit(&search).expect("a search of a buffer of 0 bytes must succeed");
    scene.settle(ticket);
    scene.write_host_expected(0, &[0; 16]);
    scene.assert_as_expected("a search of a buffer of 0 bytes");
}

pub(super) fn searches_of_every_stride(cx: &Context<'_>) {
    const COUNT: usize = 83;
    let mut scene = Scene::new(cx, (COUNT + 4) * 4096 + 20_000, 16 + 8 * COUNT + 64);
    for stride in strides() {
        for (round, size) in [1, 4, 8, 3, 16, 11].into_iter().enumerate() {
            // Test small fields with each stride, and larger fields with every third stride.
            if size > stride || (round > 2 && stride % 3 != round % 3) {
                continue;
            }
            let field_offset = [0, stride - size, (stride - size) / 2][(stride + round) % 3];
            let value = cx.noise((stride * 8 + round) as u64, size);
            let start = (stride * 3 + round * 5) % 17;
            let hay =
                haystack(COUNT, stride, field_offset, &value, |i| i == 0 || i == COUNT - 1 || i % 5 == 2);
            scene.put(start, &hay);
            let elements = scene.elements(start, COUNT, stride);
            scene.search(elements, (field_offset, &value), (COUNT as u64, true), 8 * (stride % 4));
        }
        scene.assert_as_expected(&format!("searches of elements of {stride} bytes"));
    }
}

pub(super) fn searches_for_values_of_every_size(cx: &Context<'_>) {
    const COUNT: usize = 40;
    let mut scene = Scene::new(cx, (COUNT + 4) * 4200 + 20_000, 16 + 8 * COUNT + 64);
    for size in (1..=33).chain([47, 63, 64, 65, 100, 255, 256, 257, 1000, 4095, 4096]) {
        for (stride, field_offset) in [(size, 0), (size + 3, 1 + size % 3)] {
            let value = cx.noise(size as u64, size);
            scene.put(size % 9, &haystack(COUNT, stride, field_offset, &value, |i| i % 3 == 1));
            let elements = scene.elements(size % 9, COUNT, stride);
            scene.search(elements, (field_offset, &value), (COUNT as u64, true), 0);
        }
    }
    scene.assert_as_expected("searches for values of every size");
}

pub(super) fn searches_list_no_more_than_the_limit(cx: &Context<'_>) {
    const COUNT: usize = 1000;
    let mut scene = Scene::new(cx, COUNT * 12 + 100, 32 + 8 * COUNT);
    let value = cx.noise(9, 8);
    scene.put(3, &haystack(COUNT, 12, 2, &value, |i| i % 4 == 1));
    let elements = scene.elements(3, COUNT, 12);
    for limit in [0, 1, 2, 3, 63, 64, 65, 249, 250, 251, 999, 1000, 1001, u64::MAX] {
        for count_all in [true, false] {
            // Overwrite the previous answer first: if the device writes nothing, the comparison must fail.
            scene.write_host(0, &vec![0xEE; 32 + 8 * COUNT]);
            scene.search(elements, (2, &value), (limit, count_all), 8);
            scene.assert_as_expected(&format!("a search with limit {limit}"));
        }
    }
}

pub(super) fn searches_that_match_all_or_none_or_the_ends(cx: &Context<'_>) {
    const COUNT: usize = 777;
    let mut scene = Scene::new(cx, COUNT * 8 + 100, 32 + 8 * COUNT);
    type Matches = fn(usize) -> bool;
    let matches: [(&str, Matches); 5] = [
        ("all", |_| true),
        ("none", |_| false),
        ("the first", |i| i == 0),
        ("the last", |i| i == COUNT - 1),
        ("all but the ends", |i| i != 0 && i != COUNT - 1),
    ];
    for (what, matches) in matches {
        for (stride, size, at) in [(8, 8, 0), (4, 4, 1), (1, 1, 0), (7, 2, 3)] {
            let value = cx.noise(stride as u64, size);
            scene.put(at, &haystack(COUNT, stride, 0, &value, matches));
            for count in [1, 2, 63, COUNT] {
                let elements = scene.elements(at, count, stride);
                scene.search(elements, (0, &value), (COUNT as u64, true), 0);
                scene.search(elements, (0, &value), (5, false), 8);
            }
        }
        scene.assert_as_expected(&format!("searches that match {what}"));
    }
}

pub(super) fn searches_of_many_elements(cx: &Context<'_>) {
    const COUNT: usize = 140_001;
    let mut scene = Scene::new(cx, COUNT * 12 + 100, 32 + 8 * COUNT);
    for (stride, size, at) in [(8, 8, 0), (4, 4, 4), (1, 1, 3), (12, 5, 1)] {
        let value = cx.noise(stride as u64 + 50, size);
        // Place matches around all positions at which devices are likely to divide work.
        let edges = |i: usize| {
            [1, 32, 64, 256, 1000, 1024, 4096, 65_536].iter().any(|&n| i > 60_000 && (i + 1) % n < 2 && n > 1)
        };
        let field_offset = (stride - size) / 2;
        scene.put(at, &haystack(COUNT, stride, field_offset, &value, edges));
        let elements = scene.elements(at, COUNT, stride);
        for (limit, count_all) in
            [(COUNT as u64, true), (0, true), (1, true), (1, false), (700, false), (1025, true)]
        {
            scene.search(elements, (field_offset, &value), (limit, count_all), 16);
        }
        scene.fill(at, COUNT * stride, &value[..1]);
        let all = vec![value[0]; size];
        for (limit, count_all) in [(COUNT as u64, true), (3, true), (300, false)] {
            scene.search(elements, (field_offset, &all), (limit, count_all), 0);
        }
    }
    scene.assert_as_expected("searches of many elements");
}

pub(super) fn search_values_are_copied_before_the_call_returns(cx: &Context<'_>) {
    const COUNT: usize = 50_000;
    let mut scene = Scene::new(cx, COUNT * 8, 1000);
    scene.put(0, &7_u64.to_ne_bytes().repeat(COUNT));
    let mut value = 7_u64.to_ne_bytes().to_vec();
    let (elements, answer) = (scene.elements(0, COUNT, 8), scene.host.at(0));
    let search = Search { elements, field_offset: 0, value: &value, limit: 0, count_all: true, answer };
    let ticket = scene.queue.submit(&search).expect("the search must succeed");
    value.fill(0xFF);
    scene.settle(ticket);
    let header: Vec<u8> = [COUNT as u64, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
    scene.write_host_expected(0, &header);
    scene.assert_as_expected("a search whose value was changed after the call");
}

/// Checks that searches in flight at the same time do not overwrite each other's intermediate results.
pub(super) fn searches_in_flight_at_once_do_not_mix(cx: &Context<'_>) {
    const COUNT: usize = 20_000;
    const ROOM: usize = 16 + 8 * 100;
    let mut scene = Scene::new(cx, COUNT * 4, 40 * ROOM);
    let mut hay = cx.noise(5, COUNT * 4);
    for (i, element) in hay.chunks_exact_mut(4).enumerate() {
        element.copy_from_slice(&((i as u32) * 7 % 40).to_ne_bytes());
    }
    scene.put(0, &hay);
    let others = [cx.queue(), cx.queue()];
    let elements = scene.elements(0, COUNT, 4);
    let mut tickets = Vec::new();
    for k in 0..40_u32 {
        let value = k.to_ne_bytes();
        let (limit, answer) = (u64::from(k) * 2, scene.host.at((k as usize * ROOM) as u64));
        let search = Search { elements, field_offset: 0, value: &value, limit, count_all: true, answer };
        let queue = [&scene.queue, &others[0], &others[1]][k as usize % 3];
        tickets.push(queue.submit(&search).expect("the search must succeed"));
    }
    for (k, ticket) in tickets.into_iter().enumerate() {
        cx.wait(ticket);
        let truth = reference::search(&hay, 4, 0, &(k as u32).to_ne_bytes(), k as u64 * 2);
        let answer = [truth.total, truth.indices.len() as u64];
        let answer: Vec<u8> = answer.iter().chain(&truth.indices).flat_map(|n| n.to_ne_bytes()).collect();
        assert_holds(&format!("search {k} of forty in three queues"), &scene.host, k * ROOM, &answer);
    }
}
