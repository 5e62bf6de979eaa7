//! Helpers of tests of N-dimensional arrays: positions, boxes, and small arrays.

use std::ops::Range;
use std::sync::Arc;
use vmarray::prelude::*;

use vmarray::{AnyDevice, Element, EvictionPolicy, NdArray, Placement, nd::NdLayout};

use super::{Numbers, devices, uneven_devices};

/// Returns the position of a number in row-major order.
pub fn position<const N: usize>(mut number: usize, extent: [usize; N]) -> [usize; N] {
    let mut at = [0; N];
    for axis in (0..N).rev() {
        at[axis] = number % extent[axis];
        number /= extent[axis];
    }
    at
}

/// Returns the number of a position in row-major order.
pub fn number<const N: usize>(shape: [usize; N], at: [usize; N]) -> usize {
    (0..N).fold(0, |index, axis| index * shape[axis] + at[axis])
}

/// The positions of a box in row-major order.
pub fn positions<const N: usize>(of: &Range<[usize; N]>) -> Vec<[usize; N]> {
    let mut all = vec![[0; N]];
    for axis in 0..N {
        all = all
            .into_iter()
            .flat_map(|at| {
                (of.start[axis]..of.end[axis]).map(move |i| {
                    let mut at = at;
                    at[axis] = i;
                    at
                })
            })
            .collect();
    }
    all
}

pub fn is_inside<const N: usize>(of: &Range<[usize; N]>, at: &[usize; N]) -> bool {
    (0..N).all(|axis| (of.start[axis]..of.end[axis]).contains(&at[axis]))
}

pub fn random_box<const N: usize>(random: &mut Numbers, shape: [usize; N]) -> Range<[usize; N]> {
    let ends = shape.map(|extent| {
        let (a, b) = (random.below(extent + 1), random.below(extent + 1));
        // Choose whole axes often, because they are a common case, and are copied at once.
        if random.below(3) == 0 { (0, extent) } else { (a.min(b), a.max(b)) }
    });
    ends.map(|(start, _)| start)..ends.map(|(_, end)| end)
}

pub fn build<T: Element, const N: usize>(
    shape: [usize; N],
    layout: NdLayout<N>,
    page_len: usize,
    frames: usize,
) -> NdArray<T, N> {
    build_on((devices(1), Placement::Equal), shape, layout, page_len, frames)
}

fn build_on<T: Element, const N: usize>(
    (devices, placement): (Vec<Arc<AnyDevice>>, Placement),
    shape: [usize; N],
    layout: NdLayout<N>,
    page_len: usize,
    frames: usize,
) -> NdArray<T, N> {
    NdArray::<T, N>::builder(shape)
        .devices(devices)
        .layout(layout)
        .elements(|elements| elements.placement(placement).page_len(page_len).frames_per_channel(frames))
        .build()
        .expect("a small array")
}

/// An array of any shape, sometimes empty, and of any layout, with a page length up to 20. `most` contains
/// the longest extents for one to four dimensions, `frames` is the largest cache.
pub fn random_array<T: Element, const N: usize>(
    random: &mut Numbers,
    most: [usize; 4],
    frames: usize,
) -> NdArray<T, N> {
    let shape: [usize; N] =
        std::array::from_fn(|_| usize::from(random.below(20) > 0) * (1 + random.below(most[N - 1])));
    let layout = match random.below(2) {
        0 => NdLayout::RowMajor,
        _ => NdLayout::Tiled(std::array::from_fn(|_| 1 + random.below(4))),
    };
    let (page_len, frames) = (1 + random.below(20), 1 + random.below(frames));
    build_on(uneven_devices(random), shape, layout, page_len, frames)
}

pub fn assert_padding_is_zero<T: Element + PartialEq, const N: usize>(array: &NdArray<T, N>) {
    let elements = array.elements();
    let mut padding = (0..elements.len()).filter(|at| array.position_of(*at).is_none());
    assert!(padding.all(|at| elements.get(at).unwrap() == <T as bytemuck::Zeroable>::zeroed()));
}

/// An image of 64 by 64 numbers, in tiles or rows, with an empty cache.
pub fn image(tile: Option<[usize; 2]>, frames: usize) -> NdArray<u32, 2> {
    let builder = NdArray::<u32, 2>::builder([64, 64]).devices(devices(1));
    let builder = match tile {
        Some(tile) => builder.tile(tile),
        None => builder,
    };
    let builder = builder.elements(|elements| {
        elements
            .page_len(64)
            .frames_per_channel(frames)
            .eviction(EvictionPolicy::Lru)
            .read_ahead(false)
            .count_hits(true)
    });
    let image = builder.build().unwrap();
    let values: Vec<u32> = (0..64 * 64).collect();
    image.write_box(.., &values).unwrap();
    image.elements().evict(..).unwrap();
    image.elements().reset_stats();
    image
}

/// Numbers of visited and of fetched pages of 64 elements since the last call. Empties the cache.
pub fn visits(image: &NdArray<u32, 2>) -> (u64, u64) {
    let stats = image.elements().stats();
    let total = stats.total();
    image.elements().evict(..).unwrap();
    image.elements().reset_stats();
    (stats.hits.unwrap() + total.misses, total.bytes_from_device / 256)
}
