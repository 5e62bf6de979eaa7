//! Matrix products in place, on a GPU that stores both factors and the result: by a library of its vendor, or
//! by a kernel. In the kernel, a work-group keeps tiles of the factors in its shared memory. Each work-item
//! (GPU thread) keeps a block of sums in registers. After V. Volkov, J. Demmel, "Benchmarking GPUs to Tune
//! Dense Linear Algebra", 2008.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{Device, Elements, HostBuffer, HostMemory, HostSpan, Launch, LaunchView, Request, Ticket};
use vmarray_kernel::{Anywhere, At, Atomic, Float, Group, Shared, kernel};

use super::element::MatMulElement;
use super::matrix::{Matrix, MatrixPlaces, rows_in_order};
use crate::base::error::Result;
use crate::engine::pager::Pager;
use crate::ops::executor::{Change, LibraryKernel, OperandStore, Run, WorkQueue};
use crate::ops::launch::StripedArgument;
use crate::ops::sort::is_unsupported;
use crate::ops::view::{INTERNAL, Store as _, StoreMut as _, StoredBox, ViewMut};

/// Number of columns of a group's tile of the result. The number of rows is a parameter of the kernel.
const TILE: usize = 128;
/// Number of rows of a tile of `f64`, 64 or 128. An item uses about 250 registers, so a multiprocessor holds
/// two groups of 128 items (64 rows), or one of 256. On an H200 64 rows were 1.06 times as fast.
const F64_ROWS: usize = 64;
/// Number of columns of `a` and rows of `b` that group memory holds at a time (a step).
const STEP: usize = 8;
/// Size of a step in group memory, in elements. Lines are `TILE + W` elements apart; `W` elements have 16
/// bytes. The padding avoids bank conflicts.
const ROOM: usize = STEP * (TILE + 4);
/// Side length of the square of sums that a work-item computes.
const BLOCK: usize = 8;
/// Number of work-items along the rows of a tile.
const ACROSS: usize = TILE / BLOCK;
/// Number of elements of `a`, and of `b` with a tile of `f64`, that a work-item loads in a step.
const EACH: usize = STEP * BLOCK / ACROSS;
const F64_EACH: usize = TILE * STEP / items(F64_ROWS);

/// Returns the location of a work-item's first element in a step: its number in a line, and the number of the
/// line. A work-item loads `N` neighbours along `k` if these are contiguous, otherwise `N` equidistant ones.
#[kernel(crate = vmarray_kernel)]
fn own_place<const ALONG: bool, const LINES: usize, const N: usize>(t: usize) -> (usize, usize) {
    if ALONG { (t % (STEP / N) * N, t / (STEP / N)) } else { (t / LINES, t % LINES) }
}

/// Kernel function: returns element `k` of a line of a factor, or zero past the end of `k`.
#[kernel(crate = vmarray_kernel)]
fn at_edge<T: Float + Atomic>(of: &Anywhere<T>, line: usize, k: usize, stride: usize, depth: usize) -> T {
    let mut value = T::ZERO;
    if k < depth {
        value = of[line + k * stride];
    }
    value
}

/// Kernel function: stores the elements that a work-item has loaded in group memory, whose lines are `pitch`
/// elements apart.
#[kernel(crate = vmarray_kernel)]
fn store_step<T: Float + Atomic, const N: usize>(
    next: [T; N],
    first: usize,
    pitch: usize,
    into: &Group<T, ROOM>,
) {
    for i in 0..N {
        into.set(first + i * pitch, next[i]);
    }
}

/// Kernel function: stores a work-item's sums, whose first one has the given row and column.
#[kernel(crate = vmarray_kernel)]
fn store_sums<T: Float + Atomic, const W: usize, const ROWS: usize>(
    sums: [[T; BLOCK]; BLOCK],
    first: (usize, usize),
    ends: (usize, usize),
    c: &Shared<T>,
) {
    for i in 0..BLOCK {
        let row = first.0 + i % W + i / W * (ROWS / BLOCK * W);
        for j in 0..BLOCK {
            let column = first.1 + j % W + j / W * (ACROSS * W);
            if row < ends.0 && column < ends.1 {
                c.set(row * ends.1 + column, sums[i][j]);
            }
        }
    }
}

/// Kernel: multiplies two matrices. A factor has the index of its first element, and the distances of
/// neighbours along `k` and across `k`. A group computes one tile of the result, in row-major order, with
/// `R` rows. An item loads `N` elements of `b` in a step. `A` and `B` are true if the factors are contiguous
/// along `k`.
///
/// Lines past the edge repeat the last line; their sums are not stored. Each iteration loads a step and
/// multiplies the step before, so that loads and products overlap.
#[kernel(crate = vmarray_kernel, group = items(R))]
fn product<
    T: Float + Atomic,
    const A: bool,
    const B: bool,
    const W: usize,
    const R: usize,
    const N: usize,
>(
    at: At<1>,
    (rows, columns, depth): (usize, usize, usize),
    (a_first, a_strides): (usize, (usize, usize)),
    (b_first, b_strides): (usize, (usize, usize)),
    a: &Anywhere<T>,
    b: &Anywhere<T>,
    c: &Shared<T>,
    of_a: &Group<T, ROOM>,
    of_b: &Group<T, ROOM>,
) {
    let (t, across) = (at.in_group(), (columns + TILE - 1) / TILE);
    let (row, column) = (at.group() / across * R, at.group() % across * TILE);
    let (y, x) = (t / ACROSS * W, t % ACROSS * W);
    let (a_k, a_line) = own_place::<A, R, EACH>(t);
    let a_line_at = a_first + (row + a_line).min(rows - 1) * a_strides.1;
    let (b_k, b_line) = own_place::<B, TILE, N>(t);
    let b_line_at = b_first + (column + b_line).min(columns - 1) * b_strides.1;
    let (a_step, a_stride) = if A { (1, 1) } else { (STEP / EACH, a_strides.0) };
    let (b_step, b_stride) = if B { (1, 1) } else { (STEP / N, b_strides.0) };
    let mut sums = [[T::ZERO; BLOCK]; BLOCK];
    let (mut next_a, mut next_b) = ([T::ZERO; EACH], [T::ZERO; N]);
    let (mut from, mut a_at, mut b_at) = (0, a_line_at + a_k * a_stride, b_line_at + b_k * b_stride);
    while from < depth + STEP {
        if from + STEP <= depth {
            for i in 0..EACH {
                next_a[i] = a[a_at + i * a_step * a_stride];
            }
            for i in 0..N {
                next_b[i] = b[b_at + i * b_step * b_stride];
            }
        } else {
            for i in 0..EACH {
                next_a[i] = at_edge(a, a_line_at, from + a_k + i * a_step, a_stride, depth);
            }
            for i in 0..N {
                next_b[i] = at_edge(b, b_line_at, from + b_k + i * b_step, b_stride, depth);
            }
        }
        a_at += STEP * a_stride;
        b_at += STEP * b_stride;
        if from > 0 {
            for k in 0..STEP {
                let (mut of_row, mut of_column) = ([T::ZERO; BLOCK], [T::ZERO; BLOCK]);
                for i in 0..BLOCK {
                    of_row[i] = of_a[k * (R + W) + y + i % W + i / W * (R / BLOCK * W)];
                    of_column[i] = of_b[k * (TILE + W) + x + i % W + i / W * (ACROSS * W)];
                }
                for i in 0..BLOCK {
                    for j in 0..BLOCK {
                        sums[i][j] = of_row[i].mul_add(of_column[j], sums[i][j]);
                    }
                }
            }
        }
        barrier();
        store_step::<T, EACH>(next_a, a_k * (R + W) + a_line, a_step * (R + W), of_a);
        store_step::<T, N>(next_b, b_k * (TILE + W) + b_line, b_step * (TILE + W), of_b);
        barrier();
        from += STEP;
    }
    store_sums::<T, W, R>(sums, (row + y, column + x), (rows, columns), c);
}

/// Returns the number of rows of a tile of floats with 4 or 8 bytes.
fn tile_rows(bytes: usize) -> usize {
    if bytes == 8 { F64_ROWS } else { TILE }
}

/// Returns the number of work-items of a group whose tile has this number of rows.
const fn items(rows: usize) -> usize {
    rows / BLOCK * ACROSS
}

/// Returns the kernel for factors of 4-byte or 8-byte floats. A flag is true if its factor is contiguous
/// along `k`.
pub(super) fn kernel_of(bytes: usize, [a, b]: [bool; 2]) -> &'static LibraryKernel {
    static ALL: [OnceLock<LibraryKernel>; 8] = [const { OnceLock::new() }; 8];
    let number = usize::from(a) + 2 * usize::from(b) + if bytes == 8 { 4 } else { 0 };
    let kernel = || match (bytes, a, b) {
        (8, false, false) => LibraryKernel::of::<product<f64, false, false, 2, F64_ROWS, F64_EACH>>(),
        (8, true, false) => LibraryKernel::of::<product<f64, true, false, 2, F64_ROWS, F64_EACH>>(),
        (8, false, true) => LibraryKernel::of::<product<f64, false, true, 2, F64_ROWS, F64_EACH>>(),
        (8, true, true) => LibraryKernel::of::<product<f64, true, true, 2, F64_ROWS, F64_EACH>>(),
        (_, false, false) => LibraryKernel::of::<product<f32, false, false, 4, TILE, EACH>>(),
        (_, true, false) => LibraryKernel::of::<product<f32, true, false, 4, TILE, EACH>>(),
        (_, false, true) => LibraryKernel::of::<product<f32, false, true, 4, TILE, EACH>>(),
        (_, true, true) => LibraryKernel::of::<product<f32, true, true, 4, TILE, EACH>>(),
    };
    // 256 work-items with sums of `f64` need the registers of a whole multiprocessor.
    let is_alone = items(tile_rows(bytes)) == 256 && bytes == 8;
    let tuned = || if is_alone { kernel() } else { kernel().with_resident_groups(2) };
    ALL[number].get_or_init(|| tuned().with_product())
}

/// The code that computes a matrix product.
///
/// ```
/// use vmarray::matrix::MatMulRoute;
/// let is_on_device = |route: MatMulRoute| route != MatMulRoute::Ram;
/// assert!(is_on_device(MatMulRoute::Library("cuBLAS")) && is_on_device(MatMulRoute::Kernel));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MatMulRoute {
    /// The processor multiplies tiles in RAM.
    Ram,
    /// The GPU that stores the matrices runs a kernel of this crate.
    Kernel,
    /// The GPU that stores the matrices runs the library of this name, such as `cuBLAS`.
    Library(&'static str),
}

/// Multiplies two matrices on the GPU that stores them and the view. Returns false without a change if they
/// are on different devices, or if the GPU does not support the kernel.
pub(super) fn multiply<'a, V>(view: V, a: &Matrix<'_, V::Element>, b: &Matrix<'_, V::Element>) -> Result<bool>
where
    V: ViewMut<'a, Index = [usize; 2], Element: MatMulElement>,
{
    let Some((change, range)) = ProductChange::new(view, a, b) else { return Ok(false) };
    match view.parts().0.as_target(INTERNAL).change(&[], &range, &change) {
        Ok(()) => {
            debug_assert_eq!(
                change.failures.into_inner(),
                0,
                "a work-item failed, although it accesses only existing elements"
            );
            Ok(true)
        }
        Err(error) if error.device_error().is_some_and(is_unsupported) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the route of [`multiply`], without computing the product.
pub(super) fn route<'a, V>(
    view: V,
    a: &Matrix<'_, V::Element>,
    b: &Matrix<'_, V::Element>,
) -> Result<MatMulRoute>
where
    V: ViewMut<'a, Index = [usize; 2], Element: MatMulElement>,
{
    let (product, (store, _)) = (ProductChange::new(view, a, b), view.parts());
    let pager = store.as_operand(INTERNAL).pager();
    let (Some((change, range)), Some(pager)) = (product, pager) else { return Ok(MatMulRoute::Ram) };
    let (channel, stride) = (&pager.channels()[0], size_of::<V::Element>() as u64);
    let start = channel.slot_memory().plus(range.start as u64 * stride);
    let columns = [Elements { start, count: range.len() as u64, stride }];
    let run = Run { columns: &columns, geometry: Geometry::plain(range.start as u64) };
    let (device, bytes) = (channel.device(), Report::BYTES as usize);
    let report = HostBuffer::new(device, bytes, HostMemory::Pageable)?;
    let found = change.with(run, report.at(0), |launch| {
        match device.prepare(&[Request::Launch(launch)]) {
            Err(error) if is_unsupported(&error) => return Ok(MatMulRoute::Ram),
            prepared => prepared?,
        }
        match device.kernel_facts(launch) {
            // The device has prepared the launch, but does not report its properties.
            Err(error) if is_unsupported(&error) => Ok(MatMulRoute::Kernel),
            facts => Ok(facts?.library.map_or(MatMulRoute::Kernel, MatMulRoute::Library)),
        }
    });
    Ok(found?)
}

impl<'a> MatrixPlaces<'a> {
    /// Returns the factor as an argument read in place, or `None` if `result` is on another device.
    fn striped(&self, number: usize, result: &dyn OperandStore) -> Option<StripedArgument<'a>> {
        let stored = StoredBox::range_of(self.range.start, self.range.len());
        StripedArgument::new(number, &self.operand, &stored, Vec::new(), result)
    }
}

/// A matrix product, as a change of the result's elements.
struct ProductChange<'a> {
    kernel: &'static LibraryKernel,
    factors: [StripedArgument<'a>; 2],
    /// Storage index of the first element of each factor.
    firsts: [usize; 2],
    /// For each factor, the distances of neighbours along `k` and across it.
    strides: [[usize; 2]; 2],
    /// Storage index of the first element of the result.
    start: usize,
    columns: usize,
    depth: usize,
    failures: AtomicU64,
}

impl<'f> ProductChange<'f> {
    /// Returns the product and the range of its result. Returns `None` if one GPU does not store the view and
    /// both factors, or if there is no kernel for them.
    fn new<'a, V>(
        view: V,
        a: &'f Matrix<'_, V::Element>,
        b: &'f Matrix<'_, V::Element>,
    ) -> Option<(Self, Range<usize>)>
    where
        V: ViewMut<'a, Index = [usize; 2], Element: MatMulElement>,
    {
        let (store, shape) = view.parts();
        let own = store.as_operand(INTERNAL);
        let mut devices = own.devices().into_iter().map(|(device, _)| device.info().kind.is_gpu());
        if !V::Element::HAS_KERNEL || own.channel_count() != 1 || !devices.all(|is_gpu| is_gpu) {
            return None;
        }
        let (range, a_places, b_places) = (rows_in_order(&shape)?, a.places()?, b.places()?);
        let ([_, depth], [_, columns]) = (a.extents(), b.extents());
        let strides = [[a_places.strides[1], a_places.strides[0]], b_places.strides];
        let change = Self {
            kernel: kernel_of(size_of::<V::Element>(), strides.map(|[along, _]| along == 1)),
            factors: [a_places.striped(0, own)?, b_places.striped(1, own)?],
            firsts: [a_places.operand.start, b_places.operand.start],
            strides,
            start: range.start,
            columns,
            depth,
            failures: AtomicU64::new(0),
        };
        Some((change, range))
    }

    fn with<R>(
        &self,
        run: Run<'_>,
        report: HostSpan<'_>,
        work: impl FnOnce(&Launch<'_>) -> backend_api::Result<R>,
    ) -> backend_api::Result<R> {
        let (columns, rows) = (self.columns, run.count() / self.columns);
        let row = (run.geometry.index(0) as usize - self.start) / columns;
        let ([a, b], [a_strides, b_strides]) = (self.firsts, self.strides);
        let a = a + row * a_strides[1];
        let values =
            [rows, columns, self.depth, a, a_strides[0], a_strides[1], b, b_strides[0], b_strides[1]];
        let values = values.map(|value| value as u64);
        let height = tile_rows(self.factors[0].view().stride() as usize);
        let items = (rows.div_ceil(height) * columns.div_ceil(TILE) * items(height)) as u64;
        let views = [self.factors[0].view(), self.factors[1].view(), LaunchView::Run(run.columns[0])];
        let params = self.kernel.params(&values, &views, items);
        let new = Launch::new(self.kernel.kernel(), items, Geometry::plain(0), report);
        work(&Launch { views: &views, params: &params, ..new })
    }
}

impl Change for ProductChange<'_> {
    fn overwrites(&self, _: usize) -> bool {
        false
    }

    fn group_len(&self) -> usize {
        self.columns
    }

    fn striped(&self) -> Vec<(&Pager, Range<u64>)> {
        self.factors.iter().map(|factor| (factor.pager, factor.pages())).collect()
    }

    fn report_bytes(&self, _: usize) -> usize {
        Report::BYTES as usize
    }

    fn is_rounded(&self) -> bool {
        true
    }

    fn prepare(&self, device: &dyn Device, run: Run<'_>, report: Option<HostSpan<'_>>) {
        let Some(report) = report else { return };
        let _ = self.with(run, report, |launch| device.prepare(&[Request::Launch(launch)]));
    }

    fn submit(
        &self,
        queue: WorkQueue<'_>,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket> {
        let Some(report) = report else { unreachable!("every launch has a report") };
        // If the device refuses this kernel, do not run it on the host: the host is faster if it multiplies
        // tile by tile.
        self.with(run, report, |launch| queue.with_ram(false).submit(launch))
    }

    fn take_report(&self, _: Geometry, report: &[u64]) {
        if let Ok(words) = report.try_into() {
            self.failures.fetch_add(Report::from_words(words).failures, Relaxed);
        }
    }
}
