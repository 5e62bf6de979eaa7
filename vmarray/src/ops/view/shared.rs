//! Sections that share the ownership of their array or source (program memory) by an `Arc`.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::section::{Section, SectionMut};
use super::shape::{Linear, Shape};
use super::store::{Store, StoreMut};
use super::{View, ViewMut};
use crate::base::error::Result;
use crate::ops::sealed::{Internal, Sealed};

/// A section of an array or a [source](crate::Source) that shares its ownership by an `Arc`, for threads and
/// tasks that outlive the caller. A reference to a shared section is a view.
///
/// ```
/// use std::sync::Arc;
/// use vmarray::{prelude::*, views::SharedSection};
///
/// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
/// let halves = [SharedSection::new(&array, ..500)?, SharedSection::new(&array, 500..)?];
/// let threads = halves.map(|half| std::thread::spawn(move || half.fill(.., 3)));
/// for thread in threads {
///     thread.join().unwrap()?;
/// }
/// assert_eq!(array.get(999)?, 3);
/// let part = SharedSection::new(&array, 100..200)?.section(50..)?;
/// assert_eq!((part.len(), SharedSection::new(&array, 900..1001).is_err()), (50, true));
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// A task can own a shared section and use the futures of [`PagedView`](crate::views::PagedView#for-tasks):
///
/// ```
/// use futures::executor::block_on;
/// use std::sync::Arc;
/// use vmarray::{prelude::*, views::SharedSection, Result};
///
/// fn spawn<R>(task: impl Future<Output = R> + Send + 'static) -> R {
///     block_on(task)
/// }
///
/// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
/// let half = SharedSection::new(&array, 500..)?;
/// let task = async move {
///     half.set_async(7, 3).await?;
///     half.get_async(7).await
/// };
/// drop(array);
/// assert_eq!(spawn(task)?, 3);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedSection<S> {
    store: Arc<S>,
    shape: Linear,
}

impl<S: Store> SharedSection<S>
where
    for<'s> &'s S: View<'s, Store = S, Shape = Linear>,
{
    /// Creates a section of an array or [source](crate::Source). The section keeps the array or source alive.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed).
    pub fn new(store: &Arc<S>, range: impl RangeBounds<usize>) -> Result<Self> {
        let (_, shape) = (&**store).parts();
        Ok(Self { store: Arc::clone(store), shape: shape.cut(&shape.checked(range)?) })
    }

    /// Returns a section of this section. Both share ownership of the same array or [source](crate::Source).
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn section(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let shape = self.shape.cut(&self.shape.checked(range)?);
        Ok(Self { store: Arc::clone(&self.store), shape })
    }
}

impl<S> Sealed for &SharedSection<S> {}

impl<'a, S: Store> View<'a> for &'a SharedSection<S> {
    type Element = S::Element;
    type Index = usize;
    type Store = S;
    type Shape = Linear;
    type Section = Section<'a, S>;

    fn parts(self) -> (&'a S, Linear) {
        (&self.store, self.shape)
    }

    fn of_parts(store: &'a S, shape: Linear, _: Internal) -> Section<'a, S> {
        Section::new(store, shape)
    }
}

impl<'a, S: StoreMut> ViewMut<'a> for &'a SharedSection<S> {
    type SectionMut = SectionMut<'a, S>;

    fn of_parts_mut(store: &'a S, shape: Linear, _: Internal) -> SectionMut<'a, S> {
        Section::new(store, shape)
    }
}

impl<S> Clone for SharedSection<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), shape: self.shape }
    }
}
