//! Futures of kernel launches for async tasks. Each borrows the launch's arrays by a [`Session`] of its own.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use vmarray_kernel::Kernel;

use super::bindings::{Binding, BindingNumber, BindingPlaces};
use super::{Session, Stored, StoredPlace};
use crate::array::asynchronous::Asked;
use crate::base::error::Result;
use crate::engine::pager::Pager;
use crate::ops::executor::Operand;
use crate::ops::launch::arguments::{Arguments, Bound, PlacedElements};
use crate::ops::launch::execution::{self, LaunchPurpose};
use crate::ops::launch::index_domain::IndexDomain;
use crate::ops::launch::kernel::KernelVariants;
use crate::ops::launch::options::LaunchOptions;
use crate::ops::view::{INTERNAL, StoredBox};

/// The future that [`RunKernel::run_async`](crate::kernel::RunKernel::run_async) returns. It is `Send` if its
/// arguments are.
///
/// ```
/// use vmarray::futures::RunAsync;
/// use vmarray::kernel::Own;
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn halved(x: &mut Own<f32>) {
///     x.set(x.get() / 2.0);
/// }
/// fn may_move(_: impl Future + Send) {}
/// let mut array = VirtualArray::<f32>::new(10)?;
/// let future: RunAsync<'_, halved, (&mut VirtualArray<f32>,)> = halved::run_async((&mut array,));
/// may_move(future);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "does nothing unless polled"]
pub struct RunAsync<'a, K, A> {
    course: LaunchCourse<'a, A>,
    options: LaunchOptions,
    over: Option<IndexDomain>,
    /// Registration of the task to be woken.
    asked: Asked,
    kernel: PhantomData<fn() -> K>,
}

enum LaunchCourse<'a, A> {
    /// The future was not polled yet; these are the arguments.
    Asked(A),
    UnderWay(Session<'a>),
    Done,
}

impl<K, A> fmt::Debug for RunAsync<'_, K, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_under_way = matches!(self.course, LaunchCourse::UnderWay(_));
        f.debug_struct("RunAsync").field("is_under_way", &is_under_way).finish_non_exhaustive()
    }
}

// Moving the future is safe, because its fields are never pinned.
impl<K, A> Unpin for RunAsync<'_, K, A> {}

impl<K, A> RunAsync<'_, K, A> {
    pub(in crate::ops::launch) fn new(
        arguments: A,
        options: LaunchOptions,
        over: Option<IndexDomain>,
    ) -> Self {
        let (course, asked) = (LaunchCourse::Asked(arguments), Asked::default());
        Self { course, options, over, asked, kernel: PhantomData }
    }
}

impl<'a, K: Kernel, A: Arguments<'a, K::Parameters>> Future for RunAsync<'a, K, A> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { course, options, over, asked, .. } = &mut *self;
        let mut session = match std::mem::replace(course, LaunchCourse::Done) {
            LaunchCourse::UnderWay(session) => session,
            LaunchCourse::Asked(arguments) => {
                let begun =
                    begin(&KernelVariants::of::<K>()?, arguments.bound(INTERNAL), options, over.as_ref());
                let Some(session) = begun? else { return Poll::Ready(Ok(())) };
                session
            }
            LaunchCourse::Done => unreachable!("the future was polled after completion"),
        };
        let outcome = session.poll(asked, context);
        if outcome.is_pending() {
            *course = LaunchCourse::UnderWay(session);
        }
        outcome
    }
}

/// Launches a kernel in a session. If the arguments do not permit this, runs the kernel before it returns.
fn begin<'a>(
    kernels: &KernelVariants,
    arguments: Vec<Bound<'a>>,
    options: &LaunchOptions,
    over: Option<&IndexDomain>,
) -> Result<Option<Session<'a>>> {
    let mut session = Session::new();
    if over.is_none()
        && let Some(launched) = session.launch_alone(kernels, &arguments, options)
    {
        // If only some parts of the launch failed, wait for the others, because devices still use arrays.
        if launched.is_ok() || session.lanes.iter().any(|lane| !lane.launched.is_empty()) {
            session.failure = launched.err();
            return Ok(Some(session));
        }
    }
    drop(session);
    execution::run(kernels, arguments, options, over, LaunchPurpose::Nothing)?;
    Ok(None)
}

impl<'a> Session<'a> {
    /// Launches a kernel in place over results that no other thread uses, and over other arrays, which other
    /// threads may read. Returns `None` for other kinds of arguments.
    fn launch_alone(
        &mut self,
        kernels: &KernelVariants,
        arguments: &[Bound<'a>],
        options: &LaunchOptions,
    ) -> Option<Result<()>> {
        let is_in_place = |argument: &Bound<'_>| match argument {
            Bound::Values(_) => true,
            Bound::Elements(placed) | Bound::Around(placed, ..) => {
                is_in_place(&placed.operand) && placed.stored.is_some()
            }
            Bound::Append(..) => false,
        };
        if !kernels.tile.is_empty() || !arguments.iter().all(is_in_place) {
            return None;
        }
        let held = arguments.iter().map(|argument| {
            Ok(match argument {
                Bound::Values(values) => Binding::Values(values.clone()),
                Bound::Elements(placed) => Binding::Elements(self.hold_placed(placed)?),
                Bound::Around(placed, _, modes) => Binding::Around(self.hold_placed(placed)?, modes.clone()),
                Bound::Append(..) => unreachable!("appended elements are never used in place"),
            })
        });
        let held = held.collect::<Result<Vec<Binding>>>();
        let launched = held.and_then(|held| self.launch(kernels, held, options));
        Some(launched.map_err(|error| kernels.usual.placed(error)))
    }

    /// Writes dirty pages of an argument back to their home slots, and adds the argument to the session.
    fn hold_placed(&mut self, placed: &PlacedElements<'a>) -> Result<BindingPlaces> {
        let PlacedElements { operand, stored, extents, .. } = placed;
        let (Some(pager), stride) = (operand.store.pager(), operand.stride()) else {
            unreachable!("elements of a session are used in place")
        };
        let range = stored.as_ref().map_or(0..0, StoredBox::range);
        if operand.target.is_none() {
            self.settle_shared(pager, stride, &range)?;
        }
        let known = |stored: &Stored<'_>| stored.pager().is_some_and(|of| std::ptr::eq(of, pager));
        let of = match self.stores.iter().position(known) {
            Some(number) => BindingNumber { session: self.number, number },
            None if operand.target.is_some() => self.hold_pages(pager, range.end, stride)?,
            None => {
                for channel in pager.channels() {
                    self.lane(channel.device())?;
                }
                self.store(range.end, stride, StoredPlace::Home(pager))
            }
        };
        Ok(BindingPlaces { of, extents: extents.clone(), stored: stored.clone() })
    }

    /// Writes dirty pages back to their home slots, for an array that other threads may use.
    fn settle_shared(&mut self, pager: &'a Pager, stride: usize, range: &Range<usize>) -> Result<()> {
        let page_len = pager.page_bytes() / stride;
        if !self.shared.iter().any(|(known, _)| std::ptr::eq(*known, pager)) {
            self.shared.push((pager, pager.failed_write_backs()));
        }
        pager.settle(&((range.start / page_len) as u64..range.end.div_ceil(page_len) as u64))
    }
}

fn is_in_place(operand: &Operand<'_>) -> bool {
    operand.store.pager().is_some() && operand.is_alone == operand.target.is_some()
}
