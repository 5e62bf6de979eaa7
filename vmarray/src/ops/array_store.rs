//! Implements [`Store`] (the container of a view's elements) for arrays: the devices that store the pages
//! execute the operations.

mod assign;
mod runs;

use std::ops::Range;
use std::sync::Arc;

use backend_api::{Device, DeviceSpan, Elements, Reach};

use self::assign::assign;
use self::runs::{ArrayLane, ArrayRun, HomeElements};
use crate::array::VirtualArray;
use crate::array::asynchronous::FlushAsync;
use crate::array::empty_like::array_like;
use crate::base::element::Element;
use crate::base::error::{Result, interrupted};
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::links::{all_map, reach};
use crate::engine::pager::Pager;
use crate::ops::executor::{
    AnswerParts, AnyQuestion, AskedRun, Change, ChannelShare, Collecting, DeviceOutcome, Examination,
    Lane as _, Operand, OperandStore, PeerCopy, Question, ResultStore, ShareWork, StagedRows, Striping,
    TakeParts, distinct, read_all, unsettled, within_channel,
};
use crate::ops::gather;
use crate::ops::sealed::{INTERNAL, Internal, Sealed};
use crate::ops::view::{Store, StoreMut, View as _};

impl<T: Element, D: Device> Sealed for VirtualArray<T, D> {}

impl<T: Element, D: Device> Store for VirtualArray<T, D> {
    type Element = T;
    type Device = D;
    type FlushAsync<'a>
        = FlushAsync<'a, T, D>
    where
        Self: 'a;

    #[inline]
    fn get_at(&self, place: usize, _: Internal) -> Result<T> {
        self.get(place)
    }

    fn read_at(&self, place: usize, into: &mut [T], _: Internal) -> Result<()> {
        self.read_range(place, into)
    }

    fn ask<Q: Question>(
        &self,
        others: &[Operand<'_>],
        range: &Range<usize>,
        question: &Q,
        _: Internal,
    ) -> Result<Q::Whole> {
        if range.is_empty() {
            return Ok(question.whole(Vec::new()));
        }
        let mut parts = AnswerParts::new(question);
        ask(self, self.home_elements(), others, range, question, &mut parts)?;
        Ok(parts.whole())
    }

    fn collect(&self, indices: &[usize], _: Internal) -> Result<Vec<T>> {
        let (Some(first), Some(last)) = (indices.first(), indices.last()) else { return Ok(Vec::new()) };
        let (channels, page_len) = (self.pager().channels(), self.page_len());
        let mut places = vec![(Vec::new(), Vec::new()); channels.len()];
        for (place, index) in indices.iter().enumerate() {
            let (page, at) = (index / page_len, index % page_len);
            let (numbers, of_list) = &mut places[page % channels.len()];
            numbers.push((page / channels.len() * page_len + at) as u64);
            of_list.push(place);
        }
        self.pager().read_settled(&self.touched_pages(&(*first..*last + 1)), || {
            let mut under_way = Vec::new();
            for (channel, (numbers, of_list)) in channels.iter().zip(&places) {
                if !numbers.is_empty() {
                    let lane = ArrayLane::of(channel);
                    let (start, stride) = (channel.slot_memory(), size_of::<T>() as u64);
                    let elements = Elements { start, count: channel.slot_bytes() / stride, stride };
                    under_way.push((Collecting::new(&lane, elements, numbers)?, lane, of_list));
                }
            }
            let mut values = vec![T::zeroed(); indices.len()];
            for (collecting, lane, of_list) in under_way {
                let part = collecting.values(&lane)?;
                of_list.iter().zip(part).for_each(|(place, value)| values[*place] = value);
            }
            Ok(values)
        })
    }

    fn gather_within(&self, of: Range<usize>, list: &[usize], into: &mut [T], _: Internal) -> Result<()> {
        gather::gather(self, of, list, into)
    }

    fn fetch(&self, range: &Range<usize>, _: Internal) -> Result<()> {
        self.prefetch_range(range)
    }

    fn write_back(&self, range: &Range<usize>, _: Internal) -> Result<()> {
        self.flush_range(range)
    }

    fn write_back_async(&self, range: Result<Range<usize>>, _: Internal) -> FlushAsync<'_, T, D> {
        FlushAsync::new(self, range)
    }

    fn give_up(&self, range: &Range<usize>, _: Internal) -> Result<()> {
        self.evict_range(range)
    }

    fn as_operand(&self, _: Internal) -> &dyn OperandStore {
        self
    }

    fn page_elements(&self) -> usize {
        self.page_len()
    }

    fn array_like<U: Element>(&self, len: usize, _: Internal) -> Result<VirtualArray<U, D>> {
        let devices: Vec<_> = self.pager().channels().iter().map(|channel| channel.device()).collect();
        let cache_bytes = self.pager().frames() as usize * self.pager().page_bytes();
        array_like(&devices, self.page_len(), len, cache_bytes / 2)
    }

    fn as_array(&self) -> Option<&Self> {
        Some(self)
    }
}

impl<T: Element, D: Device> StoreMut for VirtualArray<T, D> {
    #[inline]
    fn set_at(&self, place: usize, value: T, _: Internal) -> Result<()> {
        self.set(place, value)
    }

    fn replace_at(&self, place: usize, value: T, _: Internal) -> Result<T> {
        self.replace(place, value)
    }

    fn compare_exchange_at(&self, place: usize, current: T, new: T, _: Internal) -> Result<Result<T, T>> {
        self.compare_exchange(place, current, new)
    }

    fn update_at(&self, place: usize, change: impl FnMut(T) -> T, _: Internal) -> Result<T> {
        self.update(place, change)
    }

    fn swap_at(&self, a: usize, b: usize, _: Internal) -> Result<()> {
        self.swap(a, b)
    }

    fn write_at(&self, place: usize, from: &[T], _: Internal) -> Result<()> {
        self.write_range(place, from)
    }

    fn fill_range(&self, range: &Range<usize>, value: T, _: Internal) -> Result<()> {
        self.fill_range(range, value)
    }

    fn discard_range(&self, range: &Range<usize>, _: Internal) -> Result<()> {
        self.discard_range(range)
    }

    fn scatter_within(&self, of: Range<usize>, list: &[usize], values: &[T], _: Internal) -> Result<()> {
        gather::scatter(self, of, list, values)
    }

    fn as_target(&self, _: Internal) -> &dyn ResultStore {
        self
    }
}

/// Runs a question (search or reduction) on a range, and on corresponding elements of other stores.
fn ask(
    store: &dyn OperandStore,
    homes: HomeElements<'_>,
    others: &[Operand<'_>],
    range: &Range<usize>,
    question: &dyn AnyQuestion,
    parts: &mut dyn TakeParts,
) -> Result<()> {
    let colocated =
        others.iter().map(|other| homes.colocated(other, range.start)).collect::<Option<Vec<_>>>();
    let Some(colocated) = colocated.filter(|_| homes.has_whole_groups(question.group_len(), range)) else {
        let lane = homes.staging_lane();
        parts.begin(1);
        let rows = StagedRows::new(&lane, store, others, range);
        return rows.ask_pieces(question, &mut |answer| parts.take(0, answer));
    };
    let (own, striped) = ((homes.pager, homes.touched_pages(range)), question.striped());
    let touched = colocated.iter().map(|other| (other.pager, other.pages(range))).chain([own]);
    let all: Vec<_> = touched.chain(striped.clone()).collect();
    let mut attempts = 0;
    read_all(&all, &mut || {
        attempts += 1;
        if attempts > 1 && !question.may_be_repeated() {
            return Err(unsettled().into());
        }
        // Submit the query on all channels (shares of devices) before waiting, so that devices work
        // concurrently.
        let mut asked = Vec::new();
        for channel in 0..homes.channels().len() {
            let within = homes.elements_in_channel(channel, range);
            if !within.is_empty() {
                let mut run = homes.run(&colocated, channel, &within);
                run.lane.reads_all_of(&striped);
                asked.push((AskedRun::new(&run.lane, question, run.run())?, run));
            }
        }
        parts.begin(asked.len());
        for (number, (asked, run)) in asked.into_iter().enumerate() {
            run.lane.wait(asked.ticket)?;
            let _ = asked.take(&run.lane, question, run.run(), &mut |answer| parts.take(number, answer))?;
        }
        Ok(())
    })
}

impl<T: Element, D: Device> OperandStore for VirtualArray<T, D> {
    fn stride(&self) -> usize {
        size_of::<T>()
    }

    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        // Read into a vector and copy, because the byte buffer may not be aligned for the element type.
        let values = self.to_vec(range)?;
        into.copy_from_slice(bytemuck::cast_slice(&values));
        Ok(())
    }

    fn fetch_to(&self, range: &Range<usize>, device: &Arc<dyn Device>, to: DeviceSpan<'_>) -> Result<bool> {
        let is_reached = self.devices().iter().all(|(own, _)| reach(own, device) >= Reach::Copies);
        if is_reached {
            self.ask(&[], range, &PeerCopy { to, first: range.start }, INTERNAL)?;
        }
        Ok(is_reached)
    }

    fn pager(&self) -> Option<&Pager> {
        Some(self.pager())
    }

    fn channel_count(&self) -> usize {
        self.pager().channels().len()
    }

    fn has_whole_groups(&self, group_len: usize, range: &Range<usize>) -> bool {
        self.home_elements().has_whole_groups(group_len, range)
    }

    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)> {
        distinct(self.pager().channels().iter().map(|channel| (channel.device(), &*channel.counters)))
    }

    fn examine(&self, others: &[Operand<'_>], range: &Range<usize>, by: &Examination<'_>) -> Result<()> {
        self.ask(others, range, by, INTERNAL)
    }
}

impl<T: Element, D: Device> ResultStore for VirtualArray<T, D> {
    fn write_bytes(&self, start: usize, from: &[u8]) -> Result<()> {
        // Copy through a vector, because the byte buffer may not be aligned for the element type.
        let mut values = zeroed_vec::<T>(from.len() / size_of::<T>())?;
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(from);
        self.write_range(start, &values)
    }

    fn change(&self, others: &[Operand<'_>], range: &Range<usize>, change: &dyn Change) -> Result<()> {
        assign(self, self.home_elements(), others, range, change)
    }

    fn change_on_devices(
        &self,
        range: &Range<usize>,
        companion: Option<(Operand<'_>, usize)>,
        can_do: &dyn Fn(&Arc<dyn Device>) -> bool,
        work: ShareWork<'_>,
    ) -> Result<bool> {
        self.home_elements().change_on_devices(range, companion, can_do, work)
    }
}

/// Values in another array that move with the keys of a range, one for each key, or that the work reads.
struct CompanionValues<'a> {
    pager: &'a Pager,
    is_changed: bool,
    page_len: usize,
    range: Range<usize>,
    stride: u64,
}

impl<'a> CompanionValues<'a> {
    /// Returns the `len` values of an operand that belong to the keys in a range of an array. Returns `None`
    /// if a device cannot work on both arrays in place.
    fn new(array: HomeElements<'_>, keys: &Range<usize>, of: Operand<'a>, len: usize) -> Option<Self> {
        let pager = of.store.pager().filter(|pager| !std::ptr::eq(*pager, array.pager))?;
        let (page_len, channels) = (pager.page_bytes() / of.stride(), pager.channels().len());
        let striped = channels * page_len;
        // With several channels (shares of devices), each channel must store the values of its own keys. Keys
        // and values must therefore begin at the same position of the striping pattern.
        let go_together = page_len == array.page_len && of.start % striped == keys.start % striped;
        let is_alike = array.pager.is_striped_like(pager) && (channels == 1 || go_together);
        is_alike.then(|| Self {
            pager,
            is_changed: of.target.is_some(),
            page_len,
            range: of.start..of.start + len,
            stride: of.stride() as u64,
        })
    }

    fn pages(&self) -> Range<u64> {
        (self.range.start / self.page_len) as u64..self.range.end.div_ceil(self.page_len) as u64
    }
}

impl HomeElements<'_> {
    fn change_on_devices(
        &self,
        range: &Range<usize>,
        companion: Option<(Operand<'_>, usize)>,
        can_do: &dyn Fn(&Arc<dyn Device>) -> bool,
        work: ShareWork<'_>,
    ) -> Result<bool> {
        let pager = self.pager;
        let devices = pager.channels().iter().map(|channel| channel.device());
        if !devices.clone().all(can_do) || !all_map(devices) {
            return Ok(false);
        }
        let values = companion.map(|(of, len)| CompanionValues::new(*self, range, of, len).ok_or(()));
        let Ok(values) = values.transpose() else { return Ok(false) };
        let read = values.as_ref().filter(|values| !values.is_changed);
        let failed_write_backs = || read.map_or(0, |values| values.pager.failed_write_backs());
        let failed_before = failed_write_backs();
        read.map_or(Ok(()), |values| values.pager.settle(&values.pages()))?;
        let mut claims = vec![(pager, self.touched_pages(range))];
        let changed = values.as_ref().filter(|values| values.is_changed);
        claims.extend(changed.map(|values| (values.pager, values.pages())));
        // Work that reads other elements overwrites the whole range.
        let overwritten = read.map_or(0..0, |_| self.whole_pages(range));
        let mut claimed = Pager::claim_homes(&claims, &overwritten)?;
        let share = |(number, own, companion): (usize, Range<u64>, Range<u64>)| {
            let ArrayRun { mut lane, columns, .. } = self.run(&[], number, &own);
            let values = values.as_ref().map(|CompanionValues { pager, is_changed, stride, .. }| {
                let channel = &pager.channels()[number];
                lane.neighbours.push(&channel.queues);
                if *is_changed {
                    lane.written.push(&channel.queues);
                }
                let start = channel.slot_memory().plus(companion.start * stride);
                Elements { start, count: companion.end - companion.start, stride: *stride }
            });
            let lane = Box::new(lane);
            ChannelShare { lane, channel: number as u64, first: own.start, keys: columns[0], values }
        };
        let parts = self.share_parts(range, values.as_ref()).into_iter();
        let shares: Vec<_> = parts.filter(|(_, own, _)| !own.is_empty()).map(share).collect();
        let striping =
            Striping { page_len: self.page_len, channels: pager.channels().len(), start: range.start };
        match work(&shares, striping, &mut || claimed.begin_write()) {
            // Devices may have read the slot of a page whose write-back failed.
            DeviceOutcome::Done if failed_write_backs() != failed_before => {
                Err(interrupted(unsettled().into(), 0..0, range.clone()))
            }
            DeviceOutcome::Done => Ok(true),
            DeviceOutcome::Unsupported => Ok(false),
            DeviceOutcome::Failed(error) => Err(error),
            DeviceOutcome::Lost(error) => Err(interrupted(error, 0..0, range.clone())),
        }
    }

    /// Divides a range into parts that devices process: for each, the number of its channel, its keys, and
    /// its values. If the device memory of a channel consists of several allocations, the channel has several
    /// parts. The keys of a part are then in one allocation, and so are its values.
    fn share_parts(
        &self,
        range: &Range<usize>,
        values: Option<&CompanionValues<'_>>,
    ) -> Vec<(usize, Range<u64>, Range<u64>)> {
        let (channels, mut parts) = (self.channels(), Vec::new());
        for (number, channel) in channels.iter().enumerate() {
            let mut own = self.elements_in_channel(number, range);
            let (mut companion, mut bytes, mut of_each) =
                (own.clone(), channel.slot_bytes(), self.stride as u64);
            if let Some(CompanionValues { pager, page_len, range, stride, .. }) = values {
                companion = within_channel((number, channels.len()), *page_len, range);
                bytes = bytes.max(pager.channels()[number].slot_bytes());
                of_each = (of_each + stride).next_power_of_two();
            }
            bytes = bytes.max((own.end - own.start) * of_each);
            let info = channel.device().info();
            let piece = info.memory_piece_bytes.filter(|_| bytes > info.largest_allocation_bytes);
            let at_once = piece.map_or(u64::MAX, |piece| (piece / of_each).max(1));
            let until = |of: &Range<u64>| at_once - of.start % at_once;
            while own.end - own.start > until(&own).min(until(&companion)) {
                let len = until(&own).min(until(&companion));
                let next = (own.start + len, (companion.start + len).min(companion.end));
                parts.push((number, own.start..next.0, companion.start..next.1));
                (own.start, companion.start) = next;
            }
            parts.push((number, own, companion));
        }
        parts
    }
}
