//! Import and export of [`vmarray`] arrays in common file formats.
//!
//! | format | module |
//! |---|---|
//! | NumPy's `.npy` | [`npy`] |
//! | raw elements | [`raw`] |
//! | Zarr, with the feature `zarr` | [`zarr`](https://docs.rs/vmarray-formats/latest/vmarray_formats/zarr) |
//!
//! The crate writes any view to a file, and reads a file into any view. Views are arrays and
//! [`Source`](vmarray::Source)s of one dimension or several, tiled or not, and their sections. Neither the
//! file nor the array has to fit into RAM: several threads each copy one [piece](FileOptions::piece_bytes) at
//! a time.
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

// Views (`views`) are copied in pieces (`pieces`), which are boxes in file order, or in chunks of a store
// (`zarr/grid`). `pieces::in_parallel` runs pieces on threads with one buffer each, and reports progress on
// the calling thread. `data_type` compares types of files and elements and determines byte swaps;
// `files::TemporaryFile` names a file when it is complete. A Zarr store is opened from its description by
// `zarr/stored`, which builds the codecs of zarrs with bounds (`zarr/bounded`, `zarr/folder`);
// `zarr/location` is its place, possibly on a server (`zarr/objects`); `zarr/home` makes it the home of an
// array; `zarr/leaves` splits structs.
mod data_type;
mod elements;
mod error;
mod files;
pub mod npy;
mod options;
mod pieces;
pub mod raw;
mod views;
#[cfg(feature = "zarr")]
pub mod zarr;

pub use error::{Error, Result};
/// The crate `object_store`, whose stores a [`Location`](zarr::Location) can name.
#[cfg(feature = "object_store")]
pub use object_store;
pub use options::{ByteOrder, FileOptions, FileProgress};
pub use views::{FileView, FileViewMut};
