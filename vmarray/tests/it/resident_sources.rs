//! Tests that kernels use the copies of a source on devices, and leave copies there, as queries do.

use std::sync::Arc;

use vmarray::AnyDevice;
use vmarray::kernel::{Anywhere, Append, Appended, At, Own, Session, Shared, Window};
use vmarray::prelude::*;

use crate::common::devices;

const LEN: usize = 20_000;
const BYTES: u64 = LEN as u64 * 4;
/// Elements of a page, and of one of its 64 blocks.
const PAGE: usize = 1024;
const BLOCK: usize = PAGE / 64;

fn source(devices: &[Arc<AnyDevice>], first: u32) -> Source<u32> {
    let values: Vec<u32> = (first..first + LEN as u32).collect();
    Source::builder(values).devices(devices.iter().cloned()).page_len(PAGE).build().unwrap()
}

fn array(devices: &[Arc<AnyDevice>]) -> VirtualArray<u32> {
    VirtualArray::builder(LEN).devices(devices.iter().cloned()).page_len(PAGE).build().unwrap()
}

/// Bytes copied to and from devices since the last call.
fn copied(source: &Source<u32>) -> (u64, u64) {
    let total = source.stats().total();
    source.reset_stats();
    (total.bytes_to_device, total.bytes_from_device)
}

/// Bytes of an array that went through the host since the last question.
fn through_host(array: &VirtualArray<u32>) -> (u64, u64) {
    let total = array.stats().total();
    array.reset_stats();
    (total.bytes_to_device, total.bytes_through_host)
}

#[vmarray::kernel]
fn copied_beside(x: &Own<u32>, out: &mut Own<u32>) {
    out.set(x.get() + 1);
}

#[vmarray::kernel]
fn read_anywhere(at: At<1>, x: &Anywhere<u32>, out: &mut Own<u32>) {
    out.set(x[x.len() - 1 - at.index()]);
}

#[vmarray::kernel]
fn read_around(at: At<1>, x: &Window<u32, 1>, out: &mut Own<u32>) {
    out.set(x[at]);
}

#[vmarray::kernel]
fn grown(by: u32, x: &mut Own<u32>) {
    x.set(x.get() + by);
}

#[vmarray::kernel]
fn both(x: &mut Own<u32>, y: &mut Own<u32>) {
    x.set(x.get() + 1);
    y.set(y.get() + x.get());
}

#[vmarray::kernel]
fn counted(x: &Own<u32>, bins: &Shared<u32>) {
    bins.add((x.get() % 20_000) as usize, 1);
}

#[vmarray::kernel]
fn summed(x: &Own<u32>, y: &Own<u32>) -> u64 {
    x.get() as u64 * 2 + y.get() as u64
}

#[vmarray::kernel]
fn found(x: &Anywhere<u32>, of: &Own<u32>, all: &Append<u32>) {
    if of.get() % 5000 == 0 {
        all.push(x[of.get() as usize % x.len()]);
    }
}

/// Runs a launch: all of a source goes to the device the first time, nothing the second time, and blocks that
/// the program has changed the third time.
fn copies_once(x: &Source<u32>, outs: &[&VirtualArray<u32>], launch: &dyn Fn()) {
    copied(x);
    outs.iter().for_each(|out| out.reset_stats());
    launch();
    assert_eq!(copied(x).0, BYTES, "the first time");
    launch();
    assert_eq!(copied(x).0, 0, "the second time");
    x.set_at_home(5, 7);
    x.set_at_home(3 * PAGE + 100, 8);
    launch();
    assert_eq!(copied(x).0, 2 * BLOCK as u64 * 4, "what the program has changed");
    assert!(outs.iter().all(|out| through_host(out) == (0, 0)), "nothing goes through the host");
}

trait SetAtHome {
    fn set_at_home(&self, at: usize, value: u32);
}

impl SetAtHome for Source<u32> {
    fn set_at_home(&self, at: usize, value: u32) {
        self.section_mut(..).unwrap().set(at, value).unwrap();
    }
}

#[test]
fn arguments_that_are_read_are_copied_once() {
    for channels in [1, 2] {
        let on = vec![devices(1)[0].clone(); channels];
        let out = array(&on);
        let into = || out.section_mut(..).unwrap();
        let x = source(&on, 0);
        copies_once(&x, &[&out], &|| copied_beside::run((&x, into())).unwrap());
        assert_eq!(out.to_vec(4..7).unwrap(), [5, 8, 7]);
        let x = source(&on, 0);
        copies_once(&x, &[&out], &|| read_anywhere::run((&x, into())).unwrap());
        assert_eq!(out.get(LEN - 6).unwrap(), 7);
        let x = source(&on, 0);
        copies_once(&x, &[&out], &|| read_around::run((x.window(0), into())).unwrap());
        assert_eq!(out.to_vec(4..7).unwrap(), [4, 7, 6]);
        let x = source(&on, 0);
        copies_once(&x, &[&out], &|| {
            futures::executor::block_on(read_anywhere::run_async((&x, into()))).unwrap();
        });
        let (x, y) = (source(&on, 0), source(&on, 9));
        copies_once(&x, &[], &|| assert!(summed::sum((&x, &y)).unwrap() > 0));
        let expected: i128 = (0..LEN).map(|at| 2 * i128::from(x.get(at).unwrap()) + at as i128 + 9).sum();
        assert_eq!(summed::sum((&x, &y)).unwrap(), expected);
        let numbers = source(&on, 0);
        x.evict(..).unwrap();
        copies_once(&x, &[], &|| found::run((&x, &numbers, Appended::to(&mut Vec::new(), 9))).unwrap());
    }
}

#[test]
fn results_stay_on_the_device_until_they_are_read() {
    let on = devices(1);
    let (x, y, out) = (source(&on, 0), source(&on, 100), array(&on));
    let launch = || {
        both::run((x.section_mut(..).unwrap(), y.section_mut(..).unwrap())).unwrap();
        grown::run((2, x.section_mut(..).unwrap())).unwrap();
    };
    launch();
    assert_eq!((copied(&x), copied(&y)), ((BYTES, 0), (BYTES, 0)));
    launch();
    copied_beside::run((&y, out.section_mut(..).unwrap())).unwrap();
    assert_eq!((copied(&x), copied(&y)), ((0, 0), (0, 0)));
    assert_eq!((x.get(10).unwrap(), y.get(10).unwrap()), (16, 110 + 11 + 14));
    assert_eq!(out.get(10).unwrap(), 136);
    assert_eq!((copied(&x), copied(&y)), ((0, 4 * BLOCK as u64), (0, 4 * BLOCK as u64)));
}

#[test]
fn shared_elements_stay_on_the_device() {
    let on = devices(1);
    let (x, mut bins) = (source(&on, 0), source(&on, 0));
    for _ in 0..3 {
        counted::run((&x, &mut bins)).unwrap();
    }
    // Only the reports of the launches are copied back.
    assert_eq!((copied(&x).0, copied(&bins)), (BYTES, (BYTES, 0)));
    assert_eq!(bins.get(77).unwrap(), 80);
    assert_eq!(copied(&bins), (0, 4 * BLOCK as u64));
}

#[test]
fn sessions_take_copies_from_the_device() {
    let on = devices(1);
    let (x, mut out) = (source(&on, 0), array(&on));
    assert_eq!(x.count_where(.., Field::whole().lt(10)).unwrap(), 10);
    copied(&x);
    for _ in 0..2 {
        let mut session = Session::new();
        let into = session.hold(&mut out).unwrap();
        let from = session.copy(&x).unwrap();
        copied_beside::run_in(&mut session, (from, into)).unwrap();
        session.finish().unwrap();
    }
    assert_eq!(copied(&x), (0, 0));
    assert_eq!(out.get(9).unwrap(), 10);
}

/// A source that has more pages than the device has slots for it.
#[test]
fn sources_with_few_slots_are_read_a_part_at_a_time() {
    let on = devices(1);
    let values: Vec<u32> = (0..LEN as u32).collect();
    let x =
        Source::builder(values).devices(on.clone()).page_len(PAGE).device_bytes(3 * 4096).build().unwrap();
    let out = array(&on);
    for _ in 0..2 {
        read_anywhere::run((&x, out.section_mut(..).unwrap())).unwrap();
        both::run((out.section_mut(..).unwrap(), x.section_mut(..).unwrap())).unwrap();
    }
    let mut expected: Vec<u32> = (0..LEN as u32).collect();
    for _ in 0..2 {
        let taken: Vec<u32> = expected.iter().rev().map(|x| x + 1).collect();
        expected.iter_mut().zip(taken).for_each(|(x, taken)| *x += taken);
    }
    assert_eq!(x.to_vec(..).unwrap(), expected);
}
