//! Sessions: kernel launches in order, over arrays that a session borrows until all launches have ended.

mod bindings;
mod future;
mod submit;
mod wait;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{Commit, Device, DeviceBuffer, HostBuffer, HostMemory, Queue, Ticket, Transfer};
use vmarray_kernel::ElementMemory;
#[cfg(doc)]
use vmarray_kernel::{Anywhere, Own, Shared, Window};

use super::broadcast::fetch_view;
use super::kernel::PreparedKernel;
use super::options::LaunchOptions;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::engine::pager::Pager;
use crate::ops::executor::{STAGED_BYTES, unsettled};
use crate::ops::view::{self as views, INTERNAL, Shape};
pub(crate) use bindings::Binding;
use bindings::BindingNumber;
pub use bindings::{Bindable, SessionArgument, SessionArguments, SessionArray, SessionCopy, SessionWindow};
pub use future::RunAsync;
pub use wait::SessionWait;

/// The most launches of a session in flight on a device.
const LAUNCHES: usize = 1024;

/// A sequence of kernel launches, in which each launch sees the writes of earlier launches. The session
/// borrows ([holds](Self::hold)) arrays until its end. Meanwhile other threads cannot use the arrays, so no
/// launch waits for pages. A launch costs one submission to each device, or to each channel (share of a
/// device) if there are several devices.
///
/// ```
/// use vmarray::kernel::{Anywhere, At, Own, Session};
/// use vmarray::prelude::*;
///
/// /// Rule 90: a cell lives if one of its neighbours does, but not both.
/// #[vmarray::kernel]
/// fn step(at: At<1>, old: &Anywhere<u8>, new: &mut Own<u8>) {
///     let (i, last) = (at.index(), old.len() - 1);
///     let left = if i > 0 { old[i - 1] } else { 0 };
///     let right = if i < last { old[i + 1] } else { 0 };
///     new.set(left ^ right);
/// }
/// let (mut one, mut other) = (VirtualArray::<u8>::new(65)?, VirtualArray::<u8>::new(65)?);
/// one.set(32, 1)?;
///
/// let mut session = Session::new();
/// let (a, b) = (session.hold(&mut one)?, session.hold(&mut other)?);
/// for _ in 0..8 {
///     step::run_in(&mut session, (a, b))?;
///     step::run_in(&mut session, (b, a))?;
/// }
/// session.finish()?;
/// // After 16 steps two cells are alive.
/// assert_eq!((one.get(16)?, one.get(48)?, one.count_where(.., Field::whole().eq(1))?), (1, 1, 2));
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// [`copy`](Self::copy) copies elements without `&mut` access to the devices, once for the whole session.
///
/// # Several devices
///
/// Arrays can be on several devices. Then all arrays with an element for each item ([`Own`]) must have the
/// same devices, channels and page length, and a launch must use them from the same index on. Items read
/// elements of [`Anywhere`] and [`Window`] in place, over links between the devices. The devices must
/// therefore [reach](crate::device::Device::reaches) each other's memory in both directions. Host RAM and
/// NVIDIA GPUs with links do; on OpenCL GPUs the launch returns an error. If a launch reads or writes
/// elements that another device writes, the devices wait for each other without the host. A launch with
/// elements that any item changes ([`Shared`]) must run on a single device, which stores these elements.
///
/// # Other limits
///
/// Sessions do not support the following launches; use [`run`](super::RunKernel::run) for them:
///
/// - kernels that append elements, and kernels whose groups are tiles of a result;
/// - windows with a boundary mode that the program implements;
/// - arguments whose elements are stored in another order than the result's.
///
/// Elements that any item reads must be stored row by row, on at most 8 channels.
///
/// The drop of a session waits for its launches. The program must not leak a session by [`std::mem::forget`]:
/// the launches would continue without a wait, and the elements of its arrays would be unspecified until they
/// are done.
#[must_use = "a dropped session reports no errors; call `finish`"]
pub struct Session<'a> {
    number: u64,
    stores: Vec<Stored<'a>>,
    lanes: Vec<SessionLane>,
    /// Pairs of a kernel and a device that has accepted the kernel before.
    known: Vec<(Arc<PreparedKernel>, Arc<dyn Device>)>,
    failure: Option<Error>,
    /// Arrays that other threads may use during the session, with their number of failed write-backs before.
    shared: Vec<(&'a Pager, u64)>,
}

/// The elements of one array that the session holds or has copied.
struct Stored<'a> {
    len: usize,
    stride: usize,
    place: StoredPlace<'a>,
    /// For each device: the ticket of its newest launch that writes elements of this array.
    written: Vec<(usize, Ticket)>,
    /// For each device: the ticket of its newest launch that reads elements by index or position.
    read: Vec<(usize, Ticket)>,
}

enum StoredPlace<'a> {
    /// The elements are in the home slots of a held array.
    Home(&'a Pager),
    /// The elements are copied to these devices.
    Copies(Vec<(Arc<dyn Device>, DeviceBuffer<dyn Device>)>),
}

/// A device, the session's queue on the device, and the launches in flight there.
struct SessionLane {
    queue: Queue<dyn Device>,
    reports: HostBuffer<dyn Device>,
    launched: VecDeque<Launched>,
    /// The number of submitted launches.
    count: usize,
    /// For each other device: the ticket in its queue after which this queue runs.
    after: Vec<u64>,
    /// For each other device: true if both devices can access each other's memory; `None` if unknown.
    reached: Vec<Option<bool>>,
}

/// A launch in flight over a range of work-items.
struct Launched {
    kernel: Arc<PreparedKernel>,
    options: LaunchOptions,
    geometry: Geometry,
    ticket: Ticket,
    report: usize,
    /// The storage indices of the work-items' elements.
    range: Range<usize>,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("held", &self.stores.len()).finish_non_exhaustive()
    }
}

impl Default for Session<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Session<'a> {
    /// Returns an empty session.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            number,
            stores: Vec::new(),
            lanes: Vec::new(),
            known: Vec::new(),
            failure: None,
            shared: Vec::new(),
        }
    }

    /// Borrows an array until the session ends, so that launches can read and write all its elements. The
    /// call first writes dirty pages back to the devices. After the session the array's cache is empty. If a
    /// device is new to the session, the call copies all earlier [copies](Self::copy) to this device.
    ///
    /// An [`NdArray`](crate::NdArray) keeps all its axes in the session:
    ///
    /// ```
    /// use vmarray::boundary::{Circular, Clamp};
    /// use vmarray::kernel::{At, Own, Session, Window};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn moved(at: At<2>, from: &Window<u32, 2>, to: &mut Own<u32>) {
    ///     to.set(from[at.plus([-1, 1])]);
    /// }
    /// let (mut one, mut other) = (NdArray::<u32, 2>::new([3, 4])?, NdArray::<u32, 2>::new([3, 4])?);
    /// one.set([0, 3], 7)?;
    /// let mut session = Session::new();
    /// let (a, b) = (session.hold(&mut one)?, session.hold(&mut other)?);
    /// moved::run_in(&mut session, (a.bounded((Clamp, Circular)), b))?;
    /// moved::run_in(&mut session, (b.bounded((Clamp, Circular)), a))?;
    /// // Only a box.
    /// let (part, into) = (a.section([1, 1]..)?, b.section([1, 1]..)?);
    /// moved::run_in(&mut session, (part.bounded(Clamp), into))?;
    /// session.finish()?;
    /// // Row 0 is not in the box.
    /// assert_eq!((one.get([2, 1])?, other.to_vec([0, 2]..[2, 3])?), (7, vec![7, 0]));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of devices.
    pub fn hold<A: Bindable>(&mut self, array: &'a mut A) -> Result<SessionArray<A::Element, A::Shape>> {
        let array: &'a A = array;
        let (pager, len, shape) = array.homes(INTERNAL);
        let of = self.hold_pages(pager, len, size_of::<A::Element>())?;
        Ok(SessionArray { of, shape, marker: PhantomData })
    }

    /// Holds all elements of an array that no other thread uses.
    fn hold_pages(&mut self, pager: &'a Pager, len: usize, stride: usize) -> Result<BindingNumber> {
        // Settle (write back and evict) only pages with elements, not the pages reserved for growth behind
        // them.
        let pages = 0..(len.div_ceil(pager.page_bytes() / stride) as u64).min(pager.table().len());
        pager.settle_alone(pages)?;
        for channel in pager.channels() {
            self.lane(channel.device())?;
        }
        Ok(self.store(len, stride, StoredPlace::Home(pager)))
    }

    /// Copies the present elements of a view to the devices of all arrays that the session has
    /// [borrowed](Self::hold). Launches can read the copy. A box of several dimensions is stored row by row.
    ///
    /// ```
    /// use vmarray::kernel::{Own, Session};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn add(by: &Own<u32>, x: &mut Own<u32>) {
    ///     x.set(x.get() + by.get());
    /// }
    /// let (mut array, by) = (VirtualArray::<u32>::new(2)?, VirtualArray::<u32>::new(2)?);
    /// by.fill(.., 3)?;
    /// let mut session = Session::new();
    /// let x = session.hold(&mut array)?;
    /// let threes = session.copy(&by)?;
    /// by.fill(.., 4)?; // too late
    /// add::run_in(&mut session, (threes, x))?;
    /// session.finish()?;
    /// assert_eq!(array.to_vec(..)?, [3, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of devices; [`KernelRefused`](ErrorKind::KernelRefused) if the session holds no array yet.
    pub fn copy<'v, T: ElementMemory, V: views::View<'v, Element = T>>(
        &mut self,
        view: V,
    ) -> Result<SessionCopy<T, <V::Shape as Shape>::Copied>> {
        if self.lanes.is_empty() {
            return Err(refused(
                "a copy in a session",
                "the session holds no array yet: before the copy, call \
                    `session.hold` for the arrays that kernels change",
            ));
        }
        let (store, shape) = view.parts();
        let (extents, stride, mut copies) = (shape.axes(), size_of::<T>(), Vec::new());
        let (rows, row_len) = (extents[0], extents[1..].iter().product::<usize>());
        let (len, row_bytes) = (rows * row_len, (row_len * stride).max(1));
        let at_once = (STAGED_BYTES / row_bytes).clamp(1, rows.max(1));
        for lane in &self.lanes {
            copies.push(Copying::new(lane.queue.device(), len * stride, at_once * row_bytes)?);
        }
        let all = V::Shape::index_of(&vec![0; extents.len()])..V::Shape::index_of(&extents);
        let mut is_past_host = len > 0;
        for (lane, copy) in self.lanes.iter().zip(&copies) {
            is_past_host = is_past_host && fetch_view(view, &all, lane.queue.device(), copy.memory.at(0))?;
        }
        for first in (0..if is_past_host { 0 } else { rows }).step_by(at_once) {
            let end = rows.min(first + at_once);
            let mut at = vec![0; extents.len()];
            at[0] = first;
            let start = V::Shape::index_of(&at);
            at.copy_from_slice(&extents);
            at[0] = end;
            let mut values = zeroed_vec::<T>((end - first) * row_len)?;
            shape.copy_out(store, &(start..V::Shape::index_of(&at)), &mut values, INTERNAL)?;
            for (lane, copy) in self.lanes.iter().zip(&copies) {
                copy.upload(&lane.queue, first * row_bytes, bytemuck::cast_slice(&values))?;
            }
        }
        let lanes = self.lanes.iter().map(|lane| Arc::clone(lane.queue.device()));
        let copies = lanes.zip(copies.into_iter().map(|copy| copy.memory)).collect();
        let of = self.store(len, stride, StoredPlace::Copies(copies));
        Ok(SessionCopy { of, shape: shape.copied(), marker: PhantomData })
    }

    /// Waits until all launches submitted so far have ended. Further launches may follow.
    ///
    /// ```
    /// use vmarray::kernel::{Own, Session};
    /// use vmarray::{ErrorKind, prelude::*};
    ///
    /// #[vmarray::kernel]
    /// fn looked_up(table: &[u32; 3], x: &mut Own<u32>) {
    ///     x.set(table[x.get() as usize]);
    /// }
    /// let mut array = VirtualArray::<u32>::new(2)?;
    /// let mut session = Session::new();
    /// let x = session.hold(&mut array)?;
    /// looked_up::run_in(&mut session, (&[7, 8, 9], x))?;
    /// looked_up::run_in(&mut session, (&[7, 8, 9], x))?;
    /// let error = session.wait().unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::KernelOutside { index: 7, items: 2, .. }), "{error}");
    /// session.finish()?; // `wait` has returned the error.
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first failure, with the errors of [`RunKernel::run`](super::RunKernel::run). Later launches have
    /// run nevertheless. After a failure of a device, all elements of held arrays are unspecified.
    pub fn wait(&mut self) -> Result<()> {
        for number in 0..self.lanes.len() {
            while !self.lanes[number].launched.is_empty() {
                self.take(number);
            }
        }
        self.settle();
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Waits until all launches have ended, and releases the arrays.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub fn finish(mut self) -> Result<()> {
        self.wait()
    }

    fn store(&mut self, len: usize, stride: usize, place: StoredPlace<'a>) -> BindingNumber {
        self.stores.push(Stored { len, stride, place, written: Vec::new(), read: Vec::new() });
        BindingNumber { session: self.number, number: self.stores.len() - 1 }
    }

    /// Returns the index of a device in the session. A new device receives all copies.
    fn lane(&mut self, device: &Arc<dyn Device>) -> Result<usize> {
        let known = self.lanes.iter().position(|lane| Arc::ptr_eq(lane.queue.device(), device));
        if let Some(number) = known {
            return Ok(number);
        }
        let bytes = (LAUNCHES + 1) * Report::BYTES as usize;
        let pinned = HostBuffer::new(device, bytes, HostMemory::Pinned);
        let reports = pinned.or_else(|_| HostBuffer::new(device, bytes, HostMemory::Pageable))?;
        let (queue, launched) = (Queue::new(device)?, VecDeque::new());
        for stored in &mut self.stores {
            stored.copy_to(&queue)?;
        }
        let (after, reached) = (Vec::new(), Vec::new());
        self.lanes.push(SessionLane { queue, reports, launched, count: 0, after, reached });
        Ok(self.lanes.len() - 1)
    }

    /// Waits for the oldest launch on a device, and records its error.
    fn take(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        let Some(Launched { kernel, options, geometry, ticket, report, range }) = lane.launched.pop_front()
        else {
            return;
        };
        let outcome = lane.queue.device().wait(ticket).map_err(|cause| {
            let (written, unspecified) = (Vec::new(), std::iter::once(0..range.len()).collect());
            ErrorKind::Interrupted { written, unspecified, cause }.into()
        });
        let outcome = outcome.and_then(|()| {
            let mut words = [0_u64; Report::BYTES as usize / 8];
            lane.reports.read(report, bytemuck::cast_slice_mut(&mut words));
            let report = Report::from_words(words);
            let item = (geometry.index(report.item) as usize).wrapping_sub(range.start);
            kernel.outcome(report, item, &options)
        });
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }

    /// Records an error if a dirty page that a launch read could not be written back.
    fn settle(&mut self) {
        let is_unsettled = |(pager, before): &(&Pager, u64)| pager.failed_write_backs() != *before;
        if self.shared.iter().any(is_unsettled) {
            let len = self.stores.first().map_or(0, |stored| stored.len);
            let (written, unspecified) = (Vec::new(), std::iter::once(0..len).collect());
            let cause = unsettled();
            self.failure.get_or_insert(ErrorKind::Interrupted { written, unspecified, cause }.into());
        }
    }

    fn known_lane(&self, device: &Arc<dyn Device>) -> usize {
        let known = self.lanes.iter().position(|lane| Arc::ptr_eq(lane.queue.device(), device));
        known.unwrap_or_else(|| unreachable!("held arrays have a queue on each of their devices"))
    }
}

/// Memory for a copied argument on a device, and host memory for a part of it.
struct Copying {
    memory: DeviceBuffer<dyn Device>,
    host: HostBuffer<dyn Device>,
}

impl Copying {
    fn new(device: &Arc<dyn Device>, bytes: usize, at_once: usize) -> Result<Self> {
        let memory = DeviceBuffer::new(device, bytes.max(1) as u64, Commit::Lazy)?;
        Ok(Self { memory, host: HostBuffer::new(device, at_once, HostMemory::Pageable)? })
    }

    fn upload(&self, queue: &Queue<dyn Device>, offset: usize, bytes: &[u8]) -> Result<()> {
        self.host.write(0, bytes);
        let (from, to) = (self.host.at(0), self.memory.at(offset as u64));
        let upload = Transfer::Upload { from, to, bytes: bytes.len() as u64 };
        Ok(queue.device().wait(queue.submit(&[upload])?)?)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // `drop` cannot return an error, so ignore it here. Programs call `finish` to get the error.
        let _ = self.wait();
    }
}

impl Stored<'_> {
    fn pager(&self) -> Option<&Pager> {
        match &self.place {
            StoredPlace::Home(pager) => Some(pager),
            StoredPlace::Copies(_) => None,
        }
    }

    fn page_len(&self) -> u64 {
        self.pager().map_or(1 << 63, |pager| (pager.page_bytes() / self.stride) as u64)
    }

    /// Copies a copied argument from the first device that has it to another device.
    fn copy_to(&mut self, queue: &Queue<dyn Device>) -> Result<()> {
        let (bytes, StoredPlace::Copies(copies)) = (self.len * self.stride, &mut self.place) else {
            return Ok(());
        };
        if copies.iter().any(|(on, _)| Arc::ptr_eq(on, queue.device())) {
            return Ok(());
        }
        let Some((device, memory)) = copies.first() else { return Ok(()) };
        let at_once = bytes.clamp(1, STAGED_BYTES);
        let (from, host) = (Queue::new(device)?, HostBuffer::new(device, at_once, HostMemory::Pageable)?);
        let copy = Copying::new(queue.device(), bytes, at_once)?;
        let mut part = zeroed_vec(at_once)?;
        for first in (0..bytes).step_by(at_once) {
            let part = &mut part[..at_once.min(bytes - first)];
            let (at, to) = (memory.at(first as u64), host.at(0));
            let download = Transfer::Download { from: at, to, bytes: part.len() as u64 };
            device.wait(from.submit(&[download])?)?;
            host.read(0, part);
            copy.upload(queue, first, part)?;
        }
        copies.push((Arc::clone(queue.device()), copy.memory));
        Ok(())
    }
}

fn refused(kernel: &str, reason: &str) -> Error {
    ErrorKind::KernelRefused { kernel: kernel.into(), reason: reason.into() }.into()
}
