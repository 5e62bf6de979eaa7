//! Methods of views for prefix sums.

use std::ops::RangeBounds;

use super::number::PrefixSummed;
use super::plan::PrefixScan;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
#[cfg(doc)]
use crate::ops::query::QueryMut;
use crate::ops::sealed::INTERNAL;
use crate::ops::view::{Linear, Store as _, StoreMut as _, View, ViewMut};

/// Prefix sums of the numbers of a linear [`ViewMut`], computed by the devices that store the numbers.
///
/// ```
/// use vmarray::kernel::PrefixSummed;
/// use vmarray::prelude::*;
/// use vmarray::views::Scan;
///
/// fn ends<'a, T: PrefixSummed>(lengths: impl Scan<'a, Element = T>) -> vmarray::Result<T> {
///     lengths.prefix_sum(..)
/// }
/// let array = VirtualArray::<u16>::new(100)?;
/// array.fill(.., 2)?;
/// assert_eq!(ends(array.section_mut(90..)?)?, 20);
/// assert_eq!(array.get(99)?, 20);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Scan<'a>: ViewMut<'a> + View<'a, Shape = Linear, Element: PrefixSummed> {
    /// Replaces each element of a range by the sum of all elements of the range up to and including it.
    /// Returns the sum of all. All devices of the elements work in place. A single GPU reads the range once,
    /// other devices read it twice; each element is written once.
    ///
    /// Integers wrap. Floats are added in an order that does not depend on devices or pages. Blocks of 1024
    /// elements, counted from the start of the array or source, are summed by steps of Hillis and Steele. A
    /// binary tree adds the sums of blocks, in `f64` with compensation. The error of each result is therefore
    /// at most about 12 roundings of the sum of magnitudes in its block, and 2 roundings of the sum of all
    /// magnitudes before the block. This bound holds for ranges of any length.
    ///
    /// To sum an expression, or another array, first [assign](QueryMut::transform) it to the elements; the
    /// sums may then have a wider type. Other threads must not write to the range meanwhile, or the sums
    /// are unspecified.
    ///
    /// A single GPU sums pages of any length. Several GPUs that can access each other's memory sum pages
    /// whose length is a multiple of 4096 elements. On other devices, pages whose length is no multiple of
    /// 1024 elements pass through the host, 4 MiB at a time. So do all pages on OpenCL devices whose
    /// work-groups have less than 1024 items.
    ///
    /// # Errors
    /// The errors of [`section`](View::section), and of devices. After an error of a device any element of
    /// the range may be written; [`Interrupted`](ErrorKind::Interrupted) lists the unspecified ones.
    fn prefix_sum(self, bounds: impl RangeBounds<usize>) -> Result<Self::Element> {
        prefix_sums(self, bounds, false)
    }

    /// Replaces each element of a range by the sum of all earlier elements of the range, and the first
    /// element by zero. Returns the sum of all. See [`prefix_sum`](Self::prefix_sum).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// // Where rows of these lengths begin, and how much room they need.
    /// let rows = VirtualArray::<u32>::new(4)?;
    /// rows.write(0, &[3, 0, 2, 5])?;
    /// assert_eq!(rows.exclusive_prefix_sum(..)?, 10);
    /// assert_eq!(rows.to_vec(..)?, [0, 3, 3, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`prefix_sum`](Self::prefix_sum).
    fn exclusive_prefix_sum(self, bounds: impl RangeBounds<usize>) -> Result<Self::Element> {
        prefix_sums(self, bounds, true)
    }
}

impl<'a, V> Scan<'a> for V where V: ViewMut<'a> + View<'a, Shape = Linear, Element: PrefixSummed> {}

fn prefix_sums<'a, V>(view: V, bounds: impl RangeBounds<usize>, is_exclusive: bool) -> Result<V::Element>
where
    V: Scan<'a>,
{
    let (store, shape) = view.parts();
    let range = shape.places(bounds)?;
    let Some(last) = range.end.checked_sub(1).filter(|_| !range.is_empty()) else {
        return Ok(bytemuck::Zeroable::zeroed());
    };
    let own = store.get_at(last, INTERNAL)?;
    let (result, page_len) = (store.as_target(INTERNAL), store.page_elements());
    let scan = PrefixScan { store: result, page_len, range, row: 0, is_exclusive };
    scan.run::<V::Element>().map_err(|error| error.counted_from(shape.start))?;
    let sum = store.get_at(last, INTERNAL)?;
    Ok(if is_exclusive { vmarray_kernel::k::add(sum, own) } else { sum })
}
