//! Tests of arrays on files: threads read and write elements directly, without queues and frames. Counts the
//! bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::host::HostDevice;
use vmarray::prelude::*;
use vmarray::store::FileDevice;
use vmarray::support::private_dir;
use vmarray::{AnyDevice, RaggedArray};

use crate::common::{Numbers, Shape, as_any, moved_by, together};

const PAGE_LEN: usize = 1024;
const PAGE_BYTES: u64 = 4 * PAGE_LEN as u64;

fn file() -> Arc<AnyDevice> {
    let file = FileDevice::builder(std::env::temp_dir()).create_temporary(1 << 20);
    as_any(&Arc::new(file.unwrap()))
}

/// 100 pages in a file, 4 frames, each element its own index, and an empty cache.
fn numbered() -> VirtualArray<u32> {
    let array = Shape::one(PAGE_LEN, 4).describe(100 * PAGE_LEN, vec![file()]).build().unwrap();
    array.write(0, &(0..100 * PAGE_LEN as u32).collect::<Vec<_>>()).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

#[test]
fn short_accesses_copy_only_the_requested_bytes() {
    let array = numbered();
    let moved = moved_by(&array, || {
        for page in 0..100 {
            let at = page * PAGE_LEN + 7;
            assert_eq!(array.get(at).unwrap(), at as u32);
            let mut few = [0; 3];
            array.read(at, &mut few).unwrap();
            assert_eq!(few, [0, 1, 2].map(|i| at as u32 + i));
        }
    });
    assert_eq!(moved, (0, 100 * 16));
    let moved = moved_by(&array, || {
        for page in 0..100 {
            let at = page * PAGE_LEN + 7;
            array.write(at, &[1, 2]).unwrap();
        }
    });
    assert_eq!(moved, (100 * 8, 0));
    // Reads of cached pages use the cache, and changed pages are written back.
    let array = numbered();
    let moved = moved_by(&array, || {
        array.set(7, 8).unwrap();
        assert_eq!(array.compare_exchange(7, 9, 1).unwrap(), Err(8));
        assert_eq!(array.compare_exchange(7, 8, 1).unwrap(), Ok(8));
    });
    assert_eq!((moved, array.get(7).unwrap()), ((8, 8), 1));
}

/// Elements of one word, without alignment to the word.
#[test]
fn elements_of_any_alignment_are_changed_where_they_live() {
    let array = Shape::one(PAGE_LEN, 4).describe::<[u8; 8], _>(PAGE_LEN, vec![file()]).build().unwrap();
    array.fill(.., [1; 8]).unwrap();
    array.evict(..).unwrap();
    for at in 0..20 {
        array.set(3 * at, [2; 8]).unwrap();
        assert_eq!(array.replace(3 * at, [3; 8]).unwrap(), [2; 8]);
        assert_eq!(array.compare_exchange(3 * at, [3; 8], [4; 8]).unwrap(), Ok([3; 8]));
        assert_eq!(array.update(3 * at, |value| value.map(|byte| byte + 1)).unwrap(), [4; 8]);
        assert_eq!((array.get(3 * at).unwrap(), array.get(3 * at + 1).unwrap()), ([5; 8], [1; 8]));
    }
}

/// A scatter and an update of the same elements are serialised.
#[test]
fn updates_and_scatters_do_not_undo_each_other() {
    const LEN: usize = 256;
    let array = Shape::one(16, 1).describe::<u32, _>(LEN, vec![file()]).build().unwrap();
    array.fill(.., 0).unwrap();
    array.evict(..).unwrap();
    let list: Vec<usize> = (0..LEN).collect();
    for turn in 1..=200 {
        together(2, |thread| match thread {
            0 => array.scatter(&list, &vec![1000 * turn; LEN]).unwrap(),
            _ => list.iter().for_each(|at| {
                array.update(*at, |value| value + 1).unwrap();
            }),
        });
        // The result has either the update after the scatter, or the scatter after the update.
        let all = array.to_vec(..).unwrap();
        assert!(all.iter().all(|value| *value == 1000 * turn || *value == 1000 * turn + 1), "{all:?}");
    }
}

#[test]
fn a_page_that_is_read_often_is_fetched() {
    let array = numbered();
    let mut reads = 0;
    let moved = moved_by(&array, || {
        while array.stats().total().bytes_from_device < PAGE_BYTES {
            assert_eq!(array.get(reads).unwrap(), reads as u32);
            reads += 1;
        }
    });
    // The last of these reads fetched the page.
    assert_eq!(moved.1, 4 * (reads as u64 - 1) + PAGE_BYTES);
    assert!((10..30).contains(&reads), "{reads}");
    let moved =
        moved_by(&array, || (0..PAGE_LEN).for_each(|at| assert_eq!(array.get(at).unwrap(), at as u32)));
    assert_eq!(moved, (0, 0));
}

#[test]
fn long_reads_copy_each_byte_once_and_keep_frames() {
    let array = numbered();
    (0..20).for_each(|_| assert_eq!(array.get(0).unwrap(), 0));
    let moved = moved_by(&array, || {
        assert_eq!(
            array.to_vec(5..10 * PAGE_LEN + 3).unwrap(),
            (5..10 * PAGE_LEN as u32 + 3).collect::<Vec<_>>()
        );
    });
    // The first page is in its frame already.
    assert_eq!(moved, (0, 4 * (9 * PAGE_LEN as u64 + 3)));
    assert_eq!(moved_by(&array, || array.get(9).unwrap()), (0, 0));
}

#[test]
fn rows_are_read_where_they_live() {
    let device = Arc::new(HostDevice::new(1 << 24).unwrap());
    let rows: Vec<Vec<u32>> = (0..10_000).map(|row| vec![row; row as usize % 32]).collect();
    let builder = RaggedArray::<u32>::builder().devices([device]).elements(|all| all.frames_per_channel(1));
    let ragged = builder.from_rows(&rows).unwrap();
    ragged.items().evict(..).unwrap();
    ragged.items().reset_stats();
    let mut random = Numbers::new(3);
    let mut bytes = 0;
    for _ in 0..100 {
        let row = random.below(rows.len());
        bytes += 4 * rows[row].len() as u64;
        assert_eq!(ragged.row(row).unwrap().to_vec(..).unwrap(), rows[row]);
    }
    assert_eq!(ragged.items().stats().total().bytes_from_device, bytes);
}

#[test]
fn a_file_that_was_cut_off_is_an_error_and_the_rest_goes_on() {
    let path = std::env::temp_dir().join(private_dir::random_name());
    let device = Arc::new(FileDevice::create(&path, 1 << 20).unwrap());
    let array = Shape::one(PAGE_LEN, 4).describe::<u32, _>(100 * PAGE_LEN, vec![device]).build().unwrap();
    array.fill(.., 7).unwrap();
    array.evict(..).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(50 * PAGE_BYTES).unwrap();
    let mut all = vec![0; 100 * PAGE_LEN];
    for outcome in [
        array.get(60 * PAGE_LEN).map(drop),
        array.to_vec(60 * PAGE_LEN..61 * PAGE_LEN).map(drop),
        array.read(0, &mut all),
        array.page(60).map(drop),
        array.update(60 * PAGE_LEN, |value| value + 1).map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::CopyFailed, "{error}");
        assert!(error.to_string().contains("truncated"), "{error}");
    }
    // No page stays locked, and no frame is lost.
    for page in (0..50).cycle().take(200) {
        assert_eq!(array.page(page).unwrap()[3], 7);
    }
    array.set(60 * PAGE_LEN + 1, 1).unwrap_err();
    drop(array);
    std::fs::remove_file(path).unwrap();
}

/// Only queues order kernels that write; threads that read outside the queues never see half of a kernel's
/// writes.
#[test]
fn no_read_sees_half_of_a_kernels_writes() {
    const LEN: usize = 4096;
    type Record = [u32; 11];
    let array = Shape { frames: 2, channels: vec![2], ..Shape::one(64, 2) }
        .describe::<Record, _>(LEN, vec![file()])
        .build()
        .unwrap();
    array.fill(.., [0; 11]).unwrap();
    array.evict(..).unwrap();
    let is_over = AtomicBool::new(false);
    let is_whole = |record: &Record| record.iter().all(|word| *word == record[0]);
    together(4, |thread| {
        let mut random = Numbers::new(thread as u64);
        if thread == 0 {
            for turn in 1..=100 {
                let list: Vec<usize> = (0..1000).map(|_| random.below(LEN)).collect();
                array.scatter(&list, &vec![[turn; 11]; list.len()]).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        }
        while !is_over.load(Ordering::Relaxed) {
            let at = random.below(LEN - 300);
            assert!(is_whole(&array.get(at).unwrap()));
            assert!(is_whole(&array.get_uncached(at).unwrap()));
            assert!(array.to_vec(at..at + 3).unwrap().iter().all(is_whole));
            assert!(array.to_vec(at..at + 300).unwrap().iter().all(is_whole));
        }
    });
}
