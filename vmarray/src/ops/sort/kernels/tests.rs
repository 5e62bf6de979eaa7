//! Tests of the kernels of sorts, which the interpreter runs in RAM.

use std::sync::Arc;

use backend_api::kernel::Type;
use backend_api::wrap::SplitMix64;

use super::{count, merge, passes};
use crate::host::HostDevice;
use crate::ops::executor::LibraryKernel;
use crate::ops::executor::kernel_testing::{Column, run};
use crate::ops::sort::merge::{MERGING_BLOCK, StripedRange};

fn type_of(bytes: usize) -> Type {
    [Type::U8, Type::U16, Type::U32, Type::U64][bytes.ilog2() as usize]
}

/// The bytes of keys, and of values or 0.
fn lengths() -> impl Iterator<Item = (usize, usize)> {
    [1, 2, 4, 8].into_iter().flat_map(|key| [0, 4, 8].map(|value| (key, value)))
}

#[test]
fn runs_are_merged_and_shares_gathered() {
    let (device, mut random) = (Arc::new(HostDevice::new(8 << 20).unwrap()), SplitMix64::new(7));
    for (bytes, value) in lengths() {
        let (key, mask) = (type_of(bytes), u64::MAX >> (64 - 8 * bytes));
        let mut run_of = |len: usize| {
            let mut run: Vec<u64> = (0..len).map(|_| random.next() & mask).collect();
            run.sort_unstable();
            run
        };
        let runs = [run_of(3000), run_of(2500)];
        let mut expected: Vec<(u64, u64)> = runs.concat().into_iter().zip(0..).collect();
        expected.sort_by_key(|(key, _)| *key);
        for (page_len, channels, channel) in [(1 << 62, 1, 0), (700, 2, 1)] {
            let all = 0..expected.len();
            let own: Vec<usize> = all.filter(|at| *at as u64 / page_len % channels == channel).collect();
            let share =
                StripedRange { first: 0, count: own.len() as u64, page_len, channels, channel, base: 0 };
            let mut values = share.params().to_vec();
            values.extend([3000, 2500, 0, 0]);
            let tiles = share.tiles();
            let mut columns = runs.each_ref().map(|run| Column::of(run, bytes)).to_vec();
            columns.push(Column::zeroed(tiles as usize, 16));
            run(&device, &merge::splits_of(key), tiles, &mut columns, &values);
            columns.push(Column::zeroed(own.len(), bytes));
            if value > 0 {
                columns.push(Column::of(&(0..3000).collect::<Vec<_>>(), value));
                columns.push(Column::of(&(3000..5500).collect::<Vec<_>>(), value));
                columns.push(Column::zeroed(own.len(), value));
            }
            let kernel = merge::of(key, (value > 0).then(|| type_of(value)));
            run(&device, &kernel, tiles * MERGING_BLOCK, &mut columns, &values);
            assert!(columns[3].words().into_iter().eq(own.iter().map(|at| expected[*at].0)));
            if value > 0 {
                assert!(columns[6].words().into_iter().eq(own.iter().map(|at| expected[*at].1)));
            }
            let elements: Vec<u64> = own.iter().map(|at| *at as u64 & mask).collect();
            let mut columns = [Column::of(&elements, bytes), Column::zeroed(expected.len(), bytes)];
            run(&device, &merge::gather_of(key), share.count, &mut columns, &values);
            let found = columns[1].words();
            assert!(own.iter().all(|at| found[*at] == *at as u64 & mask));
        }
    }
}

#[test]
fn digits_are_counted_in_the_order_of_keys() {
    let (device, mut random) = (Arc::new(HostDevice::new(8 << 20).unwrap()), SplitMix64::new(8));
    for bytes in [1, 2, 4, 8] {
        let (mask, sign) = (u64::MAX >> (64 - 8 * bytes), 1 << (8 * bytes - 1));
        let keys: Vec<u64> = (0..5000).map(|_| random.next() & mask).collect();
        let mut expected = vec![0; 256 * bytes];
        for key in &keys {
            // The order of floats.
            let key = if key & sign > 0 { !key } else { key ^ sign };
            (0..bytes).for_each(|place| expected[256 * place + (key >> (8 * place) & 255) as usize] += 1);
        }
        let mut columns = [Column::of(&keys, bytes), Column::zeroed(512 * bytes, 4)];
        let values = [keys.len() as u64, sign, mask ^ sign];
        run(&device, &count::of(type_of(bytes)), 2 * 256, &mut columns, &values);
        assert!(Column(columns[1].0.clone(), 8).words() == expected, "{bytes}");
    }
}

#[test]
fn keys_are_moved_by_digits_with_and_without_waits() {
    let (device, mut random) = (Arc::new(HostDevice::new(8 << 20).unwrap()), SplitMix64::new(9));
    let forward = |kernel: &LibraryKernel| kernel.kernel().needs().forward_progress;
    for ((bytes, value), waits) in lengths().flat_map(|lengths| [(lengths, true), (lengths, false)]) {
        let (key, of_value) = (type_of(bytes), (value > 0).then(|| type_of(value)));
        let (mask, tile) = (u64::MAX >> (64 - 8 * bytes), passes::tile(key, of_value));
        let len = tile + 1 + random.index(1000);
        let keys: Vec<u64> = (0..len).map(|_| random.next() & mask).collect();
        let shift = 8 * random.index(bytes) as u64;
        let digit = |key: u64| (key >> shift & 255) as usize;
        let mut expected: Vec<(u64, u64)> = keys.iter().copied().zip(0..).collect();
        expected.sort_by_key(|(key, _)| digit(*key));
        let starts: Vec<u64> =
            (0..=256).map(|of| expected.partition_point(|(key, _)| digit(*key) < of) as u64).collect();
        let tiles = len.div_ceil(tile);
        let (items, values) = ((tiles * passes::BLOCK) as u64, [len as u64, shift, 0, 0]);
        let mut columns = vec![
            Column::of(&keys, bytes),
            Column::zeroed(len, bytes),
            Column::of(&starts[..256], 8),
            Column::zeroed(256, 8),
            Column::zeroed(16 + 256 * tiles, 4),
        ];
        if value > 0 {
            columns.extend([
                Column::of(&(0..len as u64).collect::<Vec<_>>(), value),
                Column::zeroed(len, value),
            ]);
        }
        if !waits {
            let [count, add] = passes::counts_of(key, of_value);
            assert!(!forward(&count) && !forward(&add));
            let mut counted = [columns[0].clone(), columns[4].clone()];
            run(&device, &count, items, &mut counted, &values);
            run(&device, &add, 256 * 256, &mut counted[1..], &[]);
            columns[4] = counted[1].clone();
        }
        let kernel = passes::of(key, of_value, waits);
        assert_eq!(forward(&kernel), waits);
        run(&device, &kernel, items, &mut columns, &values);
        assert!(columns[1].words().into_iter().eq(expected.iter().map(|(key, _)| *key)), "{bytes}, {waits}");
        assert!(columns[3].words() == starts[1..], "{bytes}, {waits}");
        if value > 0 {
            assert!(columns[6].words().into_iter().eq(expected.iter().map(|(_, place)| *place)), "{value}");
        }
    }
}
