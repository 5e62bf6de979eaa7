//! Fills of device memory with a pattern on an OpenCL device.

use std::sync::Arc;

use backend_api::Result;

use crate::driver::objects::DriverArgument;
use crate::memory::Buffer;
use crate::queue::{OpenClSubmission, QueueScratch};

const VECTOR_BYTES: u64 = 16;

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Returns `bytes` bytes of the repeated `pattern`, starting at byte `phase` of the pattern.
fn repeated(pattern: &[u8], phase: u64, bytes: u64) -> Vec<u8> {
    let phase = (phase % pattern.len() as u64) as usize;
    pattern.iter().copied().cycle().skip(phase).take(bytes as usize).collect()
}

/// Submits a fill of a checked range.
pub(crate) fn fill(
    submission: &mut OpenClSubmission<'_>,
    buffer: &Arc<Buffer>,
    offset: u64,
    bytes: u64,
    pattern: &[u8],
) -> Result<()> {
    let length = pattern.len() as u64;
    for part in buffer.parts(offset, bytes) {
        let memory = &buffer.pieces[part.piece];
        let (start, end) = (part.offset, part.offset + part.bytes);
        let head = start.next_multiple_of(VECTOR_BYTES).min(end);
        let vectors = (end - head) / VECTOR_BYTES;
        let tail = head + vectors * VECTOR_BYTES;
        if vectors > 0 {
            let groups = submission.core.kernels.groups_for(vectors);
            let phase = part.before + (head - start);
            let entries = length / common_divisor(length, VECTOR_BYTES);
            let table = repeated(pattern, phase, entries * VECTOR_BYTES);
            let first = head / VECTOR_BYTES;
            if let (1, Some(vector)) = (entries, table.first_chunk::<16>()) {
                let words = vector.as_chunks::<4>().0;
                let vector = std::array::from_fn(|i| u32::from_ne_bytes(words[i]));
                let arguments = [
                    DriverArgument::Buffer(memory),
                    DriverArgument::U64(first),
                    DriverArgument::U64(vectors),
                    DriverArgument::Vector(vector),
                ];
                // SAFETY: vectors `first` to `first + vectors` are in the part, which is in the piece.
                unsafe { submission.launch("fill_same", groups, &arguments)? };
            } else {
                let scratch = submission.scratch(QueueScratch::Parameters, table.len() as u64)?;
                submission.upload(table, &scratch)?;
                let arguments = [
                    DriverArgument::Buffer(memory),
                    DriverArgument::U64(first),
                    DriverArgument::U64(vectors),
                    DriverArgument::Buffer(&scratch),
                    DriverArgument::U32(entries as u32),
                ];
                // SAFETY: as above; the table has `entries` vectors.
                unsafe { submission.launch("fill_table", groups, &arguments)? };
            }
        }
        if start < head || tail < end {
            let scratch = submission.scratch(QueueScratch::Parameters, length)?;
            submission.upload(pattern.to_vec(), &scratch)?;
            let arguments = [
                DriverArgument::Buffer(memory),
                DriverArgument::U64(start),
                DriverArgument::U64(head),
                DriverArgument::U64(tail),
                DriverArgument::U64(end),
                DriverArgument::Buffer(&scratch),
                DriverArgument::U64(length),
                DriverArgument::U64(part.before % length),
            ];
            // SAFETY: writes `start..head` and `tail..end`, both in the part; reads `length` bytes of the
            // pattern.
            unsafe { submission.launch("fill_edges", 1, &arguments)? };
        }
    }
    Ok(())
}
