//! Searches: the division of elements into segments and chunks, and the copy of the answer to the host.

use std::sync::Arc;

use backend_api::{Elements, Result, Search};

use super::listing::{Limit, Listing};
use crate::driver::objects::{Argument, Memory};
use crate::host_memory::HostPiece;
use crate::kernel::Kernels;
use crate::memory::Buffer;
use crate::queue::{Scratch, Submission};

/// The chunks of a search that may stop early: small, so that it does stop early.
const CHUNK_BYTES_EARLY: u64 = 64 << 10;
/// The chunks of a full search.
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = (32 << 10)..=(512 << 10);
/// Fields that span two pieces are assembled at multiples of this length.
const STRADDLER_STRIDE: u64 = Search::VALUE_MAX_BYTES as u64;

/// Elements whose fields are in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    /// The piece, or `None` for the buffer of assembled fields.
    piece: Option<usize>,
    /// The offset of the first field.
    field: u64,
    /// The number of elements, and the index of the first one.
    count: u64,
    before: u64,
    /// The division: elements before the first whole vector, elements of a chunk, chunks.
    head: u32,
    per_chunk: u32,
    chunks: u32,
    /// The chunks of segments before this one.
    chunks_before: u32,
}

/// Returns the segments of a search, in ascending order of elements. Only a field that itself spans two
/// pieces needs care; the rest of its element does not matter.
fn segments(first_field: u64, count: u64, stride: u64, length: u64, shift: u32) -> Vec<Segment> {
    let mut segments = Vec::new();
    let (mut index, mut straddlers) = (0, 0);
    while index < count {
        let field = first_field + index * stride;
        let end = ((field >> shift) + 1) << shift;
        let mut segment = Segment {
            piece: Some((field >> shift) as usize),
            field: field & ((1 << shift) - 1),
            count: 1,
            before: index,
            head: 0,
            per_chunk: 1,
            chunks: 1,
            chunks_before: 0,
        };
        if field + length <= end {
            segment.count = ((end - length - field) / stride + 1).min(count - index);
        } else {
            segment.piece = None;
            segment.field = straddlers * STRADDLER_STRIDE;
            straddlers += 1;
        }
        index += segment.count;
        segments.push(segment);
    }
    segments
}

/// The access of a search to its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Fields that are whole elements, loaded as vectors; with the length of a field in bytes.
    Packed(u64),
    /// Fields between other bytes, loaded as single words; with the length of a word in bytes.
    Spread(u64),
}

impl Access {
    /// Returns the best access to fields of `length` bytes; the first field begins at `field`.
    fn new(field: u64, stride: u64, length: u64) -> Self {
        let aligned = |width: u64| (field | stride | length).is_multiple_of(width);
        if stride == length && matches!(length, 1 | 2 | 4 | 8 | 16) && aligned(length) {
            return Self::Packed(length);
        }
        Self::Spread([8, 4, 2].into_iter().find(|&width| aligned(width)).unwrap_or(1))
    }

    fn count_kernel(self) -> String {
        match self {
            Self::Packed(width) => format!("search_count_packed_{width}"),
            Self::Spread(width) => format!("search_count_spread_{width}"),
        }
    }

    /// The width of a listing's words, and its kernel.
    fn list_kernel(self) -> (u64, String) {
        let (Self::Packed(width) | Self::Spread(width)) = self;
        (width.min(8), format!("search_list_{}", width.min(8)))
    }

    fn cut(self, segment: &mut Segment, stride: u64, group: u64, chunk_bytes: u64) {
        let per_chunk = (chunk_bytes / stride).max(1);
        let multiple = match self {
            Self::Packed(width) => {
                let head = (segment.field.next_multiple_of(16) - segment.field) / width;
                segment.head = head as u32;
                group * 16 / width
            }
            Self::Spread(_) => group,
        };
        let per_chunk = per_chunk.next_multiple_of(multiple);
        segment.per_chunk = per_chunk as u32;
        // Chunk 0 also contains the head, and exists even if no elements follow the head.
        let body = segment.count.saturating_sub(segment.head.into());
        segment.chunks = body.div_ceil(per_chunk).max(1) as u32;
    }
}

/// Returns the first `bytes` bytes of a value as a number.
fn word(value: &[u8], bytes: u64) -> u64 {
    let mut word = [0; 8];
    let bytes = (bytes as usize).min(value.len());
    word[..bytes].copy_from_slice(&value[..bytes]);
    u64::from_ne_bytes(word)
}

/// Repeats the value in 16 bytes.
fn vector(value: &[u8]) -> [u32; 4] {
    let byte = |i: usize| value[i % value.len()];
    std::array::from_fn(|i| u32::from_ne_bytes(std::array::from_fn(|j| byte(4 * i + j))))
}

/// The data that all launches of one search share.
struct Plan<'a> {
    buffer: &'a Buffer,
    straddlers: Option<&'a Memory>,
    segments: Vec<Segment>,
    access: Access,
    stride: u64,
    value: &'a [u8],
    value_memory: &'a Memory,
}

impl Plan<'_> {
    fn segment_arguments(&self, segment: &Segment) -> [Argument<'_>; 7] {
        let memory = match (segment.piece, self.straddlers) {
            (None, Some(straddlers)) => straddlers,
            (piece, _) => &self.buffer.pieces[piece.unwrap_or(0)],
        };
        [
            Argument::Buffer(memory),
            Argument::U64(segment.field),
            Argument::U64(segment.count),
            Argument::U64(self.stride),
            Argument::U32(segment.head),
            Argument::U32(segment.per_chunk),
            Argument::U32(segment.chunks),
        ]
    }

    /// Launches kernels that list the matches of a range of numbers.
    fn list(&self, submission: &mut Submission<'_>, listing: &Listing, range: (u64, u64)) -> Result<()> {
        let (width, kernel) = self.access.list_kernel();
        for segment in &self.segments {
            let mut arguments = self.segment_arguments(segment).to_vec();
            arguments.extend([
                Argument::U64(word(self.value, width)),
                Argument::Buffer(self.value_memory),
                Argument::U32(self.value.len() as u32),
            ]);
            arguments.extend(listing.to_list(segment.chunks_before, segment.before, range));
            let groups = submission.core.kernels.groups_up_to(segment.chunks.into());
            // SAFETY: the segment is in its buffer; counts and offsets have a place for each of its
            // chunks; the kernel writes at most as many indices as the range has, for which the list has
            // room.
            unsafe { submission.launch(&kernel, groups, &arguments)? };
        }
        Ok(())
    }
}

/// Searches checked elements.
pub(crate) fn search(
    submission: &mut Submission<'_>,
    buffer: &Arc<Buffer>,
    search: &Search<'_>,
    answer: &HostPiece,
) -> Result<()> {
    let core = submission.core;
    let kernels: &Kernels = &core.kernels;
    let Elements { start, count, stride } = search.elements;
    let length = search.value.len() as u64;
    let limit = Limit::new(search.limit, count, search.count_all);
    let first_field = start.offset() + search.field_offset;

    // Pieces, and assembled fields in their buffer, begin at multiples of all widths.
    let mut access = Access::new(first_field, stride, length);
    let mut segments = segments(first_field, count, stride, length, buffer.shift);
    if segments.iter().any(|segment| segment.piece.is_none()) && matches!(access, Access::Packed(_)) {
        // Aligned fields never span two pieces. This line guards that assumption of the kernels.
        access = Access::Spread(1);
    }
    let span = count.saturating_mul(stride);
    let chunk_bytes = if limit.early {
        CHUNK_BYTES_EARLY
    } else {
        (span / (kernels.groups as u64 * 8)).clamp(*CHUNK_BYTES.start(), *CHUNK_BYTES.end())
    };
    let mut chunks = 0_u32;
    for segment in &mut segments {
        access.cut(segment, stride, kernels.group as u64, chunk_bytes);
        segment.chunks_before = chunks;
        chunks = chunks.saturating_add(segment.chunks);
    }

    let straddling: Vec<&Segment> = segments.iter().filter(|segment| segment.piece.is_none()).collect();
    let straddlers = match straddling.len() as u64 {
        0 => None,
        some => Some(submission.scratch(Scratch::Straddlers, some * STRADDLER_STRIDE)?),
    };
    if let Some(straddlers) = &straddlers {
        for segment in straddling {
            for part in buffer.parts(first_field + segment.before * stride, length) {
                let to = (&***straddlers, segment.field + part.before);
                submission.copy((&**buffer.pieces[part.piece], part.offset), to, part.bytes, false)?;
            }
        }
    }

    let parameters = submission.scratch(Scratch::Parameters, length)?;
    // Kernels compare packed fields with an argument. For other fields they read the value from memory.
    if matches!(access, Access::Spread(_)) || length > 8 {
        submission.upload(search.value.to_vec(), &parameters)?;
    }
    let listing = Listing::new(submission, limit, chunks, segments.len())?;
    let plan = Plan {
        buffer,
        straddlers: straddlers.as_ref().map(|scratch| &***scratch),
        segments,
        access,
        stride,
        value: search.value,
        value_memory: &parameters,
    };
    let kernel = access.count_kernel();
    for (number, segment) in plan.segments.iter().enumerate() {
        let mut arguments = plan.segment_arguments(segment).to_vec();
        match access {
            Access::Packed(_) => arguments.push(Argument::Vector(vector(search.value))),
            Access::Spread(width) => arguments.extend([
                Argument::U64(word(search.value, width)),
                Argument::Buffer(plan.value_memory),
                Argument::U32(length as u32),
            ]),
        }
        arguments.extend(listing.to_count(number, segment.chunks_before));
        let groups = kernels.groups_up_to(segment.chunks.into());
        // SAFETY: the segment is in its buffer, its chunks in `counts`, its number in `state`.
        unsafe { submission.launch(&kernel, groups, &arguments)? };
    }
    listing.answer(submission, (answer, search.answer.offset()), |submission, listing, range| {
        plan.list(submission, listing, range)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_hold_every_field_once_and_in_order() {
        for (first, count, stride, length) in [
            (0, 10_000, 4, 4),
            (3, 999, 13, 5),
            (4090, 100, 4096, 4096),
            (17, 300, 44, 44),
            (5, 4, 100_000, 9),
        ] {
            let mut next = 0;
            for segment in segments(first, count, stride, length, 12) {
                assert_eq!(segment.before, next);
                next += segment.count;
                let begin = first + segment.before * stride;
                let end = begin + (segment.count - 1) * stride + length;
                match segment.piece {
                    Some(piece) => {
                        let piece = piece as u64;
                        assert_eq!(begin, piece * 4096 + segment.field);
                        assert!(end <= (piece + 1) * 4096);
                    }
                    None => {
                        assert_eq!(segment.count, 1);
                        assert_ne!(begin >> 12, (end - 1) >> 12);
                    }
                }
            }
            assert_eq!(next, count);
        }
    }

    #[test]
    fn aligned_fields_never_straddle() {
        assert!(segments(8, 10_000, 8, 8, 12).iter().all(|segment| segment.piece.is_some()));
    }

    #[test]
    fn the_widest_access_that_fits_is_taken() {
        assert_eq!(Access::new(8, 4, 4), Access::Packed(4));
        assert_eq!(Access::new(2, 4, 4), Access::Spread(2));
        assert_eq!(Access::new(0, 44, 4), Access::Spread(4));
        assert_eq!(Access::new(8, 24, 16), Access::Spread(8));
        assert_eq!(Access::new(1, 3, 3), Access::Spread(1));
    }

    #[test]
    fn chunks_cover_the_segment() {
        for (field, count, stride) in
            [(4_u64, 1_u64, 4_u64), (4, 2, 4), (12, 100_000, 4), (0, 70_000, 1), (16, 5, 16)]
        {
            let mut segment = segments(field, count, stride, stride, ONE)[0];
            Access::new(field, stride, stride).cut(&mut segment, stride, 64, 1 << 14);
            let covered = u64::from(segment.head) + u64::from(segment.chunks) * u64::from(segment.per_chunk);
            assert!(covered >= count);
            assert_eq!((field + u64::from(segment.head) * stride) % 16, 0);
        }
    }

    const ONE: u32 = crate::memory::ONE_PIECE;
}
