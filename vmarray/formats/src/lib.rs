//! Import and export of [`vmarray`] arrays in common file formats.
//!
//! | format | module |
//! |---|---|
//! | NumPy's `.npy` | [`npy`] |
//! | raw elements | [`raw`] |
//! | safetensors, with that feature | [`safetensors`](https://docs.rs/vmarray-formats/latest/vmarray_formats) |
//! | Zarr, with the feature `zarr` | [`zarr`](https://docs.rs/vmarray-formats/latest/vmarray_formats/zarr) |
//!
//! The crate writes any view to a file, and reads a file into any view. Views are arrays and
//! [`Source`](vmarray::Source)s of one dimension or several, tiled or not, and their sections. Neither the
//! file nor the array has to fit into RAM: several threads each copy one [piece](FileOptions::piece_bytes) at
//! a time. With the feature `in-place`, an array can also work on the elements of an `.npy` file in place;
//! for raw files, `vmarray` has `FileSection`.
//!
//! ```
//! use vmarray::prelude::*;
//! use vmarray_formats::{FileOptions, npy::{self, NpyFile}};
//!
//! let path = std::env::temp_dir().join(format!("squares {}.npy", std::process::id()));
//! let squares = VirtualArray::<u64>::new(1_000_000)?;
//! squares.transform(.., Field::whole().set(vmarray::expr::index() * vmarray::expr::index()))?;
//! npy::write(&path, &squares, FileOptions::new())?;
//!
//! let file = NpyFile::open(&path)?;
//! let [len] = file.extents()?;
//! let again = VirtualArray::<u64>::new(len)?;
//! file.read(&again, FileOptions::new())?;
//! assert_eq!(again.get(999)?, 998_001);
//! # std::fs::remove_file(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate validates files: reading a damaged or malicious file returns an [`Error`].

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Overview of the modules:
// - `views` defines the arrays and sections that exports read and imports write.
// - `pieces` divides a view into boxes in file order, and copies the boxes on several threads.
// - `data_type` compares types of files and elements, and determines byte swaps.
// - `in_place` builds arrays over the elements of a file.
// - `files` writes a file under a temporary name, and renames the complete file.
// - `zarr/stored` reads the description of a Zarr array; `zarr/bounded` limits the length of decoded chunks.
// - `zarr/location` is the location of a Zarr store: a folder (`zarr/folder`) or a server (`zarr/objects`).
// - `zarr/grid` finds the chunks that overlap a box; `zarr/leaves` lists the arrays of a struct's fields.
// - `zarr/home` keeps the pages of an array in a Zarr store.
mod data_type;
mod elements;
mod error;
mod files;
#[cfg(feature = "in-place")]
mod in_place;
pub mod npy;
mod options;
mod pieces;
pub mod raw;
#[cfg(feature = "safetensors")]
pub mod safetensors;
mod views;
#[cfg(feature = "zarr")]
pub mod zarr;

pub use error::{Error, Result};
/// The crate `object_store`, whose stores a [`Location`](zarr::Location) can name.
#[cfg(feature = "object_store")]
pub use object_store;
pub use options::{ByteOrder, FileOptions, FileProgress};
pub use views::{FileView, FileViewMut};
