//! Parallel writes of chunks, and writes to existing Zarr stores.

use std::ops::Range;
use std::path::Path;

use vmarray::bytemuck::cast_slice;
use vmarray::kernel::KernelType;
use vmarray::{Element, ErrorKind};

use super::Zarr;
use super::chunks::{ChunkArrays, codec_options, limit_threads};
use super::grid::{Grid, lengths};
use super::leaves::{LeafArray, joined};
use super::stored::{self, Stored};
use crate::error::{Error, Result, zeroed};
use crate::options::FileOptions;
use crate::pieces::{element_count, in_parallel};
use crate::views::FileView;

/// Chunks to write, and the arrays that receive them.
pub(super) struct Chunks<'a, T> {
    pub(super) arrays: ChunkArrays,
    pub(super) grid: Grid,
    pub(super) fill_value: T,
    /// Store from which the other elements of partly written chunks are read.
    pub(super) before: Option<&'a Zarr<T>>,
    pub(super) path: &'a Path,
}

impl<T: Element + KernelType> Chunks<'_, T> {
    /// Writes the elements of a view, which has the shape of the grid's box.
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

impl<T: Element + KernelType> Zarr<T> {
    /// Writes a view to a box of the store with the same shape. If a chunk extends beyond the box, reads the
    /// chunk first. Replaces the file of each chunk atomically. Blocks; several threads compress chunks. No
    /// other writer may use the store meanwhile.
    ///
    /// # Errors
    /// The errors of [`write`](super::write) and [`read_box`](Self::read_box); after an error some of the
    /// chunks may have been written. [`Unsupported`](Error::Unsupported) for stores of other programs in
    /// which the arrays of a struct's fields have different chunk shapes.
    pub fn write_box<V: FileView<Element = T>, const N: usize>(
        &mut self,
        bounds: Range<[usize; N]>,
        view: V,
        mut options: FileOptions<'_>,
    ) -> Result<()> {
        let grid = self.grid(bounds)?;
        self.check_shape(view, &grid)?;
        let shape = self.shape().to_vec();
        self.chunks(grid, &shape)?.write(view, &mut options)
    }

    /// Appends the elements of a view to the store, along the first axis. All other extents must be equal.
    ///
    /// Existing elements stay valid during the call: files of chunks are replaced atomically, and the shape,
    /// which readers use, is written last. If the process is killed before that, unreferenced chunks remain;
    /// the next call overwrites them. If the process is killed while the shapes of several fields are
    /// updated, the fields have different lengths, and [`open`](Self::open) returns an error. Blocks. No
    /// other writer may use the store meanwhile.
    ///
    /// # Errors
    /// [`ShapeMismatch`](Error::ShapeMismatch), and the errors of [`write_box`](Self::write_box). After an
    /// error the store has the old shape: fields that were already updated are restored. If a long failure of
    /// the server prevents the restoration, call `append` again on the same value.
    pub fn append<V: FileView<Element = T>>(&mut self, view: V, mut options: FileOptions<'_>) -> Result<()> {
        if self.fields.iter().any(|(_, stored)| stored.is_version_2()) {
            let what = "stores of version 2 do not grow; convert the store to version 3".to_owned();
            return Err(Error::unsupported(&self.path, what));
        }
        let (more, old) = (view.extents(), self.shape().to_vec());
        if more.is_empty() || old.is_empty() || more[1..] != old[1..] {
            return Err(Error::ShapeMismatch { path: self.path.clone(), expected: more, found: old });
        }
        let too_long = || Error::Array(ErrorKind::ShapeOverflow { shape: vec![old[0], more[0]] }.into());
        let mut shape = old.clone();
        shape[0] = old[0].checked_add(more[0]).ok_or_else(too_long)?;
        let bytes = shape.iter().try_fold(size_of::<T>(), |bytes, extent| bytes.checked_mul(*extent));
        bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(too_long)?;
        let mut grid = Grid::whole(&shape, self.chunk());
        grid.bounds[0].start = old[0];
        // Prepare all descriptions before the writes: if that fails, `append` has changed nothing.
        let longer = |(leaf, stored): &(LeafArray, Stored)| {
            let mut metadata = stored.metadata.clone();
            metadata["shape"][0] = shape[0].into();
            let node = joined(&self.node, &leaf.path);
            let description = (stored.key.clone(), metadata);
            Ok((leaf.clone(), stored::described(&self.store, &node, leaf, &self.path, description)?))
        };
        let longer = self.fields.iter().map(longer).collect::<Result<Vec<_>>>()?;
        self.chunks(grid, &shape)?.write(view, &mut options)?;
        if let Err(error) = longer.iter().try_for_each(|field| self.describe(field)) {
            // Restore the old descriptions, because a server that did not answer may have accepted the
            // request. Ignore errors of the restoration, because the caller reports the first error.
            self.fields.iter().for_each(|field| drop(self.describe(field)));
            return Err(error);
        }
        self.fields = longer;
        Ok(())
    }

    /// Writes the description of a field.
    fn describe(&self, (_, stored): &(LeafArray, Stored)) -> Result<()> {
        let text = serde_json::to_vec_pretty(&stored.metadata).unwrap_or_default();
        self.store.set(&stored.key, text.into()).map_err(Error::zarr(&self.path))
    }

    /// Returns the chunks to write, for arrays with a new shape.
    fn chunks(&self, grid: Grid, shape: &[usize]) -> Result<Chunks<'_, T>> {
        let arrays = self.chunk_arrays(shape)?;
        Ok(Chunks { arrays, grid, fill_value: self.fill_value(), before: Some(self), path: &self.path })
    }

    /// Returns the arrays with a new shape, as targets of chunk writes.
    pub(super) fn chunk_arrays(&self, shape: &[usize]) -> Result<ChunkArrays> {
        let array = |(leaf, stored): &(LeafArray, Stored)| {
            if stored.chunk != self.chunk() || stored.own_chunk != leaf.axes {
                let what = "the fields have different chunks, or elements in several chunks, so they can only be read; \
                            write the store again";
                return Err(Error::unsupported(&self.path, what));
            }
            if stored.is_truth {
                return Err(Error::unsupported(
                    &self.path,
                    "bool can be read as u8, but not written; write a new store of u8",
                ));
            }
            let with_axes: Vec<u64> = shape.iter().chain(&leaf.axes).map(|extent| *extent as u64).collect();
            let mut builder = stored.array.builder();
            builder.shape(with_axes);
            let array = builder.build(self.store.clone(), stored.array.path().as_str());
            Ok((leaf.clone(), array.map_err(Error::zarr(&self.path))?))
        };
        self.fields.iter().map(array).collect::<Result<_>>().map(ChunkArrays)
    }
}
