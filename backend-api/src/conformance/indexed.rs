//! Gathers and scatters against the naive ones.

use crate::wrap::SplitMix64;
use crate::{Device, DeviceBuffer, Elements, Error, ErrorKind, Gather, HostBuffer, Queue, Scatter, Ticket};

use super::Context;
use super::context::{assert_bytes, assert_refused};
use super::scene::Scene;
use super::searches::strides;

/// Work that fails, with the memory that it needs.
pub(super) struct Failing<D: Device> {
    pub ticket: Ticket,
    _memory: DeviceBuffer<D>,
    _host: HostBuffer<D>,
}

/// Submits a gather that fails when its turn comes, for its only index is outside.
pub(super) fn failing_gather<D: Device>(cx: &Context<'_, D>, queue: &Queue<D>) -> Failing<D> {
    let (memory, host) = (cx.memory(64), cx.host(64));
    host.write(0, &8_u64.to_ne_bytes());
    let elements = Elements { start: memory.at(0), count: 8, stride: 8 };
    let gather = Gather { elements, indices: host.at(0), count: 1, values: host.at(8) };
    let ticket = queue.gather(&gather).expect("a gather whose failure the ticket tells");
    Failing { ticket, _memory: memory, _host: host }
}

/// `count` indices below `below`, in any order, which may repeat.
fn any_indices(seed: u64, count: usize, below: usize) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(|_| random.below(below as u64)).collect()
}

/// `count` different indices below `below`, in any order.
fn different_indices(seed: u64, count: usize, below: usize) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    let mut all: Vec<u64> = (0..below as u64).collect();
    for i in 0..count {
        all.swap(i, i + random.below((below - i) as u64) as usize);
    }
    all.truncate(count);
    all
}

pub(super) fn gathers_and_scatters_of_nothing<D: Device>(cx: &Context<'_, D>) {
    let mut scene = Scene::new(cx, 100, 200);
    for (start, count, stride) in [(0, 0, 1), (100, 0, 8), (0, 12, 8), (50, 0, 4096)] {
        for (indices, values) in [(0, 0), (200, 200), (16, 3)] {
            let elements = scene.elements(start, count, stride);
            scene.gather(elements, indices, 0, values);
            scene.scatter(elements, indices, 0, values);
        }
    }
    scene.assert_as_expected("gathers and scatters of nothing");
}

pub(super) fn gathers_of_every_stride<D: Device>(cx: &Context<'_, D>) {
    const COUNT: usize = 61;
    const WANTED: usize = 70;
    let mut scene = Scene::new(cx, (COUNT + 1) * 4096, WANTED * 8 + WANTED * 4096 + 128);
    for stride in strides() {
        let mut indices = any_indices(stride as u64, WANTED, COUNT);
        indices[0] = COUNT as u64 - 1;
        indices[WANTED - 1] = 0;
        scene.write_indices(0, &indices);
        let elements = scene.elements(stride * 5 % 19, COUNT, stride);
        scene.gather(elements, 0, WANTED, WANTED * 8 + stride * 3 % 13);
        scene.assert_as_expected(&format!("a gather of elements of {stride} bytes"));
    }
}

pub(super) fn scatters_of_every_stride<D: Device>(cx: &Context<'_, D>) {
    const COUNT: usize = 61;
    const WANTED: usize = 40;
    let mut scene = Scene::new(cx, (COUNT + 1) * 4096, WANTED * 8 + WANTED * 4096 + 128);
    for stride in strides() {
        let mut indices = different_indices(stride as u64, WANTED, COUNT - 2);
        indices[0] = COUNT as u64 - 1;
        scene.write_indices(0, &indices);
        let elements = scene.elements(stride * 5 % 19, COUNT, stride);
        scene.scatter(elements, 0, WANTED, WANTED * 8 + stride * 3 % 13);
        scene.assert_as_expected(&format!("a scatter of elements of {stride} bytes"));
    }
}

pub(super) fn gathers_and_scatters_of_many_elements<D: Device>(cx: &Context<'_, D>) {
    const COUNT: usize = 100_003;
    for stride in [1, 4, 8, 12] {
        let mut scene = Scene::new(cx, COUNT * stride + 16, COUNT * (8 + stride) + 16);
        let values = COUNT * 8;
        scene.write_indices(0, &different_indices(3, COUNT, COUNT));
        let elements = scene.elements(4, COUNT, stride);
        scene.scatter(elements, 0, COUNT, values);
        scene.assert_as_expected(&format!("a scatter of {COUNT} elements of {stride} bytes"));
        scene.write_indices(0, &any_indices(4, COUNT, COUNT));
        scene.gather(elements, 0, COUNT, values + 8);
        scene.assert_as_expected(&format!("a gather of {COUNT} elements of {stride} bytes"));
    }
}

pub(super) fn gathers_and_scatters_of_large_elements<D: Device>(cx: &Context<'_, D>) {
    const STRIDE: usize = 70_001;
    let mut scene = Scene::new(cx, 9 * STRIDE, 5 * STRIDE);
    let elements = scene.elements(3, 8, STRIDE);
    scene.write_indices(0, &[7, 0, 3]);
    scene.scatter(elements, 0, 3, 24);
    scene.assert_as_expected("a scatter of large elements");
    scene.write_indices(0, &[5, 7, 7, 0]);
    scene.gather(elements, 0, 4, 33);
    scene.assert_as_expected("a gather of large elements");
}

/// Indices outside of `count` elements: near misses, and such as become small when they are multiplied or
/// cut.
fn outside(count: u64) -> [u64; 9] {
    [count, count + 1, u64::MAX, u64::MAX - 1, 1 << 32, (1 << 32) + 1, 1 << 61, 1 << 63, (1 << 61) + 2]
}

pub(super) fn a_gather_with_an_index_outside_fails<D: Device>(cx: &Context<'_, D>) {
    an_index_outside_fails(cx, true);
}

pub(super) fn a_scatter_with_an_index_outside_fails<D: Device>(cx: &Context<'_, D>) {
    an_index_outside_fails(cx, false);
}

fn an_index_outside_fails<D: Device>(cx: &Context<'_, D>, is_gather: bool) {
    const COUNT: usize = 50;
    const WANTED: usize = 40;
    const START: usize = 64;
    const VALUES: usize = WANTED * 8;
    let name = if is_gather { "gather" } else { "scatter" };
    let mut scene = Scene::new(cx, 2 * COUNT * 8, VALUES + WANTED * 8 + 100);
    let fails = |scene: &mut Scene<'_, D>, elements, count, what: &str| {
        let (indices, values) = (scene.host_at(0), scene.host_at(VALUES as u64));
        let submitted = if is_gather {
            scene.queue.gather(&Gather { elements, indices, count, values })
        } else {
            scene.queue.scatter(&Scatter { elements, indices, count, values })
        };
        let failed = submitted.expect("work whose failure the ticket tells");
        let good = scene.submit(&[scene.upload(0, 0, 8)]);
        let outcome = cx.device().wait(failed);
        let advice = outcome.as_ref().err().map(|error| error.advice().to_owned());
        assert_refused(what, outcome, ErrorKind::KernelFailed);
        assert_eq!(
            advice.as_deref(),
            Some(Error::index_outside(name).advice()),
            "to try again does not help"
        );
        scene.settle(good);
    };
    for (round, wrong) in outside(COUNT as u64).into_iter().enumerate() {
        let mut indices =
            if is_gather { any_indices(5, WANTED, COUNT) } else { different_indices(7, WANTED, COUNT) };
        indices[[0, WANTED - 1, 17][round % 3]] = wrong;
        scene.write_indices(0, &indices);
        let elements = scene.elements(START, COUNT, 8);
        fails(&mut scene, elements, WANTED as u64, &format!("a {name} with element {wrong} of {COUNT}"));
        // The values that were fetched, or the elements that were named rightly, are unspecified; all else is
        // as it was.
        if is_gather {
            scene.host.read(VALUES, &mut scene.expected_host[VALUES..VALUES + WANTED * 8]);
        } else {
            let contents = scene.contents();
            for index in indices.into_iter().filter(|&i| i < COUNT as u64) {
                let at = START + index as usize * 8;
                scene.expected[at..at + 8].copy_from_slice(&contents[at..at + 8]);
            }
            assert_bytes("device memory after a scatter that failed", &contents, &scene.expected);
        }
        scene.assert_as_expected(&format!("a {name} that failed"));
    }
    let none = scene.elements(START, 0, 8);
    fails(&mut scene, none, 1, &format!("a {name} with one of no elements"));
    scene.write_indices(0, &different_indices(8, WANTED, COUNT));
    let elements = scene.elements(START, COUNT, 8);
    if is_gather {
        scene.gather(elements, 0, WANTED, VALUES);
    } else {
        scene.scatter(elements, 0, WANTED, VALUES);
    }
    scene.assert_as_expected(&format!("a {name} after many that failed"));
}

/// For kernels that keep their failure flag or their indices in memory which they share.
pub(super) fn gathers_in_flight_at_once_do_not_mix<D: Device>(cx: &Context<'_, D>) {
    const COUNT: usize = 1000;
    let others = [cx.queue(), cx.queue()];
    let scene = Scene::new(cx, COUNT * 4, 60 * 4096);
    let mut expected = Vec::new();
    for k in 0..60 {
        let mut indices = any_indices(k as u64, 100, COUNT);
        if k % 4 == 3 {
            indices[k] = COUNT as u64;
        }
        let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_ne_bytes()).collect();
        scene.host.write(k * 4096, &bytes);
        let gather = Gather {
            elements: scene.elements(0, COUNT, 4),
            indices: scene.host.at(k as u64 * 4096),
            count: 100,
            values: scene.host.at(k as u64 * 4096 + 1000),
        };
        let queue = [&scene.queue, &others[0], &others[1]][k % 3];
        let ticket = queue.gather(&gather).expect("a gather");
        expected.push((ticket, super::reference::gather(&scene.expected, 4, &indices)));
    }
    for (k, (ticket, values)) in expected.into_iter().enumerate() {
        let what = format!("gather {k} of sixty in three queues");
        let Some(values) = values else {
            assert_refused(&what, cx.device().wait(ticket), ErrorKind::KernelFailed);
            continue;
        };
        cx.device().wait(ticket).expect(&what);
        let mut found = vec![0; values.len()];
        scene.host.read(k * 4096 + 1000, &mut found);
        assert_bytes(&what, &found, &values);
    }
}
