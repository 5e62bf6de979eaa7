//! Return values of kernels: each item (GPU thread) returns a value, and the launch reduces all of them.

use crate::layout::KernelType;
use crate::number::KernelScalar;
use crate::source::{Item, LaunchArguments};
use backend_api::expr::Type;
use backend_api::kernel::HostView;
use std::marker::PhantomData;
use std::ops::Range;

/// Type that a launched kernel can return: nothing, a number, a `bool`, or a tuple of these.
///
/// ```
/// use vmarray_kernel::{Kernel, Own, Returned, kernel};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn squared_difference(a: &Own<f32>, b: &Own<f32>) -> f32 {
///     let difference = a.get() - b.get();
///     difference * difference
/// }
/// fn scalars<K: Kernel>() -> usize {
///     K::Returned::types().len()
/// }
/// assert_eq!(scalars::<squared_difference>(), 1);
/// assert_eq!(<(u64, bool)>::types().len(), 2);
/// ```
#[diagnostic::on_unimplemented(
    message = "a kernel that is launched cannot return a `{Self}`",
    note = "it returns nothing, a number, a `bool`, or a tuple of these, which the launch reduces"
)]
pub trait Returned: KernelType {
    /// Returns the types of the scalars in the value.
    #[must_use]
    fn types() -> Vec<Type>;

    /// Calls `visit` with the index, the type and the bits of each scalar in the value.
    #[doc(hidden)]
    fn each(self, visit: &mut impl FnMut(usize, Type, u64));
}

impl<T: KernelScalar> Returned for T {
    fn types() -> Vec<Type> {
        vec![T::TYPE]
    }

    #[inline(always)]
    fn each(self, visit: &mut impl FnMut(usize, Type, u64)) {
        visit(0, T::TYPE, self.to_value());
    }
}

macro_rules! tuples {
    ($($($T:ident $number:tt)*;)*) => { $(
        impl<$($T: KernelScalar),*> Returned for ($($T,)*) {
            fn types() -> Vec<Type> {
                vec![$($T::TYPE),*]
            }

            #[inline(always)]
            #[allow(unused_variables, reason = "the macro also makes the empty tuple")]
            fn each(self, visit: &mut impl FnMut(usize, Type, u64)) {
                $(visit($number, $T::TYPE, self.$number.to_value());)*
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
}

/// Returns the type in which a view stores a returned scalar: `U8` for a bool.
pub(crate) const fn stored(of: Type) -> Type {
    match of {
        Type::Bool => Type::U8,
        other => other,
    }
}

/// The views (arrays) to which a kernel on the host writes the values that items (GPU threads) return. There
/// are no views if the launch ignores the values.
pub struct Returning<'s, R> {
    /// One view for each scalar of the returned value.
    views: Vec<HostView<'s>>,
    /// Number of the first loaded item, and the bytes of the loaded items' returned values for each scalar.
    first: usize,
    elements: Vec<Vec<u8>>,
    marker: PhantomData<fn(R)>,
}

impl<'s, R: Returned> Returning<'s, R> {
    /// Creates a value without views, for a launch that does not use returned values.
    #[must_use]
    pub const fn nowhere() -> Self {
        Self { views: Vec::new(), first: 0, elements: Vec::new(), marker: PhantomData }
    }

    /// Takes the views for returned values from the arguments of a launch.
    #[must_use]
    pub fn given(given: &mut LaunchArguments<'_, 's>) -> Self {
        let scalars = if given.takes_returned() { R::types().len() } else { 0 };
        let views: Vec<_> = (0..scalars).map(|_| given.view()).collect();
        Self { elements: vec![Vec::new(); scalars], views, ..Self::nowhere() }
    }

    /// Reserves `elements`: memory for the values that the items (GPU threads) in the range `items` return.
    pub fn begin(&mut self, items: &Range<u64>) {
        self.first = items.start as usize;
        for (elements, of) in self.elements.iter_mut().zip(R::types()) {
            elements.resize((items.end - items.start) as usize * of.bytes() as usize, 0);
        }
    }

    /// Stores the returned `value` of an item (GPU thread) in the memory from [`begin`](Self::begin). Does
    /// nothing if the launch ignores returned values.
    #[inline(always)]
    pub fn put(&mut self, item: Item, value: R) {
        if self.views.is_empty() {
            return;
        }
        value.each(&mut |number, of, bits| {
            let bytes = stored(of).bytes() as usize;
            let (from, at) = (bits.to_le_bytes(), (item.number - self.first) * bytes);
            let into = &mut self.elements[number][at..at + bytes];
            into.copy_from_slice(&from[..bytes]);
            if cfg!(target_endian = "big") {
                into.reverse();
            }
        });
    }

    /// Copies the values that [`put`](Self::put) has stored to the views of the launch.
    pub fn end(&mut self) {
        for ((view, elements), of) in self.views.iter().zip(&self.elements).zip(R::types()) {
            let is_written = view.write(self.first as u64, stored(of).bytes() as usize, elements);
            debug_assert!(is_written, "the writes of an item's own element must succeed");
        }
    }
}
