//! Random numbers of a simulated device, and the random bytes that it writes to new or lost memory.

use std::ops::Range;

use backend_api::kernel::Report;
use backend_api::racy;
use backend_api::wrap::SplitMix64;

use crate::handle_table::MemoryPlace;
use crate::host_memory::HostMemoryPiece;
use crate::job::HostSubmission;
use crate::kernel::copy::CheckedCopy;
use crate::ram::Ram;

/// Random generator; equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub(super) struct Chance(SplitMix64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Returns a random number, at least 0 and below 1.
    pub fn fraction(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a random number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// Fills a part of new memory with random bytes. To bound the time, fills at most `LITTERED_MAX_BYTES`.
    pub fn litter_new(&mut self, ram: &Ram, part: Range<u64>) {
        const LITTERED_MAX_BYTES: u64 = 64 << 20;
        let bytes = (part.end - part.start).min(LITTERED_MAX_BYTES);
        // SAFETY: inside memory that no other code knows yet.
        unsafe { self.litter(ram.at(part.start), bytes as usize) };
    }

    /// Writes random bytes.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes; other threads may race as [`racy`] describes.
    unsafe fn litter(&mut self, to: *mut u8, bytes: usize) {
        let block: [u64; 512] = std::array::from_fn(|_| self.0.next());
        let mut done = 0;
        while done < bytes {
            let part = size_of_val(&block).min(bytes - done);
            // SAFETY: the caller guarantees the target.
            unsafe { racy::write(to.add(done), &bytemuck::bytes_of(&block)[..part]) };
            done += part;
        }
    }

    fn litter_host(&mut self, at: &MemoryPlace<HostMemoryPiece>, bytes: u64) {
        // SAFETY: only called for ranges that were checked at submission, in memory that the work keeps
        // alive.
        unsafe { self.litter(at.memory.at(at.offset), bytes as usize) }
    }

    fn litter_device(&mut self, at: &MemoryPlace<Ram>, bytes: u64) {
        // SAFETY: as above.
        unsafe { self.litter(at.memory.at(at.offset), bytes as usize) }
    }

    /// Writes random bytes to the target of a gather before the gather runs: the device contract leaves the
    /// values of skipped entries unspecified.
    pub fn litter_left_out(&mut self, work: &HostSubmission<Ram>) {
        if let HostSubmission::Indexed(indexed) = work
            && indexed.is_gather()
        {
            self.litter_host(&indexed.values, indexed.bytes());
        }
    }

    /// Writes random bytes to the targets of copies within or between devices, to simulate a broken link.
    pub fn falsify(&mut self, work: &HostSubmission<Ram>) {
        let HostSubmission::Copies(copies) = work else { return };
        for copy in copies.as_slice() {
            if let CheckedCopy::Internal { to, bytes, .. } = copy {
                self.litter_device(to, *bytes);
            }
        }
    }

    /// Executes a part of the failed `work`, and writes random bytes to a part of the target that is left.
    pub fn spoil(&mut self, work: &HostSubmission<Ram>) {
        match work {
            HostSubmission::Copies(copies) => {
                for copy in copies.as_slice() {
                    match self.below(3) {
                        0 => {}
                        1 => {
                            let _ = copy.run(0, self.below(copy.bytes() + 1) as usize);
                        }
                        _ => match copy {
                            CheckedCopy::Download { to, bytes, .. } => self.litter_host(to, *bytes),
                            CheckedCopy::Upload { to, bytes, .. }
                            | CheckedCopy::Internal { to, bytes, .. } => {
                                self.litter_device(to, *bytes);
                            }
                        },
                    }
                }
            }
            HostSubmission::Fill(fill) => {
                let bytes = self.below(fill.bytes + 1);
                self.litter_device(&fill.to, bytes);
            }
            HostSubmission::Compute(compute) => {
                if let Some(answer) = &compute.answer {
                    self.litter_host(answer, compute.answer_bytes());
                }
                for (source, bytes) in compute.written() {
                    self.litter_device(&compute.sources[source], bytes);
                }
            }
            HostSubmission::Launch(launch) => {
                self.litter_host(&launch.report, Report::BYTES);
                for (base, bytes) in launch.views.iter().flat_map(|view| &view.bases) {
                    self.litter_device(base, *bytes);
                }
            }
            HostSubmission::Indexed(indexed) => {
                // Ignore an error: an index out of bounds may end the work early, as on a real device.
                let _ = indexed.run_first(self.below(indexed.count + 1));
                if indexed.is_gather() {
                    let bytes = self.below(indexed.bytes() + 1);
                    self.litter_host(&indexed.values, bytes);
                }
            }
        }
    }
}
