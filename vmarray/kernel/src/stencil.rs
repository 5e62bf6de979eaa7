//! Kernel parameters for arrays that kernels read: a whole array by index, or each item's neighbourhood.

mod mode;

pub use mode::Mode;

use crate::interpret::InterpreterArgument;
use crate::layout::ElementMemory;
use crate::lower::VALUES_MAX;
use crate::place::At;
use crate::source::{AllElements, Item, LaunchArguments};
use crate::views::{Parameter, ParameterInfo, ParameterKind, kind};

/// A kernel parameter: an array whose elements a kernel reads by index, as `of[i]`, or with `N` axes as
/// `of[[row, column]]`.
///
/// ```
/// use vmarray_kernel::{kernel, Anywhere, At, Own, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn reversed(at: At<1>, of: &Anywhere<u8>, out: &mut Own<u8>) {
///     out.set(of[of.len() - 1 - at.index()]);
/// }
/// let mut out = [0; 3];
/// run_on_host::<reversed>(0..3, ((), &[1, 2, 3], &mut out))?;
/// assert_eq!(out, [3, 2, 1]);
///
/// #[kernel(crate = vmarray_kernel)]
/// fn product(at: At<2>, a: &Anywhere<i32, 2>, b: &Anywhere<i32, 2>, out: &mut Own<i32>) {
///     let mut sum = 0;
///     for k in 0..a.shape()[1] {
///         sum += a[[at[0], k]] * b[[k, at[1]]];
///     }
///     out.set(sum);
/// }
/// let mut out = [0; 4];
/// let (a, b) = (([2, 3], &[1, 2, 3, 4, 5, 6][..]), ([3, 2], &[1, 0, 0, 1, 1, 1][..]));
/// run_on_host::<product>(0..4, ([2, 2], a, b, &mut out))?;
/// assert_eq!(out, [4, 5, 10, 11]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[repr(transparent)]
pub struct Anywhere<T: 'static, const N: usize = 1>(StencilElements<'static, T, N>);

impl<T: ElementMemory> Anywhere<T> {
    /// Returns the number of elements.
    #[allow(
        clippy::len_without_is_empty,
        reason = "kernels cannot call `is_empty`; they compare `len` with \
            zero"
    )]
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.elements.len()
    }

    #[inline(always)]
    pub(crate) fn element(&self, index: usize) -> Option<T> {
        self.0.elements.element(index)
    }
}

impl<T: ElementMemory, const N: usize> Anywhere<T, N> {
    /// Returns the extents of an array with several axes.
    #[inline(always)]
    #[must_use]
    pub fn shape(&self) -> [usize; N] {
        self.0.axes.map(|axis| axis.extent)
    }

    #[inline(always)]
    pub(crate) fn element_at(&self, position: [usize; N]) -> Result<T, usize> {
        self.0.element(position)
    }

    #[inline(always)]
    fn from_bound<'i>(of: &'i StencilElements<'_, T, N>) -> &'i Self {
        // SAFETY: the types differ only in a lifetime, which is longer than 'i. No code can keep the contents
        // longer than 'i: the type is neither copied nor moved out of a reference, and its methods return
        // values.
        unsafe { &*std::ptr::from_ref(of).cast() }
    }
}

impl<T, const N: usize> std::fmt::Debug for Anywhere<T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Anywhere").finish_non_exhaustive()
    }
}

/// A kernel parameter: the elements around an item's (GPU thread's) own element: `of[at]`,
/// `of[at.plus(1)]`. The launch sets the maximum distance (halo), and a boundary mode for positions beyond
/// the array's edges.
///
/// ```
/// use vmarray_kernel::{kernel, At, Own, Window, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn blurred(at: At<1>, of: &Window<f32, 1>, out: &mut Own<f32>) {
///     out.set((of[at.plus(-1)] + of[at] + of[at.plus(1)]) / 3.0);
/// }
/// let mut out = [0.0; 3];
/// // The first of these elements precedes the element of the first item.
/// run_on_host::<blurred>(0..3, ((), ([-1], [5], &[0.0, 0.0, 3.0, 6.0, 9.0]), &mut out))?;
/// assert_eq!(out, [1.0, 3.0, 6.0]);
///
/// #[kernel(crate = vmarray_kernel)]
/// fn below_right(at: At<2>, of: &Window<u8, 2>, out: &mut Own<u8>) {
///     out.set(of[at.plus([1, 1])]);
/// }
/// let mut out = [0; 2];
/// run_on_host::<below_right>(0..2, ([1, 2], ([0, 0], [2, 3], &[1, 2, 3, 4, 5, 6]), &mut out))?;
/// assert_eq!(out, [5, 6]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[repr(transparent)]
pub struct Window<T: 'static, const N: usize>(StencilElements<'static, T, N>);

impl<T: ElementMemory, const N: usize> Window<T, N> {
    #[inline(always)]
    pub(crate) fn element(&self, at: At<N>) -> Result<T, usize> {
        self.0.element(at.position())
    }

    #[inline(always)]
    fn from_bound<'i>(of: &'i StencilElements<'_, T, N>) -> &'i Self {
        // SAFETY: as in `Anywhere::from_bound`.
        unsafe { &*std::ptr::from_ref(of).cast() }
    }
}

impl<T, const N: usize> std::fmt::Debug for Window<T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").finish_non_exhaustive()
    }
}

/// One axis of an array, for an [`Anywhere`] or [`Window`] parameter of a kernel that the host executes.
#[derive(Clone, Copy, Debug)]
pub struct AroundAxis {
    /// The index of the first stored element along the axis.
    first: isize,
    extent: usize,
    mode: Mode,
    /// Distance between neighbours along the axis, in elements.
    stride: usize,
}

/// The memory of an array, for an [`Anywhere`] or [`Window`] parameter of a kernel that the host executes.
pub struct StencilElements<'s, T, const N: usize> {
    axes: [AroundAxis; N],
    /// Index in `elements` of the element at the first position.
    base: usize,
    /// The boundary constant of each axis whose mode has one.
    values: [T; N],
    elements: AllElements<'s, T>,
}

impl<'s, T: ElementMemory, const N: usize> StencilElements<'s, T, N> {
    /// Creates the source of a box of elements, stored row by row.
    fn of_box(first: [isize; N], extents: [usize; N], elements: &'s [T]) -> Self {
        let mut stride = extents.iter().product::<usize>();
        let axes = std::array::from_fn(|axis| {
            stride /= extents[axis].max(1);
            AroundAxis { first: first[axis], extent: extents[axis], mode: Mode::Checked, stride }
        });
        Self { axes, base: 0, values: [T::ZERO; N], elements: AllElements::Slice(elements) }
    }

    fn given(given: &mut LaunchArguments<'_, 's>) -> Self {
        given.form();
        let axes = [(); N].map(|()| AroundAxis {
            first: given.scalar() as isize,
            extent: given.scalar() as usize,
            mode: Mode::of_number(given.scalar()),
            stride: given.scalar() as usize,
        });
        let base = given.scalar() as usize;
        let mut values = [T::ZERO; N];
        if T::layout().scalars() <= VALUES_MAX {
            values = values.map(|_| T::of_values(&mut || given.scalar()));
        }
        Self { axes, base, values, elements: AllElements::View(given.view()) }
    }

    /// Returns the element at a position, or its boundary value; or the index that is out of bounds as error.
    #[inline(always)]
    fn element(&self, position: [usize; N]) -> Result<T, usize> {
        let (mut number, mut is_inside) = (self.base, true);
        for (axis, at) in self.axes.iter().zip(position) {
            let index = at.wrapping_sub(axis.first.cast_unsigned());
            is_inside &= index < axis.extent;
            number = number.wrapping_add(index.wrapping_mul(axis.stride));
        }
        if is_inside {
            return self.elements.element(number).ok_or(position[0]);
        }
        self.outside(position)
    }

    #[inline(never)]
    fn outside(&self, position: [usize; N]) -> Result<T, usize> {
        let (mut number, mut value) = (self.base, None);
        for (axis, (of, at)) in self.axes.iter().zip(position).enumerate() {
            let index = at.wrapping_sub(of.first.cast_unsigned());
            if index < of.extent {
                number += index * of.stride;
            } else if of.mode == Mode::Value {
                value = value.or(Some(self.values[axis]));
            } else if of.mode == Mode::Checked || of.extent == 0 {
                return Err(at);
            } else {
                number += of.mode.shown(index.cast_signed(), of.extent) * of.stride;
            }
        }
        value.map_or_else(|| self.elements.element(number).ok_or(position[0]), Ok)
    }
}

impl<T: ElementMemory, const N: usize> Parameter for &'static Window<T, N> {
    /// The position of the first element, the extents, and the elements.
    type Source<'s> = ([isize; N], [usize; N], &'s [T]);
    type Bound<'s> = StencilElements<'s, T, N>;
    type OfItem<'i> = &'i Window<T, N>;
    type Kind = kind::WindowKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Window(T::layout(), N) }
    }

    fn bound((first, extents, elements): Self::Source<'_>) -> Self::Bound<'_> {
        StencilElements::of_box(first, extents, elements)
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> StencilElements<'s, T, N> {
        StencilElements::given(given)
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, _: Item) -> &'i Window<T, N> {
        Window::from_bound(bound)
    }

    fn argument((first, extents, elements): Self::Source<'_>) -> InterpreterArgument<'_> {
        let bytes = bytemuck::cast_slice(elements);
        InterpreterArgument::Around(first.to_vec(), extents.to_vec(), bytes, size_of::<T>())
    }
}

impl<T: ElementMemory> Parameter for &'static Anywhere<T> {
    type Source<'s> = &'s [T];
    type Bound<'s> = StencilElements<'s, T, 1>;
    type OfItem<'i> = &'i Anywhere<T>;
    type Kind = kind::AnywhereKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Anywhere(T::layout(), 1) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        StencilElements::of_box([0], [source.len()], source)
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> Self::Bound<'s> {
        let elements = AllElements::View(given.view());
        StencilElements { elements, ..StencilElements::of_box([0], [0], &[]) }
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, _: Item) -> &'i Anywhere<T> {
        Anywhere::from_bound(bound)
    }

    fn argument(source: Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::Read(bytemuck::cast_slice(source), size_of::<T>())
    }
}

macro_rules! several_axes {
    ($($N:literal)*) => { $(
        impl<T: ElementMemory> Parameter for &'static Anywhere<T, $N> {
            /// The extents and the elements of the array.
            type Source<'s> = ([usize; $N], &'s [T]);
            type Bound<'s> = StencilElements<'s, T, $N>;
            type OfItem<'i> = &'i Anywhere<T, $N>;
            type Kind = kind::AnywhereKind;

            fn info(name: &'static str) -> ParameterInfo {
                ParameterInfo { name, kind: ParameterKind::Anywhere(T::layout(), $N) }
            }

            fn bound((extents, elements): Self::Source<'_>) -> Self::Bound<'_> {
                StencilElements::of_box([0; $N], extents, elements)
            }

            fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> Self::Bound<'s> {
                StencilElements::given(given)
            }

            #[inline(always)]
            fn of_item<'i>(bound: &'i mut Self::Bound<'_>, _: Item) -> &'i Anywhere<T, $N> {
                Anywhere::from_bound(bound)
            }

            fn argument((extents, elements): Self::Source<'_>) -> InterpreterArgument<'_> {
                let bytes = bytemuck::cast_slice(elements);
                InterpreterArgument::Around(vec![0; $N], extents.to_vec(), bytes, size_of::<T>())
            }
        }
    )* };
}
several_axes!(2 3 4);
