//! Parameter types of launched kernels, such as the element that belongs to an item (GPU thread).

use crate::KernelType;
use crate::interpret::InterpreterArgument;
use crate::layout::{ElementMemory, Layout};
use crate::source::{HeldElements, HeldElementsMut, Item, LaunchArguments};
use bytemuck::TransparentWrapper;
use std::ops::Range;

/// A kernel parameter: the element of the item (GPU thread) in the result, or in another array of its shape.
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
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[derive(TransparentWrapper)]
#[repr(transparent)]
pub struct Own<T>(T);

impl<T: ElementMemory> Own<T> {
    /// Returns the item's (GPU thread's) element.
    #[inline(always)]
    #[must_use]
    pub fn get(&self) -> T {
        self.0
    }

    /// Writes the item's (GPU thread's) element.
    #[inline(always)]
    pub fn set(&mut self, value: T) {
        self.0 = value;
    }
}

/// Kind of a parameter of a kernel that a program can launch, such as a value or an array.
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
    /// [`At`](crate::At), with its number of axes.
    At(usize),
    /// A value: a scalar, or a struct, tuple or array of scalars.
    Value(Layout),
    /// A reference to an array or another value, the same for all items, which the launch passes as a table.
    Table(Layout),
    /// The item's own element, which the kernel only reads.
    Own(Layout),
    /// The item's own element, which the kernel reads and writes.
    OwnMut(Layout),
    /// All elements of an array, with its number of axes.
    Anywhere(Layout, usize),
    /// All elements of rows of different lengths. The parameter before it has the starts of the rows: an
    /// [`Anywhere`](Self::Anywhere) of 64-bit elements.
    Rows(Layout),
    /// All elements of an array, which the kernel writes or changes by atomics.
    Shared(Layout),
    /// A list to which items append. Devices receive two views: a 64-bit counter, and contiguous elements.
    Append(Layout),
    /// Group memory, with its number of axes. It takes no argument of the launch.
    Group(Layout, usize),
    /// The elements around the item's position, with the number of axes.
    Window(Layout, usize),
}

/// A parameter of a launched kernel: its [kind](ParameterKind), and its name.
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
    /// The name of the parameter in the source.
    pub name: &'static str,
    /// The kind of the parameter.
    pub kind: ParameterKind,
}

impl ParameterInfo {
    /// Returns the number of axes, if the parameter is a position (`At`).
    pub(crate) fn axes(&self) -> Option<usize> {
        match self.kind {
            ParameterKind::At(axes) => Some(axes),
            _ => None,
        }
    }
}

/// Marker types for the kinds of parameters, for [`Parameter::Kind`].
#[doc(hidden)]
pub mod kind {
    /// The kind of a parameter of type [`At`](crate::At).
    #[derive(Debug)]
    pub enum PlaceKind {}
    /// The kind of a parameter that is a [value](crate::KernelType).
    #[derive(Debug)]
    pub enum ValueKind {}
    /// The kind of a parameter of type `&[T; N]`.
    #[derive(Debug)]
    pub enum TableKind {}
    /// The kind of a parameter of type `&`[`Own<T>`](crate::Own).
    #[derive(Debug)]
    pub enum OwnKind {}
    /// The kind of a parameter of type `&mut `[`Own<T>`](crate::Own).
    #[derive(Debug)]
    pub enum OwnMutKind {}
    /// The kind of a parameter of type `&`[`Anywhere<T>`](crate::Anywhere).
    #[derive(Debug)]
    pub enum AnywhereKind {}
    /// The kind of a parameter of type `&`[`Rows<T>`](crate::Rows).
    #[derive(Debug)]
    pub enum RowsKind {}
    /// The kind of a parameter of type `&`[`Shared<T>`](crate::Shared).
    #[derive(Debug)]
    pub enum SharedKind {}
    /// The kind of a parameter of type `&`[`Append<T>`](crate::Append).
    #[derive(Debug)]
    pub enum AppendKind {}
    /// The kind of a parameter of type `&`[`Group<T, N>`](crate::Group).
    #[derive(Debug)]
    pub enum GroupKind {}
    /// The kind of a parameter of type `&`[`Window<T, N>`](crate::Window).
    #[derive(Debug)]
    pub enum WindowKind {}
}

/// A parameter type of kernels that can be launched.
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
    /// The program's argument for running the kernel on the host.
    type Source<'s>;
    /// The argument from which each item on the host takes its parameter.
    #[doc(hidden)]
    type Bound<'s>;
    /// The type of the parameter that the kernel function receives for one item.
    type OfItem<'i>;
    /// Marker type for the kind of the parameter, from the module `kind`.
    type Kind;

    /// Returns the kind of the parameter, with its name.
    fn info(name: &'static str) -> ParameterInfo;

    /// Appends the parameters that replace this parameter on devices: one, or several for rows and lists.
    #[doc(hidden)]
    fn infos(name: &'static str, into: &mut Vec<ParameterInfo>) {
        into.push(Self::info(name));
    }

    /// Converts the program's argument to the argument from which items take their parameter.
    #[doc(hidden)]
    fn bound(source: Self::Source<'_>) -> Self::Bound<'_>;

    /// Creates the argument for items from the arguments of a device's launch.
    #[doc(hidden)]
    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> Self::Bound<'s>;

    /// Loads the own elements of a range of items, if the parameter has them.
    #[doc(hidden)]
    fn begin(bound: &mut Self::Bound<'_>, items: &Range<u64>) {
        let _ = (bound, items);
    }

    /// Returns the parameter of one of the loaded items.
    #[doc(hidden)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, item: Item) -> Self::OfItem<'i>;

    /// Stores the changed elements of the loaded items, if the parameter has them.
    #[doc(hidden)]
    fn end(bound: &mut Self::Bound<'_>) {
        let _ = bound;
    }

    /// Converts the program's argument for the interpreter.
    #[doc(hidden)]
    fn argument(source: Self::Source<'_>) -> InterpreterArgument<'_>;

    /// Appends the interpreter's arguments for all parameters that replace this parameter on devices.
    #[doc(hidden)]
    fn arguments<'s>(source: Self::Source<'s>, into: &mut Vec<InterpreterArgument<'s>>) {
        into.push(Self::argument(source));
    }
}

#[diagnostic::do_not_recommend]
impl<T: KernelType> Parameter for T {
    type Source<'s> = T;
    type Bound<'s> = T;
    type OfItem<'i> = T;
    type Kind = kind::ValueKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Value(T::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        source
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> T {
        T::of_values(&mut || given.scalar())
    }

    #[inline(always)]
    fn of_item(bound: &mut T, _: Item) -> T {
        *bound
    }

    fn argument(source: Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::values_of(source)
    }
}

impl<T: ElementMemory> Parameter for &'static Own<T> {
    type Source<'s> = &'s [T];
    type Bound<'s> = HeldElements<'s, T>;
    type OfItem<'i> = &'i Own<T>;
    type Kind = kind::OwnKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Own(T::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        HeldElements::Slice(source)
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> HeldElements<'s, T> {
        HeldElements::of_view(given.view())
    }

    fn begin(bound: &mut Self::Bound<'_>, items: &Range<u64>) {
        bound.begin(items);
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, item: Item) -> &'i Own<T> {
        Own::wrap_ref(bound.element(item))
    }

    fn argument(source: Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::Read(bytemuck::cast_slice(source), size_of::<T>())
    }
}

impl<T: ElementMemory> Parameter for &'static mut Own<T> {
    type Source<'s> = &'s mut [T];
    type Bound<'s> = HeldElementsMut<'s, T>;
    type OfItem<'i> = &'i mut Own<T>;
    type Kind = kind::OwnMutKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::OwnMut(T::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        HeldElementsMut::Slice(source)
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> HeldElementsMut<'s, T> {
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

    fn argument(source: Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::Write(bytemuck::cast_slice_mut(source), size_of::<T>())
    }
}

impl<T: KernelType, const N: usize> Parameter for &'static [T; N] {
    type Source<'s> = &'s [T; N];
    type Bound<'s> = Box<[T; N]>;
    type OfItem<'i> = &'i [T; N];
    type Kind = kind::TableKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Table(<[T; N]>::layout()) }
    }

    fn bound(source: Self::Source<'_>) -> Self::Bound<'_> {
        Box::new(*source)
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> Box<[T; N]> {
        let mut values = given.table(&<[T; N]>::layout()).into_iter();
        Box::new(<[T; N]>::of_values(&mut || values.next().unwrap_or(0)))
    }

    #[inline(always)]
    fn of_item(bound: &mut Box<[T; N]>, _: Item) -> &[T; N] {
        bound
    }

    fn argument(source: Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::values_of(*source)
    }
}
