//! What other crates see, each item at one path: the root has what a first program names, modules the rest.

pub use crate::ops::expr;
pub use crate::shapes::boundary;
pub use backend_api as device;
/// NVIDIA cards as devices.
#[cfg(feature = "cuda")]
pub use backend_cuda as cuda;
/// Host RAM, files and simulations as devices.
#[cfg(feature = "host")]
pub use backend_host as host;
/// Cards of all vendors as devices.
#[cfg(feature = "opencl")]
pub use backend_opencl as opencl;

/// The crate that [`Element`] types are derived with.
pub use bytemuck;
/// The crate whose floats of 16 bits can be elements, with the feature `half`.
#[cfg(feature = "half")]
pub use half;
/// The crate whose mapped files can be the home of a [`Source`].
#[cfg(feature = "memmap2")]
pub use memmap2;
/// The crate that [boxes](crate::nd) can be copied from and to.
#[cfg(feature = "ndarray")]
pub use ndarray;

/// The crate whose [complex numbers](expr::ComplexExpr) can be elements, with the feature `num-complex`.
#[cfg(feature = "num-complex")]
pub use num_complex;

pub use crate::array::VirtualArray;
pub use crate::array::builder::Builder;
pub use crate::array::footprint::Footprint;
pub use crate::base::element::{Element, Field};
pub use crate::base::error::{Error, ErrorKind, Result};
pub use crate::base::stats::Stats;
pub use crate::engine::evict::EvictionPolicy;
pub use crate::index_sets::IndexSet;
pub use crate::setup::any::AnyDevice;
pub use crate::setup::discovery::{Discovery, devices};
pub use crate::setup::placement::Placement;
pub use crate::shapes::nd::NdArray;
pub use crate::shapes::ragged::RaggedArray;
pub use crate::sources::Source;
pub use vmarray_kernel::kernel;

pub mod views {
    //! Every operation, as traits that all views have, and sections: views of a range.
    //!
    //! [`View`] and [`ViewMut`] have elements, ranges and lists of indices, [`Query`] and [`QueryMut`]
    //! questions and changes by [expressions](crate::expr), [`PagedView`] and [`PagedViewMut`] what pages and
    //! tasks need. Programs come by all of them with `use vmarray::prelude::*`; functions that take any view
    //! name them.

    pub use crate::ops::find::Found;
    pub use crate::ops::sort::SortKey;
    pub use crate::ops::view::{
        Linear, PagedView, PagedViewMut, Query, QueryMut, Section, SectionMut, Shape, SharedSection, Store,
        StoreMut, View, ViewMut,
    };
}

pub mod order {
    //! Sorting by keys, searches in what is sorted, distinct elements, groups, and joins by keys.
    //!
    //! [`Order`] and [`OrderMut`] are traits of all [views](crate::views) of a range. Programs come by them
    //! with `use vmarray::prelude::*`; functions that take any view name them.

    pub use crate::ops::order::{
        Descending, Groupable, Groups, KeyMatches, MatchKind, Order, OrderMut, Side, SingleKey, SortBy,
        TakeIndex,
    };
}

pub mod access {
    //! Pages in place, and a walk over elements: guards, mapped slices, cursors, iterators.
    //!
    //! These are what methods of [`PagedView`](crate::views::PagedView) and
    //! [`PagedViewMut`](crate::views::PagedViewMut) return, and what they need. Guards, cursors and iterators
    //! hold pages: see "Locks" at [`VirtualArray`](crate::VirtualArray#locks).

    pub use crate::array::byte_stream::ByteStream;
    pub use crate::array::cursor::{Cursor, CursorMut};
    pub use crate::array::iter::{Iter, Pages, PagesMut};
    pub use crate::array::lent::{LentElements, LentRun};
    pub use crate::array::map::{MapBuffer, MapMode};
    pub use crate::array::page_guard::{PageMut, PageRef};
    pub use crate::array::registered::Registered;
    pub use crate::ops::gather::Gathered;
}

pub mod futures {
    //! The futures that methods called `…_async` return, by name.
    //!
    //! They run on any executor and need no reactor: the library's own threads wake them. All but
    //! [`PageAsync`] and [`PageMutAsync`] are [`Send`]. What holds for all is at
    //! [`PagedView`](crate::views::PagedView#for-tasks).
    //!
    //! ```
    //! use vmarray::futures::*;
    //! fn may_move<F: Send>() {}
    //! may_move::<(GetAsync<'_, u32>, SetAsync<'_, u32>, ReadAsync<'_, u32>, GatherAsync<'_, u32>)>();
    //! may_move::<(PrefetchAsync<'_, u32>, FlushAsync<'_, u32>, SourceFlushAsync<'_, u32>)>();
    //! ```

    pub use crate::array::asynchronous::{
        FlushAsync, GetAsync, PageAsync, PageMutAsync, PrefetchAsync, ReadAsync, SetAsync,
    };
    pub use crate::ops::gather::GatherAsync;
    pub use crate::ops::launch::{RunAsync, SessionWait};
    pub use crate::sources::SourceFlushAsync;
}

pub mod compute {
    //! Several views of the same length, element by element, and elements that meet a condition.
    //!
    //! [`View::join`](crate::views::View::join) makes a [`Joined`], and
    //! [`View::select_where`](crate::views::View::select_where) a [`Selected`].

    pub use crate::ops::compute::{AnyColumn, Column, Joinable, Joined, Row, Selected};
}

pub mod kernel {
    //! Kernels of the program: functions in Rust that [run](RunKernel::run) on the devices that hold the
    //! result. See [the guide](crate::guide::kernels).

    pub use crate::ops::launch::{
        Appended, Argument, Arguments, CodedKernel, Holdable, KernelLaunch, PrefixSummed, ReturnedSum,
        RunKernel, Session, SessionArgument, SessionArguments, SessionArray, SessionCopy, SessionWindow,
        Windowed,
    };
    pub use backend_api::kernel::{Code, NativeLaunch, NativeQueue, NativeView, Submit};
    pub use vmarray_kernel::random;
    pub use vmarray_kernel::{
        ARENA_BYTES, Alloc, Anywhere, Append, AroundPart, At, Atomic, AxisPart, Bits, Define, Definition,
        Error, ErrorKind, Field, Float, Function, Group, GroupIndex, Half, Integer, Kernel, KernelType,
        Layout, Lowered, Memory, Number, Outside, Own, Parameter, ParameterInfo, ParameterKind, Returned,
        Rows, Scalar, ScalarArguments, ScalarSource, Shared, Signed, SourcePlace, TableSource, Window,
        function, host_form, host_form_returning, interpret, lower, lower_returning, run_on_host,
    };
    #[doc(hidden)]
    pub use vmarray_kernel::{k, kind};
}

pub mod nd {
    //! Several dimensions: boxes of arrays and sources, and the tiles that they are kept in.
    //!
    //! [`NdArray`](crate::NdArray) is the array; [`NdView`] and [`NdViewMut`] have
    //! what boxes can do beside what all [views](crate::views) can. What lies beyond the edges of a box is a
    //! matter of [`boundary`](crate::boundary) modes.

    pub use crate::shapes::nd::{
        NdBuilder, NdLayout, NdSection, NdSectionMut, NdShape, NdView, NdViewMut, Tile, TileMut, TileRef,
        Tiles,
    };
}

pub mod ragged {
    //! Rows of different lengths: how a [`RaggedArray`](crate::RaggedArray) is described, written and read.
    //!
    //! Rows are [pushed](RaggedWriter) by any number of threads, then frozen and read as
    //! [views](RaggedRow). A [`Ragged`] is what reading needs, so that rows of rows are
    //! possible.

    pub use crate::shapes::ragged::{Items, Ragged, RaggedBuilder, RaggedRow, RaggedWriter, Rows};
}

pub mod index_set {
    //! Joins of index tuples: how an [`IndexSet`](crate::IndexSet) is combined with others, in RAM or in
    //! arrays.

    pub use crate::index_sets::{
        Combination, CombinationChunks, Combine, Dimension, IndexSetColumns, IndexSetRows, PagedIndexSet,
        TupleGroups, Tuples,
    };
}

pub mod source {
    //! Memory of the program as a [`Source`](crate::Source): what can be one, and how it is described.

    pub use crate::sources::{Home, HomeMut, PageState, SourceBuilder, Unfinished};
}

pub mod discovery {
    //! What [`Discovery`](crate::Discovery) is told and what it tells.

    pub use crate::base::error::Unmet;
    pub use crate::setup::discovery::{Choice, DiscoveryReport};
}

pub mod profile {
    //! How fast a device is: what [`Placement`](crate::Placement) by bandwidth and the choice of routes rest
    //! on.

    pub use crate::setup::profile::{Direction, Profile};
}

pub mod monitor {
    //! Statistics of running programs, for people and tools that look on.
    //!
    //! A program that [publishes](crate::Builder::publish) statistics of arrays keeps a file of them up to
    //! date, twice a second, by a thread of its own: `PROCESS-START.stats` in `$XDG_RUNTIME_DIR/vmarray`, or
    //! in `vmarray-USER` among temporary files, a folder of the user's alone (mode 0700, files 0600; one that
    //! others can write to is not used, and there is a warning). It has 256 KiB at most, goes with the last
    //! array, and is removed by the next reader if the process has ended without that. [`programs`] reads
    //! them; the program `vmarray-monitor` shows them. See [the guide](crate::guide::watching). A process of
    //! another container, whose number means nothing here, is taken for one that has ended.
    //!
    //! ```
    //! use vmarray::monitor::{programs, publish_now};
    //! publish_now(); // what this process has to tell, if there is anything
    //! for program in programs() {
    //!     println!("{} ({}): {} arrays", program.name, program.process, program.arrays.len());
    //! }
    //! ```

    pub use crate::base::published::{
        PublishedArray, PublishedChannel, PublishedProgram, programs, publish_now,
    };
}

pub mod home {
    //! Where pages live, and how far that is lost: what [`VirtualArray::homes`](crate::VirtualArray::homes)
    //! tells.

    pub use crate::array::homes::ChannelHome;
    pub use backend_api::wrap::{Replica, ReplicaState};
}

#[cfg(feature = "host")]
pub mod file {
    //! What arrays in files need beside [`Builder::create`](crate::Builder::create) and
    //! [`open`](crate::Builder::open). See [the guide](crate::guide::files).

    pub use crate::ops::saved::SaveOptions;
}

pub mod progress {
    //! How far work that takes long has come, and how it is stopped.

    pub use crate::base::progress::{Progress, with_progress};
}

pub mod explain {
    //! What an operation will do, and how near what was done came to what the devices can do.
    //!
    //! [`explain`](crate::views::PagedView::explain) makes an [`Explained`] of [`Work`] on a view, and
    //! [`watch`](crate::VirtualArray::watch) tells of everything between two points of a program in a
    //! [`Report`]. Both count bytes as [`Stats`](crate::Stats) do, and know how fast a device is from its
    //! [`Profile`](crate::profile::Profile). See [the guide](crate::guide::watching).

    pub use crate::array::watch::{Report, ReportedDevice, Watch};
    pub use crate::ops::explain::{Explained, PlannedDevice, PlannedRoute, Work};
    pub use crate::setup::profile::limits::LimitedBy;
}

#[cfg(feature = "tracing")]
pub mod trace {
    //! What engines do, as events in time, for a picture of it: with the feature `tracing`.

    pub use crate::base::recording::Recording;
}

pub mod stats {
    //! The parts of [`Stats`](crate::Stats).

    pub use crate::base::stats::ChannelStats;
}

pub mod prelude {
    //! What programs name again and again: `use vmarray::prelude::*`.

    pub use crate::boundary::Bounded;
    pub use crate::ops::expr::CallInExpr;
    pub use crate::ops::launch::RunKernel;
    pub use crate::ops::order::{Order, OrderMut};
    pub use crate::ops::view::{PagedView, PagedViewMut, Query, QueryMut, View, ViewMut};
    pub use crate::shapes::nd::{NdView, NdViewMut};
    pub use crate::{Element, Field, NdArray, Source, VirtualArray};
}
