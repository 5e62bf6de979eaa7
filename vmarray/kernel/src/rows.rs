//! [`Rows`], a kernel parameter for rows of different lengths, which kernels read by row and index.

use crate::KernelType;
use crate::bounds_report;
use crate::interpret::InterpreterArgument;
use crate::layout::ElementMemory;
use crate::rules::IndexedElements;
use crate::source::{AllElements, Item, LaunchArguments};
use crate::views::{Parameter, ParameterInfo, ParameterKind, kind};
use std::ops::Range;

/// Rows of different lengths, such as a sparse matrix. A kernel reads an element by `[row, index]`.
///
/// Devices store two arrays: the start of each row and the end of the last one, and the elements of all rows.
/// A read takes three loads; two of them, of the row's start and end, are the same for all elements of a row.
/// A read is out of bounds if the row does not exist or is too short. The launch's report then has the number
/// of the missing row, or the index in the short row.
///
/// ```
/// use vmarray_kernel::{kernel, At, Own, Rows, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn sum(at: At<1>, rows: &Rows<i32>, out: &mut Own<i32>) {
///     let row = rows.len() - 1 - at.index();
///     let mut sum = 0;
///     for i in 0..rows.row_len(row) {
///         sum += rows[[row, i]];
///     }
///     out.set(sum);
/// }
/// let mut out = [9; 3];
/// run_on_host::<sum>(0..3, ((), (&[0, 2, 2, 3], &[10, 20, 5]), &mut out))?;
/// assert_eq!(out, [5, 0, 30]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[repr(transparent)]
pub struct Rows<T: 'static>(RowElements<'static, T>);

/// The memory of a [`Rows`] parameter: the start of each row, and the elements of all rows.
pub struct RowElements<'s, T> {
    starts: AllElements<'s, u64>,
    elements: AllElements<'s, T>,
}

impl<T: ElementMemory> Rows<T> {
    /// Returns the number of rows.
    #[allow(
        clippy::len_without_is_empty,
        reason = "kernels cannot call `is_empty`; they compare `len` with \
            zero"
    )]
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.starts.len().max(1) - 1
    }

    /// Returns the number of elements of `row`; for a missing row, 0, and counts an access out of bounds.
    #[inline(always)]
    #[must_use]
    pub fn row_len(&self, row: usize) -> usize {
        match self.range(row) {
            Some(range) => range.len(),
            None => bounds_report::read(row),
        }
    }

    /// Returns the range of a row's elements among all elements; `None` for a missing row.
    #[inline(always)]
    fn range(&self, row: usize) -> Option<Range<usize>> {
        let end = self.0.starts.element(row.checked_add(1)?)?;
        let start = self.0.starts.element(row)?;
        Some(start as usize..end as usize)
    }

    #[inline(always)]
    fn from_bound<'i>(of: &'i RowElements<'_, T>) -> &'i Self {
        // SAFETY: the types differ only in a lifetime, which is longer than 'i. No code can keep the contents
        // longer than 'i: the type is neither copied nor moved out of a reference, and its methods return
        // values.
        unsafe { &*std::ptr::from_ref(of).cast() }
    }
}

impl<T> std::fmt::Debug for Rows<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

impl<T: ElementMemory> IndexedElements<[usize; 2]> for Rows<T> {
    type Element = T;

    #[inline(always)]
    fn element(&self, [row, index]: [usize; 2]) -> T {
        let Some(range) = self.range(row) else { return bounds_report::read(row) };
        if index >= range.len() {
            return bounds_report::read(index);
        }
        let place = range.start + index;
        self.0.elements.element(place).unwrap_or_else(|| bounds_report::read(place))
    }
}

impl<T: ElementMemory> Parameter for &'static Rows<T> {
    /// The starts of the rows, followed by the end of the last row; and the elements of all rows.
    type Source<'s> = (&'s [u64], &'s [T]);
    type Bound<'s> = RowElements<'s, T>;
    type OfItem<'i> = &'i Rows<T>;
    type Kind = kind::RowsKind;

    fn info(name: &'static str) -> ParameterInfo {
        ParameterInfo { name, kind: ParameterKind::Rows(T::layout()) }
    }

    fn infos(name: &'static str, into: &mut Vec<ParameterInfo>) {
        into.push(ParameterInfo { name, kind: ParameterKind::Anywhere(u64::layout(), 1) });
        into.push(Self::info(name));
    }

    fn bound((starts, elements): Self::Source<'_>) -> Self::Bound<'_> {
        RowElements { starts: AllElements::Slice(starts), elements: AllElements::Slice(elements) }
    }

    fn given<'s>(given: &mut LaunchArguments<'_, 's>) -> Self::Bound<'s> {
        let starts = AllElements::View(given.view());
        RowElements { starts, elements: AllElements::View(given.view()) }
    }

    #[inline(always)]
    fn of_item<'i>(bound: &'i mut Self::Bound<'_>, _: Item) -> &'i Rows<T> {
        Rows::from_bound(bound)
    }

    fn argument((_, elements): Self::Source<'_>) -> InterpreterArgument<'_> {
        InterpreterArgument::Read(bytemuck::cast_slice(elements), size_of::<T>())
    }

    fn arguments<'s>(source: Self::Source<'s>, into: &mut Vec<InterpreterArgument<'s>>) {
        into.push(InterpreterArgument::Read(bytemuck::cast_slice(source.0), size_of::<u64>()));
        into.push(Self::argument(source));
    }
}
