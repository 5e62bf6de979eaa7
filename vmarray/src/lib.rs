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
//! | [Tasks](guide::tasks) | who writes async code |
//! | [A device of one's own](guide::own_device) | who has hardware that no backend knows |
//! | [Processes and limits](guide::processes_and_limits) | who runs it as a service: fork, filters, limits, files |
//! | [Troubles](guide::troubles) | who knows other libraries of this kind, and what goes wrong there |
//!
//! # What is where
//!
//! | what | where |
//! |---|---|
//! | the array, and how it is described | [`VirtualArray`], [`Builder`] |
//! | elements, ranges, lists of indices | [`View`], [`ViewMut`] |
//! | questions and changes that run on the devices | [`Query`], [`QueryMut`], written as [expressions](expr) |
//! | pages as slices in place, cursors, iterators, futures | [`PagedView`], [`PagedViewMut`] |
//! | a range of an array, with all operations | [`Section`], [`SectionMut`], [`SharedSection`] |
//! | memory of the program (a `Vec`, a mapped file), worked on by devices | [`Source`] |
//! | several dimensions, and what lies beyond their edges | [`NdArray`], [`NdSection`], [`boundary`] |
//! | rows of different lengths | [`RaggedArray`], [`RaggedWriter`] |
//! | values of several arrays side by side | [`View::join`], [`compute`] |
//! | joins of index tuples | [`IndexSet`], [`PagedIndexSet`], [`Combine`] |
//! | which devices, and which share of the pages each gets | [`devices`], [`Discovery`], [`Placement`], [`Profile`] |
//! | what went wrong, and what to do about it | [`Error`], [`ErrorKind`] |
//! | what it did, and what memory it takes | [`Stats`], [`Footprint`] |
//! | devices themselves: the contract, and the backends | [`device`], `cuda`, `opencl`, `host` |
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
//! | `ndarray` | no | boxes in and out of views of the `ndarray` crate |
//! | `serde` | no | statistics and settings can be serialised |
//! | `tracing` | no | warnings and events go to `tracing` |
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
mod index_set;
#[cfg(not(loom))]
mod ops;
#[cfg(not(loom))]
mod setup;
#[cfg(not(loom))]
mod shapes;
#[cfg(not(loom))]
mod source;

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
    #[doc = include_str!("../docs/guide/tasks.md")]
    pub mod tasks {}
    #[doc = include_str!("../docs/guide/own_device.md")]
    pub mod own_device {}
    #[doc = include_str!("../docs/guide/processes_and_limits.md")]
    pub mod processes_and_limits {}
    #[doc = include_str!("../docs/troubles.md")]
    pub mod troubles {}
}

#[cfg(not(loom))]
pub use facade::*;

#[cfg(not(loom))]
mod facade {
    pub use crate::ops::expr;
    pub use crate::shapes::boundary;

    pub use crate::array::VirtualArray;
    pub use crate::array::asynchronous::{
        FlushAsync, GetAsync, PageAsync, PageMutAsync, PrefetchAsync, ReadAsync, SetAsync,
    };
    pub use crate::array::builder::Builder;
    pub use crate::array::cursor::{Cursor, CursorMut};
    pub use crate::array::footprint::Footprint;
    pub use crate::array::iter::{Iter, Pages, PagesMut};
    pub use crate::array::map::{MapBuffer, MapMode};
    pub use crate::array::page_guard::{PageMut, PageRef};
    pub use crate::array::registered::Registered;
    pub use crate::base::element::{Element, Field};
    pub use crate::base::error::{Error, ErrorKind, Result, Unmet};
    pub use crate::base::stats::{ChannelStats, Stats};
    pub use crate::engine::evict::EvictionPolicy;
    pub use crate::index_set::{
        Combination, CombinationChunks, Combine, Dimension, IndexSet, IndexSetRows, PagedIndexSet, Tuples,
    };
    pub use crate::ops::find::Found;
    pub use crate::ops::gather::{GatherAsync, Gathered};
    pub use crate::ops::view::{
        Linear, PagedView, PagedViewMut, Query, QueryMut, Section, SectionMut, Shape, SharedSection, Store,
        StoreMut, View, ViewMut,
    };
    pub use crate::setup::any::AnyDevice;
    pub use crate::setup::discovery::{Choice, Discovery, DiscoveryReport, devices};
    pub use crate::setup::placement::Placement;
    pub use crate::setup::profile::{Direction, Profile};
    pub use crate::shapes::nd::{
        NdArray, NdBuilder, NdLayout, NdSection, NdSectionMut, NdShape, NdView, NdViewMut, Tile, TileMut,
        TileRef, Tiles,
    };
    pub use crate::shapes::ragged::{
        Items, Ragged, RaggedArray, RaggedBuilder, RaggedRow, RaggedWriter, Rows,
    };
    pub use crate::source::{Home, HomeMut, PageState, Source, SourceBuilder, SourceFlushAsync, Unfinished};

    /// Several views of the same length, element by element, and elements that meet a condition.
    pub mod compute {
        pub use crate::ops::compute::{Column, Joinable, Joined, Row, Selected};
    }

    /// What programs name again and again: `use vmarray::prelude::*`.
    pub mod prelude {
        pub use crate::boundary::Bounded;
        pub use crate::ops::view::{PagedView, PagedViewMut, Query, QueryMut, View, ViewMut};
        pub use crate::shapes::nd::{NdView, NdViewMut};
        pub use crate::{Element, Field, NdArray, Source, VirtualArray};
    }

    pub use backend_api::{self as device, Commit, Device, HostMemory};
    /// NVIDIA cards as devices.
    #[cfg(feature = "cuda")]
    pub use backend_cuda as cuda;
    /// Host RAM, files and simulations as devices.
    #[cfg(feature = "host")]
    pub use backend_host as host;
    /// Cards of all vendors as devices.
    #[cfg(feature = "opencl")]
    pub use backend_opencl as opencl;
}

/// What fuzz targets run.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::setup::profile::fuzz_profile as profile;
}
