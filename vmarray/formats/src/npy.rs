//! NumPy's `.npy` files.
//!
//! | elements here | in NumPy |
//! |---|---|
//! | numbers, `f16` of `half`, `Complex` of `num-complex` | the same types |
//! | `u8` | `uint8`; `bool` can be read |
//! | structs with `#[derive(KernelType)]` | structured types, with the same fields at the same offsets |
//! | arrays in structs | sub-arrays |
//! | arrays `[T; N]` | `T`, with one more axis |
//! | arrays `[u8; N]` | `S` and `V` too, when reading |
//!
//! Written files are row-major (last axis fastest); both orders can be read.
//!
//! ```
//! use vmarray::bytemuck::{Pod, Zeroable};
//! use vmarray::kernel::KernelType;
//! use vmarray::prelude::*;
//! use vmarray_formats::{FileOptions, npy::{self, NpyFile}};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable, KernelType)]
//! #[bytemuck(crate = "vmarray::bytemuck")]
//! #[repr(C)]
//! struct Particle {
//!     at: [f32; 3],
//!     mass: f32,
//! }
//!
//! let path = std::env::temp_dir().join(format!("particles {}.npy", std::process::id()));
//! let particles = VirtualArray::<Particle>::new(10_000)?;
//! particles.set(77, Particle { at: [1.0, 2.0, 3.0], mass: 4.0 })?;
//! // np.load(path)["mass"][77] == 4
//! npy::write(&path, &particles, FileOptions::new())?;
//!
//! let file = NpyFile::open(&path)?;
//! let [len] = file.extents()?;
//! let again = VirtualArray::<Particle>::new(len)?;
//! file.read(&again, FileOptions::new())?;
//! assert_eq!(again.get(77)?, particles.get(77)?);
//!
//! let wrong = file.read(&VirtualArray::<[f32; 4]>::new(len)?, FileOptions::new()).unwrap_err();
//! let text = "has elements of type {at: [f32; 3], mass: f32}, the view has [f32; 4]; ";
//! assert!(wrong.to_string().contains(text));
//! # std::fs::remove_file(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod header;
mod literal;

use std::fs::File;
use std::path::{Path, PathBuf};

use vmarray::kernel::KernelType;

use crate::data_type::{DataType, Swaps};
use crate::elements::FileElements;
use crate::error::{Error, Result};
use crate::files::{self, TemporaryFile};
use crate::options::FileOptions;
use crate::views::{FileView, FileViewMut};
use header::Header;

/// Writes the elements of a view to an `.npy` file, and replaces an existing file.
///
/// The file gets its name when it is complete and synchronised. Until then it has a temporary name in the
/// same folder, which ends in `.unfinished`; such a file remains only if the process is killed. Blocks;
/// several threads copy elements in [pieces](FileOptions::piece_bytes), in the requested [byte
/// order](FileOptions::byte_order).
///
/// # Errors
/// [`File`](Error::File), [`Array`](Error::Array), [`Cancelled`](Error::Cancelled);
/// [`Unsupported`](Error::Unsupported) for elements without a NumPy type, such as `bf16`.
pub fn write<V>(path: impl AsRef<Path>, view: V, mut options: FileOptions<'_>) -> Result<()>
where
    V: FileView<Element: KernelType>,
{
    let path = path.as_ref();
    let of = DataType::of::<V::Element>(path)?.in_order(options.byte_order);
    let swaps = Swaps::of(&of);
    let (of, lengths) = of.without_arrays();
    let header = Header::bytes(of, &[view.extents(), lengths].concat())
        .map_err(|what| Error::unsupported(path, what))?;
    let (file, unfinished) = TemporaryFile::file(path)?;
    files::write_at(&file, path, 0, &header)?;
    FileElements { file: &file, path, offset: header.len() as u64, swaps, is_first_fastest: false }
        .write(view, &mut options)?;
    files::sync(&file, path)?;
    unfinished.finish()
}

/// An open `.npy` file, with its parsed header.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray_formats::{FileOptions, npy::{self, NpyFile}};
/// let path = std::env::temp_dir().join(format!("image {}.npy", std::process::id()));
/// let image = NdArray::<u16, 2>::builder([30, 40]).tiled().build()?;
/// image.set([3, 4], 7)?;
/// npy::write(&path, &image, FileOptions::new())?;
///
/// let file = NpyFile::open(&path)?;
/// assert_eq!((file.shape(), file.type_name()), (&[30, 40][..], "u16".to_owned()));
/// let again = NdArray::<u16, 2>::new(file.extents()?)?;
/// file.read(&again, FileOptions::new())?;
/// assert_eq!(again.get([3, 4])?, 7);
/// assert!(file.extents::<1>().is_err());
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NpyFile {
    file: File,
    path: PathBuf,
    header: Header,
}

impl NpyFile {
    /// Opens an `.npy` file and reads its header.
    ///
    /// # Errors
    /// [`File`](Error::File); [`Malformed`](Error::Malformed) and [`LengthMismatch`](Error::LengthMismatch)
    /// for files of another format and truncated files; [`Unsupported`](Error::Unsupported) for an
    /// unsupported version, or for elements such as text, dates and objects.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let file = File::open(&path).map_err(Error::file("open", &path))?;
        let found_bytes = file.metadata().map_err(Error::file("read the length of", &path))?.len();
        let header = Header::read(&file, &path, found_bytes)?;
        let elements = header.shape.iter().try_fold(1_u64, |len, extent| len.checked_mul(*extent as u64));
        let bytes = elements.zip(header.of.bytes()).and_then(|(elements, bytes)| elements.checked_mul(bytes));
        let expected_bytes = bytes.and_then(|bytes| bytes.checked_add(header.offset)).ok_or_else(|| {
            let shape = &header.shape;
            Error::malformed(&path, format!("a shape of {shape:?} has more bytes than the address space"))
        })?;
        if expected_bytes > found_bytes {
            return Err(Error::LengthMismatch { path, expected_bytes, found_bytes });
        }
        Ok(Self { file, path, header })
    }

    /// The number of elements along each axis, as in NumPy. If elements are arrays, their axes come last.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// Returns the [shape](Self::shape) as an array of `N` extents.
    ///
    /// # Errors
    /// [`RankMismatch`](Error::RankMismatch).
    pub fn extents<const N: usize>(&self) -> Result<[usize; N]> {
        let found = self.header.shape.len();
        let wrong = |_| Error::RankMismatch { path: self.path.clone(), expected: N, found };
        self.header.shape[..].try_into().map_err(wrong)
    }

    /// The type of the elements, in Rust's notation.
    #[must_use]
    pub fn type_name(&self) -> String {
        self.header.of.to_string()
    }

    /// Builds an array whose elements stay in the file. `settings` configures the array, for example its
    /// cache. If the array's elements are arrays `[T; K]`, their axes are the last axes of the file.
    ///
    /// Needs the feature `in-place`.
    ///
    /// # Errors
    /// [`ElementMismatch`](Error::ElementMismatch), [`RankMismatch`](Error::RankMismatch);
    /// [`Unsupported`](Error::Unsupported) for files in another byte order, or in Fortran order with several
    /// axes; [`Array`](Error::Array) for errors of the array, such as a file in use. If another program
    /// shortens the file, later accesses return errors.
    ///
    /// ```
    /// use vmarray::NdArray;
    /// use vmarray::prelude::*;
    /// use vmarray::store::FileAccess;
    /// use vmarray_formats::{FileOptions, npy::{self, NpyFile}};
    /// let path = std::env::temp_dir().join(format!("in place {}.npy", std::process::id()));
    /// npy::write(&path, &NdArray::<u16, 2>::new([30, 40])?, FileOptions::new())?;
    ///
    /// let image: NdArray<u16, 2> = NpyFile::open(&path)?.into_array(FileAccess::ReadWrite, |image| image)?;
    /// image.set([3, 4], 7)?;
    /// image.elements().sync()?;
    /// drop(image);
    /// let rows: NdArray<[u16; 40], 1> = NpyFile::open(&path)?.into_array(FileAccess::ReadOnly, |rows| rows)?;
    /// assert_eq!(rows.get([3])?[4], 7);
    /// # drop(rows);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "in-place")]
    pub fn into_array<T: vmarray::Element + KernelType, const N: usize>(
        self,
        access: vmarray::store::FileAccess,
        settings: impl FnOnce(vmarray::Builder<T, vmarray::AnyDevice>) -> vmarray::Builder<T, vmarray::AnyDevice>,
    ) -> Result<vmarray::NdArray<T, N>> {
        let Header { of, is_first_fastest, shape, offset } = &self.header;
        if *is_first_fastest && shape.len() > 1 {
            let what = "it is in Fortran order, in which no array can use it in place; read it into an array";
            return Err(Error::unsupported(&self.path, what));
        }
        crate::in_place::StoredElements { path: &self.path, offset: *offset, of, shape }
            .into_array(access, settings)
    }

    /// Reads all elements into a view. The view must have the shape and the element type of the file.
    ///
    /// Blocks; several threads copy elements in [pieces](FileOptions::piece_bytes). For a file in Fortran
    /// order (contiguous along the first axis), each thread transposes its piece.
    ///
    /// # Errors
    /// [`ElementMismatch`](Error::ElementMismatch) and [`ShapeMismatch`](Error::ShapeMismatch), before
    /// anything is read; [`Unsupported`](Error::Unsupported) for elements that are arrays if the file is in
    /// Fortran order, because such elements are not contiguous in the file; [`File`](Error::File),
    /// [`Array`](Error::Array), [`Cancelled`](Error::Cancelled), after which only a part of the view has been
    /// written.
    pub fn read<V>(&self, view: V, mut options: FileOptions<'_>) -> Result<()>
    where
        V: FileViewMut<Element: KernelType>,
    {
        let (path, header) = (&self.path, &self.header);
        let elements = DataType::of::<V::Element>(path)?;
        let (inner, lengths) = elements.without_arrays();
        let (outer, own) = (view.extents(), lengths.len());
        // Elements may be arrays with `own` axes. A file has these axes in its dtype, or as its last axes.
        let of = if header.of.fits(&elements) { Some(0) } else { header.of.fits(inner).then_some(own) };
        let shape = of.and_then(|own| header.shape.split_at_checked(header.shape.len().checked_sub(own)?));
        let Some((shape, _)) = shape.filter(|(_, own)| own.is_empty() || *own == lengths) else {
            let found = match &header.shape[header.shape.len().saturating_sub(own)..] {
                last if of == Some(own) => header.of.clone().in_arrays(last),
                _ => header.of.clone(),
            };
            return Err(Error::ElementMismatch {
                path: path.clone(),
                expected: elements.to_string(),
                found: found.to_string(),
            });
        };
        if shape != outer {
            return Err(Error::ShapeMismatch { path: path.clone(), expected: outer, found: shape.to_vec() });
        }
        if header.is_first_fastest && shape.len() < header.shape.len() {
            let what = "the parts of an array element are not contiguous in Fortran order; \
                        write the file by np.save of np.ascontiguousarray";
            return Err(Error::unsupported(path, what));
        }
        let last = &header.shape[shape.len()..];
        FileElements {
            file: &self.file,
            path,
            offset: header.offset,
            swaps: Swaps::of(&header.of.clone().in_arrays(last)),
            is_first_fastest: header.is_first_fastest && shape.len() > 1,
        }
        .read(view, &mut options)
    }
}
