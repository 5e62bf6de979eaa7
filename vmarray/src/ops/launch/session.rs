//! Sessions: launches in order, over arrays that are held until all are done.

mod held;
mod wait;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{
    Commit, Device, DeviceBuffer, DeviceSpan, Elements, HostBuffer, HostMemory, Launch, Queue, Ticket,
    Transfer, View,
};
use vmarray_kernel::launch::{Form, Mode, SHORT_MAX, VALUES_MAX};
#[cfg(doc)]
use vmarray_kernel::{Anywhere, Own, Shared, Window};
use vmarray_kernel::{AroundPart, Kernel, Memory, ParameterInfo, ParameterKind, ScalarSource};

use super::kernel::{PreparedKernel, prepared};
use super::options::{KernelLaunch, Options};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{Error, ErrorKind, Result, expect_len};
use crate::base::memory::zeroed_vec;
use crate::engine::channel::Channel;
use crate::engine::pager::Pager;
use crate::ops::executor::{Operand, STAGED_BYTES};
use crate::ops::view::{self as views, INTERNAL, Linear, Store as _};
pub(super) use held::HeldBound;
use held::HeldNumber;
pub use held::{SessionArgument, SessionArguments, SessionArray, SessionCopy, SessionWindow};
pub use wait::SessionWait;

/// So many launches of a session are under way on a device at once.
const LAUNCHES: usize = 1024;
/// The most places that the pages of an argument are dealt out to.
const DEALT_MAX: usize = 8;

/// Launches in order, each of which sees what those before have written. Arrays are named once, and held
/// until the session is over; a launch then costs one submission to each device (to each channel, if there
/// are several devices), and waits for nothing.
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
/// # let devices = [std::sync::Arc::new(vmarray::AnyDevice::Host(vmarray::host::HostDevice::new(1 << 20)?))];
/// # let new = |len| VirtualArray::<u8>::builder(len).devices(devices.clone()).build();
/// let (mut one, mut other) = (new(65)?, new(65)?);
/// one.set(32, 1)?;
///
/// let mut session = Session::new();
/// let (a, b) = (session.hold(&mut one)?, session.hold(&mut other)?);
/// for _ in 0..8 {
///     step::run_in(&mut session, (a, b))?;
///     step::run_in(&mut session, (b, a))?;
/// }
/// session.finish()?;
/// // After 16 steps two are left.
/// assert_eq!((one.get(16)?, one.get(48)?, one.count_where(.., Field::whole().eq(1))?), (1, 1, 2));
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// What has no `&mut` is [copied](Self::copy) when the session begins. All arguments of a launch that any
/// item reads ([`Anywhere`], [`Window`], [`Shared`]) have to be on one device; with arguments of [`Own`]
/// alone arrays may be on several, if they lie beside one another.
///
/// A session that is dropped waits for its launches. It must not be forgotten ([`std::mem::forget`]): then
/// nobody waits for them, and elements of its arrays hold anything until they are done.
#[must_use = "a session that is dropped tells nobody what has failed: finish it"]
pub struct Session<'a> {
    number: u64,
    stores: Vec<Stored<'a>>,
    lanes: Vec<SessionLane>,
    /// Pairs of kernels and devices that were seen before.
    known: Vec<(Arc<PreparedKernel>, Arc<dyn Device>)>,
    failure: Option<Error>,
}

/// Elements of a session.
struct Stored<'a> {
    len: usize,
    stride: usize,
    place: StoredPlace<'a>,
}

enum StoredPlace<'a> {
    /// In the home slots of an array.
    Home(&'a Pager),
    /// SessionCopy to devices.
    Copies(Vec<(Arc<dyn Device>, DeviceBuffer<dyn Device>)>),
}

/// A device, the session's queue there, and launches that are under way.
struct SessionLane {
    queue: Queue<dyn Device>,
    reports: HostBuffer<dyn Device>,
    launched: VecDeque<Launched>,
    /// How many launches there were.
    count: usize,
}

/// A launch, of some items of which the first has an index.
struct Launched {
    kernel: Arc<PreparedKernel>,
    options: Options,
    geometry: Geometry,
    ticket: Ticket,
    report: usize,
    /// How long the results are.
    len: usize,
}

/// Items of a launch on one device.
#[derive(Clone, Copy)]
struct Part {
    lane: usize,
    /// The number of the channel that has them; all channels do, if there is none.
    channel: Option<usize>,
    items: u64,
    geometry: Geometry,
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
    /// A session that holds nothing yet.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, stores: Vec::new(), lanes: Vec::new(), known: Vec::new(), failure: None }
    }

    /// Holds all elements of an array, for launches to read and to write. What is cached of it is written
    /// back first; nothing is in the cache when the session is over.
    ///
    /// # Errors
    /// Those of devices.
    pub fn hold<T: Memory + Element, D: Device>(
        &mut self,
        array: &'a mut VirtualArray<T, D>,
    ) -> Result<SessionArray<T>> {
        let (array, len) = (&*array, array.len());
        let (pager, pages) = (array.pager(), array.touched_pages(&(0..len)));
        pager.settle(&pages)?;
        pager.evict(&pages)?;
        // Nobody else can use the array, so pages that were held once stay as they are then: absent, with
        // contents at home, and with no copy under way.
        for page in pages {
            pager.claim_home(page)?;
            pager.release_written(page);
        }
        for channel in pager.channels() {
            let all_before = channel.queues.between_all_writes(&[], &[], |queue| queue.submit(&[]))?;
            channel.queues.wait(all_before)?;
            self.lane(channel.device())?;
        }
        let of = self.store(Stored { len, stride: size_of::<T>(), place: StoredPlace::Home(pager) });
        Ok(SessionArray { of, marker: PhantomData })
    }

    /// Copies the elements of a view, as they are now, to the devices of all arrays that are held so far: for
    /// launches to read.
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
    /// Those of devices; [`KernelRefused`](ErrorKind::KernelRefused) if nothing is held yet.
    pub fn copy<'v, T: Memory, V: views::View<'v, Element = T, Shape = Linear>>(
        &mut self,
        view: V,
    ) -> Result<SessionCopy<T>> {
        if self.lanes.is_empty() {
            return Err(refused("a copy in a session", "nothing is held yet: hold what is changed first"));
        }
        let (store, shape) = view.parts();
        let (operand, len) = (Operand::new(store.as_operand(INTERNAL), shape.start), shape.len);
        let (stride, mut copies) = (operand.stride(), Vec::new());
        let at_once = (STAGED_BYTES / stride).clamp(1, len.max(1));
        for lane in &self.lanes {
            let device = lane.queue.device();
            let memory = DeviceBuffer::new(device, (len * stride).max(1) as u64, Commit::Lazy)?;
            let host = HostBuffer::new(device, at_once * stride, HostMemory::Pageable)?;
            copies.push((memory, host));
        }
        for first in (0..len).step_by(at_once) {
            let mut bytes = zeroed_vec(at_once.min(len - first) * stride)?;
            operand.read_bytes(first..first + bytes.len() / stride, &mut bytes)?;
            for (lane, (memory, host)) in self.lanes.iter().zip(&copies) {
                host.write(0, &bytes);
                let (from, to) = (host.at(0), memory.at((first * stride) as u64));
                let upload = Transfer::Upload { from, to, bytes: bytes.len() as u64 };
                lane.queue.device().wait(lane.queue.submit(&[upload])?)?;
            }
        }
        let lanes = self.lanes.iter().map(|lane| Arc::clone(lane.queue.device()));
        let copies = lanes.zip(copies.into_iter().map(|(memory, _)| memory)).collect();
        let of = self.store(Stored { len, stride, place: StoredPlace::Copies(copies) });
        Ok(SessionCopy { of, marker: PhantomData })
    }

    /// Waits for all launches so far. More may follow.
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
    /// session.finish()?; // It was told.
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first failure: as those of [`RunKernel::run`](super::RunKernel::run). The launches after it have
    /// run all the same. After a failure of a device, all elements of arrays that are held are unspecified.
    pub fn wait(&mut self) -> Result<()> {
        for number in 0..self.lanes.len() {
            while !self.lanes[number].launched.is_empty() {
                self.take(number);
            }
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Waits as [`wait`](Self::wait) does, as a future for any executor. It can be dropped at any time: the
    /// session goes on, and waits itself when it is over. So a task that is cancelled leaves all launches
    /// done, or not begun; the drop of its session blocks until they are.
    ///
    /// What else may block: [`hold`](Self::hold), until what is cached is written back (see
    /// [`flush_async`](crate::views::View::flush_async)); the first launch of a kernel, which is translated
    /// then; a launch while more than a thousand are under way.
    ///
    /// ```
    /// use futures::executor::block_on;
    /// use vmarray::kernel::{Own, Session};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn halve(x: &mut Own<f32>) {
    ///     x.set(x.get() / 2.0);
    /// }
    /// async fn quartered(array: &mut VirtualArray<f32>) -> vmarray::Result<()> {
    ///     let mut session = Session::new();
    ///     let x = session.hold(array)?;
    ///     halve::run_in(&mut session, (x,))?;
    ///     halve::run_in(&mut session, (x,))?;
    ///     session.wait_async().await
    /// }
    /// let [mut one, mut other] = [VirtualArray::<f32>::new(10)?, VirtualArray::<f32>::new(10)?];
    /// one.fill(.., 8.0)?;
    /// other.fill(.., 4.0)?;
    /// let (first, second) = block_on(async { futures::join!(quartered(&mut one), quartered(&mut other)) });
    /// first.and(second)?;
    /// assert_eq!((one.get(0)?, other.get(9)?), (2.0, 1.0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future has those of [`wait`](Self::wait).
    pub fn wait_async(&mut self) -> SessionWait<'_, 'a> {
        SessionWait::new(self)
    }

    /// Waits for all launches, and lets go of the arrays.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn finish(mut self) -> Result<()> {
        self.wait()
    }

    fn store(&mut self, stored: Stored<'a>) -> HeldNumber {
        self.stores.push(stored);
        HeldNumber { session: self.number, number: self.stores.len() - 1 }
    }

    /// The number of a device.
    fn lane(&mut self, device: &Arc<dyn Device>) -> Result<usize> {
        let known = self.lanes.iter().position(|lane| Arc::ptr_eq(lane.queue.device(), device));
        if let Some(number) = known {
            return Ok(number);
        }
        let bytes = (LAUNCHES + 1) * Report::BYTES as usize;
        let pinned = HostBuffer::new(device, bytes, HostMemory::Pinned);
        let reports = pinned.or_else(|_| HostBuffer::new(device, bytes, HostMemory::Pageable))?;
        let (queue, launched) = (Queue::new(device)?, VecDeque::new());
        self.lanes.push(SessionLane { queue, reports, launched, count: 0 });
        Ok(self.lanes.len() - 1)
    }

    /// Waits for the oldest launch on a device.
    fn take(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        let Some(Launched { kernel, options, geometry, ticket, report, len }) = lane.launched.pop_front()
        else {
            return;
        };
        let outcome = lane.queue.device().wait(ticket).map_err(|cause| {
            let (written, unspecified) = (Vec::new(), std::iter::once(0..len).collect());
            ErrorKind::Interrupted { written, unspecified, cause }.into()
        });
        let outcome = outcome.and_then(|()| {
            let mut words = [0_u64; Report::BYTES as usize / 8];
            lane.reports.read(report, bytemuck::cast_slice_mut(&mut words));
            let report = Report::from_words(words);
            kernel.outcome(report, geometry.index(report.item) as usize, &options).map_err(Error::from)
        });
        if let Err(error) = outcome {
            self.failure.get_or_insert(error);
        }
    }

    /// Launches a kernel, behind all launches so far.
    fn launch(
        &mut self,
        prepared: fn(Form) -> Result<Arc<PreparedKernel>>,
        arguments: Vec<HeldBound>,
        options: &Options,
    ) -> Result<()> {
        let mut kernel = prepared(Form::default())?;
        let (name, usual) = (kernel.lowered.name, Arc::clone(&kernel));
        let parameters = &usual.lowered.parameters;
        if parameters.iter().any(|of| matches!(of.kind, ParameterKind::At(2..))) {
            return Err(refused(name, "what a session holds has one axis: take an `At<1>`"));
        }
        let mut values = vec![Vec::new(); parameters.len()];
        let mut elements: Vec<Option<usize>> = vec![None; parameters.len()];
        let (mut modes, mut form) = (vec![Mode::Checked; parameters.len()], Form::default());
        let is_given =
            |of: &ParameterInfo| !matches!(of.kind, ParameterKind::At(_) | ParameterKind::Group(..));
        let numbered = parameters.iter().enumerate().filter(|(_, parameter)| is_given(parameter));
        for ((parameter, _), argument) in numbered.zip(arguments) {
            let of = match argument {
                HeldBound::Values(of) => {
                    values[parameter] = of;
                    continue;
                }
                HeldBound::Elements(of) => of,
                HeldBound::Around(of, given) => {
                    let known = given.unwrap_or_default().pop();
                    let known =
                        known.filter(|(mode, value)| *mode != Mode::Value || value.len() <= VALUES_MAX);
                    let Some((mode, value)) = known else {
                        return Err(refused(name, "devices know none but the library's own boundary modes"));
                    };
                    form.modes.extend((mode != Mode::Checked).then_some((parameter, 0, mode)));
                    (modes[parameter], values[parameter]) = (mode, value);
                    of
                }
            };
            if of.session != self.number {
                return Err(refused(name, "an argument is of another session"));
            }
            elements[parameter] = Some(of.number);
        }
        let is_short = |number: &usize| self.stores[*number].len < SHORT_MAX as usize;
        // Kernels without places are not translated twice.
        form.is_short = parameters.iter().any(|of| matches!(of.kind, ParameterKind::Window(..)))
            && elements.iter().flatten().all(is_short);
        if form != Form::default() {
            kernel = prepared(form.clone())?;
        }
        let kernel = &kernel;
        let taken = || parameters.iter().zip(&elements).filter_map(|(of, number)| Some((of, (*number)?)));
        let is_result =
            |of: &ParameterKind| matches!(of, ParameterKind::OwnMut(_) | ParameterKind::Shared(_));
        let is_own = |of: &ParameterKind| matches!(of, ParameterKind::Own(_) | ParameterKind::OwnMut(_));
        for (at, (of, number)) in taken().enumerate().filter(|(_, (of, _))| is_result(&of.kind)) {
            let mut others = taken().enumerate().filter(|(other, _)| *other != at);
            if let Some((_, (other, _))) = others.find(|(_, (_, other))| *other == number) {
                let (kernel, result, argument) = (name.into(), of.name.into(), other.name.into());
                return Err(ErrorKind::KernelOverlap { kernel, result, argument }.into());
            }
        }
        if !taken().any(|(of, _)| is_result(&of.kind)) {
            return Err(refused(name, "it has no result: take a `&mut Own<T>` or a `&Shared<T>`"));
        }
        let own = || taken().filter(|(of, _)| is_own(&of.kind));
        let first = own().find(|(of, _)| is_result(&of.kind)).or_else(|| own().next());
        let Some((_, first)) = first else {
            return Err(refused(name, "it runs for no elements: take an `&Own<T>` or a `&mut Own<T>`"));
        };
        let len = self.stores[first].len;
        own().try_for_each(|(of, number)| expect_len(of.name, len, self.stores[number].len))?;
        if len == 0 {
            return Ok(());
        }
        let all: Vec<usize> = taken().map(|(_, number)| number).collect();
        let only_own = taken().all(|(of, _)| is_own(&of.kind));
        let parts = self.parts(name, first, &all, only_own)?;
        for (of, number) in taken() {
            let is_there = |part: &Part| {
                let device = self.lanes[part.lane].queue.device();
                !self.stores[number].bases(device, part.channel).is_empty()
            };
            if !parts.iter().all(is_there) {
                let reason = format!(
                    "the copy for `{}` was made before elements on this device were held: hold all, then copy",
                    of.name
                );
                return Err(refused(name, &reason));
            }
        }
        let scalar = |source: &ScalarSource| match *source {
            ScalarSource::Value { parameter, position } => values[parameter][position],
            ScalarSource::Length { parameter } => {
                elements[parameter].map_or(0, |number| self.stores[number].len as u64)
            }
            ScalarSource::Around { parameter, part } => match part {
                AroundPart::Extent(_) => {
                    elements[parameter].map_or(0, |number| self.stores[number].len as u64)
                }
                AroundPart::Stride(_) => 1,
                AroundPart::Mode(_) => modes[parameter].number(),
                AroundPart::Value(_, position) => values[parameter].get(position).copied().unwrap_or(0),
                AroundPart::First(_) | AroundPart::Base => 0,
            },
            ScalarSource::Form => form.number(),
            // Elements are counted from the first, along one axis.
            _ => 0,
        };
        let params: Vec<u64> = kernel.lowered.scalars.iter().map(scalar).collect();
        let table = kernel.lowered.table_bytes(|parameter| &values[parameter]);
        let of_views: Vec<usize> = kernel.lowered.views.iter().filter_map(|view| elements[*view]).collect();
        // Those that cannot do it say so before any other begins.
        for part in &parts {
            let device = Arc::clone(self.lanes[part.lane].queue.device());
            let is_known = |(of, on): &(Arc<PreparedKernel>, Arc<dyn Device>)| {
                Arc::ptr_eq(of, kernel) && Arc::ptr_eq(on, &device)
            };
            if self.known.iter().any(is_known) {
                continue;
            }
            let none = Part { items: 0, ..*part };
            let report = LAUNCHES * Report::BYTES as usize;
            let asked =
                self.with(kernel, &none, &of_views, &params, &table, options, report, |queue, launch| {
                    device.prepare_launches(&[*launch])?;
                    // A single one says it when it is asked to begin.
                    if parts.len() > 1 { queue.launch(launch).map(Some) } else { Ok(None) }
                })?;
            asked.map_or(Ok(()), |ticket| device.wait(ticket))?;
            self.known.push((Arc::clone(kernel), device));
        }
        for (number, part) in parts.iter().enumerate() {
            if self.lanes[part.lane].launched.len() == LAUNCHES {
                self.take(part.lane);
            }
            let report = self.lanes[part.lane].count % LAUNCHES * Report::BYTES as usize;
            let launched =
                self.with(kernel, part, &of_views, &params, &table, options, report, |queue, launch| {
                    queue.launch(launch)
                });
            let ticket = launched.map_err(|cause| -> Error {
                if number == 0 {
                    return cause.into();
                }
                let (written, unspecified) = (Vec::new(), std::iter::once(0..len).collect());
                ErrorKind::Interrupted { written, unspecified, cause }.into()
            })?;
            let lane = &mut self.lanes[part.lane];
            lane.count += 1;
            let (kernel, options, geometry) = (Arc::clone(kernel), *options, part.geometry);
            lane.launched.push_back(Launched { kernel, options, geometry, ticket, report, len });
        }
        Ok(())
    }

    /// Which items run where: as many at a time as can be. `first` has an element for each.
    fn parts(&self, kernel: &str, first: usize, all: &[usize], only_own: bool) -> Result<Vec<Part>> {
        let len = self.stores[first].len as u64;
        let pagers = || all.iter().filter_map(|number| self.stores[*number].pager());
        let mut channels = pagers().flat_map(Pager::channels);
        let Some(one) = channels.next() else { return Err(refused(kernel, "it has no result")) };
        let is_dealt_well = |pager: &Pager| pager.channels().len() <= DEALT_MAX;
        let is_on_one = channels.all(|other| Arc::ptr_eq(other.device(), one.device()));
        if is_on_one && pagers().all(is_dealt_well) {
            let lane = self.known_lane(one.device());
            return Ok(vec![Part { lane, channel: None, items: len, geometry: Geometry::plain(0) }]);
        }
        let (Some(pager), page_len) = (self.stores[first].pager(), self.stores[first].page_len()) else {
            return Err(refused(kernel, "elements of several devices stand beside a copy"));
        };
        let is_alike = |number: &usize| {
            let Some(other) = self.stores[*number].pager() else { return false };
            let (own, others) = (pager.channels(), other.channels());
            self.stores[*number].page_len() == page_len
                && own.len() == others.len()
                && own.iter().zip(others).all(|(one, two)| Arc::ptr_eq(one.device(), two.device()))
        };
        let are_together = only_own && all.iter().all(is_alike);
        if is_on_one && !are_together {
            let most = pagers().map(|pager| pager.channels().len()).max().unwrap_or(0);
            let reason = format!(
                "an array of its device has {most} channels, and a kernel reads from {DEALT_MAX} at most: build the \
                 array with fewer"
            );
            return Err(refused(kernel, &reason));
        }
        if !are_together {
            return Err(refused(
                kernel,
                "its elements are on several devices: there it can have `Own` elements alone, of arrays that are \
                 alike in devices, channels and page length",
            ));
        }
        let count = pager.channels().len() as u64;
        let (pages, last) = (len.div_ceil(page_len), (len - 1) % page_len + 1);
        let part = |(channel, of): (u64, &Arc<Channel>)| {
            let own_pages = (pages + count - 1 - channel) / count;
            let has_last = (pages - 1) % count == channel;
            let items = own_pages * page_len - if has_last { page_len - last } else { 0 };
            let geometry = Geometry { first: 0, page_len, channel, channels: count };
            Part { lane: self.known_lane(of.device()), channel: Some(channel as usize), items, geometry }
        };
        Ok((0..).zip(pager.channels()).map(part).filter(|part| part.items > 0).collect())
    }

    fn known_lane(&self, device: &Arc<dyn Device>) -> usize {
        let known = self.lanes.iter().position(|lane| Arc::ptr_eq(lane.queue.device(), device));
        known.unwrap_or_else(|| unreachable!("what is held has a queue on its devices"))
    }

    /// Has something done with the launch of a part.
    #[expect(clippy::too_many_arguments, reason = "they are what a launch consists of")]
    fn with<R>(
        &self,
        kernel: &PreparedKernel,
        part: &Part,
        views: &[usize],
        params: &[u64],
        table: &[u8],
        options: &Options,
        report: usize,
        work: impl FnOnce(&Queue<dyn Device>, &Launch<'_>) -> backend_api::Result<R>,
    ) -> backend_api::Result<R> {
        let lane = &self.lanes[part.lane];
        let stores: Vec<(&Stored<'_>, Vec<DeviceSpan<'_>>)> = views
            .iter()
            .map(|number| &self.stores[*number])
            .map(|stored| (stored, stored.bases(lane.queue.device(), part.channel)))
            .collect();
        let views: Vec<View<'_>> = stores.iter().map(|(stored, bases)| stored.view(bases, part)).collect();
        let report = lane.reports.at(report as u64);
        let launch = Launch {
            views: &views,
            params,
            table,
            budget: options.budget,
            arena_bytes: options.arena_bytes,
            ..Launch::new(&kernel.kernel, part.items, part.geometry, report)
        };
        work(&lane.queue, &launch)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // What has failed is told to those who finish it.
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

    /// Its elements, whose pages begin there.
    fn view<'v>(&self, bases: &'v [DeviceSpan<'v>], part: &Part) -> View<'v> {
        let (count, stride) = (self.len as u64, self.stride as u64);
        match *bases {
            [start] => {
                let count = if part.channel.is_some() { part.items } else { count };
                View::Run(Elements { start, count, stride })
            }
            _ => View::Dealt { bases, page_len: self.page_len(), count, stride },
        }
    }

    /// Where its pages begin on a device: those of a channel, or all.
    fn bases(&self, device: &Arc<dyn Device>, channel: Option<usize>) -> Vec<DeviceSpan<'_>> {
        match (&self.place, channel) {
            (StoredPlace::Home(pager), Some(channel)) => vec![pager.channels()[channel].slot_memory()],
            (StoredPlace::Home(pager), None) => {
                pager.channels().iter().map(|channel| channel.slot_memory()).collect()
            }
            (StoredPlace::Copies(copies), _) => {
                let own = copies.iter().filter(|(on, _)| Arc::ptr_eq(on, device));
                own.map(|(_, memory)| memory.at(0)).collect()
            }
        }
    }
}

fn refused(kernel: &str, reason: &str) -> Error {
    ErrorKind::KernelRefused { kernel: kernel.into(), reason: reason.into() }.into()
}

impl<K: Kernel> KernelLaunch<K> {
    /// Launches it in a session: see [`RunKernel::run_in`](super::RunKernel::run_in).
    ///
    /// # Errors
    /// As [`RunKernel::run_in`](super::RunKernel::run_in).
    pub fn run_in(
        self,
        session: &mut Session<'_>,
        arguments: impl SessionArguments<K::Parameters>,
    ) -> Result<()> {
        if self.is_over_numbers() {
            return Err(refused(
                std::any::type_name::<K>(),
                "in a session it runs for the elements of an `Own`",
            ));
        }
        session.launch(prepared::<K>, arguments.held(INTERNAL), self.options())
    }
}
