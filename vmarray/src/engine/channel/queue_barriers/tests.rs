//! Tests of copies and kernels in several queues, on devices whose queues overtake each other.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use backend_api::wrap::{Fault, Operation};
use backend_api::{
    Device, Elements, ErrorKind, Gather, HostBuffer, HostMemory, QueueProgress, Scatter, Search, Ticket,
    Transfer,
};
use backend_host::SimulatedDevice;
use vmarray_conformance::wrap::Faulty;

use crate::array::VirtualArray;
use crate::array::testing::one_channel;
use crate::engine::channel::Channel;
use crate::prelude::*;

const PAGES: usize = 8;
const PAGE_LEN: usize = 16;
const PAGE_BYTES: u64 = 64;
/// The slot of all work.
const SLOT: u64 = 3;
/// Host memory: one index, then values.
const ROOM: u64 = 128;

type Array = VirtualArray<u32, SimulatedDevice>;

fn array(device: SimulatedDevice) -> Array {
    array_on(&Arc::new(device))
}

fn array_on(device: &Arc<SimulatedDevice>) -> Array {
    let array = one_channel(device, (PAGES, PAGE_LEN), 2).read_ahead(true).build().unwrap();
    array.write(0, &[0; PAGES * PAGE_LEN]).unwrap();
    array.evict(..).unwrap();
    array
}

/// A slot with reads and writes of all kinds, by submissions without waits.
struct Scene<'a> {
    channel: &'a Channel,
    memory: HostBuffer<dyn Device>,
    used: u64,
    /// Value of the slot at the end, and lower bound of its values.
    value: u32,
    above: u32,
    /// Tickets of reads, places of the results, and expected values.
    read: Vec<(Ticket, u64, u32)>,
    copies_out: Vec<Ticket>,
    copies_in: Vec<Ticket>,
    queues: HashSet<backend_api::QueueId>,
}

impl<'a> Scene<'a> {
    fn new(array: &'a Array) -> Self {
        let channel = &array.pager().channels()[0];
        let bytes = PAGE_BYTES + ROOM * PAGE_BYTES;
        let memory = HostBuffer::new(channel.device(), bytes as usize, HostMemory::Pageable).unwrap();
        memory.write(0, &SLOT.to_ne_bytes());
        Self {
            channel,
            memory,
            used: 0,
            value: 0,
            above: 0,
            read: Vec::new(),
            copies_out: Vec::new(),
            copies_in: Vec::new(),
            queues: HashSet::new(),
        }
    }

    fn place(&mut self) -> u64 {
        self.used += 1;
        self.used * PAGE_BYTES
    }

    fn next_value(&mut self) -> u64 {
        let place = self.place();
        self.value = self.above + self.used as u32;
        self.memory.write(place as usize, bytemuck::bytes_of(&[self.value; PAGE_LEN]));
        place
    }

    fn note_read(&mut self, ticket: Ticket, place: u64) {
        self.queues.insert(ticket.queue);
        self.read.push((ticket, place, self.value));
    }

    fn elements(&self) -> Elements<'_> {
        Elements { start: self.channel.slot_memory(), count: PAGES as u64, stride: PAGE_BYTES }
    }

    fn gather(&mut self) {
        let place = self.place();
        let (indices, values) = (self.memory.at(0), self.memory.at(place));
        let gather = Gather { elements: self.elements().into(), indices, count: 1, values };
        let ticket = self.channel.queues.between_writes(&[], &mut |queue| queue.submit(&gather)).unwrap();
        self.note_read(ticket, place);
    }

    /// A load, or a copy to a stage: the holder of the page has seen the end of all copies into the slot.
    fn copy_out(&mut self) {
        self.wait_for_copies_in();
        let place = self.place();
        let copy = Transfer::Download {
            from: self.channel.home(SLOT),
            to: self.memory.at(place),
            bytes: PAGE_BYTES,
        };
        let mut loads = self.channel.queues.begin_loads();
        let ticket = self.channel.queues.read(&mut loads, |queue| queue.submit(&[copy])).unwrap();
        drop(loads);
        self.copies_out.push(ticket);
        self.note_read(ticket, place);
    }

    /// A write-back: the holder of the page has seen the end of all copies.
    fn copy_in(&mut self, is_beside: bool) {
        self.wait_for_copies_in();
        self.copies_out.drain(..).for_each(|ticket| self.channel.queues.wait(ticket).unwrap());
        let place = self.next_value();
        let copy =
            Transfer::Upload { from: self.memory.at(place), to: self.channel.home(SLOT), bytes: PAGE_BYTES };
        let mut order = self.channel.queues.begin_writes();
        let ticket = if is_beside {
            self.channel.queues.write_beside(&mut order, |queue| queue.submit(&[copy]))
        } else {
            self.channel.queues.write(&mut order, |queue| queue.submit(&[copy]))
        };
        drop(order);
        let ticket = ticket.unwrap();
        self.queues.insert(ticket.queue);
        self.copies_in.push(ticket);
    }

    /// A write-back of another page after all fetches have arrived, so that the next write-back can run
    /// beside it.
    fn copy_elsewhere(&mut self) {
        self.read.iter().for_each(|(ticket, ..)| self.channel.queues.wait(*ticket).unwrap());
        let (from, to) = (self.memory.at(0), self.channel.home(SLOT + 1));
        let copy = Transfer::Upload { from, to, bytes: PAGE_BYTES };
        let mut order = self.channel.queues.begin_writes();
        self.channel.queues.write_beside(&mut order, |queue| queue.submit(&[copy])).unwrap();
    }

    fn wait_for_copies_in(&mut self) {
        self.copies_in.drain(..).for_each(|ticket| self.channel.queues.wait(ticket).unwrap());
    }

    fn scatter(&mut self) {
        let place = self.next_value();
        let (indices, values) = (self.memory.at(0), self.memory.at(place));
        let scatter = Scatter { elements: self.elements().into(), indices, count: 1, values };
        let begun = self.channel.queues.loads_begun();
        self.channel.queues.scatter_home(begun, |_| Some(scatter)).unwrap().unwrap();
    }

    /// A kernel that may write; here it writes to all slots their present contents.
    fn store(&mut self) {
        let place = self.next_value();
        let (indices, values) = (self.memory.at(0), self.memory.at(place));
        let scatter = Scatter { elements: self.elements().into(), indices, count: 1, values };
        self.channel.queues.between_all_writes(&[], &[], &mut |queue| queue.submit(&scatter)).unwrap();
    }

    /// A kernel that copies the other scene's slot to this one.
    fn copy_of(&mut self, other: &Self) {
        let copy = Transfer::Internal {
            from: other.channel.home(SLOT),
            to: self.channel.home(SLOT),
            bytes: PAGE_BYTES,
        };
        self.channel
            .queues
            .between_all_writes(&[&other.channel.queues], &[], &mut |queue| queue.submit(&[copy]))
            .unwrap();
        self.value = other.value;
    }

    /// A kernel that copies this slot to the other scene's.
    fn copy_to(&self, other: &mut Self) {
        let (from, to) = (self.channel.home(SLOT), other.channel.home(SLOT));
        let others = [&other.channel.queues];
        let copy = Transfer::Internal { from, to, bytes: PAGE_BYTES };
        self.channel.queues.between_all_writes(&others, &others, &mut |queue| queue.submit(&[copy])).unwrap();
        other.value = self.value;
    }

    /// One of all steps, by a number.
    fn step(&mut self, number: u64) {
        match number % 15 {
            0..4 => self.gather(),
            4..7 => self.copy_out(),
            7 | 8 => self.copy_in(true),
            9 => self.copy_in(false),
            10 => self.scatter(),
            11 => self.store(),
            12 | 13 => self.copy_elsewhere(),
            _ => self.wait(number / 15),
        }
    }

    /// Waits for one of the reads, in any order.
    fn wait(&self, at: u64) {
        if !self.read.is_empty() {
            self.channel.queues.wait(self.read[at as usize % self.read.len()].0).unwrap();
        }
    }

    fn check(&self) {
        for &(ticket, place, value) in &self.read {
            self.channel.queues.wait(ticket).unwrap();
            let mut found = [0_u32; PAGE_LEN];
            self.memory.read(place as usize, bytemuck::bytes_of_mut(&mut found));
            assert_eq!(found, [value; PAGE_LEN], "read {}", place / PAGE_BYTES);
        }
    }
}

/// A step of SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32
}

#[test]
fn reads_return_earlier_writes_of_any_queue() {
    let mut queues = 0;
    for seed in 0..backend_api::wrap::random_cases(300).into() {
        let array = array(SimulatedDevice::builder(seed).build());
        let mut scene = Scene::new(&array);
        let mut state = seed;
        while scene.used < ROOM {
            scene.step(next(&mut state));
        }
        scene.check();
        queues = queues.max(scene.queues.len());
    }
    assert!(queues > 6, "only {queues} queues were used");
}

#[test]
fn kernels_on_slots_of_other_channels_are_ordered_with_their_writes() {
    for seed in 0..backend_api::wrap::random_cases(300).into() {
        let device = Arc::new(SimulatedDevice::builder(seed).build());
        let (one, two) = (array_on(&device), array_on(&device));
        let mut scenes = [Scene::new(&one), Scene::new(&two)];
        scenes[1].above = 1000;
        let mut state = seed;
        while scenes.iter().all(|scene| scene.used < ROOM) {
            let number = next(&mut state);
            let [left, right] = &mut scenes;
            match number % 10 {
                0 => left.copy_of(right),
                1 => right.copy_of(left),
                2 => left.copy_to(right),
                3 => right.copy_to(left),
                4..7 => left.step(number / 10),
                _ => right.step(number / 10),
            }
        }
        scenes.iter().for_each(Scene::check);
    }
}

#[test]
fn work_that_another_channel_cannot_be_ordered_after_is_waited_for() {
    for (is_refused, state) in [(false, QueueProgress::Pending), (true, QueueProgress::Done)] {
        let device = Arc::new(Faulty::new(SimulatedDevice::builder(7).build()));
        let arrays = [(); 2].map(|()| one_channel::<u32, _>(&device, (PAGES, PAGE_LEN), 2).build().unwrap());
        let [left, right] = arrays.each_ref().map(|array| &array.pager().channels()[0]);
        let copy = Transfer::Internal { from: right.home(SLOT), to: left.home(SLOT), bytes: PAGE_BYTES };
        if is_refused {
            device.inject(Fault::new(Operation::OrderAfter, ErrorKind::Driver));
        }
        let ticket = left
            .queues
            .between_all_writes(&[&right.queues], &[], &mut |queue| queue.submit(&[copy]))
            .unwrap();
        assert_eq!(device.poll(ticket).unwrap(), state);
    }
}

/// A kernel in a queue of one scene's channel that reads the slots of all scenes.
fn read_all(scenes: &mut [Scene<'_>; 3], own: usize) {
    let places = scenes.each_mut().map(Scene::place);
    let copies = scenes.iter().zip(places).map(|(scene, place)| Transfer::Download {
        from: scene.channel.home(SLOT),
        to: scene.memory.at(place),
        bytes: PAGE_BYTES,
    });
    let copies: Vec<_> = copies.collect();
    let channels = scenes.each_ref().map(|scene| &scene.channel.queues);
    let ticket = channels[own].between_writes(&channels, &mut |queue| queue.submit(&copies)).unwrap();
    drop(copies);
    scenes.iter_mut().zip(places).for_each(|(scene, place)| scene.note_read(ticket, place));
}

#[test]
fn kernels_that_read_slots_of_several_channels_see_each_between_its_writes() {
    for seed in 0..backend_api::wrap::random_cases(300).into() {
        let device = Arc::new(SimulatedDevice::builder(seed).build());
        let arrays = [(); 3].map(|()| array_on(&device));
        let mut scenes = arrays.each_ref().map(Scene::new);
        let mut state = seed;
        while scenes.iter().all(|scene| scene.used < ROOM) {
            let (number, scene) = (next(&mut state), next(&mut state) as usize % 3);
            if number % 3 == 0 { read_all(&mut scenes, scene) } else { scenes[scene].step(number / 3) }
        }
        scenes.iter().for_each(Scene::check);
    }
}

#[test]
fn a_page_is_fetched_while_a_search_runs() {
    let slow = SimulatedDevice::builder(7).latency(Duration::from_micros(1)).jitter(0.0);
    let array = array(slow.device_bandwidth(1_000_000).build());
    let channel = &array.pager().channels()[0];
    let answer = channel.take_pinned(Search::answer_bytes(0) as usize).unwrap();
    let elements = Elements { start: channel.slot_memory(), count: PAGES as u64, stride: PAGE_BYTES };
    let search =
        Search { elements, field_offset: 0, value: &[1], limit: 0, count_all: true, answer: answer.at(0) };
    // The search takes half a millisecond.
    let ticket = channel.queues.between_writes(&[], &mut |queue| queue.submit(&search)).unwrap();
    assert_eq!(array.get(5).unwrap(), 0);
    assert_eq!(channel.device().poll(ticket).unwrap(), QueueProgress::Pending);
    channel.queues.wait(ticket).unwrap();
}

#[test]
fn pages_go_home_side_by_side_unless_others_come_in() {
    let array = array(SimulatedDevice::builder(7).build());
    for is_fetched in [false, true] {
        let mut scene = Scene::new(&array);
        if is_fetched {
            scene.copy_out();
            scene.copies_out.clear();
        }
        let mut queues = HashSet::new();
        for _ in 0..3 {
            scene.copy_in(true);
            queues.extend(scene.copies_in.drain(..).map(|ticket| ticket.queue));
        }
        assert_eq!(queues.len(), if is_fetched { 1 } else { 3 });
        scene.wait(0);
    }
}

#[test]
fn waiting_for_each_submission_needs_one_queue() {
    let array = array(SimulatedDevice::builder(7).build());
    let mut scene = Scene::new(&array);
    for turn in 0..20 {
        if turn % 2 == 0 {
            scene.gather()
        } else {
            scene.copy_out()
        }
        scene.wait(turn);
    }
    assert_eq!(scene.queues.len(), 1);
}

#[test]
fn a_gather_that_is_dropped_leaves_no_queue_busy() {
    let array = array(SimulatedDevice::builder(7).build());
    let fetches = &array.pager().channels()[0].queues.fetches;
    let mut future = Box::pin(array.gather_async(&[3]));
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(fetches.are_busy());
    drop(future);
    assert!(!fetches.are_busy());
}

#[test]
fn a_gather_that_fails_leaves_no_queue_busy() {
    let array = array(SimulatedDevice::builder(7).build());
    let fetches = &array.pager().channels()[0].queues.fetches;
    // A thread that holds a guard does all work itself. It checks the last index while the kernels run.
    let guard = array.page(0).unwrap();
    let mut indices = vec![100; 1_000_000];
    indices.push(PAGES * PAGE_LEN);
    assert!(array.gather(&indices).is_err());
    drop(guard);
    assert!(!fetches.are_busy());
}
