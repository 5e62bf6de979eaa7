//! Sort methods of views.

use std::ops::{Range, RangeBounds};

use super::keys::SortKey;
use super::plan::SortPlan;
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::ops::executor::{Operand, OperandStore};
use crate::ops::sealed::INTERNAL;
use crate::ops::view::{Linear, Store as _, StoreMut as _, View, ViewMut};

/// Sorts of the numbers of a linear [`ViewMut`]. The devices that store the numbers sort them.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::views::{Linear, SortKey};
///
/// fn greatest<'a, T: SortKey>(
///     view: impl ViewMut<'a, Element = T, Index = usize> + View<'a, Element = T, Shape = Linear>,
/// ) -> vmarray::Result<T> {
///     view.sort_descending(..)?;
///     view.get(0)
/// }
/// let array = VirtualArray::<u16>::new(3)?;
/// array.write(0, &[2, 7, 5])?;
/// assert_eq!(greatest(array.section_mut(..2)?)?, 7);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Sort<'a>: ViewMut<'a> + View<'a, Shape = Linear, Element: SortKey> {
    /// Sorts the elements of a range in ascending order. Floats are in the order of [`f64::total_cmp`]:
    /// `-0.0` comes before `0.0`, and NaNs without a sign come last.
    ///
    /// GPUs sort elements in their own memory (with CUDA from compute capability 7.0 on, or with OpenCL).
    /// This needs as much additional memory on each GPU as the elements have there. With several channels,
    /// each sorts its own elements; the sorted parts are then merged if their GPUs can access each other's
    /// memory. The same holds for memory that an OpenCL driver allocated in several pieces. Without that much
    /// memory, the first GPU sorts in place, with 0.1 to 9.2 GiB of its memory as available. In all other
    /// cases, all cores sort pieces of up to 1 GiB in RAM, and then merge them in place. This takes up to
    /// twice as much RAM as a piece.
    ///
    /// A [`Source`](crate::Source) of at least 16 MiB can be sorted through its device memory. Its devices
    /// must be such GPUs, and must have [imported](crate::source::SourceBuilder::import) the source's memory.
    /// The elements pass through the devices in pieces, and cross the bus twice in each direction. The sort
    /// needs additional RAM: a sixteenth of the elements, and at least 64 MiB. Up to 1 GiB of elements cross
    /// the bus only once in each direction if one channel has device memory for twice the elements; the sort
    /// then needs as much additional RAM as the elements. Cached pages give up their device memory for the
    /// sort. No element is lost on any failure.
    ///
    /// A sort by a GPU holds the whole range: other threads wait for it. During a sort in RAM other
    /// threads must not write to the range, or the result is unspecified.
    /// [`with_progress`](crate::progress::with_progress) reports the progress and can stop the sort.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<i32>::new(5)?;
    /// array.write(0, &[3, -1, 2, -7, 0])?;
    /// array.sort(..4)?;
    /// assert_eq!(array.to_vec(..)?, [-7, -1, 2, 3, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`WouldDeadlock`](ErrorKind::WouldDeadlock) for a thread
    /// that holds guards; [`NoMemory`](ErrorKind::NoMemory); errors of devices. After an error of a device
    /// the range has its elements in some order; [`Interrupted`](ErrorKind::Interrupted) lists the
    /// unspecified ones.
    fn sort(self, bounds: impl RangeBounds<usize>) -> Result<()> {
        sorted(self, bounds, false)
    }

    /// Sorts the elements of a range in descending order. See [`sort`](Self::sort).
    ///
    /// # Errors
    /// The errors of [`sort`](Self::sort).
    fn sort_descending(self, bounds: impl RangeBounds<usize>) -> Result<()> {
        sorted(self, bounds, true)
    }

    /// Returns the strategy of a sort of a range, with values of `value_bytes` bytes or without values. The
    /// call sorts nothing.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use vmarray::views::SortPlan;
    /// let array = VirtualArray::<u32>::new(1000)?;
    /// assert_eq!(array.explain_sort(.., None)?, SortPlan::OnDevices);
    /// println!("values of 12 bytes: {}", array.explain_sort(.., Some(12))?);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`section`](View::section).
    fn explain_sort(self, bounds: impl RangeBounds<usize>, value_bytes: Option<usize>) -> Result<SortPlan> {
        let (store, shape) = self.parts();
        let len = shape.places(bounds)?.len();
        Ok(SortPlan::new(store.as_target(INTERNAL), len, size_of::<Self::Element>(), value_bytes))
    }
}

impl<'a, V> Sort<'a> for V where V: ViewMut<'a> + View<'a, Shape = Linear, Element: SortKey> {}

fn sorted<'a, V>(view: V, bounds: impl RangeBounds<usize>, is_descending: bool) -> Result<()>
where
    V: Sort<'a>,
{
    let (store, shape) = view.parts();
    let sorted = super::sort(store, &shape.places(bounds)?, None, is_descending);
    sorted.map_err(|error| error.counted_from(shape.start))
}

/// Sorts the elements of a range, and moves `len` values with them. Values that have neither 4 nor 8 bytes
/// pass through RAM.
pub(crate) fn sort_with_values<'a, V>(
    view: V,
    bounds: impl RangeBounds<usize>,
    (values, len): (Operand<'_>, usize),
) -> Result<()>
where
    V: Sort<'a>,
{
    let (store, shape) = view.parts();
    let range = shape.places(bounds)?;
    check_values(store.as_operand(INTERNAL), &range, (values, len))?;
    super::sort(store, &range, Some(values), false).map_err(|error| error.counted_from(shape.start))
}

/// Checks that there is a value for each element of a range, and that values and elements do not overlap.
pub(crate) fn check_values(
    keys: &dyn OperandStore,
    range: &Range<usize>,
    (values, len): (Operand<'_>, usize),
) -> Result<()> {
    expect_len("the values", range.len(), len)?;
    let is_same = std::ptr::addr_eq(values.store, keys);
    if is_same && values.start < range.end && range.start < values.start + len {
        let (place, result, argument) = (String::new(), "the elements".into(), "the values".into());
        return Err(ErrorKind::KernelOverlap { kernel: "sort".into(), place, result, argument }.into());
    }
    Ok(())
}
