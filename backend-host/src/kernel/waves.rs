//! Division of a search into waves (ranges of elements). The threads together search one wave after the
//! other. Waves are short while the search lists indices of matches. The last wave has all remaining
//! elements, and the threads only count its matches.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use backend_api::{Result, racy};
use parking_lot::Mutex;

use super::each_part;
use super::marked::{Marked, no_memory};
use crate::handle_table::MemoryPlace;
use crate::host_memory::HostMemoryPiece;
use crate::worker::Crew;

/// Bytes of the first wave of a search with a list: few, because the matches may be near.
pub(super) const FIRST_WAVE_BYTES: u64 = 256 << 10;
/// Factor between the lengths of successive waves: a search without matches soon uses all threads.
const WAVE_GROWTH: u64 = 4;
/// Bytes that a thread searches before it takes the next part.
pub(super) const SEARCH_PART_BYTES: u64 = 2 << 20;

/// Number of indices from which all threads copy the lists to the result.
const LONG_LIST: usize = 64 << 10;
/// Number of words in the header of a result.
const HEADER_WORDS: u64 = 2;

/// Function that searches a part of the elements.
pub(super) type Look<'a> = dyn Fn(&WavePart<'_>, &mut WaveMatches) -> Result<()> + Sync + 'a;
/// Function that copies a piece of the list to its position in the result.
pub(super) type Put<'a> = dyn Fn(u64, &[u64]) + Sync + 'a;

/// Number of matches, and number of listed matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub matches: u64,
    pub listed: u64,
}

/// Matches in a range of elements: either a list, or a bit set that is listed when it is copied.
#[derive(Debug, Default)]
pub(crate) struct WaveMatches {
    pub matches: u64,
    pub listed: Vec<u64>,
    pub(super) marked: Marked,
}

impl WaveMatches {
    fn clear(&mut self) {
        self.matches = 0;
        self.listed.clear();
        self.marked.clear();
    }

    /// Number of these matches that a list with `room` free entries can take.
    fn listed(&self, room: u64) -> u64 {
        if self.marked.is_empty() { self.listed.len() as u64 } else { self.matches.min(room) }
    }

    /// Copies the first `taken` matches to the result's list, starting at entry `at`.
    fn put(&self, at: u64, taken: usize, put: &Put<'_>) {
        if self.marked.is_empty() {
            put(at, &self.listed[..taken]);
        } else {
            self.marked.each_list(taken, |done, numbers| put(at + done as u64, numbers));
        }
    }

    /// Appends one index to the list of matches.
    pub fn list(&mut self, operation: &'static str, index: u64) -> Result<()> {
        self.listed.try_reserve(1).map_err(|_| no_memory(operation, 1))?;
        self.listed.push(index);
        Ok(())
    }

    /// Counts `matches` matches of a block, and calls `list` for as many as fit, until `room` are listed in
    /// all. `list` may write arbitrary values to the last `spare` entries.
    pub fn list_block(
        &mut self,
        operation: &'static str,
        matches: u64,
        (room, spare): (u64, usize),
        list: impl FnOnce(&mut [u64]),
    ) -> Result<()> {
        self.matches += matches;
        let wanted = matches.min(room - self.listed.len() as u64) as usize;
        if wanted > 0 {
            let known = self.listed.len();
            self.listed.try_reserve(wanted + spare).map_err(|_| no_memory(operation, wanted))?;
            self.listed.resize(known + wanted + spare, 0);
            list(&mut self.listed[known..]);
            self.listed.truncate(known + wanted);
        }
        Ok(())
    }
}

/// Lists the indices of matches without a branch for each: an index that is no match is overwritten by the
/// next one. The last entry of `into` receives the indices after the last match.
#[inline(always)]
pub(super) fn list_matches(first: u64, matches: impl Iterator<Item = bool>, into: &mut [u64]) {
    let mut next = 0;
    for (number, is_match) in (first..).zip(matches) {
        let Some(place) = into.get_mut(next) else { return };
        *place = number;
        next += usize::from(is_match);
    }
}

/// Elements that one thread searches.
#[derive(Debug)]
pub(crate) struct WavePart<'a> {
    pub first: u64,
    pub end: u64,
    /// Maximum number of indices that this part may list.
    pub room: u64,
    number: usize,
    /// Number of the first part of the wave (range of elements) that is not needed.
    needed: &'a AtomicUsize,
}

impl WavePart<'_> {
    /// Returns true if the search still needs the result of this part. If not, the thread stops, and the
    /// search ignores the result.
    pub fn is_needed(&self) -> bool {
        self.number < self.needed.load(Ordering::Relaxed)
    }
}

/// A search over elements, in waves (one range of elements after the other).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waves {
    /// Number of elements to search, reading `stride` bytes of each. Lists at most `limit` matches.
    pub count: u64,
    pub stride: u64,
    pub limit: u64,
    pub count_all: bool,
}

impl Waves {
    fn elements_in(&self, bytes: u64) -> u64 {
        (bytes / self.stride).max(1)
    }

    /// Searches with all threads of `crew`. Each thread calls `look` to search a part. Several threads call
    /// `put` to write pieces of the list of indices, each with its position in the list.
    ///
    /// The result or error depends only on the elements and the number of threads, not on timing.
    pub fn run(&self, crew: Crew<'_>, look: &Look<'_>, put: &Put<'_>) -> Result<Totals> {
        let mut totals = Totals::default();
        let mut next = 0;
        let wave_bytes_max = 2 * SEARCH_PART_BYTES * crew.width() as u64;
        // If the list is long enough for all elements, the search cannot end early, so use the longest waves.
        let mut wave_bytes = if self.count > self.limit { FIRST_WAVE_BYTES } else { wave_bytes_max };
        let buffers: Vec<Mutex<WaveMatches>> = (0..2 * crew.width()).map(|_| Mutex::default()).collect();
        // While the list has room, search one wave (batch of elements) at a time. So the threads need memory
        // for the indices of one wave only, and the search can end after each wave.
        while next < self.count && totals.listed < self.limit {
            let end = self.count.min(next + self.elements_in(wave_bytes));
            self.wave(crew, next..end, &buffers, &mut totals, (look, put))?;
            next = end;
            wave_bytes = (wave_bytes * WAVE_GROWTH).min(wave_bytes_max);
        }
        // The list is full: search all remaining elements at once, because threads only count their matches.
        if self.count_all && next < self.count {
            let rest = self.count - next;
            let per_part = self.elements_in(SEARCH_PART_BYTES);
            let (matches, needed) = (AtomicU64::new(0), AtomicUsize::new(usize::MAX));
            each_part(crew, rest.div_ceil(per_part) as usize, &|number| {
                let first = next + number as u64 * per_part;
                let end = (first + per_part).min(self.count);
                let mut found = WaveMatches::default();
                look(&WavePart { first, end, room: 0, number, needed: &needed }, &mut found)?;
                matches.fetch_add(found.matches, Ordering::Relaxed);
                Ok(())
            })?;
            totals.matches += matches.into_inner();
        }
        Ok(totals)
    }

    /// Searches a range with all threads, and appends the matches to earlier ones.
    ///
    /// When the finished parts have enough matches, later parts do not start, and running ones stop. The same
    /// holds for parts after a failed part.
    fn wave(
        &self,
        crew: Crew<'_>,
        range: Range<u64>,
        buffers: &[Mutex<WaveMatches>],
        totals: &mut Totals,
        (look, put): (&Look<'_>, &Put<'_>),
    ) -> Result<()> {
        let room = self.limit - totals.listed;
        // Use twice as many parts as threads, so a late thread delays the wave less.
        let parts = if crew.width() == 1 { 1 } else { buffers.len() as u64 };
        let per_part = (range.end - range.start).div_ceil(parts).max(self.elements_in(FIRST_WAVE_BYTES / 4));
        let parts = (range.end - range.start).div_ceil(per_part) as usize;
        let needed = AtomicUsize::new(parts);
        let answers: Mutex<Vec<Result<Totals>>> =
            Mutex::new((0..parts).map(|_| Ok(Totals::default())).collect());
        crew.each(parts, &|number| {
            let first = range.start + number as u64 * per_part;
            let part =
                WavePart { first, end: (first + per_part).min(range.end), room, number, needed: &needed };
            if part.is_needed() {
                let mut found = buffers[number].lock();
                found.clear();
                let answer = look(&part, &mut found)
                    .map(|()| Totals { matches: found.matches, listed: found.listed(room) });
                let mut answers = answers.lock();
                answers[number] = answer;
                if let Some(last) = self.last_needed(&answers, room) {
                    needed.fetch_min(last + 1, Ordering::Relaxed);
                }
            }
        });
        let mut answers = answers.into_inner();
        if let Some(last) = self.last_needed(&answers, room) {
            answers.truncate(last + 1);
        }
        let mut pieces = Vec::with_capacity(parts);
        for answer in answers {
            let answer = answer?;
            let taken = answer.listed.min(self.limit - totals.listed);
            pieces.push((totals.listed, taken as usize));
            totals.matches += answer.matches;
            totals.listed += taken;
        }
        let put_piece = |number: usize| {
            let (at, taken) = pieces[number];
            buffers[number].lock().put(at, taken, put);
        };
        let is_long = pieces.iter().map(|(_, taken)| taken).sum::<usize>() > LONG_LIST;
        if is_long {
            crew.each(pieces.len(), &put_piece)
        } else {
            (0..pieces.len()).for_each(put_piece)
        }
        Ok(())
    }

    /// Returns the first part that is known to end a wave: it failed, or the list is full and no count is
    /// needed.
    fn last_needed(&self, answers: &[Result<Totals>], room: u64) -> Option<usize> {
        let mut listed = 0;
        answers.iter().position(|answer| match answer {
            Ok(found) => {
                listed += found.listed;
                !self.count_all && listed >= room
            }
            Err(_) => true,
        })
    }

    /// Searches like [`run`](Self::run), and writes header and list of the result to memory.
    ///
    /// # Safety
    /// The memory of the result must be long enough for as many indices as the limit permits.
    pub unsafe fn run_into(
        &self,
        crew: Crew<'_>,
        answer: &MemoryPlace<HostMemoryPiece>,
        look: &Look<'_>,
    ) -> Result<()> {
        let write = |place: u64, words: &[u64]| {
            let to = answer.memory.at(answer.offset + place * size_of::<u64>() as u64);
            // SAFETY: the caller guarantees the room; at most `limit` indices are listed.
            unsafe { racy::write(to, bytemuck::cast_slice(words)) };
        };
        let totals = self.run(crew, look, &|place, indices| write(HEADER_WORDS + place, indices))?;
        write(0, &[totals.matches, totals.listed]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use backend_api::{Error, ErrorKind};
    use proptest::prelude::*;

    use super::*;
    use crate::worker::Pool;

    /// Length of a part of the first wave, for the thread counts of the tests.
    const PART: u64 = FIRST_WAVE_BYTES / 4;

    /// Searches the first match among 16 MiB of elements of one byte.
    fn first_of(
        pool: &std::sync::Arc<Pool>,
        look: &(dyn Fn(&WavePart<'_>) -> Result<WaveMatches> + Sync),
    ) -> Result<WaveMatches> {
        let waves = Waves { count: 16 << 20, stride: 1, limit: 1, count_all: false };
        collected(&waves, pool, look)
    }

    /// Matches of a search, in a list of the necessary length.
    fn collected(
        waves: &Waves,
        pool: &std::sync::Arc<Pool>,
        look: &(dyn Fn(&WavePart<'_>) -> Result<WaveMatches> + Sync),
    ) -> Result<WaveMatches> {
        let listed = Mutex::new(Vec::new());
        let totals = waves.run(
            Crew::Pool(pool),
            &|part, found| {
                let here = look(part)?;
                found.matches = here.matches;
                found.listed.extend(here.listed);
                Ok(())
            },
            &|place, indices| {
                let (mut listed, place) = (listed.lock(), place as usize);
                let end = place + indices.len();
                if listed.len() < end {
                    listed.resize(end, u64::MAX);
                }
                listed[place..end].copy_from_slice(indices);
            },
        )?;
        let listed = listed.into_inner();
        assert_eq!(totals.listed, listed.len() as u64);
        Ok(WaveMatches { matches: totals.matches, listed, ..WaveMatches::default() })
    }

    fn one(index: u64) -> Result<WaveMatches> {
        Ok(WaveMatches { matches: 1, listed: vec![index], ..WaveMatches::default() })
    }

    /// Waits until the part is no longer needed.
    fn linger(part: &WavePart<'_>) -> Result<WaveMatches> {
        while part.is_needed() {
            std::thread::yield_now();
        }
        Ok(WaveMatches::default())
    }

    #[test]
    fn parts_after_a_match_are_not_looked_at() {
        for threads in [2, 3] {
            let pool = Pool::new("test", threads);
            let looked = Mutex::new(BTreeSet::new());
            let found = first_of(&pool, &|part| {
                looked.lock().insert(part.first);
                if part.first == 0 { one(77) } else { linger(part) }
            });
            assert_eq!(found.unwrap().listed, [77]);
            // The search may have read only parts that a thread began before another thread reported the
            // match.
            let begun: BTreeSet<u64> = (0..threads as u64).map(|number| number * PART).collect();
            assert!(looked.lock().is_subset(&begun), "{threads} threads looked at {looked:?}");
            pool.stop();
        }
    }

    #[test]
    fn parts_before_a_match_are_looked_at_to_their_end() {
        let pool = Pool::new("test", 2);
        let late_is_done = std::sync::atomic::AtomicBool::new(false);
        let found = first_of(&pool, &|part| match part.first / PART {
            0 => {
                while !late_is_done.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                assert!(part.is_needed());
                one(5)
            }
            1 => {
                late_is_done.store(true, Ordering::Release);
                one(PART)
            }
            _ => linger(part),
        });
        assert_eq!(found.unwrap().listed, [5]);
        pool.stop();
    }

    #[test]
    fn a_failure_counts_only_before_the_match() {
        let pool = Pool::new("test", 2);
        let failure = || Err(Error::new(ErrorKind::KernelFailed, "test"));
        for round in 0..50 {
            let found = first_of(&pool, &|part| match part.first / PART {
                1 => one(PART + round),
                2.. => failure(),
                _ => Ok(WaveMatches::default()),
            });
            assert_eq!(found.unwrap().listed, [PART + round]);
            let found = first_of(&pool, &|part| match part.first / PART {
                1 => failure(),
                2.. => one(part.first),
                _ => Ok(WaveMatches::default()),
            });
            assert_eq!(found.unwrap_err().kind(), ErrorKind::KernelFailed);
        }
        pool.stop();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn waves_match_a_loop(
            mut matching in proptest::collection::vec(0_u64..3_000_000, 0..60),
            stride in 1_u64..5,
            limit in 0_u64..70,
            count_all in any::<bool>(),
            threads in 1_usize..5,
        ) {
            matching.sort_unstable();
            matching.dedup();
            let waves = Waves { count: 2_500_000, stride, limit, count_all };
            let all: Vec<u64> = matching.iter().copied().filter(|index| *index < waves.count).collect();
            let looked = AtomicU64::new(0);
            let pool = Pool::new("test", threads);
            let found = collected(&waves, &pool, &|part| {
                looked.fetch_add(part.end - part.first, Ordering::Relaxed);
                let mut here = all.iter().copied().filter(|index| (part.first..part.end).contains(index));
                let listed: Vec<u64> = here.by_ref().take(part.room as usize).collect();
                let matches = listed.len() + if count_all { here.count() } else { 0 };
                Ok(WaveMatches { matches: matches as u64, listed, ..WaveMatches::default() })
            });
            pool.stop();
            let (found, looked) = (found.unwrap(), looked.into_inner());
            let listed = &all[..all.len().min(limit as usize)];
            prop_assert_eq!(&found.listed, listed);
            if count_all {
                prop_assert_eq!((found.matches, looked), (all.len() as u64, waves.count));
            } else {
                prop_assert!(found.matches >= listed.len() as u64 && looked <= waves.count);
            }
        }
    }
}
