//! Ragged arrays in Zarr stores: rows of different lengths, as the arrays `offsets` and `items`.

use vmarray::device::Device;
use vmarray::kernel::KernelType;
use vmarray::ragged::RaggedBuilder;
use vmarray::{Element, RaggedArray, prelude::*};

use super::chunks::codec_options;
use super::grid::{Grid, lengths};
use super::{Encoding, Location, Zarr, describe, write_chunks};
use crate::error::{Error, Result, zeroed};
use crate::options::FileOptions;
use crate::pieces::element_count;

/// Writes the rows of a ragged array to a new Zarr group with two arrays. `offsets` has the start of each row
/// and the end of the last row, and `items` has the elements. The encoding applies to `items`; `offsets` has
/// the same compression and checksums.
///
/// The folder gets its name when it is complete, as with [`write`](super::write).
///
/// # Errors
/// The errors of [`write`](super::write).
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray_formats::{FileOptions, zarr::{self, Encoding}};
/// let path = std::env::temp_dir().join(format!("words {}.zarr", std::process::id()));
/// let words = RaggedArray::<u8>::builder().from_rows(["so", "", "many", "words"])?;
/// // group = zarr.open_group(path); a, b = group["offsets"][2:4]; bytes(group["items"][a:b]) == b"many"
/// zarr::write_ragged(&path, &words, Encoding::new(), FileOptions::new())?;
/// let again = zarr::read_ragged(&path, RaggedArray::<u8>::builder(), FileOptions::new())?;
/// assert_eq!(again.row(2)?.to_vec(..)?, b"many");
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_ragged<T: Element + KernelType, D: Device>(
    to: impl Into<Location>,
    rows: &RaggedArray<T, D>,
    encoding: Encoding<T>,
    mut options: FileOptions<'_>,
) -> Result<()> {
    let to = to.into();
    let offsets = rows.offsets().section(..=rows.len())?;
    let items = rows.items().section(..rows.item_total())?;
    let of_offsets = Encoding::<u64>::new()
        .compression(encoding.compression)
        .checksums(encoding.checksums)
        .axis_names(["offset"]);
    options.of_several = Some((0, bytes::<u64>(offsets.len()) + bytes::<T>(items.len())));
    to.make(|store| {
        let path = to.path();
        let mut arrays = write_chunks(store, path, "offsets", offsets, &of_offsets, &mut options)?;
        let encoding = match encoding.axis_names {
            None => encoding.axis_names(["item"]),
            Some(_) => encoding,
        };
        arrays.extend(write_chunks(store, path, "items", items, &encoding, &mut options)?);
        describe(store, path, &arrays)
    })
}

fn bytes<T>(len: usize) -> u64 {
    len as u64 * size_of::<T>() as u64
}

/// Reads the rows in a Zarr group of [`write_ragged`], and stores the rows in a new array that `builder`
/// configures. Blocks: one thread reads and checks the offsets chunk by chunk, and several threads read the
/// items.
///
/// # Errors
/// [`Malformed`](Error::Malformed) if the rows do not cover the items in order, and the errors of
/// [`Zarr::open`] and [`Zarr::read`].
///
/// ```
/// use vmarray::{RaggedArray, VirtualArray, prelude::*};
/// use vmarray_formats::{Error, FileOptions, zarr::{self, Encoding}};
/// let path = std::env::temp_dir().join(format!("rows {}.zarr", std::process::id()));
/// let rows = RaggedArray::<f32>::builder().from_rows([&[0.5][..], &[1.0, 2.0]])?;
/// zarr::write_ragged(&path, &rows, Encoding::new(), FileOptions::new())?;
/// let rows = zarr::read_ragged(&path, RaggedArray::<f32>::builder(), FileOptions::new())?;
/// assert_eq!(rows.to_vecs()?, [vec![0.5], vec![1.0, 2.0]]);
/// // An item outside all rows.
/// let mut items = zarr::Zarr::<f32>::open(path.join("items"))?;
/// items.append(&VirtualArray::<f32>::new(1)?, FileOptions::new())?;
/// let wrong = zarr::read_ragged(&path, RaggedArray::<f32>::builder(), FileOptions::new());
/// assert!(matches!(wrong, Err(Error::Malformed { .. })));
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_ragged<T: Element + KernelType, D: Device>(
    from: impl Into<Location>,
    builder: RaggedBuilder<T, D>,
    mut options: FileOptions<'_>,
) -> Result<RaggedArray<T, D>> {
    let from = from.into();
    let (store, path) = (from.open()?, from.path());
    let offsets = Zarr::<u64>::open_node(store.clone(), &from, "offsets")?;
    let items = Zarr::<T>::open_node(store, &from, "items")?;
    let ([offsets_len], [total]) = (offsets.extents()?, items.extents()?);
    if offsets_len == 0 {
        return Err(Error::malformed(
            path,
            "the list of offsets is empty, but must have at least the end of the last row",
        ));
    }
    let mut failed = None;
    let lengths = Lengths::new(&offsets, total, &options, &mut failed);
    let rows = builder.with_lengths(lengths);
    if let Some(error) = failed {
        return Err(error);
    }
    let rows = rows?;
    if rows.item_total() != total {
        let what = format!("the rows end at item {}, but there are {total} items", rows.item_total());
        return Err(Error::malformed(path, what));
    }
    options.of_several = Some((bytes::<u64>(offsets_len), bytes::<u64>(offsets_len) + bytes::<T>(total)));
    items.read(rows.items().section_mut(..total)?, options)?;
    Ok(rows)
}

/// Iterator over the lengths of rows, computed from the offsets in a store. It ends early on an error.
struct Lengths<'a> {
    offsets: &'a Zarr<u64>,
    grid: Grid,
    codecs: zarrs::array::CodecOptions,
    /// Index of the next chunk of offsets to read.
    next: usize,
    chunk: std::vec::IntoIter<u64>,
    last: Option<u64>,
    total: usize,
    failed: &'a mut Option<Error>,
}

impl<'a> Lengths<'a> {
    fn new(
        offsets: &'a Zarr<u64>,
        total: usize,
        options: &FileOptions<'_>,
        failed: &'a mut Option<Error>,
    ) -> Self {
        let grid = Grid::whole(offsets.shape(), offsets.chunk());
        let chunk = Vec::new().into_iter();
        Self { offsets, grid, codecs: codec_options(options), next: 0, chunk, last: None, total, failed }
    }

    fn offset(&mut self) -> Result<Option<u64>> {
        if let Some(offset) = self.chunk.next() {
            return Ok(Some(offset));
        }
        if self.next == self.grid.count() {
            return Ok(None);
        }
        let part = self.grid.cell(self.next).part;
        self.next += 1;
        let mut chunk = zeroed::<u64>(element_count(&lengths(&part)))?;
        self.offsets.read_elements(&part, &mut chunk, &self.codecs)?;
        self.chunk = chunk.into_vec().into_iter();
        Ok(self.chunk.next())
    }

    fn length(&mut self) -> Result<Option<usize>> {
        loop {
            let Some(offset) = self.offset()? else { return Ok(None) };
            let is_right =
                offset <= self.total as u64 && self.last.map_or(offset == 0, |last| last <= offset);
            if !is_right {
                let what =
                    format!("a row begins at item {offset}, before the previous row or beyond the last item");
                return Err(Error::malformed(&self.offsets.path, what));
            }
            if let Some(last) = self.last.replace(offset) {
                return Ok(Some((offset - last) as usize));
            }
        }
    }
}

impl Iterator for Lengths<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.failed.is_some() {
            return None;
        }
        self.length().unwrap_or_else(|error| {
            *self.failed = Some(error);
            None
        })
    }
}
