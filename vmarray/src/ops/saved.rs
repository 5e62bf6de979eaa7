//! Snapshots: writes an array's elements to a file, and reads them into an array on any devices.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use backend_api::Device;
use parking_lot::Mutex;
use vmarray_kernel::KernelType;
use vmarray_store::StoreDevice;
use vmarray_support::private_dir;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::stored::LINEAR;
use crate::base::element::{self, Element};
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::progress::{Progress, Steps, in_reported_steps};
use crate::base::scoped_threads;
use crate::engine::pager::{PageSaver, Pager, Snapshot};
use crate::ops::view::{View, ViewMut};

/// The size in bytes of a piece that one thread copies at a time.
const PIECE_BYTES: usize = 4 << 20;
/// The number of copying threads. They suffice to use a bus and a drive at the same time.
const THREADS: usize = 4;

/// Options of [`save_with`](VirtualArray::save_with), which writes an array to a file.
///
/// ```
/// use std::ops::ControlFlow;
/// use vmarray::{file::SaveOptions, prelude::*};
/// # let path = std::env::temp_dir().join(format!("vmarray-instant-{}", std::process::id()));
/// let accounts = VirtualArray::<i64>::builder(1000).page_len(64).build()?;
/// std::thread::scope(|threads| {
///     // A transfer takes an amount from one account, and then adds it to another.
///     threads.spawn(|| {
///         for i in 0..10_000_usize {
///             accounts.update(i % 1000, |x| x - 1).unwrap();
///             accounts.update(i * 7 % 1000, |x| x + 1).unwrap();
///         }
///     });
///     accounts.save_with(&path, SaveOptions::new().point_in_time(true), |_| ControlFlow::Continue(()))
/// })?;
/// let saved = VirtualArray::<i64>::open(&path)?;
/// // At most the one transfer in progress at that instant is half done.
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
    /// Returns the default options, which [`save`](VirtualArray::save) uses.
    pub const fn new() -> Self {
        Self { is_point_in_time: false }
    }

    /// Saves all elements, and the length, as they are at one instant during the call, although other threads
    /// write. Without this option, the call saves different pages at different instants.
    ///
    /// - First the call waits until no thread is changing elements, or has a
    ///   [`PageMut`](crate::access::PageMut) guard. New changes wait meanwhile. The call checks the state of
    ///   each page twice, and needs one barrier on all cores.
    /// - Afterwards a thread that is about to change an unsaved page first writes the old contents to the
    ///   file. A [task](crate::views::PagedView#for-tasks) waits instead until a saving thread has saved the
    ///   page, after at most one piece of 4 MiB. Operations on long ranges (`fill`, `transform`, kernels)
    ///   save page by page, ahead of the saving threads.
    /// - Reads never wait. Changes of saved pages have no extra cost. The call takes one more bit of RAM for
    ///   each page.
    ///
    /// Only one call with this option runs at a time for an array: a second call waits for the first. If the
    /// second call comes from the progress function of the first, it returns
    /// [`WouldDeadlock`](ErrorKind::WouldDeadlock). So does a call from there for an array that was built
    /// earlier, but only if the call would wait.
    ///
    /// A thread that has a `PageMut` guard must not wait for another thread that writes to the array. The
    /// writing thread may wait for this call, and this call waits for the guard.
    pub const fn point_in_time(self, yes: bool) -> Self {
        Self { is_point_in_time: yes }
    }

    /// Begins a snapshot if `point_in_time` is set.
    pub(crate) fn begin(self, pager: &Pager) -> Result<Option<Snapshot<'_>>> {
        self.is_point_in_time.then(|| pager.snapshot()).transpose()
    }
}

impl<T: Element + KernelType, D: Device> VirtualArray<T, D> {
    /// Writes all elements to a file for [`VirtualArray::open`] and [`Builder::load`]. The file is complete
    /// and durable when the call returns. At its end the call atomically replaces an existing file. After an
    /// error the existing file is unchanged, and there is no new file.
    ///
    /// Other threads may write to the array during the call. The file then has the contents of each page at
    /// one instant, but different pages at different instants. The option
    /// [`point_in_time`](SaveOptions::point_in_time) of [`save_with`](Self::save_with) saves all pages at one
    /// instant.
    ///
    /// Four threads copy pieces of 4 MiB, at the speed of the drive or the bus. The file takes space for all
    /// nonzero pages, in addition to the replaced file. With pages of up to 1 MiB, the call needs less than
    /// 64 MiB of RAM, plus 16 bytes for each page.
    ///
    /// # Errors
    /// The errors of [`Builder::create`] and [`read`](View::read).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-saved-{}", std::process::id()));
    /// let array = VirtualArray::<u32>::builder(1000).build()?;
    /// array.fill(.., 7)?;
    /// array.save(&path)?;
    /// let other = VirtualArray::<u32>::load(&path)?;
    /// assert_eq!((other.len(), other.sum(.., Field::whole())?), (1000, 7000));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path, SaveOptions::new(), |_| ControlFlow::Continue(()))
    }

    /// Saves the array like [`save`](Self::save), with [options](SaveOptions). The saving threads call
    /// `progress` at intervals, one call at a time. If `progress` returns [`Break`](ControlFlow::Break), the
    /// call stops with an error.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save), and [`Cancelled`](ErrorKind::Cancelled). With a point in time,
    /// [`WouldDeadlock`](ErrorKind::WouldDeadlock) for threads that have page guards.
    ///
    /// ```
    /// use vmarray::prelude::*;
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

    /// Saves the elements, and describes them in the file as an array of a shape.
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
            let bytes = len * element::ElementLayout::<T>::BYTES;
            in_reported_steps(bytes, progress, |steps| save_elements(self, len, &file, snapshot, steps))?;
            file.sync()?;
            made.keep();
            Ok(())
        })
    }
}

impl<T: Element> VirtualArray<T> {
    /// Loads the elements of a [saved](Self::save) array into a new array: [`Builder::load`] with the default
    /// settings. To work on the file itself, [`open`](Self::open) it.
    ///
    /// # Errors
    /// The errors of [`Builder::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self>
    where
        T: KernelType,
    {
        Self::builder(0).load(path)
    }
}

impl<T: Element + KernelType, D: Device> Builder<T, D> {
    /// Builds an array with these settings, and copies the elements of an array in a file to it: a
    /// [saved](VirtualArray::save) array, or any array whose file no program has open for writing. The new
    /// array has the length of the array in the file. To work on the file itself, [`open`](Self::open) it.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build), [`open_read_only`](Self::open_read_only) and
    /// [`write`](ViewMut::write).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// # let path = std::env::temp_dir().join(format!("vmarray-loaded-{}", std::process::id()));
    /// VirtualArray::<u8>::create(&path, 1000)?.fill(.., 7)?;
    /// let array = VirtualArray::<u8>::builder(0).page_len(64).load(&path)?;
    /// assert_eq!((array.get(999)?, array.page_len()), (7, 64));
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn load(self, path: impl AsRef<Path>) -> Result<VirtualArray<T, D>> {
        self.load_with(path, |_| ControlFlow::Continue(()))
    }

    /// Loads an array like [`load`](Self::load), and calls `progress` like
    /// [`save_with`](VirtualArray::save_with).
    ///
    /// # Errors
    /// The errors of [`load`](Self::load), and [`Cancelled`](ErrorKind::Cancelled).
    ///
    /// ```
    /// use vmarray::prelude::*;
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

/// Copies the first `len` elements of an array, or of its snapshot if there is one, to an array in a file.
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

/// Saves the old contents of pages before threads change them.
struct ElementSaver<T: Element> {
    len: usize,
    page_len: usize,
    to: Arc<VirtualArray<T>>,
}

impl<T: Element> PageSaver for ElementSaver<T> {
    fn save(&self, pager: &Pager, page: u64) -> Result<()> {
        let start = (page as usize).saturating_mul(self.page_len);
        // A page behind the array's last element has an empty vector.
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
    in_reported_steps(from.len() * element::ElementLayout::<T>::BYTES, progress, |steps| {
        copy(from.len(), from.page_len(), |at, into| from.read(at, into), to, steps)
    })
}

/// Copies the first `len` elements from `read` to an array. A piece has whole pages of source and target.
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

/// Copies pieces of whole pages on several threads, each with its own buffer.
fn in_pieces<T: Element, D: Device>(
    len: usize,
    page_len: usize,
    to: &VirtualArray<T, D>,
    steps: &Steps,
    copy: impl Fn(Range<usize>, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    let element_bytes = element::ElementLayout::<T>::BYTES;
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
                steps.report((count * element_bytes) as u64)?;
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

/// Calls `write` to create a durable file, and then atomically replaces the file at `path`, if there is one.
pub(crate) fn atomically(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Fail before the work begins if another program has the file open for writing.
    drop(StoreDevice::lock_path(path)?);
    // Write to the same folder, because a rename cannot move the file to another file system.
    let unfinished = folder.join(private_dir::random_name());
    write(&unfinished).map_err(|error| naming(error, &unfinished, path))?;
    let made = UnfinishedFile(Some(&unfinished));
    // Lock the file again before replacing it. A program that opened it meanwhile would write to a deleted
    // file.
    let _lock = StoreDevice::lock_path(path)?;
    replace(&unfinished, path, folder)?;
    made.keep();
    Ok(())
}

/// Replaces the temporary file's path in an error by the caller's path.
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

/// A temporary file that a drop removes unless `keep` was called. Drop it before the array in the file,
/// because the array would otherwise warn of unsaved pages.
pub(crate) struct UnfinishedFile<'a>(pub(crate) Option<&'a Path>);

impl UnfinishedFile<'_> {
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for UnfinishedFile<'_> {
    fn drop(&mut self) {
        // Ignore errors here, because the caller reports the first error.
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Renames a durable file, and flushes the folder so that the new name is durable.
fn replace(unfinished: &Path, path: &Path, folder: &Path) -> Result<()> {
    let failed = |cause: std::io::Error| {
        let detail = format!("{}: {cause}", path.display());
        crate::Error::from(
            backend_api::Error::new(backend_api::ErrorKind::System, "save").with_detail(detail),
        )
    };
    std::fs::rename(unfinished, path).map_err(failed)?;
    private_dir::sync_folder(folder).map_err(failed)
}

#[cfg(test)]
#[forbid(unsafe_code)]
mod tests;
