//! Gather and scatter on an OpenCL device. If kernels can access the host memory, they use indices and values
//! in place. Otherwise the device copies both through its scratch memory, one part at a time.

use std::sync::Arc;

use backend_api::{Elements, Error, Result};
use vmarray_support::backends::IndexedDirection;

use crate::discovery::ONE_PIECE;
use crate::driver::objects::DriverArgument;
use crate::host_memory::HostPiece;
use crate::memory::Buffer;
use crate::queue::{OpenClSubmission, QueueScratch};

/// Maximum bytes of values in one round.
const ROUND_BYTES: u64 = 32 << 20;
/// Maximum number of indices in one round.
const ROUND_INDICES: u64 = 4 << 20;
/// Number of pieces (OpenCL buffers) that a kernel can access at once.
const PIECES: usize = 8;

/// Returns the kernel arguments for eight pieces, starting at piece `first`, and the shift. Unused arguments
/// repeat the first piece, and no address refers to them.
pub(crate) fn piece_arguments(buffer: &Buffer, first: usize) -> [DriverArgument<'_>; PIECES + 1] {
    std::array::from_fn(|i| match i {
        PIECES => DriverArgument::U32(buffer.shift),
        _ => DriverArgument::Buffer(buffer.pieces.get(first + i).unwrap_or(&buffer.pieces[first])),
    })
}

/// Returns the windows of eight pieces that contain the bytes `start..end`: for each window its first piece,
/// first byte and length.
pub(crate) fn windows(buffer: &Buffer, start: u64, end: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let shift = buffer.shift;
    let bytes = buffer.bytes;
    let (first, last) = if shift == ONE_PIECE { (0, 0) } else { (start >> shift, (end - 1) >> shift) };
    (first..=last).step_by(PIECES).map(move |piece| {
        if shift == ONE_PIECE {
            return (0, 0, bytes);
        }
        let window = piece << shift;
        (piece as usize, window, ((PIECES as u64) << shift).min(bytes - window))
    })
}

/// Submits a checked gather or scatter.
pub(crate) fn indexed(
    submission: &mut OpenClSubmission<'_>,
    direction: IndexedDirection,
    (buffer, elements): (&Arc<Buffer>, Elements<'_>),
    indices: (&HostPiece, u64),
    count: u64,
    values: (&HostPiece, u64),
) -> Result<()> {
    let Elements { start, stride, .. } = elements;
    if count == 0 {
        return Ok(());
    }
    indices.0.await_writes(indices.1, count * 8);
    order_with_host(submission, direction, values, count * stride);
    let in_place = indices.0.shared && values.0.shared;
    // Use the widest words that divide the elements' offset and stride. In place, the words must also divide
    // the offset of the values. Buffers, host memory and scratch memory begin at multiples of all widths.
    let packed_at = if in_place { values.1 } else { 0 };
    let width = 1_u64 << (start.offset() | stride | packed_at | 16).trailing_zeros();
    let each = stride / width;
    let total = count * each;
    let tag = submission.value() as u32;
    // The kernel writes the tag of its submission if an index is out of bounds. Tag 0 is unused, because new
    // scratch memory contains zeroes.
    let tag = if tag == 0 { u32::MAX } else { tag };
    let of = elements.count;
    let verdict =
        submission.verdict(move |words| (words[0] == tag).then(|| outside(direction, words, of)))?;
    let failure = submission.scratch(QueueScratch::Failure, 16)?;

    let mut word = 0;
    while word < total {
        // Without elements every index is out of bounds. The kernel must still check the indices, although no
        // element has an address.
        let first = word / each;
        let skew = word % each;
        let most = (ROUND_BYTES / width).min(ROUND_INDICES.saturating_mul(each) - skew);
        let words = most.min(total - word);
        let (indices_here, values_here) =
            (indices.0.at(indices.1 + first * 8), values.0.at(values.1 + word * width));
        let round = Round {
            first,
            skew,
            words,
            width,
            each,
            tag,
            list: DriverArgument::Shared(indices_here.cast()),
            packed: DriverArgument::Shared(values_here.cast()),
            failure: DriverArgument::Buffer(&failure),
        };
        if in_place {
            round.launch(submission, direction, buffer, elements)?;
        } else {
            let places = (indices_here, values_here);
            // SAFETY: the indices and values were checked to exist.
            unsafe { launch_staged(submission, direction, (buffer, elements), round, places)? };
        }
        word += words;
    }
    // SAFETY: both sides have 16 bytes.
    unsafe { submission.read(&failure, 0, verdict, 16, true)? };
    Ok(())
}

/// Launches a round whose indices and values are copied to scratch memory.
///
/// # Safety
/// The indices and values of the round must exist at these addresses in host memory.
unsafe fn launch_staged(
    submission: &mut OpenClSubmission<'_>,
    direction: IndexedDirection,
    (buffer, elements): (&Arc<Buffer>, Elements<'_>),
    round: Round<'_>,
    (indices, values): (*mut u8, *mut u8),
) -> Result<()> {
    let listed = (round.skew + round.words).div_ceil(round.each);
    let bytes = round.words * round.width;
    let list = submission.scratch(QueueScratch::Indices, listed * 8)?;
    let packed = submission.scratch(QueueScratch::Values, bytes)?;
    // SAFETY: the caller promises that the indices exist.
    unsafe { submission.write(indices, &list, 0, listed * 8, false)? };
    if direction == IndexedDirection::Scatter {
        // SAFETY: the caller promises that the values exist.
        unsafe { submission.write(values, &packed, 0, bytes, false)? };
    }
    let staged =
        Round { list: DriverArgument::Buffer(&list), packed: DriverArgument::Buffer(&packed), ..round };
    staged.launch(submission, direction, buffer, elements)?;
    if direction == IndexedDirection::Gather {
        // SAFETY: the caller promises room for the values.
        unsafe { submission.read(&packed, 0, values, bytes, false)? };
    }
    Ok(())
}

/// Waits for writes to the host memory that a scatter reads, or records the writes of a gather.
fn order_with_host(
    submission: &OpenClSubmission<'_>,
    direction: IndexedDirection,
    (values, at): (&HostPiece, u64),
    bytes: u64,
) {
    match direction {
        IndexedDirection::Scatter => values.await_writes(at, bytes),
        IndexedDirection::Gather => {
            values.will_be_written(submission.queue(), submission.value(), at, bytes);
        }
    }
}

/// Returns the error for an index out of bounds, whose position in the list the kernel reported.
fn outside(direction: IndexedDirection, words: [u32; 4], elements: u64) -> Error {
    let position = u64::from(words[1]) | u64::from(words[2]) << 32;
    Error::index_outside(direction.operation()).with_detail(format!(
        "the index at position {position} of the list is outside of the {elements} elements"
    ))
}

/// The part of the list of indices that one round processes.
struct Round<'a> {
    /// First index of the round, and number of words of its element that earlier rounds have processed.
    first: u64,
    skew: u64,
    words: u64,
    width: u64,
    /// Number of words of an element.
    each: u64,
    tag: u32,
    list: DriverArgument<'a>,
    packed: DriverArgument<'a>,
    failure: DriverArgument<'a>,
}

impl Round<'_> {
    fn launch(
        &self,
        submission: &mut OpenClSubmission<'_>,
        direction: IndexedDirection,
        buffer: &Buffer,
        elements: Elements<'_>,
    ) -> Result<()> {
        let Elements { start, count, stride } = elements;
        let groups = submission.core.kernels.groups_for(self.words);
        // Select the kernel by the length of its words: 1, 2, 4, 8 or 16 bytes.
        let kernel = format!("{}_{}", direction.operation(), self.width);
        let launch = |submission: &mut OpenClSubmission<'_>,
                      pieces: [DriverArgument<'_>; PIECES + 1],
                      window: u64,
                      bytes: u64| {
            let mut arguments = pieces.to_vec();
            arguments.extend([
                DriverArgument::U64(window),
                DriverArgument::U64(bytes),
                DriverArgument::U64(start.offset()),
                DriverArgument::U64(count),
                DriverArgument::U64(stride),
                DriverArgument::U64(self.each),
                self.list,
                DriverArgument::U64(self.skew),
                DriverArgument::U32(self.words as u32),
                DriverArgument::U64(self.first),
                self.packed,
                self.failure,
                DriverArgument::U32(self.tag),
            ]);
            // SAFETY: the kernel skips indices out of bounds, and words outside of the window; `pieces`
            // has all memory of the window. The lists of indices and values have `skew + words` entries.
            unsafe { submission.launch(&kernel, groups, &arguments) }
        };
        if count == 0 {
            // The kernel accesses no element, so pass any valid buffer in place of the elements.
            let none = std::array::from_fn(|i| match i {
                PIECES => DriverArgument::U32(ONE_PIECE),
                _ => self.failure,
            });
            return launch(submission, none, 0, 0);
        }
        for (piece, window, bytes) in windows(buffer, start.offset(), start.offset() + count * stride) {
            launch(submission, piece_arguments(buffer, piece), window, bytes)?;
        }
        Ok(())
    }
}
