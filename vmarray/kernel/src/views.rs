//! What launched kernels are given.

use crate::KernelType;
use crate::interpret::Argument;
use crate::layout::Layout;
use crate::source::{Given, HeldElements, HeldElementsMut};
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
    /// [`At`](crate::At), with so many dimensions.
    At(usize),
    /// A scalar, or a struct, tuple or array of them, by value.
    Value(Layout),
    /// A reference to a value: the same for all items, and read by indices.
    Table(Layout),
    /// The item's own element, read.
    Own(Layout),
    /// The item's own element, read and written.
    OwnMut(Layout),
    /// All elements, of an array of so many dimensions.
    Anywhere(Layout, usize),
    /// All elements of rows. Before it comes a parameter of its own, where rows begin: elements of 64 bits of
    /// [`Anywhere`](Self::Anywhere).
    Rows(Layout),
    /// All elements, changed by atomics.
    Shared(Layout),
    /// Elements that are appended. It has two views: a counter of 64 bits, and elements behind one another.
    Append(Layout),
    /// Memory of the group, of so many dimensions, which no argument is given for.
    Group(Layout, usize),
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

impl ParameterInfo {
    /// How many axes a place has, if it is one.
    pub(crate) fn axes(&self) -> Option<usize> {
        match self.kind {
            ParameterKind::At(axes) => Some(axes),
            _ => None,
        }
    }
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
    /// `&`[`Rows<T>`](crate::Rows).
    #[derive(Debug)]
    pub enum Rows {}
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
    note = "it takes `At<N>`, values, `&[T; N]`, `&Own<T>`, `&mut Own<T>`, `&Anywhere<T, N>`, `&Window<T, N>`, \
            `&Rows<T>`, `&Shared<T>`, `&Append<T>` and `&Group<T, N>`, of up to four dimensions"
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

    /// That of all the parameters that devices have in its place.
    #[doc(hidden)]
    fn infos(name: &'static str, into: &mut Vec<ParameterInfo>) {
        into.push(Self::info(name));
    }

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

    /// The same, for all the parameters that devices have in its place.
    #[doc(hidden)]
    fn arguments<'s>(source: Self::Source<'s>, into: &mut Vec<Argument<'s>>) {
        into.push(Self::argument(source));
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
