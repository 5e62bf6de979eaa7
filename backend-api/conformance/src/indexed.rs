//! Conformance checks of gathers and scatters: the results must equal the results of a naive model.

use backend_api::wrap::SplitMix64;
use backend_api::{
    Device, DeviceBuffer, DeviceSpan, Elements, Error, ErrorKind, Gather, HostBuffer, LEFT_OUT, LaunchView,
    Queue, Scatter, Ticket,
};

use super::Context;
use super::context::{assert_bytes, assert_holds, assert_refused};
use super::scene::{Gathered, IndexedKind, Scattered, Scene};
use super::searches::strides;

/// Work that will fail, with the memory that it accesses.
pub(super) struct Failing {
    pub ticket: Ticket,
    _memory: DeviceBuffer<dyn Device>,
    _host: HostBuffer<dyn Device>,
}

/// Submits a gather whose only index is out of bounds, so that the work fails when it runs.
pub(super) fn failing_gather(cx: &Context<'_>, queue: &Queue<dyn Device>) -> Failing {
    let (memory, host) = (cx.memory(64), cx.host(64));
    host.write(0, &8_u64.to_ne_bytes());
    let elements = Elements { start: memory.at(0), count: 8, stride: 8 };
    let gather = Gather { elements: elements.into(), indices: host.at(0), count: 1, values: host.at(8) };
    let ticket = queue.submit(&gather).expect("a gather that fails later must get a ticket");
    Failing { ticket, _memory: memory, _host: host }
}

/// Returns `count` indices below `below`, in any order, possibly repeated.
fn any_indices(seed: u64, count: usize, below: usize) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(|_| random.below(below as u64)).collect()
}

/// Returns `count` different indices below `below`, in any order.
fn different_indices(seed: u64, count: usize, below: usize) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    let mut all: Vec<u64> = (0..below as u64).collect();
    for i in 0..count {
        all.swap(i, i + random.index(below - i));
    }
    all.truncate(count);
    all
}

pub(super) fn gathers_and_scatters_of_nothing(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 100, 200);
    for (start, count, stride) in [(0, 0, 1), (100, 0, 8), (0, 12, 8), (50, 0, 4096)] {
        for (indices, values) in [(0, 0), (200, 200), (16, 3)] {
            let elements = scene.elements(start, count, stride);
            scene.indexed(Gathered, elements, 0, [indices, values]);
            scene.indexed(Scattered, elements, 0, [indices, values]);
        }
    }
    scene.assert_as_expected("gathers and scatters of nothing");
}

/// Returns random indices. The indices of a scatter are all different.
fn indices_for(by: IndexedKind, seed: u64, count: usize, below: usize) -> Vec<u64> {
    match by {
        Gathered => any_indices(seed, count, below),
        Scattered => different_indices(seed, count, below),
    }
}

pub(super) fn gathers_of_every_stride(cx: &Context<'_>) {
    of_every_stride(cx, Gathered);
}

pub(super) fn scatters_of_every_stride(cx: &Context<'_>) {
    of_every_stride(cx, Scattered);
}

fn of_every_stride(cx: &Context<'_>, by: IndexedKind) {
    const COUNT: usize = 61;
    const WANTED: usize = 50;
    let mut scene = Scene::new(cx, (COUNT + 1) * 4096, WANTED * 8 + WANTED * 4096 + 128);
    for stride in strides() {
        let mut indices = indices_for(by, stride as u64, WANTED, COUNT - 2);
        (indices[0], indices[WANTED - 1]) = (COUNT as u64 - 1, COUNT as u64 - 2);
        scene.write_indices(0, &indices);
        let elements = scene.elements(stride * 5 % 19, COUNT, stride);
        scene.indexed(by, elements, WANTED, [0, WANTED * 8 + stride * 3 % 13]);
        scene.assert_as_expected(&format!("elements of {stride} bytes, {by:?}"));
    }
}

pub(super) fn entries_left_out_move_nothing(cx: &Context<'_>) {
    const COUNT: usize = 90;
    let mut scene = Scene::new(cx, (COUNT + 1) * 512, COUNT * (8 + 512) + 64);
    for (round, stride) in [1, 2, 3, 4, 7, 8, 12, 16, 44, 96, 512].into_iter().enumerate() {
        for by in [Gathered, Scattered] {
            let mut indices = indices_for(by, stride as u64, COUNT, COUNT);
            // Test lists that leave out some entries, all entries, and all entries but one.
            let mut random = SplitMix64::new(round as u64);
            indices.iter_mut().for_each(|index| match (round % 4, random.below(2)) {
                (0, _) | (1..3, 0) => *index = LEFT_OUT,
                _ => {}
            });
            if round % 4 == 3 {
                indices[1..].fill(LEFT_OUT);
            }
            scene.write_indices(0, &indices);
            // Set some of the elements to zero: a device must not confuse zeros with left-out entries.
            scene.fill(0, COUNT * stride / 2, &[0]);
            let (elements, values) =
                (scene.elements(round % 3 * 4, COUNT, stride), COUNT * 8 + round * 5 % 16);
            let ticket = scene.indexed(by, elements, COUNT, [0, values]);
            if by == Gathered {
                // The values of left-out entries are unspecified, so accept the device's values.
                scene.settle(ticket);
                for (k, _) in indices.iter().enumerate().filter(|(_, index)| **index == LEFT_OUT) {
                    let at = values + k * stride;
                    scene.host.read(at, &mut scene.expected_host[at..at + stride]);
                }
            }
            scene.assert_as_expected(&format!("entries left out, {by:?}, elements of {stride} bytes"));
        }
    }
}

pub(super) fn gathers_and_scatters_of_elements_in_pages(cx: &Context<'_>) {
    const BYTES: usize = 100_000;
    let noise = [1, 2, 3].map(|seed| cx.noise(seed, BYTES));
    let (queue, memory, host) = (cx.queue(), [(); 3].map(|()| cx.memory(BYTES as u64)), cx.host(BYTES));
    for (bytes, memory) in noise.iter().zip(&memory) {
        host.write(0, bytes);
        cx.wait(cx.upload(&queue, &host, memory, BYTES as u64));
    }
    let places = [memory[0].at(48), memory[1].at(0), memory[2].at(16)];
    let read = |at: usize| -> Vec<u8> {
        cx.wait(cx.download(&queue, &memory[at], &host, BYTES as u64));
        let mut bytes = vec![0; BYTES];
        host.read(0, &mut bytes);
        bytes
    };
    for places in [&places[..], &places[..2], &places[..1]] {
        if !elements_in_pages(cx, places, &read) {
            return cx.skip("the device does not gather elements that are striped over several places");
        }
    }
}

/// Checks gathers and scatters of elements of several lengths. The pages of the elements are striped over the
/// memories at `bases`, each of 90 000 bytes. `read` returns all bytes of one of the memories. Returns false
/// if the device does not support striped elements.
pub(super) fn elements_in_pages(
    cx: &Context<'_>,
    bases: &[DeviceSpan<'_>],
    read: &dyn Fn(usize) -> Vec<u8>,
) -> bool {
    const WANTED: usize = 700;
    let queue = cx.queue();
    for (stride, page_len, count) in
        [(4, 64, 5000), (44, 7, 2001), (1, 1, 3000), (16, 1 << 40, 999), (2, 500, 1)]
    {
        let view = LaunchView::Striped { bases, page_len, count, stride };
        let (values, size) = (8 * WANTED, stride as usize);
        let host = cx.host(values + WANTED * size);
        let of = |elements, indices: &[u64]| {
            let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_ne_bytes()).collect();
            host.write(0, &bytes);
            let (list, count, values) = (host.at(0), indices.len() as u64, host.at(values as u64));
            Gather { elements, indices: list, count, values }
        };
        match queue.submit(&of(view, &[])) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return false,
            done => cx.wait(done.expect("a gather of 0 elements must succeed")),
        }
        let mut memory: Vec<_> = (0..bases.len()).map(read).collect();
        let at = |index: u64| {
            let (base, behind) = view.place(index).expect("the view must contain this element");
            let place =
                bases.iter().position(|other| *other == base).expect("the view must contain this place");
            let start = (base.offset() + behind) as usize;
            (place, start..start + size)
        };
        let mut indices = any_indices(stride, WANTED.min(count as usize), count as usize);
        (indices[0], *indices.last_mut().expect("the list of indices must not be empty")) = (count - 1, 0);
        cx.wait(queue.submit(&of(view, &indices)).expect("the gather must succeed"));
        let expected = indices.iter().flat_map(|index| {
            let (place, range) = at(*index);
            memory[place][range].to_vec()
        });
        let what =
            format!("{count} elements of {stride} bytes in pages of {page_len} at {} places", bases.len());
        assert_holds(&format!("values gathered from {what}"), &host, values, &expected.collect::<Vec<_>>());

        let indices = different_indices(stride, WANTED.min(count as usize), count as usize);
        let new = cx.noise(stride + page_len, indices.len() * size);
        host.write(values, &new);
        let Gather { elements, indices: list, count, values } = of(view, &indices);
        cx.wait(
            queue
                .submit(&Scatter { elements, indices: list, count, values })
                .expect("the scatter must succeed"),
        );
        for (index, value) in indices.iter().zip(new.chunks_exact(size)) {
            let (place, range) = at(*index);
            memory[place][range].copy_from_slice(value);
        }
        for (number, expected) in memory.iter().enumerate() {
            assert_bytes(&format!("place {number} after a scatter to {what}"), &read(number), expected);
        }
        let outside =
            queue.submit(&of(view, &[0, view.count()])).expect("a gather that fails later must get a ticket");
        assert_refused(
            &format!("an index outside of {what}"),
            cx.device().wait(outside),
            ErrorKind::KernelFailed,
        );
    }
    true
}

pub(super) fn gathers_and_scatters_of_many_elements(cx: &Context<'_>) {
    const COUNT: usize = 100_003;
    for stride in [1, 4, 8, 12] {
        let mut scene = Scene::new(cx, COUNT * stride + 16, COUNT * (8 + stride) + 16);
        let values = COUNT * 8;
        scene.write_indices(0, &different_indices(3, COUNT, COUNT));
        let elements = scene.elements(4, COUNT, stride);
        scene.indexed(Scattered, elements, COUNT, [0, values]);
        scene.assert_as_expected(&format!("a scatter of {COUNT} elements of {stride} bytes"));
        scene.write_indices(0, &any_indices(4, COUNT, COUNT));
        scene.indexed(Gathered, elements, COUNT, [0, values + 8]);
        scene.assert_as_expected(&format!("a gather of {COUNT} elements of {stride} bytes"));
    }
}

pub(super) fn gathers_and_scatters_of_large_elements(cx: &Context<'_>) {
    const STRIDE: usize = 70_001;
    let mut scene = Scene::new(cx, 9 * STRIDE, 5 * STRIDE);
    let elements = scene.elements(3, 8, STRIDE);
    scene.write_indices(0, &[7, 0, 3]);
    scene.indexed(Scattered, elements, 3, [0, 24]);
    scene.assert_as_expected("a scatter of large elements");
    scene.write_indices(0, &[5, 7, 7, 0]);
    scene.indexed(Gathered, elements, 4, [0, 33]);
    scene.assert_as_expected("a gather of large elements");
}

/// Returns indices that are out of bounds for `count` elements: just beyond the end, and so large that
/// overflow or truncation could make them small.
fn outside(count: u64) -> [u64; 9] {
    [count, count + 1, u64::MAX - 1, u64::MAX - 2, 1 << 32, (1 << 32) + 1, 1 << 61, 1 << 63, (1 << 61) + 2]
}

pub(super) fn a_gather_with_an_index_outside_fails(cx: &Context<'_>) {
    an_index_outside_fails(cx, Gathered);
}

pub(super) fn a_scatter_with_an_index_outside_fails(cx: &Context<'_>) {
    an_index_outside_fails(cx, Scattered);
}

fn an_index_outside_fails(cx: &Context<'_>, by: IndexedKind) {
    const COUNT: usize = 50;
    const WANTED: usize = 40;
    const START: usize = 64;
    const VALUES: usize = WANTED * 8;
    let name = if by == Gathered { "gather" } else { "scatter" };
    let mut scene = Scene::new(cx, 2 * COUNT * 8, VALUES + WANTED * 8 + 100);
    let fails = |scene: &mut Scene<'_>, elements, count, what: &str| {
        let submitted = scene.submit_indexed(by, elements, count, [0, VALUES]);
        let failed = submitted.expect("work that fails later must get a ticket");
        let good = scene.submit(&[scene.upload(0, 0, 8)]);
        let outcome = cx.device().wait(failed);
        let advice = outcome.as_ref().err().map(|error| error.advice().to_owned());
        assert_refused(what, outcome, ErrorKind::KernelFailed);
        assert_eq!(
            advice.as_deref(),
            Some(Error::index_outside(name).advice()),
            "the error must have the advice for an invalid index"
        );
        scene.settle(good);
    };
    for (round, wrong) in outside(COUNT as u64).into_iter().enumerate() {
        let mut indices = indices_for(by, 5, WANTED, COUNT);
        indices[[0, WANTED - 1, 17][round % 3]] = wrong;
        scene.write_indices(0, &indices);
        let elements = scene.elements(START, COUNT, 8);
        fails(&mut scene, elements, WANTED, &format!("{by:?} with index {wrong} of {COUNT} elements"));
        // After a failure the values of a gather are unspecified, and a scatter may have written some of its
        // elements. All other bytes are unchanged.
        if by == Gathered {
            scene.host.read(VALUES, &mut scene.expected_host[VALUES..VALUES + WANTED * 8]);
        } else {
            let contents = scene.contents();
            for index in indices.into_iter().filter(|&i| i < COUNT as u64) {
                let at = START + index as usize * 8;
                scene.expected[at..at + 8].copy_from_slice(&contents[at..at + 8]);
            }
        }
        scene.assert_as_expected(&format!("{by:?} with an invalid index"));
    }
    let none = scene.elements(START, 0, 8);
    fails(&mut scene, none, 1, &format!("{by:?} with an index, but without elements"));
    scene.write_indices(0, &different_indices(8, WANTED, COUNT));
    let elements = scene.elements(START, COUNT, 8);
    scene.indexed(by, elements, WANTED, [0, VALUES]);
    scene.assert_as_expected(&format!("{by:?} after many failures"));
}

/// Checks that gathers in flight at the same time do not overwrite each other's failure flag or indices.
pub(super) fn gathers_in_flight_at_once_do_not_mix(cx: &Context<'_>) {
    const COUNT: usize = 1000;
    let others = [cx.queue(), cx.queue()];
    let mut scene = Scene::new(cx, COUNT * 4, 60 * 4096);
    let mut expected = Vec::new();
    for k in 0..60 {
        let mut indices = any_indices(k as u64, 100, COUNT);
        if k % 4 == 3 {
            indices[k] = COUNT as u64;
        }
        scene.write_indices(k * 4096, &indices);
        let (elements, at) = (scene.elements(0, COUNT, 4), k as u64 * 4096);
        let (indices_at, values) = (scene.host.at(at), scene.host.at(at + 1000));
        let gather = Gather { elements: elements.into(), indices: indices_at, count: 100, values };
        let queue = [&scene.queue, &others[0], &others[1]][k % 3];
        let ticket = queue.submit(&gather).expect("the gather must succeed");
        expected.push((ticket, super::reference::gather(&scene.expected, 4, &indices)));
    }
    for (k, (ticket, values)) in expected.into_iter().enumerate() {
        let what = format!("gather {k} of sixty in three queues");
        let Some(values) = values else {
            assert_refused(&what, cx.device().wait(ticket), ErrorKind::KernelFailed);
            continue;
        };
        cx.device().wait(ticket).expect(&what);
        assert_holds(&what, &scene.host, k * 4096 + 1000, &values);
    }
}
