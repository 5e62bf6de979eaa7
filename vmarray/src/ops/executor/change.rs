//! Device-side writes: [`Change`] (an assignment or a kernel), and the arrays or sources that it reads and
//! writes.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Device, DeviceKind, DeviceSpan, HostSpan, Ticket};

use super::in_ram::WorkQueue;
use super::run::Run;
use super::share::{ImportedWork, ShareWork};
use crate::base::error::Result;
use crate::base::stats::Counters;
use crate::engine::pager::Pager;

/// A change of elements, such as an assignment or a kernel of the program. Devices execute the change on each
/// run (contiguous elements on a device).
pub trait Change: Sync {
    /// Returns true if the change writes all bytes of the first operand's elements without reading them.
    fn overwrites(&self, element_bytes: usize) -> bool;

    /// Returns true if some devices may not support the change. Each device then checks it before any device
    /// begins.
    fn is_for_some_devices(&self) -> bool {
        false
    }

    /// The number of elements that one group of the kernel processes. Groups are counted from the start of
    /// the changed range. A run consists of whole groups; only the last group of the range may be shorter.
    fn group_len(&self) -> usize {
        1
    }

    /// Other arrays that every run reads in place, and the pages that it reads.
    fn striped(&self) -> Vec<(&Pager, Range<u64>)> {
        Vec::new()
    }

    /// The size in bytes of a device's report about a run of `count` elements.
    fn report_bytes(&self, count: usize) -> usize {
        let _ = count;
        0
    }

    /// Returns true if results are rounded floats, which depend on the division into runs.
    fn is_rounded(&self) -> bool {
        false
    }

    /// The greatest size of a run in bytes. A run has at least one page, however.
    fn run_bytes(&self) -> usize {
        usize::MAX
    }

    /// The bytes that [`begin_part`](Self::begin_part) copies to devices for each element.
    fn part_stride(&self) -> usize {
        0
    }

    /// Copies additional operands for a range to devices, before the change of this part begins. The caller
    /// holds no pages, and no run is in flight.
    fn begin_part(&self, part: &Range<usize>) -> Result<()> {
        let _ = part;
        Ok(())
    }

    /// Makes the device compile the kernel for runs like `run` in advance. Errors are ignored here, because
    /// the submission returns them.
    fn prepare(&self, device: &dyn Device, run: Run<'_>, report: Option<HostSpan<'_>>);

    /// Submits the change of a run, which writes the first operand and possibly others.
    fn submit(
        &self,
        queue: WorkQueue<'_>,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket>;

    /// Receives a device's report about a run.
    fn take_report(&self, geometry: Geometry, report: &[u64]) {
        let _ = (geometry, report);
    }
}

/// Wraps a kernel that changes no elements, so that it is executed like a query without a result.
pub struct Examination<'a>(pub(crate) &'a dyn Change);

impl std::fmt::Debug for Examination<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Examination").finish_non_exhaustive()
    }
}

/// A store whose elements an operation reads as bytes, independent of their type: an array, or a source
/// (memory of the program that devices work on).
pub trait OperandStore: Sync {
    /// The size of an element in bytes.
    fn stride(&self) -> usize;
    /// Reads elements as bytes. The call may wait for other threads, so the caller must hold no pages.
    fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()>;
    /// Copies elements directly to memory of a device. Returns false if the devices have no link. The rules
    /// of [`read_bytes`](Self::read_bytes) apply.
    fn fetch_to(&self, range: &Range<usize>, device: &Arc<dyn Device>, to: DeviceSpan<'_>) -> Result<bool> {
        let _ = (range, device, to);
        Ok(false)
    }
    /// The pager (page table and channels) of the store, if its pages have home slots on devices.
    fn pager(&self) -> Option<&Pager> {
        None
    }
    /// The number of channels over which the store's pages are striped.
    fn channel_count(&self) -> usize {
        1
    }
    /// Returns true if the store can divide a range into runs of whole groups.
    fn has_whole_groups(&self, group_len: usize, range: &Range<usize>) -> bool {
        let _ = (group_len, range);
        true
    }
    /// The devices that store elements, each once, with the counters of copied bytes.
    fn devices(&self) -> Vec<(&Arc<dyn Device>, &Counters)>;
    /// Returns true if elements are in files, so that operations on the store take little RAM.
    fn is_in_files(&self) -> bool {
        self.devices().iter().any(|(device, _)| device.info().kind == DeviceKind::File)
    }
    /// Runs a kernel that changes no elements, over a range and the corresponding elements of other stores.
    fn examine(&self, others: &[Operand<'_>], range: &Range<usize>, by: &Examination<'_>) -> Result<()>;
}

/// A writable [store](OperandStore) of elements: an array, or a source (program memory).
pub trait ResultStore: OperandStore {
    /// Writes elements as bytes. The rules of [`read_bytes`](OperandStore::read_bytes) apply.
    fn write_bytes(&self, start: usize, from: &[u8]) -> Result<()>;

    /// Changes the elements of a range, and possibly the corresponding elements of other stores.
    fn change(&self, others: &[Operand<'_>], range: &Range<usize>, change: &dyn Change) -> Result<()>;

    /// Calls `work` on the device memory with the elements of a range, and with elements of another store. If
    /// the operand of this store is not a changed one, the work only reads it, and overwrites the range.
    /// Returns false without a change if a device does not support the work, or if the devices cannot access
    /// each other.
    fn change_on_devices(
        &self,
        range: &Range<usize>,
        companion: Option<(Operand<'_>, usize)>,
        can_do: &dyn Fn(&Arc<dyn Device>) -> bool,
        work: ShareWork<'_>,
    ) -> Result<bool> {
        let _ = (range, companion, can_do, work);
        Ok(false)
    }

    /// Calls `work`, which moves the elements of a range in the program's memory through the memory of
    /// devices. Returns false if that is impossible, or if `choose` returns false; the elements may then be
    /// reordered. `choose` receives the number of elements that fit into the memory of each device.
    fn change_through_devices(
        &self,
        range: &Range<usize>,
        can_do: &dyn Fn(&Arc<dyn Device>) -> bool,
        choose: &mut dyn FnMut(&[usize]) -> bool,
        work: ImportedWork<'_>,
    ) -> Result<bool> {
        let _ = (range, can_do, choose, work);
        Ok(false)
    }
}

/// An operand of an assignment or kernel over a range: elements of another [store](OperandStore), one for
/// each element of the range.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub(crate) store: &'a dyn OperandStore,
    /// Index in the store of the element that belongs to the first element of the range.
    pub(crate) start: usize,
    /// The same store as a target, if the operation changes its elements.
    pub(crate) target: Option<&'a dyn ResultStore>,
    /// True if no other thread uses the store during the operation.
    pub(crate) is_alone: bool,
}

impl<'a> Operand<'a> {
    /// Creates an operand that the operation reads.
    pub(crate) fn new(store: &'a dyn OperandStore, start: usize) -> Self {
        Self { store, start, target: None, is_alone: false }
    }

    /// Creates an operand that the operation changes.
    pub(crate) fn changed(store: &'a dyn ResultStore, start: usize) -> Self {
        Self { store, start, target: Some(store), is_alone: false }
    }

    /// Marks the store as used by no other thread during the operation.
    pub(crate) fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    /// Returns the operand without its first `by` elements.
    pub(crate) fn further(&self, by: usize) -> Self {
        Self { start: self.start + by, ..*self }
    }

    /// Reads elements as bytes. `range` counts from the operand's first element.
    pub(crate) fn read_bytes(&self, range: Range<usize>, into: &mut [u8]) -> Result<()> {
        self.store.read_bytes(self.start + range.start..self.start + range.end, into)
    }

    /// Copies elements directly to memory of a device. Returns false if the devices have no link. `range`
    /// counts from the operand's first element.
    pub(crate) fn fetch_to(
        &self,
        range: &Range<usize>,
        device: &Arc<dyn Device>,
        to: DeviceSpan<'_>,
    ) -> Result<bool> {
        self.store.fetch_to(&(self.start + range.start..self.start + range.end), device, to)
    }

    pub(crate) fn stride(&self) -> usize {
        self.store.stride()
    }
}

impl std::fmt::Debug for Operand<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operand").field("start", &self.start).finish_non_exhaustive()
    }
}
