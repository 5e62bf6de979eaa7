//! An array larger than RAM whose pages live in the memory of all GPUs of the machine.
//!
//! [`VirtualArray`] is used by index from any number of threads, as if it were a `Vec` of plain data. Its
//! pages live in the combined video memory of the machine's cards, or in host RAM or a file where there is
//! none, and those used lately are cached in page-locked RAM.
//!
//! ```
//! # use vmarray::prelude::*;
//! use vmarray::{Field, VirtualArray};
//!
//! let squares = VirtualArray::<u64>::new(1_000_000)?;
//! for i in 0..1000 {
//!     squares.set(i, (i * i) as u64)?;
//! }
//! assert_eq!(squares.get(31)?, 961);
//! assert_eq!(squares.to_vec(2..5)?, [4, 9, 16]);
//! // This runs where the data lies.
//! assert_eq!(squares.find(Field::whole(), &961)?, [31]);
//! # Ok::<(), vmarray::Error>(())
//! ```
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `cuda` | yes | NVIDIA cards through CUDA |
//! | `opencl` | yes | cards of all vendors through OpenCL |
//! | `host` | yes | host RAM, or a file, as a device |
//! | `rayon` | no | parallel forms of the iterators |
//! | `memmap2` | no | mapped files as homes of sources |
//! | `ndarray` | no | boxes in and out of views of the `ndarray` crate |
//! | `serde` | no | statistics and settings can be serialised |
//! | `tracing` | no | warnings and events go to `tracing` |
//!
//! No feature needs a toolkit or SDK to build; drivers are loaded at run time.
//!
//! # Child processes
//!
//! A child of `fork` may call `exec` or `_exit`, and nothing else: it has a copy of the parent's memory, but
//! none of the threads that work on it. Locks may be held there by threads that do not exist; drivers do not
//! carry their contexts over, nor the memory that they have locked, which may be missing in the child; and
//! the system's barrier is granted to a process, not to its children. So a child must not use arrays, sources
//! and devices of the parent, nor drop them, nor end by `exit`, which has drivers clean up. It must not make
//! new ones either. The parent goes on unharmed.
//!
//! [`std::process::Command`] keeps to that, unless what it is given as `pre_exec` does not. To share work
//! with other processes start them anew, each with devices of its own.
//!
//! # System calls
//!
//! Filters of system calls (seccomp) are best installed before the first array is made. On Linux access to
//! single elements relies on `membarrier`; a process that is refused it from the beginning does without, at
//! the cost of a fence in each access. One that is refused it later goes on as long as it has
//! `sched_setaffinity`, slower whenever a page leaves the cache or is lent as a slice; without both it ends
//! with a message.

#![doc = include_str!("../docs/troubles.md")]
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
