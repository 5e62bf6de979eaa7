//! In-place work on a source in the memory of its devices, such as a sort.

use std::ops::Range;
use std::sync::Arc;

use backend_api::Device;

use super::core::SourceCore;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::executor::{
    ChannelShare, DeviceOutcome, ImportedHome, ImportedShare, ImportedWork, Lane as _, OwnQueue,
};

impl<T: Element> SourceCore<T> {
    /// Runs work that moves the elements of a range, such as a sort, with the slots of all channels as
    /// memory. The home must be writable, and registered with their devices. No page has a slot afterwards.
    pub(super) fn change_in_slots(
        &self,
        range: &Range<usize>,
        can_do: &dyn Fn(&Arc<dyn Device>) -> bool,
        choose: &mut dyn FnMut(&[usize]) -> bool,
        work: ImportedWork<'_>,
    ) -> Result<bool> {
        let are_able = self.channels.iter().all(|of| of.import().is_some() && can_do(of.device()));
        let rooms: Vec<usize> = self.channels.iter().map(|of| of.all_elements().count as usize).collect();
        if !are_able || !choose(&rooms) {
            return Ok(false);
        }
        self.flush(&(0..self.cuts.len))?;
        // Lock the channels (shares of devices) before the pages: all threads use this order, to avoid
        // deadlock.
        let mut pools: Vec<_> = self.channels.iter().map(|channel| channel.pool.lock()).collect();
        for pool in &mut pools {
            let tenants = pool.tenants().collect();
            self.evict_pages(pool, tenants)?;
        }
        let mut held: Vec<_> = self.cuts.touched_pages(range).map(|page| self.entries[page].take()).collect();
        let mut shares = Vec::new();
        for (number, channel) in self.channels.iter().enumerate() {
            let Some(import) = channel.import() else { return Ok(false) };
            let share = ChannelShare {
                lane: Box::new(OwnQueue::new(channel)?),
                channel: number as u64,
                first: 0,
                keys: channel.all_elements(),
                values: None,
            };
            shares.push(ImportedShare { share, import, offset: (range.start * size_of::<T>()) as u64 });
        }
        // The devices have imported the program's whole memory, so they sort it in place.
        let memory = self.exclusive(&mut held, range);
        match work(ImportedHome { memory, shares }) {
            DeviceOutcome::Done => Ok(true),
            DeviceOutcome::Unsupported => Ok(false),
            DeviceOutcome::Failed(error) | DeviceOutcome::Lost(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use backend_api::wrap::{Fault, Operation, SplitMix64, has_all_cases};
    use vmarray_conformance::wrap::Faulty;

    use super::*;
    use crate::ErrorKind;
    use crate::device::{ErrorKind as DeviceErrorKind, HostMemory};
    use crate::ops::sort::{InterpretedGpu, KeyOrder, SortKey};
    use crate::prelude::*;
    use crate::progress::with_progress;

    type OnCards<T> = Source<T, Vec<T>, Faulty<InterpretedGpu>>;

    /// Elements, and some behind them, on a number of devices, with memory for a number of elements in all.
    fn source<T: Element>(
        elements: &[T],
        behind: usize,
        cards: usize,
        room: usize,
    ) -> (OnCards<T>, Vec<Arc<Faulty<InterpretedGpu>>>) {
        let devices: Vec<_> = (0..cards).map(|_| Arc::new(Faulty::new(InterpretedGpu::new()))).collect();
        let mut elements = elements.to_vec();
        elements.resize(elements.len() + behind, T::zeroed());
        let source = Source::builder(elements).devices(devices.clone()).page_len(100);
        let source = source.import(HostMemory::Pageable).device_bytes((room * size_of::<T>()) as u64);
        (source.build().unwrap(), devices)
    }

    /// Numbers below 2^64 of several kinds: random, sorted, reversed, equal, two values, few and mostly small
    /// values, repeatedly sorted.
    fn numbers(random: &mut SplitMix64, len: usize, kind: usize) -> Vec<u64> {
        let step = u64::MAX / len as u64;
        let number = |at: usize| match kind % 7 {
            0 => random.next(),
            1 => at as u64 * step,
            2 => (len - at) as u64 * step,
            3 => 7 << 60,
            4 => (random.next() % 2) << 63,
            5 => (random.next() >> (random.next() % 64)) << 56,
            _ => (at % (len / 8)) as u64 * 8 * step,
        };
        (0..len).map(number).collect()
    }

    /// Sorts numbers of a type except the first one, with some more behind them; `room` is the capacity of
    /// device memory.
    fn check<T: SortKey>(numbers: &[u64], behind: usize, cards: usize, room: usize, is_descending: bool) {
        let bits = |number: &u64| bytemuck::pod_read_unaligned(&number.to_ne_bytes()[8 - size_of::<T>()..]);
        let mut expected: Vec<T> = numbers.iter().map(bits).collect();
        let (source, _) = source(&expected, behind, cards, room);
        // Change some elements on a device: the sort must use these values, not the older ones in RAM.
        let (len, value) = (expected.len(), bits(&(5 << 60)));
        source.fill(150..170, value).unwrap();
        source.reset_stats();
        expected[150..170].fill(value);
        let order = KeyOrder::of::<T>(is_descending);
        expected[1..].sort_by_key(|key| order.key::<T::KeyBits>(bytemuck::cast(*key)));
        if is_descending {
            source.sort_descending(1..len).unwrap();
        } else {
            source.sort(1..len).unwrap();
        }
        let total = source.stats().total();
        let what = format!("{len} of {} bytes, {cards} cards, room for {room}", size_of::<T>());
        let bytes = |elements: &[T]| bytemuck::cast_slice::<T, u8>(elements).to_vec();
        assert!(bytes(&source.to_vec(..len).unwrap()) == bytes(&expected), "{what}");
        assert!(bytes(&source.to_vec(len..).unwrap()).iter().all(|byte| *byte == 0), "{what}");
        // Expected number of copies of each element: one if two copies fit on the device, else two, plus the
        // padding of strips.
        let (size, all) = (size_of::<T>(), (len - 1) * size_of::<T>());
        let strips = if room < len { 64 } else { 32 };
        let (often, padding) = if behind > 0 { (1, 0) } else { (2, strips * strips * (8 + size)) };
        for moved in [total.bytes_to_device, total.bytes_from_device - (20 * size) as u64] {
            let right = (often * all) as u64..=(often * (all + padding)) as u64;
            assert!(right.contains(&moved), "{what}: {moved} of {all} {often} times");
        }
        // Test that a later query finds the sorted elements on the devices.
        let same = expected.iter().filter(|key| bytemuck::bytes_of(*key) == bytemuck::bytes_of(&value));
        assert_eq!(source.count(..len, Field::<T, T>::whole(), &value).unwrap(), same.count(), "{what}");
        assert_eq!(source.verify(..).unwrap(), None);
    }

    #[test]
    fn sources_larger_than_device_memory_are_sorted() {
        let mut random = SplitMix64::new(31);
        for round in 0..backend_api::wrap::random_cases(70) as usize {
            let cards = 1 + round % 3;
            let is_whole = round % 4 == 3;
            let len = if is_whole { 300 + random.index(200) } else { 3000 + random.index(9000) };
            let numbers = numbers(&mut random, len, round / 3);
            // With `behind` more elements in the source, each device has room for two copies of the sorted
            // elements.
            let behind = if is_whole { 6 * len + 400 } else { 0 };
            let room = if round % 4 == 2 { cards * len / 4 } else { len + behind };
            match round % 5 {
                0 => check::<u64>(&numbers, behind, cards, room, round % 2 == 0),
                1 => check::<i16>(&numbers, behind, cards, room, round % 2 == 0),
                2 => check::<f32>(&numbers, behind, cards, room, round % 2 == 0),
                3 => check::<u8>(&numbers, behind, cards, room, round % 2 == 0),
                _ => check::<f64>(&numbers, behind, cards, room, round % 2 == 0),
            }
        }
    }

    #[test]
    fn a_card_that_fails_or_is_lost_takes_no_element_with_it() {
        let mut random = SplitMix64::new(32);
        let operations = [
            Operation::Submit,
            Operation::Launch,
            Operation::Fill,
            Operation::Allocate,
            Operation::CreateQueue,
            Operation::ImportHost,
        ];
        for cards in [1, 2] {
            for (number, operation) in operations.into_iter().enumerate() {
                for (len, is_later) in [(300, false), (300, true), (3000, false), (3000, true)] {
                    let kind =
                        if number % 2 == 0 { DeviceErrorKind::CopyFailed } else { DeviceErrorKind::Lost };
                    let (mut call, mut failures) = (1, 0);
                    loop {
                        // Short keys need fewer passes, which the host interprets.
                        let unsorted = numbers(&mut random, len, call as usize);
                        let unsorted: Vec<u16> = unsorted.iter().map(|key| (key >> 48) as u16).collect();
                        // The first device sorts a short range as a whole.
                        let (behind, card) = if len == 300 { (2000, 0) } else { (0, cards - 1) };
                        let (source, devices) = source(&unsorted, behind, cards, len + behind);
                        let fault = Fault::new(operation, kind).on_call(call);
                        devices[card].inject(if is_later { fault.reported_later() } else { fault });
                        let sorted = source.sort(..len);
                        let has_struck = devices[card].injected() > 0;
                        // No element is on a lost device any more, so all elements can be read.
                        let mut found = source.to_vec(..len).unwrap();
                        let mut expected = unsorted;
                        expected.sort_unstable();
                        if let Err(error) = &sorted {
                            assert_eq!(error.device_error().unwrap().kind(), kind);
                            found.sort_unstable();
                            failures += 1;
                        }
                        let what = format!("{len}, {cards} cards, {operation:?} {call}: {sorted:?}");
                        assert!(found == expected, "{what}");
                        if !has_struck {
                            break;
                        }
                        call += 1 + if has_all_cases() { call / 8 } else { call / 3 };
                    }
                    assert!(failures > 0 || operation == Operation::ImportHost, "{operation:?}");
                }
            }
        }
    }

    #[test]
    fn a_sort_by_way_of_cards_that_is_stopped_has_the_elements_in_some_order() {
        let mut random = SplitMix64::new(33);
        for (len, cards) in [(300, 1), (3000, 1), (3000, 2)] {
            let unsorted = numbers(&mut random, len, 0);
            let mut stops = 0;
            loop {
                let behind = if len == 300 { 2000 } else { 0 };
                let (source, _) = source(&unsorted, behind, cards, len + behind);
                let mut reports = Vec::new();
                let outcome = with_progress(
                    |progress| {
                        reports.push(progress);
                        if reports.len() > stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    },
                    || source.sort(..len),
                );
                let (mut found, mut expected) = (source.to_vec(..len).unwrap(), unsorted.clone());
                expected.sort_unstable();
                if outcome.is_ok() {
                    assert!(found == expected && stops > 7);
                    assert!(reports.last().is_some_and(|last| last.done_bytes == last.all_bytes));
                    break;
                }
                assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::Cancelled);
                found.sort_unstable();
                assert!(found == expected, "{len}, stop {stops}");
                stops += 1 + stops / 4;
            }
        }
    }
}
