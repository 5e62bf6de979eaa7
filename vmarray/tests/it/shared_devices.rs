//! Tests of devices that arrays share. All arrays built without a list of devices use one open device for
//! each GPU, so kernels over several arrays copy nothing. The devices belong to the process, so tests that
//! set or count them run in separate processes.

#![cfg(feature = "host")]

use std::process::Command;
use std::sync::Arc;

use vmarray::device::Device;
use vmarray::discovery::{close_unused, set_devices};
use vmarray::host::HostDevice;
use vmarray::index_set::PagedIndexSet;
use vmarray::kernel::{Anywhere, At, Own, Session, Window};
use vmarray::prelude::*;
use vmarray::{AnyDevice, Discovery, IndexSet, Placement, RaggedArray, Result, boundary::Mirror};
use vmarray_conformance::wrap::Counting;

const CHILD: &str = "VMARRAY_SHARES";
const LEN: usize = 1 << 16;

#[vmarray::kernel]
fn saxpy(a: f32, x: &Own<f32>, y: &mut Own<f32>) {
    y.set(a * x.get() + y.get());
}

#[vmarray::kernel]
fn reversed(at: At<1>, of: &Anywhere<f32>, out: &mut Own<f32>) {
    out.set(of[of.len() - 1 - at.index()]);
}

#[vmarray::kernel]
fn widened(x: &Own<f32>, out: &mut Own<u64>) {
    out.set(x.get() as u64);
}

#[vmarray::kernel]
fn smoothed(at: At<2>, image: &Window<f32, 2>, out: &mut Own<f32>) {
    out.set(image[at.plus([-1, 0])] + image[at.plus([0, 1])]);
}

/// Runs a test again, alone in another process, once for each kind of device. Returns true in that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    for filter in ["host", "cpu"] {
        if Discovery::new().select(filter).unwrap().open().is_err() {
            continue;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("shared_devices::{test}"), "--nocapture"]);
        let said = child.env(CHILD, "1").env("VMARRAY_DEVICES", filter).output().unwrap();
        let is_run = String::from_utf8_lossy(&said.stdout).contains("1 passed");
        assert!(said.status.success() && is_run, "{filter}: {said:?}");
    }
    false
}

fn device() -> Arc<AnyDevice> {
    vmarray::devices().unwrap().remove(0)
}

/// A device of the kind that the environment names. It counts its calls, and replaces the shared device.
fn counting() -> (Arc<Counting<AnyDevice>>, Arc<AnyDevice>) {
    let mut opened = Discovery::from_env().unwrap().separate(true).open().unwrap();
    let device = Arc::new(Counting::new(Arc::into_inner(opened.remove(0)).unwrap()));
    let shared = Arc::new(AnyDevice::from(Arc::clone(&device) as Arc<dyn Device>));
    set_devices([Arc::clone(&shared)]);
    (device, shared)
}

#[test]
fn a_card_is_opened_once_and_separately_if_asked() {
    let open = |filter: &str| Discovery::new().select(filter).unwrap().open().unwrap().remove(0);
    assert!(Arc::ptr_eq(&open("host"), &open("host:0")), "by each filter that names it");
    assert!(Arc::ptr_eq(&device(), &device()));
    let separate = Discovery::new().select("host").unwrap().separate(true);
    let (one, other) = (separate.open().unwrap(), separate.open().unwrap());
    assert!(!Arc::ptr_eq(&one[0], &other[0]) && !Arc::ptr_eq(&one[0], &open("host")));
}

#[test]
fn devices_are_closed_when_nothing_uses_them() {
    if !is_alone("devices_are_closed_when_nothing_uses_them") {
        return;
    }
    let array = VirtualArray::<u32>::new(1000).unwrap();
    let device = Arc::downgrade(&device());
    assert_eq!(close_unused(), 0, "the array uses it");
    drop(array);
    assert!(device.upgrade().is_some(), "it stays open for the next array");
    assert_eq!(close_unused(), 1);
    assert!(device.upgrade().is_none());
    assert_eq!(VirtualArray::<u32>::new(1000).unwrap().get(999).unwrap(), 0);
}

/// Bytes uploaded and downloaded, and launches, as the device counts them while `run` runs.
fn counted(on: &Counting<impl Device>, run: impl FnOnce() -> Result<()>) -> (u64, u64, u64) {
    on.reset();
    run().unwrap();
    let work = on.counts().work;
    (work.upload_bytes, work.download_bytes, work.launches)
}

#[test]
fn kernels_on_arrays_made_without_devices_copy_nothing() {
    if !is_alone("kernels_on_arrays_made_without_devices_copy_nothing") {
        return;
    }
    let (device, _) = counting();
    let x = VirtualArray::<f32>::new(LEN).unwrap();
    let mut y = VirtualArray::<f32>::new(LEN).unwrap();
    x.fill(.., 3.0).unwrap();
    assert_eq!(counted(&device, || saxpy::run((2.0, &x, &mut y))), (0, 0, 1));
    assert_eq!(counted(&device, || reversed::run((&x, &mut y))), (0, 0, 1));
    // Elements of another size are in pages of another length.
    let mut wide = VirtualArray::<u64>::new(LEN).unwrap();
    assert_eq!(counted(&device, || widened::run((&x, &mut wide))), (0, 0, 1));
    let image = NdArray::<f32, 2>::new([64, 64]).unwrap();
    let mut out = NdArray::<f32, 2>::new([64, 64]).unwrap();
    image.fill(.., 1.0).unwrap();
    let window = || smoothed::run((image.bounded(Mirror).window([1, 1]), &mut out));
    assert_eq!(counted(&device, window), (0, 0, 1));
    assert_eq!(counted(&device, || y.copy_from(0, &x)), (0, 0, 0));
    let other = || VirtualArray::<f32>::new(LEN).and_then(|other| other.copy_from(0, &x));
    assert_eq!(counted(&device, other), (0, 0, 0));
    let mut alike = y.empty_like(LEN / 2).unwrap();
    let half = x.section(..LEN / 2).unwrap();
    assert_eq!(counted(&device, || saxpy::run((2.0, half, &mut alike))), (0, 0, 1));
    let session = || {
        let (mut a, mut b) = (VirtualArray::<f32>::new(LEN)?, VirtualArray::<f32>::new(LEN)?);
        let mut session = Session::new();
        let (a, b) = (session.hold(&mut a)?, session.hold(&mut b)?);
        for _ in 0..5 {
            saxpy::run_in(&mut session, (2.0, a, b))?;
            reversed::run_in(&mut session, (b, a))?;
        }
        session.finish()
    };
    assert_eq!(counted(&device, session), (0, 0, 10));
    assert_eq!((alike.get(9).unwrap(), wide.get(9).unwrap(), out.get([0, 0]).unwrap()), (6.0, 3, 2.0));
    for stats in [y.stats(), wide.stats(), alike.stats(), out.elements().stats()] {
        assert_eq!(stats.total().bytes_through_host, 0);
    }
    set_devices([]);
}

#[test]
fn everything_made_without_devices_is_on_the_shared_one() {
    if !is_alone("everything_made_without_devices_is_on_the_shared_one") {
        return;
    }
    let (_, shared) = counting();
    let users = || Arc::strong_count(&shared);
    let mut before = users();
    let mut is_used = |what: &str| {
        assert!(users() > before, "{what}");
        before = users();
    };
    let _array = VirtualArray::<u64>::new(1000).unwrap();
    is_used("array");
    let _sections = NdArray::<u8, 3>::builder([20, 20, 20]).tiled().build().unwrap();
    is_used("box");
    let _source = Source::new(vec![7_u32; 1000]).unwrap();
    is_used("source");
    let _rows = RaggedArray::<u32>::builder().from_rows([&[1, 2][..], &[3]]).unwrap();
    is_used("rows");
    let set = IndexSet::from_rows([0, 1], [[1, 2], [3, 4]]).unwrap();
    let _paged = PagedIndexSet::from_index_set(&set, |array| array).unwrap();
    is_used("index set");
    set_devices([]);
}

#[cfg(target_os = "linux")]
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
#[cfg(target_os = "linux")]
fn fifty_arrays_cost_no_threads_and_one_translation_of_a_kernel() {
    if !is_alone("fifty_arrays_cost_no_threads_and_one_translation_of_a_kernel") {
        return;
    }
    let use_one = || {
        let x = VirtualArray::<f32>::new(LEN)?;
        let mut y = x.empty_like(LEN)?;
        x.fill(.., 3.0)?;
        saxpy::run((2.0, &x, &mut y))?;
        assert_eq!((y.get(5)?, y.sum(.., Field::whole())?), (6.0, 6.0 * LEN as f64));
        Ok::<_, vmarray::Error>((x, y))
    };
    let translations = || match &*device() {
        #[cfg(feature = "opencl")]
        AnyDevice::OpenCl(device) => device.statistics().translations,
        _ => 0,
    };
    // The device starts its threads with the first work.
    let first = use_one().unwrap();
    let (threads_before, translations_before) = (threads(), translations());
    let is_opencl = device().info().backend == "opencl";
    assert_eq!(translations_before > 0, is_opencl);
    let arrays: Vec<_> = (0..25).map(|_| use_one().unwrap()).collect();
    // An idle device may end threads, and later start up to one thread for each processor. The library may
    // start as many threads.
    let most = threads_before.max(2 * std::thread::available_parallelism().unwrap().get() + 4);
    assert!(threads() <= most, "{} and then {}", threads_before, threads());
    assert_eq!(translations(), translations_before);
    drop((first, arrays));
}

#[test]
fn arrays_of_a_device_share_its_memory() {
    if !is_alone("arrays_of_a_device_share_its_memory") {
        return;
    }
    // Host RAM reports the free memory of the system, which other programs change.
    if device().info().backend == "host" {
        let small = HostDevice::new(4 << 20).unwrap();
        set_devices([Arc::new(AnyDevice::from(small))]);
    }
    let usable = || device().memory().unwrap().usable_bytes;
    let before = usable();
    let one = VirtualArray::<u8>::new(1 << 20).unwrap();
    let other = VirtualArray::<u8>::new(2 << 20).unwrap();
    assert!(before - usable() >= 3 << 20, "both count");
    let rest = VirtualArray::<u8>::new(before as usize);
    assert!(matches!(rest.unwrap_err().kind(), vmarray::ErrorKind::DoesNotFit { .. }));
    drop((one, other));
    assert_eq!(usable(), before);
    set_devices([]);
}

#[test]
fn empty_like_keeps_settings_and_dealing() {
    let cards: [_; 3] = std::array::from_fn(|_| Arc::new(HostDevice::new(8 << 20).unwrap()));
    let array = VirtualArray::<u32>::builder(10)
        .devices(cards.clone())
        .placement(Placement::Ratios(vec![2, 1, 1]))
        .page_len(100)
        .frames_per_channel(3)
        .count_hits(true)
        .max_len(5000)
        .build()
        .unwrap();
    assert_eq!(array.homes().len(), 4, "one that grows has all its channels");
    for len in [0, 1, 99, 2000, 4001] {
        let other = array.empty_like(len).unwrap();
        assert_eq!((other.len(), other.page_len(), other.max_len()), (len, 100, 5000));
        let devices = |array: &VirtualArray<u32, HostDevice>| {
            array.homes().iter().map(|home| home.replicas[0].device.clone()).collect::<Vec<_>>()
        };
        assert_eq!(devices(&other), devices(&array));
        assert_eq!(other.stats().hits, Some(0));
        assert!(other.push(7).is_ok() && other.get(len).unwrap() == 7);
    }
    // A short array uses one device of three, a longer one uses all of them.
    let short = VirtualArray::<u32>::builder(10).devices(cards.clone()).page_len(100).build().unwrap();
    assert_eq!((short.homes().len(), short.empty_like(1000).unwrap().homes().len()), (1, 3));
    assert!(short.empty_like(100_000_000).is_err());
    // A moved array is on other devices.
    let movable =
        VirtualArray::<u32>::builder(1000).devices(cards[..1].to_vec()).movable(true).build().unwrap();
    movable.rebalance([cards[1].clone()]).unwrap();
    let of = |array: &VirtualArray<u32, HostDevice>| array.homes()[0].replicas[0].device.clone();
    assert_eq!(of(&movable.empty_like(5).unwrap()), of(&movable));
    let builder = VirtualArray::<u32>::builder(1000).devices(cards).page_len(10);
    let array = builder.placement(Placement::Mirrored).build().unwrap();
    let other = array.empty_like(2000).unwrap();
    assert_eq!(other.homes().len(), 3);
    other.fill(.., 7).unwrap();
    assert_eq!(other.sum(.., Field::whole()).unwrap(), 14_000);
}

#[test]
fn an_array_like_one_in_a_file_is_in_ram() {
    let path = std::env::temp_dir().join(format!("vmarray-alike-{}", std::process::id()));
    let stored = VirtualArray::<u32>::create(&path, 1000).unwrap();
    stored.fill(.., 7).unwrap();
    let other = stored.empty_like(500).unwrap();
    other.copy_from(0, stored.section(..500).unwrap()).unwrap();
    assert_eq!((other.sum(.., Field::whole()).unwrap(), other.page_len()), (3500, stored.page_len()));
    drop((stored, other));
    std::fs::remove_file(&path).unwrap();
}

/// Uses an array of the parent in a forked child, and makes one of its own; returns 0 if both are refused.
#[cfg(target_os = "linux")]
fn as_child(array: &VirtualArray<u32>) -> i32 {
    fn is_refused<R: std::fmt::Debug>(result: Result<R>) -> bool {
        let error = result.expect_err("the parent uses the library");
        let error = error.device_error().expect("a device refuses");
        error.kind() == vmarray::device::ErrorKind::Lost && error.to_string().contains("forked")
    }
    if !is_refused(array.get(LEN - 1)) || !is_refused(array.sum(.., Field::whole()).map(|sum| sum as u32)) {
        1
    } else if !is_refused(VirtualArray::<u32>::new(100)) {
        2
    } else {
        0
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_forked_child_is_refused_devices_of_its_parent() {
    if !is_alone("a_forked_child_is_refused_devices_of_its_parent") {
        return;
    }
    let array = VirtualArray::<u32>::builder(LEN).page_len(1 << 10).build().unwrap();
    array.fill(.., 7).unwrap();
    array.evict(..).unwrap();
    // SAFETY: the child makes only calls that the library permits, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| as_child(&array)));
        // SAFETY: ends the process.
        unsafe { libc::_exit(outcome.unwrap_or(3)) };
    }
    let mut status = 0;
    // SAFETY: the call waits for the child and writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert_eq!(array.sum(.., Field::whole()).unwrap(), 7 * LEN as i128);
}
