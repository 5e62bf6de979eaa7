//! Linux system calls for NUMA placement. They have no effect on other systems and under Miri.

use std::io;

/// Number of 64-bit words of a processor set, enough for any version of Linux.
const WORDS: usize = 256;

/// A set of CPU processors, as a bit mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors([u64; WORDS]);

impl Default for Processors {
    /// Creates the empty set.
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl FromIterator<usize> for Processors {
    /// Creates the set of these processor numbers, each less than [`ROOM`](Self::ROOM).
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::default();
        for number in numbers.into_iter().take_while(|&number| number < WORDS * 64) {
            set.0[number / 64] |= 1 << (number % 64);
        }
        set
    }
}

impl Processors {
    /// Maximum number of processors in a set; more than any machine has.
    pub const ROOM: usize = WORDS * 64;

    #[must_use]
    pub fn has(&self, processor: usize) -> bool {
        self.0[processor / 64] >> (processor % 64) & 1 != 0
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Returns the processors that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Returns the processors that are in at least one of the sets.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod os {
    use std::ptr::null_mut;

    use super::*;

    /// Number of nodes in a node set, more than Linux supports.
    const NODES: usize = 1024;
    const NODE_WORDS: usize = NODES / libc::c_ulong::BITS as usize;
    /// The length of a node set for system calls: Linux subtracts one from it.
    const NODE_BITS: usize = NODES + 1;

    fn outcome(result: libc::c_long) -> io::Result<()> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    impl Processors {
        /// Returns the processors that a thread may run on. Thread id 0 stands for the calling thread.
        pub fn of(thread: libc::pid_t) -> io::Result<Self> {
            let mut set = Self::default();
            // SAFETY: the call writes at most the given number of bytes, which is the set's size.
            outcome(unsafe {
                libc::syscall(libc::SYS_sched_getaffinity, thread, size_of::<Self>(), set.0.as_mut_ptr())
            })?;
            Ok(set)
        }

        /// Restricts the calling thread to these processors.
        pub fn move_here(&self) -> io::Result<()> {
            // SAFETY: the call reads the given number of bytes, which is the set's size.
            outcome(unsafe {
                libc::syscall(libc::SYS_sched_setaffinity, 0, size_of::<Self>(), self.0.as_ptr())
            })
        }
    }

    /// Returns the memory policy of the calling thread; `None` if the system does not report it.
    pub fn memory_policy() -> Option<libc::c_int> {
        let (mut mode, unused) = (0, null_mut::<libc::c_ulong>());
        // SAFETY: the call writes one integer; for a null pointer it writes no nodes.
        let status = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, unused, 0, unused, 0) };
        outcome(status).ok().map(|()| mode)
    }

    /// Prefers a node for new memory of the calling thread, unless the thread already has a memory policy.
    /// Returns true if the system accepted the preference.
    pub(in crate::numa) fn prefer_memory(node: u32) -> bool {
        let node = node as usize;
        if node >= NODES || memory_policy() != Some(libc::MPOL_DEFAULT) {
            return false;
        }
        let mut nodes = [0; NODE_WORDS];
        let bits = libc::c_ulong::BITS as usize;
        nodes[node / bits] = (1 as libc::c_ulong) << (node % bits);
        set_policy(libc::MPOL_PREFERRED, &nodes)
    }

    /// Restores the thread's default memory policy.
    pub(in crate::numa) fn any_memory() {
        set_policy(libc::MPOL_DEFAULT, &[0; NODE_WORDS]);
    }

    fn set_policy(mode: libc::c_int, nodes: &[libc::c_ulong; NODE_WORDS]) -> bool {
        // SAFETY: the call reads one bit less than the given number, which is the array's size.
        let set = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.as_ptr(), NODE_BITS) };
        outcome(set).is_ok()
    }
}

#[cfg(all(target_os = "linux", any(test, feature = "testing"), not(miri)))]
pub use os::memory_policy;
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) use os::{any_memory, prefer_memory};

#[cfg(any(not(target_os = "linux"), miri))]
mod os {
    use super::*;

    impl Processors {
        pub fn of(_thread: i32) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub fn move_here(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    pub(in crate::numa) fn prefer_memory(_node: u32) -> bool {
        false
    }

    pub(in crate::numa) fn any_memory() {}
}

#[cfg(any(not(target_os = "linux"), miri))]
pub(super) use os::{any_memory, prefer_memory};
