//! Snapshots: arrays of any devices written to a file, and read from one.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use backend_api::{Device, own_files};
use backend_host::StoreDevice;
use parking_lot::Mutex;
use vmarray_kernel::KernelType;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::stored::LINEAR;
use crate::base::element::{self, Element};
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::progress::{Progress, Steps, in_told_steps};
use crate::base::scoped_threads;
use crate::engine::pager::{PageSaver, Pager, Snapshot};
use crate::ops::view::{View, ViewMut};

/// How much one thread copies at a time.
const PIECE_BYTES: usize = 4 << 20;
/// How many threads copy: enough to keep a bus and a drive busy at the same time.
const THREADS: usize = 4;

/// How an array is [saved](VirtualArray::save_with).
///
/// ```
/// use std::ops::ControlFlow;
/// use vmarray::{file::SaveOptions, prelude::*};
/// # let path = std::env::temp_dir().join(format!("vmarray-instant-{}", std::process::id()));
/// let accounts = VirtualArray::<i64>::builder(1000).page_len(64).build()?;
/// std::thread::scope(|threads| {
///     // Amounts go from one account to another: one is without it before the other one has it.
///     threads.spawn(|| {
///         for i in 0..10_000_usize {
///             accounts.update(i % 1000, |x| x - 1).unwrap();
///             accounts.update(i * 7 % 1000, |x| x + 1).unwrap();
///         }
///     });
///     accounts.save_with(&path, SaveOptions::new().point_in_time(true), |_| ControlFlow::Continue(()))
/// })?;
/// let saved = VirtualArray::<i64>::open(&path)?;
/// // The one transfer that was under way at that instant, and no other, may be half done.
/// assert!([0, -1].contains(&saved.sum(.., Field::<i64, i64>::whole())?));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct SaveOptions {
    is_point_in_time: bool,
}

impl SaveOptions {
    /// As [`save`](VirtualArray::save) does it.
    pub const fn new() -> Self {
        Self { is_point_in_time: false }
    }

    /// Whether all elements, and the length, are as of one instant between call and return, while others
    /// write. Without it each page is of an instant of its own.
    ///
    /// At first the call waits for all who are changing elements, [`PageMut`](crate::access::PageMut) guards
    /// among them, and until that is done others wait that begin to. That takes two looks at each page's
    /// state and one barrier on all cores, and as long as the longest of these changes. From then on a thread
    /// that wants to change a page for the first time saves it before: it reads the page and writes it to the
    /// file, and goes on. A [task](crate::views::PagedView#for-tasks) waits until one of the threads that
    /// save has done so, after the piece of 4 MiB that it is at. What works on long ranges (`fill`,
    /// `transform`, kernels) does so page by page where it is ahead of those threads. Reading is not held up,
    /// and a page that is saved costs nothing any more, nor does anything when the call has returned. RAM:
    /// one bit a page more.
    ///
    /// One such call at a time: others wait for it. Within its own progress function, and in place of a wait
    /// within that of a younger array, it is [`WouldDeadlock`](ErrorKind::WouldDeadlock).
    ///
    /// A thread that holds a `PageMut` guard must not wait for another thread that writes to the array: that
    /// thread may wait for this call, and this call for the guard.
    pub const fn point_in_time(self, yes: bool) -> Self {
        Self { is_point_in_time: yes }
    }

    /// Begins a snapshot, if there is to be one.
    pub(crate) fn begin(self, pager: &Pager) -> Result<Option<Snapshot<'_>>> {
        self.is_point_in_time.then(|| pager.snapshot()).transpose()
    }
}

impl<T: Element + KernelType, D: Device> VirtualArray<T, D> {
    /// Writes all elements to a file, which [`VirtualArray::open`] and [`Builder::load`] read: a snapshot,
    /// complete and stored when this returns. A file of that name is replaced at that moment and not before;
    /// on an error it is as it was, and nothing is left behind.
    ///
    /// Others may write meanwhile: each page is then of one instant, and pages of different instants, unless
    /// [`save_with`](Self::save_with) is asked for [a single one](SaveOptions::point_in_time). A caller with
    /// `&mut` knows that nobody does.
    ///
    /// Copies pieces of 4 MiB by four threads, at the speed of the drive or the bus. It takes room on the
    /// drive for all that is not zero, beside the file that is replaced, and of RAM less than 64 MiB with
    /// pages of up to 1 MiB, and 16 bytes a page.
    ///
    /// # Errors
    /// As [`Builder::create`] and [`read`](View::read).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-saved-{}", std::process::id()));
    /// let array = VirtualArray::<u32>::builder(1000).build()?;
    /// array.fill(.., 7)?;
    /// array.save(&path)?;
    /// let other = VirtualArray::<u32>::builder(0).page_len(64).load(&path)?;
    /// assert_eq!((other.len(), other.sum(.., Field::whole())?), (1000, 7000));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path, SaveOptions::new(), |_| ControlFlow::Continue(()))
    }

    /// As [`save`](Self::save), by [options](SaveOptions); calls `progress` now and then, on any of its
    /// threads and on one at a time, and stops when that says so.
    ///
    /// # Errors
    /// As there, [`Cancelled`](ErrorKind::Cancelled), and, of a point in time, for threads that hold guards,
    /// [`WouldDeadlock`](ErrorKind::WouldDeadlock).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use std::ops::ControlFlow;
    /// use vmarray::file::SaveOptions;
    /// # let path = std::env::temp_dir().join(format!("vmarray-save-with-{}", std::process::id()));
    /// let array = VirtualArray::<u32>::builder(1000).build()?;
    /// let cancelled = array.save_with(&path, SaveOptions::new(), |_| ControlFlow::Break(()));
    /// assert_eq!(*cancelled.unwrap_err().kind(), vmarray::ErrorKind::Cancelled);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        options: SaveOptions,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<()> {
        self.save_as(path.as_ref(), LINEAR, options, progress)
    }

    /// Saves elements that make up a shape.
    pub(crate) fn save_as(
        &self,
        path: &Path,
        shape: &str,
        options: SaveOptions,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<()> {
        atomically(path, |unfinished| {
            let snapshot = options.begin(self.pager())?;
            let len = snapshot.as_ref().map_or_else(|| self.len(), Snapshot::len);
            let builder = VirtualArray::<T>::builder(len).page_len(self.page_len()).cache_bytes(0);
            let file = Arc::new(builder.create_as([unfinished], shape)?);
            let made = UnfinishedFile(Some(unfinished));
            let bytes = len * element::Layout::<T>::BYTES;
            in_told_steps(bytes, progress, |steps| save_elements(self, len, &file, snapshot, steps))?;
            file.sync()?;
            made.keep();
            Ok(())
        })
    }
}

impl<T: Element + KernelType, D: Device> Builder<T, D> {
    /// Builds an array of these settings with the elements of a [saved](VirtualArray::save) array, or of any
    /// array in a file that nobody has open for writing. The length is that of the file. To work on the file
    /// itself instead, [`open`](Self::open) it.
    ///
    /// # Errors
    /// As [`build`](Self::build), [`open_read_only`](Self::open_read_only) and [`write`](ViewMut::write).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-loaded-{}", std::process::id()));
    /// VirtualArray::<u8>::create(&path, 1000)?.fill(.., 7)?;
    /// let array = VirtualArray::<u8>::builder(0).load(&path)?;
    /// assert_eq!(array.get(999)?, 7);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn load(self, path: impl AsRef<Path>) -> Result<VirtualArray<T, D>> {
        self.load_with(path, |_| ControlFlow::Continue(()))
    }

    /// As [`load`](Self::load); calls `progress` as [`save_with`](VirtualArray::save_with) does.
    ///
    /// # Errors
    /// As there, and [`Cancelled`](ErrorKind::Cancelled).
    ///
    /// ```
    /// # use vmarray::prelude::*;
    /// use std::ops::ControlFlow;
    /// # let path = std::env::temp_dir().join(format!("vmarray-load-with-{}", std::process::id()));
    /// VirtualArray::<u8>::create(&path, 1000)?.fill(.., 7)?;
    /// let cancelled = VirtualArray::<u8>::builder(0).load_with(&path, |_| ControlFlow::Break(()));
    /// assert_eq!(*cancelled.unwrap_err().kind(), vmarray::ErrorKind::Cancelled);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn load_with(
        self,
        path: impl AsRef<Path>,
        progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
    ) -> Result<VirtualArray<T, D>> {
        let file = VirtualArray::<T>::builder(0).cache_bytes(0).open_read_only([path])?;
        let array = self.with_len(file.len()).build()?;
        copy_all(&file, &array, progress)?;
        Ok(array)
    }
}

/// Copies the first `len` elements of an array to one in files: those of a snapshot, if there is one.
pub(crate) fn save_elements<T: Element, D: Device>(
    from: &VirtualArray<T, D>,
    len: usize,
    to: &Arc<VirtualArray<T>>,
    snapshot: Option<Snapshot<'_>>,
    steps: &Steps,
) -> Result<()> {
    let page_len = from.page_len();
    let read = |at: usize, into: &mut [T]| from.read(at, into);
    let Some(snapshot) = snapshot else { return copy(len, page_len, read, &**to, steps) };
    steps.add_hold(snapshot.hold());
    snapshot.save_by(Box::new(ElementSaver { len, page_len, to: Arc::clone(to) }));
    in_pieces(len, page_len, &**to, steps, |piece, buffer| {
        let pages = (piece.start / page_len) as u64..piece.end.div_ceil(page_len) as u64;
        for taken in snapshot.take(pages)? {
            let Range { start, end } = taken.pages();
            let (start, end) = (start as usize * page_len, end as usize * page_len);
            let part = &mut buffer[..end.min(len) - start];
            read(start, part)?;
            drop(taken);
            to.write(start, part)?;
        }
        Ok(())
    })?;
    snapshot.finish()
}

/// Saves pages that threads want to change.
struct ElementSaver<T: Element> {
    len: usize,
    page_len: usize,
    to: Arc<VirtualArray<T>>,
}

impl<T: Element> PageSaver for ElementSaver<T> {
    fn save(&self, pager: &Pager, page: u64) -> Result<()> {
        let start = (page as usize).saturating_mul(self.page_len);
        // None of a page with memory alone.
        let mut elements = zeroed_vec::<T>(self.page_len.min(self.len.saturating_sub(start)))?;
        if !elements.is_empty() {
            pager.read_uncached(page, 0, bytemuck::cast_slice_mut(&mut elements))?;
            self.to.write(start, &elements)?;
        }
        Ok(())
    }
}

/// Copies all elements to an array of the same length.
pub(crate) fn copy_all<T: Element, D: Device, E: Device>(
    from: &VirtualArray<T, D>,
    to: &VirtualArray<T, E>,
    progress: impl FnMut(Progress) -> ControlFlow<()> + Send,
) -> Result<()> {
    in_told_steps(from.len() * element::Layout::<T>::BYTES, progress, |steps| {
        copy(from.len(), from.page_len(), |at, into| from.read(at, into), to, steps)
    })
}

/// Copies the first `len` elements of what `read` reads to an array, in pieces of whole pages of both.
pub(crate) fn copy<T: Element, D: Device>(
    len: usize,
    page_len: usize,
    read: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
    to: &VirtualArray<T, D>,
    steps: &Steps,
) -> Result<()> {
    in_pieces(len, page_len, to, steps, |piece, buffer| {
        let part = &mut buffer[..piece.len()];
        read(piece.start, part)?;
        to.write(piece.start, part)
    })
}

/// Has threads copy pieces of whole pages of both, each with a buffer of its own.
fn in_pieces<T: Element, D: Device>(
    len: usize,
    page_len: usize,
    to: &VirtualArray<T, D>,
    steps: &Steps,
    copy: impl Fn(Range<usize>, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    let element_bytes = element::Layout::<T>::BYTES;
    let unit = page_len.max(to.page_len());
    let piece = (PIECE_BYTES / element_bytes / unit).max(1).saturating_mul(unit);
    let (next, stop, outcome) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Ok(())));
    scoped_threads::together(THREADS.min(len.div_ceil(piece)), || {
        let run = || -> Result<()> {
            let mut buffer = zeroed_vec(piece.min(len))?;
            while !stop.load(Ordering::Relaxed) {
                let start = next.fetch_add(1, Ordering::Relaxed).saturating_mul(piece as u64);
                let Some(start) = usize::try_from(start).ok().filter(|start| *start < len) else { break };
                let count = piece.min(len - start);
                copy(start..start + count, &mut buffer)?;
                steps.tell((count * element_bytes) as u64)?;
            }
            Ok(())
        };
        if let Err(error) = run() {
            stop.store(true, Ordering::Relaxed);
            let outcome = &mut *outcome.lock();
            if outcome.is_ok() {
                *outcome = Err(error);
            }
        }
    });
    outcome.into_inner()
}

/// Has `write` make a file, complete and stored, and gives it the name of what was there before, if anything.
pub(crate) fn atomically(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Refuse before the work begins.
    drop(StoreDevice::lock_path(path)?);
    // In the same folder, so that it can take the other's place.
    let unfinished = folder.join(own_files::random_name());
    write(&unfinished).map_err(|error| naming(error, &unfinished, path))?;
    let made = UnfinishedFile(Some(&unfinished));
    // A program that has opened the array during the work would keep a file without a name.
    let _lock = StoreDevice::lock_path(path)?;
    replace(&unfinished, path, folder)?;
    made.keep();
    Ok(())
}

/// Replaces the path of the unfinished file in an error by the path that the caller has given.
fn naming(error: crate::Error, unfinished: &Path, path: &Path) -> crate::Error {
    match error.kind() {
        crate::ErrorKind::Device(of_device) => {
            let own = unfinished.display().to_string();
            let detail = of_device.detail().replace(&own, &path.display().to_string());
            of_device.clone().with_detail(detail).into()
        }
        _ => error,
    }
}

/// A file that is removed on drop unless `keep` is called. Callers drop it before the array in the file, so
/// that the array does not warn of unsaved pages.
pub(crate) struct UnfinishedFile<'a>(pub(crate) Option<&'a Path>);

impl UnfinishedFile<'_> {
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for UnfinishedFile<'_> {
    fn drop(&mut self) {
        // The first error is the one to tell.
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Gives a stored file the name of another one, for good.
fn replace(unfinished: &Path, path: &Path, folder: &Path) -> Result<()> {
    let failed = |cause: std::io::Error| {
        let detail = format!("{}: {cause}", path.display());
        crate::Error::from(
            backend_api::Error::new(backend_api::ErrorKind::System, "save").with_detail(detail),
        )
    };
    std::fs::rename(unfinished, path).map_err(failed)?;
    own_files::sync_folder(folder).map_err(failed)
}

#[cfg(test)]
#[forbid(unsafe_code)]
mod tests;
