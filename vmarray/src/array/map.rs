//! Mapped access: a closure of the program gets a range of an array as one aligned slice.

use std::ops::Range;

use backend_api::Device;
use bytemuck::{Pod, Zeroable, cast_slice_mut};

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;

/// The accesses of a closure to a range that `map_mut` shows as a slice: reads, writes, both or none.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::{access::MapMode, VirtualArray};
/// let array = VirtualArray::<u32>::new(10)?;
/// array.map_mut(.., MapMode::Write, |slice| slice.fill(2))?;
/// array.map_mut(.., MapMode::ReadWrite, |slice| slice.iter_mut().for_each(|element| *element += 1))?;
/// array.map_mut(.., MapMode::Scratch, |slice| slice.fill(99))?;
/// assert_eq!(array.map_mut(.., MapMode::Read, |slice| slice.to_vec())?, [3; 10]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapMode {
    /// The slice holds the elements; changes that the closure makes are not written to the array.
    Read,
    /// The slice is zeroed or, in a buffer of the caller, has arbitrary contents; all of it is written to the
    /// range. The call does not fetch pages that it overwrites entirely.
    Write,
    /// The slice holds the elements, and the call writes it to the range afterwards.
    ReadWrite,
    /// The slice is scratch memory of the range's length, zeroed or, in a buffer of the caller, with
    /// arbitrary contents. The call neither reads nor writes the array.
    Scratch,
}

impl MapMode {
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

/// The memory of a mapped range's slice: a page of the cache, a new copy, or the program's buffer.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::VirtualArray;
/// use vmarray::access::{MapBuffer, MapMode};
/// let array = VirtualArray::<u32>::new(1000)?;
/// let mut buffer = vec![0; 100];
/// for start in (0..1000).step_by(100) {
///     // No memory is allocated in the loop.
///     let place = MapBuffer::Borrowed(&mut buffer);
///     array.map_in(start..start + 100, MapMode::Write, place, |slice| slice.fill(start as u32))?;
/// }
/// assert_eq!(array.get(950)?, 900);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum MapBuffer<'a, T> {
    /// New memory, aligned to at least 64 bytes. [`NoMemory`](ErrorKind::NoMemory) if there is too little.
    New,
    /// New page-locked memory of the array's first device, aligned to 4096 bytes; pageable memory if the
    /// system refuses page-locking. For closures that pass the slice to a GPU.
    Pinned,
    /// Memory of the caller, at least as long as the range.
    Borrowed(&'a mut [T]),
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Runs `run` on a range as one slice, in memory as `buffer` says.
    pub(crate) fn map_in<R>(
        &self,
        range: Range<usize>,
        mode: MapMode,
        buffer: MapBuffer<'_, T>,
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        match buffer {
            MapBuffer::New => {
                self.run_mapped(range.clone(), mode, AlignedVec::zeroed(range.len())?.slice(), run)
            }
            MapBuffer::Borrowed(slice) => {
                let got = slice.len();
                let slice = slice.get_mut(..range.len()).ok_or(ErrorKind::LengthMismatch {
                    of: "the caller's buffer",
                    expected: range.len(),
                    got,
                })?;
                self.run_mapped(range, mode, slice, run)
            }
            MapBuffer::Pinned => {
                let Some(channel) = self.pager().channels().first().filter(|_| !range.is_empty()) else {
                    return self.run_mapped(range, mode, &mut [], run);
                };
                let bytes = range.len() * size_of::<T>();
                let mut memory = channel.host_memory(bytes)?;
                self.run_mapped(range.clone(), mode, memory.elements(range.len()), run)
            }
        }
    }

    fn run_mapped<R>(
        &self,
        range: Range<usize>,
        mode: MapMode,
        slice: &mut [T],
        run: impl FnOnce(&mut [T]) -> R,
    ) -> Result<R> {
        if mode.reads() {
            self.read_range(range.start, slice)?;
        }
        let result = run(slice);
        if mode.writes() {
            self.write_range(range.start, slice)?;
        }
        Ok(result)
    }
}

/// Zeroed elements, aligned to cache lines so that vector instructions work at full speed.
struct AlignedVec<T> {
    lines: Vec<Line>,
    len: usize,
    marker: std::marker::PhantomData<T>,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl<T: Element> AlignedVec<T> {
    fn zeroed(len: usize) -> Result<Self> {
        // The buffer consists of cache lines, aligned to 64 bytes. For a stricter alignment, add spare bytes.
        let slack = align_of::<T>().saturating_sub(64);
        let lines = (len * size_of::<T>() + slack).div_ceil(64);
        Ok(Self { lines: zeroed_vec(lines)?, len, marker: std::marker::PhantomData })
    }

    fn slice(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = cast_slice_mut(&mut self.lines);
        let start = bytes.as_ptr().align_offset(align_of::<T>());
        cast_slice_mut(&mut bytes[start..start + self.len * size_of::<T>()])
    }
}
