//! Creation of Zarr arrays and groups: writes their chunks and then their descriptions (`zarr.json`).

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use vmarray::bytemuck::cast_slice;
use vmarray::kernel::KernelType;
use vmarray::{Element, ErrorKind};
use zarrs::array::codec::BytesCodec;
use zarrs::array::{Array, ArrayBuilder, FillValue};
use zarrs::group::GroupBuilder;
use zarrs::metadata::Endianness;
use zarrs::storage::{ReadableWritableStorage, ReadableWritableStorageTraits};

use super::chunks::{ChunkArrays, Undescribed};
use super::grid::{CHUNK_MAX, Grid};
use super::leaves::{LeafArray, joined};
use super::writes::Chunks;
use super::{Encoding, stored};
use crate::error::{Error, Result};
use crate::options::{ByteOrder, FileOptions};
use crate::views::FileView;

/// Approximate default length of a chunk in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Writes the chunks of the arrays at a node (a path in the store).
pub(super) fn write_chunks<V>(
    store: &ReadableWritableStorage,
    path: &Path,
    node: &str,
    view: V,
    encoding: &Encoding<V::Element>,
    options: &mut FileOptions<'_>,
) -> Result<Vec<Undescribed>>
where
    V: FileView<Element: KernelType>,
{
    let leaves = LeafArray::of::<V::Element>(path)?;
    let shape = view.extents();
    let chunk = encoding.chunk.clone().unwrap_or_else(|| default_chunk(view));
    let stored = encoding.shard.as_ref().unwrap_or(&chunk);
    check_chunks::<V::Element>(shape.len(), stored, &chunk, path)?;
    let grid = Grid::whole(&shape, stored);
    let order = options.byte_order;
    let array = |leaf: LeafArray| {
        let array = Description { leaf: &leaf, shape: &shape, stored, chunk: &chunk, encoding, order, path };
        let array = array.build(store, &joined(node, &leaf.path))?;
        Ok((leaf, array))
    };
    let arrays = ChunkArrays(leaves.into_iter().map(array).collect::<Result<_>>()?);
    let chunks = Chunks { arrays, grid, fill_value: encoding.fill_value, before: None, path };
    chunks.write(view, options)?;
    Ok(chunks.arrays.0)
}

/// Writes the descriptions of arrays and of their groups, after the chunks. The root comes last, because it
/// makes the store valid.
pub(super) fn describe(store: &ReadableWritableStorage, path: &Path, arrays: &[Undescribed]) -> Result<()> {
    let mut groups = BTreeSet::new();
    for (_, array) in arrays {
        array.store_metadata().map_err(Error::zarr(path))?;
        let node = array.path().as_str();
        groups.extend(node.match_indices('/').filter(|_| node.len() > 1).map(|(end, _)| &node[..end.max(1)]));
    }
    for node in groups.into_iter().rev() {
        let group = GroupBuilder::new().build(store.clone(), node);
        group.map_err(Error::zarr(path))?.store_metadata().map_err(Error::zarr(path))?;
    }
    Ok(())
}

/// A new array to create.
struct Description<'a, T> {
    leaf: &'a LeafArray,
    shape: &'a [usize],
    /// Extents of the stored unit: a chunk, or a shard.
    stored: &'a [usize],
    chunk: &'a [usize],
    encoding: &'a Encoding<T>,
    order: ByteOrder,
    path: &'a Path,
}

impl<T: Element> Description<'_, T> {
    fn build(
        &self,
        store: &ReadableWritableStorage,
        node: &str,
    ) -> Result<Array<dyn ReadableWritableStorageTraits>> {
        let Self { leaf, encoding, path, .. } = self;
        let unsupported = |what| Error::unsupported(path, what);
        let with_axes = |extents: &[usize]| -> Vec<u64> {
            extents.iter().chain(&leaf.axes).map(|extent| *extent as u64).collect()
        };
        let mut fill = Vec::new();
        leaf.take(cast_slice(std::slice::from_ref(&encoding.fill_value)), &mut fill);
        let (number_bytes, mut fills) = (leaf.number.bytes(), fill.chunks(leaf.number.bytes()));
        let first = fills.next().unwrap_or_default().to_vec();
        if fills.any(|other| other != first) {
            let what =
                "the fill value has different numbers for one array; use one fill value for all of them";
            return Err(unsupported(what.to_owned()));
        }
        let (shape, chunk) = (with_axes(self.shape), with_axes(self.stored));
        let mut builder =
            ArrayBuilder::new(shape, chunk, stored::name_of(leaf.number), FillValue::new(first));
        let order = match self.order {
            _ if number_bytes == 1 => None,
            ByteOrder::Little => Some(Endianness::Little),
            ByteOrder::Big => Some(Endianness::Big),
        };
        builder
            .array_to_bytes_codec(Arc::new(BytesCodec::new(order)))
            .bytes_to_bytes_codecs(encoding.codecs(number_bytes).map_err(unsupported)?)
            .dimension_names(Some(self.axis_names()?));
        if encoding.shard.is_some() {
            builder.subchunk_shape(with_axes(self.chunk));
        }
        builder.build(store.clone(), &format!("/{node}")).map_err(Error::zarr(path))
    }

    /// Returns the names of axes. Axes within an element are named after its field.
    fn axis_names(&self) -> Result<Vec<String>> {
        let axes = self.shape.len();
        let mut names = self.encoding.axis_names.clone();
        let names_of = names.get_or_insert_with(|| (0..axes).map(|axis| format!("dim_{axis}")).collect());
        if names_of.len() != axes {
            let what = format!("{} names for {axes} axes; give one name for each axis", names_of.len());
            return Err(Error::unsupported(self.path, what));
        }
        let field = self.leaf.path.rsplit('/').next().filter(|field| !field.is_empty()).unwrap_or("element");
        names_of.extend((0..self.leaf.axes.len()).map(|axis| format!("{field}_dim_{axis}")));
        Ok(names.unwrap_or_default())
    }
}

/// Checks that this crate can read chunks and shards of these extents.
fn check_chunks<T: Element>(axes: usize, stored: &[usize], chunk: &[usize], path: &Path) -> Result<()> {
    for extents in [stored, chunk] {
        if extents.len() != axes {
            let what = format!(
                "chunks and shards have {} extents, but the array has {axes} axes; give one extent for each axis",
                extents.len()
            );
            return Err(Error::unsupported(path, what));
        }
        if let Some(axis) = extents.iter().position(|extent| *extent == 0) {
            return Err(Error::Array(ErrorKind::EmptyTile { axis }.into()));
        }
    }
    if stored.iter().zip(chunk).any(|(shard, chunk)| shard % chunk != 0) {
        let what = format!(
            "shards of {stored:?} are not multiples of chunks of {chunk:?}; use a multiple along each axis"
        );
        return Err(Error::unsupported(path, what));
    }
    let bytes = stored.iter().try_fold(size_of::<T>() as u64, |bytes, of| bytes.checked_mul(*of as u64));
    if bytes.is_none_or(|bytes| bytes > CHUNK_MAX) {
        let what = format!(
            "chunks or shards of {stored:?} elements exceed the limit of {CHUNK_MAX} bytes; use shorter ones"
        );
        return Err(Error::unsupported(path, what));
    }
    Ok(())
}

fn default_chunk<V: FileView>(view: V) -> Vec<usize> {
    if let Some(tile) = view.tile_extents() {
        return tile;
    }
    let (extents, steps) = (view.extents(), view.steps());
    let room = (CHUNK_BYTES / size_of::<V::Element>()).max(1);
    if let ([extent], [step]) = (&extents[..], &steps[..]) {
        let len = if *step < room { room - room % step } else { room };
        return vec![len.min(*extent).max(1)];
    }
    // Double the chunk's extents in turn while `room` permits, up to the shape. Begin with the last axis,
    // because its elements are contiguous.
    let mut chunk = vec![1; extents.len()];
    let mut left = room;
    loop {
        let before = left;
        for axis in (0..chunk.len()).rev() {
            if left >= 2 && chunk[axis] < extents[axis] {
                chunk[axis] *= 2;
                left /= 2;
            }
        }
        if left == before {
            return chunk.iter().zip(&extents).map(|(chunk, extent)| *chunk.min(extent.max(&1))).collect();
        }
    }
}
