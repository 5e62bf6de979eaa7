//! Tests of many open arrays in files: their memory, and the requests to the device when the arrays are
//! dropped.

use std::process::Command;
use std::sync::Arc;

use vmarray::VirtualArray;
use vmarray::host::HostDevice;
use vmarray_conformance::wrap::{Counting, WorkCounts};

use crate::stored::Files;

const CHILD: &str = "VMARRAY_MANY_ARRAYS";

/// Memory of this process that is in RAM and no part of a file, in KiB.
fn private_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Arrays that are open take little memory, and one page more when an element was used. The test runs alone
/// in a process.
#[test]
#[cfg(target_os = "linux")]
fn open_arrays_in_files_take_little_memory() {
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "many_arrays::open_arrays_in_files_take_little_memory", "--nocapture"]);
        let said = child.env(CHILD, "1").output().unwrap();
        let is_run = String::from_utf8_lossy(&said.stdout).contains("1 passed");
        assert!(said.status.success() && is_run, "{said:?}");
        return;
    }
    const COUNT: usize = 100;
    let files = Files::new(COUNT + 1);
    let (first, files) = files.0.split_first().unwrap();
    // The first array starts threads and allocates memory that all files share.
    let array = VirtualArray::<u64>::create(first, 100).unwrap();
    array.set(50, 7).unwrap();
    array.sync().unwrap();
    let page_kib = (array.page_len() * size_of::<u64>()) >> 10;
    let before = private_kib();
    let each_kib = || (private_kib() - before) / COUNT;
    let arrays: Vec<_> = files.iter().map(|path| VirtualArray::<u64>::create(path, 100).unwrap()).collect();
    assert!(each_kib() <= 40, "{} KiB each", each_kib());
    for array in &arrays {
        array.set(50, 7).unwrap();
        array.sync().unwrap();
    }
    assert!(each_kib() <= 40 + page_kib, "{} KiB each, with a page", each_kib());
    drop(arrays);
    let arrays: Vec<_> = files.iter().map(|path| VirtualArray::<u64>::open(path).unwrap()).collect();
    assert!(each_kib() <= 40, "{} KiB each, opened", each_kib());
    assert!(arrays.iter().all(|array| array.get(50).unwrap() == 7));
    assert!(each_kib() <= 40 + page_kib, "{} KiB each, opened and read", each_kib());
}

/// Dropping an array releases its memory, and asks the device for nothing else, however many arrays the
/// device has.
#[test]
fn dropped_arrays_submit_nothing() {
    let device = Arc::new(Counting::new(HostDevice::new(1 << 30).unwrap()));
    let builder = || VirtualArray::<u64>::builder(100).page_len(32).cache_bytes(1 << 10);
    let new = |i| {
        let array = builder().devices([Arc::clone(&device)]).build().unwrap();
        array.set(50, i).unwrap();
        array
    };
    let arrays: Vec<_> = (0..1000).map(new).collect();
    assert!(device.counts().held_bytes >= 1000 * 800);
    device.reset();
    drop(arrays);
    let counts = device.counts();
    assert_eq!((counts.work, counts.queues, counts.allocations), (WorkCounts::default(), 0, 0));
    assert_eq!((counts.host_allocations, counts.held_bytes, counts.host_held_bytes), (0, 0, 0));
}
