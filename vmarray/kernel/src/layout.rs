//! The types and memory layouts of kernel values, for lowering: the translation of kernels for devices.

use backend_api::expr::Type;
use bytemuck::Pod;

/// The type of a kernel value during lowering, with its layout in memory.
///
/// ```
/// use vmarray_kernel::{KernelType, Layout};
/// let layout = <(u8, [f32; 3])>::layout();
/// assert_eq!((layout.scalars(), layout.parts().len(), layout.part("1")), (4, 2, Some(1)));
/// assert_eq!((layout.parts()[1].bytes(), Layout::UNIT.scalars()), (12, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// A number or a bool; `usize` and `isize` have 64 bits.
    Scalar(Type),
    /// A tuple. Tuples cannot be stored in memory.
    Tuple(Vec<Self>),
    /// An array: the type and the number of its contiguous elements.
    Array(Box<Self>, usize),
    /// A struct.
    Struct {
        /// Name of the struct.
        name: &'static str,
        /// Fields, in the order of declaration.
        fields: Vec<LayoutField>,
        /// Size of the struct in memory, in bytes.
        bytes: usize,
    },
}

/// A field of a struct in a [`Layout`].
///
/// ```
/// use vmarray_kernel::{LayoutField, KernelType, Layout};
/// let field = LayoutField { name: "x", offset: 0, layout: f32::layout() };
/// let layout = Layout::Struct { name: "Point", fields: vec![field], bytes: 4 };
/// assert_eq!((layout.bytes(), layout.part("x")), (4, Some(0)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutField {
    /// Name of the field; in a tuple struct, its number.
    pub name: &'static str,
    /// Offset of the field in the struct, in bytes.
    pub offset: usize,
    /// Type of the field.
    pub layout: Layout,
}

impl Layout {
    /// The type `()`.
    pub const UNIT: Self = Self::Tuple(Vec::new());

    /// Returns the size of a value in memory, in bytes; 0 for a tuple, which cannot be in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Scalar(of) => of.bytes() as usize,
            Self::Tuple(_) => 0,
            Self::Array(of, len) => of.bytes() * len,
            Self::Struct { bytes, .. } => *bytes,
        }
    }

    /// Returns the number of scalars (numbers and bools) in a value.
    #[must_use]
    pub fn scalars(&self) -> usize {
        match self {
            Self::Scalar(_) => 1,
            Self::Tuple(parts) => parts.iter().map(Self::scalars).sum(),
            Self::Array(of, len) => of.scalars() * len,
            Self::Struct { fields, .. } => fields.iter().map(|field| field.layout.scalars()).sum(),
        }
    }

    /// Returns the types of the parts of a tuple, or of the fields of a struct; empty for other types.
    #[must_use]
    pub fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Tuple(parts) => parts.iter().collect(),
            Self::Struct { fields, .. } => fields.iter().map(|field| &field.layout).collect(),
            Self::Scalar(_) | Self::Array(..) => Vec::new(),
        }
    }

    /// Returns the index of the struct field or tuple part with this name; `None` if no field or part has it.
    #[must_use]
    pub fn part(&self, name: &str) -> Option<usize> {
        match self {
            Self::Tuple(parts) => name.parse().ok().filter(|number| *number < parts.len()),
            Self::Struct { fields, .. } => fields.iter().position(|field| field.name == name),
            Self::Scalar(_) | Self::Array(..) => None,
        }
    }
}

/// A type of values in kernels: a number, a bool, a tuple, an array, or a struct that derives this trait.
///
/// ```
/// use vmarray_kernel::KernelType;
///
/// #[derive(Clone, Copy, Debug, PartialEq, KernelType)]
/// #[kernel_type(crate = vmarray_kernel)]
/// struct Point {
///     x: f32,
///     y: f32,
/// }
/// assert_eq!(Point::ZERO, Point { x: 0.0, y: 0.0 });
/// assert_eq!((Point::layout().bytes(), Point::layout().part("y")), (8, Some(1)));
/// let mut values = Vec::new();
/// [Point { x: 1.0, y: 2.0 }].values(&mut values);
/// assert_eq!(values, [1_f32.to_bits().into(), 2_f32.to_bits().into()]);
/// ```
#[diagnostic::on_unimplemented(
    message = "kernels and files do not support values of type `{Self}`",
    note = "they support numbers of at most 64 bits, `bool`, tuples and arrays of these, and structs with \
            `#[derive(Clone, Copy, vmarray::kernel::KernelType)]`"
)]
pub trait KernelType: Copy + Send + Sync + 'static {
    /// Value that a read out of bounds returns: zero.
    const ZERO: Self;

    /// Returns the layout of the type.
    fn layout() -> Layout;

    /// Appends the bits of all scalars in the value, in the order of the layout.
    fn values(self, into: &mut Vec<u64>);

    /// Creates a value from the bits of its scalars, in the order of the layout.
    #[doc(hidden)]
    fn of_values(next: &mut impl FnMut() -> u64) -> Self;
}

impl<T: KernelType, const N: usize> KernelType for [T; N] {
    const ZERO: Self = [T::ZERO; N];

    fn layout() -> Layout {
        Layout::Array(Box::new(T::layout()), N)
    }

    fn values(self, into: &mut Vec<u64>) {
        self.into_iter().for_each(|element| element.values(into));
    }

    fn of_values(next: &mut impl FnMut() -> u64) -> Self {
        std::array::from_fn(|_| T::of_values(next))
    }
}

macro_rules! tuples {
    ($($($T:ident $number:tt)*;)*) => { $(
        impl<$($T: KernelType),*> KernelType for ($($T,)*) {
            const ZERO: Self = ($($T::ZERO,)*);

            fn layout() -> Layout {
                Layout::Tuple(vec![$($T::layout()),*])
            }

            #[allow(unused_variables, reason = "the macro also makes the empty tuple")]
            fn values(self, into: &mut Vec<u64>) {
                $(self.$number.values(into);)*
            }

            #[allow(unused_variables, clippy::unused_unit, reason = "the macro also makes the empty tuple")]
            fn of_values(next: &mut impl FnMut() -> u64) -> Self {
                ($($T::of_values(next),)*)
            }
        }
    )* };
}
tuples! {
    ;
    A 0;
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
    A 0 B 1 C 2 D 3 E 4 F 5 G 6;
    A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7;
}

/// A type that elements of arrays can have in kernels: a kernel value that is plain data.
///
/// ```
/// fn bytes_of<T: vmarray_kernel::ElementMemory>(elements: &[T]) -> usize {
///     size_of_val(elements)
/// }
/// assert_eq!(bytes_of(&[[1_u16, 2]]), 4);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element in kernels",
    note = "elements are plain data: numbers, arrays of them, and structs with \
            `#[derive(Clone, Copy, Pod, Zeroable, KernelType)]`"
)]
pub trait ElementMemory: KernelType + Pod {}
#[diagnostic::do_not_recommend]
impl<T: KernelType + Pod> ElementMemory for T {}

/// Returns the layout of the kernel type `T`.
pub fn layout<T: KernelType>() -> Layout {
    T::layout()
}

/// Creates the description of a struct field of type `T`.
pub fn field<T: KernelType>(name: &'static str, offset: usize) -> LayoutField {
    LayoutField { name, offset, layout: T::layout() }
}
