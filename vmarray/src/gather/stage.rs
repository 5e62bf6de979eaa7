//! A piece of pinned memory with a list of elements of one channel, and their values.

use std::marker::PhantomData;

use backend_api::{Device, DeviceSpan, Elements, Gather, HostBuffer, HostSpan, Scatter};

use crate::channel::Channel;
use crate::element::Element;
use crate::error::Result;

/// How much one stage holds: what a card moves in some tens of microseconds, so that starting a kernel costs little,
/// and not more than stays in the processor's cache until it is copied on. On an H200 with 16 threads gathers of all
/// sizes and scatters of small elements are fastest with the first (9.7 against 7.3 million gathered elements of
/// 4 KiB a second), scatters of long elements with the second (8.1 against 3.4).
const STAGE_BYTES: usize = 1 << 20;
const LONG_SCATTER_STAGE_BYTES: usize = 2 << 20;
/// From this size on elements are long.
const LONG_ELEMENT_BYTES: usize = 1024;
/// The values begin at a multiple of this.
const VALUES_ALIGN: usize = 256;
/// Bytes of an index.
const INDEX_BYTES: usize = 8;

/// A list of elements of one channel, with room for their values: what one kernel works off.
#[derive(Debug)]
pub(crate) struct Stage<T, D: Device> {
    memory: HostBuffer<D>,
    /// How many elements it can take.
    room: usize,
    count: usize,
    /// The place of the first element in the program's list.
    first: usize,
    /// By how much the places of all elements come after it; empty as long as each follows the one before.
    after: Vec<u32>,
    marker: PhantomData<fn(T)>,
}

/// How many elements a stage of a gather takes, if there is work for so many.
pub(crate) fn room_to_gather<T>(elements: usize) -> usize {
    room::<T>(STAGE_BYTES, elements)
}

/// The same for a scatter.
pub(crate) fn room_to_scatter<T>(elements: usize) -> usize {
    let long = size_of::<T>() >= LONG_ELEMENT_BYTES;
    room::<T>(if long { LONG_SCATTER_STAGE_BYTES } else { STAGE_BYTES }, elements)
}

fn room<T>(stage_bytes: usize, elements: usize) -> usize {
    ((stage_bytes - VALUES_ALIGN) / (INDEX_BYTES + size_of::<T>())).min(elements).max(1)
}

/// The bytes of a stage for so many elements.
pub(crate) fn bytes_for<T>(room: usize) -> usize {
    (room * INDEX_BYTES).next_multiple_of(VALUES_ALIGN) + room * size_of::<T>()
}

impl<T: Element, D: Device> Stage<T, D> {
    /// An empty one with memory of the channel.
    pub(crate) fn new(channel: &Channel<D>, room: usize) -> Result<Self> {
        let memory = channel.take_list(bytes_for::<T>(room))?;
        Ok(Self { memory, room, count: 0, first: 0, after: Vec::new(), marker: PhantomData })
    }

    /// Gives the memory back to the channel. No kernel may use it any more.
    pub(crate) fn give_back(self, channel: &Channel<D>) {
        channel.put_list(self.memory);
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.after.clear();
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Whether it can take the element at a place of the list.
    #[inline]
    pub(crate) fn takes(&self, position: usize) -> bool {
        self.count < self.room && (self.count == 0 || position - self.first <= u32::MAX as usize)
    }

    /// Adds an element of the channel that stands at a place of the list, after all others. It must be
    /// [taken](Self::takes).
    #[inline]
    pub(crate) fn push(&mut self, element: u64, position: usize) {
        assert!(self.count < self.room);
        // SAFETY: the stage has room for this index, which is this thread's alone: no kernel was started yet.
        unsafe { self.indices().add(self.count).write(element) };
        if self.count == 0 {
            self.first = position;
        } else if !self.after.is_empty() {
            self.after.push((position - self.first) as u32);
        } else if position != self.first + self.count {
            self.after.extend(0..self.count as u32);
            self.after.push((position - self.first) as u32);
        }
        self.count += 1;
    }

    /// As [`push`](Self::push), with its value.
    #[inline]
    pub(crate) fn push_value(&mut self, element: u64, position: usize, value: &T) {
        self.push(element, position);
        let bytes = std::ptr::from_ref(value).cast::<u8>();
        // SAFETY: as in `push`, for the value.
        unsafe { bytes.copy_to_nonoverlapping(self.value(self.count - 1), size_of::<T>()) };
    }

    fn indices(&self) -> *mut u64 {
        self.memory.address().as_ptr().cast()
    }

    fn values_offset(&self) -> usize {
        (self.room * INDEX_BYTES).next_multiple_of(VALUES_ALIGN)
    }

    fn value(&self, number: usize) -> *mut u8 {
        assert!(number < self.room);
        // SAFETY: the stage has room for so many values.
        unsafe { self.memory.address().as_ptr().add(self.values_offset() + number * size_of::<T>()) }
    }

    fn values_span(&self) -> HostSpan {
        self.memory.at(self.values_offset() as u64)
    }

    /// The place of an element in the program's list.
    pub(crate) fn position(&self, number: usize) -> usize {
        self.first + self.after.get(number).map_or(number, |&after| after as usize)
    }

    /// The gather of the listed elements.
    pub(crate) fn gather(&self, slots: DeviceSpan, slot_bytes: u64) -> Gather {
        Gather {
            elements: elements::<T>(slots, slot_bytes),
            indices: self.memory.at(0),
            count: self.count as u64,
            values: self.values_span(),
        }
    }

    /// The scatter to the listed elements.
    pub(crate) fn scatter(&self, slots: DeviceSpan, slot_bytes: u64) -> Scatter {
        Scatter {
            elements: elements::<T>(slots, slot_bytes),
            indices: self.memory.at(0),
            count: self.count as u64,
            values: self.values_span(),
        }
    }

    /// Copies the values to their places in the program's memory.
    ///
    /// # Safety
    /// The gather is done. `into` is writable at all places of the stage, and nobody else touches those.
    pub(crate) unsafe fn copy_out(&self, into: *mut T) {
        let from = self.value(0);
        if self.after.is_empty() {
            // SAFETY: vouched for by the caller; the stage has `count` values.
            unsafe { from.copy_to_nonoverlapping(into.add(self.first).cast(), self.count * size_of::<T>()) };
            return;
        }
        // SAFETY: as above, element by element.
        unsafe {
            let into = into.add(self.first);
            for (number, &after) in self.after.iter().enumerate() {
                let from = from.add(number * size_of::<T>());
                from.copy_to_nonoverlapping(into.add(after as usize).cast(), size_of::<T>());
            }
        }
    }

    /// Takes elements out that `keep` does not hold of, and tells `dropped` the places they had in the list. Before
    /// any kernel was started.
    pub(crate) fn retain(&mut self, keep: impl Fn(u64) -> bool, mut dropped: impl FnMut(usize)) {
        let mut kept = 0;
        for number in 0..self.count {
            // SAFETY: so many indices were written, and no kernel was started.
            let element = unsafe { self.indices().add(number).read() };
            let position = self.position(number);
            if !keep(element) {
                if self.after.is_empty() {
                    self.after.extend(0..self.count as u32);
                }
                dropped(position);
                continue;
            }
            if kept != number {
                // SAFETY: both are inside; neither index nor value overlap with their own new place.
                unsafe {
                    self.indices().add(kept).write(element);
                    self.value(number).copy_to_nonoverlapping(self.value(kept), size_of::<T>());
                }
                self.after[kept] = self.after[number];
            }
            kept += 1;
        }
        self.count = kept;
        if !self.after.is_empty() {
            self.after.truncate(kept);
        }
    }
}

fn elements<T>(slots: DeviceSpan, slot_bytes: u64) -> Elements {
    let stride = size_of::<T>() as u64;
    Elements { start: slots, count: slot_bytes / stride, stride }
}
