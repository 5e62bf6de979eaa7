//! Parallel writes of chunks.

use std::path::Path;

use vmarray::Element;
use vmarray::bytemuck::cast_slice;
use vmarray::kernel::KernelType;
use zarrs::array::{ArrayBytes, ArrayError, CodecOptions};

use super::Zarr;
use super::create::Undescribed;
use super::grid::{Grid, lengths};
use crate::error::{Error, Result, zeroed};
use crate::options::FileOptions;
use crate::pieces::{element_count, in_parallel};
use crate::views::FileView;

/// Approximate bytes of chunks in RAM at a time.
const IN_RAM: usize = 1 << 30;

/// Chunks to write.
pub(super) struct Chunks<'a, T> {
    pub(super) arrays: ChunkArrays,
    pub(super) grid: Grid,
    pub(super) fill_value: T,
    /// Source of the other elements of partly written chunks.
    pub(super) before: Option<&'a Zarr<T>>,
    pub(super) path: &'a Path,
}

impl<T: Element + KernelType> Chunks<'_, T> {
    /// Writes the elements of a view of the grid's shape.
    pub(super) fn write<V: FileView<Element = T>>(
        &self,
        view: V,
        options: &mut FileOptions<'_>,
    ) -> Result<()> {
        let (grid, path) = (&self.grid, self.path);
        let (total, len) = (grid.len() as u64 * size_of::<T>() as u64, element_count(&grid.chunk));
        limit_threads::<T>(len, options);
        let codecs = codec_options(options);
        let buffer = || Ok((zeroed::<T>(len)?, zeroed::<T>(len)?, Vec::new()));
        in_parallel(grid.count(), total, path, options, buffer, |(chunk, part, bytes), number| {
            let cell = grid.cell(number);
            let piece = grid.piece(&cell);
            if piece.len() == len {
                view.read_piece(&piece, chunk)?;
            } else {
                chunk.fill(self.fill_value);
                if let Some(before) = self.before {
                    let known = grid.within(&cell, before.shape());
                    let covered =
                        known.iter().zip(&cell.part).all(|(a, b)| b.start <= a.start && a.end <= b.end);
                    let known_len = element_count(&lengths(&known));
                    if known_len > 0 && !covered {
                        before.read_elements(&known, &mut part[..known_len], &codecs)?;
                        grid.put(&cell, &known, &part[..known_len], chunk);
                    }
                }
                view.read_piece(&piece, &mut part[..piece.len()])?;
                grid.put(&cell, &cell.part, &part[..piece.len()], chunk);
            }
            let stored = self.arrays.store(&cell.place, cast_slice(chunk), bytes, &codecs);
            stored.map_err(Error::zarr(path))?;
            Ok(piece.len() as u64 * size_of::<T>() as u64)
        })
    }
}

/// The target arrays of chunks.
pub(super) struct ChunkArrays(pub(super) Vec<Undescribed>);

impl ChunkArrays {
    /// Writes the chunk at a place; `bytes` is scratch memory.
    pub(super) fn store(
        &self,
        place: &[u64],
        elements: &[u8],
        bytes: &mut Vec<u8>,
        codecs: &CodecOptions,
    ) -> Result<(), ArrayError> {
        self.0.iter().try_for_each(|(leaf, array)| {
            leaf.take(elements, bytes);
            let place = [place, &vec![0; leaf.axes.len()]].concat();
            array.store_chunk_opt(&place, ArrayBytes::new_flen(&bytes[..]), codecs)
        })
    }
}

/// Reduces the number of threads for long chunks, because each thread has several copies of one.
pub(super) fn limit_threads<T>(chunk_len: usize, options: &mut FileOptions<'_>) {
    let bytes = chunk_len.saturating_mul(size_of::<T>()).max(1).saturating_mul(3);
    options.threads = options.threads.min(IN_RAM / bytes).max(1);
}

/// Threads of zarrs within one chunk: none, because chunks run in parallel.
pub(super) fn codec_options(options: &FileOptions<'_>) -> CodecOptions {
    let codecs = CodecOptions::default();
    if options.threads > 1 { codecs.with_concurrent_target(1) } else { codecs }
}
