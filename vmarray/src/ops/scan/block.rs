//! Prefix sums of one block on the host. The additions have the same order as in a GPU work-group, so float
//! results have the same bits.

use backend_api::kernel::{HostItems, Report};
use vmarray_kernel::k::add;
use vmarray_kernel::{KernelNumber, KernelScalar};

use super::number::PrefixSummed;

/// The number of elements in a block, and of work-items in the group that processes it.
pub(super) const BLOCK: usize = 1024;

/// Returns the offset of an element in its row. `before` elements precede the element with index 0. A row
/// length of 0 means that there are no rows.
pub(super) fn since_start(index: usize, before: usize, row: usize) -> usize {
    if row == 0 { index + before } else { (index + before) % row }
}

const LANES: usize = 32;

/// The sums of a block: prefix sums within groups of 32 elements, and prefix sums of the groups' totals.
pub(super) struct BlockSums<T> {
    within: [[T; LANES]; LANES],
    all: [T; LANES],
}

/// Replaces each value by its prefix sum, from the start of its row on.
#[inline(always)]
fn scan_lanes<T: KernelNumber>(values: &mut [T; LANES], distance: impl Fn(usize) -> usize) {
    for below in [1, 2, 4, 8, 16] {
        let old = *values;
        for lane in below..LANES {
            let sum = add(old[lane - below], old[lane]);
            values[lane] = if distance(lane) >= below { sum } else { old[lane] };
        }
    }
}

impl<T: KernelNumber> BlockSums<T> {
    pub fn new() -> Self {
        Self { within: [[T::ZERO; LANES]; LANES], all: [T::ZERO; LANES] }
    }

    /// Computes the prefix sums of elements that begin at index `skip` of the block. `first` is the offset of
    /// the first element in its row. `row` is the length of rows, or 0 without rows. Returns the sum of the
    /// last row's elements.
    pub fn scan(&mut self, elements: &[T], skip: usize, first: usize, row: usize) -> T {
        match (row, first) {
            (0, 1..) => self.scan_by(elements, skip, |_| usize::MAX),
            _ => self.scan_by(elements, skip, |i| since_start(first, i.saturating_sub(skip), row)),
        }
    }

    /// Writes the computed prefix sums to `elements`. In the row that began in an earlier block, adds
    /// `carried` (the sum of the earlier blocks).
    pub fn write(
        &self,
        elements: &mut [T],
        (skip, first, row): (usize, usize, usize),
        is_exclusive: bool,
        carried: T,
    ) {
        match (row, first) {
            (0, 1..) => self.write_by(elements, skip, is_exclusive, carried, |_| usize::MAX),
            _ => {
                let distance = |i: usize| since_start(first, i.saturating_sub(skip), row);
                self.write_by(elements, skip, is_exclusive, carried, distance);
            }
        }
    }

    #[inline(always)]
    fn scan_by(&mut self, elements: &[T], skip: usize, distance: impl Fn(usize) -> usize) -> T {
        for (number, lanes) in self.within.iter_mut().enumerate() {
            let place = |lane: usize| (number * LANES + lane).wrapping_sub(skip);
            let from = elements.get(place(0)..).unwrap_or_default();
            if from.len() >= LANES {
                lanes.copy_from_slice(&from[..LANES]);
            } else {
                *lanes = std::array::from_fn(|lane| elements.get(place(lane)).copied().unwrap_or(T::ZERO));
            }
            scan_lanes(lanes, |lane| distance(number * LANES + lane));
            self.all[number] = lanes[LANES - 1];
        }
        scan_lanes(&mut self.all, |number| distance(number * LANES + LANES - 1) / LANES);
        self.all[LANES - 1]
    }

    /// Returns the prefix sum of an element.
    #[inline(always)]
    fn value(&self, i: usize, is_exclusive: bool, carried: T, distance: usize) -> T {
        let (number, lane) = (i / LANES, i % LANES);
        let mut value = match is_exclusive {
            true if lane > 0 && distance > 0 => Some(self.within[number][lane - 1]),
            true => None,
            false => Some(self.within[number][lane]),
        };
        let with = |before: T, value: Option<T>| value.map_or(before, |value| add(before, value));
        if number > 0 && distance > lane {
            value = Some(with(self.all[number - 1], value));
        }
        if distance > i {
            value = Some(with(carried, value));
        }
        value.unwrap_or(T::ZERO)
    }

    #[inline(always)]
    fn write_by(
        &self,
        elements: &mut [T],
        skip: usize,
        is_exclusive: bool,
        carried: T,
        distance: impl Fn(usize) -> usize,
    ) {
        for (i, element) in (skip..).zip(elements) {
            *element = self.value(i, is_exclusive, carried, distance(i));
        }
    }
}

/// Parameters of a launch on the host, in the order of the kernel's parameters. The index of the first
/// work-item comes first.
struct BlockPlaces {
    first: u64,
    before: usize,
    row: usize,
}

impl BlockPlaces {
    fn of(items: &HostItems<'_>) -> Self {
        Self { first: items.param(0), before: items.param(1) as usize, row: items.param(2) as usize }
    }

    /// Calls a function for each block of some work-items, with its number, the number of elements before it,
    /// and the elements. If the function returns true, writes the elements back.
    fn each_block<T: PrefixSummed>(
        &self,
        items: &HostItems<'_>,
        view: usize,
        mut work: impl FnMut(u64, usize, &mut [T]) -> bool,
    ) -> Report {
        let (view, mut elements) = (items.view(view), [T::ZERO; BLOCK]);
        for first in items.items().step_by(BLOCK) {
            let index = (items.index(first) - self.first) as usize;
            let elements = &mut elements[..((items.items().end - first) as usize).min(BLOCK)];
            let is_read = view.read(first, size_of::<T>(), bytemuck::cast_slice_mut(elements));
            let is_changed = work((index / BLOCK) as u64, index + self.before, elements);
            let is_written = !is_changed || view.write(first, size_of::<T>(), bytemuck::cast_slice(elements));
            assert!(is_read && is_written, "a work-item could not read or write its block of elements");
        }
        Report::default()
    }
}

/// Host form of the kernel [`block_sums`](super::block_sums): processes a group at a time.
pub(super) fn block_sums_on_host<T: PrefixSummed>(items: &HostItems<'_>) -> Report {
    let (places, mut block) = (BlockPlaces::of(items), BlockSums::<T>::new());
    places.each_block::<T>(items, 0, |number, before, elements| {
        let total = [number, KernelScalar::to_value(block.scan(elements, 0, before, places.row))];
        let at = items.view(1).change(0, 0, |count: u64| count + 1).unwrap_or(u64::MAX);
        assert!(
            items.view(2).write(at, 16, bytemuck::bytes_of(&total)),
            "the memory must hold all prefix \
                sums"
        );
        false
    })
}

/// Host form of the kernel [`written`](super::written): processes a group at a time.
pub(super) fn written_on_host<T: PrefixSummed>(items: &HostItems<'_>) -> Report {
    let (places, is_exclusive, mut block) =
        (BlockPlaces::of(items), items.param(3) != 0, BlockSums::<T>::new());
    places.each_block::<T>(items, 1, |number, before, elements| {
        let carried = items.view(0).load(number, 0).unwrap_or(T::ZERO);
        block.scan(elements, 0, before, places.row);
        block.write(elements, (0, before, places.row), is_exclusive, carried);
        true
    })
}
