//! The public modules of the crate. The crate root exports the items of a first program, and these modules
//! export all other public items. So each public item has exactly one path.

pub use crate::ops::expr;
pub use crate::shapes::boundary;
pub use backend_api as device;
/// Backend for NVIDIA GPUs through CUDA.
#[cfg(feature = "cuda")]
pub use backend_cuda as cuda;
/// Backend for host RAM and simulated devices.
#[cfg(feature = "host")]
pub use backend_host as host;
/// Backend for GPUs of all vendors through OpenCL.
#[cfg(feature = "opencl")]
pub use backend_opencl as opencl;
pub use vmarray_redundancy as redundancy;
/// Backend for files: raw files, crash-safe persistent files, and storage that the program implements.
#[cfg(feature = "host")]
pub use vmarray_store as store;
#[doc(hidden)]
pub use vmarray_support as support;

/// Crate with the derive macros that make a type an [`Element`].
pub use bytemuck;
/// Crate of 16-bit floats, which can be elements with the feature `half`.
#[cfg(feature = "half")]
pub use half;
/// Crate that maps files. A mapped file can be the memory of a [`Source`].
#[cfg(feature = "memmap2")]
pub use memmap2;
/// Crate whose arrays can be copied to and from [boxes](crate::nd) of arrays.
#[cfg(feature = "ndarray")]
pub use ndarray;

/// Crate of [complex numbers](expr::ComplexExpr), which can be elements with the feature `num-complex`.
#[cfg(feature = "num-complex")]
pub use num_complex;

pub use crate::array::VirtualArray;
pub use crate::array::builder::Builder;
pub use crate::array::footprint::Footprint;
pub use crate::base::element::{Element, Field};
#[doc(inline)]
pub use crate::base::error::{Error, ErrorKind, Result};
#[doc(inline)]
pub use crate::base::stats::Stats;
#[doc(inline)]
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
    //! Traits with the operations of all views, and sections: views of a range.
    //!
    //! | trait | operations |
    //! |---|---|
    //! | [`View`], [`ViewMut`] | elements, ranges, lists of indices, searches for a value |
    //! | [`Query`], [`QueryMut`] | searches, reductions and updates by [expressions](crate::expr), on the devices |
    //! | [`Select`], [`Join`] | elements that meet a condition; [combinations](crate::compute) of several views |
    //! | [`Sort`], [`Scan`] | [sorting](Sort::sort) and [prefix sums](Scan::prefix_sum) of numbers |
    //! | `matrix::MatMul` | matrix products, with the feature `matmul` |
    //! | [`Order`](crate::order::Order), [`OrderMut`](crate::order::OrderMut) | sorting by keys, groups, joins |
    //! | [`RunKernel`](crate::kernel::RunKernel), [`KernelView`](crate::kernel::KernelView) | [kernels](mod@crate::kernel) over views |
    //! | [`PagedView`], [`PagedViewMut`] | pages in place, cursors, iterators, futures |
    //!
    //! `use vmarray::prelude::*` imports these traits. [`View`] and [`ViewMut`] are the core; every view has
    //! all other traits. Functions that are generic over views have them as bounds.

    pub use crate::ops::find::Found;
    pub use crate::ops::join::Join;
    pub use crate::ops::paged::{PagedView, PagedViewMut};
    pub use crate::ops::query::{Query, QueryMut, Select};
    pub use crate::ops::scan::Scan;
    pub use crate::ops::sort::{Sort, SortKey, SortPlan};
    pub use crate::ops::view::{
        Linear, Section, SectionMut, Shape, SharedSection, Store, StoreMut, View, ViewMut,
    };
}

pub mod order {
    //! Sorting by keys, searches in sorted data, distinct elements, grouping and joins by key.
    //!
    //! All [views](crate::views) of a range implement [`Order`] and [`OrderMut`], which
    //! `use vmarray::prelude::*` imports. [`Sort::sort`](crate::views::Sort::sort) sorts plain numbers.
    //! See [the guide](crate::guide::order).

    pub use crate::ops::order::{
        Descending, Groupable, Groups, KeyMatches, MatchKind, Order, OrderMut, Side, SingleKey, SortBy,
        TakeIndex,
    };
}

pub mod access {
    //! Access to pages in place: guards, mapped slices, cursors, iterators.
    //!
    //! Methods of [`PagedView`](crate::views::PagedView) and [`PagedViewMut`](crate::views::PagedViewMut)
    //! return these types. Guards, cursors and iterators hold pages, so other threads may wait for them: see
    //! [Locks](crate::VirtualArray#locks).

    pub use crate::array::byte_stream::ByteStream;
    pub use crate::array::cursor::{Cursor, CursorMut};
    pub use crate::array::export::{ExportedElements, ExportedSlice};
    pub use crate::array::iter::{Iter, Pages, PagesMut};
    pub use crate::array::map::{MapBuffer, MapMode};
    pub use crate::array::page_guard::{PageMut, PageRef, must_work_alone};
    pub use crate::array::registered::Registered;
    pub use crate::ops::view::Gathered;
}

pub mod rows {
    //! Tables of rows, for lists of ids and results that are in the memory of a GPU, on streams of the
    //! program.
    //!
    //! [`VirtualArray::rows`](crate::VirtualArray::rows) makes a [`RowTable`].

    pub use crate::ops::row_table::{
        Bags, IdBuffer, OutOfRange, RowBuffer, RowCacheStats, RowFormat, RowHome, RowTable, RowTableBuilder,
    };
    pub use backend_api::StreamId;
}

pub mod futures {
    //! Named types of the futures of all `…_async` methods.
    //!
    //! The futures run on any executor and need no reactor: threads of the library wake them. All except
    //! [`PageAsync`] and [`PageMutAsync`] are [`Send`]. [`PagedView`](crate::views::PagedView#for-tasks)
    //! documents their common rules.
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
    //! Element-wise combination of several views of the same length, and selection by a condition.
    //!
    //! [`Join::join`](crate::views::Join::join) makes a [`Joined`], and
    //! [`Select::select_where`](crate::views::Select::select_where) a [`Selected`].

    pub use crate::ops::join::{AnyColumn, Column, Joinable, Joined, Row};
    pub use crate::ops::query::Selected;
}

pub mod kernel {
    //! Kernels: Rust functions of the program that [run](RunKernel::run) on the devices that store the
    //! result. See [the guide](crate::guide::kernels).
    //!
    //! ```
    //! use vmarray::{kernel::*, prelude::*};
    //!
    //! #[kernel]
    //! fn doubled(x: &Own<u32>, y: &mut Own<u32>) {
    //!     y.set(2 * x.get());
    //! }
    //!
    //! let (x, mut y) = (VirtualArray::<u32>::new(10)?, VirtualArray::<u32>::new(10)?);
    //! x.fill(.., 3)?;
    //! doubled::run((&x, &mut y))?;
    //! assert_eq!(y.sum(.., Field::whole())?, 60);
    //! # Ok::<(), vmarray::Error>(())
    //! ```

    pub use crate::ops::launch::{
        Appended, Argument, Arguments, Bindable, KernelLaunch, KernelView, NativeKernel, ReturnedSum,
        RunKernel, Session, SessionArgument, SessionArguments, SessionArray, SessionCopy, SessionWindow,
        Windowed,
    };
    pub use crate::ops::scan::PrefixSummed;
    pub use backend_api::kernel::{Code, NativeLaunch, NativeQueue, NativeView, Submit};
    pub use vmarray_kernel::{
        Anywhere, Append, At, Atomic, AxisPart, Define, Definition, ElementMemory, Error, ErrorKind, Float,
        Function, Group, GroupIndex, GroupPart, Half, Kernel, KernelBits, KernelInteger, KernelNumber,
        KernelScalar, KernelSigned, KernelType, Layout, LayoutField, LoweredKernel, OutOfBounds, Own,
        PRIVATE_HEAP_BYTES, Parameter, ParameterInfo, ParameterKind, PrivateSlice, Returned, Rows,
        ScalarArguments, ScalarSource, Shared, SourcePlace, StencilPart, TableSource, Window, function,
        host_form, host_form_returning, interpret, lower, lower_returning, run_on_host,
    };
    pub use vmarray_kernel::{boundary, group, kernel, random};
    #[doc(hidden)]
    pub use vmarray_kernel::{k, kind};
}

#[cfg(feature = "matmul")]
pub mod matrix {
    //! Matrix products of arrays that may be larger than RAM. Needs the feature `matmul`.
    //!
    //! [`MatMul::assign_matmul`] writes the product of two [matrices](Matrix) to a view with two axes.

    #[doc(hidden)]
    pub use crate::ops::matmul::FactorTile;
    pub use crate::ops::matmul::{MatMul, MatMulElement, MatMulRoute, Matrix};
}

pub mod nd {
    //! Arrays and views of several dimensions, stored in rows or tiles.
    //!
    //! [`NdArray`](crate::NdArray) is the array. [`NdView`] and [`NdViewMut`] add operations on boxes to the
    //! operations of all [views](crate::views). [`boundary`](crate::boundary) modes define the values
    //! beyond the edges of a box.
    //!
    //! A box is a range of positions: `[top, left]..[bottom, right]`. [`elements`](NdBuilder::elements) sets
    //! the options that arrays of all shapes have, such as the size of the cache:
    //!
    //! ```
    //! use vmarray::prelude::*;
    //!
    //! let (rows, columns) = (1000, 1500);
    //! let builder = NdArray::<f32, 2>::builder([rows, columns]);
    //! let image = builder.elements(|elements| elements.cache_bytes(1 << 20)).build()?;
    //! for row in 0..rows {
    //!     image.write_box([row, 0]..[row + 1, columns], &vec![row as f32; columns])?;
    //! }
    //! assert_eq!(image.to_vec([7, 0]..[9, 2])?, [7.0, 7.0, 8.0, 8.0]);
    //! # Ok::<(), vmarray::Error>(())
    //! ```

    pub use crate::ops::scan::Accumulation;
    pub use crate::shapes::nd::{
        NdBuilder, NdLayout, NdSection, NdSectionMut, NdShape, NdView, NdViewMut, Tile, TileMut, TileRef,
        Tiles,
    };
}

pub mod ragged {
    //! Rows of different lengths: builder, writer and rows of a [`RaggedArray`](crate::RaggedArray).
    //!
    //! Any number of threads [push](RaggedWriter) rows; after `freeze` the rows are [views](RaggedRow).
    //! [`Ragged`] is the general type, whose items can be rows themselves.

    pub use crate::shapes::ragged::{Items, Ragged, RaggedBuilder, RaggedRow, RaggedWriter, RowIter};
}

pub mod index_set {
    //! Joins of index tuples: combinations of several [index sets](crate::IndexSet), in RAM or in arrays.

    pub use crate::index_sets::{
        Combination, CombinationChunks, Combine, Dimension, IndexSetColumns, IndexSetRows, PagedIndexSet,
        TupleGroups, Tuples,
    };
}

pub mod source {
    //! Memory of the program as an operand of devices: the builder of a [`Source`](crate::Source), and the
    //! types of memory that it accepts.

    pub use crate::sources::{Home, HomeMut, PageState, SourceBuilder, Unfinished};
}

pub mod discovery {
    //! The search for devices by [`Discovery`](crate::Discovery): its settings and reports.

    #[doc(inline)]
    pub use crate::base::error::Unmet;
    pub use crate::setup::discovery::{Choice, DiscoveryReport};
    pub use crate::setup::open_devices::{close_unused, set_devices};
}

pub mod profile {
    //! Measured speed of a device, the basis of [`Placement`](crate::Placement) by bandwidth and of the
    //! choice of copy routes (copy engines or kernels).

    pub use crate::setup::profile::{Direction, Profile};
}

pub mod monitor {
    //! Statistics of running programs, for people and monitoring tools.
    //!
    //! If a program [publishes](crate::Builder::publish) arrays, a thread writes their statistics to a file
    //! twice a second: `PROCESS-START.stats` in `$XDG_RUNTIME_DIR/vmarray`, or in `vmarray-USER` in the
    //! temporary folder. Folder and file belong to the user alone (modes 0700 and 0600); the library warns
    //! about a folder that other users can write to, and does not use it. The file has at most 256 KiB. The
    //! library removes it when the last published array is dropped; after a crash, the next reader removes
    //! it. A reader cannot see processes of other containers, and takes them for ended.
    //!
    //! [`programs`] reads the files, and the program `vmarray-monitor` shows them. See
    //! [the guide](crate::guide::watching).
    //!
    //! ```
    //! use vmarray::monitor::{programs, publish_now};
    //! publish_now(); // writes the statistics of this process, if it publishes arrays
    //! for program in programs() {
    //!     println!("{} ({}): {} arrays", program.name, program.process, program.arrays.len());
    //! }
    //! ```

    pub use crate::base::stats_export::{
        PublishedArray, PublishedChannel, PublishedProgram, programs, publish_now,
    };
}

pub mod home {
    //! The devices that store each page, their replicas and losses: results of
    //! [`VirtualArray::homes`](crate::VirtualArray::homes).

    pub use crate::array::homes::ChannelHome;
    pub use vmarray_redundancy::{Replica, ReplicaState};
}

#[cfg(feature = "host")]
pub mod file {
    //! Options for saving an array to a file, as a snapshot, and descriptions of files.
    //!
    //! [`Builder::create`](crate::Builder::create) and [`open`](crate::Builder::open) make arrays in files;
    //! [`save`](crate::VirtualArray::save) and [`load`](crate::Builder::load) copy other arrays to files and
    //! back. See [the guide](crate::guide::files).

    #[cfg(feature = "host")]
    pub use crate::array::stored::{annotation, description};
    pub use crate::ops::saved::SaveOptions;
}

pub mod progress {
    //! Progress and cancellation of long operations.

    #[doc(inline)]
    pub use crate::base::progress::{Progress, with_progress};
}

pub mod explain {
    //! Predicted costs of operations, and reports that compare finished work with the limits of the devices.
    //!
    //! - [`explain`](crate::views::PagedView::explain) returns an [`Explained`]: the predicted costs of
    //!   [`Work`] on a view.
    //! - [`watch`](crate::VirtualArray::watch) returns a [`Watch`], which makes a [`WatchReport`] on all work
    //!   since then.
    //!
    //! Both count bytes like [`Stats`](crate::Stats) and take the speed of a device from its
    //! [`Profile`](crate::profile::Profile). See [the guide](crate::guide::watching).

    pub use crate::array::watch::{ReportedDevice, Watch, WatchReport};
    pub use crate::ops::explain::{Explained, PlannedDevice, PlannedRoute, Work};
    pub use crate::setup::profile::limits::LimitedBy;
}

#[cfg(feature = "tracing")]
pub mod trace {
    //! Recordings of the work on arrays as events in time, for Perfetto. Needs the feature `tracing`.

    #[doc(inline)]
    pub use crate::base::recording::Recording;
}

pub mod stats {
    //! Statistics of a channel (share of a device): a part of [`Stats`](crate::Stats).

    #[doc(inline)]
    pub use crate::base::stats::ChannelStats;
}

pub mod prelude {
    //! Items that most programs name: `use vmarray::prelude::*`.

    pub use crate::boundary::Bounded;
    pub use crate::ops::expr::CallInExpr;
    pub use crate::ops::join::Join;
    pub use crate::ops::launch::{KernelView, RunKernel};
    pub use crate::ops::order::{Descending, Order, OrderMut};
    pub use crate::ops::paged::{PagedView, PagedViewMut};
    pub use crate::ops::query::{Query, QueryMut, Select};
    pub use crate::ops::scan::Scan;
    pub use crate::ops::sort::Sort;
    pub use crate::ops::view::{View, ViewMut};
    pub use crate::shapes::nd::{NdSection, NdSectionMut, NdView, NdViewMut};
    pub use crate::{Element, Field, NdArray, RaggedArray, Source, VirtualArray, field};
}
