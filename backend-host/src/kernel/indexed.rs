//! Gather and scatter on the processor: copy the elements at a list of indices.

use backend_api::{Error, LEFT_OUT, Result, racy};
use vmarray_support::backends::IndexedDirection;

use super::{PART_BYTES, each_part};
use crate::handle_table::MemoryPlace;
use crate::host_memory::HostMemoryPiece;
use crate::racy_word;
use crate::storage::{ReadRange, Storage};
use crate::worker::Crew;

/// Number of indices that the kernel reads at once into private memory.
const BATCH: usize = 512;

/// Number of elements of one call, if the memory is faster with calls for several elements.
const TOGETHER: usize = 8192;

/// Prefetch distance in elements: about the number of concurrent fetches from RAM.
const AHEAD: usize = 12;

/// A gather or scatter, checked except for the indices.
#[derive(Debug)]
pub(crate) struct IndexedCopy<M> {
    pub direction: IndexedDirection,
    /// For each channel (share of the array's pages), the memory that stores its pages.
    pub places: Box<[MemoryPlace<M>]>,
    pub page_len: u64,
    pub element_count: u64,
    pub stride: u64,
    pub indices: MemoryPlace<HostMemoryPiece>,
    /// Number of indices in the list.
    pub count: u64,
    pub values: MemoryPlace<HostMemoryPiece>,
}

impl<M: Storage> IndexedCopy<M> {
    /// Number of bytes that the gather or scatter moves.
    pub fn bytes(&self) -> u64 {
        // This product cannot overflow, because the request was checked.
        self.count * self.stride
    }

    /// Runs the gather or scatter on the threads of `crew`.
    pub fn run(&self, crew: Crew<'_>) -> Result<()> {
        let per_part = (PART_BYTES as u64 / self.stride).clamp(1, PART_BYTES as u64 / 8);
        each_part(crew, self.count.div_ceil(per_part) as usize, &|part| {
            let first = part as u64 * per_part;
            self.run_part(first, (first + per_part).min(self.count))
        })
    }

    /// Runs the gather or scatter for the first `count` indices, on the calling thread.
    pub fn run_first(&self, count: u64) -> Result<()> {
        self.run_part(0, count.min(self.count))
    }

    pub fn is_gather(&self) -> bool {
        self.direction == IndexedDirection::Gather
    }

    fn run_part(&self, first: u64, end: u64) -> Result<()> {
        if self.is_gather() && self.places.iter().any(|place| place.memory.reads_together()) {
            return self.gather_together(first, end);
        }
        let mut batch = [0_u64; BATCH];
        let mut k = first;
        while k < end {
            let fetched = (end - k).min(BATCH as u64) as usize;
            let from = self.indices.memory.at(self.indices.offset + k * 8);
            // SAFETY: `count` indices were checked to be inside their memory; the batch has room for
            // `fetched`.
            unsafe { racy::copy(from, batch.as_mut_ptr().cast(), fetched * 8) };
            for (i, &index) in batch[..fetched].iter().enumerate() {
                if let Some(later) = batch.get(i + AHEAD) {
                    // A prefetch of an address out of bounds is harmless: the memory is never read.
                    let (place, at) = self.place(*later);
                    if let Some(address) = place.memory.address() {
                        racy_word::prefetch(address.wrapping_add(at as usize));
                    }
                }
                self.run_one(k, index)?;
                k += 1;
            }
        }
        Ok(())
    }

    /// Gathers all elements of one memory range, then of the next, with several elements in each call.
    fn gather_together(&self, first: u64, end: u64) -> Result<()> {
        let mut batch = vec![0_u64; TOGETHER.min((end - first) as usize)];
        for start in (first..end).step_by(TOGETHER) {
            let fetched = &mut batch[..(end - start).min(TOGETHER as u64) as usize];
            let from = self.indices.memory.at(self.indices.offset + start * 8);
            // SAFETY: `count` indices were checked to be inside their memory.
            unsafe { racy::copy(from, fetched.as_mut_ptr().cast(), size_of_val(fetched)) };
            let mut of_places: Vec<Vec<ReadRange>> = self.places.iter().map(|_| Vec::new()).collect();
            let mut outside = Ok(());
            for (k, &index) in (start..).zip(&*fetched) {
                if index == LEFT_OUT {
                    continue;
                }
                if index >= self.element_count {
                    outside = Err(self.outside(k, index));
                    break;
                }
                let (place, at) = self.numbered_place(index);
                let to = self.values.memory.at(self.values.offset + k * self.stride);
                of_places[place].push(ReadRange { offset: at, to, bytes: self.stride as usize });
            }
            for (place, wanted) in self.places.iter().zip(&of_places) {
                // SAFETY: as in `run_one`.
                unsafe { place.memory.read_all("gather", wanted) }?;
            }
            outside?;
        }
        Ok(())
    }

    #[inline]
    fn run_one(&self, k: u64, index: u64) -> Result<()> {
        if index == LEFT_OUT {
            return Ok(());
        }
        if index >= self.element_count {
            return Err(self.outside(k, index));
        }
        let (place, at) = self.place(index);
        let value = self.values.memory.at(self.values.offset + k * self.stride);
        // SAFETY: the index is below the number of elements. All elements and `count` values were checked to
        // be inside their memory; host memory and device memory never overlap.
        unsafe {
            match self.direction {
                IndexedDirection::Gather => place.memory.read("gather", at, value, self.stride as usize),
                IndexedDirection::Scatter => place.memory.write("scatter", at, value, self.stride as usize),
            }
        }
    }

    /// Returns memory and byte offset of an element; the offset may be out of bounds.
    #[inline]
    fn place(&self, index: u64) -> (&MemoryPlace<M>, u64) {
        let (place, at) = self.numbered_place(index);
        (&self.places[place], at)
    }

    /// Like [`place`](Self::place), with the number of the memory instead of the memory.
    #[inline]
    fn numbered_place(&self, index: u64) -> (usize, u64) {
        let (place, number) = match &*self.places {
            [_] => (0, index),
            places => {
                let (page, at) = (index / self.page_len, index % self.page_len);
                let slot = page / places.len() as u64;
                ((page % places.len() as u64) as usize, slot.wrapping_mul(self.page_len).wrapping_add(at))
            }
        };
        (place, self.places[place].offset.wrapping_add(number.wrapping_mul(self.stride)))
    }

    #[cold]
    fn outside(&self, k: u64, index: u64) -> Error {
        Error::index_outside(self.direction.operation()).with_offset(self.indices.offset + k * 8).with_detail(
            format!(
                "index {index} at position {k} of the list is outside of {} elements",
                self.element_count
            ),
        )
    }
}
