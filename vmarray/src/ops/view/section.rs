//! Sections: views of a contiguous part of an array or a source (program memory that devices process).

use std::fmt;
use std::ops::Range;

use super::shape::Linear;
use super::store::{Store, StoreMut};
use super::{View, ViewMut};
use crate::ops::sealed::{Internal, Sealed};

/// A view of a range of an array or a [source](crate::Source), for reads, and for writes if `WRITES` is true.
///
/// Indices, ranges and errors count from the section's start. A section is a reference and two numbers. It
/// can be copied, sent to other threads and cut again at no cost. Any number of sections may overlap,
/// including writable ones. A section owns no page, so dropping it leaves the pages in the cache.
///
/// Operations access only the elements of the section. They write back, fetch or search only the pages that
/// the section touches.
///
/// The [`index`](crate::expr::index) in an expression also counts from the section's start. This adds two
/// instructions to the expression, unless the section begins at index 0 of the array or source. Sections with
/// different starts share the expression's translation, because they differ only in a constant.
///
/// ```
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::new(1000)?;
/// let section = array.section_mut(100..200)?;
/// section.set(20, 7)?;
/// assert_eq!(array.get(120)?, 7);
/// let part = section.section(10..30)?;
/// assert_eq!((part.get(10)?, part.range(), part.store().len()), (7, 110..130, 1000));
/// assert!(section.get(100).is_err());
///
/// let source = Source::new(vec![1_u32, 2, 3])?;
/// assert_eq!(source.section(1..)?.to_vec(..)?, [2, 3]);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// A section without `WRITES` has no methods that write:
///
/// ```compile_fail
/// use vmarray::prelude::*;
/// let array = VirtualArray::<u32>::new(1000)?;
/// array.section(..)?.set(0, 1)?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Section<'a, S: Store, const WRITES: bool = false> {
    store: &'a S,
    shape: Linear,
}

/// A writable [`Section`].
///
/// ```
/// use vmarray::{prelude::*, views::SectionMut};
///
/// let array = VirtualArray::<u32>::new(100)?;
/// let tail: SectionMut<'_, VirtualArray<u32>> = array.section_mut(90..)?;
/// tail.fill(.., 1)?;
/// assert_eq!(array.get(90)?, 1);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub type SectionMut<'a, S> = Section<'a, S, true>;

impl<'a, S: Store, const WRITES: bool> Section<'a, S, WRITES> {
    pub(crate) fn new(store: &'a S, shape: Linear) -> Self {
        Self { store, shape }
    }

    /// Returns the array or [source](crate::Source) that the section shows.
    #[must_use]
    pub fn store(&self) -> &'a S {
        self.store
    }

    /// Returns the range of the section in its array or [source](crate::Source).
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.shape.range()
    }
}

impl<S: Store, const WRITES: bool> Sealed for Section<'_, S, WRITES> {}

impl<'a, S: Store, const WRITES: bool> View<'a> for Section<'a, S, WRITES> {
    type Element = S::Element;
    type Index = usize;
    type Store = S;
    type Shape = Linear;
    type Section = Section<'a, S>;

    #[inline(always)]
    fn parts(self) -> (&'a S, Linear) {
        (self.store, self.shape)
    }

    fn of_parts(store: &'a S, shape: Linear, _: Internal) -> Section<'a, S> {
        Section::new(store, shape)
    }
}

impl<'a, S: StoreMut> ViewMut<'a> for Section<'a, S, true> {
    type SectionMut = Self;

    fn of_parts_mut(store: &'a S, shape: Linear, _: Internal) -> Self {
        Self::new(store, shape)
    }
}

impl<S: Store, const WRITES: bool> Clone for Section<'_, S, WRITES> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store, const WRITES: bool> Copy for Section<'_, S, WRITES> {}

impl<S: Store, const WRITES: bool> fmt::Debug for Section<'_, S, WRITES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section")
            .field("range", &self.range())
            .field("writes", &WRITES)
            .finish_non_exhaustive()
    }
}

impl<'a, S: Store> From<&'a S> for Section<'a, S>
where
    &'a S: View<'a, Store = S, Shape = Linear>,
{
    fn from(store: &'a S) -> Self {
        let (store, shape) = store.parts();
        Self::new(store, shape)
    }
}
