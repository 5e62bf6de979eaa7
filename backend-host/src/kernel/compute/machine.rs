//! Evaluates an expression program on a block of elements: loads fields, computes, stores results.

use std::ops::Range;

use backend_api::expr::{Action, FieldStore, Type, Value};
use backend_api::kernel::{Op, TimeLimit};
use backend_api::{Compute, Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::columns::OPERATION;
use super::columns::{Late, ValueColumn, evaluate};
use super::reduce::{FilteredColumn, NumberCounts, Sum, ThreadExtremes, count_true, list_true};
use crate::handle_table::MemoryPlace;
use crate::kernel::marked::SPARE;
use crate::kernel::waves::WaveMatches;
use crate::memory::Passage;
use crate::racy_word::{Word, load_all};
use crate::storage::Storage;

/// Elements of a block, if all values have at most four bytes. A short program's columns then fit the cache.
const LANES_MAX: usize = 2048;
/// Maximum length in bytes of one read of elements.
const BLOCK_BYTES: usize = 16 << 10;

/// Evaluation plan for the sources of a computation.
pub(super) struct EvaluationPlan<'a, M> {
    pub compute: &'a Compute<'a>,
    sources: &'a [MemoryPlace<M>],
    needed: Vec<bool>,
    /// For each source, the first source with the same start.
    alias: Vec<usize>,
    lanes_max: usize,
    /// The time limit of each function call.
    limits: Vec<Option<TimeLimit>>,
    /// The error of the first call that exceeded its time limit.
    late: Mutex<Option<Error>>,
    /// Approximate number of bytes that the computation reads for each element.
    pub bytes_each: u64,
}

impl<'a, M: Storage> EvaluationPlan<'a, M> {
    pub fn new(compute: &'a Compute<'a>, sources: &'a [MemoryPlace<M>]) -> Self {
        let needed = compute.program.needed(&compute.results());
        let starts: Vec<_> = compute.sources.iter().map(|source| (source.start, source.stride)).collect();
        let alias = starts.iter().map(|start| starts.iter().position(|s| s == start).unwrap_or(0)).collect();
        let widest = compute.program.types().iter().map(|of| of.bytes()).max().unwrap_or(1);
        let longest = compute.sources.iter().map(|source| source.stride).max().unwrap_or(1) as usize;
        let lanes_max = if widest > 4 { LANES_MAX / 2 } else { LANES_MAX };
        let lanes_max = lanes_max.min(BLOCK_BYTES / longest).max(1);
        // If the request has no elements, its strides are not checked, so the sum must saturate.
        let strides = compute.sources.iter().map(|source| source.stride);
        let bytes_each = strides.fold(0, u64::saturating_add).max(1);
        let (limits, late) = (limits(compute, &needed), Mutex::default());
        Self { compute, sources, needed, alias, lanes_max, limits, late, bytes_each }
    }

    /// Returns the result of the whole computation, given the result of its parts. If a function call
    /// exceeded its time limit, returns the error about this call, because later parts end with arbitrary
    /// errors.
    pub fn outcome(&self, result: Result<()>) -> Result<()> {
        result.map_err(|error| self.late.lock().take().unwrap_or(error))
    }

    /// Stores the error of a call that exceeded its time limit, in a block that begins at element `first`.
    #[cold]
    fn end(&self, Late { at, report }: &Late, first: u64) -> Error {
        let op = &self.compute.program.ops()[*at];
        if let (Op::Call { function, .. }, Some(site)) = (op, report.loop_over_time()) {
            let element = self.compute.geometry.index(first + report.item);
            *self.late.lock() = Some(function.over_time(site, element));
        }
        Error::new(ErrorKind::KernelFailed, OPERATION)
    }

    fn is_store(&self) -> bool {
        matches!(self.compute.action, Action::Store { .. })
    }

    fn stride(&self, source: usize) -> usize {
        // The cast is exact, because `count` times the stride was checked to be inside of existing memory.
        self.compute.sources[source].stride as usize
    }

    /// Byte offset of element `number` of a source in its memory.
    fn at(&self, source: usize, number: u64) -> u64 {
        self.sources[source].offset + number * self.compute.sources[source].stride
    }
}

/// Columns of one thread.
pub(super) struct Machine<'a, 'b, M> {
    plan: &'b EvaluationPlan<'a, M>,
    columns: Vec<ValueColumn>,
    /// For each source, the raw bytes of a block of elements, or of several blocks read ahead.
    blocks: Vec<ReadBlock>,
    /// End of the elements that [`each_block`](Self::each_block) evaluates.
    end: u64,
}

/// Elements that a thread has read from memory without addresses.
#[derive(Clone, Debug, Default)]
struct ReadBlock {
    /// Number of the first element.
    first: u64,
    bytes: Passage<u8>,
}

impl<'a, 'b, M: Storage> Machine<'a, 'b, M> {
    pub fn new(plan: &'b EvaluationPlan<'a, M>) -> Self {
        let program = plan.compute.program;
        let columns = program.types().iter().enumerate().map(|(at, of)| {
            let mut column = ValueColumn::default();
            if plan.needed[at] {
                column = ValueColumn::new(*of, plan.lanes_max);
                if let Op::Literal { bits, .. } = program.ops()[at] {
                    column.fill(*of, bits);
                }
            }
            column
        });
        Self {
            plan,
            columns: columns.collect(),
            blocks: vec![ReadBlock::default(); plan.sources.len()],
            end: 0,
        }
    }

    /// Evaluates the program for elements `first..end`, block by block. After each block, calls `body` with
    /// the block's first element and its number of elements. `body` returns false to end the loop.
    pub fn each_block(
        &mut self,
        first: u64,
        end: u64,
        mut body: impl FnMut(&mut Self, u64, usize) -> Result<bool>,
    ) -> Result<()> {
        let mut next = first;
        self.end = end;
        while next < end {
            let lanes = (end - next).min(self.plan.lanes_max as u64) as usize;
            self.load(next, lanes)?;
            let EvaluationPlan { compute, needed, limits, .. } = self.plan;
            evaluate(compute.program, needed, limits, &mut self.columns, lanes)
                .map_err(|late| self.plan.end(&late, next))?;
            if !body(self, next, lanes)? {
                return Ok(());
            }
            next += lanes as u64;
        }
        Ok(())
    }

    /// Fills the columns of fields and of the index for the block that begins at element `first`.
    fn load(&mut self, first: u64, lanes: usize) -> Result<()> {
        for (at, op) in self.plan.compute.program.ops().iter().enumerate() {
            if !self.plan.needed[at] {
                continue;
            }
            match *op {
                Op::Load { view, offset, of, .. } => {
                    let field = (usize::from(view), offset as usize, of.value());
                    self.load_field(at, field, (first, lanes))?;
                }
                Op::FieldEquals { view, offset, ref bytes, .. } => {
                    let (source, mut field) = (usize::from(view), Passage(vec![0; bytes.len()]));
                    for (place, number) in self.columns[at].of_mut::<u8>(lanes).iter_mut().zip(first..) {
                        let (to, from) = (&mut field.0, self.plan.at(source, number) + u64::from(offset));
                        // SAFETY: the elements were checked to be inside the memory, and the field inside
                        // its element.
                        unsafe {
                            self.plan.sources[source].memory.read(OPERATION, from, to.as_mut_ptr(), to.len())
                        }?;
                        *place = u8::from(**to == **bytes);
                    }
                }
                Op::Builtin { .. } => {
                    let geometry = self.plan.compute.geometry;
                    if geometry.first.checked_add(first + lanes as u64).is_none() {
                        let places = self.columns[at].of_mut::<u64>(lanes).iter_mut();
                        places.zip(first..).for_each(|(place, number)| *place = geometry.index(number));
                        continue;
                    }
                    let mut within = geometry.first.wrapping_add(first) % geometry.page_len;
                    let mut index = geometry.index(first);
                    for (place, number) in self.columns[at].of_mut::<u64>(lanes).iter_mut().zip(first..) {
                        if within == geometry.page_len {
                            within = 0;
                            index = geometry.index(number);
                        }
                        *place = index;
                        within += 1;
                        index = index.wrapping_add(1);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn load_field(
        &mut self,
        at: usize,
        (source, offset, of): (usize, usize, Type),
        (first, lanes): (u64, usize),
    ) -> Result<()> {
        let (plan, width) = (self.plan, of.bytes() as usize);
        let (memory, stride) = (&plan.sources[source].memory, plan.stride(source));
        let start = plan.at(source, first);
        let column = &mut self.columns[at];
        if stride == width {
            let column = &mut column.bytes_mut()[..lanes * width];
            if let Some(address) = memory.address() {
                // SAFETY: the elements were checked to be inside the memory, and `first + lanes` is at most
                // their number.
                unsafe { load_all(address.wrapping_add(start as usize), column) };
                return Ok(());
            }
            if plan.is_store() {
                // SAFETY: as above.
                return unsafe { memory.read(OPERATION, start, column.as_mut_ptr(), column.len()) };
            }
        } else if let Some(address) = memory.address() {
            let field = address.wrapping_add(start as usize + offset).cast_const();
            // SAFETY: as above; a field was checked to be inside its element.
            unsafe {
                match width {
                    1 => load_strided::<u8>(column, lanes, field, stride),
                    2 => load_strided::<u16>(column, lanes, field, stride),
                    4 => load_strided::<u32>(column, lanes, field, stride),
                    _ => load_strided::<u64>(column, lanes, field, stride),
                }
            }
            return Ok(());
        } else if stride >= M::SPARSE_STRIDE_BYTES {
            for (lane, place) in column.bytes_mut().chunks_exact_mut(width).take(lanes).enumerate() {
                let from = start + (lane * stride + offset) as u64;
                // SAFETY: as above.
                unsafe { memory.read(OPERATION, from, place.as_mut_ptr(), width) }?;
            }
            return Ok(());
        }
        let elements = self.load_block(source, first, lanes)?;
        let elements = &self.blocks[plan.alias[source]].bytes.0[elements];
        let column = self.columns[at].bytes_mut();
        if stride == width {
            column[..elements.len()].copy_from_slice(elements);
            return Ok(());
        }
        let places = column.chunks_exact_mut(width).take(lanes);
        for (place, element) in places.zip(elements.chunks_exact(stride)) {
            place.copy_from_slice(&element[offset..offset + width]);
        }
        Ok(())
    }

    /// Reads the whole elements of a block of a source, unless they were read before, and returns their place
    /// in the source's bytes. Reads several blocks at once, because each read of a file is a system call; but
    /// only one if the computation stores to elements, which may be elements of the next blocks.
    fn load_block(&mut self, source: usize, first: u64, lanes: usize) -> Result<Range<usize>> {
        let plan = self.plan;
        let (alias, stride) = (plan.alias[source], plan.stride(source));
        let ReadBlock { first: own, bytes: Passage(bytes) } = &mut self.blocks[alias];
        let place = |own: u64| {
            let start = usize::try_from(first.checked_sub(own)?).ok()?.checked_mul(stride)?;
            Some(start..start.checked_add(lanes * stride)?)
        };
        if let Some(place) = place(*own).filter(|place| place.end <= bytes.len()) {
            return Ok(place);
        }
        let most = if plan.is_store() { 0 } else { (M::BLOCK_BYTES / stride.max(1)) as u64 };
        let count = most.min(self.end - first).max(lanes as u64) as usize;
        bytes.resize(count * stride, 0);
        *own = first;
        let from = plan.at(alias, first);
        // SAFETY: as in `load_field`; all elements before `end` were checked.
        let read =
            unsafe { plan.sources[alias].memory.read(OPERATION, from, bytes.as_mut_ptr(), bytes.len()) };
        if read.is_err() {
            bytes.clear();
        }
        read.map(|()| 0..lanes * stride)
    }

    fn filtered(&self, value: Value, filter: Option<Value>, lanes: usize) -> FilteredColumn<'_> {
        FilteredColumn {
            of: self.plan.compute.program.types()[value.at()],
            values: &self.columns[value.at()],
            filter: filter.map(|filter| &self.columns[filter.at()]),
            lanes,
        }
    }

    /// Counts the matches of the evaluated block of `lanes` elements from `first` on. Lists their indices
    /// until `found` has `room` indices.
    pub fn find(
        &self,
        predicate: Value,
        first: u64,
        lanes: usize,
        room: u64,
        found: &mut WaveMatches,
    ) -> Result<()> {
        let mask = self.columns[predicate.at()].of::<u8>(lanes);
        found.list_block(OPERATION, count_true(mask), (room, SPARE), |into| list_true(mask, first, into))
    }

    /// Adds the values of the block's `lanes` elements to `sum`, except values whose `filter` is false.
    pub fn sum(&self, value: Value, filter: Option<Value>, lanes: usize, sum: &mut Sum) {
        sum.add(self.filtered(value, filter, lanes));
    }

    /// Updates the minimum and the maximum (if `wanted`) in `extremes` with the values of an evaluated block.
    pub fn extremes(
        &self,
        (value, filter): (Value, Option<Value>),
        (first, lanes): (u64, usize),
        wanted: (bool, bool),
        extremes: &mut ThreadExtremes,
    ) {
        extremes.add(self.filtered(value, filter, lanes), first, wanted);
    }

    /// Histogram: counts the number `value` of each of the block's elements, unless `filter` is false.
    pub fn histogram(&self, value: Value, filter: Option<Value>, lanes: usize, counts: &mut NumberCounts) {
        let filter = filter.map(|filter| self.columns[filter.at()].of::<u8>(lanes));
        counts.add(self.columns[value.at()].of::<u32>(lanes), filter);
    }

    /// Writes the values of a block to the elements' fields in memory, starting at element `first`.
    pub fn store(&mut self, first: u64, lanes: usize) -> Result<()> {
        let plan = self.plan;
        let Action::Store { stores, filter } = plan.compute.action else { return Ok(()) };
        for (nth, store) in stores.iter().enumerate() {
            let source = plan.alias[usize::from(store.source)];
            let width = plan.compute.program.types()[store.value.at()].bytes() as usize;
            let memory = &plan.sources[source].memory;
            let stride = plan.stride(source);
            if stride == width && filter.is_none() {
                let column = &self.columns[store.value.at()].of::<u8>(lanes * width);
                // SAFETY: the elements were checked to be inside the memory, and `first + lanes` is at most
                // their number.
                unsafe { memory.store(OPERATION, plan.at(source, first), column) }?;
            } else if stride > width && memory.address().is_some() {
                self.store_fields(store, source, width, first, lanes)?;
            } else {
                // Load whole elements, change their stored fields, and write the elements after the last
                // change.
                self.load_block(source, first, lanes)?;
                self.store_in_block(store, source, width, lanes);
                let is_last = !stores[nth + 1..].iter().any(|s| plan.alias[usize::from(s.source)] == source);
                if is_last {
                    let block = std::mem::take(&mut self.blocks[source].bytes);
                    // SAFETY: as above.
                    unsafe { memory.store(OPERATION, plan.at(source, first), &block.0) }?;
                }
            }
        }
        Ok(())
    }

    fn mask(&self, lanes: usize) -> Option<&[u8]> {
        match self.plan.compute.action {
            Action::Store { filter, .. } => filter.map(|filter| self.columns[filter.at()].of(lanes)),
            _ => None,
        }
    }

    fn store_fields(
        &self,
        store: &FieldStore,
        source: usize,
        width: usize,
        first: u64,
        lanes: usize,
    ) -> Result<()> {
        let (memory, stride) = (&self.plan.sources[source].memory, self.plan.stride(source));
        let start = self.plan.at(source, first) + u64::from(store.offset);
        let values = self.columns[store.value.at()].of::<u8>(lanes * width);
        let mask = self.mask(lanes);
        for (lane, value) in values.chunks_exact(width).enumerate() {
            if mask.is_none_or(|mask| mask[lane] != 0) {
                let to = start + (lane * stride) as u64;
                // SAFETY: as in `store`; a field was checked to be inside its element.
                unsafe { memory.store(OPERATION, to, value) }?;
            }
        }
        Ok(())
    }

    fn store_in_block(&mut self, store: &FieldStore, source: usize, width: usize, lanes: usize) {
        let mut block = std::mem::take(&mut self.blocks[source]);
        let (stride, offset) = (self.plan.stride(source), store.offset as usize);
        let values = self.columns[store.value.at()].of::<u8>(lanes * width).chunks_exact(width);
        let mask = self.mask(lanes);
        for (lane, (element, value)) in block.bytes.0.chunks_exact_mut(stride).zip(values).enumerate() {
            if mask.is_none_or(|mask| mask[lane] != 0) {
                element[offset..offset + width].copy_from_slice(value);
            }
        }
        self.blocks[source] = block;
    }
}

/// Returns the time limit of each function of a computation. After the first excess, all calls end.
fn limits(compute: &Compute<'_>, needed: &[bool]) -> Vec<Option<TimeLimit>> {
    let of_all = TimeLimit::new(std::time::Duration::MAX);
    let limit = |(op, needed): (&Op, &bool)| match op {
        Op::Call { function, .. } if *needed => {
            function.time_limit().map(|limit| of_all.with_duration(limit))
        }
        _ => None,
    };
    compute.program.ops().iter().zip(needed).map(limit).collect()
}

/// Reads numbers at a distance of `stride` bytes.
///
/// # Safety
/// All numbers must be readable; other threads may race as [`backend_api::racy`] describes.
unsafe fn load_strided<W: Word + bytemuck::Pod>(
    column: &mut ValueColumn,
    lanes: usize,
    field: *const u8,
    stride: usize,
) {
    let mut field = field;
    for place in column.of_mut::<W>(lanes) {
        // SAFETY: the caller guarantees the field.
        *place = unsafe { W::load(field) };
        field = field.wrapping_add(stride);
    }
}
