//! An array larger than RAM whose pages live in the memory of all GPUs of the machine.
//!
//! Any number of threads use a [`VirtualArray`] like a `Vec` of plain data. Its pages live in the combined
//! video memory of all GPUs, in host RAM, or in a [file](guide::files); a cache in page-locked RAM holds the
//! recently used ones. The device that stores the data also [searches and reduces](views::Query) it, [sorts,
//! groups and joins](order) it, and runs [kernels](mod@kernel) of the program on it.
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
//! | guide | read it to |
//! |---|---|
//! | [The first minute](guide::first_minute) | create an array, share it between threads, search it |
//! | [Larger than RAM](guide::larger_than_ram) | choose cache and page length; estimate the cost of a miss |
//! | [Several devices](guide::several_devices) | select GPUs, divide pages among them, survive the loss of one |
//! | [Arrays in files](guide::files) | keep data after the program has ended |
//! | [Sort, group, join](guide::order) | order elements, aggregate by key, join two arrays |
//! | [Kernels](guide::kernels) | run your own functions on the devices |
//! | [Tasks](guide::tasks) | use arrays in async code |
//! | [A device of your own](guide::own_device) | add a backend |
//! | [Watching](guide::watching) | see the work of an array, and compare it with the limits of the machine |
//! | [Processes and limits](guide::processes_and_limits) | run a service: fork, filters, limits, files |
//! | [Troubles](guide::troubles) | see the behaviour in situations that cause problems in similar libraries |
//!
//! # Index
//!
//! | subject | items |
//! |---|---|
//! | the array and its settings | [`VirtualArray`], [`Builder`], [`EvictionPolicy`] |
//! | elements, ranges, lists of indices | [`View`](views::View), [`ViewMut`](views::ViewMut) |
//! | searches, reductions, updates on the devices | [`Query`](views::Query), [`QueryMut`](views::QueryMut), written as [expressions](expr) |
//! | sorting, searches in sorted data, groups, joins by key | [`sort`](views::Sort::sort), [`Order`](order::Order), [`OrderMut`](order::OrderMut), [`order`] |
//! | Rust functions that run on the devices | [`kernel`](mod@kernel) |
//! | pages as slices, cursors, iterators | [`PagedView`](views::PagedView), [`PagedViewMut`](views::PagedViewMut), [`access`] |
//! | async tasks | the methods `…_async` of [`PagedView`](views::PagedView#for-tasks), [`futures`] |
//! | a range of an array, with all operations | [`Section`](views::Section), [`SectionMut`](views::SectionMut), [`SharedSection`](views::SharedSection) |
//! | arrays in files | [`Builder::create`], [`Builder::open`], [`VirtualArray::sync`], [`VirtualArray::save`], [`Builder::load`], `file` |
//! | memory of the program (a `Vec`, a mapped file) as an operand | [`Source`], [`source`] |
//! | several dimensions, and their boundary modes | [`NdArray`], [`nd`], [`boundary`] |
//! | filters: neighbours of each element | [`boundary`], [windows of kernels](kernel::Window) |
//! | rows of different lengths | [`RaggedArray`], [`ragged`] |
//! | several arrays, element by element | [`Join::join`](views::Join::join), [`compute`] |
//! | joins of index tuples | [`IndexSet`], [`index_set`] |
//! | devices, and the share of pages of each | [`devices()`], [`Discovery`], [`discovery`], [`Placement`], [`profile`] |
//! | errors, with the remedy of each | [`Error`], [`ErrorKind`] |
//! | counters and memory of an array | [`Stats`], [`stats`], [`Footprint`] |
//! | predicted costs, statistics of running programs, recordings | [`explain`], [`monitor`], `trace` |
//! | the trait of devices, mirrors, the backends | [`AnyDevice`], [`device`], [`redundancy`], `cuda`, `opencl`, `host` |
//!
//! Each item has one path. The [`prelude`] also exports the items that programs name in every file.
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `cuda` | yes | NVIDIA GPUs through CUDA; needs the driver at run time |
//! | `opencl` | yes | GPUs of all vendors through OpenCL; needs libOpenCL at run time |
//! | `host` | yes | host RAM, files and simulated devices |
//! | `rayon` | no | parallel iterators |
//! | `memmap2` | no | files mapped by the `memmap2` crate as memory of a [`Source`] |
//! | `ndarray` | no | copies between boxes of an [`NdArray`] and arrays of the `ndarray` crate |
//! | `half` | no | 16-bit floats of the `half` crate as elements, in expressions and in kernels |
//! | `num-complex` | no | complex numbers of the `num-complex` crate as elements, in expressions and in kernels |
//! | `matmul` | no | matrix products |
//! | `serde` | no | serialisation of statistics and settings |
//! | `tracing` | no | warnings as `tracing` events, and recordings for Perfetto |
//!
//! No feature needs a toolkit or SDK to build: the backends load drivers at run time. The crate needs Rust
//! 1.95 or later and a 64-bit target.

#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(loom))))]
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("arrays larger than RAM need 64-bit addresses");

mod array;
mod base;
mod engine;
#[forbid(unsafe_code)]
mod facade;
#[forbid(unsafe_code)]
mod index_sets;
mod ops;
mod setup;
mod shapes;
mod sources;

pub use facade::*;

/// Guides, one page for each subject.
///
/// Begin with [the first minute](guide::first_minute). All examples are tested. Without a GPU they run in
/// host RAM. `?` stands for the error handling of your program.
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
    #[doc = include_str!("../docs/guide/order.md")]
    pub mod order {}
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

/// Compiles and runs the examples of the README.
#[cfg(all(doctest, feature = "host"))]
#[doc = include_str!("../../README.md")]
mod readme {}

/// Entry points of the fuzz targets.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::setup::profile::fuzz_profile as profile;
}
