//! Launches: kernels of the program, run on the devices that hold the result.
//!
//! `arguments` says what can be given for which parameter, `kernel` lowers a kernel once, `plan` has what is
//! done with each run of elements. All else is as for any change of elements: [`executor`](super::executor).

mod along_axis;
mod arguments;
mod coded;
mod elements;
mod groups;
mod kernel;
mod options;
mod over;
mod plan;
mod reduce;
mod scan;
mod session;
mod spread;
mod stored;
mod tiled_groups;

use backend_api::kernel::Code;
use vmarray_kernel::{Kernel, Number};

pub(crate) use along_axis::{Lines, added, converted, counted, greater, lesser};
pub use arguments::{Appended, Argument, Arguments, Bound, Windowed};
pub(crate) use arguments::{Modes, changed, placed, shared};
pub use coded::CodedKernel;
pub(crate) use elements::{Given, operand};
pub use options::KernelLaunch;
pub use reduce::ReturnedSum;
pub use scan::PrefixSummed;
pub(crate) use scan::{PIECE_BYTES, Scan, scan_lines};
pub(crate) use session::HeldBound;
pub use session::{
    Holdable, RunAsync, Session, SessionArgument, SessionArguments, SessionArray, SessionCopy, SessionWait,
    SessionWindow,
};
pub(crate) use spread::{Bounds, READ_IN_PLACE_MAX, Shown, Spread, inside};
pub(crate) use stored::Reordered;
pub use stored::StoredBox;

#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;

/// Kernels that can be run: every function with `#[vmarray::kernel]` that changes elements, or returns
/// something, for each item. Come by it with `use vmarray::prelude::*`.
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
/// With options, in a session, and with what items return:
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
    /// | `&Own<T>` | an array, an [`NdArray`](crate::NdArray), a source, a section of any, all by `&` |
    /// | `&Anywhere<T>` | as for `&Own<T>`, of any shape |
    /// | `&Anywhere<T, N>` | the same of `N` dimensions |
    /// | `&Rows<T>` | a [`RaggedArray`](crate::RaggedArray) by `&`; `(&starts, &elements)`: where each row begins and the last one ends, as `u64`, and all elements, each as for `&Own<T>` |
    /// | `&Window<T, N>` | `view.window(halo)`, `view.bounded(mode).window(halo)`, of any extents |
    /// | `&mut Own<T>` | `&mut` array, [`NdArray`](crate::NdArray) or source, [`section_mut`](crate::views::ViewMut::section_mut) |
    /// | `&Shared<T>` | the same, of any length |
    /// | `&Append<T>` | [`Appended::to`] |
    ///
    /// The elements of all of them stand beside one another; [`At`](vmarray_kernel::At) counts from the
    /// first, along each axis if there are several. Arguments that lie on the same devices, channels
    /// and pages as the first result, from the same index on and in the same order, are worked on where
    /// they lie; all others are copied beside it, some MiB at a time, and results among them are copied
    /// back. Results of several dimensions are rows or tiles as the first one is. Elements that many
    /// items read are copied to each device of the result: those of windows with their halo and some
    /// MiB at a time, all of an `Anywhere` or of rows, which has to fit into the device's memory beside what
    /// is there. On a single device on which the result lies as well, they are read where they lie:
    /// windows of arrays that are not tiled, with the modes of the library; an `Anywhere<T>` of an
    /// array from its first element on, an `Anywhere<T, N>` of any box. The halo is not checked then.
    ///
    /// Groups along one axis (`group = N`) are cut at multiples of `N`, counted from the first item, and
    /// numbered from there, on any number of devices, channels and pages. If pages with parts of one group
    /// lie on several channels, the launch copies all elements to the first device, some MiB at a time, and
    /// results back.
    ///
    /// Copies of a [`Source`](crate::Source) that the devices have are used and left there: a launch fetches
    /// missing blocks alone, and results stay on the devices until the program reads them.
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
    /// [`LengthMismatch`](ErrorKind::LengthMismatch), [`KernelShape`](ErrorKind::KernelShape),
    /// [`KernelOverlap`](ErrorKind::KernelOverlap), and [`Device`](ErrorKind::Device) for a device that
    /// has not what the kernel needs: nothing has begun then.
    /// [`KernelOutside`](ErrorKind::KernelOutside) if items accessed elements that are not there: they
    /// read zeroes, wrote nothing, and all items have run; [`KernelBudget`](ErrorKind::KernelBudget)
    /// and [`KernelArena`](ErrorKind::KernelArena) likewise; [`KernelAppend`](ErrorKind::KernelAppend)
    /// if items append more than is allowed. [`Interrupted`](ErrorKind::Interrupted) says which elements
    /// of the results are written and which ones are unspecified.
    fn run<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<()> {
        Self::launch().run(arguments)
    }

    /// Runs the kernel as [`run`](Self::run) does, as a future for any executor: it launches at the first
    /// poll, and is ready when the launch is done. Until it is polled nothing has happened.
    ///
    /// The first poll does not wait for the kernel where all arguments are values and arrays, the results
    /// `&mut`, and the launch could be one of a [`Session`], in which arrays that are only read go on to be
    /// used by others meanwhile. What it waits for then are write-backs of dirty pages of the arguments (see
    /// [`flush_async`](crate::views::View::flush_async)) and the translation, if the kernel is new to the
    /// device. It does all that `run` does, and so blocks until the launch is done, where
    ///
    /// - an argument is a source, or a result is a section, as others may use what is beside it;
    /// - elements would be copied: arguments that do not lie beside the result, are not stored row by row,
    ///   or are read on devices which do not reach them; windows with modes of one's own;
    /// - the kernel appends, has groups that are tiles of a result, or runs [over](KernelLaunch::over)
    ///   numbers.
    ///
    /// It can be dropped at any time: before the first poll nothing is done, afterwards all, which the drop
    /// waits for. It must not be forgotten, as a [`Session`].
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
    /// // Both are under way at a time, beside whatever else the executor has to do.
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
    /// The future has those of [`run`](Self::run); after a failure of a device all elements of the results
    /// are unspecified.
    fn run_async<'a, A: Arguments<'a, Self::Parameters>>(arguments: A) -> RunAsync<'a, Self, A> {
        Self::launch().run_async(arguments)
    }

    /// Launches the kernel in a [`Session`], behind all that was launched there before; waits for nothing.
    ///
    /// # Errors
    /// Nothing was launched: as those of [`run`](Self::run), and
    /// [`KernelRefused`](ErrorKind::KernelRefused) for elements that lie on several devices where that cannot
    /// be. What goes wrong later is told by [`Session::finish`].
    fn run_in(session: &mut Session<'_>, arguments: impl SessionArguments<Self::Parameters>) -> Result<()> {
        Self::launch().run_in(session, arguments)
    }

    /// A launch with options.
    fn launch() -> KernelLaunch<Self> {
        KernelLaunch::new()
    }

    /// Runs the kernel as [`run`](Self::run) does, and adds up what items return: integers exactly, floating
    /// point in `f64`, in an order that depends on the devices, where the elements lie and, if the kernel has
    /// results, who else uses their pages. Of a tuple each number is added up by itself.
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
    /// As [`run`](Self::run).
    fn sum<'a>(
        arguments: impl Arguments<'a, Self::Parameters>,
    ) -> Result<<Self::Returned as ReturnedSum>::Sum>
    where
        Self::Returned: ReturnedSum,
    {
        Self::launch().sum(arguments)
    }

    /// Runs the kernel as [`run`](Self::run) does, and counts the items that return `true`.
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
    /// As [`run`](Self::run).
    fn count<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<usize>
    where
        Self: Kernel<Returned = bool>,
    {
        Self::launch().count(arguments)
    }

    /// Runs the kernel as [`run`](Self::run) does, for the least of what items return; `None` if none does.
    /// NaNs do not count, and a zero comes back as +0.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn min<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<Option<Self::Returned>>
    where
        Self::Returned: Number,
    {
        Self::launch().min(arguments)
    }

    /// Runs the kernel as [`run`](Self::run) does, for the greatest of what items return; see
    /// [`min`](Self::min).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn max<'a>(arguments: impl Arguments<'a, Self::Parameters>) -> Result<Option<Self::Returned>>
    where
        Self::Returned: Number,
    {
        Self::launch().max(arguments)
    }

    /// The kernel with code from elsewhere, written by hand or by another compiler, or loaded by another
    /// library: devices that can use it run that in the place of what would be made of the function, which
    /// stays the form for all others, and what results can be compared with.
    ///
    /// What the code is given is said at [`Code`]: a view for each array, in the order of the parameters, and
    /// the scalars of values and of [`At`](vmarray_kernel::At) likewise, of which the latter has one: the
    /// index of the first element. Those of results with several axes come first, and what is read by places
    /// has some, too: they are [`scalars`](vmarray_kernel::Lowered::scalars) of the lowered form. Kernels are
    /// launched a run of elements at a time, of which there are several where pages lie apart. Launches are
    /// ordered with all else that is done with the elements, and these stay where they are until the code is
    /// done.
    ///
    /// ```
    /// use vmarray::kernel::{Code, Own};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn scale(by: f32, x: &mut Own<f32>) {
    ///     x.set(x.get() * by);
    /// }
    /// // SAFETY: the code does what the function does, with the arguments that it is given.
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
    fn with_code(code: Code) -> Result<CodedKernel<Self>> {
        CodedKernel::new(code)
    }
}

impl<K: Kernel> RunKernel for K {}
