//! Reductions to extremes, and cumulative sums and products, along an axis, by a GPU that stores elements and
//! results. The first kernel finds an extreme of each part of a line, the second one that of the whole line.

use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{Commit, Device, DeviceBuffer, Elements, Launch, LaunchView, Request};
use vmarray_kernel::KernelScalar;

use super::number::PrefixSummed;
use crate::base::error::Result;
use crate::ops::executor::{ChannelShare, DeviceOutcome, LibraryKernel, Operand, ResultStore, RunAccess};
use crate::ops::sort::{
    KeyOrder, ROW_BLOCK, SortKey, accumulation_kernel, extreme_kernels, is_unsupported, refusal,
};

/// The least number of elements for which a GPU's own kernels are used.
const ELEMENTS_MIN: usize = if cfg!(test) { 2 } else { 4 << 10 };
/// The number of work-items, or of warps, that use all of a GPU.
const ITEMS: usize = 1 << 18;
const WARPS: usize = 1 << 14;
/// The least number of elements of a part of a line, and the least number of elements that a warp reads.
const PART_MIN: usize = 256;
const WARP_MIN: usize = 48;
/// The least number of lines along the last axis for which the order of the elements is fast enough.
const ROWS_MIN: usize = if cfg!(test) { 2 } else { 4 << 10 };

/// Work on the results and the elements of a device. It calls a function before it writes.
type Work<'a> = &'a dyn Fn(&ChannelShare<'_>, Elements<'_>, &mut dyn FnMut()) -> Result<()>;

/// Elements in rows, as a box of three axes: before the axis, along it, and after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowBox<'a> {
    /// The elements, which are in another store than the results.
    pub from: Operand<'a>,
    pub before: usize,
    pub along: usize,
    pub after: usize,
}

/// An extreme of the elements of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extreme {
    pub is_least: bool,
    /// True for the index of the first extreme element; false for the element.
    pub is_index: bool,
    /// True if a NaN is more extreme than all numbers; false if it is less extreme.
    pub is_nan_extreme: bool,
}

impl Extreme {
    /// Returns the seven words of a rank: see the kernels.
    fn rank<T: SortKey>(self) -> [u64; 7] {
        let bits = 8 * size_of::<T>() as u32;
        let of_all = u64::MAX >> (u64::BITS - bits);
        let KeyOrder { flip, flip_negative } = KeyOrder::of::<T>(self.is_least);
        if !T::IS_FLOAT {
            return [flip, flip_negative, 0, of_all, 0, 0, 0];
        }
        let mantissa = if bits == 32 { 23 } else { 52 };
        // The rank of the least infinity; above it follow the ranks of all numbers.
        let least = (1 << mantissa) - 1;
        let of_nan = if self.is_nan_extreme { of_all } else { 0 };
        // The index of a zero does not depend on its sign: the ranks of both zeroes are equal.
        [flip, flip_negative, least, of_all - 2 * least, of_nan, of_all >> 1, self.is_index.into()]
    }
}

impl RowBox<'_> {
    fn elements(&self) -> usize {
        self.before * self.along * self.after
    }

    /// Returns the box with its lines divided into `parts`, as values of a kernel.
    fn values(&self, parts: usize) -> Vec<u64> {
        let each = self.along.div_ceil(parts);
        [self.before, self.along, self.after, self.along.div_ceil(each), each].map(|of| of as u64).to_vec()
    }

    /// Runs `work` on the device memory of the elements and of the `results` from `into` on, if one GPU
    /// stores all of them. Otherwise returns false without a change.
    fn on_card(&self, into: (&dyn ResultStore, usize), results: usize, work: Work<'_>) -> Result<bool> {
        let is_gpu = |device: &Arc<dyn Device>| device.info().kind.is_gpu();
        if self.elements() < ELEMENTS_MIN {
            return Ok(false);
        }
        let from = Some((self.from, self.elements()));
        into.0.change_on_devices(&(into.1..into.1 + results), from, &is_gpu, &mut |shares, _, begin_write| {
            let [share @ ChannelShare { values: Some(x), .. }] = shares else {
                return DeviceOutcome::Unsupported;
            };
            let mut is_begun = false;
            let mut begin = || {
                is_begun = true;
                begin_write();
            };
            match work(share, *x, &mut begin) {
                Ok(()) => DeviceOutcome::Done,
                Err(error) if error.device_error().is_some_and(is_unsupported) => DeviceOutcome::Unsupported,
                Err(error) if is_begun => DeviceOutcome::Lost(error),
                Err(error) => DeviceOutcome::Failed(error),
            }
        })
    }

    /// Writes the extreme of each line to the elements of `into`.
    pub(super) fn extremes<T: PrefixSummed>(
        &self,
        of: Extreme,
        into: (&dyn ResultStore, usize),
    ) -> Result<bool> {
        let lines = self.before * self.after;
        self.on_card(into, lines, &|share, x, begin_write| {
            let by_warps = self.after == 1 && self.along >= WARP_MIN;
            let wanted = if by_warps { WARPS } else { ITEMS }.div_ceil(lines);
            let parts = wanted.min(self.along / PART_MIN).max(1);
            let mut values = self.values(parts);
            let parts = lines as u64 * values[3];
            values.extend(of.rank::<T>());
            let Some([firsts, whole]) = extreme_kernels(x.stride, by_warps, of.is_index) else {
                return Err(refusal().into());
            };
            let memory = DeviceBuffer::new(share.lane.device(), parts * 8, Commit::Lazy)?;
            let found = Elements { start: memory.at(0), count: parts, stride: 8 };
            let items = if by_warps { 32 * parts } else { parts };
            launch(share, (firsts, items), &[x.into(), found.into()], &values, &mut || ())?;
            let views = [x.into(), found.into(), share.keys.into()];
            launch(share, (whole, lines as u64), &views, &values, begin_write)
        })
    }

    /// Writes cumulative sums or products along each line to the elements of `into`, in the order of the
    /// elements.
    pub(super) fn accumulations<T: PrefixSummed>(
        &self,
        is_product: bool,
        into: (&dyn ResultStore, usize),
    ) -> Result<bool> {
        let (is_last, lines) = (self.after == 1, self.before * self.after);
        if is_last && lines < ROWS_MIN {
            return Ok(false);
        }
        self.on_card(into, self.elements(), &|share, x, begin_write| {
            let kernel =
                accumulation_kernel(<T as KernelScalar>::TYPE, is_product, is_last).ok_or_else(refusal)?;
            let items = if is_last { lines.next_multiple_of(ROW_BLOCK) } else { lines };
            let views = [x.into(), share.keys.into()];
            launch(share, (kernel, items as u64), &views, &self.values(1), begin_write)
        })
    }
}

/// Launches a kernel on a share's device, and waits until it has ended. Calls `begin_write` before the
/// launch.
fn launch(
    share: &ChannelShare<'_>,
    (kernel, items): (&LibraryKernel, u64),
    views: &[LaunchView<'_>],
    values: &[u64],
    begin_write: &mut dyn FnMut(),
) -> Result<()> {
    let group = u64::from(kernel.kernel().body().group_len.unwrap_or(1));
    let items = items.next_multiple_of(group);
    let (lane, params) = (&share.lane, kernel.params(values, views, items));
    let host = lane.buffer(Report::BYTES as usize)?;
    let new = Launch::new(kernel.kernel(), items, Geometry::plain(0), host.at(0));
    let launch = Launch { views, params: &params, ..new };
    lane.device().prepare(&[Request::Launch(&launch)])?;
    begin_write();
    let ticket = lane.submit(RunAccess::Change, &mut |queue| queue.submit(&launch));
    let ended = ticket.and_then(|ticket| lane.wait(ticket));
    let mut report = [0_u64; Report::BYTES as usize / 8];
    host.read(0, bytemuck::cast_slice_mut(&mut report));
    lane.keep(host);
    ended?;
    if Report::from_words(report).failures == 0 { Ok(()) } else { Err(refusal().into()) }
}

#[cfg(test)]
mod tests {
    use backend_api::wrap::SplitMix64;

    use super::*;
    use crate::ops::sort::InterpretedGpu;
    use crate::prelude::*;

    fn devices() -> Vec<Arc<InterpretedGpu>> {
        let mut devices = vec![InterpretedGpu::new()];
        #[cfg(feature = "opencl")]
        devices.extend(InterpretedGpu::all_in_opencl());
        devices.into_iter().map(Arc::new).collect()
    }

    fn stored<T: PrefixSummed>(
        device: &Arc<InterpretedGpu>,
        values: &[T],
    ) -> VirtualArray<T, InterpretedGpu> {
        let array = VirtualArray::builder(values.len()).devices([Arc::clone(device)]).page_len(1000);
        let array = array.build().unwrap();
        array.write(0, values).unwrap();
        array
    }

    /// Calls `work` with boxes of elements that begin at different places, and with their lines, each with
    /// the index of its first element and the distance of two elements.
    fn each_box<T: PrefixSummed>(
        device: &Arc<InterpretedGpu>,
        value: impl Fn(u64) -> T,
        work: impl Fn(RowBox<'_>, usize, &[Vec<T>]),
    ) {
        let mut random = SplitMix64::new(5);
        for (number, [before, along, after]) in
            [[1, 3000, 1], [7, 50, 1], [3, 40, 5], [1, 900, 3], [33, 70, 1], [2, 1, 9]]
                .into_iter()
                .enumerate()
        {
            let (start, count) = (number * 700, before * along * after);
            let values: Vec<T> = (0..start + count + 3).map(|_| value(random.next())).collect();
            let array = stored(device, &values);
            let line = |line: usize| -> Vec<T> {
                let first = start + line / after * along * after + line % after;
                (0..along).map(|k| values[first + k * after]).collect()
            };
            let lines: Vec<Vec<T>> = (0..before * after).map(line).collect();
            let from = Operand::new(&array, start);
            work(RowBox { from, before, along, after }, start, &lines);
        }
    }

    fn check_extremes<T: PrefixSummed + std::fmt::Debug>(
        device: &Arc<InterpretedGpu>,
        value: impl Fn(u64) -> T,
    ) {
        let is_nan = |value: T| value.partial_cmp(&value).is_none();
        each_box(device, value, |of, start, lines| {
            for (is_least, is_nan_extreme) in [(false, true), (true, true), (true, false), (false, false)] {
                let beats = |new: T, old: T| match (is_nan(new), is_nan(old)) {
                    (false, false) => {
                        if is_least {
                            new < old
                        } else {
                            new > old
                        }
                    }
                    (new, old) => new != old && new == is_nan_extreme,
                };
                let place = |line: &Vec<T>| {
                    (1..line.len()).fold(0, |best, k| if beats(line[k], line[best]) { k } else { best })
                };
                let places: Vec<u64> = lines.iter().map(|line| place(line) as u64).collect();
                let found = stored(device, &vec![77_u64; lines.len() + 2]);
                let extreme = Extreme { is_least, is_index: true, is_nan_extreme };
                assert!(of.extremes::<T>(extreme, (&found, 1)).unwrap(), "refused");
                assert_eq!(
                    found.to_vec(1..=lines.len()).unwrap(),
                    places,
                    "{of:?} from {start}: {extreme:?}"
                );
                assert_eq!((found.get(0).unwrap(), found.get(lines.len() + 1).unwrap()), (77, 77));
                let best = stored(device, &vec![T::ONE; lines.len()]);
                let extreme = Extreme { is_index: false, ..extreme };
                assert!(of.extremes::<T>(extreme, (&best, 0)).unwrap(), "refused");
                for ((best, line), place) in best.to_vec(..).unwrap().into_iter().zip(lines).zip(places) {
                    let expected = line[place as usize];
                    assert!(
                        best == expected || is_nan(best) && is_nan(expected),
                        "{best:?}, not {expected:?}"
                    );
                }
            }
        });
    }

    fn check_accumulations<T: PrefixSummed + std::fmt::Debug>(
        device: &Arc<InterpretedGpu>,
        value: impl Fn(u64) -> T,
    ) {
        each_box(device, value, |of, _, lines| {
            for is_product in [false, true] {
                if lines.len() < ROWS_MIN {
                    continue;
                }
                let result = stored(device, &vec![T::ONE; of.elements() + 2]);
                assert!(of.accumulations::<T>(is_product, (&result, 1)).unwrap(), "refused");
                for (number, line) in lines.iter().enumerate() {
                    let mut all = line[0];
                    let first = 1 + number / of.after * of.along * of.after + number % of.after;
                    for (k, value) in line.iter().enumerate() {
                        all = match is_product {
                            _ if k == 0 => all,
                            true => vmarray_kernel::k::mul(all, *value),
                            false => vmarray_kernel::k::add(all, *value),
                        };
                        let found = result.get(first + k * of.after).unwrap();
                        assert_eq!(found, all, "{of:?} at {k} of line {number}");
                    }
                }
            }
        });
    }

    #[test]
    fn extremes_of_lines_equal_those_of_loops() {
        for device in devices() {
            check_extremes(&device, |bits| (bits % 200) as u8);
            check_extremes(&device, |bits| bits as i16);
            check_extremes(&device, |bits| (bits % 1000) as i64 - 500);
            let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0];
            check_extremes(&device, |bits| match bits % 40 {
                which @ 0..6 => special[which as usize],
                which => which as f32 - 20.0,
            });
            check_extremes(&device, |bits| if bits % 9 == 0 { -0.0 } else { -((bits % 3) as f64) });
        }
    }

    #[test]
    fn accumulations_add_and_multiply_in_the_order_of_the_elements() {
        for device in devices() {
            check_accumulations(&device, |bits| bits as u8);
            check_accumulations(&device, |bits| bits as i32);
            check_accumulations(&device, |bits: u64| bits);
            check_accumulations(&device, |bits| (bits % 1000) as f32 / 500.0);
            check_accumulations(&device, |bits| (bits % 1000) as f64 / 500.0 - 1.0);
        }
    }
}
