//! Launches: kernels of the program, run on the devices that hold the result.
//!
//! `arguments` says what can be given for which parameter, `kernel` lowers a kernel once, `plan` has what is
//! done with each run of elements. All else is as for any change of elements: [`executor`](super::executor).

mod arguments;
mod kernel;
mod plan;
mod spread;

use vmarray_kernel::Kernel;

pub use arguments::{Appended, Argument, Arguments, Bound, Windowed};
pub(crate) use arguments::{changed, shared};
pub(crate) use spread::Spread;

#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::ops::view::INTERNAL;

/// Kernels that can be run: every function with `#[vmarray::kernel]` that writes to an
/// [`Own`](vmarray_kernel::Own) element. Come by it with `use vmarray::prelude::*`.
///
/// ```
/// use vmarray::kernel::{At, Own};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn saxpy(at: At<1>, a: f32, x: &Own<f32>, y: &mut Own<f32>) {
///     y.set(a * x.get() + y.get() + at.index() as f32);
/// }
///
/// let (x, mut y) = (VirtualArray::<f32>::new(1000)?, VirtualArray::<f32>::new(1000)?);
/// x.fill(.., 3.0)?;
/// saxpy::run((2.0, &x, &mut y))?;
/// assert_eq!((y.get(0)?, y.get(999)?), (6.0, 1005.0));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait RunKernel: Kernel + Sized {
    /// Runs the kernel once for each element of the result, on the devices where it lies, and waits until all
    /// is done.
    ///
    /// Arguments come as a tuple, in the order of the kernel's parameters, without
    /// [`At`](vmarray_kernel::At):
    ///
    /// | parameter | argument |
    /// |---|---|
    /// | a value | the value |
    /// | `&[T; N]` | `&[T; N]` |
    /// | `&Own<T>` | an array, a source, a section of either, all by `&` |
    /// | `&Anywhere<T>` | as for `&Own<T>`, of any length |
    /// | `&Window<T, 1>` | `view.window(halo)`, `view.bounded(mode).window(halo)`, of any length |
    /// | `&mut Own<T>` | `&mut` array, `&mut` source, [`section_mut`](crate::views::ViewMut::section_mut) |
    /// | `&Shared<T>` | the same, of any length |
    /// | `&Append<T>` | [`Appended::to`] |
    ///
    /// The elements of all of them stand beside one another; [`At`](vmarray_kernel::At) counts from the
    /// first. Arguments that lie on the same devices, channels and pages as the first result, from the same
    /// index on, are worked on where they lie; all others are copied beside it, some MiB at a time, and
    /// results among them are copied back. Elements that many items read are copied to each device of the
    /// result: those of windows with their halo and some MiB at a time, all of an `Anywhere`, which has to
    /// fit into the device's memory beside what is there. An `Anywhere` of an array from its first element
    /// on, that lies on the same single device as the result, is read where it lies.
    ///
    /// A kernel without a result of its own runs for the elements of its first `Own`. `Shared` elements are
    /// copied to the device whole, and back when all is done; they have to be on one device. What is appended
    /// is copied from each device in turn. Neither is changed by a launch that fails, but for
    /// [`KernelOutside`](ErrorKind::KernelOutside).
    ///
    /// Pages of results are not available to others while they are worked on. A kernel is translated for a
    /// device when it runs there for the first time, which may take some milliseconds, or more.
    ///
    /// # Errors
    /// [`KernelRefused`](ErrorKind::KernelRefused) if the kernel cannot be translated,
    /// [`LengthMismatch`](ErrorKind::LengthMismatch), [`KernelOverlap`](ErrorKind::KernelOverlap), and
    /// [`Device`](ErrorKind::Device) for a device that has not what the kernel needs: nothing has begun then.
    /// [`KernelOutside`](ErrorKind::KernelOutside) if items accessed elements that are not there: they read
    /// zeroes, wrote nothing, and all items have run. [`Interrupted`](ErrorKind::Interrupted) says which
    /// elements of the results are written and which ones are unspecified.
    fn run<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<()> {
        let kernel = kernel::prepared::<Self>()?;
        plan::run(&kernel, arguments.bound(INTERNAL))
    }
}

impl<K: Kernel> RunKernel for K {}
