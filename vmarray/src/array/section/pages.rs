//! The pages of a section in place, cut to the section.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Deref, DerefMut, Range};

use backend_api::Device;

use super::{Section, SectionMut};
use crate::array::page_guard::{PageMut, PageRef};
use crate::base::element::Element;
use crate::base::error::{Result, index_outside};
use crate::setup::any::AnyDevice;

/// The elements of a page that are in a section, shared: a [`PageRef`], cut to the section.
///
/// It holds the whole page, also for those who use it beside the section.
///
/// ```
/// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
/// let section = array.section(100..200)?;
/// let page: vmarray::SectionPage<'_, u32> = section.page(0)?;
/// assert_eq!((page.range(), page.len()), (0..28, 28));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct SectionPage<'a, T: Element, D: Device = AnyDevice> {
    pub(super) page: PageRef<'a, T, D>,
    pub(super) cut: Cut,
}

/// The elements of a page that are in a section, exclusively: a [`PageMut`], cut to the section.
///
/// It holds the whole page, also for those who use it beside the section.
///
/// ```
/// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
/// array.section_mut(100..200)?.page_mut(0)?.fill(1);
/// assert_eq!((array.get(99)?, array.get(100)?, array.get(127)?, array.get(128)?), (0, 1, 1, 0));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct SectionPageMut<'a, T: Element, D: Device = AnyDevice> {
    pub(super) page: PageMut<'a, T, D>,
    pub(super) cut: Cut,
}

/// Which elements of a page are in a section.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    /// The page's number in the array.
    pub(super) page: usize,
    /// Within the page.
    within: Range<usize>,
    /// Within the section.
    of_section: Range<usize>,
}

/// The pages of a section in order, as shared guards.
///
/// ```
/// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
/// let mut elements = 0;
/// for page in array.section(100..200)?.pages() {
///     elements += page?.len();
/// }
/// assert_eq!(elements, 100);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct SectionPages<'a, T: Element, D: Device = AnyDevice> {
    section: Section<'a, T, D>,
    pages: Range<usize>,
}

/// The pages of a section in order, as exclusive guards.
///
/// ```
/// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
/// for page in array.section_mut(100..200)?.pages_mut() {
///     page?.fill(1);
/// }
/// assert_eq!(array.iter().sum::<Result<u32, _>>()?, 100);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct SectionPagesMut<'a, T: Element, D: Device = AnyDevice> {
    section: SectionMut<'a, T, D>,
    pages: Range<usize>,
}

impl<'a, T: Element, D: Device> Section<'a, T, D> {
    /// How many of the array's pages have elements in the section.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
    /// assert_eq!(array.section(63..65)?.page_count(), 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn page_count(&self) -> usize {
        let pages = self.array.touched_pages(&self.range());
        (pages.end - pages.start) as usize
    }

    /// Which part of the section's `page`th page is in the section.
    pub(super) fn cut(&self, page: usize) -> Result<Cut> {
        if page >= self.page_count() {
            return Err(index_outside(page, self.page_count()));
        }
        let (inner, page) = (self.range(), self.array.page_of(self.start) + page);
        let all = self.array.page_range(page);
        let (start, end) = (inner.start.max(all.start), inner.end.min(all.end));
        Ok(Cut {
            page,
            within: start - all.start..end - all.start,
            of_section: start - inner.start..end - inner.start,
        })
    }

    /// Lends the part of a page that is in the section as a slice; pages are counted from the first that the section
    /// touches. See [`VirtualArray::page`](crate::VirtualArray::page).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
    /// let section = array.section(100..200)?;
    /// assert_eq!(section.page(1)?.range(), 28..92);
    /// assert!(section.page(3).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn page(&self, page: usize) -> Result<SectionPage<'a, T, D>> {
        let cut = self.cut(page)?;
        Ok(SectionPage { page: self.array.page(cut.page)?, cut })
    }

    /// All pages in order, as shared guards: slices in place, fetched ahead of use.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
    /// assert_eq!(array.section(100..200)?.pages().len(), 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn pages(&self) -> SectionPages<'a, T, D> {
        SectionPages { section: *self, pages: 0..self.page_count() }
    }
}

impl<'a, T: Element, D: Device> SectionMut<'a, T, D> {
    /// Lends the part of a page that is in the section as a mutable slice; pages are counted from the first that the
    /// section touches. See [`VirtualArray::page_mut`](crate::VirtualArray::page_mut).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
    /// array.section_mut(100..200)?.page_mut(1)?[0] = 7;
    /// assert_eq!(array.get(128)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn page_mut(&self, page: usize) -> Result<SectionPageMut<'a, T, D>> {
        let cut = self.section.cut(page)?;
        Ok(SectionPageMut { page: self.section.array.page_mut(cut.page)?, cut })
    }

    /// All pages in order, as exclusive guards: mutable slices in place, fetched ahead of use.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
    /// assert_eq!(array.section_mut(100..200)?.pages_mut().len(), 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn pages_mut(&self) -> SectionPagesMut<'a, T, D> {
        SectionPagesMut { section: *self, pages: 0..self.page_count() }
    }
}

macro_rules! guards {
    ($Guard:ident, $Pages:ident, $take:ident) => {
        impl<T: Element, D: Device> $Guard<'_, T, D> {
            /// The indices of its elements in the section.
            ///
            /// ```
            /// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
            /// assert_eq!(array.section_mut(100..200)?.page_mut(2)?.range(), 92..100);
            /// # Ok::<(), vmarray::Error>(())
            /// ```
            #[must_use]
            pub fn range(&self) -> Range<usize> {
                self.cut.of_section.clone()
            }
        }

        impl<T: Element, D: Device> Deref for $Guard<'_, T, D> {
            type Target = [T];

            fn deref(&self) -> &[T] {
                &self.page[self.cut.within.clone()]
            }
        }

        impl<T: Element + fmt::Debug, D: Device> fmt::Debug for $Guard<'_, T, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&**self, f)
            }
        }

        impl<'a, T: Element, D: Device> Iterator for $Pages<'a, T, D> {
            type Item = Result<$Guard<'a, T, D>>;

            fn next(&mut self) -> Option<Self::Item> {
                self.pages.next().map(|page| self.section.$take(page))
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.pages.size_hint()
            }
        }

        impl<T: Element, D: Device> DoubleEndedIterator for $Pages<'_, T, D> {
            fn next_back(&mut self) -> Option<Self::Item> {
                self.pages.next_back().map(|page| self.section.$take(page))
            }
        }

        impl<T: Element, D: Device> ExactSizeIterator for $Pages<'_, T, D> {}
        impl<T: Element, D: Device> FusedIterator for $Pages<'_, T, D> {}
    };
}

guards!(SectionPage, SectionPages, page);
guards!(SectionPageMut, SectionPagesMut, page_mut);

impl<T: Element, D: Device> DerefMut for SectionPageMut<'_, T, D> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.page[self.cut.within.clone()]
    }
}
