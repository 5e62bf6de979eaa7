//! Raw files: contiguous elements in row-major order, without a header.
//!
//! ```
//! use vmarray::prelude::*;
//! use vmarray_formats::{ByteOrder, FileOptions, raw};
//!
//! let path = std::env::temp_dir().join(format!("raw {}.f32", std::process::id()));
//! let image = NdArray::<f32, 2>::builder([300, 400]).tiled().build()?;
//! image.set([7, 9], 2.5)?;
//! raw::write(&path, &image, FileOptions::new().byte_order(ByteOrder::Big))?;
//!
//! let elements = VirtualArray::<f32>::new(120_000)?;
//! raw::read(&path, .., &elements, FileOptions::new().byte_order(ByteOrder::Big))?;
//! assert_eq!(elements.get(7 * 400 + 9)?, 2.5);
//! // A row of it.
//! let big_endian = FileOptions::new().byte_order(ByteOrder::Big);
//! raw::read(&path, 7 * 1600..8 * 1600, elements.section_mut(..400)?, big_endian)?;
//! assert_eq!(elements.get(9)?, 2.5);
//! # std::fs::remove_file(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs::File;
use std::ops::{Bound, RangeBounds};
use std::path::Path;

use vmarray::kernel::KernelType;

use crate::data_type::{DataType, Swaps};
use crate::elements::FileElements;
use crate::error::{Error, Result};
use crate::files::{self, TemporaryFile};
use crate::options::{ByteOrder, FileOptions};
use crate::pieces::element_count;
use crate::views::{FileView, FileViewMut};

/// Writes the elements of a view to a raw file, and replaces an existing file.
///
/// The file gets its name when it is complete and synchronised. Until then it has a temporary name in the
/// same folder. Blocks; several threads copy elements in [pieces](FileOptions::piece_bytes).
///
/// # Errors
/// [`File`](Error::File), [`Array`](Error::Array), [`Cancelled`](Error::Cancelled), and
/// [`Unsupported`](Error::Unsupported) if the bytes of numbers must be swapped, but the fields of the element
/// type are unknown.
pub fn write<V>(path: impl AsRef<Path>, view: V, mut options: FileOptions<'_>) -> Result<()>
where
    V: FileView<Element: KernelType>,
{
    let path = path.as_ref();
    let swaps = swaps::<V>(path, &options)?;
    let (file, unfinished) = TemporaryFile::file(path)?;
    FileElements { file: &file, path, offset: 0, swaps, is_first_fastest: false }
        .write(view, &mut options)?;
    files::sync(&file, path)?;
    unfinished.finish()
}

/// Reads a byte range of a raw file into the elements of a view. The range must have the length of the view
/// in bytes.
///
/// Blocks; several threads copy elements in [pieces](FileOptions::piece_bytes).
///
/// # Errors
/// The errors of [`write`](fn@write), and [`LengthMismatch`](Error::LengthMismatch) if the range has more
/// bytes or fewer.
pub fn read<V>(
    path: impl AsRef<Path>,
    range: impl RangeBounds<u64>,
    view: V,
    mut options: FileOptions<'_>,
) -> Result<()>
where
    V: FileViewMut<Element: KernelType>,
{
    let path = path.as_ref();
    let swaps = swaps::<V>(path, &options)?;
    let file = File::open(path).map_err(Error::file("open", path))?;
    let found_bytes = file.metadata().map_err(Error::file("read the length of", path))?.len();
    let offset = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => found_bytes,
    };
    let bytes = element_count(&view.extents()) as u64 * size_of::<V::Element>() as u64;
    let wrong = |expected_bytes, found_bytes| Error::LengthMismatch {
        path: path.into(),
        expected_bytes,
        found_bytes,
    };
    if end > found_bytes {
        return Err(wrong(end, found_bytes));
    }
    if end.checked_sub(offset) != Some(bytes) {
        return Err(wrong(bytes, end.saturating_sub(offset)));
    }
    FileElements { file: &file, path, offset, swaps, is_first_fastest: false }.read(view, &mut options)
}

/// Returns the byte swaps of an element type; the type may be unknown if no swap is necessary.
fn swaps<V: FileView<Element: KernelType>>(path: &Path, options: &FileOptions<'_>) -> Result<Swaps> {
    if options.byte_order == ByteOrder::NATIVE {
        return Ok(Swaps::Nothing);
    }
    Ok(Swaps::of(&DataType::of::<V::Element>(path)?.in_order(options.byte_order)))
}
