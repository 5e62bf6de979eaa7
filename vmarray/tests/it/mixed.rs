//! Tests of arrays over devices of several backends at once: host RAM, a file, simulations, and all OpenCL
//! and CUDA devices.

use std::path::PathBuf;
use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::{POLICIES, as_any};
use crate::threads::storm;
use vmarray::host::{HostDevice, SimulatedDevice};
use vmarray::store::FileDevice;
use vmarray::{AnyDevice, Discovery, Field, Placement, VirtualArray, device::Device};
use vmarray_conformance::wrap::Counting;

/// A file that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vmarray-{}-{name}", std::process::id()));
        Self(path)
    }

    fn device(&self) -> AnyDevice {
        FileDevice::builder(&self.0).create(1 << 24).expect("a file in the temporary folder").into()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// All available devices: GPUs and CPUs of all backends, host RAM, a file, a simulation.
fn rig(file: &Scratch) -> Vec<Arc<AnyDevice>> {
    let mut devices: Vec<AnyDevice> = vec![
        HostDevice::builder().bytes(1 << 26).build().unwrap().into(),
        file.device(),
        SimulatedDevice::builder(7).bytes(1 << 26).build().into(),
    ];
    let found = Discovery::new().select("cuda, opencl, cpu, integrated").unwrap().allow_duplicates(true);
    for (info, _) in found.report().devices {
        println!("found {info}");
    }
    let mut devices: Vec<Arc<AnyDevice>> = devices.drain(..).map(Arc::new).collect();
    if let Ok(more) = found.separate(true).open() {
        devices.extend(more);
    }
    devices
}

/// A different share for each device.
fn uneven(devices: usize) -> Placement {
    Placement::Ratios((0..devices).map(|d| 1 + (d as u32 * 2) % 5).collect())
}

#[test]
fn one_array_lies_on_devices_of_all_backends() {
    let file = Scratch::new("all");
    let devices = rig(&file);
    let counted: Vec<_> = devices.iter().map(|d| d.info().to_string()).collect();
    let array = VirtualArray::<u32>::builder(100_000)
        .placement(uneven(devices.len()))
        .devices(devices)
        .page_len(100)
        .frames_per_channel(3)
        .build()
        .unwrap();
    for start in (0..array.len()).step_by(1000) {
        let values: Vec<u32> = (start..start + 1000).map(|i| i as u32 * 3).collect();
        array.write(start, &values).unwrap();
    }
    assert!(array.iter().enumerate().all(|(i, x)| x.unwrap() == i as u32 * 3), "{counted:?}");
    for i in [0, 99, 100, 777, 50_000, 99_999] {
        assert_eq!(array.find(Field::whole(), &(i as u32 * 3)).unwrap(), [i]);
    }
    array.fill(33_333..66_666, 1).unwrap();
    assert_eq!(array.count(.., Field::whole(), &1).unwrap(), 33_333);
    let stats = array.stats();
    assert!(stats.channels.iter().all(|channel| channel.bytes_to_device > 0), "{stats:?}");
}

#[test]
fn threads_on_a_mixed_rig_lose_nothing() {
    for (number, policy) in POLICIES.into_iter().enumerate() {
        let file = Scratch::new(&format!("threads-{number}"));
        let devices = rig(&file);
        let array = VirtualArray::<u32>::builder(6000)
            .placement(uneven(devices.len()))
            .devices(devices)
            .page_len(16 + number)
            .frames_per_channel(2)
            .eviction(policy)
            .build()
            .unwrap();
        storm(&array, 4, 400);
    }
}

/// A device's share of the bytes is its share of the channels.
#[test]
fn data_is_shared_out_by_the_ratios() {
    let devices: Vec<_> = (0..3).map(|_| Arc::new(Counting::new(crate::common::host()))).collect();
    let array = VirtualArray::<u32>::builder(60 * 16)
        .devices(devices.iter().map(as_any))
        .placement(Placement::Ratios(vec![3, 0, 2]))
        .page_len(16)
        .build()
        .unwrap();
    array.write(0, &vec![1; array.len()]).unwrap();
    array.flush(..).unwrap();
    let bytes: Vec<u64> = array.stats().channels.iter().map(|channel| channel.bytes_to_device).collect();
    assert_eq!(bytes, [12 * 64; 5]);
    let of_device: Vec<u64> = devices.iter().map(|d| d.counts().work.upload_bytes).collect();
    assert_eq!(of_device, [36 * 64, 0, 24 * 64]);
}

/// The remains of an array in a file device are no array: they are neither opened nor overwritten.
#[test]
fn the_file_of_an_array_that_is_gone_is_left_as_it_is() {
    let file = Scratch::new("left");
    let device = Arc::new(file.device());
    let array = VirtualArray::<u32>::builder(10_000).devices([as_any(&device)]).build().unwrap();
    array.write(0, &(1..=10_000).collect::<Vec<u32>>()).unwrap();
    array.flush(..).unwrap();
    drop(array);
    let bytes = std::fs::read(&file.0).unwrap();
    assert!(bytes.windows(8).any(|window| window == [1, 0, 0, 0, 2, 0, 0, 0]));
    let error = FileDevice::create(&file.0, 1 << 24).unwrap_err();
    assert_eq!(error.kind(), vmarray::device::ErrorKind::AlreadyExists);
    assert!(std::fs::read(&file.0).unwrap() == bytes);
}

/// Queries of a source over an existing file, written by an array or not, do not change it.
#[cfg(feature = "memmap2")]
#[test]
fn a_source_reads_and_queries_a_file() {
    let file = Scratch::new("asked");
    let bytes: Vec<u8> = (1..=10_000_u32).flat_map(u32::to_ne_bytes).collect();
    std::fs::write(&file.0, &bytes).unwrap();
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(&file.0).unwrap();
    // SAFETY: only this test uses the file.
    let map = unsafe { memmap2::MmapMut::map_mut(&opened) }.unwrap();
    let source = Source::<u32, _>::builder(map);
    let source = source.devices(crate::common::hosts::<1>()).build().unwrap();
    assert_eq!(source.get(9_999).unwrap(), 10_000);
    assert_eq!(source.sum(.., Field::whole()).unwrap(), 50_005_000);
    assert_eq!(source.count(.., Field::whole(), &7).unwrap(), 1);
    drop(source);
    assert!(std::fs::read(&file.0).unwrap() == bytes);
}
