//! Launches of the library's own kernels, such as searches in sorted arrays, over elements of any type.

use std::ops::Range;

use backend_api::Device;
use vmarray_kernel::{Kernel, KernelType};

use super::arguments::{Bound, PlacedElements, values};
use super::execution::{self, LaunchPurpose};
use super::kernel::KernelVariants;
use super::options::LaunchOptions;
use super::reduce::{How, Reduction};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::ops::executor::Operand;
use crate::ops::view::{INTERNAL, Linear, Store as _, View};

/// Arguments of a kernel, in the order of its parameters.
#[derive(Debug, Default)]
pub(crate) struct KernelArguments<'a>(Vec<Bound<'a>>);

impl<'a> KernelArguments<'a> {
    pub(crate) fn value(mut self, value: impl KernelType) -> Self {
        self.0.push(values(value));
        self
    }

    /// Adds an argument with one element for each work-item.
    pub(crate) fn own(mut self, of: impl View<'a, Shape = Linear>) -> Self {
        self.0.push(Bound::Elements(PlacedElements::of(operand(of), of.len())));
        self
    }

    /// Adds all elements of an array as a result.
    pub(crate) fn result<T: Element, D: Device>(self, of: &'a VirtualArray<T, D>) -> Self {
        self.result_in(of, 0..of.len())
    }

    /// Adds a range of an array as a result.
    pub(crate) fn result_in<T: Element, D: Device>(
        mut self,
        of: &'a VirtualArray<T, D>,
        range: Range<usize>,
    ) -> Self {
        self.0.push(Bound::Elements(PlacedElements::of(Operand::changed(of, range.start), range.len())));
        self
    }

    /// Adds a view that all work-items may read.
    pub(crate) fn all(self, of: impl View<'a, Shape = Linear>) -> Self {
        self.all_of(operand(of), of.len())
    }

    /// Adds the first `len` elements of an operand, which all work-items may read.
    pub(crate) fn all_of(mut self, of: Operand<'a>, len: usize) -> Self {
        self.0.push(Bound::Elements(PlacedElements::of(of, len)));
        self
    }

    /// Runs the kernel, and returns the number of work-items that return true.
    pub(crate) fn count<K: Kernel<Returned = bool>>(self) -> Result<usize> {
        let mut reduction = Reduction::new::<bool>(How::Sum, K::group_len())?;
        let wanted = LaunchPurpose::Reduced(&mut reduction);
        execution::run(&KernelVariants::of::<K>()?, self.0, &LaunchOptions::OF_LIBRARY, None, wanted)?;
        Ok(reduction.sum::<bool>())
    }

    /// Runs the kernel, and returns the least value of each returned scalar; `None` without work-items.
    pub(crate) fn least<K: Kernel>(self) -> Result<Vec<Option<u64>>> {
        let mut reduction = Reduction::new::<K::Returned>(How::Least, K::group_len())?;
        let wanted = LaunchPurpose::Reduced(&mut reduction);
        execution::run(&KernelVariants::of::<K>()?, self.0, &LaunchOptions::OF_LIBRARY, None, wanted)?;
        Ok(reduction.least())
    }

    pub(crate) fn run<K: Kernel>(self) -> Result<()> {
        execution::run(
            &KernelVariants::of::<K>()?,
            self.0,
            &LaunchOptions::OF_LIBRARY,
            None,
            LaunchPurpose::Nothing,
        )
    }
}

/// Runs a kernel over elements without reducing its return values.
pub(crate) fn run(
    kernels: &KernelVariants,
    arguments: Vec<Bound<'_>>,
    options: &LaunchOptions,
) -> Result<()> {
    execution::run(kernels, arguments, options, None, LaunchPurpose::Nothing)
}

pub(crate) fn operand<'a>(of: impl View<'a, Shape = Linear>) -> Operand<'a> {
    let (store, shape) = of.parts();
    Operand::new(store.as_operand(INTERNAL), shape.start)
}
