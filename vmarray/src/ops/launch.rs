//! Launches of the program's kernels, on the devices that store the results.
//!
//! `arguments` converts the caller's arguments, `bound_arguments` assigns them to parameters, `checks`
//! reports invalid arguments, and `kernel` lowers a kernel once. A `plan` contains everything that is the
//! same for all runs (contiguous elements on a device). `execution` launches the plan over stores (arrays or
//! sources), through [`executor`](super::executor). A [`Session`] launches the plan over arrays that the
//! session borrows.

mod arguments;
mod bound_arguments;
mod broadcast;
mod checks;
mod elements;
mod execution;
mod groups;
mod index_domain;
mod kernel;
mod kernel_launch;
mod launching;
mod native_kernel;
mod options;
mod plan;
mod reduce;
mod reordered;
mod session;
mod tiled_groups;
mod tiles;

use backend_api::kernel::Code;
use vmarray_kernel::{Kernel, KernelNumber};

pub use arguments::{Appended, Argument, Arguments, Bound, KernelView, PlacedElements, Windowed};
pub(crate) use arguments::{changed, placed, shared, values};
pub(crate) use broadcast::{Broadcast, Inside, Modes, READ_IN_PLACE_MAX, Shown, StripedArgument, inside};
pub(crate) use elements::{KernelArguments, operand, run};
pub(crate) use index_domain::IndexDomainStore;
pub(crate) use kernel::KernelVariants;
pub use kernel_launch::KernelLaunch;
pub use native_kernel::NativeKernel;
pub(crate) use options::LaunchOptions;
pub use reduce::ReturnedSum;
pub(crate) use reordered::Reordered;
pub(crate) use session::Binding;
pub use session::{
    Bindable, RunAsync, Session, SessionArgument, SessionArguments, SessionArray, SessionCopy, SessionWait,
    SessionWindow,
};

#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;

/// The methods that run a kernel. Every function with `#[vmarray::kernel]` has them if it changes elements or
/// returns a value. `use vmarray::prelude::*` brings the trait into scope.
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
/// # assert_eq!(y.stats().total().bytes_through_host, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// With options, in a session, and with return values:
///
/// ```
/// use vmarray::kernel::{Own, Session};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn halved(x: &mut Own<u32>) -> u32 {
///     while x.get() % 2 == 0 {
///         x.set(x.get() / 2);
///     }
///     x.get()
/// }
/// let mut array = VirtualArray::<u32>::new(3)?;
/// array.write(0, &[12, 5, 40])?;
/// let mut session = Session::new();
/// let x = session.hold(&mut array)?;
/// halved::run_in(&mut session, (x,))?;
/// session.finish()?;
/// assert_eq!((halved::min((&mut array,))?, halved::max((&mut array,))?), (Some(3), Some(5)));
/// array.set(1, 0)?;
/// assert!(halved::launch().budget(1000).run((&mut array,)).is_err());
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait RunKernel: Kernel + Sized {
    /// Runs the kernel once for each element of the result, on the devices that store the result, and waits
    /// until all runs have ended. One such run is called an *item* (work-item, GPU thread).
    ///
    /// Arguments come as a tuple, in the order of the kernel's parameters, without
    /// [`At`](vmarray_kernel::At):
    ///
    /// | parameter | argument |
    /// |---|---|
    /// | a value | the value |
    /// | `&[T; N]` | `&[T; N]` |
    /// | `&Own<T>` | an array, an [`NdArray`](crate::NdArray), a source, a section of any, all by `&` |
    /// | `&Anywhere<T>` | as for `&Own<T>`, of any shape |
    /// | `&Anywhere<T, N>` | as for `&Own<T>`, of `N` dimensions |
    /// | `&Rows<T>` | a [`RaggedArray`](crate::RaggedArray) by `&`; or `(&starts, &elements)`, each as for `&Own<T>`: the `u64` start of each row followed by the end of the last row, and the elements of all rows |
    /// | `&Window<T, N>` | `view.window(halo)`, `view.bounded(mode).window(halo)`, of any extents |
    /// | `&mut Own<T>` | `&mut` array, [`NdArray`](crate::NdArray) or source, [`section_mut`](crate::views::ViewMut::section_mut) |
    /// | `&Shared<T>` | as for `&mut Own<T>`, of any length |
    /// | `&Append<T>` | [`Appended::to`] |
    ///
    /// Each item gets the elements of all arguments at its index. [`At`](vmarray_kernel::At) is this index,
    /// counted from the first item, along each axis if there are several. The launch uses an argument in
    /// place if it is on the same devices, channels and pages as the first result, from the same index on and
    /// in the same order. It copies all other arguments to the devices of the result, some MiB at a time.
    /// Results among them are copied back. Results of several dimensions must be stored in rows or tiles like
    /// the first result.
    ///
    /// Elements that many items read are copied to each device of the result: windows with their halo, some
    /// MiB at a time; an `Anywhere` or rows as a whole, which must fit into the free memory of the device. If
    /// argument and result are on the same single device, the kernel reads these arguments in place:
    ///
    /// - windows of arrays without tiles, with the library's boundary modes; then the halo is not checked
    /// - an `Anywhere<T>` of an array from its first element on
    /// - an `Anywhere<T, N>` of any box
    ///
    /// Groups along one axis (`group = N`) start at multiples of `N`, counted from the first item, on any
    /// number of devices, channels and pages. If pages with parts of one group are on several channels, the
    /// launch copies all elements to the first device, some MiB at a time, and results back.
    ///
    /// The launch uses copies of a [`Source`](crate::Source) that the devices already have: it fetches only
    /// missing blocks, and results stay on the devices until the program reads them.
    ///
    /// A kernel without a result runs for the elements of its first `Own`. `Shared` elements must be on one
    /// device. The launch copies them there whole, and back at the end. Appended elements are copied from
    /// each device in turn. A failed launch leaves `Shared` elements and the targets of appended elements
    /// unchanged, except with [`KernelOutside`](ErrorKind::KernelOutside).
    ///
    /// Other threads wait for pages of results while the launch uses them. The first run of a kernel on a
    /// device translates it, which can take some milliseconds or more.
    ///
    /// # Errors
    /// - [`KernelRefused`](ErrorKind::KernelRefused) if the kernel cannot be translated,
    ///   [`LengthMismatch`](ErrorKind::LengthMismatch), [`KernelShape`](ErrorKind::KernelShape),
    ///   [`KernelOverlap`](ErrorKind::KernelOverlap), and [`Device`](ErrorKind::Device) if a device lacks a
    ///   feature that the kernel needs. No item has run.
    /// - [`KernelOutside`](ErrorKind::KernelOutside) if items accessed elements out of bounds. The reads
    ///   returned zeroes, the writes had no effect, and all items have run. All items have also run after
    ///   [`KernelBudget`](ErrorKind::KernelBudget) and [`KernelPrivateHeap`](ErrorKind::KernelPrivateHeap).
    /// - [`KernelAppend`](ErrorKind::KernelAppend) if items append more than the maximum.
    /// - [`Interrupted`](ErrorKind::Interrupted) lists the written and the unspecified elements of the
    ///   results.
    fn run<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<()> {
        Self::launch().run(arguments)
    }

    /// Runs the kernel as [`run`](Self::run) does, as a future for any async executor. The first poll
    /// launches the kernel. The future is ready when the launch has ended.
    ///
    /// The first poll returns without waiting for the kernel if all arguments are values and arrays, the
    /// results are `&mut`, and a [`Session`] could run the launch. Other threads can use arrays that the
    /// kernel only reads. The poll then still waits for write-backs of dirty pages of the arguments (see
    /// [`flush_async`](crate::views::View::flush_async)), and for the compilation if the kernel is new to the
    /// device. In these cases the first poll blocks until the launch has ended, like `run`:
    ///
    /// - An argument is a source, or a result is a section, because other threads may use the rest.
    /// - The launch must copy elements: an argument is not on the same devices, channels and pages as the
    ///   result, is not stored row by row, or is out of reach of a device; or a window has a boundary mode of
    ///   the program.
    /// - The kernel appends, has groups that are tiles of a result, or runs [over](KernelLaunch::over)
    ///   numbers.
    ///
    /// The future can be dropped at any time. Before the first poll nothing has run; later the drop waits for
    /// the launch. Like a [`Session`], the future must not be leaked by [`std::mem::forget`].
    ///
    /// ```
    /// use futures::executor::block_on;
    /// use vmarray::kernel::{Anywhere, At, Own};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn reversed(at: At<1>, of: &Anywhere<u32>, out: &mut Own<u32>) {
    ///     out.set(of[of.len() - 1 - at.index()]);
    /// }
    /// let new = || VirtualArray::<u32>::new(3);
    /// let (of, mut one, mut other) = (new()?, new()?, new()?);
    /// of.write(0, &[1, 2, 3])?;
    /// // Both run concurrently with other tasks of the executor.
    /// let both = async {
    ///     futures::join!(reversed::run_async((&of, &mut one)), reversed::run_async((&of, &mut other)))
    /// };
    /// let (first, second) = block_on(both);
    /// first.and(second)?;
    /// assert_eq!((one.to_vec(..)?, other.get(0)?), (vec![3, 2, 1], 3));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future returns the errors of [`run`](Self::run); after a failure of a device all elements of the
    /// results are unspecified.
    fn run_async<'a, A: Arguments<'a, Self::Parameters>>(arguments: A) -> RunAsync<'a, Self, A> {
        Self::launch().run_async(arguments)
    }

    /// Submits the kernel in a [`Session`], after all earlier launches of the session, without waiting.
    ///
    /// # Errors
    /// Errors of [`run`](Self::run), and [`KernelRefused`](ErrorKind::KernelRefused) if elements are on
    /// several devices and the kernel needs a single one. Then nothing was launched. [`Session::finish`]
    /// returns later errors.
    fn run_in(session: &mut Session<'_>, arguments: impl SessionArguments<Self::Parameters>) -> Result<()> {
        Self::launch().run_in(session, arguments)
    }

    /// Creates a launch of this kernel, to which options can be added.
    fn launch() -> KernelLaunch<Self> {
        KernelLaunch::new()
    }

    /// Runs the kernel like [`run`](Self::run), and returns the sum of the values that its items return. Sums
    /// of integers are exact. Floats are added in `f64`, in an order that depends on the devices, on the
    /// distribution of the elements, and for kernels with results also on concurrent accesses to their pages.
    /// The numbers of a tuple are added separately.
    ///
    /// ```
    /// use vmarray::kernel::Own;
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn squared_distance(a: &Own<f32>, b: &Own<f32>) -> f32 {
    ///     let difference = a.get() - b.get();
    ///     difference * difference
    /// }
    /// let (a, b) = (VirtualArray::<f32>::new(1000)?, Source::new(vec![2.0_f32; 1000])?);
    /// a.fill(..500, 1.0)?;
    /// assert_eq!(squared_distance::sum((&a, &b))?, 2500.0);
    /// assert_eq!(squared_distance::max((&a, &b))?, Some(4.0));
    /// assert_eq!(squared_distance::launch().arg_min((&a, &b))?, Some((0, 1.0)));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    fn sum<'a>(
        arguments: impl Arguments<'a, Self::Parameters>,
    ) -> Result<<Self::Returned as ReturnedSum>::Sum>
    where
        Self::Returned: ReturnedSum,
    {
        Self::launch().sum(arguments)
    }

    /// Runs the kernel like [`run`](Self::run), and returns the number of items that return `true`.
    ///
    /// ```
    /// use vmarray::kernel::{At, Own};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn doubled(at: At<1>, x: &mut Own<u32>) -> bool {
    ///     x.set(x.get() + at.index() as u32);
    ///     x.get() >= 7
    /// }
    /// let mut array = VirtualArray::<u32>::new(10)?;
    /// assert_eq!(doubled::count((&mut array,))?, 3);
    /// assert_eq!(doubled::count((&mut array,))?, 6);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    fn count<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<usize>
    where
        Self: Kernel<Returned = bool>,
    {
        Self::launch().count(arguments)
    }

    /// Runs the kernel like [`run`](Self::run), and returns the least value that its items return. NaNs are
    /// skipped, and a zero is returned as +0. Returns `None` if there is no item, or if all values are NaNs.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    fn min<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<Option<Self::Returned>>
    where
        Self::Returned: KernelNumber,
    {
        Self::launch().min(arguments)
    }

    /// Runs the kernel like [`run`](Self::run), and returns the greatest value that its items return; for
    /// NaNs and zeros see [`min`](Self::min).
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    fn max<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<Option<Self::Returned>>
    where
        Self::Returned: KernelNumber,
    {
        Self::launch().max(arguments)
    }

    /// Adds native code to the kernel. Devices that support the code's language run it instead of the
    /// translated function. All other devices run the function, which also defines the expected results.
    ///
    /// [`Code`] describes the arguments: a view for each array, in the order of the parameters, and the
    /// scalars of values. [`At`](vmarray_kernel::At) has one scalar, the index of the first element. If
    /// results have several axes, their scalars come first. Parameters that are read by position have
    /// scalars, too. [`scalars`](vmarray_kernel::LoweredKernel::scalars) of the lowered form lists all of
    /// them.
    ///
    /// A launch covers one run of elements, so there are several launches if pages are not contiguous. The
    /// launches are ordered with all other work on the elements, which stay in place until the code is done.
    ///
    /// ```
    /// use vmarray::kernel::{Code, Own};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn scale(by: f32, x: &mut Own<f32>) {
    ///     x.set(x.get() * by);
    /// }
    /// // SAFETY: the code computes the same as the function, from the same arguments.
    /// let code = unsafe { Code::new("scale") }.opencl_c(
    ///     "__kernel void scale(__global uchar *memory, ulong start, ulong items, float by) {
    ///         __global float *x = (__global float *)(memory + start);
    ///         if (get_global_id(0) < items)
    ///             x[get_global_id(0)] *= by;
    ///     }",
    /// );
    /// let by_hand = scale::with_code(code)?;
    /// let mut x = VirtualArray::<f32>::new(1000)?;
    /// x.fill(.., 1.5)?;
    /// by_hand.run((2.0, &mut x))?;
    /// assert_eq!(x.get(999)?, 3.0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelRefused`](ErrorKind::KernelRefused) if the kernel cannot be translated, or its groups are
    /// tiles of a result.
    fn with_code(code: Code) -> Result<NativeKernel<Self>> {
        NativeKernel::new(code)
    }
}

impl<K: Kernel> RunKernel for K {}
