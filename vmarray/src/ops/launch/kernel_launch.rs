//! [`KernelLaunch`]: a launch with options such as a time limit, and reductions of its return values.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use backend_api::Device;
use backend_api::kernel::KernelFacts;
use vmarray_kernel::{Kernel, KernelNumber, KernelScalar};

use super::arguments::Arguments;
use super::execution::{self, LaunchPurpose};
use super::index_domain::IndexDomain;
use super::kernel::KernelVariants;
use super::options::LaunchOptions;
use super::reduce::{How, Reduction, ReturnedSum};
use super::session::{RunAsync, Session, SessionArguments};
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::ops::view::INTERNAL;

/// A launch of a kernel with options such as a time limit. Created by
/// [`RunKernel::launch`](super::RunKernel::launch).
///
/// ```
/// use vmarray::kernel::{At, Own};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn collatz(at: At<1>, steps: &mut Own<u32>) {
///     let (mut n, mut count) = (at.index(), 0); // from 0 on, which never becomes 1
///     while n != 1 {
///         n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
///         count += 1;
///     }
///     steps.set(count);
/// }
/// let mut steps = VirtualArray::<u32>::new(100)?;
/// let error = collatz::launch().budget(1000).run((&mut steps,)).unwrap_err();
/// assert!(error.to_string().contains("`collatz` ran loops for more than 1000 iterations"), "{error}");
/// assert_eq!(steps.get(27)?, 111);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// Reductions of return values:
///
/// ```
/// use vmarray::kernel::{At, Own, Session};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn grown(at: At<1>, x: &mut Own<u32>) -> u32 {
///     x.set(x.get() + at.index() as u32);
///     x.get()
/// }
/// let launch = || grown::launch().budget(100);
/// let mut array = VirtualArray::<u32>::new(4)?;
/// assert_eq!(launch().sum((&mut array,))?, 0 + 1 + 2 + 3);
/// assert_eq!(launch().min((&mut array,))?, Some(0));
/// assert_eq!(launch().max((&mut array,))?, Some(9));
/// assert_eq!(launch().arg_min((&mut array,))?, Some((0, 0)));
/// assert_eq!(launch().arg_max((&mut array,))?, Some((3, 15)));
/// let mut session = Session::new();
/// let x = session.hold(&mut array)?;
/// launch().run_in(&mut session, (x,))?; // The session discards the return values.
/// session.finish()?;
/// assert_eq!(array.get(3)?, 18);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "a launch does nothing until it is run"]
pub struct KernelLaunch<K> {
    options: LaunchOptions,
    over: Option<IndexDomain>,
    marker: PhantomData<fn() -> K>,
}

impl<K> std::fmt::Debug for KernelLaunch<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelLaunch").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<K: Kernel> KernelLaunch<K> {
    pub(super) const fn new() -> Self {
        Self { options: LaunchOptions::USUAL, over: None, marker: PhantomData }
    }

    pub(super) const fn options(&self) -> &LaunchOptions {
        &self.options
    }

    /// Sets the maximum number of loop iterations (`turns`) of a work-item (GPU thread), over all its loops.
    /// A work-item that exceeds the maximum ends, and the launch returns
    /// [`KernelBudget`](ErrorKind::KernelBudget) after all work-items have ended. In a kernel with
    /// work-groups, the work-item leaves its loops, but runs on. The [time limit](Self::time_limit) ends
    /// endless loops too, but not on a GPU.
    ///
    /// The count adds a few percent to the time of short loops. On the host, a kernel with loops and this
    /// maximum is interpreted, and runs some hundred times slower.
    pub fn budget(mut self, turns: u64) -> Self {
        self.options.budget = Some(turns);
        self
    }

    /// Sets the time limit of a work-item (GPU thread) or a work-group: 60 s by default, `None` for no limit.
    /// If a work-item runs longer, the launch returns [`KernelTime`](ErrorKind::KernelTime), which names the
    /// work-item and the loop. The array and the device stay usable. Work-items that had ended before have
    /// written their results. Other results have old values or a part of the new ones. Shared and appended
    /// elements are unchanged.
    ///
    /// The limit applies if the kernel runs on a CPU: in host RAM, in files, and on OpenCL devices that are
    /// CPUs, such as PoCL's. Loops read the clock every 65 536 iterations. A work-item therefore ends some
    /// microseconds late, and a work-item with fewer iterations in all has no limit. In host RAM, a program
    /// built with `panic = "abort"` has no limit.
    ///
    /// A GPU does not stop a kernel: CUDA and OpenCL have no function for that. A GPU with a display has a
    /// watchdog in the graphics driver, which ends a kernel after some seconds. The device is then lost, with
    /// all elements of which the device has the only copy. On other GPUs the launch does not end. Give
    /// kernels whose loops may not end a [budget](Self::budget) there, which counts iterations on the device.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use vmarray::kernel::Own;
    /// use vmarray::{AnyDevice, ErrorKind, host::HostDevice, prelude::*};
    ///
    /// #[vmarray::kernel]
    /// fn halved(x: &mut Own<u32>) {
    ///     while x.get() % 2 == 0 { // Endless for 0.
    ///         x.set(x.get() / 2);
    ///     }
    /// }
    /// let device = AnyDevice::from(HostDevice::new(1 << 20)?);
    /// let mut array = VirtualArray::<u32>::builder(3).devices([Arc::new(device)]).build()?;
    /// array.write(0, &[12, 0, 40])?;
    /// let launch = halved::launch().time_limit(Duration::from_millis(10));
    /// let error = launch.run((&mut array,)).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::KernelTime { item: 1, .. }), "{error}");
    /// array.set(1, 8)?;
    /// halved::run((&mut array,))?;
    /// assert_eq!(array.to_vec(..)?, [3, 1, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn time_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.options.time_limit = limit.into();
        self
    }

    /// Sets the private memory of a work-item (GPU thread) for [`alloc`](crate::kernel::PrivateSlice), in
    /// bytes; 16 KiB by default. The call rounds `bytes` up to a multiple of 8. If a device lacks memory for
    /// all work-items, the device runs fewer work-items at a time.
    ///
    /// ```
    /// use vmarray::kernel::{At, Own};
    /// use vmarray::{ErrorKind, prelude::*};
    ///
    /// #[vmarray::kernel]
    /// fn sum_of_squares(at: At<1>, count: usize, out: &mut Own<u64>) {
    ///     let squares = alloc::<u64>(count);
    ///     for i in 0..count {
    ///         squares.set(i, (i * i) as u64);
    ///     }
    ///     let mut sum = 0;
    ///     for i in 0..count {
    ///         sum += squares[i];
    ///     }
    ///     out.set(sum + at.index() as u64);
    /// }
    /// let mut out = VirtualArray::<u64>::new(3)?;
    /// let error = sum_of_squares::run((5000, &mut out)).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::KernelPrivateHeap { asked: 40_000, .. }));
    /// sum_of_squares::launch().private_heap_bytes(40_000).run((5000, &mut out))?;
    /// assert_eq!(out.get(2)?, 5000 * 4999 * 9999 / 6 + 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn private_heap_bytes(mut self, bytes: u64) -> Self {
        self.options.private_heap_bytes = bytes.next_multiple_of(8);
        self
    }

    /// Runs the kernel once for each number of a range; `at.index()` is the number. This is for kernels
    /// without an [`Own`](crate::kernel::Own) parameter: otherwise the elements of that parameter determine
    /// the work-items (GPU threads). The devices that store the first array among the arguments divide the
    /// range. If [`on`](Self::on) sets a device, that device runs the whole range.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray::kernel::{Anywhere, At, random};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn row_sum(at: At<1>, columns: usize, matrix: &Anywhere<f32>) -> f32 {
    ///     let mut sum = 0.0;
    ///     for column in 0..columns {
    ///         sum += matrix[at.index() * columns + column];
    ///     }
    ///     sum
    /// }
    /// let matrix = VirtualArray::<f32>::new(6)?;
    /// matrix.write(0, &[1.0, 2.0, 3.0, 4.0, 5.0, -1.0])?;
    /// assert_eq!(row_sum::launch().over(0..2).arg_max((3, &matrix))?, Some((1, 8.0)));
    ///
    /// #[vmarray::kernel]
    /// fn is_square(at: At<1>) -> bool {
    ///     let root = (at.index() as f64).sqrt().round() as usize;
    ///     root * root == at.index()
    /// }
    /// let device = Arc::new(vmarray::host::HostDevice::new(1 << 20)?);
    /// assert_eq!(is_square::launch().over(100..1000).on(&device).count(())?, 22);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn over(mut self, range: Range<usize>) -> Self {
        let device = self.over.and_then(|over| over.device);
        self.over = Some(IndexDomain { range, device });
        self
    }

    /// Sets the device that runs the kernel for the range of [`over`](Self::over).
    pub fn on<D: Device>(mut self, device: &Arc<D>) -> Self {
        let range = self.over.map_or(0..0, |over| over.range);
        let device = Arc::clone(device) as Arc<dyn Device>;
        self.over = Some(IndexDomain { range, device: Some(device) });
        self
    }

    /// Runs the kernel: see [`RunKernel::run`](super::RunKernel::run).
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run).
    pub fn run<'a>(self, arguments: impl Arguments<'a, K::Parameters>) -> Result<()> {
        self.planned(arguments, LaunchPurpose::Nothing)
    }

    /// Runs the kernel as a future: see [`RunKernel::run_async`](super::RunKernel::run_async).
    ///
    /// ```
    /// use vmarray::kernel::Own;
    /// use vmarray::{ErrorKind, prelude::*};
    ///
    /// #[vmarray::kernel]
    /// fn halved(x: &mut Own<u32>) {
    ///     while x.get() % 2 == 0 {
    ///         x.set(x.get() / 2);
    ///     }
    /// }
    /// let mut array = VirtualArray::<u32>::new(3)?;
    /// array.write(0, &[12, 0, 40])?;
    /// let launch = halved::launch().budget(100).run_async((&mut array,));
    /// let error = futures::executor::block_on(launch).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::KernelBudget { item: 1, .. }), "{error}");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future returns the errors of [`RunKernel::run_async`](super::RunKernel::run_async).
    pub fn run_async<'a, A: Arguments<'a, K::Parameters>>(self, arguments: A) -> RunAsync<'a, K, A> {
        let Self { options, over, .. } = self;
        RunAsync::new(arguments, options, over)
    }

    /// Runs the kernel and adds the return values: see [`RunKernel::sum`](super::RunKernel::sum).
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run).
    pub fn sum<'a>(
        self,
        arguments: impl Arguments<'a, K::Parameters>,
    ) -> Result<<K::Returned as ReturnedSum>::Sum>
    where
        K::Returned: ReturnedSum,
    {
        self.reduced(How::Sum, arguments).map(Reduction::sum::<K::Returned>)
    }

    /// Runs the kernel and counts the work-items (GPU threads) that return `true`: see
    /// [`RunKernel::count`](super::RunKernel::count).
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run).
    pub fn count<'a>(self, arguments: impl Arguments<'a, K::Parameters>) -> Result<usize>
    where
        K: Kernel<Returned = bool>,
    {
        self.reduced(How::Sum, arguments).map(Reduction::sum::<bool>)
    }

    /// Runs the kernel and returns the least return value: see [`RunKernel::min`](super::RunKernel::min).
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run).
    pub fn min<'a>(self, arguments: impl Arguments<'a, K::Parameters>) -> Result<Option<K::Returned>>
    where
        K::Returned: KernelNumber,
    {
        self.arg_min(arguments).map(|found| found.map(|(_, value)| value))
    }

    /// Runs the kernel and returns the greatest return value: see [`RunKernel::max`](super::RunKernel::max).
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run).
    pub fn max<'a>(self, arguments: impl Arguments<'a, K::Parameters>) -> Result<Option<K::Returned>>
    where
        K::Returned: KernelNumber,
    {
        self.arg_max(arguments).map(|found| found.map(|(_, value)| value))
    }

    /// Like [`min`](Self::min), with the index of the first work-item (GPU thread) that returned the value.
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run).
    pub fn arg_min<'a>(
        self,
        arguments: impl Arguments<'a, K::Parameters>,
    ) -> Result<Option<(usize, K::Returned)>>
    where
        K::Returned: KernelNumber,
    {
        self.extreme(How::Least, arguments)
    }

    /// Like [`max`](Self::max), with the index of the first work-item (GPU thread) that returned the value.
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run).
    pub fn arg_max<'a>(
        self,
        arguments: impl Arguments<'a, K::Parameters>,
    ) -> Result<Option<(usize, K::Returned)>>
    where
        K::Returned: KernelNumber,
    {
        self.extreme(How::Greatest, arguments)
    }

    /// Compiles the kernel for the device that stores the first element of the result, without running it.
    /// Returns properties of the compiled code: registers, spilled bytes, the length of work-groups.
    ///
    /// ```
    /// use vmarray::kernel::Own;
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn doubled(x: &mut Own<f32>) {
    ///     x.set(x.get() * 2.0);
    /// }
    /// let mut array = VirtualArray::<f32>::new(1000)?;
    /// match doubled::launch().facts((&mut array,)) {
    ///     Ok(facts) => println!("{:?} registers of 32 bits an item", facts.registers),
    ///     Err(error) => println!("{error}"), // Host RAM has no such properties.
    /// }
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`RunKernel::run`](super::RunKernel::run), and [`Device`](ErrorKind::Device) if the
    /// device does not report properties.
    pub fn facts<'a>(self, arguments: impl Arguments<'a, K::Parameters>) -> Result<KernelFacts> {
        let mut facts = None;
        self.planned(arguments, LaunchPurpose::Facts(&mut facts))?;
        Ok(facts.unwrap_or_default())
    }

    fn extreme<'a>(
        self,
        how: How,
        arguments: impl Arguments<'a, K::Parameters>,
    ) -> Result<Option<(usize, K::Returned)>>
    where
        K::Returned: KernelScalar,
    {
        self.reduced(how, arguments).map(Reduction::extreme)
    }

    fn reduced<'a>(self, how: How, arguments: impl Arguments<'a, K::Parameters>) -> Result<Reduction> {
        let mut reduction = Reduction::new::<K::Returned>(how, K::group_len())?;
        self.planned(arguments, LaunchPurpose::Reduced(&mut reduction))?;
        Ok(reduction)
    }

    /// Returns true if the work-items are numbers of a range, not the elements of a result.
    pub(super) const fn is_over_numbers(&self) -> bool {
        self.over.is_some()
    }

    fn planned<'a>(
        self,
        arguments: impl Arguments<'a, K::Parameters>,
        wanted: LaunchPurpose<'_>,
    ) -> Result<()> {
        let Self { options, over, .. } = self;
        execution::run(
            &KernelVariants::of::<K>()?,
            arguments.bound(INTERNAL),
            &options,
            over.as_ref(),
            wanted,
        )
    }
}

impl<K: Kernel> KernelLaunch<K> {
    /// Launches the kernel as a part of a session: see [`RunKernel::run_in`](super::RunKernel::run_in).
    ///
    /// # Errors
    /// The errors of [`RunKernel::run_in`](super::RunKernel::run_in).
    pub fn run_in(
        self,
        session: &mut Session<'_>,
        arguments: impl SessionArguments<K::Parameters>,
    ) -> Result<()> {
        if self.is_over_numbers() {
            let reason = "in a session, a kernel runs for the elements of its `Own`: leave `over` and `on` \
                          out";
            return Err(KernelVariants::of::<K>()?.usual.refused(reason));
        }
        let kernels = KernelVariants::of::<K>()?;
        let launched = session.launch(&kernels, arguments.bind(INTERNAL), self.options());
        launched.map_err(|error| kernels.usual.placed(error))
    }
}
