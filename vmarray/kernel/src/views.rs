//! What launched kernels are given.

use crate::KernelType;
use crate::interpret::Argument;
use crate::layout::Layout;
use crate::source::{AllElements, Given, HeldElements, HeldElementsMut, WindowElements};
use crate::together;
use bytemuck::{Pod, TransparentWrapper};
use std::ops::Range;

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
///
/// In groups:
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

    /// The item's number in its group, in a kernel with `group = length`.
    ///
    /// # Panics
    /// If the kernel's function is called, rather than launched; so do the others.
    #[must_use]
    pub fn in_group(self) -> usize {
        together::never()
    }

    /// The number of the item's group.
    #[must_use]
    pub fn group(self) -> usize {
        together::never()
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(self) -> usize {
        together::never()
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
#[repr(transparent)]
pub struct Anywhere<T: 'static>(AllElements<'static, T>);

impl<T: Memory> Anywhere<T> {
    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "kernels compare with zero")]
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    pub(crate) fn element(&self, index: usize) -> Option<T> {
        self.0.element(index)
    }

    #[inline(always)]
    fn lent<'i>(of: &'i AllElements<'_, T>) -> &'i Self {
        // SAFETY: it is the same type but for a lifetime, which is longer than 'i. Nobody can keep what is in
        // it for longer than 'i: it is neither copied nor moved out of a reference, and its methods give
        // values.
        unsafe { &*std::ptr::from_ref(of).cast() }
    }
}

impl<T> std::fmt::Debug for Anywhere<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Anywhere").finish_non_exhaustive()
    }
}

/// Elements around the item's own place, by place: as far as the launch says, and what a boundary mode shows
/// beyond the edges.
///
/// ```
/// use vmarray_kernel::{kernel, At, Own, Window, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn blurred(at: At<1>, of: &Window<f32, 1>, out: &mut Own<f32>) {
///     out.set((of[at.plus(-1)] + of[at] + of[at.plus(1)]) / 3.0);
/// }
/// let mut out = [0.0; 3];
/// // The first of these elements stands before that of the first item.
/// run_on_host::<blurred>(0..3, ((), (-1, &[0.0, 0.0, 3.0, 6.0, 9.0]), &mut out))?;
/// assert_eq!(out, [1.0, 3.0, 6.0]);
/// # Ok::<_, vmarray_kernel::Outside>(())
/// ```
#[repr(transparent)]
pub struct Window<T: 'static, const N: usize>(WindowElements<'static, T, N>);

impl<T: Memory> Window<T, 1> {
    #[inline(always)]
    pub(crate) fn element(&self, at: At<1>) -> Result<T, usize> {
        let number = at.position[0].wrapping_sub(self.0.first[0]) as usize;
        self.0.elements.element(number).ok_or(at.index())
    }

    #[inline(always)]
    fn lent<'i>(of: &'i WindowElements<'_, T, 1>) -> &'i Self {
        // SAFETY: as in `Anywhere::lent`.
        unsafe { &*std::ptr::from_ref(of).cast() }
    }
}

impl<T, const N: usize> std::fmt::Debug for Window<T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").finish_non_exhaustive()
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
    /// All elements, changed by atomics.
    Shared(Layout),
    /// Elements that are appended. It has two views: a counter of 64 bits, and elements behind one another.
    Append(Layout),
    /// Memory of the group, which no argument is given for.
    Group(Layout),
    /// Elements around the item's place, of so many dimensions.
    Window(Layout, usize),
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

/// What sorts of parameters there are, as types: [`Parameter::Kind`].
#[doc(hidden)]
pub mod kind {
    /// [`At`](crate::At).
    #[derive(Debug)]
    pub enum Place {}
    /// A [value](crate::KernelType).
    #[derive(Debug)]
    pub enum Value {}
    /// `&[T; N]`.
    #[derive(Debug)]
    pub enum Table {}
    /// `&`[`Own<T>`](crate::Own).
    #[derive(Debug)]
    pub enum Own {}
    /// `&mut `[`Own<T>`](crate::Own).
    #[derive(Debug)]
    pub enum OwnMut {}
    /// `&`[`Anywhere<T>`](crate::Anywhere).
    #[derive(Debug)]
    pub enum Anywhere {}
    /// `&`[`Shared<T>`](crate::Shared).
    #[derive(Debug)]
    pub enum Shared {}
    /// `&`[`Append<T>`](crate::Append).
    #[derive(Debug)]
    pub enum Append {}
    /// `&`[`Group<T, N>`](crate::Group).
    #[derive(Debug)]
    pub enum Group {}
    /// `&`[`Window<T, N>`](crate::Window).
    #[derive(Debug)]
    pub enum Window {}
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
    note = "it takes `At<1>`, values, `&[T; N]`, `&Own<T>`, `&mut Own<T>`, `&Anywhere<T>`, `&Window<T, 1>`, \
            `&Shared<T>`, `&Append<T>` and `&Group<T, N>`"
)]
pub trait Parameter {
    /// What a host's program gives for it, for some items.
    type Source<'s>;
    /// What items take it from.
    #[doc(hidden)]
    type Bound<'s>;
    /// What an item is given.
    type OfItem<'i>;
    /// Which sort it is, as a type.
    type Kind;

    /// What it is.
    fn info(name: &'static str) -> ParameterInfo;

    /// What items take it from, of what a program gives.
    #[doc(hidden)]
    fn bound(source: Self::Source<'_>) -> Self::Bound<'_>;

    /// What items take it from, of what a device gives.
    #[doc(hidden)]
    fn given<'s>(given: &mut Given<'_, 's>) -> Self::Bound<'s>;

    /// Has the elements of some items at hand.
    #[doc(hidden)]
    fn begin(bound: &mut Self::Bound<'_>, items: &Range<u64>) {
        let _ = (bound, items);
    }

    /// What this item is given, of those that were begun.
    #[doc(hidden)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, item: Item) -> Self::OfItem<'i>;

    /// Writes down what those items have changed.
    #[doc(hidden)]
    fn end(bound: &mut Self::Bound<'_>) {
        let _ = bound;
    }

    /// What a launch is given.
    #[doc(hidden)]
    fn argument(source: Self::Source<'_>) -> Argument<'_>;
}

impl Parameter for At<1> {
    type Source<'s> = ();
    type Bound<'s> = usize;
    type OfItem<'i> = Self;
    type Kind = kind::Place;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::At(1) }
    }

    fn bound(_: Self::Source<'_>) -> Self::Bound<'_> {
        0
    }

    fn given<'s>(given: &mut Given<'_, 's>) -> usize {
        given.origin()
    }

    #[inline(always)]
    fn of_item(origin: &mut usize, item: Item) -> Self {
        Self::of(item.index.wrapping_sub(*origin))
    }

    fn argument(_: Self::Source<'_>) -> Argument<'_> {
        Argument::Place
    }
}

impl<T: KernelType> Parameter for T {
    type Source<'s> = T;
    type Bound<'s> = T;
    type OfItem<'i> = T;
    type Kind = kind::Value;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Value(T::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        source
    }

    fn given<'s>(given: &mut Given<'_, 's>) -> T {
        T::of_values(&mut || given.scalar())
    }

    #[inline(always)]
    fn of_item(bound: &mut T, _: Item) -> T {
        *bound
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::values_of(source)
    }
}

impl<T: Memory> Parameter for &'static Own<T> {
    type Source<'s> = &'s [T];
    type Bound<'s> = HeldElements<'s, T>;
    type OfItem<'i> = &'i Own<T>;
    type Kind = kind::Own;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Own(T::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        HeldElements::Slice(source)
    }

    fn given<'s>(given: &mut Given<'_, 's>) -> HeldElements<'s, T> {
        HeldElements::of_view(given.view())
    }

    fn begin(bound: &mut Self::Bound<'_>, items: &Range<u64>) {
        bound.begin(items);
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, item: Item) -> &'i Own<T> {
        Own::wrap_ref(bound.element(item))
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::Read(bytemuck::cast_slice(source), size_of::<T>())
    }
}

impl<T: Memory> Parameter for &'static mut Own<T> {
    type Source<'s> = &'s mut [T];
    type Bound<'s> = HeldElementsMut<'s, T>;
    type OfItem<'i> = &'i mut Own<T>;
    type Kind = kind::OwnMut;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::OwnMut(T::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        HeldElementsMut::Slice(source)
    }

    fn given<'s>(given: &mut Given<'_, 's>) -> HeldElementsMut<'s, T> {
        HeldElementsMut::of_view(given.view())
    }

    fn begin(bound: &mut Self::Bound<'_>, items: &Range<u64>) {
        bound.begin(items);
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, item: Item) -> &'i mut Own<T> {
        Own::wrap_mut(bound.element(item))
    }

    fn end(bound: &mut Self::Bound<'_>) {
        bound.end();
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::Write(bytemuck::cast_slice_mut(source), size_of::<T>())
    }
}

impl<T: Memory> Parameter for &'static Anywhere<T> {
    type Source<'s> = &'s [T];
    type Bound<'s> = AllElements<'s, T>;
    type OfItem<'i> = &'i Anywhere<T>;
    type Kind = kind::Anywhere;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Anywhere(T::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        AllElements::Slice(source)
    }

    fn given<'s>(given: &mut Given<'_, 's>) -> AllElements<'s, T> {
        AllElements::View(given.view())
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, _: Item) -> &'i Anywhere<T> {
        Anywhere::lent(bound)
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::Read(bytemuck::cast_slice(source), size_of::<T>())
    }
}

impl<T: Memory> Parameter for &'static Window<T, 1> {
    /// The index of the first element, and elements.
    type Source<'s> = (isize, &'s [T]);
    type Bound<'s> = WindowElements<'s, T, 1>;
    type OfItem<'i> = &'i Window<T, 1>;
    type Kind = kind::Window;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Window(T::layout(), 1) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        let (first, elements) = source;
        WindowElements { first: [first], elements: AllElements::Slice(elements) }
    }

    fn given<'s>(given: &mut Given<'_, 's>) -> WindowElements<'s, T, 1> {
        let first = [given.scalar() as isize];
        WindowElements { first, elements: AllElements::View(given.view()) }
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, _: Item) -> &'i Window<T, 1> {
        Window::lent(bound)
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::Around(source.0, bytemuck::cast_slice(source.1), size_of::<T>())
    }
}

impl<T: KernelType, const N: usize> Parameter for &'static [T; N] {
    type Source<'s> = &'s [T; N];
    type Bound<'s> = Box<[T; N]>;
    type OfItem<'i> = &'i [T; N];
    type Kind = kind::Table;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Table(<[T; N]>::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        Box::new(*source)
    }

    fn given<'s>(given: &mut Given<'_, 's>) -> Box<[T; N]> {
        let mut values = given.table(&<[T; N]>::layout()).into_iter();
        Box::new(<[T; N]>::of_values(&mut || values.next().unwrap_or(0)))
    }

    #[inline(always)]
    fn of_item(bound: &mut Box<[T; N]>, _: Item) -> &[T; N] {
        bound
    }

    fn argument(source: Self::Source<'_>) -> Argument<'_> {
        Argument::values_of(*source)
    }
}
