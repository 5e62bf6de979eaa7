//! Conversion of a `#[kernel]` function to a scalar function, which expressions on devices can call.

use crate::error::{Error, ErrorKind};
use crate::inferred_types::Function;
use crate::lower::lower_function;
use crate::number::KernelScalar;
use crate::turns;
use backend_api::kernel::{self, Op, TimeLimit, Type};

/// The arguments of a scalar function: a tuple of one to eight numbers and bools.
///
/// ```
/// use vmarray_kernel::{ScalarArguments, KernelScalar};
/// assert_eq!(<(f32, bool)>::TYPES, [f32::TYPE, bool::TYPE]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of one to eight numbers and `bool`s",
    note = "expressions can call functions whose arguments are numbers and `bool`s"
)]
pub trait ScalarArguments: Sized {
    /// Types of the arguments in kernels.
    const TYPES: &'static [Type];

    /// Returns the arguments for element `number`. `all` has the bytes of each argument for all elements.
    #[doc(hidden)]
    fn of_element(all: &[&[u8]], number: usize) -> Self;
}

macro_rules! tuples {
    ($($($S:ident $at:tt)*;)*) => { $(
        impl<$($S: KernelScalar),*> ScalarArguments for ($($S,)*) {
            const TYPES: &'static [Type] = &[$($S::TYPE),*];

            #[inline(always)]
            fn of_element(all: &[&[u8]], number: usize) -> Self {
                ($(load::<$S>(all[$at], number),)*)
            }
        }
    )* };
}
tuples! {
    A 0;
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
    A 0 B 1 C 2 D 3 E 4 F 5 G 6;
    A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7;
}

/// Loads element `number` of contiguous numbers or bools.
#[inline(always)]
fn load<T: KernelScalar>(bytes: &[u8], number: usize) -> T {
    let width = T::TYPE.bytes() as usize;
    let field = &bytes[number * width..][..width];
    T::from_value(match *field {
        [a] => a.into(),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    })
}

/// Converts a kernel function of numbers and bools to a function that expressions can call. Devices that
/// compute on the CPU call the Rust function `F`; other devices run code that is lowered (translated) from
/// `F`. Accesses out of bounds read 0, and are not reported.
///
/// # Errors
/// The errors of [`lower`](crate::lower); [`Unsupported`](ErrorKind::Unsupported) if the function calls
/// `alloc`, contains a barrier, or never returns.
pub fn function<F, A, R>() -> Result<kernel::ScalarFunction, Error>
where
    F: Function<A, R>,
    A: ScalarArguments,
    R: KernelScalar,
{
    let lowered = lower_function(A::TYPES, F::define)?;
    let table = lowered.table_bytes(|_| &[]);
    let function = kernel::ScalarFunction::new(lowered.body.clone(), table)
        .map_err(|refused| lowered.refused(ErrorKind::Unsupported, refused.detail()))?;
    let mut loops = Vec::new();
    lowered.body.operations(|site, op| {
        if let Op::Loop { .. } = op {
            loops.extend(lowered.place_of(site).map(|place| (site, place.to_string())));
        }
    });
    Ok(function.named(lowered.name).with_loops(loops).with_host(on_host::<F, A, R>))
}

/// Calls the Rust function for all elements, as a `HostFunction` of `backend_api`.
fn on_host<F, A, R>(arguments: &[&[u8]], results: &mut [u8], limit: Option<&TimeLimit>) -> Option<u64>
where
    F: Function<A, R>,
    A: ScalarArguments,
    R: KernelScalar,
{
    turns::limited(limit, &mut || all::<F, A, R>(arguments, results))
}

/// Calls the Rust function for all elements. It is not inlined, because the compiler then knows from its
/// parameters that results and arguments do not overlap.
#[inline(never)]
fn all<F, A, R>(arguments: &[&[u8]], results: &mut [u8])
where
    F: Function<A, R>,
    A: ScalarArguments,
    R: KernelScalar,
{
    let width = R::TYPE.bytes() as usize;
    for (number, result) in results.chunks_exact_mut(width).enumerate() {
        let arguments = A::of_element(arguments, number);
        let value = turns::item(number as u64, || F::call(arguments)).to_value();
        match width {
            1 => result.copy_from_slice(&(value as u8).to_ne_bytes()),
            2 => result.copy_from_slice(&(value as u16).to_ne_bytes()),
            4 => result.copy_from_slice(&(value as u32).to_ne_bytes()),
            _ => result.copy_from_slice(&value.to_ne_bytes()),
        }
    }
}
