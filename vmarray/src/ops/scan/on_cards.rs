//! Prefix sums on GPUs. If one channel (share of a device) with forward progress has all elements, the kernel
//! reads and writes each element once. Otherwise, a first pass computes the sum of each tile. From these
//! sums the host computes the carry into each tile, for a second pass.

use std::sync::Arc;

use backend_api::Device;
use parking_lot::Mutex;

use super::number::PrefixSummed;
use super::plan::PrefixScan;
use super::tree::{Carried, SumTreeNode};
use crate::base::error::Result;
use crate::ops::executor::{ChannelShare, DeviceOutcome, LibraryKernel, Striping};
use crate::ops::sort::{
    HAS_CARRIES, IS_EXCLUSIVE, LOOK_BACK_TILE, SUMS_ONLY, TileState, TileStates, is_unsupported, of_each,
    refusal, scan_kernel,
};

/// Writes prefix sums by GPUs, if all elements are on GPUs that can access each other. Otherwise returns
/// false without a change.
pub(super) fn scan_on_cards<T: PrefixSummed>(scan: &PrefixScan<'_>) -> Result<bool> {
    let is_gpu = |device: &Arc<dyn Device>| device.info().kind.is_gpu();
    scan.store.change_on_devices(&scan.range, None, &is_gpu, &mut |shares, striping, begin_write| {
        scan_shares::<T>(scan, shares, striping, begin_write)
    })
}

fn scan_shares<T: PrefixSummed>(
    scan: &PrefixScan<'_>,
    shares: &[ChannelShare<'_>],
    striping: Striping,
    begin_write: &mut dyn FnMut(),
) -> DeviceOutcome {
    let (tile, page_len) = (LOOK_BACK_TILE, striping.page_len as u64);
    let is_one = matches!((shares, striping.channels), ([_], 1));
    let are_cut_alike = || {
        shares.windows(2).all(|pair| pair[0].channel != pair[1].channel || pair[1].first.is_multiple_of(tile))
    };
    let are_whole = is_one || (striping.channels == 1 || page_len.is_multiple_of(tile)) && are_cut_alike();
    if !are_whole {
        return DeviceOutcome::Unsupported;
    }
    let exclusive = if scan.is_exclusive { IS_EXCLUSIVE } else { 0 };
    let is_alone = is_one && shares[0].lane.device().info().forward_progress;
    let all = |number: usize| ShareScan::new::<T>(scan, &shares[number], striping);
    let mut is_written = false;
    let mut begin_write = || {
        is_written = true;
        begin_write();
    };
    if is_alone {
        return match all(0).and_then(|share| share.launch(exclusive, &mut begin_write)) {
            Ok(()) => DeviceOutcome::Done,
            Err(error) if error.device_error().is_some_and(is_unsupported) => DeviceOutcome::Unsupported,
            Err(error) if is_written => DeviceOutcome::Lost(error),
            Err(error) => DeviceOutcome::Failed(error),
        };
    }
    let scans = of_each(shares.len(), shares.len(), |number| {
        let share = all(number)?;
        share.launch(SUMS_ONLY, &mut || ())?;
        let states = share.states.read()?;
        Ok((share, states))
    });
    let mut scans = match scans.into_iter().collect::<Result<Vec<_>>>() {
        Ok(scans) => scans,
        Err(error) if error.device_error().is_some_and(is_unsupported) => return DeviceOutcome::Unsupported,
        Err(error) => return DeviceOutcome::Failed(error),
    };
    carry::<T>(scan, striping, tile, &mut scans);
    begin_write();
    let scans: Vec<Mutex<_>> = scans.into_iter().map(Mutex::new).collect();
    let written = of_each(scans.len(), scans.len(), |number| {
        let (share, before) = &mut *scans[number].lock();
        share.states.write_states(before)?;
        share.launch(HAS_CARRIES | exclusive, &mut || ())
    });
    written.into_iter().collect::<Result<()>>().map_or_else(DeviceOutcome::Lost, |()| DeviceOutcome::Done)
}

/// The scan of one channel's elements, in tiles.
struct ShareScan<'a> {
    states: TileStates<'a>,
    kernel: &'static LibraryKernel,
    channel: u64,
    /// Number of the first tile, counted in the channel.
    first_tile: u64,
    params: [u64; 7],
}

impl<'a> ShareScan<'a> {
    fn new<T: PrefixSummed>(
        scan: &PrefixScan<'_>,
        share: &'a ChannelShare<'a>,
        striping: Striping,
    ) -> Result<Self> {
        let (ChannelShare { channel, first, keys, .. }, tile) = (share, LOOK_BACK_TILE);
        let number = (size_of::<T>() as u64, !T::IS_EXACT);
        let kernel = scan_kernel(share.lane.device(), number, scan.row > 0).ok_or_else(refusal)?;
        let first_tile = first / tile;
        let states = TileStates::new(share, (first + keys.count).div_ceil(tile) - first_tile)?;
        let row = if scan.row == 0 { u64::MAX } else { scan.row as u64 };
        let [page_len, channels, base] =
            [striping.page_len, striping.channels, striping.start].map(|of| of as u64);
        let params = [*first, keys.count, page_len, channels, *channel, base, row];
        Ok(Self { states, kernel, channel: *channel, first_tile, params })
    }

    fn launch(&self, flags: u32, begin_write: &mut dyn FnMut()) -> Result<()> {
        let [first, count, page_len, channels, channel, base, row] = self.params;
        let values = [first, count, page_len, channels, channel, base, row, flags.into()];
        self.states.launch(self.kernel, None, &values, flags & HAS_CARRIES > 0, begin_write).map(drop)
    }
}

/// Replaces the sum of each tile by the carry into the tile.
fn carry<T: PrefixSummed>(
    scan: &PrefixScan<'_>,
    striping: Striping,
    tile: u64,
    scans: &mut [(ShareScan<'_>, Vec<TileState>)],
) {
    let mut of_channel: Vec<Vec<&mut (ShareScan<'_>, Vec<TileState>)>> = Vec::new();
    of_channel.resize_with(striping.channels, Vec::new);
    for share in scans {
        let channel = share.0.channel as usize;
        of_channel[channel].push(share);
    }
    // With a single channel (share of a device), all pages are contiguous, so treat them as one page.
    let channels = striping.channels as u64;
    let of_page = if channels == 1 { u64::MAX } else { striping.page_len as u64 / tile };
    let (first, end) = (scan.range.start as u64 / tile, (scan.range.end as u64).div_ceil(tile));
    let mut carried = Carried::<T>::before(first);
    for number in first..end {
        let page = number / of_page;
        let own = page / channels * of_page + number % of_page;
        let shares = of_channel[(page % channels) as usize].iter_mut().rev();
        let Some((share, states)) = shares.into_iter().find(|(share, _)| share.first_tile <= own) else {
            continue;
        };
        let state = &mut states[(own - share.first_tile) as usize];
        let [known, sum, left, _] = *state;
        let [before, left_before] = T::words(&carried.sum());
        *state = [1, before, left_before, 0];
        carried.pass(SumTreeNode { sum: T::of_words([sum, left]), begins: known == 3 });
    }
}

#[cfg(test)]
mod tests {
    use backend_api::ErrorKind as DeviceErrorKind;
    use backend_api::wrap::{Fault, Operation, SplitMix64, has_all_cases};
    use vmarray_conformance::wrap::Faulty;

    use super::*;
    use crate::base::error::ErrorKind;
    use crate::ops::sort::InterpretedGpu;
    use crate::prelude::*;

    /// Tests that devices have the same results as the host, on one channel and on several.
    fn check<T: PrefixSummed + PartialOrd + std::fmt::Debug>(
        device: &(Arc<InterpretedGpu>, usize),
        value: impl Fn(u64) -> T,
    ) {
        let (device, step) = device;
        let mut random = SplitMix64::new(16);
        for round in (0..36).step_by(*step) {
            let (channels, row) =
                ([1, 3, 1, 2, 5, 4][round % 6], [0, 0, 1 + random.index(90), 4097][round / 4 % 4]);
            let lens = [1, 4095, 4096, 4097, 8191, 10_240, 16_385, random.index(70_000)];
            let (start, len) = ([0, 1, 4096, random.index(20_000)][random.index(4)], lens[random.index(8)]);
            let page_len =
                if channels == 1 { 1024 + random.index(3000) } else { 4096 * (1 + random.index(2)) };
            let values: Vec<T> = (0..start + len + 3).map(|_| value(random.next())).collect();
            let devices = (0..channels).map(|_| Arc::clone(device));
            let on_cards = VirtualArray::<T>::builder(values.len()).devices(devices).page_len(page_len);
            let (on_cards, on_host) =
                (on_cards.build().unwrap(), VirtualArray::<T>::new(values.len()).unwrap());
            let (range, is_exclusive) = (start..start + len, random.index(2) == 0);
            on_cards.write(0, &values).unwrap();
            on_host.write(0, &values).unwrap();
            let scan = PrefixScan { store: &on_cards, page_len, range: range.clone(), row, is_exclusive };
            assert!(
                scan_on_cards::<T>(&scan).unwrap() || len == 0,
                "the GPU refused the scan in round {round}"
            );
            PrefixScan { store: &on_host, page_len, range, row, is_exclusive }.run::<T>().unwrap();
            let found = on_cards.to_vec(..).unwrap().into_iter().zip(on_host.to_vec(..).unwrap());
            for (place, (found, expected)) in found.enumerate() {
                // NaNs may have different bits on different devices, so two NaNs count as equal.
                let are_nan = [found, expected].iter().all(|of| of.partial_cmp(of).is_none());
                assert!(
                    are_nan || bytemuck::bytes_of(&found) == bytemuck::bytes_of(&expected),
                    "round {round}: {found:?} instead of {expected:?} at {place}; \
                     {len} from {start} on, rows of {row}"
                );
            }
        }
    }

    /// Returns simulated GPUs, and all OpenCL devices, each with a step: the rounds 0, `step`, 2 `step` …
    /// run on it. A step of 5 has each number of channels and each kind of rows.
    fn devices() -> Vec<(Arc<InterpretedGpu>, usize)> {
        let step = if has_all_cases() { 1 } else { 5 };
        let mut devices = vec![(InterpretedGpu::new(), 5), (InterpretedGpu::without_progress(), 5)];
        #[cfg(feature = "opencl")]
        devices.extend(InterpretedGpu::all_in_opencl().into_iter().map(|device| (device, step)));
        devices.into_iter().map(|(device, step)| (Arc::new(device), step)).collect()
    }

    #[test]
    fn prefix_sums_on_cards_equal_the_hosts_bit_by_bit() {
        for device in devices() {
            check(&device, |bits| bits as u8);
            check(&device, |bits| bits as i16);
            check(&device, |bits| bits as u32);
            check(&device, |bits| bits as i64);
            check(&device, |bits| bits as i32 as f32 / 3e8);
            check(&device, |bits| bits as i64 as f64 / 3e17);
            // Test special values: infinities, NaNs, and zeroes of both signs.
            let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX, 1e-42];
            check(&device, |bits| match bits % 3000 {
                which @ 0..6 => special[which as usize],
                _ => f32::from_bits((bits >> 32) as u32 & 0xbfff_ffff),
            });
            check(&device, |bits| [-0.0, 1.0, 2.0_f64.powi(-54), 0.0][(bits % 4) as usize]);
        }
    }

    #[test]
    fn failures_change_nothing_or_report_the_changes() {
        let (mut random, mut failed, mut lost) = (SplitMix64::new(17), 0, 0);
        let device = Arc::new(Faulty::new(InterpretedGpu::new()));
        for round in 0..80 {
            let devices = (0..1 + 2 * (round % 2)).map(|_| Arc::clone(&device));
            let array = VirtualArray::<f32>::builder(30_000).devices(devices).page_len(4096).build().unwrap();
            let values: Vec<f32> = (0..30_000).map(|_| random.index(9) as f32).collect();
            array.write(0, &values).unwrap();
            array.flush(..).unwrap();
            let operation = [Operation::Launch, Operation::Submit, Operation::Fill][random.index(3)];
            // After `OutOfMemory` the scan falls back to launches, unless the GPU has already changed
            // elements.
            let kind = [DeviceErrorKind::CopyFailed, DeviceErrorKind::OutOfMemory][round / 2 % 2];
            let fault = Fault::new(operation, kind).on_call(1 + random.next() % 9);
            device.inject(if random.index(2) == 0 { fault } else { fault.reported_later() });
            let (page_len, range) = (4096, 0..30_000);
            let scan = PrefixScan { store: &array, page_len, range, row: 0, is_exclusive: false };
            let outcome = scan_on_cards::<f32>(&scan);
            device.clear();
            let mut sum = 0.0;
            let sums = values.iter().map(|value| {
                sum += value;
                sum
            });
            match outcome {
                Ok(true) => assert!(array.to_vec(..).unwrap().into_iter().eq(sums)),
                Ok(false) => assert!(array.to_vec(..).unwrap() == values, "wrong elements in round {round}"),
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted { .. }) => lost += 1,
                Err(_) => {
                    failed += 1;
                    assert!(array.to_vec(..).unwrap() == values, "wrong elements in round {round}");
                }
            }
        }
        assert!(failed > 5 && lost > 5, "too few faults: {failed} scans failed, {lost} lost elements");
    }
}
