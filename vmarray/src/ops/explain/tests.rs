//! Tests that compare predictions with the counters of arrays, and with the clock of simulated devices.

use std::sync::Arc;
use std::time::Duration;

use backend_host::SimulatedDevice;

use super::*;
use crate::base::stats::ChannelStats;
use crate::prelude::*;

const PAGE_LEN: usize = 16;
const PAGES: usize = 40;

fn devices(count: u64) -> Vec<Arc<SimulatedDevice>> {
    (0..count).map(|seed| Arc::new(SimulatedDevice::builder(seed).build())).collect()
}

/// Pages in all states: absent with and without contents, clean, dirty, and a few that are written in part.
fn in_all_states(seed: u64, frames: usize) -> VirtualArray<u32, SimulatedDevice> {
    let builder = VirtualArray::<u32>::builder(PAGE_LEN * PAGES - 5).devices(devices(2)).page_len(PAGE_LEN);
    let array = builder.frames_per_channel(frames).read_ahead(false).build().unwrap();
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize % limit
    };
    for page in 0..PAGES {
        let index = page * PAGE_LEN + below(PAGE_LEN - 5);
        match below(5) {
            0 => {}
            1 => array.set(index, 7).unwrap(),
            choice => {
                array.set(index, 8).unwrap();
                array.section(index..index + 1).unwrap().evict(..).unwrap();
                if choice == 2 {
                    array.get(index).unwrap();
                }
            }
        }
    }
    array
}

fn counted(array: &VirtualArray<u32, SimulatedDevice>, run: impl FnOnce()) -> ChannelStats {
    let watch = array.watch();
    run();
    watch.report().stats.total()
}

#[test]
fn plans_predict_the_counts() {
    for seed in 1..30 {
        let of = |seed: u64, salt: u64| (seed.wrapping_mul(salt) % 300) as usize;
        let range = of(seed, 77)..300 + of(seed, 131);
        let list: Vec<usize> = (0..50).map(|at| (at * 37 + seed as usize) % range.len()).collect();
        let plan = |array: &VirtualArray<u32, SimulatedDevice>, work| {
            let plan = array.explain(range.clone(), work).unwrap();
            let pages: Vec<usize> = (range.start / PAGE_LEN..range.end.div_ceil(PAGE_LEN)).collect();
            assert!(plan.pages as usize <= pages.len() && plan.dirty <= plan.resident, "{plan}");
            plan
        };
        let moved = |stats: &ChannelStats| (stats.bytes_to_device, stats.bytes_from_device);
        let planned = |plan: &Explained| (plan.bytes_to_device(), plan.bytes_from_device());

        let array = in_all_states(seed, PAGES);
        let read = plan(&array, Work::Read);
        let stats = counted(&array, || drop(array.to_vec(range.clone()).unwrap()));
        assert_eq!((moved(&stats), read.route), (planned(&read), PlannedRoute::ThroughCache), "{read}");
        assert_eq!(read.bytes_in_ram, 4 * range.len() as u64);

        let array = in_all_states(seed, PAGES);
        let gather = plan(&array, Work::Gather(&list));
        let section = array.section(range.clone()).unwrap();
        assert_eq!(section.explain(.., Work::Gather(&list)).unwrap(), gather, "indices count from its first");
        let stats = counted(&array, || drop(section.gather(&list).unwrap()));
        assert_eq!(moved(&stats), planned(&gather), "{gather}");

        let array = in_all_states(seed, PAGES);
        let ask = plan(&array, Work::Ask);
        let stats =
            counted(&array, || assert!(array.count_where(range.clone(), Field::whole().gt(7)).unwrap() > 0));
        assert_eq!(
            (stats.bytes_to_device, stats.bytes_in_place),
            (ask.bytes_to_device(), ask.bytes_in_place()),
            "{ask}"
        );

        let array = in_all_states(seed, PAGES);
        let change = plan(&array, Work::Change);
        let rule = Field::whole().set(Field::whole() + 1);
        let stats = counted(&array, || array.transform(range.clone(), rule).unwrap());
        assert_eq!(
            (stats.bytes_to_device, stats.bytes_in_place),
            (change.bytes_to_device(), change.bytes_in_place()),
            "{change}"
        );

        let array = in_all_states(seed, PAGES);
        array.flush(..).unwrap();
        let write = plan(&array, Work::Write);
        let stats = counted(&array, || {
            array.write(range.start, &vec![9; range.len()]).unwrap();
            array.flush(..).unwrap();
        });
        assert_eq!(moved(&stats), planned(&write), "{write}");
    }
}

#[test]
fn long_ranges_are_predicted_to_bypass_the_cache() {
    let array = in_all_states(3, 2);
    array.fill(.., 1).unwrap();
    array.evict(..).unwrap();
    for work in [Work::Read, Work::Write] {
        let plan = array.explain(.., work).unwrap();
        assert_eq!((plan.route, plan.resident), (PlannedRoute::PastCache, 0));
        let stats = counted(&array, || match work {
            Work::Read => drop(array.to_vec(..).unwrap()),
            _ => array.write(0, &vec![5; array.len()]).unwrap(),
        });
        let moved = (stats.bytes_to_device, stats.bytes_from_device);
        assert_eq!(
            (moved, stats.bypasses),
            ((plan.bytes_to_device(), plan.bytes_from_device()), PAGES as u64)
        );
    }
    assert!(array.explain(5..1000, Work::Read).is_err());
    assert!(array.explain(..10, Work::Gather(&[3, 10])).is_err());
}

/// A device whose speed is known to the nanosecond, and an array on it that is all at home.
fn timed(pages: usize) -> (Arc<SimulatedDevice>, VirtualArray<u64, SimulatedDevice>) {
    let call = Duration::from_micros(20);
    let builder = SimulatedDevice::builder(5).bytes(64 << 20).latency(call).jitter(0.0);
    let builder = builder.download_bandwidth(1_000_000_000).upload_bandwidth(2_000_000_000);
    let device = Arc::new(builder.device_bandwidth(10_000_000_000).build());
    let mut profile = Profile::new(1_000_000_000, 2_000_000_000, 3_000_000_000, 4096);
    (profile.call, profile.device_memory, profile.host_memory) = (call, 10_000_000_000, 100_000_000_000);
    profile.remember(&device.info().identity);
    let builder = VirtualArray::<u64>::builder(512 * pages).devices([device.clone()]).page_len(512);
    let array = builder.frames_per_channel(16).read_ahead(false).build().unwrap();
    array.fill(.., 3).unwrap();
    array.evict(..).unwrap();
    (device, array)
}

#[test]
fn plans_predict_the_time_of_devices_and_its_limit() {
    let (device, array) = timed(2000);
    let bytes = array.len() as f64 * 8.0;
    let cases: [(Work<'_>, usize, LimitedBy, f64); 3] = [
        (Work::Read, array.len(), LimitedBy::Bus, bytes / 1e9 + 20e-6),
        (Work::Ask, array.len(), LimitedBy::DeviceMemory, bytes / 1e10 + 20e-6),
        (Work::Read, 1, LimitedBy::Calls, 4096.0 / 1e9 + 20e-6),
    ];
    for (work, len, bound, seconds) in cases {
        let plan = array.explain(..len, work).unwrap();
        let time = plan.time.unwrap();
        assert!((time.as_secs_f64() / seconds - 1.0).abs() < 1e-3, "{time:?} and {seconds}: {plan}");
        assert_eq!(plan.bound, Some(bound), "{plan}");
        let (watch, began) = (array.watch(), device.now());
        match work {
            Work::Ask => assert_eq!(array.sum(..len, Field::whole()).unwrap(), 3 * len as i128),
            _ => assert_eq!(array.to_vec(..len).unwrap(), vec![3; len]),
        }
        let elapsed = device.now() - began;
        // The operation uses only its slowest resource, so the measured time is near the predicted one.
        assert!(elapsed >= time.mul_f64(0.98) && elapsed <= time.mul_f64(1.2), "{elapsed:?} of {plan}");
        let report = watch.report_after(elapsed);
        let (share, of) = report.share_of_limit().unwrap();
        if bound == LimitedBy::Calls {
            assert!(share < 0.2, "most of it is the call: {report}");
        } else {
            assert!((0.8..=1.02).contains(&share) && of == bound, "{report}");
        }
    }
}

#[test]
fn only_counts_are_predicted_without_a_profile() {
    let (device, array) = timed(4);
    Profile::forget(&*device);
    let plan = array.explain(.., Work::Read).unwrap();
    assert_eq!((plan.time, plan.bound, plan.bytes_from_device()), (None, None, 4 * 4096));
    assert!(plan.to_string().contains("time unknown: a device has no complete profile"), "{plan}");
    let report = array.watch().report();
    assert_eq!(report.share_of_limit(), None);
    assert_eq!(report.devices.len(), 1);
    // An empty range takes no time on any device.
    let plan = array.explain(5..5, Work::Ask).unwrap();
    assert_eq!((plan.pages, plan.time, plan.bound), (0, Some(Duration::ZERO), None));
}

#[test]
fn transfers_through_the_host_are_counted() {
    let [one, other] = [0, 1].map(|_| {
        let array = VirtualArray::<u32>::builder(1000).devices(devices(1)).page_len(100).build().unwrap();
        array.fill(.., 2).unwrap();
        array.flush(..).unwrap();
        array
    });
    let joined = one.join((&other,)).unwrap();
    let (x, y) = joined.rows();
    let watch = one.watch();
    let equal = x.get(Field::whole()).eq(y.get(Field::whole()));
    assert_eq!(joined.count_where(.., equal).unwrap(), 1000);
    let total = watch.report().stats.total();
    // The view's own elements are copied to the other array's device.
    assert_eq!((total.bytes_past_host, total.bytes_through_host, total.bytes_to_device), (4000, 4000, 4000));
}
