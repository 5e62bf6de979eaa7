//! Tests of the kernels of row tables, which the host runs in RAM.

use std::sync::Arc;

use backend_api::kernel::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use backend_api::wrap::SplitMix64;

use super::formats::RowFormat;
use super::kernels::*;
use super::launches::RowShape;
use crate::host::HostDevice;
use crate::ops::executor::LibraryKernel;
use crate::ops::executor::kernel_testing::{Column, run};

const ROWS: usize = 70;

fn bytes(random: &mut SplitMix64, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

/// Ids with their words, of which some are outside of the table.
fn list(random: &mut SplitMix64, count: usize, id_words: usize) -> (Vec<i64>, Column) {
    let ids: Vec<i64> = (0..count).map(|_| (random.next() % 80) as i64 - 5).collect();
    let words = ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(4 * id_words)).collect();
    (ids, Column(words, 4))
}

/// A number of a format, by functions that the kernels do not use.
fn number(bytes: &[u8], format: RowFormat) -> f32 {
    let half = || u16::from_le_bytes([bytes[0], bytes[1]]);
    match format {
        RowFormat::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        RowFormat::F16 => f16_to_f32(half()),
        RowFormat::Bf16 => bf16_to_f32(half()),
        RowFormat::E5m2 => f16_to_f32(u16::from(bytes[0]) << 8),
        RowFormat::I8 => f32::from(bytes[0] as i8),
        _ => {
            let (exponent, fraction) = (i32::from(bytes[0] >> 3 & 15), f32::from(bytes[0] & 7));
            let sign = if bytes[0] < 128 { 1.0 } else { -1.0 };
            match (exponent, bytes[0] & 7) {
                (15, 7) => f32::NAN,
                (0, _) => sign * fraction * 2_f32.powi(-9),
                _ => sign * (8.0 + fraction) * 2_f32.powi(exponent - 10),
            }
        }
    }
}

fn stored(number: f32, format: RowFormat) -> Vec<u8> {
    match format {
        RowFormat::F16 => f32_to_f16(number).to_le_bytes().to_vec(),
        RowFormat::Bf16 => f32_to_bf16(number).to_le_bytes().to_vec(),
        _ => number.to_le_bytes().to_vec(),
    }
}

/// The kernel of a shape, as a table selects it.
fn kernel(shape: &RowShape) -> LibraryKernel {
    shape.kernel.lowered().unwrap()
}

#[test]
fn rows_of_any_length_are_copied() {
    let (device, mut random) = (Arc::new(HostDevice::new(8 << 20).unwrap()), SplitMix64::new(1));
    for (row_bytes, id_words) in
        [1, 2, 3, 4, 6, 8, 20, 44, 96, 200, 256, 1040].into_iter().zip([1, 2].repeat(6))
    {
        let shape = RowShape::of_gather(row_bytes, [RowFormat::Raw(1); 2], false, [16, 16]).unwrap();
        let (table, row_bytes) = (bytes(&mut random, ROWS * row_bytes as usize), row_bytes as usize);
        let (ids, words) = list(&mut random, 150, id_words);
        let order: Vec<u64> = (0..150).rev().collect();
        let [from, to] = shape.strides.map(|stride| stride as usize);
        let mut columns = [
            words,
            Column::of(&order, 4),
            // The first row of the memory belongs to another table.
            Column([vec![9; row_bytes], table.clone()].concat(), from),
            Column::zeroed(0, 4),
            Column(vec![7; 150 * row_bytes], to),
            Column::zeroed(2, 8),
        ];
        let values = [
            150,
            ROWS as u64,
            shape.chunks,
            shape.chunks,
            shape.shift(),
            shape.formats[0],
            shape.formats[1],
            id_words as u64,
        ];
        // Fewer groups than rows: each group moves several.
        run(&device, &kernel(&shape), 2 * BLOCK as u64, &mut columns, &values);
        for (id, row) in ids.iter().zip(columns[4].0.chunks(row_bytes)) {
            match usize::try_from(*id).ok().filter(|id| *id < ROWS) {
                Some(id) => assert_eq!(row, &table[id * row_bytes..][..row_bytes], "{row_bytes} {id}"),
                None => assert!(row.iter().all(|byte| *byte == 0)),
            }
        }
        let status = columns[5].words();
        assert_eq!(status[0], 1);
        assert!(ids.contains(&(status[1] as i64)) && status[1] as i64 as usize >= ROWS);
    }
}

#[test]
fn all_formats_are_converted() {
    use RowFormat::{Bf16, E4m3, E5m2, F16, F32, I8};
    let (device, mut random) = (Arc::new(HostDevice::new(8 << 20).unwrap()), SplitMix64::new(2));
    let results = [F32, F16, Bf16];
    for (from, to) in
        [F32, F16, Bf16, E4m3, E5m2, I8].into_iter().flat_map(|from| results.map(|to| (from, to)))
    {
        for len in [8, 5] {
            let shape = RowShape::of_gather(len, [from, to], true, [16, 16]).unwrap();
            assert_eq!(shape.chunks, if len == 8 { 2 } else { 5 });
            let table = bytes(&mut random, ROWS * len as usize * from.bytes());
            let scales: Vec<u64> =
                (0..ROWS).map(|row| u64::from((row as f32 / 7.0 - 4.0).to_bits())).collect();
            let (ids, words) = list(&mut random, 90, 2);
            let mut columns = [
                words,
                Column::zeroed(0, 4),
                Column(table.clone(), shape.strides[0] as usize),
                Column::of(&scales, 4),
                Column(vec![7; 90 * len as usize * to.bytes()], shape.strides[1] as usize),
                Column::zeroed(0, 8),
            ];
            let values =
                [90, ROWS as u64, shape.chunks, 0, shape.shift(), shape.formats[0], shape.formats[1], 2];
            run(&device, &kernel(&shape), shape.groups(90) * BLOCK as u64, &mut columns, &values);
            for (id, row) in ids.iter().zip(columns[4].0.chunks(len as usize * to.bytes())) {
                let Some(id) = usize::try_from(*id).ok().filter(|id| *id < ROWS) else {
                    assert!(row.iter().all(|byte| *byte == 0));
                    continue;
                };
                let elements = table[id * len as usize * from.bytes()..].chunks(from.bytes());
                let scale = f32::from_bits(scales[id] as u32);
                for (element, found) in elements.zip(row.chunks(to.bytes())) {
                    let expected = number(element, from) * scale;
                    let is_nan = expected.is_nan() && number(found, to).is_nan();
                    assert!(
                        is_nan || found == stored(expected, to),
                        "{from:?} {element:?} to {to:?} {found:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn buckets_put_neighbouring_rows_in_order() {
    let (device, mut random) = (Arc::new(HostDevice::new(8 << 20).unwrap()), SplitMix64::new(3));
    let rows = 1 << 20;
    let ids: Vec<u64> = (0..5000).map(|_| random.next() % (rows + 3)).collect();
    let values = [5000, rows, 8, 2];
    let mut columns = [Column(Column::of(&ids, 8).0, 4), Column::zeroed(BUCKETS, 4)];
    let items = 5000_u64.next_multiple_of(BLOCK as u64);
    run(&device, &LibraryKernel::of::<count_ids>(), items, &mut columns, &values);
    let [words, mut counts] = columns;
    assert_eq!(counts.words().iter().sum::<u64>(), 5000);
    run(&device, &LibraryKernel::of::<start_buckets>(), BLOCK as u64, std::slice::from_mut(&mut counts), &[]);
    let mut columns = [words, counts, Column::zeroed(5000, 4)];
    run(&device, &LibraryKernel::of::<place_ids>(), items, &mut columns, &values);
    let order = columns[2].words();
    let buckets: Vec<u64> = order.iter().map(|at| ids[*at as usize].min(rows - 1) >> 8).collect();
    assert!(buckets.is_sorted());
    let mut all = order;
    all.sort_unstable();
    assert!(all.into_iter().eq(0..5000));
}

#[test]
fn bags_are_summed_in_the_order_of_the_list() {
    let (device, mut random) = (Arc::new(HostDevice::new(8 << 20).unwrap()), SplitMix64::new(4));
    let shape = RowShape::of_gather(8, [RowFormat::I8, RowFormat::F32], true, [16, 16]).unwrap();
    let table = bytes(&mut random, ROWS * 8);
    let (ids, words) = list(&mut random, 40, 1);
    // The last offset is beyond the end of the list, and the second bag is empty.
    let (offsets, weights): (Vec<u64>, Vec<u64>) =
        (vec![0, 7, 7, 30, 99], (0..40).map(|at| u64::from((at as f32).to_bits())).collect());
    let mut columns = [
        words,
        Column::of(&offsets, 4),
        Column::of(&weights, 4),
        Column(table.clone(), 4),
        Column::zeroed(0, 4),
        Column(vec![7; 5 * 32], 16),
        Column::zeroed(0, 8),
    ];
    let [from, to] = shape.formats;
    let values = [40, ROWS as u64, shape.chunks, 0, shape.shift(), from, to, 1, 5, 1, 5];
    run(&device, &LibraryKernel::of::<sum_rows<1, 4>>(), BLOCK as u64, &mut columns, &values);
    let found: Vec<f32> = columns[5].0.chunks(4).map(|bytes| number(bytes, RowFormat::F32)).collect();
    for (bag, range) in [0..7, 7..7, 7..30, 30..40, 40..40].into_iter().enumerate() {
        let mut sums = [0.0; 8];
        for at in range {
            let Some(id) = usize::try_from(ids[at]).ok().filter(|id| *id < ROWS) else { continue };
            for (sum, byte) in sums.iter_mut().zip(&table[8 * id..]) {
                *sum += f32::from(*byte as i8) * at as f32;
            }
        }
        assert_eq!(found[8 * bag..8 * bag + 8], sums, "bag {bag}");
    }
}

#[test]
fn rows_that_are_read_often_are_cached() {
    let (device, mut random) = (Arc::new(HostDevice::new(8 << 20).unwrap()), SplitMix64::new(5));
    let (table, sets) = (bytes(&mut random, ROWS * 16), 1);
    let values = [100, ROWS as u64, 2, 0, sets, 0, 0, 1];
    let kernel = LibraryKernel::of::<gather_cached<2, 2>>();
    let mut cache = [
        Column::zeroed(32, 4),
        Column::zeroed(32, 4),
        Column::zeroed(64, 4),
        Column(vec![0; 32 * 16], 8),
        Column::zeroed(2, 8),
    ];
    for number in 0..21 {
        // The first list is read ahead, without a result. Most reads are of ten rows.
        let results = if number == 0 { 0 } else { 100 };
        let ids: Vec<u64> = (0..100).map(|at| random.next() % if at % 10 == 0 { 75 } else { 10 }).collect();
        let mut columns = vec![
            Column::of(&ids, 4),
            Column::zeroed(0, 4),
            Column(table.clone(), 8),
            Column::zeroed(0, 4),
            Column(vec![7; results * 16], 8),
            Column::zeroed(2, 8),
        ];
        columns.extend(cache);
        run(&device, &kernel, BLOCK as u64, &mut columns, &values);
        for (id, row) in ids.iter().zip(columns[4].0.chunks(16)) {
            let zeros = [0; 16];
            let expected = table.chunks(16).nth(*id as usize).unwrap_or(&zeros);
            assert_eq!(row, expected, "row {id}");
        }
        cache = columns.split_off(6).try_into().unwrap();
        assert!(number > 0 || cache[0].words().iter().any(|tag| *tag > 0));
        for (tag, row) in cache[0].words().iter().zip(cache[3].0.chunks(16)).filter(|(tag, _)| **tag > 0) {
            assert_eq!(Some(row), table.chunks(16).nth(*tag as usize - 1));
        }
    }
    let counters = cache[4].words();
    assert_eq!(counters[1], 2100);
    assert!(counters[0] > 1600, "{} of 2100 reads are hits", counters[0]);
    let tags = cache[0].words();
    assert!((1..=10).all(|tag| tags.contains(&tag)), "the ten rows are cached: {tags:?}");
}
