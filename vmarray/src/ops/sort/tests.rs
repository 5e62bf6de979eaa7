//! Tests of GPU sorts on machines without a GPU. A simulated device reports itself as a GPU, and the host
//! interprets its kernels.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use backend_api::wrap::{Fault, Operation, SplitMix64, has_all_cases, random_cases};
use backend_api::{Device, DeviceInfo, DeviceKind, ErrorKind as DeviceErrorKind};
use vmarray_conformance::wrap::Faulty;

use super::SortPlan;
#[cfg(feature = "opencl")]
use super::{KeyOrder, SortKey};
use crate::ErrorKind;
use crate::host::HostDevice;
use crate::prelude::*;
use crate::progress::with_progress;

#[derive(Debug)]
pub(crate) struct InterpretedGpu {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
}

impl InterpretedGpu {
    pub(crate) fn new() -> Self {
        Self::of(DeviceKind::DiscreteGpu)
    }

    pub(crate) fn of(kind: DeviceKind) -> Self {
        Self::over(Arc::new(HostDevice::new(64 << 20).unwrap()), kind)
    }

    /// Creates a GPU without forward progress.
    pub(crate) fn without_progress() -> Self {
        let mut device = Self::new();
        device.info.forward_progress = false;
        device
    }

    /// Creates a device that reports this kind, and passes kernels to an inner OpenCL device.
    fn over(inner: Arc<dyn Device>, kind: DeviceKind) -> Self {
        let mut info = inner.info().clone();
        info.kind = kind;
        Self { inner, info }
    }

    /// Returns all OpenCL devices of the machine as GPUs. Each is returned a second time with long memory
    /// split into several allocations.
    #[cfg(feature = "opencl")]
    pub(crate) fn all_in_opencl() -> Vec<Self> {
        use crate::opencl::{OpenClDevice, OpenClOptions, devices};
        let all = [OpenClOptions::new(), OpenClOptions::new().with_largest_allocation_bytes(64 << 10)];
        let open = |options| {
            let open = move |found| OpenClDevice::open(found, options).unwrap();
            devices()
                .iter()
                .map(open)
                .map(|device| Self::over(Arc::new(device), DeviceKind::DiscreteGpu))
                .collect::<Vec<_>>()
        };
        all.iter().flat_map(open).collect()
    }
}

// SAFETY: all calls are passed on unchanged.
unsafe impl Device for InterpretedGpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn reaches(&self, other: &DeviceInfo) -> backend_api::Reach {
        if *other == self.info { backend_api::Reach::Maps } else { backend_api::Reach::No }
    }

    backend_api::forward! { self => self.inner;
        memory create_queue release_queue allocate allocate_extensible extend release
        allocate_host import_host release_host wipe_on_release sync
        prepare kernel_facts
        submit poll wait wake order_after
    }
}

/// Returns keys of a kind: random, few distinct, almost all in one bucket, or in order.
fn keys(random: &mut SplitMix64, len: usize, kind: usize) -> Vec<u64> {
    let key = |at: usize| match kind % 5 {
        0 => random.next(),
        1 => random.next() % 3,
        2 if !random.next().is_multiple_of(50) => 7 << 56 | random.next() >> 12,
        3 => (len - at) as u64,
        4 => (random.next() % 300) << 48,
        _ => random.next(),
    };
    (0..len).map(key).collect()
}

#[test]
fn channels_that_reach_each_other_and_little_room_are_sorted_on_devices() {
    let mut random = SplitMix64::new(11);
    for round in 0..random_cases(48) as usize {
        // The library sorts in place from 10 000 keys of one channel (share of a device) on, so the length
        // selects the algorithm.
        let channels = [1, 1, 2, 3, 4, 5][round % 6];
        let is_in_place = channels == 1 || round % 12 >= 6;
        let len = if is_in_place { channels * 10_001 + random.index(9000) } else { random.index(10_000) };
        let device = Arc::new(Faulty::new(InterpretedGpu::new()));
        let page_len = 1 + random.index(1500);
        let before = channels * page_len * random.index(2);
        let array = |len| {
            let devices = (0..channels).map(|_| Arc::clone(&device));
            VirtualArray::<u64>::builder(len).devices(devices).page_len(page_len).build()
        };
        let (of_keys, of_values) = (array(before + len).unwrap(), array(len + 3).unwrap());
        let unsorted = keys(&mut random, len, round / 6);
        of_keys.write(before, &unsorted).unwrap();
        let mut expected: Vec<(u64, u64)> = unsorted.iter().copied().zip(0..).collect();
        let bytes = of_keys.stats().total().bytes_from_device;
        if round % 2 == 0 {
            of_keys.sort(before..).unwrap();
            expected.sort_unstable();
        } else {
            of_values.write(0, &(0..len as u64).collect::<Vec<_>>()).unwrap();
            of_keys.sort_with(before.., of_values.section_mut(..len).unwrap()).unwrap();
            expected.sort_by_key(|(key, _)| *key);
            let values: Vec<u64> = expected.iter().map(|(_, value)| *value).collect();
            assert!(of_values.to_vec(..len).unwrap() == values, "round {round}: wrong order of {len} values");
        }
        assert_eq!(
            of_keys.stats().total().bytes_from_device,
            bytes,
            "round {round}: the sort copied elements through RAM"
        );
        let sorted: Vec<u64> = expected.into_iter().map(|(key, _)| key).collect();
        assert!(
            of_keys.to_vec(before..).unwrap() == sorted,
            "round {round}: wrong order of {len} keys on {channels} channels"
        );
    }
}

#[test]
fn values_of_other_lengths_move_by_position_on_the_device() {
    let device = Arc::new(InterpretedGpu::new());
    let mut random = SplitMix64::new(5);
    for len in [1, 2, 700, 9000] {
        let of_keys = VirtualArray::<i16>::builder(len + 7).devices([Arc::clone(&device)]).build().unwrap();
        let of_values =
            VirtualArray::<[u32; 3]>::builder(len + 2).devices([Arc::clone(&device)]).page_len(900).build();
        let of_values = of_values.unwrap();
        let mut both: Vec<(i16, [u32; 3])> =
            (0..len as u32).map(|at| (random.next() as i16 % 50, [at, !at, 7])).collect();
        of_keys.write(7, &both.iter().map(|(key, _)| *key).collect::<Vec<_>>()).unwrap();
        of_values.write(2, &both.iter().map(|(_, value)| *value).collect::<Vec<_>>()).unwrap();
        let copied =
            || of_keys.stats().total().bytes_from_device + of_values.stats().total().bytes_from_device;
        let before = copied();
        assert_eq!(of_keys.explain_sort(7.., Some(12)).unwrap(), SortPlan::OnDevices);
        of_keys.sort_with(7.., of_values.section_mut(2..).unwrap()).unwrap();
        assert_eq!(copied(), before, "{len} elements passed through RAM");
        both.sort_by_key(|(key, _)| *key);
        let (keys, values): (Vec<i16>, Vec<[u32; 3]>) = both.into_iter().unzip();
        assert!(of_keys.to_vec(7..).unwrap() == keys && of_values.to_vec(2..).unwrap() == values, "{len}");
    }
}

#[test]
fn kernels_that_do_not_wait_sort_on_a_device_without_progress() {
    let device = Arc::new(InterpretedGpu::without_progress());
    let mut random = SplitMix64::new(19);
    let array = |len| VirtualArray::<i16>::builder(len).devices([Arc::clone(&device)]).build().unwrap();
    let of_keys = array(9000);
    let unsorted: Vec<i16> = (0..9000).map(|_| random.next() as i16).collect();
    of_keys.write(0, &unsorted).unwrap();
    let bytes = of_keys.stats().total().bytes_from_device;
    of_keys.sort(..).unwrap();
    assert_eq!(of_keys.stats().total().bytes_from_device, bytes, "through RAM");
    let mut expected = unsorted;
    expected.sort_unstable();
    assert!(of_keys.to_vec(..).unwrap() == expected);
}

#[test]
fn runs_and_prefix_sums_are_found_on_cards() {
    find_runs_and_prefix_sums(&Arc::new(InterpretedGpu::new()), 3);
    find_runs_and_prefix_sums(&Arc::new(InterpretedGpu::without_progress()), 5);
}

fn find_runs_and_prefix_sums(device: &Arc<InterpretedGpu>, step: usize) {
    let mut random = SplitMix64::new(14);
    for round in (0..40).step_by(step) {
        let (channels, len) = ([1, 1, 2, 3][round % 4], random.index(9000));
        let devices = (0..channels).map(|_| Arc::clone(device));
        let array = VirtualArray::<u32>::builder(len).devices(devices).page_len(1 + random.index(700));
        let array = array.build().unwrap();
        let most = [1, 5, 4000, u32::MAX][round / 4 % 4];
        let mut elements: Vec<u32> = (0..len).map(|_| random.next() as u32 % most).collect();
        array.write(0, &elements).unwrap();
        let mut expected = BTreeMap::<u32, Vec<u64>>::new();
        for (index, element) in (0..).zip(&elements) {
            expected.entry(*element).or_default().push(index);
        }
        let (keys, order): (Vec<u32>, Vec<Vec<u64>>) = expected.into_iter().unzip();
        let mut starts = vec![0];
        starts.extend(order.iter().scan(0, |end, of| {
            *end += of.len() as u64;
            Some(*end)
        }));
        assert!(array.unique(..).unwrap().to_vec(..).unwrap() == keys, "wrong elements in round {round}");
        let groups = array.group_by(.., Field::<u32, u32>::whole()).unwrap();
        assert!(groups.keys().to_vec(..).unwrap() == keys, "wrong elements in round {round}");
        assert!(groups.starts().to_vec(..).unwrap() == starts, "wrong elements in round {round}");
        assert!(
            groups.order().unwrap().to_vec(..).unwrap() == order.concat(),
            "wrong elements in round {round}"
        );
        let (start, is_exclusive) = (random.index(len + 1), round % 3 == 0);
        let mut sum = 0_u32;
        for element in &mut elements[start..] {
            let before = sum;
            sum = sum.wrapping_add(*element);
            *element = if is_exclusive { before } else { sum };
        }
        let all = if is_exclusive { array.exclusive_prefix_sum(start..) } else { array.prefix_sum(start..) };
        assert_eq!(all.unwrap(), sum, "wrong elements in round {round}");
        assert!(array.to_vec(..).unwrap() == elements, "wrong elements in round {round}");
    }
}

/// Sorts keys by kernels in OpenCL C, with values and without, on one channel and on several.
#[cfg(feature = "opencl")]
fn sort_in_opencl<K: SortKey + PartialEq, V: Element + PartialEq + std::fmt::Debug>(
    device: &Arc<InterpretedGpu>,
    key_of: impl Fn(u64) -> K,
    value_of: impl Fn(u64) -> V,
) {
    let mut random = SplitMix64::new(15);
    for round in 0..8 {
        let (channels, len) = ([1, 3][round % 2], [4096, 4097, 1, random.index(20_000)][round / 2]);
        let devices = || (0..channels).map(|_| Arc::clone(device));
        let page_len = 1 + random.index(5000);
        let of_keys = VirtualArray::<K>::builder(len).devices(devices()).page_len(page_len).build().unwrap();
        let of_values =
            VirtualArray::<V>::builder(len).devices(devices()).page_len(page_len).build().unwrap();
        let unsorted: Vec<K> = keys(&mut random, len, round).into_iter().map(&key_of).collect();
        let numbers: Vec<V> = (0..len as u64).map(&value_of).collect();
        let order = KeyOrder::of::<K>(false);
        let ordered = |key: &K| order.key::<K::KeyBits>(bytemuck::cast(*key));
        let mut expected: Vec<(K, V)> = unsorted.iter().copied().zip(numbers.iter().copied()).collect();
        expected.sort_by_key(|(key, _)| ordered(key));
        let (sorted, sorted_values): (Vec<K>, Vec<V>) = expected.into_iter().unzip();
        for has_values in [false, true] {
            of_keys.write(0, &unsorted).unwrap();
            of_values.write(0, &numbers).unwrap();
            let read = of_keys.stats().total().bytes_from_device;
            match (has_values, round % 3 == 0) {
                (true, _) => of_keys.sort_with(.., &of_values),
                (false, true) => of_keys.sort_descending(..),
                (false, false) => of_keys.sort(..),
            }
            .unwrap();
            assert_eq!(
                of_keys.stats().total().bytes_from_device,
                read,
                "round {round}: the sort copied elements through RAM"
            );
            let mut found: Vec<u64> = of_keys.to_vec(..).unwrap().iter().map(ordered).collect();
            if !has_values && round % 3 == 0 {
                found.reverse();
            }
            assert!(
                found == sorted.iter().map(ordered).collect::<Vec<_>>(),
                "round {round}: wrong order of {len} keys"
            );
            if has_values {
                assert!(
                    of_values.to_vec(..).unwrap() == sorted_values,
                    "round {round}: wrong order of {len} values"
                );
            }
        }
    }
}

#[cfg(feature = "opencl")]
#[test]
fn kernels_in_opencl_c_sort_keys_of_all_types() {
    let devices = InterpretedGpu::all_in_opencl();
    let count = random_cases(devices.len() as u32) as usize;
    for device in devices.into_iter().take(count).map(Arc::new) {
        sort_in_opencl(&device, |key| (key >> 56) as u8, |number| number as u32);
        sort_in_opencl(&device, |key| (key >> 48) as i16, |number| number);
        sort_in_opencl(&device, |key| (key >> 32) as u32, |number| number as u32);
        sort_in_opencl(&device, |key| f32::from_bits((key >> 32) as u32), |number| number);
        sort_in_opencl(&device, |key| key as i64, |number| number as i32);
        sort_in_opencl(&device, |key| f64::from_bits(key.rotate_left(11)), |number| number);
        find_runs_and_prefix_sums(&device, if has_all_cases() { 1 } else { 5 });
    }
}

#[cfg(feature = "opencl")]
#[test]
fn what_lies_in_several_pieces_is_sorted_in_place() {
    let Some(device) = InterpretedGpu::all_in_opencl().pop() else { return };
    let mut random = SplitMix64::new(18);
    // The array has three full shares (contiguous parts) of 32 Ki keys, and a shorter last share.
    let array = VirtualArray::<u16>::builder(101_000).devices([Arc::new(device)]).page_len(3000);
    let (array, mut expected) = (array.build().unwrap(), Vec::new());
    expected.resize_with(101_000, || random.next() as u16);
    array.write(0, &expected).unwrap();
    array.flush(..).unwrap();
    let bytes = array.stats().total().bytes_from_device;
    array.sort(..).unwrap();
    assert_eq!(array.stats().total().bytes_from_device, bytes, "through RAM");
    expected.sort_unstable();
    assert!(array.to_vec(..).unwrap() == expected);
}

#[test]
fn what_fails_leaves_the_keys_in_some_order() {
    let mut random = SplitMix64::new(12);
    let (mut failed, mut lost) = (0, 0);
    let rounds = random_cases(300) as usize;
    for round in 0..rounds {
        let channels = 1 + round % 3;
        let is_in_place = channels == 1 || round % 12 < 3;
        let len = if is_in_place { channels * 10_001 + random.index(9000) } else { 5000 };
        let device = Arc::new(Faulty::new(InterpretedGpu::new()));
        let devices = (0..channels).map(|_| Arc::clone(&device));
        let array = VirtualArray::<u64>::builder(len).devices(devices).page_len(700);
        let array = array.build().unwrap();
        let mut expected = keys(&mut random, len, round);
        array.write(0, &expected).unwrap();
        array.flush(..).unwrap();
        let operation = [Operation::Launch, Operation::Submit, Operation::Fill][random.index(3)];
        let fault = Fault::new(operation, DeviceErrorKind::CopyFailed).on_call(1 + random.next() % 60);
        device.inject(if round % 2 == 0 { fault } else { fault.reported_later() });
        let outcome = array.sort(..);
        device.clear();
        let found = array.to_vec(..).unwrap();
        expected.sort_unstable();
        match outcome {
            Ok(()) => assert!(found == expected, "wrong elements in round {round}"),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted { .. }) => lost += 1,
            Err(_) => {
                failed += 1;
                let mut found = found;
                found.sort_unstable();
                assert!(
                    found == expected,
                    "round {round}: wrong elements after a failed {operation:?} on {channels} channels"
                );
            }
        }
    }
    assert!(
        failed > rounds / 6 && lost == 0,
        "too few failed sorts ({failed}), or sorts lost elements ({lost})"
    );
}

#[test]
fn sorts_tell_how_far_they_are_and_stop_when_the_program_says_so() {
    let mut random = SplitMix64::new(13);
    // Test three algorithms: sorts in device memory, sorts in place, and sorts through RAM.
    let (card, other) = (DeviceKind::DiscreteGpu, DeviceKind::Cpu);
    let kinds = [(1, 5000, card), (3, 3000, card), (1, 11_000, card), (2, 21_000, card), (2, 3000, other)];
    for (kind, (channels, len, of)) in kinds.into_iter().enumerate() {
        // Two digits differ, so there are two passes, which the host interprets.
        let unsorted: Vec<u64> =
            keys(&mut random, len, 0).iter().map(|key| key & (255 << 56 | 255)).collect();
        let mut sorted: Vec<(u64, u64)> = unsorted.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        let mut stops = 0;
        loop {
            let device = Arc::new(InterpretedGpu::of(of));
            let array = || {
                let devices = (0..channels).map(|_| Arc::clone(&device));
                VirtualArray::<u64>::builder(len).devices(devices).page_len(700).build().unwrap()
            };
            let (of_keys, of_values, has_values) = (array(), array(), stops % 2 == 1);
            of_keys.write(0, &unsorted).unwrap();
            of_values.write(0, &(0..len as u64).collect::<Vec<_>>()).unwrap();
            let mut told = Vec::new();
            let outcome = with_progress(
                |progress| {
                    told.push(progress);
                    if told.len() > stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                },
                || if has_values { of_keys.sort_with(.., &of_values) } else { of_keys.sort(..) },
            );
            let done: Vec<u64> = told.iter().map(|progress| progress.done_bytes).collect();
            assert!(done.is_sorted(), "{done:?}");
            let mut found: Vec<(u64, u64)> =
                of_keys.to_vec(..).unwrap().into_iter().zip(of_values.to_vec(..).unwrap()).collect();
            if outcome.is_ok() {
                assert!(told.last().is_some_and(|last| last.done_bytes == last.all_bytes), "{told:?}");
                assert!(stops > 2, "kind {kind}: the sort reported progress at most {stops} times");
                break;
            }
            assert_eq!(
                *outcome.unwrap_err().kind(),
                ErrorKind::Cancelled,
                "wrong outcome of sort {kind}, cancelled at report {stops}"
            );
            if has_values {
                found.sort_unstable();
            } else {
                let mut of_keys: Vec<u64> = found.iter().map(|(key, _)| *key).collect();
                of_keys.sort_unstable();
                found = of_keys.into_iter().zip(sorted.iter().map(|(_, value)| *value)).collect();
            }
            assert!(found == sorted, "wrong outcome of sort {kind}, cancelled at report {stops}");
            stops += 1 + if has_all_cases() { stops / 3 } else { stops };
        }
    }
}
