//! Two sets merged on their common dimensions.

use std::fmt;

use backend_api::Device;

use super::combination::Combination;
use super::engine::Limits;
use super::merge::Merge;
use super::{PagedIndexSet, Tuples, distinct, on_devices};
use crate::array::VirtualArray;
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::base::scoped_threads;
use crate::ops::sort::is_refusal;

/// Merges two sets of tuples: each pair of tuples that agree on the common dimensions becomes one tuple over
/// the union of the dimensions. A natural join, in the words of databases.
///
/// | setting | default |
/// |---|---|
/// | [`threads`](Self::threads) | as many as the machine has cores for the program |
/// | [`memory_bytes`](Self::memory_bytes) | no bound if both sets are in RAM, 1 GiB otherwise |
///
/// # Order
///
/// A result's dimensions are all those of the first set in its order, then the others of the second set in
/// its order. Results come in the order of nested loops: by the tuple of the first set, then by the tuple of
/// the second set. It depends on neither the threads nor the values. If the second set does not fit into the
/// bound, it is cut into blocks of consecutive tuples, and all results of a block come before those of the
/// next one.
///
/// Duplicates are kept: a tuple that is twice in one set and thrice in the other one is six times in the
/// result.
///
/// # Cost
///
/// The second set is grouped by the common values in memory; about 100 bytes a tuple are used, and the values
/// that go into results once more. The first set takes 24 bytes a tuple while its partners are looked up, and
/// 8 bytes afterwards. Then results are known by number, and written when they are asked for. Take the
/// smaller set as the second one if the order does not matter.
///
/// Sources that exceed the bound are gone through in pieces: the first one is read twice (once to count, once
/// to write) for each block of the second one.
///
/// Work is shared by threads that end before the call does; no feature is needed. A thread that holds guards
/// of pages works alone, and gets [`WouldDeadlock`](ErrorKind::WouldDeadlock) where it would have to wait.
/// Hashes are not keyed: somebody who chooses the values can make the operation slow, but not wrong.
///
/// ```
/// use vmarray::{index_set::Combine, IndexSet};
/// let a = IndexSet::from_rows([1, 2, 3], [[2, 0, 1]])?;
/// let b = IndexSet::from_rows([1, 4, 5], [[2, 4, 7]])?;
/// let merged = Combine::new(&a, &b).threads(1).memory_bytes(256 << 10).run()?;
/// assert_eq!((merged.len(), merged.dimensions()), (1, &[1, 2, 3, 4, 5][..]));
/// assert_eq!(merged.to_index_set()?.values(), [2, 0, 1, 4, 7]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "describes an operation; `run` runs it"]
pub struct Combine<'a, A: ?Sized, B: ?Sized> {
    a: &'a A,
    b: &'a B,
    is_product: bool,
    threads: Option<usize>,
    memory_bytes: Option<usize>,
}

impl<A: ?Sized, B: ?Sized> fmt::Debug for Combine<'_, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, memory_bytes, is_product, .. } = self;
        f.debug_struct("Combine")
            .field("is_product", is_product)
            .field("threads", threads)
            .field("memory_bytes", memory_bytes)
            .finish_non_exhaustive()
    }
}

impl<'a, A: Tuples + ?Sized, B: Tuples + ?Sized> Combine<'a, A, B> {
    /// On the dimensions that both sets have.
    pub fn new(a: &'a A, b: &'a B) -> Self {
        Self { a, b, is_product: false, threads: None, memory_bytes: None }
    }

    /// All pairs of two sets that have no dimension in common.
    ///
    /// ```
    /// use vmarray::{index_set::Combine, IndexSet};
    /// let a = IndexSet::from_rows([0], [[1], [2]])?;
    /// let b = IndexSet::from_rows([1], [[3], [4]])?;
    /// let pairs = Combine::product(&a, &b).run()?;
    /// assert_eq!(pairs.to_index_set()?.values(), [1, 3, 1, 4, 2, 3, 2, 4]);
    /// assert!(Combine::product(&a, &a).run().is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn product(a: &'a A, b: &'a B) -> Self {
        Self { is_product: true, ..Self::new(a, b) }
    }

    /// How many threads work on it, the calling one included; at least one.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// About how much memory may be used for what is known about the inputs, and for those parts of them that
    /// have to be loaded. Results do not count.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Finds and counts the results. Writes none.
    ///
    /// # Errors
    /// [`NoCommonDimension`](ErrorKind::NoCommonDimension), or
    /// [`CommonDimension`](ErrorKind::CommonDimension) for a product;
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension) if a source has a label twice;
    /// [`TooLong`](ErrorKind::TooLong) if the results cannot be counted; [`NoMemory`](ErrorKind::NoMemory);
    /// what the sources report.
    pub fn run(self) -> Result<Combination<'a, A, B>> {
        let merge = self.merge()?;
        self.found(merge)
    }

    /// Finds the results on the devices of an array, which has nothing else to do with it, and writes them to
    /// a new array there, whose pages have as many elements. Sets in arrays on the same single card, opened
    /// once for all of them, are read where they are: nothing of it goes through the host, and worked with
    /// are 20 bytes of the card's memory for a tuple of the first set, 24 for one of the second, and up to
    /// 128 MiB.
    ///
    /// Sets that lie elsewhere, in files or in RAM, are copied to the devices a part at a time, and
    /// [`memory_bytes`](Self::memory_bytes) says how much of the devices' memory is used: the order is that
    /// of blocks, then, as [above](Self#order). On several devices each has a copy of what is known of a
    /// part. Without cards, for sets that cards have no memory for, and second sets of more than 64
    /// dimensions, this is [`run`](Self::run) and [`write_to`](Combination::write_to). Others must not write
    /// to the sets meanwhile.
    ///
    /// ```
    /// use vmarray::{IndexSet, VirtualArray, index_set::{Combine, Tuples}};
    /// let a = IndexSet::from_rows([0, 1], [[7, 5], [8, 6], [9, 5]])?;
    /// let b = IndexSet::from_rows([1, 2], [[5, 1], [6, 2], [5, 3]])?;
    /// let there = VirtualArray::<u64>::builder(0).page_len(64).build()?;
    /// let merged = Combine::new(&a, &b).memory_bytes(256).run_on_devices_of(&there)?;
    /// assert_eq!((merged.len(), merged.dimensions()), (5, &[0, 1, 2][..]));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`run`](Self::run) and [`Combination::write_to`]; those of devices, and of
    /// [building arrays](crate::Builder::build). Neither set is changed.
    pub fn run_on_devices_of<T: Element, D: Device>(
        self,
        array: &VirtualArray<T, D>,
    ) -> Result<PagedIndexSet<D>> {
        let merge = self.merge()?;
        if on_devices::is_better(&merge, array) {
            match on_devices::combine(self.a, self.b, &merge, self.memory_bytes, array) {
                Err(error) if error.device_error().is_some_and(is_refusal) => {}
                done => return done,
            }
        }
        self.found(merge)?.to_alike(array)
    }

    /// How tuples of these sets merge.
    fn merge(&self) -> Result<Merge> {
        let (a, b) = (self.a, self.b);
        // The crate's own sets have been checked, those of programs have not.
        distinct(a.dimensions().iter().copied())?;
        distinct(b.dimensions().iter().copied())?;
        match self.is_product {
            true => Merge::of_all(a.dimensions(), b.dimensions()),
            false => Merge::on_common(a.dimensions(), b.dimensions()),
        }
    }

    fn found(self, merge: Merge) -> Result<Combination<'a, A, B>> {
        /// Where sources are not in RAM, their parts should leave room for others.
        const MEMORY_BYTES: usize = 1 << 30;
        let (a, b) = (self.a, self.b);
        let in_memory = a.in_memory().is_some() && b.in_memory().is_some();
        let default_bytes = if in_memory { usize::MAX } else { MEMORY_BYTES };
        let limits = Limits {
            threads: self.threads.unwrap_or(*scoped_threads::CORES).max(1),
            memory_bytes: self.memory_bytes.unwrap_or(default_bytes),
        };
        Combination::find(a, b, merge, limits)
    }
}
