//! Tests of copies from device to device: their routes and the copied values.

use std::sync::Arc;
use std::time::Duration;

use vmarray::boundary::Circular;
use vmarray::device::{Device, Reach};
use vmarray::host::{HostDevice, SimulatedDevice, SimulatedFabric};
use vmarray::kernel::{Anywhere, At, Own, Window};
use vmarray::prelude::*;
use vmarray_conformance::wrap::Counting;

use crate::common::Shape;

const LEN: usize = 3000;

/// Devices of one kind; some can access the others.
pub enum Devices {
    Host(Vec<Arc<Counting<HostDevice>>>),
    Simulated(Vec<Arc<Counting<SimulatedDevice>>>, SimulatedFabric),
}

impl Devices {
    pub fn host(count: usize) -> Self {
        let device = |_| HostDevice::builder().bytes(64 << 20).threads(1).build().unwrap();
        Self::Host((0..count).map(|number| Arc::new(Counting::new(device(number)))).collect())
    }

    pub fn simulated(count: usize, reach: Reach) -> Self {
        let fabric = SimulatedFabric::new(reach, 1_000_000_000, Duration::from_micros(5));
        let device = |seed| SimulatedDevice::builder(seed).bytes(64 << 20).fabric(&fabric).build();
        let devices = (0..count as u64).map(|seed| Arc::new(Counting::new(device(seed))));
        Self::Simulated(devices.collect(), fabric)
    }

    /// An array on some of them, with all elements written back.
    pub fn array<T: Element>(&self, on: &[usize], page_len: usize, values: &[T]) -> VirtualArray<T> {
        let shape = Shape { page_len, channels: vec![1; on.len()], ..Shape::default() };
        let array = self.build(&shape, on, values.len());
        array.write(0, values).unwrap();
        array.flush(..).unwrap();
        self.through_host();
        array
    }

    /// An array on some of them that was never written.
    pub fn build<T: Element>(&self, shape: &Shape, on: &[usize], len: usize) -> VirtualArray<T> {
        let builder = match self {
            Self::Host(all) => shape.describe(len, on.iter().map(|at| all[*at].clone()).collect()),
            Self::Simulated(all, _) => shape.describe(len, on.iter().map(|at| all[*at].clone()).collect()),
        };
        builder.build().unwrap()
    }

    /// Bytes of copies to and from devices since the last call.
    pub fn through_host(&self) -> (u64, u64) {
        fn sum<D: Device>(devices: &[Arc<Counting<D>>]) -> (u64, u64) {
            let work = devices.iter().map(|device| device.reset().work);
            work.fold((0, 0), |sum, work| (sum.0 + work.upload_bytes, sum.1 + work.download_bytes))
        }
        match self {
            Self::Host(devices) => sum(devices),
            Self::Simulated(devices, _) => sum(devices),
        }
    }
}

/// Makes the first use of each link, which goes through the host.
pub fn warm(devices: &Devices, on: &[usize]) {
    for a in on {
        for b in on {
            let (one, other) = (devices.array(&[*a], 10, &[1_u8; 40]), devices.array(&[*b], 7, &[2_u8; 40]));
            let joined = one.join((&other,)).unwrap();
            let (x, y) = joined.rows();
            joined.transform(.., x.set(Field::whole(), y.get(Field::whole()))).unwrap();
            assert_eq!(one.to_vec(..).unwrap(), [2; 40]);
        }
    }
    devices.through_host();
}

pub fn numbers(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect()
}

/// Devices of two arrays: of the target or queried one, and of the other operand.
const PLACES: [(&[usize], &[usize]); 5] =
    [(&[0], &[1]), (&[0, 1], &[2]), (&[2], &[1, 0]), (&[0, 1, 2], &[3, 4]), (&[1, 0], &[0, 1])];

#[test]
fn elements_go_past_the_host_where_devices_reach_each_other() {
    for devices in
        [Devices::host(5), Devices::simulated(5, Reach::Maps), Devices::simulated(5, Reach::Copies)]
    {
        warm(&devices, &[0, 1, 2, 3, 4]);
        for (target, beside) in PLACES {
            let values = numbers(LEN);
            let (out, of) =
                (devices.array(target, 64, &vec![1_u32; LEN]), devices.array(beside, 100, &values));
            of.reset_stats();
            let joined = out.join((&of,)).unwrap();
            let (x, y) = joined.rows();
            joined.transform(.., x.set(Field::whole(), y.get(Field::whole()) + 1)).unwrap();
            assert_eq!(devices.through_host(), (0, 0), "an assignment, {target:?} {beside:?}");
            // Each of the target's devices has a whole part.
            let bytes = (4 * LEN * target.len()) as u64;
            assert_eq!(of.stats().total().bytes_past_host, bytes, "{target:?} {beside:?}");
            let truth: Vec<u32> = values.iter().map(|value| value.wrapping_add(1)).collect();
            assert_eq!(out.to_vec(..).unwrap(), truth, "{target:?} {beside:?}");
            out.evict(..).unwrap();
            devices.through_host();
            // Only the result goes to the host.
            let differs =
                joined.count_where(.., x.get(Field::whole()).ne(y.get(Field::whole()) + 1)).unwrap();
            assert_eq!(differs, 0);
            let (up, down) = devices.through_host();
            assert!(up == 0 && down < 10_000, "a question: {up} bytes up, {down} down");
        }
    }
}

#[test]
fn copies_between_devices_contain_changes_in_the_cache() {
    let devices = Devices::host(2);
    let (out, of) = (devices.array(&[0], 64, &[0_u32; LEN]), devices.array(&[1], 100, &numbers(LEN)));
    let joined = out.join((&of,)).unwrap();
    let (x, y) = joined.rows();
    for round in 0..20 {
        of.set(round * 7, 5).unwrap();
        joined.transform(.., x.set(Field::whole(), y.get(Field::whole()))).unwrap();
        assert_eq!(out.to_vec(..).unwrap(), of.to_vec(..).unwrap());
    }
    // Within one array, the update reads the values from before the operation.
    let (ahead, behind) = (out.section_mut(1..).unwrap(), out.section(..LEN - 1).unwrap());
    let before = out.to_vec(..).unwrap();
    let moved = ahead.join((behind,)).unwrap();
    let (x, y) = moved.rows();
    moved.transform(.., x.set(Field::whole(), y.get(Field::whole()))).unwrap();
    assert_eq!(out.to_vec(1..).unwrap(), before[..LEN - 1]);
}

#[vmarray::kernel]
fn combined(at: At<1>, near: &Window<u32, 1>, far: &Anywhere<u32>, own: &Own<u32>, out: &mut Own<u32>) {
    let i = at.index();
    out.set(near[at.plus(-1)] ^ near[at.plus(1)] ^ far[(i * 17) % far.len()] ^ own.get());
}

#[test]
fn kernels_read_elements_of_other_devices() {
    for devices in [
        Devices::host(5),
        Devices::simulated(5, Reach::Maps),
        Devices::simulated(5, Reach::Copies),
        Devices::simulated(5, Reach::No),
    ] {
        warm(&devices, &[0, 1, 2, 3, 4]);
        for (target, beside) in PLACES {
            let values = numbers(LEN);
            let mut out = devices.array(target, 64, &vec![0_u32; LEN]);
            let of = devices.array(beside, 100, &values);
            combined::run((of.bounded(Circular).window(1), &of, &of, &mut out)).unwrap();
            let truth: Vec<u32> = (0..LEN)
                .map(|i| {
                    values[(i + LEN - 1) % LEN] ^ values[(i + 1) % LEN] ^ values[i * 17 % LEN] ^ values[i]
                })
                .collect();
            assert_eq!(out.to_vec(..).unwrap(), truth, "{target:?} {beside:?}");
        }
    }
}

#[test]
fn a_broken_link_is_found_before_it_is_used() {
    let devices = Devices::simulated(3, Reach::Maps);
    let Devices::Simulated(all, fabric) = &devices else { unreachable!() };
    fabric.break_link(all[0].info(), all[1].info());
    for (beside, is_past_host) in [(1, false), (2, true), (1, false)] {
        warm(&devices, &[0, 2]);
        let (out, of) =
            (devices.array(&[0], 64, &[0_u32; LEN]), devices.array(&[beside], 100, &numbers(LEN)));
        for round in 0..2 {
            let joined = out.join((&of,)).unwrap();
            let (x, y) = joined.rows();
            joined.transform(.., x.set(Field::whole(), y.get(Field::whole()))).unwrap();
            let (up, _) = devices.through_host();
            assert_eq!(up == 0, is_past_host, "round {round}: {up} bytes through the host");
            assert_eq!(out.to_vec(..).unwrap(), numbers(LEN));
            devices.through_host();
        }
        let bytes = of.stats().total().bytes_past_host;
        assert_eq!(bytes > 0, is_past_host, "{bytes} bytes past the host");
    }
}

#[test]
fn a_device_that_is_lost_is_an_error_and_no_harm() {
    let devices = Devices::simulated(2, Reach::Maps);
    let Devices::Simulated(all, _) = &devices else { unreachable!() };
    let (out, of) = (devices.array(&[0], 64, &[7_u32; LEN]), devices.array(&[1], 100, &numbers(LEN)));
    warm(&devices, &[0, 1]);
    all[1].inner().lose();
    let joined = out.join((&of,)).unwrap();
    let (x, y) = joined.rows();
    let error = joined.transform(.., x.set(Field::whole(), y.get(Field::whole()))).unwrap_err();
    assert!(matches!(error.kind(), vmarray::ErrorKind::Device(_)), "{error}");
    assert_eq!(out.to_vec(..).unwrap(), [7; LEN]);
    let (only, value) = (out.section(..).unwrap(), Field::whole());
    assert_eq!(only.count_where(.., value.eq(7)).unwrap(), LEN);
}
