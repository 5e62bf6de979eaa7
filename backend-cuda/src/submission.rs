//! Submission of work to a CUDA queue; keeps the memory that the work uses until the work is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{QueueId, Result, Ticket};
use vmarray_support::contended;

use crate::context::CudaContext;
use crate::core::CudaCore;
use crate::cublas::WORKSPACE_BYTES;
use crate::driver::objects::Stream;
use crate::driver::{DriverResult, StatusCode};
use crate::kernel::scratch;
use crate::memory::DeviceMemory;
use crate::queue::{CudaQueue, SubmissionOrder};
use crate::staging::{Lent, Loan};

/// The maximum bytes of a queue's private heaps, unless one block needs more.
const SLABS_BYTES: u64 = 1 << 30;

impl CudaCore {
    /// Submits work to a queue as one ticket. After a failure, blocks until none of the work is in flight.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        operation: &'static str,
        id: QueueId,
        work: impl FnOnce(&mut CudaSubmission<'_>) -> DriverResult,
    ) -> Result<Ticket> {
        let queue = self.queue(operation, id)?;
        let _current = self.enter(operation)?;
        let mut order = contended::lock(&queue.order);
        if order.ended {
            return Err(self.unknown_queue(operation));
        }
        let value = queue.newest() + 1;
        // Create this guard after the locks. If the program's code in `work` panics, the guard's drop then
        // runs before the unlock and before the restoration of the context.
        let unfinished = Unfinished { core: self, queue: &queue, value };
        let mut submission = CudaSubmission { core: self, queue: &queue, order: &mut order, value };
        let submitted = work(&mut submission).and_then(|()| queue.record(value));
        submitted.map_err(|code| self.error(operation, code))?;
        std::mem::forget(unfinished);
        queue.submitted.store(value, Ordering::Release);
        Ok(queue.ticket(value))
    }
}

/// An unfinished submission: its drop blocks until none of its work is in flight.
struct Unfinished<'a> {
    core: &'a Arc<CudaCore>,
    queue: &'a Arc<CudaQueue>,
    value: u64,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // The program's code may have made another context current, so make the device's current again.
        let drained = self.core.context.enter_again().and_then(|()| self.queue.drain_for_sure());
        if let Err(code) = drained {
            self.core.lose(code);
        }
        self.queue.staging.lock().abandon(self.value, &self.queue.attention);
    }
}

/// A submission in progress. The context is current while it exists.
#[derive(Debug)]
pub(crate) struct CudaSubmission<'a> {
    pub(crate) core: &'a Arc<CudaCore>,
    pub(crate) queue: &'a Arc<CudaQueue>,
    pub(crate) order: &'a mut SubmissionOrder,
    value: u64,
}

impl CudaSubmission<'_> {
    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.core.context
    }

    /// Borrows pinned memory until the submission is done; at most
    /// [`STAGING_BYTES`](crate::staging::STAGING_BYTES).
    pub(crate) fn lend(&mut self, bytes: usize) -> DriverResult<Loan> {
        loop {
            let reached = self.queue.reached(u64::MAX)?;
            let lent = self.queue.staging.lock().lend(
                (self.context(), self.core.card.info.numa_node),
                bytes,
                (self.value, reached),
                &self.queue.attention,
            )?;
            match lent {
                Lent::Piece(loan) => return Ok(loan),
                Lent::After(value) if value < self.value => {
                    self.core.block(self.queue, value);
                    if let Some(code) = self.core.lost() {
                        return Err(code);
                    }
                }
                Lent::After(_) => {
                    // This submission has borrowed all staging memory, so wait for the work it has enqueued.
                    self.queue.drain()?;
                    self.queue.staging.lock().settle(self.value, &self.queue.attention);
                }
            }
        }
    }

    /// Borrows pinned memory with two zeroes, which an indexed kernel overwrites to make the ticket fail.
    pub(crate) fn report(&mut self, operation: &'static str, first: u64) -> DriverResult<u64> {
        let loan = self.lend(16)?;
        // SAFETY: the loan has 16 bytes, and no work in flight uses them.
        unsafe { loan.host.write_bytes(0, 16) };
        self.queue.staging.lock().expect_report(operation, first, &self.queue.attention);
        Ok(loan.mapped)
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.queue.stream
    }

    /// Returns the address of the queue's scratch memory on the GPU, which has data of earlier work.
    pub(crate) fn scratch(&mut self) -> DriverResult<u64> {
        if let Some(scratch) = &self.order.scratch {
            return Ok(scratch.address);
        }
        let scratch = DeviceMemory::new(self.context(), scratch::BYTES)?;
        (self.order.search_ready, self.order.launch_ready) = (false, false);
        Ok(self.order.scratch.insert(scratch).address)
    }

    /// Returns the address of the queue's [workspace](WORKSPACE_BYTES) for matrix products.
    pub(crate) fn workspace(&mut self) -> DriverResult<u64> {
        if self.order.workspace.is_none() {
            self.order.workspace = Some(DeviceMemory::new(self.context(), WORKSPACE_BYTES)?);
        }
        Ok(self.order.workspace.as_ref().map_or(0, |workspace| workspace.address))
    }

    /// Returns at least `bytes` bytes on the GPU, as an intermediate buffer for pageable memory.
    pub(crate) fn bounce(&mut self, bytes: u64) -> DriverResult<u64> {
        if let Some(bounce) = &self.order.bounce
            && bounce.bytes() >= bytes
        {
            return Ok(bounce.address);
        }
        // Wait, because work in flight may still use the old scratch memory.
        self.queue.drain()?;
        self.order.bounce = None;
        let bounce = DeviceMemory::new(self.context(), bytes)?;
        Ok(self.order.bounce.insert(bounce).address)
    }

    /// Allocates private heaps: `of_block` bytes for each of `blocks` blocks. Returns the address and the
    /// number of blocks, which is lower if the memory would be too large or the GPU is full.
    pub(crate) fn slabs(&mut self, of_block: u64, blocks: u64) -> DriverResult<(u64, u64)> {
        if of_block == 0 {
            return Ok((0, blocks));
        }
        let mut blocks = blocks.clamp(1, (SLABS_BYTES / of_block).max(1));
        let found =
            self.order.slabs.as_ref().map_or((0, 0), |slabs| (slabs.address, slabs.bytes() / of_block));
        // Do not request a refused length again if the existing memory suffices for one block.
        if found.1 >= blocks || (found.1 > 0 && blocks * of_block <= self.order.slabs_wanted) {
            return Ok((found.0, blocks.min(found.1)));
        }
        // Wait, because work in flight may still use the old private heap.
        self.queue.drain()?;
        self.order.slabs = None;
        self.order.slabs_wanted = blocks * of_block;
        loop {
            match DeviceMemory::new(self.context(), blocks * of_block) {
                Err(StatusCode::OUT_OF_MEMORY) if blocks > 1 => blocks /= 2,
                made => return Ok((self.order.slabs.insert(made?).address, blocks)),
            }
        }
    }

    /// Enqueues a copy of bytes to device memory. At most [`STAGING_BYTES`](crate::staging::STAGING_BYTES).
    pub(crate) fn send(&mut self, bytes: &[u8], to: u64) -> DriverResult {
        let loan = self.lend(bytes.len())?;
        // SAFETY: the loan has this length, and no work in flight uses it.
        unsafe { loan.host.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: the loan lasts until the submission is done; the caller passes an address with room.
        unsafe { self.stream().upload(to, loan.host.expose_provenance() as u64, bytes.len() as u64) }
    }
}
