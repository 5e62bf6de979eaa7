//! The shape of everything that finds elements: in waves as long as matches are listed, and all at once after
//! that.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use backend_api::{Error, ErrorKind, Result, racy};
use parking_lot::Mutex;

use super::each_part;
use super::marked::Marked;
use crate::host_memory::Piece;
use crate::registry::Place;
use crate::worker::Crew;

/// The first wave of a search that lists: short, because the matches may be near.
pub(super) const FIRST_WAVE_BYTES: u64 = 256 << 10;
/// Waves grow by this factor, so that a search without matches soon runs at full width.
const WAVE_GROWTH: u64 = 4;
/// What a thread searches before it looks for more.
pub(super) const SEARCH_PART_BYTES: u64 = 2 << 20;

/// Lists longer than this are put in their place by all hands.
const LONG_LIST: usize = 64 << 10;
/// Words of an answer before its list.
const HEADER_WORDS: u64 = 2;

/// How a part is searched.
pub(super) type Look<'a> = dyn Fn(&Part<'_>, &mut Found) -> Result<()> + Sync + 'a;
/// How a piece of the list is put in its place.
pub(super) type Put<'a> = dyn Fn(u64, &[u64]) + Sync + 'a;

/// How many matches there are, and how many of them were listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub matches: u64,
    pub listed: u64,
}

/// What was found in a range of elements: listed, or marked to be listed where the numbers go.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub matches: u64,
    pub listed: Vec<u64>,
    pub(super) marked: Marked,
}

impl Found {
    fn clear(&mut self) {
        self.matches = 0;
        self.listed.clear();
        self.marked.clear();
    }

    /// How many can be put into a list that has so much room.
    fn listed(&self, room: u64) -> u64 {
        if self.marked.is_empty() { self.listed.len() as u64 } else { self.matches.min(room) }
    }

    /// Puts the first ones into a list, from a place on.
    fn put(&self, at: u64, taken: usize, put: &Put<'_>) {
        if self.marked.is_empty() {
            put(at, &self.listed[..taken]);
        } else {
            self.marked.each_list(taken, |done, numbers| put(at + done as u64, numbers));
        }
    }

    /// Lists one more.
    pub fn list(&mut self, operation: &'static str, index: u64) -> Result<()> {
        self.listed.try_reserve(1).map_err(|_| no_memory(operation, 1))?;
        self.listed.push(index);
        Ok(())
    }

    /// Takes in the matches of a block, of which the first ones are listed while there is room. `list` fills
    /// all places that it is given but the last `spare` ones, which it may use for what is not a match.
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

/// Lists the numbers of matches without a branch for each: a number that is no match is overwritten by the
/// next one. The last place of `into` is for those after the last match.
#[inline(always)]
pub(super) fn list_matches(first: u64, matches: impl Iterator<Item = bool>, into: &mut [u64]) {
    let mut next = 0;
    for (number, is_match) in (first..).zip(matches) {
        let Some(place) = into.get_mut(next) else { return };
        *place = number;
        next += usize::from(is_match);
    }
}

/// Elements that one thread looks at.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub first: u64,
    pub end: u64,
    /// How many matches it lists at most.
    pub room: u64,
    number: usize,
    /// The wave's parts from this number on are not needed.
    needed: &'a AtomicUsize,
}

impl Part<'_> {
    /// Whether what is found here still matters. If not, whoever looks stops, and what it says is ignored.
    pub fn is_needed(&self) -> bool {
        self.number < self.needed.load(Ordering::Relaxed)
    }
}

/// What is to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waves {
    /// How many elements there are, and how many bytes are read for each.
    pub count: u64,
    pub stride: u64,
    pub limit: u64,
    pub count_all: bool,
}

impl Waves {
    fn elements_in(&self, bytes: u64) -> u64 {
        (bytes / self.stride).max(1)
    }

    /// Finds with all hands. `look` searches a part with the calling thread alone; `put` takes listed indices
    /// and the place of the first of them in the list, a piece at a time, from several threads.
    ///
    /// What is found, and which failure is told, depends on the elements and the width of the crew alone, not
    /// on which part was done first.
    pub fn run(&self, crew: Crew<'_>, look: &Look<'_>, put: &Put<'_>) -> Result<Totals> {
        let mut totals = Totals::default();
        let mut next = 0;
        let wave_bytes_max = 2 * SEARCH_PART_BYTES * crew.width() as u64;
        // Where all are to be listed no end comes early.
        let mut wave_bytes = if self.count > self.limit { FIRST_WAVE_BYTES } else { wave_bytes_max };
        let buffers: Vec<Mutex<Found>> = (0..2 * crew.width()).map(|_| Mutex::default()).collect();
        // First in waves that list: the memory for indices is bounded by the wave, and the end is seen early.
        while next < self.count && totals.listed < self.limit {
            let end = self.count.min(next + self.elements_in(wave_bytes));
            self.wave(crew, next..end, &buffers, &mut totals, (look, put))?;
            next = end;
            wave_bytes = (wave_bytes * WAVE_GROWTH).min(wave_bytes_max);
        }
        // Then everything else at once, if only the number is left to be found.
        if self.count_all && next < self.count {
            let rest = self.count - next;
            let per_part = self.elements_in(SEARCH_PART_BYTES);
            let (matches, needed) = (AtomicU64::new(0), AtomicUsize::new(usize::MAX));
            each_part(crew, rest.div_ceil(per_part) as usize, &|number| {
                let first = next + number as u64 * per_part;
                let end = (first + per_part).min(self.count);
                let mut found = Found::default();
                look(&Part { first, end, room: 0, number, needed: &needed }, &mut found)?;
                matches.fetch_add(found.matches, Ordering::Relaxed);
                Ok(())
            })?;
            totals.matches += matches.into_inner();
        }
        Ok(totals)
    }

    /// Searches a range with all hands and puts what it finds behind what was found before.
    ///
    /// Once the parts that are done have found enough, those after the last of them that matters are not
    /// needed: they are not begun, and who is in the middle of one stops. The same goes for those after one
    /// that failed.
    fn wave(
        &self,
        crew: Crew<'_>,
        range: Range<u64>,
        buffers: &[Mutex<Found>],
        totals: &mut Totals,
        (look, put): (&Look<'_>, &Put<'_>),
    ) -> Result<()> {
        let room = self.limit - totals.listed;
        // Twice as many parts as threads, so that one late thread does not hold up the wave.
        let parts = if crew.width() == 1 { 1 } else { buffers.len() as u64 };
        let per_part = (range.end - range.start).div_ceil(parts).max(self.elements_in(FIRST_WAVE_BYTES / 4));
        let parts = (range.end - range.start).div_ceil(per_part) as usize;
        let needed = AtomicUsize::new(parts);
        let answers: Mutex<Vec<Result<Totals>>> =
            Mutex::new((0..parts).map(|_| Ok(Totals::default())).collect());
        crew.each(parts, &|number| {
            let first = range.start + number as u64 * per_part;
            let part = Part { first, end: (first + per_part).min(range.end), room, number, needed: &needed };
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

    /// The first part that ends a wave, as far as is known: it failed, or the matches up to it fill the room
    /// and nobody wants to know how many more there are.
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

    /// The same, and writes the answer, header and list.
    ///
    /// # Safety
    /// The answer with all indices up to the limit was checked to be inside of its memory.
    pub unsafe fn run_into(&self, crew: Crew<'_>, answer: &Place<Piece>, look: &Look<'_>) -> Result<()> {
        let write = |place: u64, words: &[u64]| {
            let to = answer.memory.at(answer.offset + place * size_of::<u64>() as u64);
            // SAFETY: the caller vouches for the room; no more is listed than the limit.
            unsafe { racy::write(to, bytemuck::cast_slice(words)) };
        };
        let totals = self.run(crew, look, &|place, indices| write(HEADER_WORDS + place, indices))?;
        write(0, &[totals.matches, totals.listed]);
        Ok(())
    }
}

#[cold]
pub(super) fn no_memory(operation: &'static str, more: usize) -> Error {
    Error::new(ErrorKind::OutOfMemory, operation)
        .with_bytes(more as u64 * 8)
        .with_detail("no room for the list of matches")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use backend_api::ErrorKind;
    use proptest::prelude::*;

    use super::*;
    use crate::worker::Pool;

    /// Bytes in a part of the first wave, for as many threads as the tests use.
    const PART: u64 = FIRST_WAVE_BYTES / 4;

    /// Looks for the first of some numbers in 16 MiB of elements of a byte.
    fn first_of(
        pool: &std::sync::Arc<Pool>,
        look: &(dyn Fn(&Part<'_>) -> Result<Found> + Sync),
    ) -> Result<Found> {
        let waves = Waves { count: 16 << 20, stride: 1, limit: 1, count_all: false };
        collected(&waves, pool, look)
    }

    /// What waves find, in a list as long as it has to be.
    fn collected(
        waves: &Waves,
        pool: &std::sync::Arc<Pool>,
        look: &(dyn Fn(&Part<'_>) -> Result<Found> + Sync),
    ) -> Result<Found> {
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
        Ok(Found { matches: totals.matches, listed, ..Found::default() })
    }

    fn one(index: u64) -> Result<Found> {
        Ok(Found { matches: 1, listed: vec![index], ..Found::default() })
    }

    /// Goes on until the part is not needed any more.
    fn linger(part: &Part<'_>) -> Result<Found> {
        while part.is_needed() {
            std::thread::yield_now();
        }
        Ok(Found::default())
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
            // Those that other threads may have begun before the match was known, and no others.
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
                _ => Ok(Found::default()),
            });
            assert_eq!(found.unwrap().listed, [PART + round]);
            let found = first_of(&pool, &|part| match part.first / PART {
                1 => failure(),
                2.. => one(part.first),
                _ => Ok(Found::default()),
            });
            assert_eq!(found.unwrap_err().kind(), ErrorKind::KernelFailed);
        }
        pool.stop();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn waves_find_what_a_loop_does(
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
                Ok(Found { matches: matches as u64, listed, ..Found::default() })
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
