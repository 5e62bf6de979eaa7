//! Tests of the coherence of sources: random programs of accesses by the program and by devices, on
//! overlapping sections. The results are compared with a `Vec`, and the copied bytes with the prediction of a
//! naive directory.
//!
//! `VMARRAY_TEST_PROGRAMS` is the number of programs, `VMARRAY_TEST_FIRST_PROGRAM` the first one,
//! `VMARRAY_TEST_DEVICES` the list of devices.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::counted::moved;
use crate::common::executor::block_on;
use crate::common::{Numbers, POLICIES, as_any, devices};
use vmarray::device::Device;
use vmarray::expr::index;
use vmarray::source::{Home, HomeMut};
use vmarray::{AnyDevice, Field, Placement, Source, device::HostMemory};
use vmarray_conformance::wrap::Counting;

/// Memory that the test can read too, like a mapped file of another process. There is one thread, and the
/// test reads only between operations of the source.
struct Watched(NonNull<[u32]>);

// SAFETY: an address; see `Home`.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

// SAFETY: the memory lives until the test frees it after the drop of the source; the test accesses it between
// operations only.
unsafe impl Home<u32> for Watched {
    const OWNED: bool = true;

    fn memory(&mut self) -> NonNull<[u32]> {
        self.0
    }
}

// SAFETY: as above.
unsafe impl HomeMut<u32> for Watched {}

impl Watched {
    fn get(&self, index: usize) -> u32 {
        assert!(index < self.0.len());
        // SAFETY: inside; no thread writes meanwhile.
        unsafe { self.0.cast::<u32>().add(index).read() }
    }

    fn set(&self, index: usize, value: u32) {
        assert!(index < self.0.len());
        // SAFETY: inside; no other thread reads meanwhile.
        unsafe { self.0.cast::<u32>().add(index).write(value) }
    }
}

/// Expected state: the elements, and the valid copy of each block.
struct Model {
    elements: Vec<u32>,
    page_len: usize,
    block_len: usize,
    /// Valid locations by page and block.
    valid: Vec<Vec<bool>>,
    dirty: Vec<Vec<bool>>,
    up: u64,
    down: u64,
}

impl Model {
    fn new(elements: Vec<u32>, page_len: usize) -> Self {
        let pages = elements.len().div_ceil(page_len);
        let block_len = page_len.div_ceil(64);
        let blocks = vec![vec![false; page_len.div_ceil(block_len)]; pages];
        Self { elements, page_len, block_len, valid: blocks.clone(), dirty: blocks, up: 0, down: 0 }
    }

    /// The elements of a block.
    fn block(&self, page: usize, block: usize) -> Range<usize> {
        let page_end = ((page + 1) * self.page_len).min(self.elements.len());
        let start = page * self.page_len + block * self.block_len;
        start.min(page_end)..(start + self.block_len).min(page_end)
    }

    /// The blocks of a range, each with true if the range covers it.
    fn blocks(&self, range: &Range<usize>) -> Vec<(usize, usize, bool)> {
        let mut blocks = Vec::new();
        for page in 0..self.valid.len() {
            for block in 0..self.valid[page].len() {
                let b = self.block(page, block);
                if !range.is_empty() && b.start < b.end && b.start < range.end && range.start < b.end {
                    blocks.push((page, block, range.start <= b.start && b.end <= range.end));
                }
            }
        }
        blocks
    }

    fn bytes(&self, page: usize, block: usize) -> u64 {
        4 * self.block(page, block).len() as u64
    }

    /// Models a read by a device.
    fn prefetch(&mut self, range: &Range<usize>) {
        for (page, block, _) in self.blocks(range) {
            if !std::mem::replace(&mut self.valid[page][block], true) {
                self.up += self.bytes(page, block);
            }
        }
    }

    /// Models a read by the program.
    fn settle(&mut self, range: &Range<usize>) {
        for (page, block, _) in self.blocks(range) {
            if std::mem::replace(&mut self.dirty[page][block], false) {
                self.down += self.bytes(page, block);
            }
        }
    }

    /// Models an overwrite by a device.
    fn fill(&mut self, range: &Range<usize>, value: u32) {
        for (page, block, covered) in self.blocks(range) {
            if !covered && !self.valid[page][block] {
                self.up += self.bytes(page, block);
            }
            self.valid[page][block] = true;
            self.dirty[page][block] = true;
        }
        self.elements[range.clone()].fill(value);
    }

    /// Models an update by a device.
    fn change(&mut self, range: &Range<usize>, change: impl Fn(usize, u32) -> u32) {
        self.prefetch(range);
        for (page, block, _) in self.blocks(range) {
            self.dirty[page][block] = true;
        }
        range.clone().for_each(|i| self.elements[i] = change(i - range.start, self.elements[i]));
    }

    /// Models an overwrite by the program, or its invalidation of the devices' copies. Blocks that are
    /// covered in part are copied home first.
    fn overwrite(&mut self, range: &Range<usize>) {
        for (page, block, covered) in self.blocks(range) {
            if !covered && self.dirty[page][block] {
                self.down += self.bytes(page, block);
            }
            self.valid[page][block] = false;
            self.dirty[page][block] = false;
        }
    }

    fn discard(&mut self, range: &Range<usize>) {
        for (page, block, covered) in self.blocks(range) {
            if covered {
                self.valid[page][block] = false;
                self.dirty[page][block] = false;
            }
        }
    }

    /// Models the eviction of pages from device memory.
    fn evict(&mut self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / self.page_len, (range.end - 1) / self.page_len);
        let whole = first * self.page_len..((last + 1) * self.page_len).min(self.elements.len());
        self.settle(&whole);
        self.discard(&whole);
    }
}

/// Returns a short random range, or sometimes any.
fn any_range(numbers: &mut Numbers, len: usize) -> Range<usize> {
    let most = if numbers.below(4) == 0 { len } else { len.min(12) };
    let start = numbers.below(len + 1);
    start..start + numbers.below(most.min(len - start) + 1)
}

fn program(seed: u64, devices: &[Arc<Counting<AnyDevice>>]) {
    let numbers = &mut Numbers::new(seed);
    let len = [0, 1, 30, 100, 300][numbers.below(5)] + numbers.below(40);
    let page_len = [1, 3, 8, 64, 100, 130][numbers.below(6)] + numbers.below(4);
    let roomy = numbers.below(3) != 0;
    let channels: Vec<u32> = devices.iter().map(|_| 1 + numbers.below(2) as u32).collect();
    let budget = if roomy { 1 << 20 } else { (page_len * 4 * (1 + numbers.below(6))) as u64 };
    let start: Vec<u32> = (0..len).map(|_| numbers.below(4) as u32).collect();
    let mut model = Model::new(start.clone(), page_len);
    let memory = NonNull::from(Box::leak(start.into_boxed_slice()));
    let watched = Watched(memory);
    let mut builder = Source::<u32, _>::builder(Watched(memory))
        .devices(devices.iter().map(as_any))
        .placement(Placement::Ratios(channels))
        .page_len(page_len)
        .device_bytes(budget)
        .eviction(POLICIES[numbers.below(3)]);
    if numbers.below(4) == 0 {
        builder = builder.import(HostMemory::Pageable);
    }
    let mut source = builder.build().unwrap();
    assert_eq!(source.page_len().div_ceil(64), model.block_len);
    let moved_all = || {
        let each = devices.iter().map(|device| moved(device));
        each.fold((0, 0), |(up, down), device| (up + device.0, down + device.1))
    };
    moved_all();
    for step in 0..1 + numbers.below(25) {
        let range = any_range(numbers, len);
        let (value, at) = (numbers.below(4) as u32, range.start);
        // True if the operation also copies lists of results.
        let mut lists = false;
        let what = numbers.below(25);
        match what {
            0..=4 if at == len => {
                assert!(source.get(at).is_err());
                assert!(source.set(at, value).is_err());
            }
            0 | 1 => {
                assert_eq!(source.get(at).unwrap(), model.elements[at]);
                model.settle(&(at..at + 1));
            }
            2 => {
                source
                    .section_mut(range.clone())
                    .unwrap()
                    .set(0, value)
                    .unwrap_or_else(|_| source.set(at, value).unwrap());
                model.overwrite(&(at..at + 1));
                model.elements[at] = value;
            }
            3 => {
                assert_eq!(source.replace(at, value).unwrap(), model.elements[at]);
                model.settle(&(at..at + 1));
                model.overwrite(&(at..at + 1));
                model.elements[at] = value;
            }
            4 => {
                assert_eq!(source.update(at, |x| (x + 1) % 4).unwrap(), model.elements[at]);
                model.settle(&(at..at + 1));
                model.overwrite(&(at..at + 1));
                model.elements[at] = (model.elements[at] + 1) % 4;
            }
            5 => {
                assert_eq!(
                    source.section(range.clone()).unwrap().to_vec(..).unwrap(),
                    model.elements[range.clone()]
                );
                model.settle(&range);
            }
            6 => {
                let from: Vec<u32> = range.clone().map(|_| numbers.below(4) as u32).collect();
                source.write(at, &from).unwrap();
                model.overwrite(&range);
                model.elements[range.clone()].copy_from_slice(&from);
            }
            7 => {
                assert_eq!(source.slice(range.clone()).unwrap(), &model.elements[range.clone()]);
                model.settle(&range);
            }
            8 => {
                let slice = source.slice_mut(range.clone()).unwrap();
                assert_eq!(slice, &model.elements[range.clone()]);
                slice.fill(value);
                model.settle(&range);
                model.overwrite(&range);
                model.elements[range.clone()].fill(value);
            }
            9 | 10 => {
                source.section_mut(range.clone()).unwrap().fill(.., value).unwrap();
                model.fill(&range, value);
            }
            11 => {
                let all: Vec<usize> = range.clone().filter(|&i| model.elements[i] == value).collect();
                let limit = numbers.below(5);
                let found = source.find_first(range.clone(), Field::whole(), &value, limit).unwrap();
                assert_eq!((&found.indices[..], found.total), (&all[..limit.min(all.len())], all.len()));
                model.prefetch(&range);
                lists = true;
            }
            12 => {
                let count = model.elements[range.clone()].iter().filter(|&&x| x == value).count();
                assert_eq!(source.count(range.clone(), Field::whole(), &value).unwrap(), count);
                model.prefetch(&range);
                lists = true;
            }
            13 => {
                source.prefetch(range.clone()).unwrap();
                model.prefetch(&range);
            }
            14 => {
                if numbers.below(2) == 0 {
                    source.flush(range.clone()).unwrap();
                } else {
                    block_on(source.flush_async(range.clone())).unwrap();
                }
                model.settle(&range);
            }
            15 => {
                source.evict(range.clone()).unwrap();
                model.evict(&range);
            }
            16 => {
                // The old value is in the home memory or in the device's copy.
                let before: Vec<u32> = (0..len).map(|i| watched.get(i)).collect();
                source.discard(range.clone()).unwrap();
                model.discard(&range);
                for i in range.clone() {
                    let now = source.get(i).unwrap();
                    assert!(now == model.elements[i] || now == before[i], "seed {seed} step {step}");
                    model.settle(&(i..i + 1));
                    model.elements[i] = now;
                }
            }
            17 => {
                let all: Vec<usize> = range.clone().filter(|&i| model.elements[i] > value).collect();
                let above = Field::whole().gt(value);
                assert_eq!(source.count_where(range.clone(), &above).unwrap(), all.len());
                let found = source.find_where(range.clone(), above, usize::MAX).unwrap();
                assert_eq!((found.indices, found.total), (all.clone(), all.len()));
                model.prefetch(&range);
                lists = true;
            }
            18 => {
                let section = source.section(range.clone()).unwrap();
                let value = Field::<u32, u32>::whole();
                let truth = model.elements[range.clone()].iter().copied().enumerate();
                let sum = truth.clone().map(|(i, x)| i128::from(x) + i as i128).sum::<i128>();
                assert_eq!(section.sum(.., value.cast::<u64>() + index()).unwrap(), sum);
                let greatest = truth.max_by_key(|&(i, x)| (x, std::cmp::Reverse(i)));
                assert_eq!(section.arg_max(.., value).unwrap(), greatest);
                model.prefetch(&range);
                lists = true;
            }
            19 => {
                let section = source.section(range.clone()).unwrap();
                let selected = section.select_where(.., Field::whole().ne(value)).unwrap();
                let truth = model.elements[range.clone()].iter().copied().enumerate();
                assert!(selected.map(Result::unwrap).eq(truth.filter(|(_, x)| *x != value)));
                model.prefetch(&range);
                lists = true;
            }
            20 | 21 => {
                let (element, section) = (Field::whole(), source.section_mut(range.clone()).unwrap());
                section.transform(.., element.set((element + index().cast::<u32>()) % 4)).unwrap();
                model.change(&range, |i, x| (x + i as u32) % 4);
            }
            22 => {
                let (element, section) =
                    (Field::<u32, u32>::whole(), source.section_mut(range.clone()).unwrap());
                let condition = element.lt(value) | (index() % 3).eq(0);
                section.assign_where(.., condition, element.set(value)).unwrap();
                model.change(&range, |i, x| if x < value || i % 3 == 0 { value } else { x });
            }
            23 => {
                // The operation either needs no old elements, or only reads them.
                let element = Field::<u32, u32>::whole();
                if numbers.below(2) == 0 {
                    source.transform(range.clone(), element.set(value)).unwrap();
                    model.fill(&range, value);
                } else {
                    source.transform(range.clone(), element.set(element.eq(5).select(1, value))).unwrap();
                    model.change(&range, |_, _| value);
                }
            }
            _ => {
                // Another user changes the memory.
                range.clone().for_each(|i| watched.set(i, value));
                source.invalidate(range.clone()).unwrap();
                model.overwrite(&range);
                model.elements[range.clone()].fill(value);
            }
        }
        let total = source.stats().total();
        let by_devices = moved_all();
        check(&source, &watched, &model, seed, step, roomy);
        if roomy {
            let named = format!("seed {seed} step {step} operation {what} {range:?}");
            assert_eq!(by_devices, (model.up, model.down), "{named}");
            assert_eq!(total.bytes_to_device, model.up, "{named}");
            if !lists {
                assert_eq!(total.bytes_from_device, model.down, "{named}");
            }
        }
        source.reset_stats();
        moved_all();
        (model.up, model.down) = (0, 0);
    }
    if numbers.below(2) == 0 {
        drop(source);
    } else {
        source.into_home().unwrap();
    }
    // SAFETY: the memory was leaked above. Its only user, the source, has been dropped.
    let home = unsafe { Box::from_raw(memory.as_ptr()) };
    assert_eq!(*home, model.elements, "seed {seed}: all comes home");
}

/// Checks the invariants from outside.
fn check(source: &Source<u32, Watched>, home: &Watched, model: &Model, seed: u64, step: usize, roomy: bool) {
    // Shared copies equal the home.
    assert_eq!(source.verify(..).unwrap(), None, "seed {seed} step {step}");
    for page in 0..source.len().div_ceil(source.page_len()) {
        let state = source.page_state(page).unwrap();
        assert!(
            state.newer <= state.on_device && state.on_device <= state.elements,
            "seed {seed} step {step}"
        );
        assert!(state.has_slot || state.on_device == 0, "seed {seed} step {step}");
        let count = |flags: &[Vec<bool>]| -> usize {
            (0..flags[page].len()).filter(|&b| flags[page][b]).map(|b| model.block(page, b).len()).sum()
        };
        if roomy {
            assert_eq!(state.on_device, count(&model.valid), "seed {seed} step {step} page {page}");
            assert_eq!(state.newer, count(&model.dirty), "seed {seed} step {step} page {page}");
        }
        let first = page * source.page_len();
        let stale = (first..first + state.elements).filter(|&i| home.get(i) != model.elements[i]).count();
        assert!(
            stale <= state.newer,
            "seed {seed} step {step}: what is not newer elsewhere is right at home"
        );
    }
}

#[test]
fn random_programs_are_coherent_and_copy_no_more_than_needed() {
    let counting =
        |device: Arc<AnyDevice>| Arc::new(Counting::new(AnyDevice::from(device as Arc<dyn Device>)));
    let devices: Vec<_> = devices(2).into_iter().map(counting).collect();
    let number = |name: &str, default: u64| match std::env::var(name) {
        Ok(number) => number.parse().expect("a number"),
        Err(_) => default,
    };
    let first = number("VMARRAY_TEST_FIRST_PROGRAM", 1);
    let programs = number("VMARRAY_TEST_PROGRAMS", 2000);
    devices.iter().for_each(|device| println!("on {}", device.info()));
    for seed in first..first + programs {
        program(seed, &devices[..1 + (seed % 2) as usize]);
    }
}
