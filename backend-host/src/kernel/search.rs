//! Fast path of searches that compare one field with a value.
//!
//! `compute` copies fields to columns before it evaluates them. This module compares short fields in vector
//! registers without columns. Of long elements it reads only the field.

use backend_api::Result;

use super::matcher::Matcher;
use super::waves::{WaveMatches, WavePart};
use crate::handle_table::MemoryPlace;
use crate::memory::Passage;
use crate::racy_word::{Wide, Word};
use crate::storage::Storage;

const OPERATION: &str = "search";
/// Approximate bytes that a thread searches between two checks if its result is still needed.
const PIECE_BYTES: usize = 64 << 10;

/// A search for a value in one field, with checked elements.
#[derive(Debug)]
pub(super) struct FieldSearch<'a, M> {
    /// Location of element 0 in device memory.
    pub from: &'a MemoryPlace<M>,
    pub count_all: bool,
    pub matcher: Matcher,
}

impl<M: Storage> FieldSearch<'_, M> {
    /// Searches a part on this thread. Stops early if the search needs no more of the part's matches.
    pub fn part(&self, part: &WavePart<'_>, found: &mut WaveMatches) -> Result<()> {
        let per_piece = (PIECE_BYTES.max(M::BLOCK_BYTES) / self.matcher.stride()).max(1) as u64;
        let mut block = Passage::default();
        let mut next = part.first;
        while next < part.end && part.is_needed() && !self.is_enough(part.room, found) {
            let end = part.end.min(next.saturating_add(per_piece));
            self.range(next, end, part.room, &mut block.0, found)?;
            next = end;
        }
        Ok(())
    }

    fn is_enough(&self, room: u64, found: &WaveMatches) -> bool {
        !self.count_all && found.listed.len() as u64 >= room
    }

    /// Searches the elements `first..end`, and lists at most `room` matches. `block` is scratch memory.
    fn range(
        &self,
        first: u64,
        end: u64,
        room: u64,
        block: &mut Vec<u8>,
        found: &mut WaveMatches,
    ) -> Result<()> {
        if let Some(address) = self.from.memory.address()
            && self.range_in_place(address, first, end, room, found)?
        {
            return Ok(());
        }
        let stride = self.matcher.stride();
        if stride >= M::SPARSE_STRIDE_BYTES {
            return self.range_of_fields(first, end, room, found);
        }
        let per_block = M::BLOCK_BYTES / stride;
        let mut next = first;
        while next < end && !self.is_enough(room, found) {
            let elements = (end - next).min(per_block as u64) as usize;
            block.resize(per_block * stride, 0);
            let block = &mut block[..elements * stride];
            let at = self.from.offset + next * stride as u64;
            // SAFETY: the elements were checked to be inside the memory, and `next + elements` is at most
            // their number.
            unsafe { self.from.memory.read(OPERATION, at, block.as_mut_ptr(), block.len()) }?;
            let matches = self.matcher.count(block);
            found.list_block(OPERATION, matches, (room, 1), |into| self.matcher.list(block, next, into))?;
            next += elements as u64;
        }
        Ok(())
    }

    /// Searches like `range`, in place. Returns false unless the fields fit a register, are not contiguous,
    /// and are in addressable memory.
    ///
    /// For contiguous fields a copy and a vectorised comparison are faster, except for fields of 16 bytes, of
    /// which a vector holds few.
    fn range_in_place(
        &self,
        address: *const u8,
        first: u64,
        end: u64,
        room: u64,
        found: &mut WaveMatches,
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
        found: &mut WaveMatches,
    ) -> Result<()> {
        let Some(value) = W::from_bytes(self.matcher.value()) else { return Ok(()) };
        let stride = self.matcher.stride();
        let offset = self.from.offset + first * stride as u64 + self.matcher.field_offset() as u64;
        let mut field = address.wrapping_add(offset as usize);
        for index in first..end {
            // SAFETY: the elements `first..end` were checked to be inside the memory, and the fields to be
            // inside them.
            if unsafe { W::load(field) } == value {
                found.matches += 1;
                if (found.listed.len() as u64) < room {
                    found.list(OPERATION, index)?;
                }
                if self.is_enough(room, found) {
                    break;
                }
            }
            field = field.wrapping_add(stride);
        }
        Ok(())
    }

    /// Searches like `range`, for long elements; reads only their fields.
    fn range_of_fields(&self, first: u64, end: u64, room: u64, found: &mut WaveMatches) -> Result<()> {
        let mut field = Passage(vec![0_u8; self.matcher.value().len()]);
        let field = &mut field.0;
        for index in first..end {
            let at =
                self.from.offset + index * self.matcher.stride() as u64 + self.matcher.field_offset() as u64;
            // SAFETY: as in `range`; a field is inside its element.
            unsafe { self.from.memory.read(OPERATION, at, field.as_mut_ptr(), field.len()) }?;
            if *field == self.matcher.value() {
                found.matches += 1;
                if (found.listed.len() as u64) < room {
                    found.list(OPERATION, index)?;
                }
                if self.is_enough(room, found) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
