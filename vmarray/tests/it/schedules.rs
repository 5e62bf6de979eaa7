//! Tests with thousands of seeded schedules of delays, reordered completions and failures: no data is lost,
//! and the array reports every failure.

use std::sync::Arc;
use std::time::Duration;
use vmarray::prelude::*;

use crate::common::{Numbers, Shape, together};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::Fault;
use vmarray::host::SimulatedDevice;
use vmarray::{ErrorKind, Field, VirtualArray};
use vmarray_conformance::wrap::Faulty;

/// Possible values of each element: several after a failed operation; any value if the list is empty.
struct Model(Vec<Vec<u32>>);

impl Model {
    fn new(len: usize) -> Self {
        Self(vec![vec![0]; len])
    }

    fn is(&mut self, i: usize, value: u32) {
        self.0[i] = vec![value];
    }

    fn may_be(&mut self, i: usize, value: u32) {
        if !self.0[i].is_empty() {
            self.0[i].push(value);
        }
    }

    /// As [`wrote`](Self::wrote), for work on the device, whose failure leaves any value.
    fn wrote_there(&mut self, range: std::ops::Range<usize>, value: u32, result: &vmarray::Result<()>) {
        range.for_each(|i| self.0[i] = if result.is_ok() { vec![value] } else { vec![] });
    }

    /// Checks that a read value is possible, and fixes it as the only one.
    fn saw(&mut self, i: usize, value: u32) {
        assert!(
            self.0[i].is_empty() || self.0[i].contains(&value),
            "element {i} is {value}, not one of {:?}",
            self.0[i]
        );
        self.is(i, value);
    }

    fn wrote(&mut self, range: std::ops::Range<usize>, value: u32, result: &vmarray::Result<()>) {
        for i in range {
            if result.is_ok() { self.is(i, value) } else { self.may_be(i, value) }
        }
    }
}

fn is_device_error(error: &vmarray::Error) -> bool {
    error.device_error().is_some()
}

fn shape_of(numbers: &mut Numbers) -> Shape {
    Shape::any(numbers, 6, 4)
}

fn simulated(seed: u64, device: usize, failures: f64) -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::builder(seed * 8 + device as u64)
        .bytes(1 << 20)
        .latency(Duration::from_micros(5))
        .jitter(4.0)
        .fault(Fault::anywhere(DeviceErrorKind::CopyFailed).with_chance(failures, seed).reported_later())
        .fault(Fault::anywhere(DeviceErrorKind::Driver).with_chance(failures, !seed))
        .build();
    Arc::new(device)
}

/// Repeats an operation until its device succeeds.
fn insist<R>(mut run: impl FnMut() -> vmarray::Result<R>) -> R {
    loop {
        match run() {
            Ok(value) => return value,
            Err(error) => assert!(is_device_error(&error), "{error:?}"),
        }
    }
}

fn one_schedule(seed: u64, failures: f64) {
    let mut numbers = Numbers::new(seed);
    let shape = shape_of(&mut numbers);
    let len = 1 + numbers.below(60);
    let devices = (0..shape.channels.len()).map(|d| simulated(seed, d, failures)).collect();
    let Ok(array) = shape.describe::<u32, _>(len, devices).build() else { return };
    let mut model = Model::new(len);
    for _ in 0..40 {
        step(&array, &mut model, &mut numbers);
    }
    for round in 0..2 {
        for i in 0..len {
            model.saw(i, insist(|| array.get(i)));
        }
        for value in 0..6 {
            let wanted: Vec<usize> = (0..len).filter(|&i| model.0[i] == [value]).collect();
            assert_eq!(insist(|| array.find(Field::whole(), &value)), wanted, "seed {seed} round {round}");
        }
        insist(|| array.evict(..));
    }
}

fn step(array: &VirtualArray<u32>, model: &mut Model, numbers: &mut Numbers) {
    let len = array.len();
    let at = numbers.below(len);
    let value = numbers.below(6) as u32;
    let range = at..at + numbers.below(len - at + 1);
    let failed = |error: &vmarray::Error| assert!(is_device_error(error), "{error:?}");
    match numbers.below(16) {
        0 | 1 => match array.set(at, value) {
            Ok(()) => model.is(at, value),
            // An operation that failed had no effect.
            Err(error) => failed(&error),
        },
        2 | 3 => match array.get(at) {
            Ok(seen) => model.saw(at, seen),
            Err(error) => failed(&error),
        },
        4 => {
            let result = array.set_uncached(at, value);
            model.wrote_there(at..at + 1, value, &result);
        }
        5 => match array.get_uncached(at) {
            Ok(seen) => model.saw(at, seen),
            Err(error) => failed(&error),
        },
        6 => {
            let result = array.write(range.start, &vec![value; range.len()]);
            if range.len() < 4 * array.page_len() {
                model.wrote(range, value, &result);
            } else {
                // Long ranges go directly to the devices.
                model.wrote_there(range, value, &result);
            }
        }
        7 => {
            let result = array.fill(range.clone(), value);
            model.wrote_there(range, value, &result);
        }
        8 => match array.to_vec(range.clone()) {
            Ok(seen) => range.zip(seen).for_each(|(i, seen)| model.saw(i, seen)),
            Err(error) => failed(&error),
        },
        9 => drop(array.flush(range).inspect_err(failed)),
        10 => drop(array.evict(range).inspect_err(failed)),
        11 => {
            let result = array.discard(range.clone());
            model.wrote(range, 0, &result);
        }
        12 => drop(array.prefetch(range).inspect_err(failed)),
        13 => {
            // One index appears twice, the second time with another value.
            let indices: Vec<usize> = range.clone().chain([at]).collect();
            let mut values = vec![value; indices.len()];
            values[range.len()] = value + 1;
            let result = array.scatter(&indices, &values);
            model.wrote_there(range, value, &result);
            model.wrote_there(at..at + 1, value + 1, &result);
        }
        14 => {
            let indices: Vec<usize> = range.rev().collect();
            match array.gather(&indices) {
                Ok(seen) => indices.into_iter().zip(seen).for_each(|(i, seen)| model.saw(i, seen)),
                Err(error) => failed(&error),
            }
        }
        _ => match array.find(Field::whole(), &value) {
            Ok(found) => {
                for i in 0..len {
                    let sure = model.0[i] == [value];
                    assert!(!sure || found.contains(&i));
                    if found.contains(&i) {
                        model.saw(i, value);
                    }
                }
            }
            Err(error) => failed(&error),
        },
    }
}

/// Range of schedules of a kind: `VMARRAY_TEST_SCHEDULES`, or by default the random cases of `usual`.
fn schedules(usual: u32) -> std::ops::Range<u64> {
    let asked = std::env::var("VMARRAY_TEST_SCHEDULES").ok().and_then(|number| number.parse().ok());
    0..asked.unwrap_or(backend_api::wrap::random_cases(usual).into())
}

#[test]
fn reordered_completions_change_nothing() {
    schedules(500).for_each(|seed| one_schedule(seed, 0.0));
}

#[test]
fn failures_are_reported_and_lose_nothing() {
    schedules(300).for_each(|seed| one_schedule(10_000 + seed, 0.02));
    schedules(100).for_each(|seed| one_schedule(20_000 + seed, 0.2));
}

#[test]
fn threads_on_failing_devices_lose_nothing() {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut numbers = Numbers::new(seed);
        let shape = shape_of(&mut numbers);
        let devices = (0..shape.channels.len()).map(|d| simulated(seed, d, 0.05)).collect();
        let Ok(array) = shape.describe::<u64, _>(40, devices).build() else { continue };
        together(3, |thread| {
            let mut numbers = Numbers::new(seed * 3 + thread as u64);
            for _ in 0..150 {
                let i = numbers.below(40);
                // A failed update had no effect.
                insist(|| array.update(i, |x| x + 1));
                if numbers.below(20) == 0 {
                    let _ = array.evict(..);
                }
            }
        });
        let sum: u64 = (0..40).map(|i| insist(|| array.get(i))).sum();
        assert_eq!(sum, 450, "seed {seed}");
    }
}

/// One channel of three frames on a device with injected failures.
fn faulty() -> (Arc<Faulty<vmarray::host::HostDevice>>, VirtualArray<u32>) {
    let device = Arc::new(Faulty::new(crate::common::host()));
    let array = Shape::one(4, 3).describe::<u32, _>(40, vec![device.clone()]).build().unwrap();
    (device, array)
}

#[test]
fn a_failed_write_back_keeps_the_data_dirty_in_its_frame() {
    for later in [false, true] {
        let (device, array) = faulty();
        array.set(0, 7).unwrap();
        let fault = Fault::anywhere(DeviceErrorKind::CopyFailed);
        device.inject(if later { fault.reported_later() } else { fault });
        let error = array.flush(..).unwrap_err();
        assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::CopyFailed);
        assert_eq!(array.stats().total().failed_write_backs, 1);
        assert_eq!(array.get(0).unwrap(), 7);
        assert!(array.evict(..).is_err());
        device.clear();
        array.evict(..).unwrap();
        assert_eq!(array.stats().total().write_backs, 1);
        assert_eq!(array.get(0).unwrap(), 7);
    }
}

#[test]
fn a_failed_write_back_is_reported_to_the_access_that_needs_the_frame() {
    let (device, array) = faulty();
    for i in 0..3 {
        array.set(4 * i, 7).unwrap();
    }
    device.inject(Fault::anywhere(DeviceErrorKind::CopyFailed));
    let error = array.get(20).unwrap_err();
    assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::CopyFailed);
    assert!((0..3).all(|i| array.get(4 * i).unwrap() == 7), "what is resident stays usable");
    device.clear();
    assert_eq!(array.get(20).unwrap(), 0);
    assert!((0..3).all(|i| array.get(4 * i).unwrap() == 7));
}

#[test]
fn a_failed_load_can_be_tried_again() {
    for later in [false, true] {
        let (device, array) = faulty();
        array.fill(.., 5).unwrap();
        let fault = Fault::anywhere(DeviceErrorKind::CopyFailed);
        device.inject(if later { fault.reported_later() } else { fault });
        assert!(array.get(0).is_err());
        assert!(array.to_vec(..).is_err());
        device.clear();
        assert_eq!(array.to_vec(..).unwrap(), [5; 40]);
    }
}

#[test]
fn a_lost_device_takes_only_its_own_pages() {
    let devices: Vec<_> = (0..2).map(|_| Arc::new(Faulty::new(crate::common::host()))).collect();
    let shape = Shape { page_len: 4, channels: vec![1, 1], frames: 2, read_ahead: false, ..Shape::default() };
    let array = shape.describe::<u32, _>(80, devices.clone()).build().unwrap();
    array.fill(.., 5).unwrap();
    array.set(1, 6).unwrap();
    devices[0].lose();
    assert_eq!(array.get(1).unwrap(), 6, "resident, though its device is gone");
    let error = array.get(8).unwrap_err();
    assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::Lost);
    for page in (1..20).step_by(2) {
        assert_eq!(array.get(4 * page).unwrap(), 5);
        array.set(4 * page, page as u32).unwrap();
    }
    for page in (1..20).step_by(2) {
        assert_eq!(array.get(4 * page).unwrap(), page as u32);
    }
    assert!(array.flush(..).is_err());
    assert_eq!(array.get(1).unwrap(), 6);
    assert!(matches!(array.find(Field::whole(), &5).unwrap_err().kind(), ErrorKind::Device(_)));
}
