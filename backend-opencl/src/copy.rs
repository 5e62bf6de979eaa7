//! Copies of an OpenCL device: merges adjacent copies, and executes them by commands or by a kernel.
//!
//! Copies that are adjacent both in device memory and in host memory are merged. A driver takes some
//! microseconds for each remaining copy, so one kernel executes many small copies. It copies directly between
//! device memory and host memory if kernels can access the host memory. Otherwise, if the host side is one
//! range, the kernel copies to or from scratch memory on the device, and one long copy moves the scratch
//! memory.

use std::sync::Arc;

use backend_api::{DeviceKind, DeviceSpan, HostSpan, Result, Route, Routing, Transfer};
use vmarray_support::backends::MemoryTable;
use vmarray_support::backends::copies::joined;

use crate::batch::{Batch, OtherSide, ResolvedCopy};
use crate::driver::objects::DriverArgument;
use crate::host_memory::HostPiece;
use crate::kernel::indexed::piece_arguments;
use crate::memory::Buffer;
use crate::queue::{OpenClSubmission, QueueScratch};

/// Number of copies from which a kernel is worth its overhead: a short upload and a launch.
const KERNEL_COPIES: usize = 8;
/// Maximum mean length in bytes of copies by kernel. The bus limits longer copies, not the driver. (A GPU on
/// PCIe 5 x16 moves single copies of 256 KiB at two thirds of its bandwidth.)
const KERNEL_COPY_BYTES: u64 = 256 << 10;
/// The same limit for a processor, whose kernels copy slower than its `memcpy` (PoCL 3.1: 4 KiB gain a fifth,
/// 64 KiB lose).
const KERNEL_COPY_BYTES_CPU: u64 = 8 << 10;
/// Maximum bytes that are copied through scratch memory at once.
const PACKED_BYTES: u64 = 32 << 20;
/// Number of buffers (pieces of memory) that the copy kernel can access.
const KERNEL_PIECES: usize = 8;

impl Batch {
    /// Adds checked copies to the batch, and records that the submission uses their memory.
    pub fn add(
        &mut self,
        memory: &MemoryTable<Buffer, HostPiece>,
        transfers: &[Transfer<'_>],
        submission: &OpenClSubmission<'_>,
    ) -> Result<()> {
        let (queue, value) = (submission.queue(), submission.value());
        let device = |at: DeviceSpan<'_>| {
            let buffer = memory.buffer("submit", at.buffer())?;
            buffer.uses.note(queue, value);
            Ok(Arc::clone(buffer))
        };
        let host = |at: HostSpan<'_>| {
            let host = memory.host("submit", at.host())?;
            host.uses.note(queue, value);
            Ok(OtherSide::Host(Arc::clone(host)))
        };
        for copy in joined(transfers) {
            let (place, other, at, to_device) = match copy {
                Transfer::Upload { from, to, .. } => (to, host(from)?, from.offset(), true),
                Transfer::Download { from, to, .. } => (from, host(to)?, to.offset(), false),
                Transfer::Internal { from, to, .. } => {
                    (to, OtherSide::Device(device(from)?), from.offset(), true)
                }
            };
            let (buffer, offset, bytes) = (device(place)?, place.offset(), copy.bytes());
            self.copies.push(ResolvedCopy { to_device, buffer, offset, other, at, bytes });
        }
        Ok(())
    }

    /// Enqueues all copies of the batch, by the route `forced` if it is given. If the last command is a
    /// single copy, it gets the submission's event.
    pub fn enqueue(&self, submission: &mut OpenClSubmission<'_>, forced: Option<Route>) -> Result<()> {
        for copy in &self.copies {
            match copy.host() {
                Some(host) if copy.to_device => host.await_writes(copy.at, copy.bytes),
                Some(host) => {
                    host.will_be_written(submission.queue(), submission.value(), copy.at, copy.bytes);
                }
                None => {}
            }
        }
        let (kind, routing) = (submission.core.info.kind, *submission.core.routing.read());
        let mut copies = self.copies.as_slice();
        while !copies.is_empty() {
            let run = Run::new(copies);
            let (now, rest) = copies.split_at(run.as_ref().map_or(1, |run| run.copies.len()));
            match run.filter(|run| run.goes_by_kernel(kind, forced, &routing)) {
                Some(run) => run.enqueue(submission)?,
                None => {
                    for (at, copy) in now.iter().enumerate() {
                        enqueue_one(copy, submission, rest.is_empty() && at + 1 == now.len())?;
                    }
                }
            }
            copies = rest;
        }
        Ok(())
    }
}

/// Run: copies in one direction between a buffer and an allocation of host memory, for one kernel.
struct Run<'a> {
    copies: &'a [ResolvedCopy],
    first: &'a ResolvedCopy,
    host: &'a HostPiece,
    bytes: u64,
}

impl<'a> Run<'a> {
    /// Returns the longest run at the start of `copies`.
    fn new(copies: &'a [ResolvedCopy]) -> Option<Self> {
        let first = copies.first()?;
        let host = first.host()?;
        let (mut bytes, mut length) = (0, 0);
        let in_place = host.for_kernels().is_some();
        for copy in copies {
            let same = copy.host().is_some_and(|its| Arc::ptr_eq(host, its))
                && copy.to_device == first.to_device
                && Arc::ptr_eq(&first.buffer, &copy.buffer);
            let follows = copy.at == first.at + bytes;
            // Always accept the first copy, even if it is too long to be combined with other copies.
            let fits = length == 0 || in_place || (follows && bytes + copy.bytes <= PACKED_BYTES);
            if !same || !fits {
                break;
            }
            bytes += copy.bytes;
            length += 1;
        }
        Some(Self { copies: &copies[..length], first, host, bytes })
    }

    /// Returns true if a kernel executes the run: if it can, and if this route is requested, measured as the
    /// best, or assumed to be better.
    fn goes_by_kernel(&self, kind: DeviceKind, forced: Option<Route>, routing: &Routing) -> bool {
        let count = self.copies.len();
        if count < 2 || self.first.buffer.pieces.len() > KERNEL_PIECES || u32::try_from(count).is_err() {
            return false;
        }
        let measured = || {
            let table = if self.first.to_device { Routing::upload } else { Routing::download };
            table(routing, count, self.bytes)
        };
        match forced.or_else(measured) {
            Some(Route::Kernel) => true,
            Some(Route::Single) => false,
            _ => {
                let most = if kind == DeviceKind::Cpu { KERNEL_COPY_BYTES_CPU } else { KERNEL_COPY_BYTES };
                count >= KERNEL_COPIES && self.bytes / count as u64 <= most
            }
        }
    }

    fn enqueue(&self, submission: &mut OpenClSubmission<'_>) -> Result<()> {
        let start = self.first.at;
        // If the kernel accesses host memory in place, offsets count from the start of the kernel argument.
        // In scratch memory, offsets count from the first byte of these copies.
        let in_place = self.host.for_kernels();
        let place = |at: u64| match in_place {
            Some((_, from)) => from + at,
            None => at - start,
        };
        let (mut description, mut alignment, mut longest) =
            (Vec::with_capacity(self.copies.len() * 24), 16, 0);
        for copy in self.copies {
            longest = longest.max(copy.bytes);
            for number in [copy.offset, place(copy.at), copy.bytes] {
                alignment |= number;
                description.extend_from_slice(&number.to_ne_bytes());
            }
        }
        let width = match alignment.trailing_zeros() {
            4.. => 16,
            2 | 3 => 4,
            _ => 1,
        };
        let group = submission.core.kernels.group as u64;
        // Divide long copies among several work-groups: each work-item copies about eight words.
        let split = (longest / (group * width * 8)).clamp(1, 64);
        let groups = submission.core.kernels.groups_up_to(self.copies.len() as u64 * split);

        let copies = submission.scratch(QueueScratch::Copies, description.len() as u64)?;
        submission.upload(description, &copies)?;
        let scratch = match in_place {
            Some(_) => None,
            None => Some(submission.scratch(QueueScratch::Values, self.bytes)?),
        };
        let other = match (&in_place, &scratch) {
            (Some((memory, _)), _) => *memory,
            (None, Some(scratch)) => DriverArgument::Buffer(scratch),
            (None, None) => return Ok(()),
        };
        let mut arguments = piece_arguments(&self.first.buffer, 0).to_vec();
        arguments.extend([
            other,
            DriverArgument::Buffer(&copies),
            DriverArgument::U32(self.copies.len() as u32),
            DriverArgument::U32(split as u32),
            DriverArgument::U32(self.first.to_device.into()),
        ]);
        let address = self.host.at(start);
        if let (Some(scratch), true) = (&scratch, self.first.to_device) {
            // SAFETY: the ranges were checked and are adjacent; the host memory recorded this submission
            // and lives until it is done.
            unsafe { submission.write(address, scratch, 0, self.bytes, false)? };
        }
        // SAFETY: the ranges were checked, the kernel has all pieces, and scratch memory has room for all
        // copies.
        unsafe { submission.launch(&format!("copy_{width}"), groups, &arguments)? };
        if let (Some(scratch), false) = (&scratch, self.first.to_device) {
            // SAFETY: as for writing.
            unsafe { submission.read(scratch, 0, address, self.bytes, false)? };
        }
        Ok(())
    }
}

fn enqueue_one(copy: &ResolvedCopy, submission: &mut OpenClSubmission<'_>, last: bool) -> Result<()> {
    let ResolvedCopy { to_device, buffer, offset, other, at, bytes } = copy;
    for part in buffer.parts(*offset, *bytes) {
        let memory = &buffer.pieces[part.piece];
        let is_end = |done: u64| last && done == *bytes;
        match other {
            OtherSide::Host(host) => {
                let (address, last) = (host.at(at + part.before), is_end(part.before + part.bytes));
                // SAFETY: the ranges were checked; both pieces of memory recorded this submission and live
                // until it is done.
                unsafe {
                    match to_device {
                        true => submission.write(address, memory, part.offset, part.bytes, last)?,
                        false => submission.read(memory, part.offset, address, part.bytes, last)?,
                    }
                }
            }
            OtherSide::Device(source) => {
                for inner in source.parts(at + part.before, part.bytes) {
                    let from = (&**source.pieces[inner.piece], inner.offset);
                    let to = (&***memory, part.offset + inner.before);
                    let last = is_end(part.before + inner.before + inner.bytes);
                    submission.copy(from, to, inner.bytes, last)?;
                }
            }
        }
    }
    Ok(())
}
