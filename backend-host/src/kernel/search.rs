//! Search: all elements whose bytes at an offset equal a value.

use backend_api::{Result, Search};

use super::matcher::Matcher;
use super::waves::{Found, Waves, no_memory};
use crate::host_memory::Piece;
use crate::medium::Medium;
use crate::registry::Place;
use crate::short::{Wide, Word};
use crate::worker::Crew;

const OPERATION: &str = "search";

/// A search, checked.
#[derive(Debug)]
pub(crate) struct SearchJob<M> {
    /// Where element 0 begins.
    pub from: Place<M>,
    /// Where the answer goes.
    pub answer: Place<Piece>,
    count: u64,
    limit: u64,
    count_all: bool,
    matcher: Matcher,
}

impl<M: Medium> SearchJob<M> {
    /// A search whose names were looked up.
    pub fn new(search: &Search<'_>, from: Place<M>, answer: Place<Piece>) -> Self {
        Self {
            from,
            answer,
            count: search.elements.count,
            limit: search.limit.min(search.elements.count),
            count_all: search.count_all,
            // Checked: field and value are inside of the stride, and `count` strides are inside of existing memory.
            matcher: Matcher::new(
                search.elements.stride as usize,
                search.field_offset as usize,
                search.value,
            ),
        }
    }

    /// How many bytes it reads through.
    pub fn bytes(&self) -> u64 {
        // Checked not to overflow.
        self.count * self.matcher.stride() as u64
    }

    /// How long the answer is at most.
    pub fn answer_bytes(&self) -> u64 {
        Search::answer_bytes(self.limit)
    }

    /// Carries it out.
    pub fn run(&self, crew: Crew<'_>) -> Result<()> {
        let waves = Waves {
            operation: OPERATION,
            count: self.count,
            stride: self.matcher.stride() as u64,
            limit: self.limit,
            count_all: self.count_all,
        };
        let found = waves.run(crew, &|first, end, room| self.range(first, end, room))?;
        // SAFETY: the answer was checked to have room for `limit` indices.
        unsafe { Waves::write_answer(&self.answer, &found) };
        Ok(())
    }

    /// Searches `first..end` with this thread alone; lists at most `room` matches.
    fn range(&self, first: u64, end: u64, room: u64) -> Result<Found> {
        let mut found = Found::default();
        let enough = |found: &Found| !self.count_all && found.listed.len() as u64 >= room;
        if let Some(address) = self.from.memory.address()
            && self.range_in_place(address, first, end, room, &mut found)?
        {
            return Ok(found);
        }
        if self.matcher.stride() >= M::SPARSE_STRIDE_BYTES {
            self.range_of_fields(first, end, room, &enough, &mut found)?;
            return Ok(found);
        }
        let mut block = vec![0_u8; M::BLOCK_BYTES];
        let per_block = M::BLOCK_BYTES / self.matcher.stride();
        let mut next = first;
        while next < end && !enough(&found) {
            let elements = (end - next).min(per_block as u64) as usize;
            let block = &mut block[..elements * self.matcher.stride()];
            let at = self.from.offset + next * self.matcher.stride() as u64;
            // SAFETY: the elements were checked to be inside of the memory, and `next + elements` is at most their
            // number.
            unsafe { self.from.memory.read(OPERATION, at, block.as_mut_ptr(), block.len()) }?;
            let matches = self.matcher.count(block);
            found.matches += matches;
            let wanted = matches.min(room - found.listed.len() as u64) as usize;
            if wanted > 0 {
                found.listed.try_reserve(wanted).map_err(|_| no_memory(OPERATION, wanted))?;
                self.matcher.list(block, next, wanted, &mut found.listed);
            }
            next += elements as u64;
        }
        Ok(found)
    }

    /// The same for fields that fit a register and have gaps between them, in memory that can be read in place. Says
    /// whether this is such a case.
    ///
    /// Fields without gaps are better off with a copy that is then compared by vector instructions. Those of 16
    /// bytes, of which a vector has few, are not.
    fn range_in_place(
        &self,
        address: *const u8,
        first: u64,
        end: u64,
        room: u64,
        found: &mut Found,
    ) -> Result<bool> {
        macro_rules! by_length {
            ($($word:ty),*) => {
                match self.matcher.value().len() {
                    $(length if length == size_of::<$word>() && (self.matcher.stride() > length || length >= 16) => {
                        self.range_of_words::<$word>(address, first, end, room, found)?;
                        Ok(true)
                    })*
                    _ => Ok(false),
                }
            };
        }
        by_length!(u8, u16, u32, u64, Wide)
    }

    fn range_of_words<W: Word>(
        &self,
        address: *const u8,
        first: u64,
        end: u64,
        room: u64,
        found: &mut Found,
    ) -> Result<()> {
        let Some(value) = W::from_bytes(self.matcher.value()) else { return Ok(()) };
        let stride = self.matcher.stride();
        let offset = self.from.offset + first * stride as u64 + self.matcher.field_offset() as u64;
        let mut field = address.wrapping_add(offset as usize);
        for index in first..end {
            // SAFETY: the elements `first..end` were checked to be inside of the memory, and the fields to be inside
            // of them.
            if unsafe { W::load(field) } == value {
                found.matches += 1;
                if (found.listed.len() as u64) < room {
                    found.list(OPERATION, index)?;
                }
                if !self.count_all && found.listed.len() as u64 >= room {
                    break;
                }
            }
            field = field.wrapping_add(stride);
        }
        Ok(())
    }

    /// The same for long elements, of which only the fields are read.
    fn range_of_fields(
        &self,
        first: u64,
        end: u64,
        room: u64,
        enough: &dyn Fn(&Found) -> bool,
        found: &mut Found,
    ) -> Result<()> {
        let mut field = vec![0_u8; self.matcher.value().len()];
        for index in first..end {
            let at =
                self.from.offset + index * self.matcher.stride() as u64 + self.matcher.field_offset() as u64;
            // SAFETY: as in `range`; a field is inside of its element.
            unsafe { self.from.memory.read(OPERATION, at, field.as_mut_ptr(), field.len()) }?;
            if field == self.matcher.value() {
                found.matches += 1;
                if (found.listed.len() as u64) < room {
                    found.list(OPERATION, index)?;
                }
                if enough(found) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
