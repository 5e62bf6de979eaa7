//! Sequence locks: consistent reads and writes of elements longer than a word, without a lock on their page.
//!
//! Each lock is a version word, which is odd during a write. Writers exclude each other; a reader takes no
//! lock, but reads again if the word changed. A fixed number of locks serves all frames of the process. The
//! address of an element determines its lock. Adjacent elements usually share a lock.
//!
//! While a thread holds a lock, it only copies the element: it runs no code of the program, and waits for
//! nothing. So other threads wait briefly, unless the scheduler preempts the holder.

use super::barrier;
use super::sync::{AtomicU32, Ordering, fence};

/// Elements whose addresses are in the same block of 2^10 bytes share a lock.
#[cfg(not(loom))]
const GRAIN_SHIFT: u32 = 10;
/// 2^14 locks take 64 KiB. Two threads that write at random places rarely (1 in 1000) use the same cache line
/// of locks.
#[cfg(not(loom))]
const COUNT_SHIFT: u32 = 14;

/// Number of attempts after which a reader excludes writers.
const READS_MAX: u64 = if cfg!(loom) { 1 } else { 16 };
/// The bit of the version word that is set while a writer is active.
const LOCKED: u32 = 1;

/// A sequence lock, which protects all elements whose addresses map to it.
#[derive(Debug)]
pub struct SeqLock(AtomicU32);

#[cfg(not(loom))]
#[repr(align(128))]
struct Locks([SeqLock; 1 << COUNT_SHIFT]);

#[cfg(not(loom))]
static LOCKS: Locks = Locks([const { SeqLock(AtomicU32::new(0)) }; 1 << COUNT_SHIFT]);

impl SeqLock {
    /// Returns the lock that protects the element at an address.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn of<T>(element: *const T) -> &'static Self {
        // Fibonacci hashing (2^64 / golden ratio) distributes frames and parts of arrays, which begin at
        // round addresses, over all locks.
        let grain = (element.addr() >> GRAIN_SHIFT) as u64;
        &LOCKS.0[(grain.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - COUNT_SHIFT)) as usize]
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Runs `read` on data under this lock, by accesses that may race with writers. Repeats `read` until no
    /// writer was active; after some attempts it excludes writers. `read` must not panic.
    #[inline(always)]
    pub fn read<R>(&self, read: impl Fn() -> R) -> R {
        match self.try_read(&read) {
            Some(value) => value,
            None => self.read_again(read),
        }
    }

    /// Runs `read` once. Returns `None` if a writer was active. Only a reader that is preempted for exactly
    /// 2^31 writes would not notice them.
    #[inline(always)]
    pub fn try_read<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        let before = self.0.load(Ordering::Acquire);
        let value = read();
        fence(Ordering::Acquire);
        (self.0.load(Ordering::Relaxed) == before && before & LOCKED == 0).then_some(value)
    }

    #[cold]
    #[inline(never)]
    fn read_again<R>(&self, read: impl Fn() -> R) -> R {
        for turn in 0..READS_MAX {
            barrier::relax(turn);
            if let Some(value) = self.try_read(&read) {
                return value;
            }
        }
        self.lock_if(read, |_| false)
    }

    /// Runs `write` on data under this lock, by accesses that may race with readers. Other writers wait.
    /// `write` must not panic.
    #[inline(always)]
    pub fn write<R>(&self, write: impl FnOnce() -> R) -> R {
        self.lock_if(write, |_| true)
    }

    /// Calls `run` as [`write`](Self::write) calls its function. If `has_written` returns false for the
    /// result, `run` wrote nothing, so readers need not retry.
    #[inline(always)]
    pub fn lock_if<R>(&self, run: impl FnOnce() -> R, has_written: impl FnOnce(&R) -> bool) -> R {
        if !self.try_lock() {
            self.wait();
        }
        let version = self.0.load(Ordering::Relaxed);
        // A reader that sees any of the writes below also sees the lock bit.
        fence(Ordering::Release);
        let result = run();
        let next = if has_written(&result) { version.wrapping_add(1) } else { version & !LOCKED };
        self.0.store(next, Ordering::Release);
        result
    }

    /// Tests and sets the lock bit by one instruction.
    #[cfg(not(loom))]
    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.0.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0
    }

    /// A variant for loom, which writes nothing if it fails. Loom could order a failed `fetch_or` after the
    /// store that frees the lock.
    #[cfg(loom)]
    fn try_lock(&self) -> bool {
        let seen = self.0.load(Ordering::Relaxed) & !LOCKED;
        self.0.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        for turn in 0.. {
            barrier::relax(turn);
            if self.0.load(Ordering::Relaxed) & LOCKED == 0 && self.try_lock() {
                return;
            }
        }
    }
}
