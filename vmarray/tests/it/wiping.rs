//! Tests of wiping: memory that was released contains no elements.

use std::sync::Arc;
use vmarray::prelude::*;

use vmarray::device::wrap::{Fault, Operation};
use vmarray::device::{
    BufferHandle, Commit, Device, ErrorKind as DeviceError, HostAllocation, Result as DeviceResult,
};
use vmarray::host::SimulatedDevice;
use vmarray::store::FileDevice;
use vmarray::{ErrorKind, Field, Source, VirtualArray, access::MapMode};
use vmarray_conformance::wrap::{Counting, Faulty};

use crate::common::as_any;

type Counted = Counting<SimulatedDevice>;

fn device() -> Arc<Counted> {
    Arc::new(Counting::new(SimulatedDevice::builder(7).bytes(1 << 24).build()))
}

fn allocated_bytes(device: &Counted) -> u64 {
    let counts = device.counts();
    counts.allocated_bytes + counts.host_allocated_bytes
}

/// Uses all kinds of memory of an array: frames, stages, lists, results, and memory for computations.
fn work(array: &VirtualArray<u32>) {
    array.set(5, 7).unwrap();
    array.write(0, &vec![7; array.len()]).unwrap();
    assert_eq!(array.get(9_999).unwrap(), 7);
    assert_eq!(array.gather(&[3, 40_000, 3]).unwrap(), [7; 3]);
    array.scatter(&[8, 30_000], &[9, 9]).unwrap();
    assert_eq!(array.find(Field::whole(), &9).unwrap(), [8, 30_000]);
    assert_eq!(array.sum(.., Field::whole()).unwrap(), 7 * array.len() as i128 + 4);
    array.map_mut(100..200, MapMode::Write, |elements| elements.fill(8)).unwrap();
    assert_eq!(array.count_where(.., Field::<u32, u32>::whole().eq(8)).unwrap(), 100);
    array.fill(.., 3).unwrap();
}

fn array(devices: &[Arc<Counted>], wipe: bool) -> vmarray::Result<VirtualArray<u32>> {
    let builder = VirtualArray::builder(50_000).devices(devices.iter().map(as_any));
    builder.page_len(1024).frames_per_channel(4).wipe_on_drop(wipe).build()
}

#[test]
fn all_memory_of_an_array_is_wiped() {
    let devices = [device(), device()];
    work(&array(&devices, false).unwrap());
    assert_eq!(devices[0].inner().wiped_bytes(), 0);
    for device in &devices {
        device.reset();
    }
    let array = array(&devices, true).unwrap();
    work(&array);
    drop(array);
    for device in devices {
        assert_eq!(device.counts().held_bytes + device.counts().host_held_bytes, 0);
        assert!(device.counts().host_allocations > 1);
        assert_eq!(device.inner().wiped_bytes(), allocated_bytes(&device));
    }
}

#[test]
fn all_memory_of_a_source_is_wiped_and_its_home_is_not() {
    let device = device();
    let mut home = vec![7_u32; 50_000];
    let builder = Source::builder(&mut home[..]).devices([as_any(&device)]).page_len(1024);
    let source = builder.device_bytes(16 << 12).wipe_on_drop(true).build().unwrap();
    assert_eq!(source.count(.., Field::whole(), &7).unwrap(), 50_000);
    assert_eq!(source.sum(.., Field::whole()).unwrap(), 350_000);
    source.fill(100..200, 8).unwrap();
    assert_eq!(source.to_vec(99..101).unwrap(), [7, 8]);
    drop(source);
    assert!(device.counts().host_allocations > 0 && device.counts().held_bytes == 0);
    assert_eq!(device.inner().wiped_bytes(), allocated_bytes(&device));
    assert_eq!((home[99], home[100], home[200]), (7, 8, 7));
}

/// Memory that was allocated before another allocation failed.
#[test]
fn memory_is_wiped_when_building_fails_half_way() {
    let [good, bad] =
        [(); 2].map(|()| Arc::new(Faulty::new(Counting::new(SimulatedDevice::builder(7).build()))));
    bad.inject(Fault::new(Operation::Allocate, DeviceError::OutOfMemory));
    let builder = VirtualArray::<u32>::builder(50_000).devices([as_any(&good), as_any(&bad)]);
    let error = builder.page_len(1024).wipe_on_drop(true).build().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
    let counted = good.inner();
    assert!(counted.counts().allocated_bytes > 0 && counted.counts().held_bytes == 0);
    assert_eq!(counted.inner().wiped_bytes(), allocated_bytes(counted));
}

#[test]
fn a_lost_device_does_not_keep_others_from_wiping() {
    let devices = [device(), device()];
    let array = array(&devices, true).unwrap();
    work(&array);
    devices[0].inner().lose();
    drop(array);
    assert_eq!(devices[1].counts().held_bytes, 0);
    assert_eq!(devices[1].inner().wiped_bytes(), allocated_bytes(&devices[1]));
}

/// In the file itself, also of pages that were evicted long ago.
#[test]
fn nothing_of_an_array_is_left_in_a_file() {
    let path = std::env::temp_dir().join(vmarray::support::private_dir::random_name());
    for wipe in [false, true] {
        let device = Arc::new(FileDevice::create(&path, 1 << 20).unwrap());
        let builder = VirtualArray::<u8>::builder(1 << 19).devices([as_any(&device)]).page_len(4096);
        let array = builder.frames_per_channel(4).wipe_on_drop(wipe).build().unwrap();
        array.write(0, &[7; 1 << 19]).unwrap();
        array.flush(..).unwrap();
        let sevens = |path| std::fs::read(path).unwrap().iter().filter(|&&byte| byte == 7).count();
        assert_eq!(sevens(&path), 1 << 19);
        drop(array);
        assert_eq!(sevens(&path), if wipe { 0 } else { 1 << 19 });
        std::fs::remove_file(&path).unwrap();
    }
}

/// A foreign device without support for wiping.
#[derive(Debug)]
struct Plain(SimulatedDevice);

// SAFETY: every call goes to the inner device, which implements the contract.
unsafe impl Device for Plain {
    vmarray::device::forward! { self => self.0;
        info memory create_queue release_queue release import_host release_host submit
        poll wait wake order_after
    }

    fn allocate(&self, _: u64, _: Commit) -> DeviceResult<BufferHandle> {
        unreachable!("it was refused before")
    }

    fn allocate_host(&self, _: usize, _: vmarray::device::HostMemory) -> DeviceResult<HostAllocation> {
        unreachable!("it was refused before")
    }
}

#[test]
fn a_device_that_cannot_wipe_is_refused_before_anything_is_on_it() {
    let device = Arc::new(Plain(SimulatedDevice::builder(7).build()));
    let array = VirtualArray::<u32>::builder(1000).devices([as_any(&device)]).wipe_on_drop(true).build();
    let source = Source::builder(vec![1_u32; 10]).devices([as_any(&device)]).wipe_on_drop(true).build();
    for error in [array.unwrap_err(), source.unwrap_err()] {
        let ErrorKind::Device(cause) = error.kind() else { panic!("{error}") };
        assert_eq!(cause.kind(), DeviceError::Unsupported);
        assert!(error.to_string().contains("use another device"), "{error}");
    }
}
