//! [`Kernel`], the trait of kernel functions that a program can launch.

use crate::inferred_types::Define;
use crate::interpret::InterpreterArgument;
use crate::returned::Returned;
use crate::source::{Item, LaunchArguments};
use crate::views::ParameterInfo;
use std::ops::Range;

/// Default size in bytes of the private heap of each item (GPU thread), for
/// [`PrivateSlice`](crate::PrivateSlice).
///
/// ```
/// assert_eq!(vmarray_kernel::PRIVATE_HEAP_BYTES, 16_384);
/// ```
pub const PRIVATE_HEAP_BYTES: u64 = 16 << 10;

/// The type of a kernel that can be launched. `#[kernel]` implements this trait if the function has a
/// parameter for items, such as [`At`](crate::At), [`Own`](crate::Own) or [`Anywhere`](crate::Anywhere).
///
/// ```
/// use vmarray_kernel::{kernel, Kernel, Own, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn scale(by: f32, out: &mut Own<f32>) {
///     out.set(out.get() * by);
/// }
///
/// fn doubled<K>(mut values: [f32; 2]) -> [f32; 2]
/// where
///     K: for<'s> Kernel<Sources<'s> = (f32, &'s mut [f32])>,
/// {
///     run_on_host::<K>(0..2, (2.0, &mut values)).expect("it reads nothing outside");
///     values
/// }
/// assert_eq!(doubled::<scale>([1.0, 2.5]), [2.0, 5.0]);
/// assert_eq!(scale::parameters()[0].name, "by");
/// assert_eq!((scale::group(), scale::group_len()), (vec![], None));
/// let nothing: <scale as Kernel>::Returned = ();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has only value parameters and cannot be launched: launch a kernel with a `&mut \
               Own<T>` that calls it",
    label = "this cannot be launched"
)]
pub trait Kernel: Define {
    /// The program's arguments for running the kernel on the host, one for each parameter: `()` for an
    /// [`At`](crate::At) with one axis, the shape of the result for an `At` with several axes, a value for a
    /// value, a slice of the running items' elements for [`Own`](crate::Own), a slice of all elements for
    /// [`Anywhere`](crate::Anywhere).
    type Sources<'s>;
    /// The arguments from which each item on the host takes its parameters.
    #[doc(hidden)]
    type Bound<'s>;
    /// Types of all parameters except [`At`](crate::At), with static lifetimes.
    type Parameters;
    /// Type of the value that each item returns.
    type Returned: Returned;

    /// Returns the kind and the name of each parameter.
    fn parameters() -> Vec<ParameterInfo>;

    /// Returns the extents of a group along its axes, in items; empty for a kernel without groups.
    #[must_use]
    fn group() -> Vec<u32> {
        Vec::new()
    }

    /// Returns the number of items of a group; `None` for a kernel without groups.
    #[must_use]
    fn group_len() -> Option<u32> {
        let group = Self::group();
        (!group.is_empty()).then(|| group.into_iter().fold(1, u32::saturating_mul))
    }

    /// Converts the program's arguments to arguments from which items take their parameters.
    #[doc(hidden)]
    fn bound(sources: Self::Sources<'_>) -> Self::Bound<'_>;

    /// Creates the arguments for items from the arguments of a device's launch.
    #[doc(hidden)]
    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> Self::Bound<'s>;

    /// Loads the own elements of a range of items.
    #[doc(hidden)]
    fn begin(bound: &mut Self::Bound<'_>, items: &Range<u64>);

    /// Runs one of the loaded items.
    #[doc(hidden)]
    fn run_item(bound: &mut Self::Bound<'_>, item: Item);

    /// Stores the changed elements of the loaded items.
    #[doc(hidden)]
    fn end(bound: &mut Self::Bound<'_>);

    /// Converts the program's arguments for the interpreter.
    #[doc(hidden)]
    fn arguments(sources: Self::Sources<'_>) -> Vec<InterpreterArgument<'_>>;
}
