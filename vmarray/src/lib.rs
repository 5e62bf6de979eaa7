//! An array larger than RAM whose pages live in the memory of all GPUs of the machine.
//!
//! [`VirtualArray`] is used by index from any number of threads, as if it were a `Vec` of plain data. Its
//! pages live in the combined video memory of the machine's cards, or in host RAM or a file where there is
//! none, and those used lately are cached in page-locked RAM. What cards are good at, such as finding values,
//! they do on the data where it lies.
//!
//! ```
//! use vmarray::prelude::*;
//!
//! let array = VirtualArray::<u64>::new(1_000_000)?;
//! std::thread::scope(|threads| {
//!     for part in 0..4 {
//!         let array = &array;
//!         threads.spawn(move || {
//!             for i in (part..array.len()).step_by(4) {
//!                 array.set(i, (i * i) as u64).expect("the devices work");
//!             }
//!         });
//!     }
//! });
//! assert_eq!(array.get(999)?, 998_001);
//! assert_eq!(array.find(Field::whole(), &998_001)?, [999]);
//! # Ok::<(), vmarray::Error>(())
//! ```
//!
//! # Guides
//!
//! | guide | for whom |
//! |---|---|
//! | [The first minute](guide::first_minute) | everybody |
//! | [Larger than RAM](guide::larger_than_ram) | who chooses how much RAM it takes, and asks what a miss costs |
//! | [Several devices](guide::several_devices) | who has several cards, or wants to say which are used |
//! | [Arrays that stay](guide::files) | whose data are to be there when the program has ended |
//! | [Kernels of one's own](guide::kernels) | whose formulas need loops, branches and functions |
//! | [Tasks](guide::tasks) | who writes async code |
//! | [A device of one's own](guide::own_device) | who has hardware that no backend knows |
//! | [Watching](guide::watching) | who wants to see what an array does, and how near that is to what the machine can do |
//! | [Processes and limits](guide::processes_and_limits) | who runs it as a service: fork, filters, limits, files |
//! | [Troubles](guide::troubles) | who knows other libraries of this kind, and what goes wrong there |
//!
//! # What is where
//!
//! | what | where |
//! |---|---|
//! | the array, and how it is described | [`VirtualArray`], [`Builder`], [`EvictionPolicy`] |
//! | elements, ranges, lists of indices | [`View`](views::View), [`ViewMut`](views::ViewMut) |
//! | questions and changes that run on the devices | [`Query`](views::Query), [`QueryMut`](views::QueryMut), written as [expressions](expr) |
//! | functions in Rust that run on the devices | [`kernel`](mod@kernel) |
//! | pages as slices in place, cursors, iterators | [`PagedView`](views::PagedView), [`PagedViewMut`](views::PagedViewMut), [`access`] |
//! | tasks | the methods called `…_async` of [`PagedView`](views::PagedView#for-tasks), [`futures`] |
//! | a range of an array, with all operations | [`Section`](views::Section), [`SectionMut`](views::SectionMut), [`SharedSection`](views::SharedSection) |
//! | memory of the program (a `Vec`, a mapped file), worked on by devices | [`Source`], [`source`] |
//! | several dimensions, and what lies beyond their edges | [`NdArray`], [`nd`], [`boundary`] |
//! | rows of different lengths | [`RaggedArray`], [`ragged`] |
//! | values of several arrays side by side | [`View::join`](views::View::join), [`compute`] |
//! | joins of index tuples | [`IndexSet`], [`index_set`] |
//! | which devices, and which share of the pages each gets | [`devices()`], [`Discovery`], [`discovery`], [`Placement`], [`profile`] |
//! | what went wrong, and what to do about it | [`Error`], [`ErrorKind`] |
//! | what it did, and what memory it takes | [`Stats`], [`stats`], [`Footprint`] |
//! | what it will do, and how near to its limits that is | [`explain`], [`monitor`], `trace` |
//! | devices themselves: the contract, and the backends | [`AnyDevice`], [`device`], `cuda`, `opencl`, `host` |
//!
//! An item has one path. [`prelude`] has those again that programs name in every file.
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `cuda` | yes | NVIDIA cards through CUDA; needs the driver to run |
//! | `opencl` | yes | cards of all vendors through OpenCL; needs libOpenCL to run |
//! | `host` | yes | host RAM, or a file, as a device |
//! | `rayon` | no | parallel forms of the iterators |
//! | `memmap2` | no | mapped files as homes of sources |
//! | `ndarray` | no | boxes in and out of views of the `ndarray` crate, arrays from and to its arrays |
//! | `serde` | no | statistics and settings can be serialised |
//! | `tracing` | no | warnings go to `tracing`, and what engines do can be recorded for Perfetto |
//!
//! No feature needs a toolkit or SDK to build; drivers are loaded at run time. Rust 1.95 or later, 64-bit
//! targets.

#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(loom))))]
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("arrays larger than RAM need 64-bit addresses");

#[cfg(not(loom))]
mod array;
mod base;
mod engine;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
mod facade;
#[cfg(not(loom))]
#[forbid(unsafe_code)]
mod index_sets;
#[cfg(not(loom))]
mod ops;
#[cfg(not(loom))]
mod setup;
#[cfg(not(loom))]
mod shapes;
#[cfg(not(loom))]
mod sources;

#[cfg(not(loom))]
pub use facade::*;

/// How to use it, a page for each subject. All code in them is run as tests, on host RAM where there is no
/// card; `?` stands for what a program does with an error.
///
/// Begin with [the first minute](guide::first_minute).
pub mod guide {
    #[doc = include_str!("../docs/guide/first_minute.md")]
    pub mod first_minute {}
    #[doc = include_str!("../docs/guide/larger_than_ram.md")]
    pub mod larger_than_ram {}
    #[doc = include_str!("../docs/guide/several_devices.md")]
    pub mod several_devices {}
    #[cfg(feature = "host")]
    #[doc = include_str!("../docs/guide/files.md")]
    pub mod files {}
    #[doc = include_str!("../docs/guide/kernels.md")]
    pub mod kernels {}
    #[doc = include_str!("../docs/guide/tasks.md")]
    pub mod tasks {}
    #[doc = include_str!("../docs/guide/own_device.md")]
    pub mod own_device {}
    #[doc = include_str!("../docs/guide/watching.md")]
    pub mod watching {}
    #[doc = include_str!("../docs/guide/processes_and_limits.md")]
    pub mod processes_and_limits {}
    #[doc = include_str!("../docs/troubles.md")]
    pub mod troubles {}
}

/// What fuzz targets run.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::setup::profile::fuzz_profile as profile;
}
