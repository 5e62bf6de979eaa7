//! Setup of a benchmark run: its devices, the sizes of its arrays, its numbers of threads, and its durations.

use super::elements::Payload;
use super::measure::{Effort, on_threads};
use crate::project;
use anyhow::Result;
use std::ops::Range;
use std::sync::Arc;
use vmarray::device::DeviceKind;
use vmarray::prelude::*;
use vmarray::{AnyDevice, VirtualArray, device::Device};

/// The devices, threads, sizes and effort of a run, which all workloads share.
pub struct Setup {
    pub devices: Vec<Arc<AnyDevice>>,
    /// The number of threads that workloads with several threads use.
    pub threads: usize,
    /// True if all sizes are small, and all repetitions short.
    pub quick: bool,
    /// True if only the arrays are measured, each time that the parent process requests it (see `turns`).
    pub is_in_turns: bool,
    /// True if pages of the arrays have checksums.
    pub checksums: bool,
    /// The number and length of repetitions.
    pub effort: Effort,
    /// The number and length of repetitions for families with many workloads, or with little noise.
    pub brief: Effort,
    /// Length in bytes of the single large array, for sequential reads and writes.
    pub large_bytes: usize,
    /// Length in bytes of all other arrays.
    pub medium_bytes: usize,
    /// Length in bytes of arrays in the workloads that another program runs too.
    pub peer_bytes: usize,
    /// Length in bytes of plain memory, which is far larger than the processor's caches.
    pub plain_bytes: usize,
    /// Bytes of memory-mapped files.
    pub file_bytes: usize,
}

/// Maximum number of bytes that a range operation moves in one call.
pub const CHUNK_BYTES: usize = 4 << 20;

impl Setup {
    /// Opens the devices in the list `devices`, or the default devices. Chooses sizes by the free memory of
    /// the devices, or by free RAM if the devices use RAM.
    pub fn new(devices: Option<&str>, threads: Option<usize>, quick: bool) -> Result<Self> {
        let devices = demo::devices::choose(devices)?;
        let threads = threads.unwrap_or(std::thread::available_parallelism()?.get()).max(1);
        let mut usable = usize::MAX;
        for device in &devices {
            usable = usable.min(device.memory()?.usable_bytes as usize);
        }
        let usable = usable.saturating_mul(devices.len());
        let in_ram = devices.iter().any(|device| device.info().kind != DeviceKind::DiscreteGpu);
        let at_most = |quick_bytes: usize, full_bytes: usize, share: usize| {
            (usable / share).min(if quick { quick_bytes } else { full_bytes }).max(16 << 20) >> 20 << 20
        };
        let effort = if quick { Effort { runs: 3, seconds: 0.06 } } else { Effort { runs: 5, seconds: 0.2 } };
        let brief = Effort { runs: 3, seconds: effort.seconds / 2.0 };
        let [large_bytes, medium_bytes, peer_bytes, plain_bytes, file_bytes] = if in_ram {
            [
                at_most(128 << 20, 2 << 30, 5),
                at_most(64 << 20, 1 << 30, 10),
                at_most(64 << 20, 1 << 30, 10),
                at_most(128 << 20, 1 << 30, 10),
                at_most(32 << 20, 256 << 20, 20),
            ]
        } else {
            [
                at_most(8 << 30, 64 << 30, 2),
                at_most(1 << 30, 4 << 30, 8),
                at_most(1 << 30, 3520 << 20, 8),
                1 << 30,
                if quick { 64 << 20 } else { 256 << 20 },
            ]
        };
        Ok(Self {
            devices,
            threads,
            quick,
            is_in_turns: false,
            checksums: false,
            effort,
            brief,
            large_bytes,
            medium_bytes,
            peer_bytes,
            plain_bytes,
            file_bytes,
        })
    }

    /// Returns the thread counts to measure: 1 and the maximum. With `all`, and if the run is not quick, also
    /// returns the powers of two between them.
    pub fn thread_counts(&self, all: bool) -> Vec<usize> {
        let mut counts = vec![1];
        if all && !self.quick {
            counts.extend((1..).map(|power| 1 << power).take_while(|count| *count < self.threads));
        }
        if self.threads > 1 {
            counts.push(self.threads);
        }
        counts
    }

    /// Returns the number of calls in a repetition of a workload whose calls take long.
    pub fn calls(&self) -> usize {
        if self.quick { 1 } else { 4 }
    }

    /// Returns names and values that describe this setup and the machine; `command` is one of the values.
    pub fn describe(&self, command: &str) -> Vec<(String, String)> {
        let devices: Vec<String> = self.devices.iter().map(|device| device.info().to_string()).collect();
        let drivers: Vec<&str> = self.devices.iter().map(|device| &*device.info().driver).collect();
        let mib = |bytes: usize| format!("{} MiB", bytes >> 20);
        let all = [
            ("date", humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()),
            ("commit", commit()),
            ("command", command.to_owned()),
            ("devices", devices.join(", ")),
            ("driver", drivers.join(", ")),
            ("processor", processor()),
            ("threads", self.threads.to_string()),
            ("large array", mib(self.large_bytes)),
            ("other arrays", mib(self.medium_bytes)),
            ("checksums of pages", if self.checksums { "on".to_owned() } else { String::new() }),
            ("repetitions", format!("{} of {} s", self.effort.runs, self.effort.seconds)),
        ];
        let known = all.into_iter().filter(|(_, value)| !value.is_empty());
        known.map(|(name, value)| (name.into(), value)).collect()
    }

    /// Creates an array with a cache of `cache_bytes` bytes, and the default page length if `page_len` is
    /// `None`.
    pub fn array<T: Element>(
        &self,
        len: usize,
        page_len: Option<usize>,
        cache_bytes: usize,
    ) -> Result<VirtualArray<T>> {
        let devices = self.devices.iter().cloned();
        let builder = VirtualArray::<T>::builder(len).devices(devices).cache_bytes(cache_bytes);
        let builder = builder.checksums(self.checksums);
        let builder = if let Some(page_len) = page_len { builder.page_len(page_len) } else { builder };
        Ok(builder.build()?)
    }

    /// Creates an array of `bytes` bytes with an empty cache. Each element is computed from its index.
    pub fn filled<T: Payload>(
        &self,
        bytes: usize,
        page_len: Option<usize>,
        cache_bytes: usize,
    ) -> Result<VirtualArray<T>> {
        let array = self.array(bytes / size_of::<T>(), page_len, cache_bytes)?;
        self.fill(&array)?;
        Ok(array)
    }

    /// Computes each element from its index, and empties the cache.
    pub fn fill<T: Payload>(&self, array: &VirtualArray<T>) -> Result<()> {
        let chunk = (CHUNK_BYTES / size_of::<T>()).next_multiple_of(array.page_len());
        on_threads(self.threads, |thread| {
            let mut buffer = Vec::with_capacity(chunk);
            for part in pieces(part(array.len(), self.threads, thread, array.page_len()), chunk) {
                buffer.clear();
                buffer.extend(part.clone().map(T::of));
                array.write(part.start, &buffer)?;
            }
            Ok(0.0)
        })?;
        array.evict(..)?;
        Ok(())
    }
}

/// Divides `len` elements among `threads` threads, and returns the range of thread `thread`. Each range
/// begins at a multiple of `unit`; the lengths differ by about `unit` at most.
pub fn part(len: usize, threads: usize, thread: usize, unit: usize) -> Range<usize> {
    let units = len.div_ceil(unit);
    let at = |thread: usize| (units * thread / threads * unit).min(len);
    at(thread)..at(thread + 1)
}

/// Divides a range into pieces of at most `len`.
pub fn pieces(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len.max(1)).map(move |start| start..(start + len).min(end))
}

/// The commit of the sources, or of the sources of the bundle.
fn commit() -> String {
    option_env!("VMARRAY_COMMIT").map_or_else(|| project::commit().unwrap_or_default(), Into::into)
}

/// Returns the processor's name, if the system reports it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| "unknown".into(), |(_, name)| name.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_pieces_cover_everything_once() {
        for (len, threads, unit) in [(100, 3, 7), (5, 4, 10), (64, 4, 16), (1, 1, 1)] {
            let parts = (0..threads).map(|thread| part(len, threads, thread, unit));
            assert!(parts.clone().all(|part| part.start % unit == 0 || part.is_empty()));
            assert!(parts.flat_map(|part| pieces(part, 6)).flatten().eq(0..len));
        }
    }
}
