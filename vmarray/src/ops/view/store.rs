//! [`Store`]: the arrays and sources (program memory for devices) that contain the elements of views.

use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::executor::{Operand, OperandStore, Question, ResultStore};
use crate::ops::sealed::{Internal, Sealed};

/// The container of a view's elements: a [`VirtualArray`] or a [`Source`](crate::Source). Other crates cannot
/// implement the trait.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::views::{Section, Store};
///
/// // Of an array or of a source, with any elements.
/// fn bytes<S: Store>(section: Section<'_, S>) -> usize {
///     section.len() * size_of::<S::Element>()
/// }
/// assert_eq!(bytes(Source::new(vec![0_u64; 10])?.section(2..)?), 64);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Store: Sealed + Send + Sync + Sized {
    /// The type of the store's elements.
    type Element: Element;
    /// The type of the store's devices.
    type Device: Device;
    /// The future of [`View::flush_async`](crate::views::View::flush_async).
    type FlushAsync<'a>: Future<Output = Result<()>>
    where
        Self: 'a;

    #[doc(hidden)]
    fn get_at(&self, place: usize, _: Internal) -> Result<Self::Element>;

    /// Copies elements from storage index `place` on to a slice. The elements must be inside the store.
    #[doc(hidden)]
    fn read_at(&self, place: usize, into: &mut [Self::Element], _: Internal) -> Result<()>;

    /// Runs a question (search or reduction) on the devices, over the elements of a range and the
    /// corresponding elements of other stores.
    #[doc(hidden)]
    fn ask<Q: Question>(
        &self,
        others: &[Operand<'_>],
        range: &Range<usize>,
        question: &Q,
        _: Internal,
    ) -> Result<Q::Whole>;

    /// Gathers elements by ascending storage indices.
    #[doc(hidden)]
    fn collect(&self, places: &[usize], _: Internal) -> Result<Vec<Self::Element>>;

    /// Gathers elements by a list of indices, which count from the start of a range of the store.
    #[doc(hidden)]
    fn gather_within(
        &self,
        of: Range<usize>,
        list: &[usize],
        into: &mut [Self::Element],
        _: Internal,
    ) -> Result<()>;

    /// Prefetches the elements of a range.
    #[doc(hidden)]
    fn fetch(&self, range: &Range<usize>, _: Internal) -> Result<()>;

    /// Writes back the changed elements of a range.
    #[doc(hidden)]
    fn write_back(&self, range: &Range<usize>, _: Internal) -> Result<()>;

    #[doc(hidden)]
    fn write_back_async(&self, range: Result<Range<usize>>, _: Internal) -> Self::FlushAsync<'_>;

    /// Writes back the changed elements of a range, and drops cached copies.
    #[doc(hidden)]
    fn give_up(&self, range: &Range<usize>, _: Internal) -> Result<()>;

    #[doc(hidden)]
    fn as_operand(&self, _: Internal) -> &dyn OperandStore;

    /// The number of elements in a page.
    #[doc(hidden)]
    fn page_elements(&self) -> usize;

    /// Creates an array of zeros on the store's devices, with the same page length.
    #[doc(hidden)]
    fn array_like<U: Element>(&self, len: usize, _: Internal) -> Result<VirtualArray<U, Self::Device>>;

    /// Returns the store as an array, if it is one.
    #[doc(hidden)]
    fn as_array(&self) -> Option<&VirtualArray<Self::Element, Self::Device>> {
        None
    }
}

/// A writable [`Store`]: an array, or a [source](crate::Source) over writable memory.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::views::{SectionMut, StoreMut};
///
/// fn double<S: StoreMut<Element = u32>>(section: SectionMut<'_, S>) -> vmarray::Result<()> {
///     section.transform(.., Field::whole().set(Field::whole() * 2))
/// }
/// let source = Source::new(vec![3_u32; 10])?;
/// double(source.section_mut(5..)?)?;
/// assert_eq!(source.to_vec(4..6)?, [3, 6]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait StoreMut: Store {
    #[doc(hidden)]
    fn set_at(&self, place: usize, value: Self::Element, _: Internal) -> Result<()>;

    #[doc(hidden)]
    fn replace_at(&self, place: usize, value: Self::Element, _: Internal) -> Result<Self::Element>;

    #[doc(hidden)]
    fn compare_exchange_at(
        &self,
        place: usize,
        current: Self::Element,
        new: Self::Element,
        _: Internal,
    ) -> Result<Result<Self::Element, Self::Element>>;

    #[doc(hidden)]
    fn update_at(
        &self,
        place: usize,
        mut change: impl FnMut(Self::Element) -> Self::Element,
        internal: Internal,
    ) -> Result<Self::Element> {
        let mut current = self.get_at(place, internal)?;
        loop {
            match self.compare_exchange_at(place, current, change(current), internal)? {
                Ok(old) => return Ok(old),
                Err(seen) => current = seen,
            }
        }
    }

    #[doc(hidden)]
    fn swap_at(&self, a: usize, b: usize, internal: Internal) -> Result<()> {
        let second = self.get_at(b, internal)?;
        let first = self.replace_at(a, second, internal)?;
        self.set_at(b, first, internal).inspect_err(|_| {
            // Undo the first write after the second has failed. An error of the undo is ignored, because the
            // first error is returned.
            let _ = self.set_at(a, first, internal);
        })
    }

    #[doc(hidden)]
    fn write_at(&self, place: usize, from: &[Self::Element], _: Internal) -> Result<()>;

    #[doc(hidden)]
    fn fill_range(&self, range: &Range<usize>, value: Self::Element, _: Internal) -> Result<()>;

    #[doc(hidden)]
    fn discard_range(&self, range: &Range<usize>, _: Internal) -> Result<()>;

    #[doc(hidden)]
    fn scatter_within(
        &self,
        of: Range<usize>,
        list: &[usize],
        values: &[Self::Element],
        _: Internal,
    ) -> Result<()>;

    #[doc(hidden)]
    fn as_target(&self, _: Internal) -> &dyn ResultStore;
}
