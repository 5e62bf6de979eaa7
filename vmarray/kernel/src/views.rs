//! What launched kernels are given.

use crate::KernelType;
use crate::interpret::Argument;
use crate::layout::Layout;
use bytemuck::{Pod, TransparentWrapper};

/// An element of an array: a value of kernels that is plain data.
///
/// ```
/// fn bytes_of<T: vmarray_kernel::Memory>(elements: &[T]) -> usize {
///     size_of_val(elements)
/// }
/// assert_eq!(bytes_of(&[[1_u16, 2]]), 4);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element that kernels see",
    note = "elements are plain data: numbers, arrays of them, and structs with \
            `#[derive(Clone, Copy, Pod, Zeroable, KernelType)]`"
)]
pub trait Memory: KernelType + Pod {}
impl<T: KernelType + Pod> Memory for T {}

/// The place of the item that a kernel runs for, in an array of `N` dimensions.
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
/// # Ok::<_, vmarray_kernel::Outside>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<const N: usize> {
    position: [isize; N],
}

impl At<1> {
    /// The place of an element.
    #[must_use]
    pub const fn of(index: usize) -> Self {
        Self { position: [index as isize] }
    }

    /// Its index.
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> usize {
        self.position[0] as usize
    }

    /// The place so many elements further on.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, by: isize) -> Self {
        Self { position: [self.position[0].wrapping_add(by)] }
    }
}

/// The item's own element: of the array beside the result, or of the result itself.
///
/// ```
/// use vmarray_kernel::{kernel, Own, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn add(a: &Own<i32>, sum: &mut Own<i32>) {
///     sum.set(sum.get() + a.get());
/// }
/// let mut sum = [10, 20];
/// run_on_host::<add>(0..2, (&[1, 2], &mut sum))?;
/// assert_eq!(sum, [11, 22]);
/// # Ok::<_, vmarray_kernel::Outside>(())
/// ```
#[derive(TransparentWrapper)]
#[repr(transparent)]
pub struct Own<T>(T);

impl<T: Memory> Own<T> {
    /// The element.
    #[inline(always)]
    #[must_use]
    pub fn get(&self) -> T {
        self.0
    }

    /// Writes the element.
    #[inline(always)]
    pub fn set(&mut self, value: T) {
        self.0 = value;
    }
}

/// All elements of an array, to be read by index.
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
/// # Ok::<_, vmarray_kernel::Outside>(())
/// ```
#[derive(TransparentWrapper)]
#[repr(transparent)]
pub struct Anywhere<T>([T]);

impl<T: Memory> Anywhere<T> {
    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "kernels compare with zero")]
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    pub(crate) const fn elements(&self) -> &[T] {
        &self.0
    }
}

/// Which item a kernel runs for.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Its number among those that run together.
    pub number: usize,
    /// The index of its element.
    pub index: usize,
}

/// What a parameter of a launched kernel is.
///
/// ```
/// use vmarray_kernel::{kernel, Kernel, Own, ParameterKind};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn fill(value: f32, out: &mut Own<f32>) {
///     out.set(value);
/// }
/// let parameters = fill::parameters();
/// assert!(matches!(parameters[0].kind, ParameterKind::Value(_)) && parameters[1].name == "out");
/// assert!(matches!(parameters[1].kind, ParameterKind::OwnMut(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// [`At`], with so many dimensions.
    At(usize),
    /// A scalar, or a struct, tuple or array of them, by value.
    Value(Layout),
    /// A reference to a value: the same for all items, and read by indices.
    Table(Layout),
    /// The item's own element, read.
    Own(Layout),
    /// The item's own element, read and written.
    OwnMut(Layout),
    /// All elements.
    Anywhere(Layout),
}

/// A parameter of a launched kernel: [its kind](ParameterKind), and its name.
///
/// ```
/// use vmarray_kernel::{kernel, Kernel, Own, ParameterInfo};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn touch(out: &mut Own<u8>) {
///     out.set(1);
/// }
/// let names: Vec<&str> = touch::parameters().iter().map(|info: &ParameterInfo| info.name).collect();
/// assert_eq!(names, ["out"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterInfo {
    /// Its name in the source.
    pub name: &'static str,
    /// What it is.
    pub kind: ParameterKind,
}

/// A type that a launched kernel can take.
///
/// ```
/// use vmarray_kernel::{Own, Parameter, ParameterKind};
/// let info = <&Own<u8> as Parameter>::info("image");
/// assert!(info.name == "image" && matches!(info.kind, ParameterKind::Own(_)));
/// ```
#[diagnostic::on_unimplemented(
    message = "a kernel that is launched cannot take a `{Self}`",
    note = "it takes `At<1>`, values, `&[T; N]`, `&Own<T>`, `&mut Own<T>` and `&Anywhere<T>`"
)]
pub trait Parameter {
    /// Where the host takes it from, for some items.
    type Source<'s>;
    /// What an item is given.
    type OfItem<'i>;

    /// What it is.
    fn info(name: &'static str) -> ParameterInfo;

    /// What this item is given.
    #[doc(hidden)]
    fn of_item<'i>(source: &'i mut Self::Source<'_>, item: Item) -> Self::OfItem<'i>;

    /// What a launch is given.
    #[doc(hidden)]
    fn argument(source: Self::Source<'_>) -> Argument<'_>;
}

impl Parameter for At<1> {
    type Source<'s> = ();
    type OfItem<'i> = Self;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::At(1) }
    }

    #[inline(always)]
    fn of_item(_: &mut (), item: Item) -> Self {
        Self::of(item.index)
    }

    fn argument(_: Self::Source<'_>) -> Argument<'_> {
        Argument::Place
    }
}

impl<T: KernelType> Parameter for T {
    type Source<'s> = T;
    type OfItem<'i> = T;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Value(T::layout()) }
    }

    #[inline(always)]
    fn of_item(source: &mut T, _: Item) -> T {
        *source
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        let mut values = Vec::new();
        source.values(&mut values);
        Argument::Values(values)
    }
}

impl<T: Memory> Parameter for &'static Own<T> {
    type Source<'s> = &'s [T];
    type OfItem<'i> = &'i Own<T>;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Own(T::layout()) }
    }

    #[inline(always)]
    fn of_item<'i>(source: &'i mut &[T], item: Item) -> &'i Own<T> {
        Own::wrap_ref(&source[item.number])
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::Read(bytemuck::cast_slice(source), size_of::<T>())
    }
}

impl<T: Memory> Parameter for &'static mut Own<T> {
    type Source<'s> = &'s mut [T];
    type OfItem<'i> = &'i mut Own<T>;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::OwnMut(T::layout()) }
    }

    #[inline(always)]
    fn of_item<'i>(source: &'i mut &mut [T], item: Item) -> &'i mut Own<T> {
        Own::wrap_mut(&mut source[item.number])
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::Write(bytemuck::cast_slice_mut(source), size_of::<T>())
    }
}

impl<T: Memory> Parameter for &'static Anywhere<T> {
    type Source<'s> = &'s [T];
    type OfItem<'i> = &'i Anywhere<T>;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Anywhere(T::layout()) }
    }

    #[inline(always)]
    fn of_item<'i>(source: &'i mut &[T], _: Item) -> &'i Anywhere<T> {
        Anywhere::wrap_ref(source)
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::Read(bytemuck::cast_slice(source), size_of::<T>())
    }
}

impl<T: KernelType, const N: usize> Parameter for &'static [T; N] {
    type Source<'s> = &'s [T; N];
    type OfItem<'i> = &'i [T; N];

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Table(<[T; N]>::layout()) }
    }

    #[inline(always)]
    fn of_item<'i>(source: &'i mut &[T; N], _: Item) -> &'i [T; N] {
        source
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        let mut values = Vec::new();
        source.values(&mut values);
        Argument::Values(values)
    }
}
