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

/// Number of work-items in a group, and side length of its tile of the result.
const ITEMS: usize = 256;
const TILE: usize = 128;
/// Number of columns of `a` and rows of `b` that group memory holds at a time (a step).
const STEP: usize = 8;
/// Size of a step in group memory, in elements. Lines are `TILE + W` elements apart; `W` elements have 16
/// bytes. The padding avoids bank conflicts.
const ROOM: usize = STEP * (TILE + 4);
/// Number of elements of a step that a work-item loads.
const EACH: usize = TILE * STEP / ITEMS;
/// Side length of the square of sums that a work-item computes.
const BLOCK: usize = 8;
/// Number of work-items along each axis of a tile.
const ACROSS: usize = TILE / BLOCK;

/// Returns the location of a work-item's first element in a step: its number in a line, and the number of the
/// line. A work-item loads neighbours along `k` if these are contiguous, otherwise every second `k`.
#[kernel(crate = vmarray_kernel)]
fn own_place<const ALONG: bool>(t: usize) -> (usize, usize) {
    if ALONG { (t % (STEP / EACH) * EACH, t / (STEP / EACH)) } else { (t / TILE, t % TILE) }
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

/// Kernel function: stores a work-item's sums, whose first one has the given row and column.
#[kernel(crate = vmarray_kernel)]
fn store_sums<T: Float + Atomic, const W: usize>(
    sums: [[T; BLOCK]; BLOCK],
    first: (usize, usize),
    ends: (usize, usize),
    c: &Shared<T>,
) {
    for i in 0..BLOCK {
        let row = first.0 + i % W + i / W * (ACROSS * W);
        for j in 0..BLOCK {
            let column = first.1 + j % W + j / W * (ACROSS * W);
            if row < ends.0 && column < ends.1 {
                c.set(row * ends.1 + column, sums[i][j]);
            }
        }
    }
}

/// Kernel: multiplies two matrices. A factor has the index of its first element, and the distances of
/// neighbours along `k` and across `k`. A group computes one tile of the result, in row-major order.
#[kernel(crate = vmarray_kernel, group = ITEMS)]
fn multiply_tiles<T: Float + Atomic, const A_ALONG: bool, const B_ALONG: bool, const W: usize>(
    at: At<1>,
    rows: usize,
    columns: usize,
    depth: usize,
    (a_first, a_strides): (usize, (usize, usize)),
    (b_first, b_strides): (usize, (usize, usize)),
    a: &Anywhere<T>,
    b: &Anywhere<T>,
    c: &Shared<T>,
    of_a: &Group<T, ROOM>,
    of_b: &Group<T, ROOM>,
) {
    let t = at.in_group();
    let across = (columns + TILE - 1) / TILE;
    let (row, column) = (at.group() / across * TILE, at.group() % across * TILE);
    let (y, x) = (t / ACROSS * W, t % ACROSS * W);
    // Lines past the edge repeat the last line; their sums are not stored.
    let (a_k, a_line) = own_place::<A_ALONG>(t);
    let a_line_at = a_first + (row + a_line).min(rows - 1) * a_strides.1;
    let (b_k, b_line) = own_place::<B_ALONG>(t);
    let b_line_at = b_first + (column + b_line).min(columns - 1) * b_strides.1;
    let (a_step, a_stride) = if A_ALONG { (1, 1) } else { (ITEMS / TILE, a_strides.0) };
    let (b_step, b_stride) = if B_ALONG { (1, 1) } else { (ITEMS / TILE, b_strides.0) };
    let mut sums = [[T::ZERO; BLOCK]; BLOCK];
    let (mut next_a, mut next_b) = ([T::ZERO; EACH], [T::ZERO; EACH]);
    let (mut from, mut a_at, mut b_at) = (0, a_line_at + a_k * a_stride, b_line_at + b_k * b_stride);
    // Each iteration loads a step and multiplies the step before, so that loads and products overlap.
    while from < depth + STEP {
        if from + STEP <= depth {
            for i in 0..EACH {
                next_a[i] = a[a_at + i * a_step * a_stride];
                next_b[i] = b[b_at + i * b_step * b_stride];
            }
        } else {
            for i in 0..EACH {
                next_a[i] = at_edge(a, a_line_at, from + a_k + i * a_step, a_stride, depth);
                next_b[i] = at_edge(b, b_line_at, from + b_k + i * b_step, b_stride, depth);
            }
        }
        a_at += STEP * a_stride;
        b_at += STEP * b_stride;
        if from > 0 {
            for k in 0..STEP {
                let mut of_row = [T::ZERO; BLOCK];
                let mut of_column = [T::ZERO; BLOCK];
                for i in 0..BLOCK {
                    of_row[i] = of_a[k * (TILE + W) + y + i % W + i / W * (ACROSS * W)];
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
        for i in 0..EACH {
            of_a.set((a_k + i * a_step) * (TILE + W) + a_line, next_a[i]);
            of_b.set((b_k + i * b_step) * (TILE + W) + b_line, next_b[i]);
        }
        barrier();
        from += STEP;
    }
    store_sums::<T, W>(sums, (row + y, column + x), (rows, columns), c);
}

/// Returns the kernel for factors of 4-byte or 8-byte floats. A flag is true if its factor is contiguous
/// along `k`.
pub(super) fn kernel_of(bytes: usize, [a, b]: [bool; 2]) -> &'static LibraryKernel {
    static ALL: [OnceLock<LibraryKernel>; 8] = [const { OnceLock::new() }; 8];
    let number = usize::from(a) + 2 * usize::from(b) + if bytes == 8 { 4 } else { 0 };
    let kernel = || match (bytes, a, b) {
        (8, false, false) => LibraryKernel::of::<multiply_tiles<f64, false, false, 2>>(),
        (8, true, false) => LibraryKernel::of::<multiply_tiles<f64, true, false, 2>>(),
        (8, false, true) => LibraryKernel::of::<multiply_tiles<f64, false, true, 2>>(),
        (8, true, true) => LibraryKernel::of::<multiply_tiles<f64, true, true, 2>>(),
        (_, false, false) => LibraryKernel::of::<multiply_tiles<f32, false, false, 4>>(),
        (_, true, false) => LibraryKernel::of::<multiply_tiles<f32, true, false, 4>>(),
        (_, false, true) => LibraryKernel::of::<multiply_tiles<f32, false, true, 4>>(),
        (_, true, true) => LibraryKernel::of::<multiply_tiles<f32, true, true, 4>>(),
    };
    // The sums of `f64` need the registers of a whole multiprocessor.
    let tuned = || if bytes == 8 { kernel() } else { kernel().with_resident_groups(2) };
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
        let items = (rows.div_ceil(TILE) * columns.div_ceil(TILE) * ITEMS) as u64;
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
