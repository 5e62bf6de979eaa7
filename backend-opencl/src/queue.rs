//! In-order queue of an OpenCL device: enqueues commands, and owns kernel objects and scratch memory.

use std::ffi::c_void;
use std::sync::Arc;

use backend_api::{Error, ErrorKind, QueueId, QueueProgress, Result, Ticket};
use parking_lot::{Mutex, MutexGuard};
use vmarray_support::{Queues, contended};

use crate::batch::Batch;
use crate::completion::{Keep, KernelVerdict, Mark, Track};
use crate::core::OpenClCore;
use crate::driver::objects::{CommandQueue, DriverArgument, Event, EventPlace, Memory, Program, Status};
use crate::host_memory::HostPiece;
use crate::kernel::KernelSet;
use crate::kernel_clock::{ClockUse, KernelClock};
use crate::memory::OwnMemory;
use crate::retry::{PATIENCE, insist, keep_for_good};
use crate::uses::UsingQueue;

/// Number of unfinished submissions at which the queue polls for finished ones, and again after every further
/// `BACKLOG` submissions. Programs that never poll a ticket must not fill the memory.
const BACKLOG: usize = 64;

/// Counts of the driver calls of a device's queues since the device was opened.
///
/// ```
/// if let Some(found) = backend_opencl::devices().first() {
///     let device = backend_opencl::OpenClDevice::open(found, &backend_opencl::OpenClOptions::new())?;
///     assert_eq!(device.statistics().copies, 0);
/// }
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Number of copy commands, after adjacent copies were merged; includes copies that kernels need.
    pub copies: u64,
    /// Number of bytes that the copy commands move.
    pub copied_bytes: u64,
    /// Number of kernel launches.
    pub launches: u64,
    /// Number of tickets, one for each submission.
    pub tickets: u64,
    /// Number of OpenCL programs that the driver built for expressions and kernels of the user's program. The
    /// backend builds a kernel once for each layout of its operands, not for each array.
    pub translations: u64,
}

impl std::ops::AddAssign for Statistics {
    fn add_assign(&mut self, other: Self) {
        self.copies += other.copies;
        self.copied_bytes += other.copied_bytes;
        self.launches += other.launches;
        self.tickets += other.tickets;
        self.translations += other.translations;
    }
}

#[derive(Debug)]
pub(crate) struct OpenClQueue {
    core: Arc<OpenClCore>,
    pub track: Arc<Track>,
    commands: CommandQueue,
    submit: Mutex<SubmitState>,
}

/// The part of a queue's state that submissions use; its lock orders submissions.
#[derive(Debug, Default)]
struct SubmitState {
    closed: bool,
    /// The value of the newest ticket.
    newest: u64,
    kernels: KernelSet,
    scratch: [Option<Arc<OwnMemory>>; QueueScratch::COUNT],
    mailbox: Option<Arc<Mailbox>>,
    /// The clock for launches with a time limit.
    clock: Option<Arc<KernelClock>>,
    statistics: Statistics,
    /// List of copies, reused by each call.
    batch: Batch,
}

/// Scratch memory of a queue on the device. Work in one queue runs in order, so calls can reuse it.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum QueueScratch {
    /// Values to search for, and patterns of fills.
    Parameters,
    /// Number of matches of each chunk, state of a search, and positions of the chunks' matches.
    Counts,
    State,
    Offsets,
    /// Answer of a search.
    Answer,
    /// Copies of elements that span two pieces.
    Straddlers,
    /// Indices and values of a gather or scatter, and a flag for an index out of bounds.
    Indices,
    Values,
    Failure,
    /// Report about a function call that exceeded its time limit.
    Late,
    /// Private heaps of a kernel's work-items.
    PrivateHeaps,
    /// Saved registers of the items of a group, if one work-item runs the group.
    Kept,
    /// The list of pieces for the copy kernel.
    Copies,
}

impl QueueScratch {
    const COUNT: usize = Self::Copies as usize + 1;
}

/// Page-locked host memory for the few bytes by which a kernel reports a bad input: a ring with an entry for
/// each of the newest tickets.
#[derive(Debug)]
struct Mailbox(HostPiece);

impl Mailbox {
    const BYTES: usize = 16;
    const PLACES: u64 = 256;
}

impl OpenClQueue {
    pub fn new(id: QueueId, core: &Arc<OpenClCore>) -> Status<Arc<Self>> {
        let commands = core.context.queue(core.handles.device)?;
        Ok(Arc::new(Self {
            core: Arc::clone(core),
            track: Track::new(core, id),
            commands,
            submit: Mutex::default(),
        }))
    }

    /// Begins a submission. Other threads cannot submit until it ends. Driver errors get the kind `kind`.
    ///
    /// # Errors
    /// `UnknownHandle` for a queue that was closed, `Lost`.
    pub fn begin(self: &Arc<Self>, operation: &'static str, kind: ErrorKind) -> Result<OpenClSubmission<'_>> {
        let state = contended::lock(&self.submit);
        if state.closed {
            return Err(Queues::<Self>::unknown(operation).on(&self.core.info));
        }
        self.core.alive(operation)?;
        Ok(OpenClSubmission {
            queue: self,
            core: &self.core,
            state,
            operation,
            kind,
            event: None,
            verdict: None,
            keep: Vec::new(),
            began: false,
        })
    }

    /// Makes later commands of this queue wait for `mark`, a submission to another queue.
    pub fn order_after(self: &Arc<Self>, mark: &Mark) -> Result<()> {
        let submission = self.begin("order_after", ErrorKind::Driver)?;
        let result = self.commands.barrier(mark.event()).and_then(|()| self.commands.flush());
        result.map_err(|status| submission.core.fail("order_after", ErrorKind::Driver, status))
    }

    /// Returns the counts of the queue's driver calls so far.
    pub fn statistics(&self) -> Statistics {
        self.submit.lock().statistics
    }

    /// Refuses further submissions, and blocks until all work is done. Returns the newest ticket value.
    pub fn close(self: &Arc<Self>) -> u64 {
        let newest = {
            let mut state = self.submit.lock();
            state.closed = true;
            state.newest
        };
        self.wait_quietly(newest);
        if self.core.is_lost() && !self.track.is_over(newest) {
            // Never drop this queue: later releases of memory must find that its work may continue.
            keep_for_good(Arc::clone(self));
        }
        newest
    }

    /// Blocks until a ticket value is done or has failed, or the device is gone; ignores the result.
    fn wait_quietly(&self, value: u64) {
        // Ignore the outcome, because any outcome ends the wait.
        if value > 0 && !self.core.is_gone() {
            drop(self.track.wait(value));
        }
    }
}

impl UsingQueue for OpenClQueue {
    fn wait_for_noted(&self, value: u64) -> bool {
        // A thread may still be submitting `value`. That thread holds the queue's lock until the submission
        // has started or failed, so lock the queue to wait for this.
        let newest = self.submit.lock().newest;
        self.wait_quietly(value.min(newest));
        !self.core.is_lost() || self.track.is_over(value)
    }

    fn is_pending(&self, value: u64) -> bool {
        self.track.timeline.poll(value) == Ok(QueueProgress::Pending)
    }

    fn settle(&self, value: u64) {
        self.track.settle(value);
    }
}

/// A submission in progress, which [`finish`](Self::finish) ends. If an error drops it earlier, the drop
/// blocks until its enqueued commands are done, because no work of a failed call may be in flight.
pub(crate) struct OpenClSubmission<'q> {
    queue: &'q Arc<OpenClQueue>,
    pub core: &'q OpenClCore,
    state: MutexGuard<'q, SubmitState>,
    operation: &'static str,
    kind: ErrorKind,
    event: Option<Event>,
    verdict: Option<KernelVerdict>,
    keep: Vec<Keep>,
    /// True if the submission has enqueued a command.
    began: bool,
}

impl<'q> OpenClSubmission<'q> {
    pub fn queue(&self) -> &'q Arc<OpenClQueue> {
        self.queue
    }

    /// Returns the value of the ticket (submission number) that [`finish`](Self::finish) will return.
    pub fn value(&self) -> u64 {
        self.state.newest + 1
    }

    fn refused(&self, status: i32) -> Error {
        self.core.fail(self.operation, self.kind, status)
    }

    /// Takes the queue's reusable list of copies. Return the list with [`put_batch`](Self::put_batch).
    pub fn take_batch(&mut self) -> Batch {
        std::mem::take(&mut self.state.batch)
    }

    pub fn put_batch(&mut self, mut batch: Batch) {
        batch.clear();
        self.state.batch = batch;
    }

    /// Keeps a value alive until the submission is done.
    pub fn keep(&mut self, thing: impl Send + Sync + 'static) {
        self.keep.push(Box::new(thing));
    }

    /// Enqueues one command. If `last` is true, the command gets the submission's event.
    fn command(
        &mut self,
        last: bool,
        enqueue: impl FnOnce(&CommandQueue, EventPlace<'_>) -> Status<()>,
    ) -> Result<()> {
        self.began = true;
        let event = last.then_some(&mut self.event);
        enqueue(&self.queue.commands, event).map_err(|status| self.refused(status))
    }

    fn count(&mut self, bytes: u64) {
        self.state.statistics.copies += 1;
        self.state.statistics.copied_bytes += bytes;
    }

    /// Enqueues a copy from a buffer to host memory. `last` is true for the last command of the submission.
    ///
    /// # Safety
    /// The range is inside of the buffer; `to` is writable for `bytes` bytes until the submission is done.
    pub unsafe fn read(
        &mut self,
        from: &Memory,
        offset: u64,
        to: *mut u8,
        bytes: u64,
        last: bool,
    ) -> Result<()> {
        self.count(bytes);
        // SAFETY: guaranteed by the caller.
        self.command(last, |queue, place| unsafe { queue.read(from, offset, to, bytes as usize, place) })
    }

    /// Enqueues a copy from host memory to a buffer. `last` is true for the last command of the submission.
    ///
    /// # Safety
    /// The range is inside of the buffer; `from` is readable for `bytes` bytes until the submission is done.
    pub unsafe fn write(
        &mut self,
        from: *const u8,
        to: &Memory,
        offset: u64,
        bytes: u64,
        last: bool,
    ) -> Result<()> {
        self.count(bytes);
        // SAFETY: guaranteed by the caller.
        self.command(last, |queue, place| unsafe { queue.write(from, to, offset, bytes as usize, place) })
    }

    pub fn copy(&mut self, from: (&Memory, u64), to: (&Memory, u64), bytes: u64, last: bool) -> Result<()> {
        self.count(bytes);
        self.command(last, |queue, place| queue.copy(from, to, bytes as usize, place))
    }

    /// Enqueues a copy of `bytes` to the start of a scratch buffer on the device. The submission owns
    /// `bytes`.
    pub fn upload(&mut self, bytes: Vec<u8>, to: &Memory) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let bytes: Box<[u8]> = bytes.into();
        let (from, length) = (bytes.as_ptr(), bytes.len() as u64);
        self.keep(bytes);
        // SAFETY: the box does not move, and lives until the submission is done: `keep` moves into the
        // mark, or a failed submission is waited for before it is dropped.
        unsafe { self.write(from, to, 0, length, false) }
    }

    /// Enqueues a launch of this backend's kernel `name`, with `groups` work-groups.
    ///
    /// # Safety
    /// With these arguments, the kernel only accesses its buffers.
    pub unsafe fn launch(
        &mut self,
        name: &str,
        groups: usize,
        arguments: &[DriverArgument<'_>],
    ) -> Result<()> {
        let kernels = &self.core.kernels;
        let result = self.state.kernels.prepare(kernels, name, arguments).and_then(|kernel| {
            // SAFETY: guaranteed by the caller.
            unsafe { self.queue.commands.launch(kernel, groups, kernels.group) }
        });
        self.launched(name, result)
    }

    /// Enqueues a launch of kernel `name` of `program`, with `groups` work-groups of `group` work-items each.
    ///
    /// # Safety
    /// With these arguments, the kernel only accesses its buffers.
    pub unsafe fn launch_of(
        &mut self,
        program: &Program,
        name: &str,
        (groups, group): (usize, usize),
        arguments: &[DriverArgument<'_>],
    ) -> Result<()> {
        let result = program.kernel(name).and_then(|mut kernel| {
            kernel.set(arguments)?;
            // SAFETY: guaranteed by the caller. The driver keeps the kernel as long as it runs.
            unsafe { self.queue.commands.launch(&kernel, groups, group) }
        });
        self.launched(name, result)
    }

    /// Calls a function of the program that submits commands to the queue itself. The function receives the
    /// OpenCL handles of context and queue.
    pub fn foreign(&mut self, submit: impl FnOnce(*mut c_void, *mut c_void) -> Result<()>) -> Result<()> {
        self.began = true;
        submit(self.core.context.handle(), self.queue.commands.handle())
    }

    fn launched(&mut self, name: &str, result: Status<()>) -> Result<()> {
        self.began = true;
        self.state.statistics.launches += 1;
        result.map_err(|status| self.refused(status).with_detail(format!("kernel {name}")))
    }

    /// Returns at least `bytes` bytes of scratch memory on the device: zeroes or contents of its last use.
    ///
    /// The returned handle shares ownership; drivers keep buffers that commands use.
    pub fn scratch(&mut self, which: QueueScratch, bytes: u64) -> Result<Arc<OwnMemory>> {
        let place = which as usize;
        if let Some(memory) = &self.state.scratch[place]
            && memory.bytes as u64 >= bytes
        {
            return Ok(Arc::clone(memory));
        }
        if let Some(outgrown) = self.state.scratch[place].take() {
            self.keep(outgrown);
        }
        // Double the length, starting at 4 KiB, to grow rarely.
        let length = bytes.max(4096).checked_next_power_of_two().unwrap_or(bytes);
        let length =
            if length > self.core.info.largest_allocation_bytes.max(1 << 20) { bytes } else { length };
        let full = |error: Error| {
            error.with_bytes(length).with_detail("no device memory for the scratch memory of a queue")
        };
        let size = usize::try_from(length)
            .map_err(|_| full(Error::new(ErrorKind::OutOfMemory, self.operation).on(&self.core.info)))?;
        let memory = OwnMemory::new(&self.queue.core, size).map_err(|status| full(self.refused(status)))?;
        let memory = Arc::new(memory);
        // Clear the memory, because data of other programs must not appear in a result.
        let vectors = length / 16;
        let arguments = [
            DriverArgument::Buffer(&memory),
            DriverArgument::U64(0),
            DriverArgument::U64(vectors),
            DriverArgument::Vector([0; 4]),
        ];
        // SAFETY: `vectors` times 16 bytes fit into the buffer.
        let cleared = unsafe { self.launch("fill_same", self.core.kernels.groups_for(vectors), &arguments) };
        match cleared {
            Ok(()) => self.state.scratch[place] = Some(Arc::clone(&memory)),
            // The clearing failed, and the driver may still use the memory, so keep it.
            Err(_) => self.keep(Arc::clone(&memory)),
        }
        cleared.map(|()| memory)
    }

    /// Reserves 16 bytes of host memory until the submission is done, and returns their address. The caller
    /// submits a kernel or a copy that writes a result there. When the submission is done, the backend calls
    /// `judge` with the 16 bytes; `judge` may return an error for the ticket.
    ///
    /// # Errors
    /// The errors of an allocation of host memory.
    pub fn verdict(
        &mut self,
        judge: impl Fn([u32; 4]) -> Option<Error> + Send + Sync + 'static,
    ) -> Result<*mut u8> {
        let value = self.value();
        let mailbox = match &self.state.mailbox {
            Some(mailbox) => Arc::clone(mailbox),
            None => {
                let bytes = Mailbox::BYTES * Mailbox::PLACES as usize;
                let core = &self.queue.core;
                let piece = HostPiece::allocate(core, bytes, backend_api::HostMemory::Pinned)
                    .or_else(|_| HostPiece::allocate(core, bytes, backend_api::HostMemory::Pageable))?;
                let mailbox = Arc::new(Mailbox(piece));
                self.state.mailbox = Some(Arc::clone(&mailbox));
                mailbox
            }
        };
        if value > Mailbox::PLACES {
            // Wait for the submission that last used this entry. Nearly always, it has ended long ago.
            self.queue.track.settle(value - Mailbox::PLACES);
        }
        let place = value % Mailbox::PLACES * Mailbox::BYTES as u64;
        let address = mailbox.0.at(place);
        self.verdict = Some(Box::new(move || {
            let mut words = [0_u32; 4];
            // SAFETY: the place is in the mailbox; the device does not use it any more, and its next user
            // waits for this ticket.
            unsafe {
                backend_api::racy::copy(mailbox.0.at(place), words.as_mut_ptr().cast(), Mailbox::BYTES)
            };
            judge(words)
        }));
        Ok(address)
    }

    /// Starts the queue's clock until the submission is done, and returns the clock's address. Returns `None`
    /// if kernels of the device cannot read a clock, or if there is no memory or thread for a clock.
    pub fn start_clock(&mut self) -> Option<*mut u8> {
        if self.state.clock.is_none() {
            self.state.clock = KernelClock::new(&self.queue.core).map(Arc::new);
        }
        let clock = self.state.clock.clone()?;
        self.keep(ClockUse::start(&clock)?);
        Some(clock.address())
    }

    /// Blocks until the commands enqueued so far are done, in the middle of a submission.
    pub fn drain(&mut self) -> Result<()> {
        self.queue.commands.finish().map_err(|status| self.refused(status))
    }

    /// Ends the submission and returns its ticket, by which callers poll or wait.
    pub fn finish(mut self) -> Result<Ticket> {
        self.began = true;
        let event = match self.event.take() {
            Some(event) => event,
            None => self.queue.commands.marker().map_err(|status| self.refused(status))?,
        };
        self.queue.commands.flush().map_err(|status| self.refused(status))?;
        let value = self.value();
        let keep = std::mem::take(&mut self.keep);
        let mark = Mark::new(value, event, self.operation, self.kind, self.verdict.take(), keep);
        let track = &self.queue.track;
        track.push(mark);
        let ticket = track.timeline.begin()?;
        self.state.newest = ticket.value;
        self.state.statistics.tickets += 1;
        self.began = false;
        let backlog = track.backlog();
        drop(self);
        if backlog >= BACKLOG && backlog.is_multiple_of(BACKLOG) {
            // Record completed submissions, but run no wakers, because callers may hold locks.
            track.collect(u64::MAX);
        }
        Ok(ticket)
    }
}

impl Drop for OpenClSubmission<'_> {
    fn drop(&mut self) {
        if !self.began {
            return;
        }
        if let Err(status) = insist(PATIENCE, || self.queue.commands.finish()) {
            // Never release this submission's memory, because enqueued commands may still use it.
            self.queue.track.lose_sight();
            self.core.give_up(self.operation, status);
            keep_for_good((self.verdict.take(), std::mem::take(&mut self.keep)));
        }
    }
}
