//! An array in a temporary file of 32 MiB, with 1 MiB of RAM as its cache. The example prints the memory that
//! the array uses, the bytes that it copied, and the error for an array that does not fit. For an array on
//! GPUs, omit the call of `devices`; the rest of the code is the same.
//!
//!     cargo run -p vmarray --example 02_larger_than_ram

use std::sync::Arc;

use vmarray::store::FileDevice;
use vmarray::{ErrorKind, prelude::*};

const LEN: usize = 4 << 20;

fn main() -> vmarray::Result<()> {
    let file =
        Arc::new(FileDevice::builder(std::env::temp_dir()).name("scratch file").create_temporary(32 << 20)?);

    // `build` allocates device memory, and refuses an array that is too long.
    let error = VirtualArray::<u64>::builder(2 * LEN).devices([file.clone()]).build().unwrap_err();
    println!("twice as long: {error}\n");
    assert!(matches!(
        error.kind(),
        ErrorKind::DoesNotFit { asked_bytes: 0x400_0000, usable_bytes: 0x200_0000, .. }
    ));

    let array = VirtualArray::<u64>::builder(LEN)
        .devices([file])
        .page_len(8 << 10)
        .cache_bytes(1 << 20)
        .count_hits(true)
        .build()?;
    let mut piece = vec![0; 1 << 16];
    for start in (0..LEN).step_by(piece.len()) {
        piece
            .iter_mut()
            .zip(start..)
            .for_each(|(value, i)| *value = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        array.write(start, &piece)?;
    }
    let footprint = array.footprint();
    println!(
        "{} MiB on the device, {:.1} of at most {:.1} MiB of RAM as cache, {} KiB for the page table",
        footprint.device_bytes >> 20,
        footprint.cache_bytes as f64 / f64::from(1 << 20),
        footprint.cache_max_bytes as f64 / f64::from(1 << 20),
        footprint.table_bytes >> 10,
    );
    assert_eq!(footprint.device_bytes, 32 << 20);
    assert!(footprint.cache_bytes <= 1 << 20);

    // Read 200 000 random elements: first of the whole array, then of a part that fits in the cache. A read
    // of an uncached page first copies only the element. When such copies have cost as much as a copy of the
    // page, the array copies the whole page to the cache.
    for (what, span) in [("all over", LEN), ("within half a MiB", 1 << 16)] {
        array.evict(..)?;
        array.reset_stats();
        let mut place = 1;
        for _ in 0..200_000 {
            place = (place * 48_271) % 0x7FFF_FFFF;
            let i = place % span;
            assert_eq!(array.get(i)?, (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
        let stats = array.stats();
        let hit_rate = stats.hit_rate().expect("the example has read elements");
        println!(
            "{what}: {:.1} % of the reads found their page in RAM, {} KiB were fetched",
            100.0 * hit_rate,
            stats.total().bytes_from_device >> 10,
        );
        assert!(span == LEN || hit_rate > 0.99);
    }
    Ok(())
}
