//! The shape of everything that finds elements: in waves as long as matches are listed, and all at once after that.

use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::{Error, ErrorKind, Result, racy};
use parking_lot::Mutex;

use super::each_part;
use crate::host_memory::Piece;
use crate::registry::Place;
use crate::worker::Crew;

/// The first wave of a search that lists: short, because the matches may be near.
pub(super) const FIRST_WAVE_BYTES: u64 = 256 << 10;
/// Waves grow by this factor, so that a search without matches soon runs at full width.
const WAVE_GROWTH: u64 = 4;
/// What a thread searches before it looks for more.
pub(super) const SEARCH_PART_BYTES: u64 = 2 << 20;

/// What was found in a range of elements.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub matches: u64,
    pub listed: Vec<u64>,
}

impl Found {
    /// Lists one more.
    pub fn list(&mut self, operation: &'static str, index: u64) -> Result<()> {
        self.listed.try_reserve(1).map_err(|_| no_memory(operation, 1))?;
        self.listed.push(index);
        Ok(())
    }
}

/// What is to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waves {
    pub operation: &'static str,
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

    /// Finds with all hands. `range` searches `first..end` with the calling thread alone and lists at most `room`
    /// matches.
    pub fn run(
        &self,
        crew: Crew<'_>,
        range: &(dyn Fn(u64, u64, u64) -> Result<Found> + Sync),
    ) -> Result<Found> {
        let mut found = Found::default();
        let mut next = 0;
        let mut wave_bytes = FIRST_WAVE_BYTES;
        // First in waves that list: the memory for indices is bounded by the wave, and the end is seen early.
        while next < self.count && (found.listed.len() as u64) < self.limit {
            let end = self.count.min(next + self.elements_in(wave_bytes));
            self.wave(crew, next, end, &mut found, range)?;
            next = end;
            wave_bytes = (wave_bytes * WAVE_GROWTH).min(2 * SEARCH_PART_BYTES * crew.width() as u64);
        }
        // Then everything else at once, if only the number is left to be found.
        if self.count_all && next < self.count {
            let rest = self.count - next;
            let per_part = self.elements_in(SEARCH_PART_BYTES);
            let matches = AtomicU64::new(0);
            each_part(crew, rest.div_ceil(per_part) as usize, &|part| {
                let first = next + part as u64 * per_part;
                let part = range(first, (first + per_part).min(self.count), 0)?;
                matches.fetch_add(part.matches, Ordering::Relaxed);
                Ok(())
            })?;
            found.matches += matches.into_inner();
        }
        Ok(found)
    }

    /// Searches `first..end` with all hands and appends what it finds.
    fn wave(
        &self,
        crew: Crew<'_>,
        first: u64,
        end: u64,
        found: &mut Found,
        range: &(dyn Fn(u64, u64, u64) -> Result<Found> + Sync),
    ) -> Result<()> {
        let room = self.limit - found.listed.len() as u64;
        // Twice as many parts as threads, so that one late thread does not hold up the wave.
        let parts = if crew.width() == 1 { 1 } else { 2 * crew.width() as u64 };
        let per_part = (end - first).div_ceil(parts).max(self.elements_in(FIRST_WAVE_BYTES / 4));
        let parts = (end - first).div_ceil(per_part) as usize;
        let answers: Vec<Mutex<Found>> = (0..parts).map(|_| Mutex::default()).collect();
        each_part(crew, parts, &|part| {
            let first = first + part as u64 * per_part;
            *answers[part].lock() = range(first, (first + per_part).min(end), room)?;
            Ok(())
        })?;
        for answer in answers {
            let answer = answer.into_inner();
            found.matches += answer.matches;
            let room = (self.limit - found.listed.len() as u64).min(answer.listed.len() as u64) as usize;
            found.listed.try_reserve(room).map_err(|_| no_memory(self.operation, room))?;
            found.listed.extend_from_slice(&answer.listed[..room]);
        }
        Ok(())
    }

    /// Writes the answer, header and list.
    ///
    /// # Safety
    /// The answer with all indices up to the limit was checked to be inside of its memory; no more are listed.
    pub unsafe fn write_answer(answer: &Place<Piece>, found: &Found) {
        let header = [found.matches, found.listed.len() as u64];
        let to = answer.memory.at(answer.offset);
        // SAFETY: the caller vouches for the room.
        unsafe {
            racy::write(to, bytemuck::cast_slice(&header));
            let indices = to.add(size_of_val(&header));
            racy::write(indices, bytemuck::cast_slice(&found.listed));
        }
    }
}

#[cold]
pub(super) fn no_memory(operation: &'static str, more: usize) -> Error {
    Error::new(ErrorKind::OutOfMemory, operation)
        .with_bytes(more as u64 * 8)
        .with_detail("no room for the list of matches")
}
