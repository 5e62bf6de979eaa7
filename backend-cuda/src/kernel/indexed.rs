//! Gather and scatter on a CUDA device: thread blocks each process tiles of the values. If the host memory is
//! pageable, indices and values are copied through scratch memory of the GPU.

use backend_api::LaunchView;
use vmarray_support::backends::IndexedDirection;

use crate::driver::DriverResult;
use crate::host_memory::HostAddress;
use crate::kernel::argument;
use crate::kernel::modules::FixedKernel;
use crate::submission::CudaSubmission;

/// A checked gather or scatter, with addresses in place of handles.
#[derive(Clone, Debug)]
pub(crate) struct IndexedRequest {
    pub(crate) direction: IndexedDirection,
    /// For each memory range of the pages, its start address.
    pub(crate) bases: Vec<u64>,
    pub(crate) page_len: u64,
    pub(crate) elements_count: u64,
    pub(crate) stride: u64,
    pub(crate) indices: HostAddress,
    pub(crate) count: u64,
    pub(crate) values: HostAddress,
}

/// The parameters of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Arguments {
    count: u64,
    stride: u64,
    indices: u64,
    total: u64,
    values: u64,
    tile_bytes: u64,
    tiles: u64,
    failure: u64,
    page_len: u64,
    places: u64,
    bases: [u64; LaunchView::BASES_MAX],
}

/// Maximum number of indices of a tile in a block's shared memory, as in `kernels/gather.cu`.
const TILE_ELEMENTS: u64 = 512;
const TILE_BYTES_MAX: u64 = 16 << 10;
const TILE_BYTES_MIN: u64 = 1 << 10;
/// Tiles are multiples of this length in bytes, because kernels write the values in whole cache lines.
const LINE_BYTES: u64 = 128;
const BLOCKS_PER_MULTIPROCESSOR: u64 = 8;
/// The number of bytes of pageable data that are copied to the GPU at once.
const BOUNCE_BYTES: u64 = 8 << 20;

/// Returns log2 of the longest word (in bytes) that divides all addresses which the kernel accesses.
fn word(elements: u64, stride: u64, values: u64) -> usize {
    let places = (elements | stride | 16).trailing_zeros();
    let with_values = (elements | stride | values | 16).trailing_zeros();
    // If values have no alignment of 4 bytes, the kernel combines elements to words of 4 bytes itself.
    if with_values >= 2 { with_values as usize } else { places.min(1) as usize }
}

fn tile_bytes(stride: u64, total: u64, blocks: u64) -> u64 {
    let room = TILE_ELEMENTS.saturating_mul(stride).min(TILE_BYTES_MAX);
    let even = (total / blocks.max(1)).max(TILE_BYTES_MIN);
    room.min(even) / LINE_BYTES * LINE_BYTES
}

/// Submits a gather or scatter.
pub(crate) fn run(work: &mut CudaSubmission<'_>, request: &IndexedRequest) -> DriverResult {
    if request.count == 0 {
        return Ok(());
    }
    if let (Some(indices), Some(values)) = (request.indices.mapped, request.values.mapped) {
        return launch(work, request, indices, values, request.count, 0);
    }
    // The host memory is pageable: copy through scratch memory of the GPU, part by part.
    let stride = request.stride;
    let part = (BOUNCE_BYTES / (stride + 8)).clamp(1, request.count);
    let values_room = (part * stride).next_multiple_of(256);
    let bounce = work.bounce(values_room + part * 8)?;
    let mut first = 0;
    while first < request.count {
        let count = part.min(request.count - first);
        // SAFETY (all three): indices and values were checked against their memory, and the bounce memory
        // has room for a part of both.
        let indices = match request.indices.mapped {
            Some(mapped) => mapped + first * 8,
            None => {
                let to = bounce + values_room;
                // SAFETY: see above.
                unsafe { work.stream().upload(to, request.indices.host + first * 8, count * 8) }?;
                to
            }
        };
        let (host, bytes) = (request.values.host + first * stride, count * stride);
        let values = request.values.mapped.map_or(bounce, |mapped| mapped + first * stride);
        let is_pageable = request.values.mapped.is_none();
        if is_pageable && request.direction == IndexedDirection::Scatter {
            // SAFETY: see above.
            unsafe { work.stream().upload(values, host, bytes) }?;
        }
        launch(work, request, indices, values, count, first)?;
        if is_pageable && request.direction == IndexedDirection::Gather {
            // SAFETY: see above.
            unsafe { work.stream().download(host, values, bytes) }?;
        }
        first += count;
    }
    Ok(())
}

/// Launches one kernel for `count` indices, starting at index `first` of the call.
fn launch(
    work: &mut CudaSubmission<'_>,
    request: &IndexedRequest,
    indices: u64,
    values: u64,
    count: u64,
    first: u64,
) -> DriverResult {
    let core = work.core;
    let word = word(request.bases.iter().fold(0, |all, base| all | base), request.stride, values);
    let kernel = match request.direction {
        IndexedDirection::Gather => FixedKernel::Gather(word),
        IndexedDirection::Scatter => FixedKernel::Scatter(word),
    };
    let function = core.kernels.fixed(work.context(), kernel)?;
    let blocks = u64::from(core.card.multiprocessors) * BLOCKS_PER_MULTIPROCESSOR;
    let total = count * request.stride;
    let tile_bytes = tile_bytes(request.stride, total, blocks);
    // The first tile (range of values) begins at a whole word, which may begin some bytes before the first
    // value.
    let shift = values & ((1 << word.max(2)) - 1);
    let tiles = (total + shift).div_ceil(tile_bytes);
    let mut bases = [0; LaunchView::BASES_MAX];
    bases[..request.bases.len()].copy_from_slice(&request.bases);
    let arguments = Arguments {
        count: request.elements_count,
        stride: request.stride,
        indices,
        total,
        values,
        tile_bytes,
        tiles,
        failure: work.report(request.direction.operation(), first)?,
        page_len: request.page_len,
        places: request.bases.len() as u64,
        bases,
    };
    // SAFETY: the parameter is the structure that the kernels declare. Indices and values were checked
    // against their memory and are mapped or on the GPU; the kernel checks each index against the
    // elements; the report is borrowed until the submission is done.
    unsafe { work.stream().launch(function, tiles.min(blocks), &mut [argument(&arguments)]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_divide_strides_and_offsets() {
        assert_eq!(word(0, 44, 0), 2);
        assert_eq!(word(16, 48, 32), 4);
        assert_eq!(word(16, 48, 8), 3);
        assert_eq!(word(16, 48, 2), 1);
        assert_eq!(word(16, 48, 1), 1);
        assert_eq!(word(0, 6, 0), 1);
        assert_eq!(word(1, 4, 0), 0);
        assert_eq!(word(0, 3, 0), 0);
    }

    #[test]
    fn tiles_fit_the_shared_memory_and_are_whole_lines() {
        for stride in [1, 2, 3, 4, 44, 127, 4096, 1 << 20] {
            for total in [1, 1000, 1 << 20, 1 << 40] {
                let tile = tile_bytes(stride, total, 1056);
                assert!(tile >= LINE_BYTES && tile.is_multiple_of(LINE_BYTES), "{stride} {total}");
                assert!(tile <= TILE_ELEMENTS * stride);
            }
        }
    }
}
