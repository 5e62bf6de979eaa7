//! The kernels of a table: selection by formats, compilation at first use, and launches.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend_api::{Device, StreamId, StreamKernel, StreamLayout, StreamView};
use parking_lot::RwLock;

use super::buffers::RowView;
use super::formats::RowFormat;
use super::kernels::{
    BLOCK, clear, count_ids, gather_cached, gather_elements, gather_rows, halve, list_ids, place_ids,
    scatter_rows, start_buckets, sum_rows,
};
use super::memory::no_streams;
use crate::base::error::Result;
use crate::ops::executor::LibraryKernel;

/// The operation of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RowKernel {
    /// Copies or converts chunks of words: the words of a chunk in the table and in the result.
    Gather([u8; 2]),
    /// The same, through a cache.
    Cached([u8; 2]),
    Halve,
    ListIds,
    /// Copies or converts elements: their bytes in the table and in the result.
    GatherElements([u8; 2]),
    /// Writes words of this number of bytes.
    Scatter(u8),
    /// Adds up rows, in chunks of words.
    Sum([u8; 2]),
    CountIds,
    StartBuckets,
    PlaceIds,
    Clear,
}

/// Lowers a kernel for the words of a chunk in the table and in the result.
macro_rules! of_words {
    ($kernel:ident, $words:expr, $([$from:literal $to:literal])*) => {
        match $words { $([$from, $to] => LibraryKernel::of::<$kernel<$from, $to>>(),)* _ => return None }
    };
}

impl RowKernel {
    pub fn lowered(self) -> Option<LibraryKernel> {
        Some(match self {
            Self::Gather(words) => of_words!(gather_rows, words, [1 1] [2 2] [4 4] [1 2] [1 4] [2 4] [4 2]),
            Self::Cached(words) => of_words!(gather_cached, words, [1 1] [2 2] [4 4] [1 2] [1 4] [2 4] [4 2]),
            Self::Sum(words) => of_words!(sum_rows, words, [1 2] [1 4] [2 2] [2 4] [4 2] [4 4]),
            Self::ListIds => LibraryKernel::of::<list_ids>(),
            Self::Halve => LibraryKernel::of::<halve>(),
            Self::GatherElements([1, 1]) => LibraryKernel::of::<gather_elements<u8, u8>>(),
            Self::GatherElements([2, 2]) => LibraryKernel::of::<gather_elements<u16, u16>>(),
            Self::GatherElements([4, 4]) => LibraryKernel::of::<gather_elements<u32, u32>>(),
            Self::GatherElements([1, 2]) => LibraryKernel::of::<gather_elements<u8, u16>>(),
            Self::GatherElements([1, 4]) => LibraryKernel::of::<gather_elements<u8, u32>>(),
            Self::GatherElements([2, 4]) => LibraryKernel::of::<gather_elements<u16, u32>>(),
            Self::GatherElements([4, 2]) => LibraryKernel::of::<gather_elements<u32, u16>>(),
            Self::Scatter(1) => LibraryKernel::of::<scatter_rows<u8>>(),
            Self::Scatter(2) => LibraryKernel::of::<scatter_rows<u16>>(),
            Self::Scatter(4) => LibraryKernel::of::<scatter_rows<u32>>(),
            Self::Scatter(8) => LibraryKernel::of::<scatter_rows<u64>>(),
            Self::CountIds => LibraryKernel::of::<count_ids>(),
            Self::StartBuckets => LibraryKernel::of::<start_buckets>(),
            Self::PlaceIds => LibraryKernel::of::<place_ids>(),
            Self::Clear => LibraryKernel::of::<clear>(),
            Self::GatherElements(_) | Self::Scatter(_) => return None,
        })
    }
}

/// A kernel with its layouts: the key of a compiled kernel.
type Key = (RowKernel, usize, u64);

#[derive(Debug)]
struct Loaded {
    library: LibraryKernel,
    compiled: Box<dyn StreamKernel>,
}

/// The compiled kernels of a table.
#[derive(Debug)]
pub(super) struct RowKernels {
    device: Arc<dyn Device>,
    loaded: RwLock<BTreeMap<Key, Arc<Loaded>>>,
}

/// Most views of a kernel.
const VIEWS_MAX: usize = 11;

/// One launch.
pub(super) struct RowLaunch<'a> {
    pub kernel: RowKernel,
    /// The number of groups.
    pub groups: u64,
    /// At most [`VIEWS_MAX`].
    pub views: &'a [RowView<'a>],
    /// The scalars, in the order of the kernel's declaration.
    pub values: &'a [u64],
}

impl RowKernels {
    pub fn new(device: &Arc<dyn Device>) -> Self {
        Self { device: Arc::clone(device), loaded: RwLock::default() }
    }

    fn get(&self, kernel: RowKernel, views: &[RowView<'_>]) -> Result<Arc<Loaded>> {
        // All other properties of the layouts follow from the kernel and the table.
        let ranges = views.iter().map(|(layout, _)| layout.ranges).max().unwrap_or(1);
        let key = (kernel, ranges, views.iter().map(|(layout, _)| layout.page_len).max().unwrap_or(1));
        if let Some(found) = self.loaded.read().get(&key) {
            return Ok(Arc::clone(found));
        }
        let streams = self.device.stream_launcher().ok_or_else(|| no_streams(&self.device))?;
        let library = kernel.lowered().ok_or_else(|| {
            backend_api::Error::new(backend_api::ErrorKind::Unsupported, "rows")
                .with_detail(format!("there is no kernel {kernel:?} for these formats"))
        })?;
        let layouts: Vec<StreamLayout> = views.iter().map(|(layout, _)| *layout).collect();
        let compiled = streams.load(library.kernel(), &layouts)?;
        let loaded = Arc::new(Loaded { library, compiled });
        Ok(Arc::clone(self.loaded.write().entry(key).or_insert(loaded)))
    }
}

/// One call of the program: the right to enqueue work on its stream.
#[derive(Clone, Copy)]
pub(super) struct StreamCall<'a> {
    kernels: &'a RowKernels,
    pub stream: StreamId,
}

impl<'a> StreamCall<'a> {
    /// # Safety
    /// `stream` is a live stream of the device, or 0. Launches and host functions of this call name only
    /// memory of the table, scratch memory of this stream, and memory that the program has passed to the
    /// call. Until the work is done, also as part of a graph, all of this memory and the kernels live, and no
    /// other code accesses what the work writes, or writes what it reads, except by atomics. Kernels stay
    /// inside of the views.
    pub unsafe fn new(kernels: &'a RowKernels, stream: StreamId) -> Self {
        Self { kernels, stream }
    }

    /// Enqueues a launch.
    pub fn launch(&self, launch: &RowLaunch<'_>) -> Result<()> {
        let loaded = self.kernels.get(launch.kernel, launch.views)?;
        let items = launch.groups * BLOCK as u64;
        let mut views = [StreamView { count: 0, starts: &[] }; VIEWS_MAX];
        views.iter_mut().zip(launch.views).for_each(|(to, (_, view))| *to = *view);
        let views = &views[..launch.views.len()];
        let params = loaded.library.params_of(launch.values, |view| views[view].count, items);
        // SAFETY: guaranteed by the maker of the call. The kernels compare ids with the number of rows.
        Ok(unsafe { loaded.compiled.launch(self.stream, items, views, &params) }?)
    }

    /// Enqueues a function of the host.
    pub fn call_host(&self, function: Box<dyn FnOnce() + Send>) -> Result<()> {
        let device = &self.kernels.device;
        let launcher = device.stream_launcher().ok_or_else(|| no_streams(device))?;
        // SAFETY: guaranteed by the maker of the call.
        Ok(unsafe { launcher.call_host(self.stream, function) }?)
    }
}

/// The division of rows into chunks or elements, for a table and a result with these formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowShape {
    pub kernel: RowKernel,
    /// Bytes of a chunk in the table and in the result.
    pub strides: [u64; 2],
    /// Number of chunks of a row.
    pub chunks: u64,
    /// The codes of the formats.
    pub formats: [u64; 2],
}

impl RowShape {
    /// Returns the widest shape of a gather for rows of `len` elements, whose table and result have these
    /// alignments; `None` if the table cannot be converted to the result.
    pub fn of_gather(
        len: u64,
        [from, to]: [RowFormat; 2],
        is_scaled: bool,
        aligns: [u64; 2],
    ) -> Option<Self> {
        let row_bytes = len * from.bytes() as u64;
        let is_raw = from == to && !is_scaled;
        if is_raw {
            let word = aligns[0].min(aligns[1]).min(1 << (row_bytes | 16).trailing_zeros());
            let formats = [RowFormat::Raw(1).code().into(); 2];
            let (kernel, chunk) = match word {
                4.. => (RowKernel::Gather([(word / 4) as u8; 2]), word),
                _ => (RowKernel::GatherElements([word as u8; 2]), word),
            };
            return Some(Self { kernel, strides: [chunk; 2], chunks: row_bytes / chunk, formats });
        }
        if !to.is_result() || matches!(from, RowFormat::Raw(_)) {
            return None;
        }
        let (formats, bytes) =
            ([from, to].map(|of| of.code().into()), [from, to].map(|of| of.bytes() as u64));
        let chunk = bytes.map(|bytes| 4 * bytes);
        let is_wide = len.is_multiple_of(4) && (0..2).all(|side| aligns[side] >= chunk[side]);
        Some(match is_wide {
            true => Self {
                kernel: RowKernel::Gather(bytes.map(|bytes| bytes as u8)),
                strides: chunk,
                chunks: len / 4,
                formats,
            },
            false => Self {
                kernel: RowKernel::GatherElements(bytes.map(|bytes| bytes as u8)),
                strides: bytes,
                chunks: len,
                formats,
            },
        })
    }

    /// Returns log2 of the number of work-items that share a row.
    pub fn shift(&self) -> u64 {
        self.chunks.next_power_of_two().trailing_zeros().min(5).into()
    }

    /// Returns the number of groups for `count` rows.
    pub fn groups(&self, count: u64) -> u64 {
        (count << self.shift()).div_ceil(BLOCK as u64)
    }
}
