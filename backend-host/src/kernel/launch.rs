//! Launches of the program's kernels on the processor: by native code if the kernel has some, else
//! interpreted.

use std::ptr::NonNull;
use std::time::Duration;

use backend_api::expr::Geometry;
use backend_api::kernel::{
    Access, HostForm, HostItems, Interpreter, Report, TimeLimit, VerifiedKernel, Views,
};
use backend_api::{Launch, LaunchView, Result, racy};
use parking_lot::Mutex;

use super::each_part;
use crate::handle_table::MemoryPlace;
use crate::host_memory::HostMemoryPiece;
use crate::storage::Storage;
use crate::worker::Crew;

const OPERATION: &str = "launch";
/// Number of work-items that a thread interprets before it takes the next part: about a millisecond.
const PART_ITEMS: u64 = 512;
/// Like `PART_ITEMS`, for kernels with groups, whose items are interpreted together.
const PART_ITEMS_TOGETHER: u64 = 4 << 10;
/// Like `PART_ITEMS`, for kernels with native code.
const PART_ITEMS_BY_CODE: u64 = 16 << 10;
/// Number of work-items that justifies the wake-up of a thread.
const LONG_ITEMS: u64 = 256;

/// Lock for atomics on memory without an address, which consist of a read and a write.
static CHANGING: Mutex<()> = Mutex::new(());

/// A checked launch, with references to its memory.
#[derive(Debug)]
pub(crate) struct LaunchJob<M> {
    /// For each view of the launch, its location in memory.
    pub views: Vec<ViewMemory<M>>,
    /// Location of the memory to which the launch writes its report of failures.
    pub report: MemoryPlace<HostMemoryPiece>,
    kernel: VerifiedKernel,
    items: u64,
    geometry: Geometry,
    params: Box<[u64]>,
    table: Box<[u8]>,
    budget: Option<u64>,
    time_limit: Option<Duration>,
    private_heap_bytes: u64,
    bytes: u64,
}

/// A view of a launch, with references to its memory.
#[derive(Debug)]
pub(crate) struct ViewMemory<M> {
    /// For each channel (share of the pages) of the view: the location of its pages, and the number of bytes
    /// that the launch may write there.
    pub bases: Vec<(MemoryPlace<M>, u64)>,
    is_atomic: bool,
    page_len: u64,
    count: u64,
    stride: u64,
}

impl<M: Storage> ViewMemory<M> {
    /// Creates the view of a launch. `places` has one location for each channel (share of the view's pages).
    pub fn new(view: &LaunchView<'_>, access: Access, places: Vec<MemoryPlace<M>>) -> Self {
        let bytes = view.ranges().map(|(_, bytes)| if access.is_written() { bytes } else { 0 });
        Self {
            bases: places.into_iter().zip(bytes).collect(),
            is_atomic: access == Access::Atomic,
            page_len: view.page_len(),
            count: view.count(),
            stride: view.stride(),
        }
    }

    /// Returns the memory and byte offset of a field of an existing element.
    fn field(&self, element: u64, offset: u32) -> (&M, u64) {
        let (page, bases) = (element / self.page_len, self.bases.len() as u64);
        let before = page / bases * self.page_len + element % self.page_len;
        let place = &self.bases[(page % bases) as usize].0;
        (&place.memory, place.offset + before * self.stride + u64::from(offset))
    }
}

impl<M: Storage> LaunchJob<M> {
    /// Creates a launch from a request, the locations of its views, and the location of its report.
    pub fn new(launch: &Launch<'_>, views: Vec<ViewMemory<M>>, report: MemoryPlace<HostMemoryPiece>) -> Self {
        Self {
            views,
            report,
            kernel: launch.kernel.clone(),
            items: launch.items,
            geometry: launch.geometry,
            params: launch.params.into(),
            table: launch.table.into(),
            budget: launch.budget,
            time_limit: launch.time_limit,
            private_heap_bytes: launch.private_heap_bytes,
            bytes: launch.bytes(),
        }
    }

    /// Number of bytes of all views of the launch.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if the launch takes longer than the wake-up of a sleeping thread.
    pub fn is_long(&self) -> bool {
        self.items >= LONG_ITEMS
    }

    /// Returns the kernel's native code, if all views are in addressable memory. Native code does not count
    /// iterations of loops.
    fn by_code(&self) -> Option<ByCode> {
        let form = self.kernel.host().filter(|_| self.budget.is_none() || !self.kernel.body().has_loops())?;
        let address = |(base, _): &(MemoryPlace<M>, u64)| {
            NonNull::new(base.memory.address()?.wrapping_add(base.offset as usize))
        };
        let bases = self.views.iter().map(|view| view.bases.iter().map(address).collect());
        Some(ByCode { form, bases: bases.collect::<Option<_>>()? })
    }

    /// Runs the launch on the threads of `crew`.
    pub fn run(&self, crew: Crew<'_>) -> Result<()> {
        let limit = self.time_limit.map(TimeLimit::new);
        let interpreter = Interpreter {
            limit: limit.as_ref(),
            params: &self.params,
            table: &self.table,
            budget: self.budget,
            private_heap_bytes: self.private_heap_bytes,
            ..Interpreter::new(&self.kernel, self.items, self.geometry)
        };
        let by_code = self.by_code();
        let (all, group) = (interpreter.parts(), u64::from(self.kernel.body().group_len.unwrap_or(1)));
        let items = match (&by_code, self.kernel.body().group_len) {
            (Some(_), _) => PART_ITEMS_BY_CODE,
            (None, Some(_)) => PART_ITEMS_TOGETHER,
            (None, None) => PART_ITEMS,
        };
        let each = (items / group).max(1);
        // Of several failures, report the one in the lowest part, independent of the order of execution.
        let reported: Mutex<(usize, Report)> = Mutex::new((usize::MAX, Report::default()));
        each_part(crew, all.div_ceil(each) as usize, &|part| {
            if limit.as_ref().is_some_and(TimeLimit::is_exceeded) {
                return Ok(());
            }
            let first = part as u64 * each;
            let part_of_all = first..(first + each).min(all);
            let report = match &by_code {
                Some(ByCode { form, bases }) => {
                    let views = bases.iter().zip(&self.views);
                    let views = views.map(|(bases, at)| (&bases[..], at.page_len, at.stride, at.count));
                    let items = part_of_all.start * group..(part_of_all.end * group).min(self.items);
                    // SAFETY: the launch was checked, and places keep the views' memory alive. Other threads
                    // may race, as on all memory of the device.
                    form(&unsafe { HostItems::new(&interpreter, items, views) })
                }
                None => interpreter.run_together(part_of_all, &mut Reached(&self.views))?,
            };
            if report.failures > 0 {
                let mut reported = reported.lock();
                let (lowest, others) = *reported;
                let both = if part < lowest { report.and(others) } else { others.and(report) };
                *reported = (part.min(lowest), both);
            }
            Ok(())
        })?;
        let words = reported.into_inner().1.words();
        // SAFETY: the report was checked to have room.
        unsafe { racy::write(self.report.memory.at(self.report.offset), bytemuck::cast_slice(&words)) };
        Ok(())
    }
}

/// A kernel's native code, and the addresses of each view's pages.
struct ByCode {
    form: HostForm,
    bases: Vec<Vec<NonNull<u8>>>,
}

// SAFETY: any thread may use memory at the addresses; each access has its own obligations.
unsafe impl Sync for ByCode {}

/// The views of a launch, as one thread accesses them.
struct Reached<'a, M>(&'a [ViewMemory<M>]);

impl<M: Storage> Views for Reached<'_, M> {
    fn count(&self, view: usize) -> u64 {
        self.0[view].count
    }

    fn read(&mut self, view: usize, element: u64, offset: u32, to: &mut [u8]) -> Result<()> {
        assert!(element < self.0[view].count);
        let (memory, at) = self.0[view].field(element, offset);
        if let Some(address) = memory.address().filter(|_| self.0[view].is_atomic) {
            // SAFETY: as below; fields of atomic views were checked to be aligned, and other accesses change
            // them by words of this length.
            let bits = unsafe { racy::load(address.wrapping_add(at as usize), to.len() as u32) };
            let bits = bits.to_le_bytes();
            to.copy_from_slice(&bits[..to.len()]);
            if cfg!(target_endian = "big") {
                to.reverse();
            }
            return Ok(());
        }
        // SAFETY: all elements were checked to be inside the memory, and fields inside elements. The target
        // belongs to the interpreter.
        unsafe { memory.read(OPERATION, at, to.as_mut_ptr(), to.len()) }
    }

    fn write(&mut self, view: usize, element: u64, offset: u32, from: &[u8]) -> Result<()> {
        assert!(element < self.0[view].count);
        let (memory, at) = self.0[view].field(element, offset);
        if let (Some(address), 1..=8) = (memory.address().filter(|_| self.0[view].is_atomic), from.len()) {
            let mut word = [0; 8];
            word[..from.len()].copy_from_slice(from);
            if cfg!(target_endian = "big") {
                word[..from.len()].reverse();
            }
            // SAFETY: as in `read`.
            unsafe {
                racy::store(address.wrapping_add(at as usize), from.len() as u32, u64::from_le_bytes(word));
            }
            return Ok(());
        }
        // SAFETY: as above; written views overlap with no other view, and each element has one writing item.
        unsafe { memory.store(OPERATION, at, from) }
    }

    fn change(
        &mut self,
        view: usize,
        element: u64,
        offset: u32,
        bytes: u32,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64> {
        assert!(element < self.0[view].count && self.0[view].is_atomic);
        let (memory, at) = self.0[view].field(element, offset);
        if let Some(address) = memory.address() {
            // SAFETY: as above; the field is aligned, and items access it by words of this length only.
            return Ok(unsafe { racy::change(address.wrapping_add(at as usize), bytes, change) });
        }
        let _one_by_one = CHANGING.lock();
        let mut word = [0; 8];
        let word = &mut word[..bytes as usize];
        self.read(view, element, offset, word)?;
        // Atomics work on the number in the byte order of the machine.
        let old = match bytes {
            4 => u32::from_ne_bytes([word[0], word[1], word[2], word[3]]).into(),
            _ => u64::from_ne_bytes(std::array::from_fn(|byte| word[byte])),
        };
        let new = change(old);
        match bytes {
            4 => word.copy_from_slice(&(new as u32).to_ne_bytes()),
            _ => word.copy_from_slice(&new.to_ne_bytes()),
        }
        self.write(view, element, offset, word)?;
        Ok(old)
    }
}
