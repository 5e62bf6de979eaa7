//! Settings of import and export: byte order, length of pieces, progress reports.

use std::fmt;
use std::ops::ControlFlow;

/// Byte order of the numbers in a file.
///
/// ```
/// use vmarray_formats::ByteOrder;
/// assert_eq!(ByteOrder::NATIVE == ByteOrder::Little, cfg!(target_endian = "little"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

impl ByteOrder {
    /// The byte order of this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };
}

/// Progress of an import or export.
///
/// ```
/// use vmarray_formats::FileProgress;
/// let progress = FileProgress { done_bytes: 25, total_bytes: 100 };
/// assert_eq!(progress.share(), 0.25);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileProgress {
    /// Number of bytes of elements copied so far.
    pub done_bytes: u64,
    /// Number of bytes of all elements to copy.
    pub total_bytes: u64,
}

impl FileProgress {
    /// The completed fraction of the import or export, from 0 to 1.
    #[must_use]
    pub fn share(self) -> f64 {
        if self.total_bytes == 0 { 1.0 } else { self.done_bytes as f64 / self.total_bytes as f64 }
    }
}

/// Settings of import and export, each with a default.
///
/// | setting | default |
/// |---|---|
/// | byte order of written files, and of raw files that are read | the machine's |
/// | bytes of a piece | 4 MiB |
/// | threads, each with one piece in RAM | number of cores, from 4 to 16 |
/// | progress | no callback |
///
/// ```
/// use std::ops::ControlFlow;
/// use vmarray::prelude::*;
/// use vmarray_formats::{ByteOrder, Error, FileOptions, raw};
///
/// let path = std::env::temp_dir().join(format!("options {}.raw", std::process::id()));
/// let array = VirtualArray::<u16>::new(5000)?;
/// array.fill(.., 0x0102)?;
/// let mut seen = Vec::new();
/// let options = FileOptions::new().byte_order(ByteOrder::Big).piece_bytes(4000).threads(2);
/// raw::write(&path, &array, options.progress(|progress| {
///     seen.push(progress.done_bytes);
///     ControlFlow::Continue(())
/// }))?;
/// assert!(seen.is_sorted() && seen.ends_with(&[10_000]));
/// assert_eq!(std::fs::read(&path)?[..2], [1, 2]);
///
/// // A cancelled write leaves no file.
/// std::fs::remove_file(&path)?;
/// let ended = raw::write(&path, &array, FileOptions::new().progress(|_| ControlFlow::Break(())));
/// assert!(matches!(ended, Err(Error::Cancelled { total_bytes: 10_000, .. })) && !path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "says how a file is written or read"]
pub struct FileOptions<'a> {
    pub(crate) byte_order: ByteOrder,
    pub(crate) piece_bytes: usize,
    pub(crate) threads: usize,
    /// For work in several parts: bytes of the earlier parts, and of all parts.
    pub(crate) of_several: Option<(u64, u64)>,
    pub(crate) progress: Option<Box<dyn FnMut(FileProgress) -> ControlFlow<()> + 'a>>,
}

impl<'a> FileOptions<'a> {
    /// Creates settings with the default values.
    pub fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(4, std::num::NonZero::get);
        Self {
            byte_order: ByteOrder::NATIVE,
            piece_bytes: 4 << 20,
            threads: cores.clamp(4, 16),
            of_several: None,
            progress: None,
        }
    }

    /// Sets the byte order of written files, and of raw files that are read. Files of other formats record
    /// their byte order.
    pub fn byte_order(mut self, order: ByteOrder) -> Self {
        self.byte_order = order;
        self
    }

    /// Sets the approximate length in bytes of a piece, the part that a thread copies at a time. A piece has
    /// at least one element. Chunks of Zarr arrays are always copied whole.
    pub fn piece_bytes(mut self, bytes: usize) -> Self {
        self.piece_bytes = bytes;
        self
    }

    /// Sets the number of threads that copy pieces; 0 counts as 1.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets a callback that the calling thread calls after each piece. If the callback returns
    /// [`ControlFlow::Break`], the import or export finishes the pieces in progress, and returns
    /// [`Cancelled`](crate::Error::Cancelled).
    pub fn progress(mut self, callback: impl FnMut(FileProgress) -> ControlFlow<()> + 'a) -> Self {
        self.progress = Some(Box::new(callback));
        self
    }
}

impl Default for FileOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FileOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("byte_order", &self.byte_order)
            .field("piece_bytes", &self.piece_bytes)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}
