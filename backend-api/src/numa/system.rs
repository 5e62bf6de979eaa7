//! What Linux is asked for; nothing on other systems, and under Miri.

use std::io;

/// As many processors as a kernel can be built for, and more.
const WORDS: usize = 256;

/// A set of processors, a bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors([u64; WORDS]);

impl Default for Processors {
    /// None.
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl FromIterator<usize> for Processors {
    /// Those of some numbers. No machine has greater ones than there is room for.
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::default();
        for number in numbers.into_iter().take_while(|&number| number < WORDS * 64) {
            set.0[number / 64] |= 1 << (number % 64);
        }
        set
    }
}

impl Processors {
    /// How many processors a set has room for.
    pub const ROOM: usize = WORDS * 64;

    #[must_use]
    pub fn has(&self, processor: usize) -> bool {
        self.0[processor / 64] >> (processor % 64) & 1 != 0
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// What both have.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// What any of the two has.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod os {
    use std::ptr::null_mut;

    use super::*;

    /// More nodes than a kernel can be built for.
    const NODES: usize = 1024;
    const NODE_WORDS: usize = NODES / libc::c_ulong::BITS as usize;
    /// The kernel takes one off the number of bits that it is told.
    const NODE_BITS: usize = NODES + 1;

    fn outcome(result: libc::c_long) -> io::Result<()> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    impl Processors {
        /// Those that a thread may run on; 0 is the calling one.
        pub fn of(thread: libc::pid_t) -> io::Result<Self> {
            let mut set = Self::default();
            // SAFETY: the call writes at most as many bytes as it is told, which the set has.
            outcome(unsafe {
                libc::syscall(libc::SYS_sched_getaffinity, thread, size_of::<Self>(), set.0.as_mut_ptr())
            })?;
            Ok(set)
        }

        /// Has the calling thread run on these alone, from the end of the call on.
        pub fn move_here(&self) -> io::Result<()> {
            // SAFETY: the call reads as many bytes as it is told, which the set has.
            outcome(unsafe {
                libc::syscall(libc::SYS_sched_setaffinity, 0, size_of::<Self>(), self.0.as_ptr())
            })
        }
    }

    /// What the calling thread has said of its memory; `None` where the system does not tell.
    pub(in crate::numa) fn memory_policy() -> Option<libc::c_int> {
        let (mut mode, nobody) = (0, null_mut::<libc::c_ulong>());
        // SAFETY: the call writes one integer, and no nodes where it is given no place for them.
        let told = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, nobody, 0, nobody, 0) };
        outcome(told).ok().map(|()| mode)
    }

    /// Has new memory of the calling thread lie on a node if there is room, unless it has said where it is to
    /// lie. Whether that worked.
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

    /// Takes that back.
    pub(in crate::numa) fn any_memory() {
        set_policy(libc::MPOL_DEFAULT, &[0; NODE_WORDS]);
    }

    fn set_policy(mode: libc::c_int, nodes: &[libc::c_ulong; NODE_WORDS]) -> bool {
        // SAFETY: the call reads a bit less than it is told, which is what there is.
        let set = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.as_ptr(), NODE_BITS) };
        outcome(set).is_ok()
    }
}

#[cfg(all(target_os = "linux", feature = "conformance", test, not(miri)))]
pub(super) use os::memory_policy;
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
