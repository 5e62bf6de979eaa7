//! Plan of a kernel launch: selects the variant of the kernel, and divides the work-items among threads.

use backend_api::{Error, ErrorKind, Launch, LaunchView, Result};

use super::codegen::warps::WARP;
use super::codegen::{KernelKey, ViewLayout};
use super::private_heap;
use super::traits::LaunchTraits;

/// A checked launch, ready to submit.
#[derive(Debug)]
pub(crate) struct Planned {
    pub shape: KernelKey,
    /// Start addresses of the views: all memory ranges of one view, then of the next.
    pub(super) bases: Vec<u64>,
    /// Number of leading work-items that each have a thread of their own. The threads after them each process
    /// several work-items.
    pub(super) head: u64,
    /// Number of blocks for a row of positions, if it is known and a whole number.
    pub(super) pitch: u64,
    /// Bytes of private heap for each thread, if the kernel allocates any: less than 4 GiB.
    pub(super) slab_bytes: Option<u64>,
}

impl Planned {
    /// Plans a launch; `bases` has the start addresses of its views.
    ///
    /// # Errors
    /// `Unsupported` for kernels that this backend cannot run, `OutOfMemory` for more memory than any GPU
    /// has.
    pub(super) fn new(
        operation: &'static str,
        launch: &Launch<'_>,
        traits: &LaunchTraits,
        bases: Vec<u64>,
    ) -> Result<Self> {
        let (body, mut next) = (launch.kernel.body(), 0);
        let view = |(number, view): (usize, &LaunchView<'_>)| {
            let count = view.bases().len();
            let bases = &bases[next..next + count];
            next += count;
            let starts = bases.iter().fold(view.stride() | 16, |all, base| all | base);
            // A view in one memory range has contiguous pages, so their length does not matter.
            let page_len = if count == 1 { 1 } else { view.page_len() };
            let access = body.views[number].access;
            let is_inside = traits.views[number].is_inside(access, view.count(), launch.items);
            let align = 1 << starts.trailing_zeros();
            ViewLayout { stride: view.stride(), align, page_len, bases: count, is_inside, ahead: 0 }
        };
        let views = launch.views.iter().enumerate().map(view).collect();
        let of_index = |number: u64| if traits.needs_index { number } else { 1 };
        let mut shape = KernelKey {
            kernel: launch.kernel.clone(),
            views,
            page_len: of_index(launch.geometry.page_len),
            channels: of_index(launch.geometry.channels),
            has_budget: launch.budget.is_some(),
            gives_tables: traits.gives_tables,
            lanes: 1,
            is_around: false,
        };
        shape.check(operation)?;
        let around = traits.around.as_ref().filter(|_| shape.channels == 1);
        let head =
            if traits.is_plain || around.is_some() { side_by_side(&mut shape, traits, &bases) } else { 0 };
        shape.is_around = around.is_some() && shape.lanes > 1;
        let pitch = around.and_then(|around| around.pitch).filter(|_| shape.is_around);
        let row = u64::from(WARP * shape.lanes);
        let pitch = pitch.map_or(0, |number| launch.params[usize::from(number)]);
        let pitch = if pitch.is_multiple_of(row) { pitch / row } else { 0 };
        let slab_bytes = launch.kernel.needs().private_heap.then(|| {
            // A launch with a budget (maximum number of iterations) can end a loop early. Later code may then
            // read registers that no code wrote, so the analysis `most_taken` would be wrong.
            let is_plain = launch.budget.is_none() || !body.meets();
            let most = is_plain.then(|| private_heap::most_taken(body, launch.params)).flatten();
            most.map_or(launch.private_heap_bytes, |most| most.min(launch.private_heap_bytes))
        });
        if let Some(bytes) = slab_bytes.filter(|bytes| *bytes > u32::MAX.into()) {
            let detail = format!(
                "a work-item needs up to {bytes} bytes of private memory, but at most 4 GiB are \
                                  supported"
            );
            return Err(Error::new(ErrorKind::OutOfMemory, operation).with_detail(detail).with_bytes(bytes));
        }
        Ok(Self { shape, bases, head: head.min(launch.items), pitch, slab_bytes })
    }
}

/// Chooses the number of items that a thread processes at once: 16 bytes of the longest elements, if the
/// items' elements are contiguous. Returns the first item at which vectors can start. Vectors are as long as
/// possible, in particular for stores.
fn side_by_side(shape: &mut KernelKey, traits: &LaunchTraits, bases: &[u64]) -> u64 {
    let around =
        |view: usize| traits.around.iter().flat_map(|around| &around.runs).find(|run| run.view == view);
    let is_dense = |view: usize| {
        let (shape, own) = (&shape.views[view], traits.views[view].own.flatten());
        let run = around(view);
        let of = run.map(|run| run.of).or(own);
        let is_dense = of.is_none_or(|of| u64::from(of.bytes()) == shape.stride);
        is_dense && shape.bases == 1 && (shape.is_inside || run.is_some())
    };
    let own = |number: &usize| traits.views[*number].own.is_some();
    let views: Vec<usize> = (0..shape.views.len()).filter(own).collect();
    let reached = (0..shape.views.len()).filter(|view| own(view) || around(*view).is_some());
    let longest = reached.map(|view| shape.views[view].stride).max();
    let Some(longest) = longest.filter(|_| (0..shape.views.len()).all(is_dense)) else {
        return 0;
    };
    let ahead = |lanes: u64, head: u64, view: usize| {
        let stride = shape.views[view].stride;
        1_u64 << ((bases[view] + head * stride) | (stride * lanes) | 16).trailing_zeros()
    };
    let body = shape.kernel.body();
    let weight = |view: usize| if body.views[view].access.is_written() { 4 } else { 1 };
    let best = |lanes: u64| {
        let score =
            |head: u64| views.iter().map(|view| weight(*view) * ahead(lanes, head, *view)).sum::<u64>();
        (0..lanes).rev().max_by_key(|head| score(*head)).unwrap_or(0)
    };
    let mut lanes = 16 / longest;
    let mut head = best(lanes);
    if longest < 4 && views.iter().any(|view| ahead(lanes, head, *view) < 4) {
        // The views' alignment does not permit 4-byte accesses, so each thread would access its elements one
        // by one. Give each thread fewer work-items.
        lanes = 4 / longest;
        head = best(lanes);
    }
    let found: Vec<u64> = views.iter().map(|view| ahead(lanes, head, *view)).collect();
    views.into_iter().zip(found).for_each(|(view, ahead)| shape.views[view].ahead = ahead);
    shape.lanes = lanes as u32;
    head
}
