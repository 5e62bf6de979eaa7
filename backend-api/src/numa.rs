//! NUMA placement: memory and processors near a GPU.
//!
//! In a machine with several processors, each processor has its own memory (a NUMA node), and each GPU is
//! attached to one processor. If a GPU copies from or to another processor's memory, the bytes pass the link
//! between the processors. All traffic shares this link, which is narrower than the buses of several GPUs.
//! Backends therefore allocate memory for a GPU's copies [on its node](OnNode::prefer), and
//! [run](OnNode::run) threads that work for one GPU there.
//!
//! All functions only advise the system: if it refuses, nothing changes. They cost nothing on a machine with
//! one node.

mod system;

use std::fs::read_to_string;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

pub use system::Processors;
#[cfg(all(target_os = "linux", any(test, feature = "testing"), not(miri)))]
pub use system::memory_policy;

/// Linux's folders with descriptions of PCI devices and NUMA nodes. Other systems lack them.
const BUS: &str = "/sys/bus/pci/devices";
const NODES: &str = "/sys/devices/system/node";

/// True if the machine has several NUMA nodes.
static SEVERAL: LazyLock<bool> = LazyLock::new(|| online(Path::new(NODES)) > 1);

/// A cache of the processors of each node in use.
static PROCESSORS: Mutex<Vec<(u32, Arc<Processors>)>> = Mutex::new(Vec::new());

/// Returns the NUMA node of the device with this PCI address (in lower case); `None` if the system does not
/// report it.
#[doc(hidden)]
#[must_use]
pub fn numa_node(address: &str) -> Option<u32> {
    node_of(Path::new(BUS), address)
}

fn node_of(bus: &Path, address: &str) -> Option<u32> {
    // Linux reports -1 for an unknown node; the conversion to an unsigned number then yields `None`.
    read_to_string(bus.join(address).join("numa_node")).ok()?.trim().parse().ok()
}

/// Returns the number of nodes; one if the system does not report it.
fn online(nodes: &Path) -> usize {
    let list = read_to_string(nodes.join("online")).ok();
    list.and_then(|list| numbers(&list)).map_or(1, |numbers| numbers.count())
}

/// Returns the processors of a node; empty if it has none, or if the system does not report them.
fn processors_of(nodes: &Path, node: u32) -> Processors {
    let list = read_to_string(nodes.join(format!("node{node}")).join("cpulist")).ok();
    list.and_then(|list| numbers(&list)).into_iter().flatten().collect()
}

/// Parses a list of numbers in the kernel's format, such as `0-3,8`; `None` if the format is wrong.
fn numbers(list: &str) -> Option<impl Iterator<Item = usize> + use<>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some(first..last.checked_add(1)?)
    };
    let parts = list.trim().split(',').filter(|part| !part.is_empty());
    Some(parts.map(range).collect::<Option<Vec<_>>>()?.into_iter().flatten())
}

/// Returns the node if it is known and the machine has several nodes.
fn one_of_several(node: Option<u32>) -> Option<u32> {
    #[cfg(any(test, feature = "testing"))]
    let is_assumed = ASSUMED.load(std::sync::atomic::Ordering::Relaxed);
    #[cfg(not(any(test, feature = "testing")))]
    let is_assumed = false;
    node.filter(|_| is_assumed || *SEVERAL)
}

#[cfg(any(test, feature = "testing"))]
static ASSUMED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// For tests on a machine with a single node: from now on, treats the machine as one with several nodes, and
/// `processors` as the processors of `node`.
#[cfg(any(test, feature = "testing"))]
pub fn assume(node: u32, processors: Processors) {
    ASSUMED.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut known = PROCESSORS.lock();
    known.retain(|(known, _)| *known != node);
    known.push((node, Arc::new(processors)));
}

/// A guard: until it is dropped, the calling thread prefers memory or processors of a NUMA node.
#[derive(Debug)]
#[must_use = "ends when it is dropped"]
pub struct OnNode {
    before: Before,
    /// Prevents moving the guard to another thread.
    thread: PhantomData<*const ()>,
}

/// The state of the thread before the guard, which `drop` restores.
#[derive(Debug)]
enum Before {
    Nothing,
    /// The thread preferred no node: memory is near the processor that touches it first.
    AnyMemory,
    Processors(Arc<Processors>),
}

impl OnNode {
    /// Prefers a NUMA node for the calling thread's new memory, until the guard is dropped. If the node has
    /// room, the system places on this node the pages that the thread touches first, or that a driver
    /// page-locks for the thread. `None` changes nothing.
    ///
    /// A thread that already has a memory policy, such as in a program started by `numactl`, keeps that
    /// policy.
    pub fn prefer(node: Option<u32>) -> Self {
        let is_preferred = one_of_several(node).is_some_and(system::prefer_memory);
        Self::after(if is_preferred { Before::AnyMemory } else { Before::Nothing })
    }

    /// Restricts the calling thread to the node's processors, among the processors that it may use, until the
    /// guard is dropped. Only for threads of this library, because new threads that the thread starts inherit
    /// the restriction. `None` changes nothing.
    pub fn run(node: Option<u32>) -> Self {
        let before = one_of_several(node).and_then(|node| {
            let before = Processors::of(0).ok()?;
            let near = before.and(&near(node));
            if near.is_empty() || near == before {
                return None;
            }
            near.move_here().ok()?;
            Some(Before::Processors(Arc::new(before)))
        });
        Self::after(before.unwrap_or(Before::Nothing))
    }

    fn after(before: Before) -> Self {
        Self { before, thread: PhantomData }
    }

    /// Returns the processors that the thread could use before this guard; `None` if not restricted.
    #[must_use]
    pub fn processors_before(&self) -> Option<&Arc<Processors>> {
        match &self.before {
            Before::Processors(before) => Some(before),
            _ => None,
        }
    }
}

impl Drop for OnNode {
    fn drop(&mut self) {
        match &self.before {
            Before::Nothing => {}
            Before::AnyMemory => system::any_memory(),
            // A refusal means that the system has taken these processors from the process. The system then
            // has already moved the threads to other processors.
            Before::Processors(before) => drop(before.move_here()),
        }
    }
}

fn near(node: u32) -> Arc<Processors> {
    let mut known = PROCESSORS.lock();
    if let Some((_, processors)) = known.iter().find(|(known, _)| *known == node) {
        return Arc::clone(processors);
    }
    let processors = Arc::new(processors_of(Path::new(NODES), node));
    known.push((node, Arc::clone(&processors)));
    processors
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder that is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = std::env::temp_dir().join(format!("vmarray-numa-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = folder.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn list(text: &str) -> Option<Vec<usize>> {
        numbers(text).map(Iterator::collect)
    }

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(list("0-3,8\n").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(list("5\n").unwrap(), [5]);
        assert_eq!(list("2-2,4-5,7").unwrap(), [2, 4, 5, 7]);
        assert_eq!(list("\n").unwrap(), [], "a node of memory alone");
        for wrong in ["a", "1-", "-1", "1-2-3", "0;1", "18446744073709551615"] {
            assert_eq!(list(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it reads files")]
    fn the_node_of_a_card_matches_its_sysfs_file() {
        let bus = Folder::new(
            "bus",
            &[
                ("0000:81:00.0/numa_node", "1\n"),
                ("0000:02:00.0/numa_node", "-1\n"),
                ("0000:03:00.0/numa_node", "soon"),
                ("0000:04:00.0/class", "0x030000"),
            ],
        );
        let node = |address| node_of(&bus.0, address);
        assert_eq!(node("0000:81:00.0"), Some(1));
        for unknown in ["0000:02:00.0", "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"] {
            assert_eq!(node(unknown), None, "{unknown}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it reads files")]
    fn nodes_are_counted_and_have_processors() {
        let nodes = Folder::new(
            "nodes",
            &[("online", "0-1,4\n"), ("node0/cpulist", "0-1,64-65\n"), ("node4/cpulist", "\n")],
        );
        assert_eq!(online(&nodes.0), 3);
        assert_eq!(processors_of(&nodes.0, 0), [0, 1, 64, 65].into_iter().collect());
        for none in [1, 4] {
            assert!(processors_of(&nodes.0, none).is_empty());
        }
        let other = Folder::new("other", &[("online", "all of them")]);
        assert_eq!((online(&other.0), online(&other.0.join("missing"))), (1, 1));
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    mod on_linux {
        use super::*;

        #[test]
        fn a_preference_ends_with_its_guard() {
            assume(0, Processors::of(0).unwrap());
            // Containers may hide the policy. Then the guard does nothing.
            if memory_policy().is_none() {
                return assert!(matches!(OnNode::prefer(Some(0)).before, Before::Nothing));
            }
            assert_eq!(memory_policy(), Some(libc::MPOL_DEFAULT));
            drop(OnNode::prefer(None));
            let outer = OnNode::prefer(Some(0));
            assert_eq!(memory_policy(), Some(libc::MPOL_PREFERRED));
            drop(OnNode::prefer(Some(0)));
            assert_eq!(memory_policy(), Some(libc::MPOL_PREFERRED), "the inner one had nothing to do");
            drop(outer);
            assert_eq!(memory_policy(), Some(libc::MPOL_DEFAULT));
            // Test nodes that do not exist, some of them beyond the greatest possible number.
            for missing in [999, 1 << 20] {
                let nothing = OnNode::prefer(Some(missing));
                assert_eq!(memory_policy(), Some(libc::MPOL_DEFAULT), "{missing}");
                drop(nothing);
            }
        }

        #[test]
        fn a_thread_goes_back_to_its_processors() {
            let before = Processors::of(0).unwrap();
            let first = (0..).find(|&number| before.has(number)).unwrap();
            // Use a node number that no machine has, with one processor.
            let node = 1 << 21;
            assume(node, [first].into_iter().collect());
            let there = OnNode::run(Some(node));
            assert_eq!(Processors::of(0).unwrap(), [first].into_iter().collect());
            if before != Processors::of(0).unwrap() {
                assert_eq!(there.processors_before().map(|before| &**before), Some(&before));
            }
            // A node with all other processors has no processor in common with the thread.
            assume(node + 1, (0..1000).filter(|number| *number != first).collect());
            drop(OnNode::run(Some(node + 1)));
            assert_eq!(Processors::of(0).unwrap(), [first].into_iter().collect());
            drop(there);
            assert_eq!(Processors::of(0).unwrap(), before);
            assert!(OnNode::run(Some(node + 2)).processors_before().is_none());
            assert_eq!(Processors::of(0).unwrap(), before);
        }
    }
}
