//! Checked addresses in the memory (slots, frames, pool) of a channel (device share), and accesses to it.
//!
//! A channel owns both its memory and the lists of copies in this memory. A Rust struct cannot borrow from
//! itself, so the copies contain these addresses. This module has all `unsafe` code that accesses memory of
//! channels. Its invariants:
//!
//! - Slots, frames and pieces of the pool stay allocated until their channel's queues have ended all work.
//! - The page protocol decides for each frame which thread may access it.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::{Commit, Device, DeviceBuffer, DeviceSpan, HostBuffer, HostSpan, racy};
use bytemuck::Pod;
use vmarray_redundancy::Checksummed;

use crate::base::element::Element;
use crate::base::nontemporal_copy;
use crate::base::racy_slice::RacySlice;
use crate::engine::page::Entry;
use crate::engine::page::state::{EXCLUSIVE, RESIDENT};

/// An address in the slots of a channel. It does not borrow the slots, so a struct can contain both.
pub(crate) type DevicePlace = DeviceSpan<'static>;
/// An address in host memory. It does not borrow the memory, so a struct can contain both.
pub(crate) type HostPlace = HostSpan<'static>;

/// The device memory with the slots of a channel. Only the owner of the channel submits work on it.
#[derive(Debug)]
pub(crate) struct SlotMemory(DeviceBuffer<dyn Device>);

impl SlotMemory {
    pub(crate) fn new(slots: DeviceBuffer<dyn Device>) -> Self {
        Self(slots)
    }

    pub(crate) fn at(&self, offset: u64) -> DevicePlace {
        // SAFETY: the channel owns the slots while it lives, drops its queues and lists of copies before
        // them, and passes places only to work on these queues.
        unsafe { self.0.at(offset).detach() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    pub(super) fn extend(&self, bytes: u64, commit: Commit) -> backend_api::Result<()> {
        self.0.extend(bytes, commit)
    }
}

/// Wraps a device for channels whose pages have checksums. The result compares the checksums.
pub(crate) fn comparing(device: Arc<dyn Device>, page_bytes: usize) -> Arc<dyn Device> {
    // SAFETY: channels, and all work on them, use only the new device, never the inner one. Owners of memory
    // release it on the new device, and readers of host memory poll the new device first.
    Arc::new(unsafe { Checksummed::new(device, page_bytes) })
}

/// Returns the address of a byte in host memory of a channel. Its owner keeps it until the work on it ends.
pub(super) fn host_place(memory: &HostBuffer<dyn Device>, offset: usize) -> HostPlace {
    // SAFETY: the channel, or the pool that it shares, owns the memory until all work on it has ended: a
    // frame is freed, and a piece is returned, only after its copies. A piece dropped earlier retires its
    // memory, whose release waits for the work.
    unsafe { memory.at(offset as u64).detach() }
}

/// Returns the address of `bytes` bytes in host memory.
///
/// # Panics
/// If the bytes end beyond the memory.
#[inline]
fn checked(memory: &HostBuffer<dyn Device>, offset: usize, bytes: usize) -> *const u8 {
    let end = offset.checked_add(bytes);
    assert!(end.is_some_and(|end| end <= memory.bytes()), "the bytes must end within the channel's memory");
    memory.address().as_ptr().wrapping_add(offset)
}

/// Copies bytes out of host memory with non-temporal stores. Concurrently written bytes are unspecified.
///
/// # Panics
/// If the range ends beyond the memory.
pub(super) fn read_past_caches(memory: &HostBuffer<dyn Device>, offset: usize, into: &mut [u8]) {
    let from = checked(memory, offset, into.len());
    // SAFETY: `checked` ensures that the source is within the memory, which is initialised. The target is
    // borrowed exclusively, so the ranges do not overlap.
    unsafe { nontemporal_copy::copy_racy(from, into.as_mut_ptr(), into.len()) };
}

/// Copies elements out of host memory to a slice, with non-temporal stores on request. Elements have
/// unspecified values if work, or another thread, writes to them meanwhile.
///
/// # Panics
/// If a range ends beyond its memory.
#[inline]
pub(super) fn read_elements<T: Element>(
    memory: &HostBuffer<dyn Device>,
    offset: usize,
    (into, at): (&RacySlice<'_, T>, usize),
    len: usize,
    passes_caches: bool,
) {
    let (to, bytes) = (into.address(at, len).cast::<u8>(), len * size_of::<T>());
    let from = checked(memory, offset, bytes);
    // SAFETY: `address` and `checked` ensure that both ranges are within bounds. The slice is borrowed, so
    // the ranges do not overlap. All accesses to the slice are racy. A copy of constant length is inlined.
    unsafe {
        match (passes_caches, len) {
            (true, _) => nontemporal_copy::copy_racy(from, to, bytes),
            (false, 1) => racy::copy(from, to, size_of::<T>()),
            (false, _) => racy::copy(from, to, bytes),
        }
    }
}

/// Host memory for the program, on which no device works.
#[derive(Debug)]
pub(crate) struct ProgramMemory(HostBuffer<dyn Device>);

impl ProgramMemory {
    /// Takes memory that was never passed to a device.
    pub(super) fn new(memory: HostBuffer<dyn Device>) -> Self {
        Self(memory)
    }

    /// Returns the first `len` elements of the memory.
    ///
    /// # Panics
    /// If the memory is shorter, or not aligned for the elements.
    pub(crate) fn elements<T: Pod>(&mut self, len: usize) -> &mut [T] {
        let start = self.0.address().cast::<T>();
        assert!(
            start.is_aligned() && len.checked_mul(size_of::<T>()).is_some_and(|all| all <= self.0.bytes())
        );
        // SAFETY: aligned and inside of the memory, as was checked, which was allocated zeroed. This type
        // gives no places to devices, and is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }
}

/// The address of a frame of a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameAddress(*mut u8);

// SAFETY: an address; the page protocol controls access to the bytes.
unsafe impl Send for FrameAddress {}

impl FrameAddress {
    /// Returns the frame at an offset of a chunk of host memory.
    pub(super) fn in_chunk(chunk: &HostBuffer<dyn Device>, offset: usize) -> Self {
        Self(chunk.address().as_ptr().wrapping_add(offset))
    }

    pub(crate) fn get(self) -> *mut u8 {
        self.0
    }
}

/// The bytes of a frame. The calling thread owns the frame, or holds its page with shut gates: shared for
/// reads, exclusively for writes.
#[derive(Debug)]
pub(crate) struct FrameBytes<'a> {
    address: *mut u8,
    len: usize,
    /// True if no other thread may access the bytes.
    is_exclusive: bool,
    channel: PhantomData<&'a ()>,
}

impl<'a> FrameBytes<'a> {
    /// Returns the bytes of a frame with `page_bytes` bytes. The lifetime is at most that of the channel.
    pub(super) fn of(frame: FrameAddress, page_bytes: usize) -> Self {
        Self { address: frame.0, len: page_bytes, is_exclusive: true, channel: PhantomData }
    }

    /// Returns the bytes of a resident page with `page_bytes` bytes, which the calling thread holds.
    ///
    /// # Panics
    /// If no thread holds the page.
    pub(super) fn held(entry: &'a Entry, page_bytes: usize) -> Self {
        let state = entry.state(Ordering::Relaxed);
        let is_exclusive = state.any(EXCLUSIVE);
        assert!(state.has(RESIDENT) && (is_exclusive || state.shared()), "this thread must hold the page");
        Self { address: entry.address(), len: page_bytes, is_exclusive, channel: PhantomData }
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.address
    }

    fn checked(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "the accessed bytes must end within the page");
        self.address.wrapping_add(offset)
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        // SAFETY: inside of the frame, as was checked. Threads that access it meanwhile use racy or atomic
        // accesses.
        unsafe { racy::read(self.checked(offset, into.len()), into) }
    }

    /// Copies bytes into the frame.
    ///
    /// # Panics
    /// If the page is only held shared.
    pub(super) fn write(&self, offset: usize, from: &[u8]) {
        assert!(self.is_exclusive, "this thread must hold the page exclusively to write its frame");
        // SAFETY: as in `read`; no reference to the bytes exists, because the thread owns the frame, or holds
        // the page exclusively.
        unsafe { racy::write(self.checked(offset, from.len()), from) }
    }

    /// Sets all bytes to zero.
    ///
    /// # Panics
    /// If the page is only held shared.
    pub(super) fn fill_with_zeroes(&self) {
        assert!(self.is_exclusive, "this thread must hold the page exclusively to write its frame");
        // SAFETY: as in `write`.
        unsafe { racy::fill(self.address, 0, self.len) }
    }

    /// Runs a function on the bytes in place. The thread owns the frame, which no page has yet.
    pub(super) fn with_bytes<R>(self, run: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: the frame has initialised bytes. Its address is not published, so no other code accesses
        // it.
        run(unsafe { std::slice::from_raw_parts_mut(self.address, self.len) })
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use backend_api::HostMemory;
    use backend_host::HostDevice;

    use super::*;
    use crate::engine::page::{Holder, PageTable};

    fn memory(bytes: usize) -> HostBuffer<dyn Device> {
        let device: Arc<dyn Device> = Arc::new(HostDevice::new(1 << 20).unwrap());
        HostBuffer::new(&device, bytes, HostMemory::Pageable).unwrap()
    }

    fn panics<R>(run: impl FnOnce() -> R) -> bool {
        catch_unwind(AssertUnwindSafe(run)).is_err()
    }

    #[test]
    fn memory_of_the_program_is_zeroed_elements() {
        let mut memory = ProgramMemory::new(memory(4096));
        memory.elements::<u32>(3).fill(7);
        assert_eq!(memory.elements::<u32>(5), [7, 7, 7, 0, 0]);
        assert_eq!(memory.elements::<u8>(4096).len(), 4096);
        assert!(panics(|| memory.elements::<u8>(4097).len()));
        assert!(panics(|| memory.elements::<u64>(usize::MAX).len()));
    }

    #[test]
    fn bytes_are_read_past_the_caches() {
        let memory = memory(1000);
        memory.write(300, &[1, 2, 3]);
        let mut bytes = [9; 700];
        read_past_caches(&memory, 300, &mut bytes);
        assert_eq!((bytes[..4].to_vec(), bytes[699]), (vec![1, 2, 3, 0], 0));
        assert!(panics(|| read_past_caches(&memory, 301, &mut bytes)));
        assert!(panics(|| read_past_caches(&memory, usize::MAX, &mut bytes)));
        let mut words = [9_u16; 300];
        let into = RacySlice::from(&mut words[..]);
        read_elements(&memory, 300, (&into, 1), 1, false);
        read_elements(&memory, 302, (&into, 2), 290, true);
        read_elements(&memory, 300, (&into, 297), 3, false);
        assert!(panics(|| read_elements(&memory, 300, (&into, 299), 2, false)));
        assert!(panics(|| read_elements(&memory, 999, (&into, 0), 1, true)));
        let [first, second] = [[1, 2], [3, 0]].map(u16::from_ne_bytes);
        assert_eq!(
            (words[..4].to_vec(), &words[296..]),
            (vec![9, first, second, 0], &[9, first, second, 0][..])
        );
    }

    #[test]
    fn parts_of_frames_are_within_them() {
        let memory = memory(64);
        let frame = || FrameBytes::of(FrameAddress::in_chunk(&memory, 16), 32);
        frame().with_bytes(|bytes| bytes[0] = 3);
        let frame = frame();
        frame.write(30, &[1, 2]);
        let mut bytes = [0; 32];
        frame.read(0, &mut bytes);
        assert_eq!((bytes[0], &bytes[29..]), (3, &[0, 1, 2][..]));
        assert!(panics(|| frame.write(31, &[1, 2])) && panics(|| frame.read(usize::MAX, &mut [0; 2])));
        memory.write(48, &[5]);
        frame.fill_with_zeroes();
        let mut all = [1; 64];
        memory.read(0, &mut all);
        assert!(all[48] == 5 && all.iter().filter(|&&byte| byte != 0).count() == 1);
    }

    #[test]
    fn bytes_of_a_page_need_a_hold_and_writes_an_exclusive_one() {
        let (memory, table) = (memory(64), PageTable::new(1, 1).unwrap());
        let entry = table.entry(0);
        entry.try_claim_absent(false).unwrap();
        entry.install(FrameAddress::in_chunk(&memory, 0).get());
        FrameBytes::held(entry, 64).write(3, &[7]);
        assert!(!entry.release_exclusive(Holder::Pin, 0));
        assert!(panics(|| FrameBytes::held(entry, 64)));
        entry.try_share(Holder::Pin, false).unwrap();
        let (frame, mut bytes) = (FrameBytes::held(entry, 64), [0; 2]);
        frame.read(2, &mut bytes);
        assert_eq!(bytes, [0, 7]);
        assert!(panics(|| frame.write(3, &[8])) && panics(|| frame.fill_with_zeroes()));
        assert!(!entry.unshare(Holder::Pin));
    }
}
