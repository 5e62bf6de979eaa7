//! [`At`], the kernel parameter with the position of an item (GPU thread): the indices of its element.

mod domain;

pub use domain::{Divisor, Domain, DomainAxis, PlaceCursor};

use crate::group_ops;
use crate::interpret::InterpreterArgument;
use crate::source::{Item, LaunchArguments};
use crate::views::{Parameter, ParameterInfo, ParameterKind, kind};

/// The position of an item (GPU thread): the indices of its element along the `N` axes of the result.
///
/// ```
/// use vmarray_kernel::{kernel, At, Own, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn squares(at: At<1>, out: &mut Own<u64>) {
///     let i = at.index() as u64;
///     out.set(i * i);
/// }
/// let mut out = [0; 4];
/// run_on_host::<squares>(0..4, ((), &mut out))?;
/// assert_eq!(out, [0, 1, 4, 9]);
///
/// let at = At::<1>::of(7);
/// assert_eq!((at.index(), at.plus(-2).index()), (7, 5));
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
///
/// With two or more axes, `at[0]`, `at[1]` and so on are the indices, and `at.shape()` the extents of the
/// result:
///
/// ```
/// use vmarray_kernel::{kernel, At, Own, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn transposed(at: At<2>, number: &mut Own<u64>) {
///     number.set((at[1] * at.shape()[0] + at[0]) as u64);
/// }
/// let mut numbers = [0; 6];
/// run_on_host::<transposed>(0..6, ([2, 3], &mut numbers))?;
/// assert_eq!(numbers, [0, 2, 4, 1, 3, 5]);
///
/// let at = At::<2>::within([5, 8], [10, 10]);
/// assert_eq!((at.plus([1, -3])[1], at.shape()), (5, [10, 10]));
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
///
/// In kernels with groups, the position also has the item's position in its group:
///
/// ```
/// use vmarray_kernel::{At, Own, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel, group = 4)]
/// fn number(at: At<1>, x: &mut Own<u32>) {
///     x.set((at.in_group() + 10 * at.group() + 100 * at.groups()) as u32);
/// }
/// let mut x = [0; 6];
/// run_on_host::<number>(0..6, ((), &mut x))?;
/// assert_eq!(x, [200, 201, 202, 203, 210, 211]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
///
/// If a group is a tile of several axes, each of these places has an index for each axis:
///
/// ```
/// use vmarray_kernel::{At, Group, Own, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel, group = [2, 2])]
/// fn transposed_tiles(at: At<2>, tile: &Group<u32, 2, 2>, x: &mut Own<u32>) {
///     let i = at.in_group();
///     tile.set(i, if at.is_inside() { x.get() } else { 9 });
///     barrier();
///     x.set(tile[[i[1], i[0]]] + 10 * at.group()[1] as u32 + 100 * at.groups()[1] as u32);
/// }
/// let mut x = [1, 2, 3, 4, 5, 6];
/// run_on_host::<transposed_tiles>(0..6, ([2, 3], (), &mut x))?;
/// assert_eq!(x, [201, 204, 213, 202, 205, 219]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<const N: usize> {
    /// The indices along the axes. Indices below 0 wrap to large numbers.
    position: [usize; N],
    shape: [usize; N],
}

impl<const N: usize> At<N> {
    #[inline(always)]
    pub(crate) const fn position(self) -> [usize; N] {
        self.position
    }

    #[inline(always)]
    pub(crate) fn axis(&self, axis: usize) -> Option<usize> {
        self.position.get(axis).copied()
    }
}

/// The index of the position along an axis.
///
/// # Panics
/// If the axis does not exist; in kernels this is an error of lowering.
impl<const N: usize> std::ops::Index<usize> for At<N> {
    type Output = usize;

    #[inline(always)]
    fn index(&self, axis: usize) -> &usize {
        &self.position[axis]
    }
}

impl At<1> {
    /// Creates the position of the item (GPU thread) whose element has this index.
    #[must_use]
    pub const fn of(index: usize) -> Self {
        Self { position: [index], shape: [usize::MAX] }
    }

    /// Returns the index of the item's (GPU thread's) element.
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> usize {
        self.position[0]
    }

    /// Returns the item's (thread's) number in its group (thread block), in a kernel with `group = length`.
    ///
    /// # Panics
    /// If the program calls the kernel's function instead of launching the kernel. `group` and `groups` also
    /// panic in this case.
    #[must_use]
    pub fn in_group(self) -> usize {
        group_ops::never()
    }

    /// Returns the index of the item's group (the GPU thread's block).
    #[must_use]
    pub fn group(self) -> usize {
        group_ops::never()
    }

    /// Returns the number of groups (thread blocks) in the launch.
    #[must_use]
    pub fn groups(self) -> usize {
        group_ops::never()
    }

    /// Returns the position `by` elements after this position, or before it if `by` is negative.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, by: isize) -> Self {
        Self { position: [self.position[0].wrapping_add_signed(by)], ..self }
    }
}

/// Implements the methods of places with several axes, and their use as parameters.
macro_rules! several_axes {
    ($($N:literal)*) => { $(
        impl At<$N> {
            /// Returns the position with these indices, in a result with this shape.
            #[must_use]
            pub const fn within(position: [usize; $N], shape: [usize; $N]) -> Self {
                Self { position, shape }
            }

            /// Returns the extents of the result.
            #[inline(always)]
            #[must_use]
            pub const fn shape(self) -> [usize; $N] {
                self.shape
            }

            /// Returns the position of the item (GPU thread) in its group (thread block), in a kernel with
            /// `group = [..]` of `N` axes. A group is a tile of the result. Tiles at the far edges contain
            /// padding items, which have no element. Padding items run like other items, because they can
            /// then load elements for their group. Their reads out of bounds return zero, and their
            /// [`set`](crate::Own::set) has no effect.
            ///
            /// # Panics
            /// If the program calls the kernel's function instead of launching the kernel. `group`, `groups`
            /// and `is_inside` also panic in this case.
            #[must_use]
            pub fn in_group(self) -> [usize; $N] {
                group_ops::never()
            }

            /// Returns the index along each axis of the tile that the group (thread block) computes.
            #[must_use]
            pub fn group(self) -> [usize; $N] {
                group_ops::never()
            }

            /// Returns the number of tiles along each axis; each group (thread block) computes a tile.
            #[must_use]
            pub fn groups(self) -> [usize; $N] {
                group_ops::never()
            }

            /// Returns true if the item (GPU thread) has an element; false if it is padding of a tile.
            #[must_use]
            pub fn is_inside(self) -> bool {
                group_ops::never()
            }

            /// Returns the position `by[axis]` elements after this position along each axis, or before it if
            /// `by[axis]` is negative.
            #[inline(always)]
            #[must_use]
            pub fn plus(self, by: [isize; $N]) -> Self {
                let position = std::array::from_fn(|axis| self.position[axis].wrapping_add_signed(by[axis]));
                Self { position, ..self }
            }
        }

        impl Parameter for At<$N> {
            /// The shape of the result.
            type Source<'s> = [usize; $N];
            type Bound<'s> = PlaceCursor<$N>;
            type OfItem<'i> = Self;
            type Kind = kind::PlaceKind;

            fn info(name: &'static str) -> ParameterInfo {
                ParameterInfo { name, kind: ParameterKind::At($N) }
            }

            fn bound(shape: Self::Source<'_>) -> Self::Bound<'_> {
                PlaceCursor::new(Domain::whole(shape))
            }

            fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> PlaceCursor<$N> {
                PlaceCursor::new(given.domain())
            }

            #[inline(always)]
            fn of_item(places: &mut PlaceCursor<$N>, item: Item) -> Self {
                Self { position: places.position(item.index), shape: places.domain.extents }
            }

            fn argument(shape: Self::Source<'_>) -> InterpreterArgument<'_> {
                InterpreterArgument::Shape(shape.to_vec())
            }
        }
    )* };
}
several_axes!(2 3 4);

impl Parameter for At<1> {
    type Source<'s> = ();
    type Bound<'s> = usize;
    type OfItem<'i> = Self;
    type Kind = kind::PlaceKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::At(1) }
    }

    fn bound(_: Self::Source<'_>) -> Self::Bound<'_> {
        0
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> usize {
        given.origin()
    }

    #[inline(always)]
    fn of_item(origin: &mut usize, item: Item) -> Self {
        Self::of(item.index.wrapping_sub(*origin))
    }

    fn argument(_: Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::Place
    }
}
