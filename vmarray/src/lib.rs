//! An array larger than RAM whose pages live in the memory of all GPUs of the machine.
//!
//! [`VirtualArray`] is used by index from any number of threads, as if it were a `Vec` of plain data. Its pages live in
//! the combined video memory of the machine's cards, or in host RAM or a file where there is none, and those used
//! lately are cached in page-locked RAM.
//!
//! ```
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
//! A child of `fork` may call `exec` or `_exit`, and nothing else: it has a copy of the parent's memory, but none of
//! the
//! threads that work on it. Locks may be held there by threads that do not exist; drivers do not carry their contexts
//! over, nor the memory that they have locked, which may be missing in the child; and the system's barrier is
//! granted to
//! a process, not to its children. So a child must not use arrays, sources and devices of the parent, nor drop them,
//! nor
//! end by `exit`, which has drivers clean up. It must not make new ones either. The parent goes on unharmed.
//!
//! [`std::process::Command`] keeps to that, unless what it is given as `pre_exec` does not. To share work with other
//! processes start them anew, each with devices of its own.
//!
//! # System calls
//!
//! Filters of system calls (seccomp) are best installed before the first array is made. On Linux access to single
//! elements relies on `membarrier`; a process that is refused it from the beginning does without, at the cost of a
//! fence in each access. One that is refused it later goes on as long as it has `sched_setaffinity`, slower whenever a
//! page leaves the cache or is lent as a slice; without both it ends with a message.

#![doc = include_str!("../docs/troubles.md")]
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("arrays larger than RAM need 64-bit addresses");

mod page;

#[cfg(not(loom))]
mod any;
#[cfg(not(loom))]
mod array;
#[cfg(not(loom))]
mod asynchronous;
#[cfg(not(loom))]
pub mod boundary;
#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod channel;
mod combiner;
#[cfg(not(loom))]
pub mod compute;
#[cfg(not(loom))]
mod copiers;
mod crew;
#[cfg(not(loom))]
mod cursor;
#[cfg(not(loom))]
mod discovery;
#[cfg(not(loom))]
mod element;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod evict;
#[cfg(not(loom))]
pub mod expr;
#[cfg(not(loom))]
mod find;
#[cfg(not(loom))]
mod footprint;
#[cfg(not(loom))]
mod gather;
#[cfg(not(loom))]
mod guards;
#[cfg(not(loom))]
mod huge;
#[cfg(not(loom))]
mod index_set;
#[cfg(not(loom))]
mod iter;
#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod nd;
#[cfg(not(any(feature = "cuda", feature = "opencl", feature = "host", loom)))]
mod no_device;
#[cfg(not(loom))]
mod page_guard;
#[cfg(not(loom))]
mod pager;
#[cfg(all(feature = "rayon", not(loom)))]
mod parallel;
mod past_caches;
#[cfg(not(loom))]
mod placement;
#[cfg(not(loom))]
mod profile;
#[cfg(not(loom))]
mod ragged;
#[cfg(not(loom))]
mod range;
#[cfg(not(loom))]
mod read_ahead;
#[cfg(not(loom))]
mod resident;
#[cfg(not(loom))]
mod section;
#[cfg(not(loom))]
mod source;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod trace;

#[cfg(not(loom))]
pub use facade::*;

#[cfg(not(loom))]
mod facade {
    pub use crate::any::AnyDevice;
    pub use crate::array::VirtualArray;
    pub use crate::asynchronous::{
        FlushAsync, GatherAsync, GetAsync, PageAsync, PageMutAsync, PrefetchAsync, ReadAsync, SetAsync,
    };
    pub use crate::builder::Builder;
    pub use crate::cursor::{Cursor, CursorMut};
    pub use crate::discovery::{Choice, Discovery, DiscoveryReport, Unmet, devices};
    pub use crate::element::{Element, Field};
    pub use crate::error::{Error, ErrorKind, Result};
    pub use crate::evict::EvictionPolicy;
    pub use crate::find::Found;
    pub use crate::footprint::Footprint;
    pub use crate::gather::Gathered;
    pub use crate::index_set::{
        Combination, CombinationChunks, Combine, Dimension, IndexSet, IndexSetRows, PagedIndexSet, Tuples,
    };
    pub use crate::iter::{Iter, Pages, PagesMut};
    pub use crate::map::{MapBuffer, MapMode};
    pub use crate::nd::{
        Grid, GridMut, NdArray, NdBuilder, NdFound, NdLayout, NdSection, NdSectionMut, NdSelected, TileMut,
        TileRef, Tiles,
    };
    pub use crate::page_guard::{PageMut, PageRef};
    pub use crate::placement::Placement;
    pub use crate::profile::{Direction, Profile};
    pub use crate::ragged::{Items, Ragged, RaggedArray, RaggedBuilder, RaggedWriter, Row, Rows};
    pub use crate::section::{
        Section, SectionCursor, SectionCursorMut, SectionMut, SectionPage, SectionPageAsync, SectionPageMut,
        SectionPageMutAsync, SectionPages, SectionPagesMut, SharedSection,
    };
    pub use crate::source::{
        Home, HomeMut, PageState, Source, SourceBuilder, SourceSection, SourceSectionMut, Synchronize,
        Unfinished,
    };
    pub use crate::stats::{ChannelStats, Stats};

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
