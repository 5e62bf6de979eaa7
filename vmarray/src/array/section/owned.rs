//! Sections that own their array together with others.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use backend_api::Device;

use super::{Section, SectionMut};
use crate::array::VirtualArray;
use crate::array::range::checked as checked_range;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::AnyDevice;

/// A range of an array that is kept alive by it: for threads and tasks that outlive the scope of the array.
///
/// ```
/// use std::sync::Arc;
/// use vmarray::{SharedSection, VirtualArray};
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
/// A task takes one with it and uses the futures of [`Section`](Section#for-tasks):
///
/// ```
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
/// #         std::thread::yield_now();
/// #     }
/// # }
/// use std::sync::Arc;
/// use vmarray::{Result, SharedSection, VirtualArray};
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
pub struct SharedSection<T: Element, D: Device = AnyDevice> {
    array: Arc<VirtualArray<T, D>>,
    range: Range<usize>,
}

impl<T: Element, D: Device> SharedSection<T, D> {
    /// A range of an array, which lives at least as long.
    ///
    /// # Errors
    /// [`RangeOutside`](crate::ErrorKind::RangeOutside), [`RangeReversed`](crate::ErrorKind::RangeReversed).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use vmarray::{SharedSection, VirtualArray};
    /// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
    /// assert!(SharedSection::new(&array, 900..1001).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn new(array: &Arc<VirtualArray<T, D>>, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self { array: Arc::clone(array), range: array.checked_range(range)? })
    }

    /// A section of the section.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use vmarray::{SharedSection, VirtualArray};
    /// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
    /// let part = SharedSection::new(&array, 100..200)?.section(50..)?;
    /// assert_eq!(part.as_section().range(), 150..200);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn section(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = checked_range(range, self.range.len())?;
        let range = self.range.start + range.start..self.range.start + range.end;
        Ok(Self { array: Arc::clone(&self.array), range })
    }

    /// The section, for reading.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use vmarray::{SharedSection, VirtualArray};
    /// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
    /// assert_eq!(SharedSection::new(&array, 100..200)?.as_section().get(5)?, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn as_section(&self) -> Section<'_, T, D> {
        Section { array: &self.array, start: self.range.start, len: self.range.len() }
    }

    /// The section, for reading and writing.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use vmarray::{SharedSection, VirtualArray};
    /// let array = Arc::new(VirtualArray::<u32>::new(1000)?);
    /// SharedSection::new(&array, 100..200)?.as_section_mut().set(5, 1)?;
    /// assert_eq!(array.get(105)?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn as_section_mut(&self) -> SectionMut<'_, T, D> {
        SectionMut { section: self.as_section() }
    }
}

impl<T: Element, D: Device> Clone for SharedSection<T, D> {
    fn clone(&self) -> Self {
        Self { array: Arc::clone(&self.array), range: self.range.clone() }
    }
}
