//! The boundary modes, such as [`Clamp`]: each maps a position outside of a view to an element or a value.

use vmarray_kernel::launch::Mode;

use crate::base::element::Element;
use crate::ops::sealed::{Internal, Sealed};

/// The result of a boundary mode for a position: an element of the view, a fixed value, or an error.
///
/// ```
/// use vmarray::boundary::{Boundary, Checked, Circular, Constant, BoundaryPlace};
/// fn at_four(mode: impl Boundary<u8, 1>) -> BoundaryPlace<u8> {
///     mode.place(0, 4, 3)
/// }
/// assert_eq!(at_four(Circular), BoundaryPlace::At(1));
/// assert_eq!(at_four(Constant(9)), BoundaryPlace::Value(9));
/// assert_eq!(at_four(Checked), BoundaryPlace::Outside);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryPlace<T> {
    /// The element at this index, which is inside of the axis.
    At(usize),
    /// This value, because there is no element.
    Value(T),
    /// No value: the read is an error.
    Outside,
}

/// A boundary mode, which defines the results of reads at positions outside of a view with `N` axes.
///
/// A tuple of `N` modes is a mode with a separate mode for each axis. A reference to a mode, such as
/// `&dyn Boundary`, is a mode, so a program can choose a mode at run time. A position may be outside on
/// several axes. The mode of the first of these axes that defines a value then determines the result. An
/// error on any axis has priority over all values.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::boundary::{Boundary, BoundaryPlace};
/// /// Every other copy is blank.
/// struct Chequered;
///
/// impl<const N: usize> Boundary<u8, N> for Chequered {
///     fn place(&self, _axis: usize, index: isize, extent: usize) -> BoundaryPlace<u8> {
///         let (copy, at) = (index.div_euclid(extent as isize), index.rem_euclid(extent as isize));
///         if copy % 2 == 0 { BoundaryPlace::At(at as usize) } else { BoundaryPlace::Value(0) }
///     }
/// }
///
/// let array = vmarray::VirtualArray::<u8>::new(4)?;
/// array.fill(.., 7)?;
/// let view = array.bounded(Chequered);
/// assert_eq!((view.get([-8])?, view.get([-1])?, view.get([3])?), (7, 0, 7));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Boundary<T, const N: usize> {
    /// Maps an index along an axis of `extent` elements to an element, a value or an error. An index inside
    /// must be mapped to itself: windows rely on this and do not call the method for it. If the result is an
    /// index outside, the read is an error.
    fn place(&self, axis: usize, index: isize, extent: usize) -> BoundaryPlace<T>;

    /// Returns the mode of an axis if it is one of the library's, so that devices can apply it.
    #[doc(hidden)]
    fn built_in(&self, axis: usize, _: Internal) -> Option<(Mode, Option<T>)> {
        let _ = axis;
        None
    }
}

/// A mode for writes outside of a view: [`Checked`], [`Ignored`] or [`Unchecked`]. The trait is sealed.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::boundary::{Ignored, Zero};
/// let array = vmarray::VirtualArray::<u8>::new(4)?;
/// assert!(array.bounded(Zero).set([4], 1).is_err());
/// array.bounded(Zero).with_writes(Ignored).set([4], 1)?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait WriteBoundary: Sealed {
    /// True if the mode ignores writes outside; otherwise they are errors.
    const IGNORES: bool;

    /// Returns true if an index is inside of an axis.
    #[doc(hidden)]
    fn contains(&self, index: isize, extent: usize) -> bool {
        is_inside(index, extent)
    }
}

#[inline(always)]
pub(super) fn is_inside(index: isize, extent: usize) -> bool {
    // Compare as unsigned numbers: a negative index then exceeds every extent.
    index.cast_unsigned() < extent
}

/// Boundary mode: reads and writes outside of the view are errors.
///
/// ```
/// use vmarray::{boundary::Checked, prelude::*};
/// let array = vmarray::VirtualArray::<u8>::new(4)?;
/// assert!(array.bounded(Checked).get([-1]).is_err());
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checked;

/// Boundary mode for writes: writes outside of the view are ignored.
///
/// ```
/// use vmarray::prelude::*;
/// use vmarray::boundary::{Clamp, Ignored};
/// let array = vmarray::VirtualArray::<u8>::new(4)?;
/// array.bounded(Clamp).with_writes(Ignored).write_window([-2], [4], &[1, 2, 3, 4])?;
/// assert_eq!(array.to_vec(..)?, [3, 4, 0, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ignored;

/// Boundary mode: all bytes outside of the view read as zero.
///
/// ```
/// use vmarray::{boundary::Zero, prelude::*};
/// let row = Source::new(vec![1_u8; 4])?;
/// assert_eq!(row.bounded(Zero).to_vec([-1], [6])?, [0, 1, 1, 1, 1, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Zero;

/// Boundary mode: all elements outside of the view have this value.
///
/// ```
/// use vmarray::{boundary::Constant, prelude::*};
/// let array = vmarray::VirtualArray::<u8>::new(2)?;
/// assert_eq!(array.bounded(Constant(9)).to_vec([-1], [4])?, [9, 0, 0, 9]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Constant<T>(pub T);

/// Boundary mode: reads outside get the nearest edge element. Reads are errors if the view has no elements.
///
/// ```
/// use vmarray::{boundary::Clamp, prelude::*};
/// let row = Source::new(vec![1_u8, 2, 3])?;
/// assert_eq!(row.bounded(Clamp).to_vec([-2], [7])?, [1, 1, 1, 2, 3, 3, 3]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clamp;

/// Boundary mode: the view repeats periodically, so the first element follows the last. Reads are errors if
/// the view has no elements.
///
/// ```
/// use vmarray::{boundary::Circular, prelude::*};
/// let row = Source::new(vec![1_u8, 2, 3])?;
/// assert_eq!(row.bounded(Circular).to_vec([-2], [7])?, [2, 3, 1, 2, 3, 1, 2]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Circular;

/// Boundary mode: reflects positions at the edge element, which is not repeated (`3 2 | 1 2 3`). Reads are
/// errors if the view has no elements.
///
/// ```
/// use vmarray::{boundary::Mirror, prelude::*};
/// let row = Source::new(vec![1_u8, 2, 3])?;
/// assert_eq!(row.bounded(Mirror).to_vec([-2], [7])?, [3, 2, 1, 2, 3, 2, 1]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mirror;

/// Boundary mode: reflects positions beyond the edge element, which is repeated (`2 1 | 1 2 3`). Reads are
/// errors if the view has no elements.
///
/// ```
/// use vmarray::{boundary::Symmetric, prelude::*};
/// let row = Source::new(vec![1_u8, 2, 3])?;
/// assert_eq!(row.bounded(Symmetric).to_vec([-2], [7])?, [2, 1, 1, 2, 3, 3, 2]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Symmetric;

/// Boundary mode without checks: the program promises never to access elements outside of the view.
///
/// ```
/// use vmarray::{boundary::Unchecked, prelude::*};
/// let array = vmarray::VirtualArray::<u8>::new(3)?;
/// // SAFETY: only indices below 3 are used with the view.
/// let view = array.bounded(unsafe { Unchecked::new() });
/// assert_eq!(view.get([2])?, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unchecked(());

impl Unchecked {
    /// Creates the mode that checks nothing.
    ///
    /// # Safety
    /// The program passes only positions inside of the view, to views with this mode and to the mode itself.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

impl Sealed for Checked {}
impl Sealed for Ignored {}
impl Sealed for Unchecked {}

impl WriteBoundary for Checked {
    const IGNORES: bool = false;
}

impl WriteBoundary for Ignored {
    const IGNORES: bool = true;
}

impl WriteBoundary for Unchecked {
    const IGNORES: bool = false;

    #[inline(always)]
    fn contains(&self, index: isize, extent: usize) -> bool {
        // SAFETY: the caller of `new` promises it.
        unsafe { std::hint::assert_unchecked(is_inside(index, extent)) };
        true
    }
}

/// Returns the remainder of an index in a period of repetition, which begins at the first element.
#[inline]
fn within_period(index: isize, period: usize) -> usize {
    if index >= 0 {
        index.cast_unsigned() % period
    } else {
        period - 1 - (-(index + 1)).cast_unsigned() % period
    }
}

/// Implements a mode for all element types and numbers of axes, from its result outside of an axis.
macro_rules! modes {
    ($($Mode:ty: $kind:ident $value:expr, |$mode:ident, $index:ident, $extent:ident| $outside:expr;)*) => {$(
        impl<T: Element, const N: usize> Boundary<T, N> for $Mode {
            #[inline(always)]
            fn place(&self, _axis: usize, $index: isize, $extent: usize) -> BoundaryPlace<T> {
                let $mode = self;
                if is_inside($index, $extent) {
                    BoundaryPlace::At($index.cast_unsigned())
                } else {
                    $outside
                }
            }

            fn built_in(&self, _: usize, _: Internal) -> Option<(Mode, Option<T>)> {
                let value: fn(&Self) -> Option<T> = $value;
                Some((Mode::$kind, value(self)))
            }
        }
    )*};
}

modes! {
    Checked: Checked |_| None, |_mode, index, extent| BoundaryPlace::Outside;
    Zero: Value |_| Some(T::zeroed()), |_mode, index, extent| BoundaryPlace::Value(T::zeroed());
    Constant<T>: Value |mode| Some(mode.0), |mode, index, extent| BoundaryPlace::Value(mode.0);
    Clamp: Clamp |_| None, |_mode, index, extent| existing(extent, |last| if index < 0 { 0 } else { last });
    Circular: Circular |_| None, |_mode, index, extent| existing(extent, |_| within_period(index, extent));
    // Arrays have at most `isize::MAX` elements, so twice this number does not overflow.
    Mirror: Mirror |_| None, |_mode, index, extent| existing(extent, |last| {
        let period = (2 * last).max(1);
        let at = within_period(index, period);
        at.min(period - at)
    });
    Symmetric: Symmetric |_| None, |_mode, index, extent| existing(extent, |last| {
        let at = within_period(index, 2 * extent);
        at.min(extent + last - at)
    });
}

/// Returns one of the elements, or `Outside` if there are none. `at` gets the index of the last element.
#[inline(always)]
fn existing<T>(extent: usize, at: impl FnOnce(usize) -> usize) -> BoundaryPlace<T> {
    if extent == 0 { BoundaryPlace::Outside } else { BoundaryPlace::At(at(extent - 1)) }
}

impl<T: Element, const N: usize> Boundary<T, N> for Unchecked {
    #[inline(always)]
    fn place(&self, _axis: usize, index: isize, extent: usize) -> BoundaryPlace<T> {
        // SAFETY: the caller of `new` promises it.
        unsafe { std::hint::assert_unchecked(is_inside(index, extent)) };
        BoundaryPlace::At(index.cast_unsigned())
    }

    fn built_in(&self, _: usize, _: Internal) -> Option<(Mode, Option<T>)> {
        Some((Mode::Checked, None))
    }
}

impl<T, const N: usize, B: Boundary<T, N> + ?Sized> Boundary<T, N> for &B {
    #[inline(always)]
    fn place(&self, axis: usize, index: isize, extent: usize) -> BoundaryPlace<T> {
        (**self).place(axis, index, extent)
    }

    fn built_in(&self, axis: usize, internal: Internal) -> Option<(Mode, Option<T>)> {
        (**self).built_in(axis, internal)
    }
}

/// Implements the traits for tuples with one mode for each axis.
macro_rules! tuples {
    ($($count:literal: $($B:ident $at:tt),*;)*) => {$(
        impl<T, $($B: Boundary<T, 1>),*> Boundary<T, $count> for ($($B,)*) {
            #[inline(always)]
            fn place(&self, axis: usize, index: isize, extent: usize) -> BoundaryPlace<T> {
                match axis {
                    $($at => self.$at.place(0, index, extent),)*
                    _ => BoundaryPlace::Outside,
                }
            }

            fn built_in(&self, axis: usize, internal: Internal) -> Option<(Mode, Option<T>)> {
                match axis {
                    $($at => self.$at.built_in(0, internal),)*
                    _ => None,
                }
            }
        }
    )*};
}

tuples! {
    1: A 0;
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, E 3;
    5: A 0, B 1, C 2, E 3, F 4;
    6: A 0, B 1, C 2, E 3, F 4, G 5;
    7: A 0, B 1, C 2, E 3, F 4, G 5, H 6;
    8: A 0, B 1, C 2, E 3, F 4, G 5, H 6, I 7;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mode: impl Boundary<u8, 1>, index: isize, extent: usize) -> BoundaryPlace<u8> {
        mode.place(0, index, extent)
    }

    /// The tests of windows cover other indices.
    #[test]
    fn the_farthest_indices_are_right() {
        let far = isize::MAX as usize;
        for index in [isize::MIN, isize::MIN + 1, -1, isize::MAX] {
            for extent in [1, 2, 3, far - 1, far] {
                let of = |at: i128, period: i128| at.rem_euclid(period);
                let (i, n) = (index as i128, extent as i128);
                assert_eq!(at(Circular, index, extent), BoundaryPlace::At(of(i, n) as usize));
                let mirrored = of(i, (2 * n - 2).max(1));
                assert_eq!(
                    at(Mirror, index, extent),
                    BoundaryPlace::At(mirrored.min((2 * n - 2).max(1) - mirrored) as usize)
                );
                let repeated = of(i, 2 * n);
                assert_eq!(
                    at(Symmetric, index, extent),
                    BoundaryPlace::At(repeated.min(2 * n - 1 - repeated) as usize)
                );
            }
        }
    }
}
