//! The view traits of [`Source`] and its sections: reads, writes and queries.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{Device, DeviceSpan, Reach};
use vmarray_kernel::{ElementMemory, Own, Shared, kind};

use super::Source;
use super::core::SourceCore;
use super::future::SourceFlushAsync;
use super::home::{Home, HomeMut};
use crate::array::VirtualArray;
use crate::array::empty_like::array_like;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::links::reach;
use crate::ops::executor::{
    Change, Examination, ImportedWork, Lane as _, Operand, OperandStore, PeerCopy, Question, ResultStore,
    are_groups_within_pages, distinct,
};
use crate::ops::launch::{Argument, Bound, changed, shared};
use crate::ops::sealed::{Internal, Sealed};
use crate::ops::view::{Linear, Section, SectionMut, Store, StoreMut, View, ViewMut};

impl<T: Element, H: Home<T>, D: Device> Sealed for Source<T, H, D> {}

impl<'a, T: Element, H: Home<T>, D: Device> View<'a> for &'a Source<T, H, D> {
    type Element = T;
    type Index = usize;
    type Store = Source<T, H, D>;
    type Shape = Linear;
    type Section = Section<'a, Self::Store>;

    fn parts(self) -> (&'a Self::Store, Linear) {
        (self, Linear::whole(self.core.cuts.len))
    }

    fn of_parts(store: &'a Self::Store, shape: Linear, _: Internal) -> Self::Section {
        Section::new(store, shape)
    }
}

impl<'a, T: Element, H: HomeMut<T>, D: Device> ViewMut<'a> for &'a Source<T, H, D> {
    type SectionMut = SectionMut<'a, Self::Store>;

    fn of_parts_mut(store: &'a Self::Store, shape: Linear, _: Internal) -> Self::SectionMut {
        Section::new(store, shape)
    }
}

impl<T: Element, H: Home<T>, D: Device> Store for Source<T, H, D> {
    type Element = T;
    type Device = D;
    type FlushAsync<'a>
        = SourceFlushAsync<'a, T>
    where
        Self: 'a;

    fn get_at(&self, place: usize, _: Internal) -> Result<T> {
        self.core.with_shared(&self.core.part_of(place), |element| element[0])
    }

    fn read_at(&self, place: usize, into: &mut [T], _: Internal) -> Result<()> {
        self.core.read(place, into)
    }

    fn ask<Q: Question>(
        &self,
        others: &[Operand<'_>],
        range: &Range<usize>,
        question: &Q,
        _: Internal,
    ) -> Result<Q::Whole> {
        self.core.ask(others, range, question)
    }

    fn collect(&self, places: &[usize], _: Internal) -> Result<Vec<T>> {
        self.core.collect(places)
    }

    fn gather_within(&self, of: Range<usize>, list: &[usize], into: &mut [T], _: Internal) -> Result<()> {
        self.core.gather(of, list, into)
    }

    fn fetch(&self, range: &Range<usize>, _: Internal) -> Result<()> {
        self.core.fetch(range)
    }

    fn write_back(&self, range: &Range<usize>, _: Internal) -> Result<()> {
        self.core.flush(range)
    }

    fn write_back_async(&self, range: Result<Range<usize>>, _: Internal) -> SourceFlushAsync<'_, T> {
        self.core.flush_async(range)
    }

    fn give_up(&self, range: &Range<usize>, _: Internal) -> Result<()> {
        self.core.evict(range)
    }

    fn as_operand(&self, _: Internal) -> &dyn OperandStore {
        &*self.core
    }

    fn page_elements(&self) -> usize {
        self.page_len()
    }

    fn array_like<U: Element>(&self, len: usize, _: Internal) -> Result<VirtualArray<U, D>> {
        let devices: Vec<_> = self.core.channels.iter().map(|channel| channel.device()).collect();
        array_like(&devices, self.page_len(), len, usize::MAX)
    }
}

impl<T: Element, H: HomeMut<T>, D: Device> StoreMut for Source<T, H, D> {
    fn set_at(&self, place: usize, value: T, _: Internal) -> Result<()> {
        self.core.set(place, value)
    }

    fn replace_at(&self, place: usize, value: T, _: Internal) -> Result<T> {
        // If the element's block (1/64 page) is newer on the device, `with_exclusive` first copies it to the
        // program's memory.
        self.core.with_exclusive(&self.core.part_of(place), false, |element| {
            (std::mem::replace(&mut element[0], value), true)
        })
    }

    fn compare_exchange_at(&self, place: usize, current: T, new: T, _: Internal) -> Result<Result<T, T>> {
        self.core.with_exclusive(&self.core.part_of(place), false, |element| {
            let old = element[0];
            if bytemuck::bytes_of(&old) == bytemuck::bytes_of(&current) {
                element[0] = new;
                (Ok(old), true)
            } else {
                (Err(old), false)
            }
        })
    }

    fn write_at(&self, place: usize, from: &[T], _: Internal) -> Result<()> {
        self.core.write(place, from)
    }

    fn fill_range(&self, range: &Range<usize>, value: T, _: Internal) -> Result<()> {
        self.core.fill(range, value)
    }

    fn discard_range(&self, range: &Range<usize>, _: Internal) -> Result<()> {
        self.core.discard(range);
        Ok(())
    }

    fn scatter_within(&self, of: Range<usize>, list: &[usize], values: &[T], _: Internal) -> Result<()> {
        self.core.scatter(of, list, values)
    }

    fn as_target(&self, _: Internal) -> &dyn ResultStore {
        &*self.core
    }
}

impl<T: Element> OperandStore for SourceCore<T> {
    fn stride(&self) -> usize {
        size_of::<T>()
    }

    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        // The byte buffer may not be aligned for the element type, so read into a vector first.
        let mut values = zeroed_vec::<T>(range.len())?;
        self.read(range.start, &mut values)?;
        into.copy_from_slice(bytemuck::cast_slice(&values));
        Ok(())
    }

    /// Copies a range from the slots to other device memory. First copies missing blocks to the slots.
    fn fetch_to(&self, range: &Range<usize>, device: &Arc<dyn Device>, to: DeviceSpan<'_>) -> Result<bool> {
        let devices = self.channels.iter().map(|channel| channel.device());
        let is_reached = devices.into_iter().all(|own| reach(own, device) >= Reach::Copies);
        if is_reached {
            self.ask(&[], range, &PeerCopy { to, first: range.start })?;
        }
        Ok(is_reached)
    }

    fn channel_count(&self) -> usize {
        self.channels.len()
    }

    fn has_whole_groups(&self, group_len: usize, range: &Range<usize>) -> bool {
        are_groups_within_pages(group_len, self.cuts.page_len, range)
    }

    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)> {
        distinct(self.channels.iter().map(|channel| (channel.device(), channel.counters())))
    }

    fn examine(&self, others: &[Operand<'_>], range: &Range<usize>, by: &Examination<'_>) -> Result<()> {
        self.ask(others, range, by)
    }
}

impl<T: Element> ResultStore for SourceCore<T> {
    fn write_bytes(&self, start: usize, from: &[u8]) -> Result<()> {
        // The byte buffer may not be aligned for the element type, so copy it to a vector first.
        let mut values = zeroed_vec::<T>(from.len() / size_of::<T>())?;
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(from);
        self.write(start, &values)
    }

    fn change(&self, others: &[Operand<'_>], range: &Range<usize>, change: &dyn Change) -> Result<()> {
        self.assign(others, range, change)
    }

    fn change_through_devices(
        &self,
        range: &Range<usize>,
        can_do: &dyn Fn(&Arc<dyn Device>) -> bool,
        choose: &mut dyn FnMut(&[usize]) -> bool,
        work: ImportedWork<'_>,
    ) -> Result<bool> {
        self.change_in_slots(range, can_do, choose, work)
    }
}

impl<'a, T: ElementMemory + Element, H: HomeMut<T>, D: Device>
    Argument<'a, &'static mut Own<T>, kind::OwnMutKind> for &'a mut Source<T, H, D>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        changed(&*self)
    }
}

impl<'a, T: ElementMemory + Element, H: HomeMut<T>, D: Device>
    Argument<'a, &'static Shared<T>, kind::SharedKind> for &'a mut Source<T, H, D>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let len = View::len(&*self);
        shared(&*self, 0, len)
    }
}
