//! The contract's conformance suite on every device of this crate.

use std::io;
use std::sync::{Arc, Mutex};

use backend_api::Device;
use vmarray_conformance::{Limits, Outcome, check_drop, run_peers};
use vmarray_redundancy::Checksummed;

use backend_host::HostDevice;
use vmarray_store::{BackedDevice, Backing, FileAccess, FileDevice, FileSection, StoreDevice, Tier};

const BYTES: u64 = 256 << 20;

fn file(threads: usize) -> Arc<FileDevice> {
    let folder = env!("CARGO_TARGET_TMPDIR");
    Arc::new(FileDevice::builder(folder).threads(threads).create_temporary(64 << 20).unwrap())
}

/// Two GPUs that hold a part of the memory of the checks.
fn tier() -> Tier {
    let card = |bytes| Arc::new(HostDevice::builder().bytes(bytes).threads(2).build().unwrap());
    Tier::new([card(64 << 10), card(1 << 20)]).page_bytes(1000)
}

fn checked_file() -> Arc<FileDevice> {
    let builder = FileDevice::builder(env!("CARGO_TARGET_TMPDIR")).threads(4).checksums(true);
    Arc::new(builder.create_temporary(64 << 20).unwrap())
}

fn checksummed<D: Device>(inner: Arc<D>, unit_bytes: usize) -> Arc<Checksummed<D>> {
    // SAFETY: the checks use the handles of a device with that device alone.
    Arc::new(unsafe { Checksummed::new(inner, unit_bytes) })
}

fn tiered_file(threads: usize) -> Arc<FileDevice> {
    let builder = FileDevice::builder(env!("CARGO_TARGET_TMPDIR")).threads(threads).tier(&tier());
    Arc::new(builder.create_temporary(64 << 20).unwrap())
}

/// A store whose file has no name.
#[cfg(unix)]
fn store() -> StoreDevice {
    const PAGE_BYTES: usize = 1000;
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(vmarray_support::private_dir::random_name());
    let store = StoreDevice::create(&path, PAGE_BYTES, (64 << 20) / PAGE_BYTES as u64, b"", [0; 3]).unwrap();
    std::fs::remove_file(path).unwrap();
    store
}

/// Pages in a vector, the simplest backing.
#[derive(Debug)]
struct List(Vec<Mutex<Box<[u8]>>>);

impl Backing for List {
    fn page_bytes(&self) -> usize {
        1000
    }
    fn pages(&self) -> u64 {
        self.0.len() as u64
    }
    fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0[page as usize].lock().unwrap());
        Ok(())
    }
    fn write_page(&self, page: u64, from: &[u8]) -> io::Result<()> {
        self.0[page as usize].lock().unwrap().copy_from_slice(from);
        Ok(())
    }
}

fn backed() -> BackedDevice {
    let page = || Mutex::new(vec![0; 1000].into_boxed_slice());
    BackedDevice::new(List((0..64 << 10).map(|_| page()).collect())).unwrap()
}

/// A section of a file without a name, which the suite writes to in place or not.
#[cfg(unix)]
fn section(access: FileAccess) -> BackedDevice {
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(vmarray_support::private_dir::random_name());
    std::fs::File::create(&path).unwrap().set_len((64 << 20) + 24).unwrap();
    let section = FileSection::open(&path, 24.., access).unwrap().with_page_bytes(1000);
    std::fs::remove_file(path).unwrap();
    BackedDevice::new(section).unwrap()
}

macro_rules! suite {
    ($name:ident, $device:expr) => {
        mod $name {
            use super::*;
            vmarray_conformance::conformance_tests!($device);
        }
    };
}
suite!(tier_with_checksums, checksummed(tiered_file(1), 96));
suite!(file_and_one_thread, file(1));
suite!(file_and_four_threads, file(4));
suite!(checked_file, checked_file());
suite!(tiered_file_and_one_thread, tiered_file(1));
suite!(tiered_file_and_four_threads, tiered_file(4));
#[cfg(unix)]
suite!(store, Arc::new(store()));
#[cfg(unix)]
suite!(tiered_store, Arc::new(store().with_tier(&tier())));
suite!(backed, Arc::new(backed()));
#[cfg(unix)]
suite!(section, Arc::new(section(FileAccess::ReadWrite)));
#[cfg(unix)]
suite!(changed_section, Arc::new(section(FileAccess::CopyOnWrite)));
#[cfg(unix)]
suite!(tiered_section, Arc::new(section(FileAccess::ReadWrite).with_tier(&tier())));
suite!(tiered_backed, Arc::new(backed().with_tier(&tier())));

#[test]
fn drops_wait_for_no_waker() {
    for threads in [1, 4] {
        assert_eq!(check_drop(file(threads)), Outcome::Passed);
        assert_eq!(check_drop(tiered_file(threads)), Outcome::Passed);
    }
    #[cfg(unix)]
    assert_eq!(check_drop(Arc::new(store())), Outcome::Passed);
}

#[test]
fn files_reach_no_other_device() {
    let host = Arc::new(HostDevice::builder().bytes(BYTES).threads(1).build().unwrap());
    run_peers(&host, &file(1), &Limits::default()).assert_passed();
    run_peers(&file(1), &file(1), &Limits::default()).assert_passed();
}
