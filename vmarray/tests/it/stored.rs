//! Tests of arrays in files: stored elements survive any end of the program.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use futures::executor::block_on;
use vmarray::device::wrap::SplitMix64;
use vmarray::device::{Device, ErrorKind as DeviceErrorKind};
use vmarray::host::HostDevice;
use vmarray::store::{StoreDevice, Tier};
use vmarray::support::private_dir;
use vmarray::{ErrorKind, Placement, VirtualArray, file::SaveOptions, prelude::*};
use vmarray_conformance::wrap::Faulty;

/// Paths of files that are removed at the end.
pub struct Files(pub Vec<PathBuf>);

impl Files {
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| std::env::temp_dir().join(private_dir::random_name())).collect())
    }
}

impl Files {
    /// Copies the files in their present state, as a power loss would leave them.
    pub fn copies(&self) -> Self {
        let copies = Self::new(self.0.len());
        for (from, to) in self.0.iter().zip(&copies.0) {
            std::fs::copy(from, to).unwrap();
        }
        copies
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

pub fn of_device(error: &vmarray::Error) -> Option<DeviceErrorKind> {
    match error.kind() {
        ErrorKind::Device(error) => Some(error.kind()),
        _ => None,
    }
}

/// Files of no and of one element are opened, checked, saved and extended like others, closed or killed.
#[test]
fn short_arrays_are_files_like_others() {
    let builder = |len| VirtualArray::<u16>::builder(len).page_len(3).cache_bytes(1 << 10);
    let found = |files: &Files| builder(0).open_read_only(&files.0).unwrap().to_vec(..).unwrap();
    for (count, len) in [(1, 0), (1, 1), (3, 0), (3, 1)] {
        for (pushed, kept) in [(0, usize::MAX), (20, usize::MAX), (0, 0), (20, 0)] {
            let files = Files::new(count);
            let mut array = builder(len).create(&files.0).unwrap();
            array.extend_from_slice(&vec![7; pushed]).unwrap();
            array.sync().unwrap();
            array.truncate(kept).unwrap();
            array.sync().unwrap();
            let expected = array.to_vec(..).unwrap();
            assert_eq!(expected.len(), (len + pushed).min(kept));
            let killed = files.copies();
            assert!(killed.0.iter().all(|path| !StoreDevice::check(path).unwrap().is_closed));
            assert_eq!(found(&killed), expected);
            assert!(array.check_pages().unwrap().is_empty());
            let saved = [Files::new(1), Files::new(1)];
            array.save(&saved[0].0[0]).unwrap();
            let options = SaveOptions::new().point_in_time(true);
            array.save_with(&saved[1].0[0], options, |_| ControlFlow::Continue(())).unwrap();
            drop(array);
            assert_eq!(found(&files), expected);
            for of in saved.iter().chain([&killed, &files]) {
                if let [path] = &of.0[..] {
                    assert_eq!(builder(0).load(path).unwrap().to_vec(..).unwrap(), expected);
                }
                builder(0).open(&of.0).unwrap().extend_from_slice(&[9; 10]).unwrap();
                assert_eq!(found(of), [&expected[..], &[9; 10]].concat());
                for path in &of.0 {
                    let report = StoreDevice::check(path).unwrap();
                    assert!(report.is_closed && report.damaged_pages.is_empty(), "{report:?}");
                }
            }
        }
    }
}

/// Writes of a random program survive each close and reopening of the array.
#[test]
fn arrays_are_reopened_as_they_were() {
    for seed in 0..12 {
        let mut random = SplitMix64::new(seed);
        let files = Files::new(1 + random.index(3));
        let (len, page_len) = (1 + random.index(5000), 1 + random.index(300));
        let builder = || VirtualArray::<u32>::builder(len).page_len(page_len).cache_bytes(4 << 10);
        let ratios = Placement::Ratios((0..files.0.len() as u32).map(|file| 1 + file).collect());
        let placement = if random.index(2) == 0 { Placement::Equal } else { ratios };
        let mut array = builder().placement(placement).create(&files.0).unwrap();
        let mut model = vec![0; len];
        for step in 0..60 {
            let start = random.index(len);
            let end = start + random.index(len - start + 1);
            match random.index(8) {
                0 => {
                    array.fill(start..end, step).unwrap();
                    model[start..end].fill(step);
                }
                1 => {
                    let values: Vec<u32> = (start..end).map(|i| i as u32 ^ step).collect();
                    array.write(start, &values).unwrap();
                    model[start..end].copy_from_slice(&values);
                }
                2 => {
                    let whole = Field::<u32, u32>::whole();
                    array.transform(start..end, whole.set(whole + 3)).unwrap();
                    model[start..end].iter_mut().for_each(|value| *value += 3);
                }
                3 => {
                    array.discard(start..end).unwrap();
                    // Afterwards, pages that the change covers are zeroes, and all other pages are unchanged.
                    array.read(start, &mut model[start..end]).unwrap();
                }
                4 => array.sync().unwrap(),
                5 => {
                    drop(array);
                    let mut named = files.0.clone();
                    named.reverse();
                    array = builder().open(&named).unwrap();
                    assert_eq!((array.len(), array.page_len()), (len, page_len.min(array.page_len())));
                    assert!(array.to_vec(..).unwrap() == model, "seed {seed}, step {step}");
                }
                6 => {
                    let sum: i128 = model.iter().map(|value| i128::from(*value)).sum();
                    assert_eq!(array.sum(.., Field::whole()).unwrap(), sum, "seed {seed}");
                }
                _ => {
                    array.set(start, step).unwrap();
                    model[start] = step;
                }
            }
        }
        assert!(array.to_vec(..).unwrap() == model, "seed {seed}");
    }
}

/// Synced data is in the file while the array is still open: a copy of the file has it.
#[test]
fn a_copy_of_the_file_has_the_synced_state() {
    let files = Files::new(2);
    let array = VirtualArray::<u64>::create(&files.0[0], 100_000).unwrap();
    array.write(0, &(0..100_000).collect::<Vec<u64>>()).unwrap();
    array.sync().unwrap();
    array.fill(.., 7).unwrap();
    array.flush(..).unwrap();
    std::fs::copy(&files.0[0], &files.0[1]).unwrap();
    let copy = VirtualArray::<u64>::open(&files.0[1]).unwrap();
    assert!(copy.to_vec(..).unwrap().into_iter().eq(0..100_000));
}

#[test]
fn one_writes_or_many_read() {
    let files = Files::new(1);
    let path = &files.0[0];
    let array = VirtualArray::<u16>::create(path, 1000).unwrap();
    array.set(5, 6).unwrap();
    let read_only = || VirtualArray::<u16>::builder(0).open_read_only([path]);
    assert_eq!(of_device(&VirtualArray::<u16>::open(path).unwrap_err()), Some(DeviceErrorKind::InUse));
    assert_eq!(of_device(&read_only().unwrap_err()), Some(DeviceErrorKind::InUse));
    assert!(of_device(&VirtualArray::<u16>::create(path, 1).unwrap_err()).is_some());
    drop(array);

    let (one, other) = (read_only().unwrap(), read_only().unwrap());
    assert_eq!(of_device(&VirtualArray::<u16>::open(path).unwrap_err()), Some(DeviceErrorKind::InUse));
    let whole = Field::<u16, u16>::whole();
    // Test an untouched page, and a page in RAM.
    for round in 0..2 {
        let refusals = [
            one.set(5, 1),
            one.set_uncached(5, 1),
            one.write(0, &[1; 1000]),
            one.fill(.., 1),
            one.discard(..),
            one.transform(.., whole.set(whole + 1)).map(drop),
            one.update(5, |value| value + 1).map(drop),
            one.replace(5, 1).map(drop),
            one.scatter(&[5], &[1]),
            one.page_mut(0).map(drop),
            block_on(one.set_async(5, 1)),
            block_on(one.page_mut_async(0)).map(drop),
            one.copy_from(0, &other),
        ];
        for (at, refusal) in refusals.into_iter().enumerate() {
            let error = refusal.err().unwrap_or_else(|| panic!("{at} is not refused in round {round}"));
            assert_eq!(of_device(&error), Some(DeviceErrorKind::ReadOnly), "{at}");
        }
        assert_eq!((one.get(5).unwrap(), other.get(5).unwrap()), (6, 6));
    }
    assert_eq!((one.get(5).unwrap(), other.get(5).unwrap(), one.sum(.., whole).unwrap()), (6, 6, 6));
    one.sync().unwrap();
}

#[test]
fn wrong_files_are_refused_and_named() {
    let files = Files::new(4);
    let [a, b, c, d] = &files.0[..] else { unreachable!() };
    drop(VirtualArray::<f32>::builder(1000).create([a, b]).unwrap());
    drop(VirtualArray::<f32>::builder(1000).create([c]).unwrap());
    let open = |paths: &[&PathBuf]| VirtualArray::<f32>::builder(0).open(paths).map(drop);
    let text = |result: vmarray::Result<()>| result.unwrap_err().to_string();
    let other = text(VirtualArray::<i32>::builder(0).open([a, b]).map(drop));
    assert!(other.contains("`f32`") && other.contains("`i32`"), "{other}");
    for wrong in [&[a][..], &[a, c], &[a, b, c], &[a, a]] {
        let _ = text(open(wrong));
    }
    assert!(text(open(&[a, c])).contains("of array"), "{}", text(open(&[a, c])));
    open(&[b, a]).unwrap();
    std::fs::write(d, vec![0; 100_000]).unwrap();
    assert_eq!(of_device(&open(&[d]).unwrap_err()), Some(DeviceErrorKind::WrongFormat));
    drop(StoreDevice::open(c).unwrap().set_metadata(b"something else"));
    assert!(text(open(&[c])).contains("something else"));
    assert!(open(&[]).is_err());
    // If the second file cannot be created, no file is left.
    let missing = std::env::temp_dir().join(private_dir::random_name());
    assert!(VirtualArray::<f32>::builder(1000).create([&missing, a]).is_err());
    assert!(!missing.exists());
    assert!(VirtualArray::<f32>::builder(1000).placement(Placement::Capacity).create([&missing]).is_err());
    assert!(VirtualArray::<f32>::builder(1000).movable(true).create([&missing]).is_err());
    assert!(!missing.exists());
}

/// A flipped bit on the disk is an error that names page and file; other pages are readable.
#[test]
fn a_flipped_bit_is_an_error_and_no_value() {
    let files = Files::new(1);
    let array = VirtualArray::<u64>::builder(1 << 14).page_len(1024).create(&files.0).unwrap();
    array.write(0, &(0..1 << 14).map(|i| i | 1 << 60).collect::<Vec<u64>>()).unwrap();
    drop(array);
    let mut bytes = std::fs::read(&files.0[0]).unwrap();
    let wanted = (5000_u64 | 1 << 60).to_ne_bytes();
    let at = bytes.windows(8).position(|window| window == wanted).unwrap();
    bytes[at] ^= 4;
    std::fs::write(&files.0[0], &bytes).unwrap();
    let report = StoreDevice::check(&files.0[0]).unwrap();
    assert_eq!((report.damaged_pages.len(), report.stored_pages), (1, 16));
    let array = VirtualArray::<u64>::open(&files.0[0]).unwrap();
    let name = files.0[0].file_name().unwrap().to_str().unwrap().to_owned();
    for error in [array.get(5000).unwrap_err(), array.sum(.., Field::whole()).unwrap_err()] {
        assert_eq!(of_device(&error), Some(DeviceErrorKind::Corrupted));
        assert!(error.to_string().contains(&name), "{error}");
    }
    assert_eq!(array.get(3000).unwrap(), 3000 | 1 << 60);
    let wrong = array.check_pages().unwrap();
    assert!(wrong.len() == 1 && wrong[0].0 == 5000 / 1024, "{wrong:?}");
    // A write of the whole page repairs it.
    array.write(4096, &[1; 1024]).unwrap();
    array.sync().unwrap();
    assert_eq!(array.get(5000).unwrap(), 1);
}

#[test]
fn only_files_can_be_synced() {
    let array = VirtualArray::<u32>::builder(10).build().unwrap();
    assert_eq!(of_device(&array.sync().unwrap_err()), Some(DeviceErrorKind::Unsupported));
}

/// A snapshot has all pages of one instant, also during writes; only a complete file replaces an old one.
#[test]
fn snapshots_are_whole_or_not_there() {
    let files = Files::new(1);
    let path = &files.0[0];
    let len = 20_000;
    let array = VirtualArray::<[u64; 4]>::builder(len).page_len(16).cache_bytes(64 << 10).build().unwrap();
    array.fill(.., [1; 4]).unwrap();
    array.save(path).unwrap();
    let stopped = array.save_with(path, SaveOptions::new(), |progress| {
        assert!(progress.done_bytes <= progress.all_bytes);
        ControlFlow::Break(())
    });
    assert_eq!(*stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    std::thread::scope(|scope| {
        scope.spawn(|| (2..30).for_each(|value| array.fill(.., [value; 4]).unwrap()));
        for _ in 0..5 {
            let before = array.get(0).unwrap()[0];
            array.save(path).unwrap();
            let saved = VirtualArray::<[u64; 4]>::open(path).unwrap();
            for element in saved.to_vec(..).unwrap() {
                assert!(element == [element[0]; 4] && element[0] >= before, "{element:?}, begun at {before}");
            }
        }
    });
    let folder = path.parent().unwrap().join("is not there").join("file");
    assert!(array.save(&folder).is_err());
    let loaded = VirtualArray::<[u64; 4]>::builder(0).page_len(100).load(path).unwrap();
    assert_eq!((loaded.len(), loaded.page_len()), (len, 100));
    assert!(VirtualArray::<u64>::builder(0).load(path).is_err());
}

#[test]
fn boxes_are_reopened_and_loaded_with_their_shape() {
    let files = Files::new(3);
    let values = |[y, x]: [usize; 2]| (y * 1000 + x) as u32;
    for tiled in [false, true] {
        let builder = NdArray::<u32, 2>::builder([50, 70]);
        let builder = if tiled { builder.tile([8, 16]) } else { builder };
        let image = builder.create(&files.0[..2]).unwrap();
        for y in 0..50 {
            (0..70).for_each(|x| image.set([y, x], values([y, x])).unwrap());
        }
        image.save(&files.0[2]).unwrap();
        let layout = image.layout();
        drop(image);
        let opened = NdArray::<u32, 2>::builder([0, 0]).open(&files.0[..2]).unwrap();
        let loaded = NdArray::<u32, 2>::builder([0, 0]).load(&files.0[2]).unwrap();
        for image in [opened, loaded] {
            assert_eq!((image.shape(), image.layout()), ([50, 70], layout));
            for y in 0..50 {
                assert!((0..70).all(|x| image.get([y, x]).unwrap() == values([y, x])));
            }
        }
        let error = VirtualArray::<u32>::open(&files.0[2]).unwrap_err().to_string();
        assert!(error.contains("50 x 70") && error.contains("linear"), "{error}");
        files.0.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

/// GPUs between files and RAM change only the source of elements: the values and the files are equal, also
/// after the loss of a GPU.
#[test]
fn a_tier_changes_where_pages_come_from_alone() {
    for seed in 0..6 {
        let mut random = SplitMix64::new(seed);
        let files = Files::new(1 + random.index(2));
        let (len, page_len) = (20_000, 50 + random.index(200));
        let card = || Arc::new(Faulty::new(HostDevice::new(24 << 10).unwrap()));
        let cards = [card(), card()];
        let tier = Tier::new(cards.clone());
        let builder =
            || VirtualArray::<u32>::builder(len).page_len(page_len).cache_bytes(4 << 10).tier(&tier);
        let mut array = builder().create(&files.0).unwrap();
        let mut model: Vec<u32> = (0..len as u32).collect();
        array.write(0, &model).unwrap();
        for step in 0..400_u32 {
            // Choose some places more often than others.
            let index = random.index(len).min(random.index(len)).min(random.index(len));
            match step % 8 {
                0 => {
                    let end = (index + random.index(1000)).min(len);
                    array.fill(index..end, step).unwrap();
                    model[index..end].fill(step);
                }
                1 => {
                    array.set(index, step).unwrap();
                    model[index] = step;
                }
                2 => {
                    let indices: Vec<usize> = (0..50).map(|_| random.index(len)).collect();
                    let wanted: Vec<u32> = indices.iter().map(|index| model[*index]).collect();
                    assert_eq!(array.gather(&indices).unwrap(), wanted);
                }
                3 if step == 203 => cards[0].lose(),
                3 if step == 107 => {
                    array.sync().unwrap();
                    drop(array);
                    array = builder().open(&files.0).unwrap();
                }
                _ => assert_eq!(array.get(index).unwrap(), model[index], "seed {seed}, step {step}"),
            }
        }
        assert!(array.to_vec(..).unwrap() == model, "seed {seed}");
        let status = tier.status();
        assert!(status.hits > 20 && status.lost.len() == 1, "{status:?}");
        drop(array);
        assert_eq!(cards[1].memory().unwrap().free_bytes, 24 << 10);
        // The files have all data.
        let alone = VirtualArray::<u32>::builder(0).open_read_only(&files.0).unwrap();
        assert!(alone.to_vec(..).unwrap() == model, "seed {seed}");
    }
}

/// Pages that are in transit to frames when an array is dropped do not prevent the write-back of others.
#[test]
fn a_drop_awaits_prefetches_and_writes_back() {
    let files = Files::new(1);
    let array = VirtualArray::<u64>::builder(1 << 12).page_len(64).create(&files.0).unwrap();
    array.fill(.., 1).unwrap();
    drop(array);
    for round in 0..20 {
        let array = VirtualArray::<u64>::builder(0).open(&files.0).unwrap();
        array.set(4000, round).unwrap();
        array.prefetch(..2000).unwrap();
        drop(array);
        let array = VirtualArray::<u64>::builder(0).open(&files.0).unwrap();
        assert_eq!((array.get(4000).unwrap(), array.get(0).unwrap()), (round, 1));
    }
}

#[test]
fn a_tier_is_for_files() {
    let tier = Tier::new([Arc::new(HostDevice::new(1 << 20).unwrap())]);
    let error = VirtualArray::<u32>::builder(10).tier(&tier).build().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::FileRefused { .. }), "{error}");
    assert_eq!(tier.status(), vmarray::store::TierStatus::default());
}

/// A read-only array can have a tier, and a flipped bit on the drive never reaches a GPU.
#[test]
fn a_flipped_bit_does_not_come_to_a_card() {
    let files = Files::new(1);
    let array = VirtualArray::<u64>::builder(1 << 12).page_len(512).create(&files.0).unwrap();
    array.write(0, &(0..1 << 12).map(|i| i | 1 << 60).collect::<Vec<u64>>()).unwrap();
    drop(array);
    let mut bytes = std::fs::read(&files.0[0]).unwrap();
    let wanted = (1000_u64 | 1 << 60).to_ne_bytes();
    let at = bytes.windows(8).position(|window| window == wanted).unwrap();
    bytes[at] ^= 4;
    std::fs::write(&files.0[0], &bytes).unwrap();
    let tier = Tier::new([Arc::new(HostDevice::new(1 << 20).unwrap())]);
    let builder = VirtualArray::<u64>::builder(0).frames_per_channel(1).read_ahead(false).tier(&tier);
    let array = builder.open_read_only(&files.0).unwrap();
    for _ in 0..3 {
        assert_eq!(of_device(&array.get(1000).unwrap_err()), Some(DeviceErrorKind::Corrupted));
        assert_eq!(array.get(100).unwrap(), 100 | 1 << 60);
        assert_eq!(array.get(3000).unwrap(), 3000 | 1 << 60);
    }
    assert_eq!(tier.status().bytes, 2 * 4096);
}
