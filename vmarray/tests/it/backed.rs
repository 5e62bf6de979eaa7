//! Tests of arrays whose pages functions of the program read and write.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::SplitMix64;
use vmarray::host::HostDevice;
use vmarray::store::{Backing, Tier};
use vmarray::{ErrorKind, VirtualArray, prelude::*};

use crate::stored::of_device;

/// A program's store of pages of `u32`.
#[derive(Debug, Default)]
struct Kept {
    pages: Mutex<Vec<Vec<u8>>>,
    reads: AtomicU64,
    syncs: AtomicU64,
    /// Error of reads and writes of each page.
    bad: Mutex<std::collections::HashMap<u64, io::ErrorKind>>,
    /// A page whose reads and writes block until this is `None`, and the number of threads in them.
    slow: Mutex<(Option<u64>, usize)>,
    slow_changed: Condvar,
}

impl Kept {
    fn be_slow_with(&self, page: Option<u64>) {
        self.slow.lock().unwrap().0 = page;
        self.slow_changed.notify_all();
    }

    fn pass(&self, page: u64) {
        let mut slow = self.slow.lock().unwrap();
        slow.1 += 1;
        self.slow_changed.notify_all();
        let mut slow = self.slow_changed.wait_while(slow, |slow| slow.0 == Some(page)).unwrap();
        slow.1 -= 1;
    }

    /// Waits until a thread accesses the slow page.
    fn await_thread(&self) {
        let slow = self.slow.lock().unwrap();
        drop(self.slow_changed.wait_while(slow, |slow| slow.1 == 0).unwrap());
    }
}

/// The kind that triggers a panic.
const PANIC: io::ErrorKind = io::ErrorKind::Deadlock;

#[derive(Clone, Debug)]
struct Pages {
    kept: Arc<Kept>,
    page_bytes: usize,
    is_read_only: bool,
}

impl Pages {
    fn new(count: usize, page_bytes: usize) -> Self {
        let kept = Arc::new(Kept { pages: Mutex::new(vec![vec![0; page_bytes]; count]), ..Kept::default() });
        Self { kept, page_bytes, is_read_only: false }
    }

    fn elements(&self, len: usize) -> Vec<u32> {
        let pages = self.kept.pages.lock().unwrap();
        let bytes = pages.iter().flatten().copied().collect::<Vec<u8>>();
        bytes.chunks_exact(4).take(len).map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap())).collect()
    }

    fn expect_good(&self, page: u64) -> io::Result<()> {
        let bad = self.kept.bad.lock().unwrap().get(&page).copied();
        match bad {
            Some(PANIC) => panic!("the test makes page {page} panic"),
            Some(kind) => Err(io::Error::new(kind, "a bad page")),
            None => Ok(()),
        }
    }
}

impl Backing for Pages {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }
    fn pages(&self) -> u64 {
        self.kept.pages.lock().unwrap().len() as u64
    }
    fn read_page(&self, page: u64, into: &mut [u8]) -> io::Result<()> {
        self.kept.pass(page);
        self.expect_good(page)?;
        self.kept.reads.fetch_add(1, Ordering::Relaxed);
        into.copy_from_slice(&self.kept.pages.lock().unwrap()[page as usize]);
        Ok(())
    }
    fn write_page(&self, page: u64, from: &[u8]) -> io::Result<()> {
        assert!(!self.is_read_only);
        self.kept.pass(page);
        self.expect_good(page)?;
        self.kept.pages.lock().unwrap()[page as usize].copy_from_slice(from);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.kept.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn is_read_only(&self) -> bool {
        self.is_read_only
    }
    fn name(&self) -> String {
        "the archive".into()
    }
}

/// After each `sync` the pages have all changes of a random program, and the next array over them shows them.
#[test]
fn pages_of_the_program_are_an_array() {
    for seed in 0..12 {
        let mut random = SplitMix64::new(seed);
        let (len, page_len) = (1 + random.index(5000), 1 + random.index(300));
        let pages = Pages::new(len.div_ceil(page_len) + random.index(2), 4 * page_len);
        let card = Arc::new(HostDevice::new(1 << 20).unwrap());
        let tier = Tier::new([card]).bytes(8 << 10);
        let build = |random: &mut SplitMix64| {
            let builder = VirtualArray::<u32>::builder(len).cache_bytes(4 << 10);
            let builder = if random.index(2) == 0 { builder } else { builder.tier(&tier) };
            builder.build_over(pages.clone()).unwrap()
        };
        let (mut array, mut model) = (build(&mut random), vec![0_u32; len]);
        for step in 0..60 {
            let start = random.index(len);
            let end = start + random.index(len - start + 1);
            let value = random.next() as u32 % 5;
            match random.index(8) {
                0 => {
                    array.set(start, value).unwrap();
                    model[start] = value;
                }
                1 => {
                    array.fill(start..end, value).unwrap();
                    model[start..end].fill(value);
                }
                2 => {
                    array.write(start, &vec![value; end - start]).unwrap();
                    model[start..end].fill(value);
                }
                3 => {
                    let more = Field::whole().set(Field::whole() + value);
                    array.transform(start..end, more).unwrap();
                    model[start..end].iter_mut().for_each(|element| *element = element.wrapping_add(value));
                }
                4 => {
                    let found = array.count(start..end, Field::whole(), &value).unwrap();
                    let expected = model[start..end].iter().filter(|element| **element == value).count();
                    assert_eq!(found, expected, "seed {seed} step {step}");
                }
                5 => {
                    let indices: Vec<usize> = (0..50).map(|_| random.index(len)).collect();
                    let expected: Vec<u32> = indices.iter().map(|index| model[*index]).collect();
                    assert_eq!(array.gather(&indices).unwrap(), expected, "seed {seed} step {step}");
                }
                6 => {
                    array.sync().unwrap();
                    assert_eq!(pages.elements(len), model, "seed {seed} step {step}");
                }
                _ => {
                    drop(array);
                    assert_eq!(pages.elements(len), model, "seed {seed} step {step}");
                    array = build(&mut random);
                }
            }
            assert_eq!(array.to_vec(start..end).unwrap(), model[start..end], "seed {seed} step {step}");
        }
        let syncs = pages.kept.syncs.load(Ordering::Relaxed);
        array.sync().unwrap();
        assert_eq!(pages.kept.syncs.load(Ordering::Relaxed), syncs + 1);
    }
}

#[test]
fn nothing_is_read_before_it_is_asked_for_and_once_then() {
    let pages = Pages::new(100, 400);
    let array = VirtualArray::<u32>::builder(10_000).build_over(pages.clone()).unwrap();
    assert_eq!(pages.kept.reads.load(Ordering::Relaxed), 0);
    for _ in 0..3 {
        assert_eq!(array.get(5_000).unwrap(), 0);
    }
    assert_eq!(pages.kept.reads.load(Ordering::Relaxed), 1);
    // Query parts of pages on the device. The device reads each page once.
    assert_eq!(array.count(5_210..5_290, Field::whole(), &0).unwrap(), 80);
    assert_eq!(array.count(5_220..5_280, Field::whole(), &0).unwrap(), 60);
    assert_eq!(pages.kept.reads.load(Ordering::Relaxed), 2);
}

#[test]
fn bad_pages_are_named_and_others_go_on() {
    let pages = Pages::new(10, 400);
    let build = || VirtualArray::<u32>::builder(1000).build_over(pages.clone()).unwrap();
    build().fill(.., 7).unwrap();
    let set = |page: u64, kind| {
        pages.kept.bad.lock().unwrap().insert(page, kind);
    };
    for (kind, expected) in [
        (io::ErrorKind::InvalidData, DeviceErrorKind::Corrupted),
        (io::ErrorKind::TimedOut, DeviceErrorKind::CopyFailed),
        (PANIC, DeviceErrorKind::CopyFailed),
    ] {
        set(4, kind);
        let array = build();
        (0..1000).filter(|index| index / 100 != 4).for_each(|index| assert_eq!(array.get(index).unwrap(), 7));
        let error = array.get(450).unwrap_err();
        assert_eq!(of_device(&error), Some(expected), "{error}");
        assert!(error.to_string().contains("page 4 of the archive"), "{error}");
        let error = array.count(400..450, Field::whole(), &7).unwrap_err();
        assert!(error.to_string().contains("page 4 of the archive"), "{error}");
    }
    let array = build();
    assert!(array.get(450).is_err());
    pages.kept.bad.lock().unwrap().clear();
    assert_eq!(array.get(450).unwrap(), 7);

    // A page that cannot be written stays dirty, and is written later.
    array.set(250, 8).unwrap();
    set(2, io::ErrorKind::StorageFull);
    let error = array.sync().unwrap_err();
    assert_eq!(of_device(&error), Some(DeviceErrorKind::OutOfMemory), "{error}");
    pages.kept.bad.lock().unwrap().clear();
    array.sync().unwrap();
    assert_eq!(pages.elements(1000)[250], 8);
}

#[test]
fn pages_that_do_not_suit_are_refused() {
    let build = |pages: Pages| VirtualArray::<u32>::builder(1000).build_over(pages);
    for (count, page_bytes) in [(9, 400), (1000, 402), (1000, 3), (1000, 0)] {
        let error = build(Pages::new(count, page_bytes)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::FileMismatch { .. }), "{error}");
        assert!(error.to_string().contains("the archive"), "{error}");
    }
    let error = NdArray::<u32, 2>::builder([8, 8]).tile([4, 4]).build_over(Pages::new(4, 128)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::FileMismatch { .. }), "{error}");

    let pages = Pages { is_read_only: true, ..Pages::new(10, 400) };
    let array = build(pages.clone()).unwrap();
    assert_eq!(of_device(&array.set(1, 1).unwrap_err()), Some(DeviceErrorKind::ReadOnly));
    assert!(array.fill(.., 1).is_err() && array.transform(.., Field::whole().set(1)).is_err());
    array.sync().unwrap();
    drop(array);
    assert_eq!(pages.kept.syncs.load(Ordering::Relaxed), 0);
}

/// While the home is slow with one page, all work without that page continues, except work of devices that
/// write to pages. Otherwise the test would not end.
#[test]
fn a_slow_home_blocks_no_other_pages() {
    let pages = Pages::new(40, 4 * 100);
    let array = VirtualArray::<u32>::builder(4000).cache_bytes(8 * 400).build_over(pages.clone()).unwrap();
    array.set(0, 1).unwrap();
    pages.kept.be_slow_with(Some(30));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| array.get(3050).unwrap());
        pages.kept.await_thread();
        // Access more pages than there are frames.
        for page in 0..25 {
            array.set(page * 100, page as u32 + 1).unwrap();
        }
        assert_eq!(array.gather(&[0, 500, 2400]).unwrap(), [1, 6, 25]);
        array.write(3200, &[7; 700]).unwrap();
        assert_eq!(array.to_vec(3100..3300).unwrap()[99..101], [0, 7]);
        pages.kept.be_slow_with(None);
        assert_eq!(reader.join().unwrap(), 0);
    });
    array.sync().unwrap();
    array.set(550, 9).unwrap();
    pages.kept.be_slow_with(Some(5));
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| array.sync());
        pages.kept.await_thread();
        // Read pages during the write-back, also the page that is being written.
        assert_eq!((array.get(550).unwrap(), array.get(2400).unwrap()), (9, 25));
        pages.kept.be_slow_with(None);
        syncing.join().unwrap().unwrap();
    });
    array.sync().unwrap();
    assert_eq!(pages.elements(4000), array.to_vec(..).unwrap());
}
