//! Sorts in device memory, for devices that can access each other's memory. Each channel (share of a device)
//! sorts its own keys. Then the channels merge their sorted keys, two runs at a time, in a binary tree. In a
//! merge, each channel writes a part of the result, and reads keys of other channels in place.
//!
//! Each step copies the keys from their pages' home slots (places in device memory) to scratch memory, or
//! back. The last step also distributes them to their final pages. The input of a step stays intact until the
//! step has succeeded on all devices.
//!
//! Keys with values are first distributed to the channels in index order, because the sort must be stable.

use std::borrow::Cow;
use std::ops::Range;

use backend_api::{Commit, Device, DeviceBuffer, Elements, LaunchView};
use parking_lot::Mutex;

use super::in_place;
use super::kernels::{gather_kernel, merge_kernel, split_kernel};
use super::keys::KeyOrder;
use super::merge::{MERGING_BLOCK, MergePart, StripedRange, parts_of};
use super::on_device::{KeysMemory, KeysPlace, Sorter, refusal};
use super::onesweep::is_unsupported;
use crate::base::error::{ErrorKind, Result};
use crate::base::progress::{Steps, in_steps};
use crate::base::scoped_threads::each;
use crate::ops::executor::{ChannelShare, DeviceOutcome, Striping};

/// The most keys of a channel for which scratch memory of the same length is allocated.
const BESIDE_MAX: u64 = if cfg!(test) { 10_000 } else { 1 << 62 };

/// Sorts the keys of all channels, with their values. Calls `begin_write` before the first write. There must
/// be at least one share, each share must have keys, and all devices must map each other's memory.
pub(crate) fn sort_on_devices(
    shares: &[ChannelShare<'_>],
    dealing: Striping,
    order: KeyOrder,
    begin_write: impl FnOnce(),
) -> DeviceOutcome {
    let of_each = shares[0].bytes_of_each();
    let bytes: u64 = shares.iter().map(|share| share.keys.count * of_each).sum();
    // The progress reports do not count the initial distribution of keys to other channels (shares of
    // devices).
    let rounds = shares[0].keys.stride + levels(shares.len()).len() as u64;
    let sorted =
        in_steps(bytes * rounds, |steps| match sort_in_steps(shares, dealing, order, steps, begin_write) {
            DeviceOutcome::Done => Ok(DeviceOutcome::Done),
            DeviceOutcome::Failed(_) if steps.is_cancelled() => {
                Err(DeviceOutcome::Failed(ErrorKind::Cancelled.into()))
            }
            other => Err(other),
        });
    sorted.unwrap_or_else(|other| other)
}

fn sort_in_steps(
    shares: &[ChannelShare<'_>],
    dealing: Striping,
    order: KeyOrder,
    steps: &Steps,
    begin_write: impl FnOnce(),
) -> DeviceOutcome {
    let is_dealt = shares.len() > 1 && shares[0].values.is_some();
    let made = of_each(shares.len(), shares.len(), |number| {
        ShareSorter::new(&shares[number], order, !is_dealt, steps)
    });
    let (mut sorters, mut failure) = (Vec::new(), None);
    for sorter in made {
        match sorter {
            Ok(sorter) => sorters.push(sorter),
            Err(error) => failure = Some(error),
        }
    }
    let outcome = match failure {
        Some(error) if error.device_error().is_some_and(is_unsupported) => {
            // Free the scratch memory of all sorters first, because the sort in place needs this memory.
            sorters.drain(..).for_each(|sorter| sorter.sorter.end());
            begin_write();
            in_place::sort(shares, dealing, order, steps)
        }
        Some(error) => DeviceOutcome::Failed(error),
        None => {
            begin_write();
            let at = sorters.iter().map(ShareSorter::home).collect();
            SortedShares { sorters: &sorters, dealing, at }.run(is_dealt)
        }
    };
    sorters.into_iter().for_each(|sorter| sorter.sorter.end());
    outcome
}

/// The sorter of a channel's keys, which moves them between home slots and scratch memory.
struct ShareSorter<'a> {
    sorter: Sorter<'a>,
    beside: KeysMemory,
    /// The counts of each digit, if the caller requested them.
    counts: Option<Vec<u64>>,
}

impl<'a> ShareSorter<'a> {
    /// Allocates scratch memory, and concurrently counts digits if `counts` is set.
    fn new(share: &'a ChannelShare<'a>, order: KeyOrder, counts: bool, steps: &'a Steps) -> Result<Self> {
        let (sorter, keys) = (Sorter::new(share, order, steps)?, share.keys.count);
        // Allocate scratch memory while the devices count digits, because both take long.
        let (beside, counts) = std::thread::scope(|scope| {
            let allocate = || if keys > BESIDE_MAX { Err(refusal()) } else { sorter.memory_for(keys) };
            let beside = std::thread::Builder::new().spawn_scoped(scope, allocate);
            let counts = counts.then(|| sorter.counts(sorter.home(), keys)).transpose();
            (
                beside.map_or_else(|_| allocate(), |thread| thread.join().unwrap_or_else(|_| allocate())),
                counts,
            )
        });
        match beside.and_then(|beside| Ok((beside, counts?))) {
            Ok((beside, counts)) => Ok(Self { sorter, beside, counts }),
            Err(error) => {
                sorter.end();
                Err(error.into())
            }
        }
    }

    fn home(&self) -> KeysPlace<'_> {
        self.sorter.home()
    }

    fn beside(&self) -> KeysPlace<'_> {
        self.beside.place()
    }

    fn other_than(&self, place: KeysPlace<'_>) -> KeysPlace<'_> {
        if place == self.home() { self.beside() } else { self.home() }
    }

    /// Sorts the keys. Returns their location (home slots or scratch memory), also after a failure.
    fn sort<'s>(
        &'s self,
        from: KeysPlace<'s>,
    ) -> std::result::Result<KeysPlace<'s>, (KeysPlace<'s>, backend_api::Error)> {
        let keys = self.sorter.share.keys.count;
        let counts = match &self.counts {
            Some(counts) => Ok(Cow::Borrowed(counts)),
            None => self.sorter.counts(from, keys).map(Cow::Owned),
        };
        self.sorter.sort(keys, &counts.map_err(|error| (from, error))?, from, self.other_than(from))
    }

    /// Copies the keys to a location, unless they are already there.
    fn bring(&self, from: KeysPlace<'_>, to: KeysPlace<'_>) -> backend_api::Result<()> {
        self.sorter.copy(&[(from, to, self.sorter.share.keys.count)])
    }
}

/// Returns the results of `work` for each number below `end`, computed by at most `threads` threads.
pub(crate) fn of_each<R: Send>(threads: usize, end: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = (0..end).map(|_| Mutex::default()).collect();
    each(threads, end, |number| *results[number].lock() = Some(work(number)));
    results.into_iter().filter_map(Mutex::into_inner).collect()
}

/// Two adjacent runs to be merged, each as a range of shares.
type Merge = [Range<usize>; 2];

/// Returns the levels of a binary tree of merges that turn `shares` runs into one.
fn levels(shares: usize) -> Vec<Vec<Merge>> {
    let (mut runs, mut levels) = ((0..shares).map(|share| share..share + 1).collect::<Vec<_>>(), Vec::new());
    while runs.len() > 1 {
        let merges = runs.chunks_exact(2).map(|pair| [pair[0].clone(), pair[1].clone()]);
        levels.push(merges.collect());
        runs = runs.chunks(2).map(|pair| pair[0].start..pair[pair.len() - 1].end).collect();
    }
    levels
}

struct SortedShares<'s, 'a> {
    sorters: &'s [ShareSorter<'a>],
    dealing: Striping,
    /// The present location of each channel's keys.
    at: Vec<KeysPlace<'s>>,
}

impl<'s> SortedShares<'s, '_> {
    fn run(mut self, is_dealt: bool) -> DeviceOutcome {
        let Err(error) = self.sort(is_dealt) else { return DeviceOutcome::Done };
        let home = of_each(self.at.len(), self.at.len(), |number| {
            self.sorters[number].bring(self.at[number], self.sorters[number].home())
        });
        match home.into_iter().collect::<backend_api::Result<Vec<_>>>() {
            // After the keys were distributed to channels (shares of devices), the original order of equal
            // keys is lost. Another stable sort could not restore it, so return an error instead of
            // `Unsupported`.
            Ok(_) if is_unsupported(&error) && !is_dealt => DeviceOutcome::Unsupported,
            Ok(_) => DeviceOutcome::Failed(error.into()),
            Err(_) => DeviceOutcome::Lost(error.into()),
        }
    }

    fn sort(&mut self, is_dealt: bool) -> backend_api::Result<()> {
        let (sorters, levels) = (self.sorters, levels(self.sorters.len()));
        if is_dealt {
            self.step(|this, number| this.gather(number), |_| true)?;
        }
        let sorted = of_each(sorters.len(), sorters.len(), |number| sorters[number].sort(self.at[number]));
        let mut failure = Ok(());
        for (at, sorted) in self.at.iter_mut().zip(sorted) {
            *at = sorted.unwrap_or_else(|(place, error)| {
                failure = Err(error);
                place
            });
        }
        failure?;
        // Each merge step moves keys of a channel (share of a device) between home slots (places of pages in
        // device memory) and scratch memory. Choose each start so that the last step ends in home slots.
        let steps = |number| levels.iter().flatten().filter(|merge| all_of(merge).contains(&number)).count();
        let moved: Vec<bool> = (0..sorters.len())
            .map(|number| (self.at[number] == sorters[number].home()) == (steps(number) % 2 == 1))
            .collect();
        let bring = |this: &Self, number: usize| {
            let at = this.at[number];
            sorters[number].bring(at, sorters[number].other_than(at))
        };
        self.step(bring, |number| moved[number])?;
        for (level, merges) in levels.iter().enumerate() {
            let is_last = level + 1 == levels.len();
            let merges: Vec<(&Merge, Vec<MergePart>)> = merges
                .iter()
                .map(|merge| Ok((merge, self.parts(merge)?)))
                .collect::<backend_api::Result<_>>()?;
            let merge_of = |number| merges.iter().find(|(merge, _)| all_of(merge).contains(&number));
            let merge = |this: &Self, number| match merge_of(number) {
                Some((merge, parts)) => this.merge(number, merge, parts, is_last),
                None => Ok(()),
            };
            self.step(merge, |number| merge_of(number).is_some())?;
        }
        Ok(())
    }

    /// Runs one step concurrently for some channels. It writes each channel's keys to the other location:
    /// from home slots to scratch memory, or back.
    fn step(
        &mut self,
        work: impl Fn(&Self, usize) -> backend_api::Result<()> + Sync,
        is_moved: impl Fn(usize) -> bool + Sync,
    ) -> backend_api::Result<()>
    where
        Self: Sync,
    {
        let this = &*self;
        let done =
            of_each(
                this.at.len(),
                this.at.len(),
                |number| if is_moved(number) { work(this, number) } else { Ok(()) },
            );
        done.into_iter().collect::<backend_api::Result<Vec<()>>>()?;
        for (number, at) in self.at.iter_mut().enumerate().filter(|(number, _)| is_moved(*number)) {
            *at = self.sorters[number].other_than(*at);
        }
        Ok(())
    }

    fn count(&self, number: usize) -> u64 {
        self.sorters[number].sorter.share.keys.count
    }

    fn counts(&self, shares: &Range<usize>) -> Vec<u64> {
        shares.clone().map(|number| self.count(number)).collect()
    }

    /// Copies a channel's part of the elements, in index order, from all home slots to its scratch memory.
    fn gather(&self, number: usize) -> backend_api::Result<()> {
        let (sorter, count) = (&self.sorters[number], self.count(number));
        let first: u64 = self.counts(&(0..number)).iter().sum();
        let to = sorter.beside();
        for share in self.sorters.iter().map(|other| other.sorter.share) {
            let ChannelShare { first: start, keys, values, .. } = share;
            let dealt = StripedRange::of_share(self.dealing, share, &(first..first + count));
            let columns = [(Some(*keys), Some(to.keys)), (*values, to.values)];
            for (from, to) in columns.into_iter().filter_map(|(from, to)| from.zip(to)) {
                let kernel = gather_kernel(from.stride).ok_or_else(refusal)?;
                let here = from.start.plus((dealt.first - start) * from.stride);
                let views = [
                    Elements { start: here, count: dealt.count, ..from },
                    Elements { start: to, count, ..from },
                ];
                if dealt.count > 0 {
                    let views = views.map(LaunchView::from);
                    sorter.sorter.launch(kernel, dealt.count, &views, &dealt.params())?;
                }
            }
        }
        Ok(())
    }

    /// Returns the parts of a merge. Each part has keys of one channel of either run.
    fn parts(&self, merge: &Merge) -> backend_api::Result<Vec<MergePart>> {
        let counts = merge.each_ref().map(|shares| self.counts(shares));
        let mut parts = parts_of([&counts[0], &counts[1]], |run, piece, number| {
            let share = merge[run].start + piece;
            self.sorters[share].sorter.key_at(self.at[share], number)
        })?;
        for part in &mut parts {
            part.from.iter_mut().zip(merge).for_each(|((piece, _), shares)| *piece += shares.start);
        }
        Ok(parts)
    }

    /// Writes a channel's part of a merge. In the last merge, the part is the elements in the channel's home
    /// slots. In earlier merges, it follows the parts of earlier channels.
    fn merge(
        &self,
        number: usize,
        merge: &Merge,
        parts: &[MergePart],
        is_last: bool,
    ) -> backend_api::Result<()> {
        let sorter = &self.sorters[number];
        let share = sorter.sorter.share;
        let ChannelShare { keys, values, first, lane, .. } = share;
        let find = split_kernel(keys.stride).ok_or_else(refusal)?;
        let kernel = merge_kernel(keys.stride, values.map(|of| of.stride)).ok_or_else(refusal)?;
        let before: u64 = self.counts(&(merge[0].start..number)).iter().sum();
        let dealt = |part: &MergePart| {
            if is_last {
                let dealt = StripedRange::of_share(self.dealing, share, &(part.base..part.base + part.len()));
                return (dealt, dealt.first - first);
            }
            let start = part.base.max(before);
            let end = (part.base + part.len()).min(before + keys.count);
            let own = start.saturating_sub(before);
            let count = end.saturating_sub(start);
            (StripedRange::side_by_side(own, count, part.base.wrapping_sub(before)), own)
        };
        let (to, KeyOrder { flip, flip_negative }) =
            (sorter.other_than(self.at[number]), sorter.sorter.order);
        for part in parts {
            let (dealt, own) = dealt(part);
            let (runs, count, tiles) = (&part.from, dealt.count, dealt.tiles());
            if count == 0 {
                continue;
            }
            sorter.sorter.report(count)?;
            let lengths = runs.each_ref().map(|(_, range)| range.end - range.start);
            // A kernel reads nothing of an empty sorted run, but needs a valid address: pass the other run's
            // address.
            let read = [0, 1].map(|run| &runs[if lengths[run] == 0 { 1 - run } else { run }]);
            let read = read.map(|(share, range)| {
                let place = self.sorters[*share].sorter.further(self.at[*share], range.start);
                (place, range.end - range.start)
            });
            let to = sorter.sorter.further(to, own);
            let splits = DeviceBuffer::<dyn Device>::new(lane.device(), tiles * 16, Commit::Lazy)?;
            let splits = Elements { start: splits.at(0), count: tiles, stride: 16 };
            let keys_read =
                read.map(|(place, count)| LaunchView::from(Elements { start: place.keys, count, ..*keys }));
            let mut views = vec![keys_read[0], keys_read[1], splits.into()];
            let mut params = dealt.params().to_vec();
            params.extend([lengths[0], lengths[1], flip, flip_negative]);
            sorter.sorter.launch(find, tiles, &views, &params)?;
            views.push(Elements { start: to.keys, count, ..*keys }.into());
            if let Some(of) = values {
                let values = read.into_iter().chain([(to, count)]).filter_map(|(place, count)| {
                    Some(LaunchView::from(Elements { start: place.values?, count, ..*of }))
                });
                views.extend(values);
                params.push(of.stride);
            }
            sorter.sorter.launch(kernel, tiles * MERGING_BLOCK, &views, &params)?;
        }
        Ok(())
    }
}

/// Returns the range of channels in both runs of a merge.
fn all_of([one, two]: &Merge) -> Range<usize> {
    one.start..two.end
}
