//! Sections that own their store together with others.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::section::{Section, SectionMut};
use super::shape::{Linear, Shape};
use super::store::{Store, StoreMut};
use super::{View, ViewMut};
use crate::base::error::Result;

/// A range of an array or a source that is kept alive by it: for threads and tasks that outlive the scope of
/// the store.
///
/// ```
/// use std::sync::Arc;
/// use vmarray::{SharedSection, prelude::*};
///
/// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
/// let halves = [SharedSection::new(&array, ..500)?, SharedSection::new(&array, 500..)?];
/// let threads = halves.map(|half| std::thread::spawn(move || half.as_section_mut().fill(.., 3)));
/// for thread in threads {
///     thread.join().unwrap()?;
/// }
/// assert_eq!(array.get(999)?, 3);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// A task takes one with it and uses the futures of [`PagedView`](crate::PagedView#for-tasks):
///
/// ```
/// # use futures::executor::block_on;
/// use std::sync::Arc;
/// use vmarray::{Result, SharedSection, prelude::*};
///
/// fn spawn<R>(task: impl Future<Output = R> + Send + 'static) -> R {
///     block_on(task)
/// }
///
/// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
/// let half = SharedSection::new(&array, 500..)?;
/// let task = async move {
///     let section = half.as_section_mut();
///     section.set_async(7, 3).await?;
///     section.get_async(7).await
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
    /// A range of a store, which lives at least as long.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use vmarray::{SharedSection, prelude::*};
    /// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
    /// assert!(SharedSection::new(&array, 900..1001).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn new(store: &Arc<S>, range: impl RangeBounds<usize>) -> Result<Self> {
        let (_, shape) = (&**store).parts();
        Ok(Self { store: Arc::clone(store), shape: shape.cut(&shape.checked(range)?) })
    }

    /// A section of the section.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use vmarray::{SharedSection, prelude::*};
    /// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
    /// let part = SharedSection::new(&array, 100..200)?.section(50..)?;
    /// assert_eq!(part.as_section().range(), 150..200);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let shape = self.shape.cut(&self.shape.checked(range)?);
        Ok(Self { store: Arc::clone(&self.store), shape })
    }

    /// The section, for reading.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use vmarray::{SharedSection, prelude::*};
    /// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
    /// assert_eq!(SharedSection::new(&array, 100..200)?.as_section().get(5)?, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn as_section(&self) -> Section<'_, S> {
        Section::new(&self.store, self.shape)
    }

    /// The section, for reading and writing.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use vmarray::{SharedSection, prelude::*};
    /// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
    /// SharedSection::new(&array, 100..200)?.as_section_mut().set(5, 1)?;
    /// assert_eq!(array.get(105)?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn as_section_mut(&self) -> SectionMut<'_, S>
    where
        for<'s> &'s S: ViewMut<'s, Store = S>,
        S: StoreMut,
    {
        Section::new(&self.store, self.shape)
    }
}

impl<S> Clone for SharedSection<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), shape: self.shape }
    }
}
