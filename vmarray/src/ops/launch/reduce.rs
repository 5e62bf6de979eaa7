//! Reductions of the values that a kernel's work-items (GPU threads) return. The launch is divided into
//! pieces, whose values fit in the device's cache. The device reduces the values of a piece before it runs
//! the next piece.

use std::cmp::Reverse;
use std::sync::Arc;

use backend_api::expr::{Action, Geometry, Instruction, Partial, Program, Type, Value};
use backend_api::kernel::Report;
use backend_api::{
    Commit, Compute, Device, DeviceBuffer, Elements, ErrorKind, HostSpan, QueueId, Request, Ticket,
};
use parking_lot::Mutex;
use vmarray_kernel::{KernelScalar, Returned};

use crate::base::error::Result;
use crate::ops::executor::{Run, WorkQueue};
use crate::ops::sealed::Internal;
use crate::ops::view::INTERNAL;

/// The most bytes of one scalar in the return values of a piece.
const RETURNED_BYTES: u64 = 32 << 20;
/// The number of 64-bit words in the reduced result of a scalar.
const ANSWER_WORDS: usize = Compute::partials_bytes() as usize / 8;
/// Alignment in bytes of each scalar's memory.
const ALIGNMENT: u64 = 256;
const REPORT_WORDS: usize = Report::BYTES as usize / 8;

/// Return values that can be summed: numbers, bools, and tuples of them. The sum of integers is an exact
/// `i128`, of floats an `f64`, of bools the number of true ones (`usize`), and of a tuple a tuple of sums.
///
/// ```
/// use vmarray::kernel::ReturnedSum;
/// let sums: <(u32, f32, bool) as ReturnedSum>::Sum = (7_i128, 0.5_f64, 2_usize);
/// # let _ = sums;
/// ```
#[diagnostic::on_unimplemented(
    message = "values of type `{Self}` cannot be summed",
    label = "this kernel returns a `{Self}`",
    note = "numbers, `bool`, and tuples of these can be summed"
)]
pub trait ReturnedSum: Returned {
    /// The type of the sum.
    type Sum;

    #[doc(hidden)]
    fn sum(parts: &[Vec<Partial>], _: Internal) -> Self::Sum;
}

macro_rules! sums {
    ($($T:ident $Sum:ident $sum:ident;)*) => { $(
        impl ReturnedSum for $T {
            type Sum = $Sum;

            fn sum(parts: &[Vec<Partial>], _: Internal) -> $Sum {
                Partial::$sum(&parts[0]) as $Sum
            }
        }
    )* };
}
sums! {
    u8 i128 sum_of_integers;
    u16 i128 sum_of_integers;
    u32 i128 sum_of_integers;
    u64 i128 sum_of_integers;
    usize i128 sum_of_integers;
    i8 i128 sum_of_integers;
    i16 i128 sum_of_integers;
    i32 i128 sum_of_integers;
    i64 i128 sum_of_integers;
    isize i128 sum_of_integers;
    bool usize sum_of_integers;
    f32 f64 sum_of_floats;
    f64 f64 sum_of_floats;
}

macro_rules! tuples {
    ($($($T:ident $number:tt)*;)*) => { $(
        impl<$($T: ReturnedSum + KernelScalar),*> ReturnedSum for ($($T,)*) {
            type Sum = ($($T::Sum,)*);

            fn sum(parts: &[Vec<Partial>], internal: Internal) -> Self::Sum {
                ($($T::sum(&parts[$number..], internal),)*)
            }
        }
    )* };
}
tuples! {
    A 0;
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
}

/// The kind of reduction: sum, least or greatest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Sum,
    Least,
    Greatest,
}

/// A reduction of a kernel's return values, and its results so far.
pub(super) struct Reduction {
    how: How,
    scalars: Vec<ReturnedScalar>,
    /// Index of the first work-item (GPU thread) whose value is reduced.
    pub start: usize,
    /// The most work-items whose values are reduced at once.
    piece_items: u64,
    room: Mutex<Vec<ReturnRoom>>,
    /// Submissions for which the caller does not wait, because it waits for a later one.
    begun: Mutex<Vec<(Arc<dyn Device>, Ticket)>>,
    reduced: Mutex<Vec<ReducedPiece>>,
}

/// One scalar of the return values, and its type in memory.
struct ReturnedScalar {
    of: Type,
    program: Program,
}

/// The memory for return values of kernels in one queue.
struct ReturnRoom {
    queue: QueueId,
    memory: Arc<DeviceBuffer<dyn Device>>,
}

/// The partial results of a piece for each scalar; least and greatest values with their index.
struct ReducedPiece {
    /// The channel and the location of the first work-item. Sums are added in this order.
    order: (u64, u64),
    scalars: Vec<Partial>,
}

impl Reduction {
    /// Creates a reduction of a kernel's return values. `group_len` is the number of work-items (GPU threads)
    /// in a work-group.
    pub fn new<R: Returned>(how: How, group_len: Option<u32>) -> Result<Self> {
        let stored = |of| if of == Type::Bool { Type::U8 } else { of };
        let scalar = |of| {
            let field = Instruction::Field { source: 0, offset: 0, of };
            Ok(ReturnedScalar { of, program: Program::new(vec![field])? })
        };
        let scalars: Vec<_> = R::types().into_iter().map(stored).map(scalar).collect::<Result<_>>()?;
        let longest = scalars.iter().map(|scalar| u64::from(scalar.of.bytes())).max().unwrap_or(1);
        let group_len = u64::from(group_len.unwrap_or(1));
        Ok(Self {
            how,
            scalars,
            start: 0,
            piece_items: RETURNED_BYTES / longest / group_len * group_len,
            room: Mutex::default(),
            begun: Mutex::default(),
            reduced: Mutex::default(),
        })
    }

    /// Returns true if the result is a rounded float, which depends on the division into pieces.
    pub fn is_rounded(&self) -> bool {
        self.how == How::Sum && self.scalars.iter().any(|scalar| scalar.of.is_float())
    }

    fn piece_words(&self) -> usize {
        REPORT_WORDS + self.scalars.len() * ANSWER_WORDS
    }

    /// Returns the size in bytes of the reports and partial results of a launch with `items` GPU threads.
    pub fn report_bytes(&self, items: usize) -> usize {
        (items as u64).div_ceil(self.piece_items).max(1) as usize * self.piece_words() * 8
    }

    /// Returns memory for the return values of `items` work-items in a queue.
    fn room(
        &self,
        device: &Arc<dyn Device>,
        queue: QueueId,
        items: u64,
    ) -> backend_api::Result<Arc<DeviceBuffer<dyn Device>>> {
        let bytes = self.places(items).last().map_or(1, |(at, stride)| at + items * stride).max(1);
        let mut room = self.room.lock();
        let old = room.iter().position(|room| room.queue == queue);
        if let Some(number) = old.filter(|number| room[*number].memory.bytes() >= bytes) {
            return Ok(Arc::clone(&room[number].memory));
        }
        // Dropping the old buffer waits for the device work that uses it.
        old.map(|number| room.swap_remove(number));
        let memory = Arc::new(DeviceBuffer::new(device, bytes, Commit::Lazy)?);
        room.push(ReturnRoom { queue, memory: Arc::clone(&memory) });
        Ok(memory)
    }

    /// Returns the offset in bytes of each scalar in the memory for return values, and its size.
    fn places(&self, items: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut next = 0;
        self.scalars.iter().map(move |scalar| {
            let (at, stride) = (next, u64::from(scalar.of.bytes()));
            next = (at + items * stride).next_multiple_of(ALIGNMENT);
            (at, stride)
        })
    }

    fn elements<'a>(&self, memory: &'a DeviceBuffer<dyn Device>, items: u64) -> Vec<Elements<'a>> {
        let places = self.places(items);
        places.map(|(at, stride)| Elements { start: memory.at(at), count: items, stride }).collect()
    }

    /// Submits the kernel for a run (contiguous elements on a device) piece by piece, with a reduction after
    /// each piece. `launch` builds the request for a piece from its work-items (GPU threads), its report
    /// address, and the memory for its return values.
    pub fn submit(
        &self,
        queue: WorkQueue<'_>,
        run: Run<'_>,
        mut report: HostSpan<'_>,
        mut launch: impl FnMut(Run<'_>, HostSpan<'_>, &[Elements<'_>]) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<Ticket> {
        let (device, count, mut last) = (queue.device(), run.count() as u64, None);
        for first in (0..count.max(1)).step_by(self.piece_items as usize) {
            let items = self.piece_items.min(count - first);
            let (columns, geometry) = run.part(first..first + items);
            let memory = self.room(device, queue.id(), items)?;
            let returned = self.elements(&memory, items);
            let before = last.take();
            let launched = launch(Run { columns: &columns, geometry }, report, &returned);
            let launched = launched.map_err(|error| Self::after(device, before, error))?;
            self.note(device, before);
            last = Some(launched);
            report = report.plus(Report::BYTES);
            for (number, elements) in returned.iter().enumerate() {
                let before = last.take();
                let elements = std::slice::from_ref(elements);
                let reduce = self.compute(number, elements, geometry, report);
                let reduced = queue.with_ram(true).submit(&reduce);
                last = Some(reduced.map_err(|error| Self::after(device, before, error))?);
                self.note(device, before);
                report = report.plus(Compute::partials_bytes());
            }
        }
        Ok(last.unwrap_or_else(|| unreachable!("a run has at least one piece")))
    }

    /// After an error, waits for the submissions that the device had accepted. They may have changed
    /// elements, so the returned error does not promise unchanged elements.
    fn after(
        device: &Arc<dyn Device>,
        begun: Option<Ticket>,
        error: backend_api::Error,
    ) -> backend_api::Error {
        let Some(ticket) = begun else { return error };
        // Wait before returning `error`. An error of the wait is ignored, because `error` came first.
        let _ = device.wait(ticket);
        match error.kind() {
            ErrorKind::Lost => error,
            _ => backend_api::Error::new(ErrorKind::KernelFailed, "launch").with_detail(error.to_string()),
        }
    }

    /// Makes the device compile the programs in advance, for runs (contiguous elements on a device) like
    /// `like`. `launch` builds the request for a piece, as in [`submit`](Self::submit).
    pub fn prepare(
        &self,
        device: &dyn Device,
        like: Run<'_>,
        report: HostSpan<'_>,
        launch: impl FnOnce(Run<'_>, &[Elements<'_>]),
    ) {
        // Compile for a run (contiguous elements on a device) without elements. Such a run needs no memory,
        // only an aligned address.
        let (columns, geometry) = like.part(0..0);
        let Some(Elements { start, .. }) = columns.first() else { return };
        let start = start.plus(start.offset().next_multiple_of(ALIGNMENT) - start.offset());
        let elements = |(at, stride)| Elements { start: start.plus(at), count: 0, stride };
        let returned: Vec<_> = self.places(0).map(elements).collect();
        launch(Run { columns: &columns, geometry }, &returned);
        for (number, elements) in returned.iter().enumerate() {
            let compute = self.compute(number, std::slice::from_ref(elements), geometry, report);
            // Ignore an error here, because the later submission returns the same error.
            drop(device.prepare(&[Request::Compute(&compute)]));
        }
    }

    fn compute<'a>(
        &'a self,
        scalar: usize,
        sources: &'a [Elements<'a>],
        geometry: Geometry,
        answer: HostSpan<'a>,
    ) -> Compute<'a> {
        let (value, filter) = (Value(0), None);
        let (least, greatest) = (self.how == How::Least, self.how == How::Greatest);
        let action = match self.how {
            How::Sum => Action::Sum { value, filter, answer },
            How::Least | How::Greatest => Action::Extremes { value, filter, least, greatest, answer },
        };
        Compute { program: &self.scalars[scalar].program, sources, geometry, action }
    }

    fn note(&self, device: &Arc<dyn Device>, ticket: Option<Ticket>) {
        self.begun.lock().extend(ticket.map(|ticket| (Arc::clone(device), ticket)));
    }

    /// Merges the partial results `words` of a run (contiguous elements on a device). Returns the report and
    /// the location of each piece.
    pub fn take(&self, geometry: Geometry, words: &[u64]) -> Vec<(Geometry, Report)> {
        let mut reports = Vec::new();
        let firsts = (geometry.first..).step_by(self.piece_items as usize);
        for (first, words) in firsts.zip(words.chunks_exact(self.piece_words())) {
            let geometry = Geometry { first, ..geometry };
            let (report, answers) = words.split_at(REPORT_WORDS);
            reports.extend(report.try_into().map(|report| (geometry, Report::from_words(report))));
            let scalars = self.scalars.iter().zip(answers.chunks_exact(ANSWER_WORDS));
            let scalars = scalars.map(|(scalar, answer)| self.merged(scalar.of, geometry, answer)).collect();
            self.reduced.lock().push(ReducedPiece { order: (geometry.channel, first), scalars });
        }
        reports
    }

    /// Merges all partial results of a device to one.
    fn merged(&self, of: Type, geometry: Geometry, answer: &[u64]) -> Partial {
        let all = Partial::list(answer);
        let count = all.iter().map(|part| part.count).sum();
        let indexed = |found: Option<(u64, u64)>| {
            let (key, number) = found.unwrap_or_default();
            (key, geometry.index(number))
        };
        match self.how {
            How::Sum if of.is_float() => Partial::of_floats(count, Partial::sum_of_floats(&all)),
            How::Sum => Partial::of_integers(count, Partial::sum_of_integers(&all)),
            How::Least => Partial::of_extremes(count, indexed(Partial::least(&all)), (0, 0)),
            How::Greatest => Partial::of_extremes(count, (0, 0), indexed(Partial::greatest(&all))),
        }
    }

    /// Returns the first error of the submissions. The device must have finished the last submission.
    pub fn outcome(&self) -> backend_api::Result<()> {
        let mut begun = self.begun.lock();
        let waits = begun.drain(..).map(|(device, ticket)| device.wait(ticket));
        waits.fold(Ok(()), backend_api::Result::and)
    }

    /// Discards all results before the launch is repeated.
    pub fn begin_anew(&self) {
        self.reduced.lock().clear();
    }

    /// Returns the partial results of each scalar, in the order of work-items on each channel.
    fn parts(self) -> Vec<Vec<Partial>> {
        let mut reduced = self.reduced.into_inner();
        reduced.sort_by_key(|piece| piece.order);
        let of = |number: usize| reduced.iter().map(|piece| piece.scalars[number]).collect();
        (0..self.scalars.len()).map(of).collect()
    }

    /// Returns the sum of the return values.
    pub fn sum<R: ReturnedSum>(self) -> R::Sum {
        R::sum(&self.parts(), INTERNAL)
    }

    /// Returns the least value of each scalar, as bits; `None` if there were no work-items (GPU threads).
    pub fn least(self) -> Vec<Option<u64>> {
        let types: Vec<_> = self.scalars.iter().map(|scalar| scalar.of).collect();
        let least = |(of, parts): (Type, Vec<Partial>)| {
            let keys = parts.iter().filter(|part| part.count > 0).map(|part| part.words[0]);
            keys.min().map(|key| of.from_key(key))
        };
        types.into_iter().zip(self.parts()).map(least).collect()
    }

    /// Returns the least or greatest return value, and the index of the first work-item (GPU thread) that
    /// returned it.
    pub fn extreme<R: KernelScalar>(self) -> Option<(usize, R)> {
        let (how, start) = (self.how, self.start);
        let parts = self.parts();
        let counted = parts[0].iter().filter(|part| part.count > 0).map(|part| part.words);
        let (key, place) = match how {
            How::Greatest => {
                counted.map(|words| (words[2], words[3])).max_by_key(|(k, at)| (*k, Reverse(*at)))
            }
            How::Sum | How::Least => counted.map(|words| (words[0], words[1])).min(),
        }?;
        Some((place as usize - start, R::from_value(R::TYPE.from_key(key))))
    }
}
