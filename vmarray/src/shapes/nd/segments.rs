//! Several boxes at once, each page visited once: the products of segments along each axis.

use std::ops::Range;

use backend_api::Device;

use super::Segment;
use super::copy::copy_block;
use super::geometry::{Geometry, Tiling};
use super::shape::{self, Positions};
use super::visit::{PinFor, Pinned};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::pager::Stream;

/// Copies what all combinations of one segment an axis have. See
/// [`Grid::read_segments`](super::Grid::read_segments).
pub(super) fn read<T: Element, D: Device, const N: usize>(
    array: &VirtualArray<T, D>,
    geometry: &Geometry<N>,
    mut segments: [Vec<Segment>; N],
    strides: &[usize; N],
    into: &mut [T],
) -> Result<()> {
    segments.iter_mut().for_each(|list| list.retain(|segment| segment.len > 0));
    if segments.iter().any(Vec::is_empty) {
        return Ok(());
    }
    check(geometry, &segments, strides, into.len())?;
    fetch(array, geometry, &segments);
    let mut reader = Reader {
        array,
        pinned: None,
        from_strides: geometry.strides.map(usize::cast_signed),
        to_strides: strides.map(usize::cast_signed),
        to: into.as_mut_ptr(),
    };
    match &geometry.tiling {
        Some(tiling) => read_tiles(geometry, tiling, &segments, strides, &mut reader),
        None => read_rows(geometry, &segments, strides, &mut reader),
    }
}

/// Checks that all segments lie in the shape and have places in the slice.
fn check<const N: usize>(
    geometry: &Geometry<N>,
    segments: &[Vec<Segment>; N],
    strides: &[usize; N],
    len: usize,
) -> Result<()> {
    let mut reach = [0; N];
    for (axis, list) in segments.iter().enumerate() {
        for segment in list {
            shape::check_range(axis, geometry.shape[axis], segment.start, segment.len)?;
            reach[axis] = reach[axis].max(segment.place.saturating_add(segment.len));
        }
    }
    shape::check_places(&reach, strides, len)
}

/// Starts to fetch the pages of all combinations, as far as they fit into a quarter of the cache.
fn fetch<T: Element, D: Device, const N: usize>(
    array: &VirtualArray<T, D>,
    geometry: &Geometry<N>,
    segments: &[Vec<Segment>; N],
) {
    let pager = array.pager();
    let mut room = pager.frames() / 4;
    for at in Positions::new([0; N]..std::array::from_fn(|axis| segments[axis].len())) {
        let one: [Segment; N] = std::array::from_fn(|axis| segments[axis][at[axis]]);
        let of = one.map(|s| s.start)..one.map(|s| s.start + s.len);
        for pages in geometry.pages(&of, array.page_len()) {
            if room < 2 {
                return;
            }
            let count = (pages.len() as u64).min(room);
            room -= count;
            let start = pages.start as u64;
            if let Err(error) = pager.prefetch(start..start + count) {
                crate::base::trace::read_ahead_failed(&error);
                return;
            }
        }
    }
}

struct Reader<'a, T: Element, D: Device, const N: usize> {
    array: &'a VirtualArray<T, D>,
    pinned: Option<Pinned<'a, T, D>>,
    from_strides: [isize; N],
    to_strides: [isize; N],
    to: *mut T,
}

impl<T: Element, D: Device, const N: usize> Reader<'_, T, D, N> {
    /// Copies a block that lies in one page.
    ///
    /// # Safety
    /// The block lies in the page and, from `place` on, in the slice; the extents are not zero.
    unsafe fn copy(&mut self, page: usize, at: usize, extent: &[usize; N], place: usize) -> Result<()> {
        if self.pinned.as_ref().is_none_or(|pinned| pinned.page() != page) {
            self.pinned = None;
            self.pinned = Some(Pinned::new(self.array, page, PinFor::Read, Stream::Ignore)?);
        }
        if let Some(pinned) = &self.pinned {
            // SAFETY: promised by the caller; nobody writes to the page while it is pinned, and the slice is
            // borrowed.
            unsafe {
                let from = pinned.address().add(at);
                copy_block(extent, from, &self.from_strides, self.to.add(place), &self.to_strides);
            }
        }
        Ok(())
    }
}

/// The parts of an axis' segments that lie in one tile: positions along the axis, and places.
struct AxisCut {
    tile: usize,
    parts: Vec<(Range<usize>, usize)>,
}

/// Cuts the segments of an axis at the borders of tiles.
fn cut(segments: &[Segment], tile: usize) -> Vec<AxisCut> {
    let mut cuts: Vec<AxisCut> = Vec::new();
    for segment in segments {
        let (mut start, end) = (segment.start, segment.start + segment.len);
        while start < end {
            let number = start / tile;
            let part = start..end.min((number + 1).saturating_mul(tile));
            let place = segment.place + (start - segment.start);
            start = part.end;
            match cuts.last_mut() {
                Some(last) if last.tile == number => last.parts.push((part, place)),
                _ => cuts.push(AxisCut { tile: number, parts: vec![(part, place)] }),
            }
        }
    }
    cuts
}

fn read_tiles<T: Element, D: Device, const N: usize>(
    geometry: &Geometry<N>,
    tiling: &Tiling<N>,
    segments: &[Vec<Segment>; N],
    strides: &[usize; N],
    reader: &mut Reader<'_, T, D, N>,
) -> Result<()> {
    let cuts: [Vec<AxisCut>; N] = std::array::from_fn(|axis| cut(&segments[axis], tiling.tile[axis]));
    for tile in Positions::new([0; N]..std::array::from_fn(|axis| cuts[axis].len())) {
        let tile: [&AxisCut; N] = std::array::from_fn(|axis| &cuts[axis][tile[axis]]);
        let page = tiling.number_of(&tile.map(|cut| cut.tile));
        for part in Positions::new([0; N]..tile.map(|cut| cut.parts.len())) {
            let (mut at, mut place, mut extent) = (0, 0, [0; N]);
            for axis in 0..N {
                let (range, to) = &tile[axis].parts[part[axis]];
                extent[axis] = range.len();
                at += range.start % tiling.tile[axis] * geometry.strides[axis];
                place += to * strides[axis];
            }
            // SAFETY: the parts were cut at the tile's borders; `check` has found room for all places.
            unsafe { reader.copy(page, at, &extent, place)? };
        }
    }
    Ok(())
}

fn read_rows<T: Element, D: Device, const N: usize>(
    geometry: &Geometry<N>,
    segments: &[Vec<Segment>; N],
    strides: &[usize; N],
    reader: &mut Reader<'_, T, D, N>,
) -> Result<()> {
    let page_len = reader.array.page_len();
    // Rows one by one, ascending, and the last axis' segments of each.
    let lines: [Vec<(usize, usize)>; N] = std::array::from_fn(|axis| {
        let each = |s: &Segment| {
            let (start, place) = (s.start, s.place);
            (0..s.len).map(move |i| (start + i, place + i))
        };
        if axis + 1 < N { segments[axis].iter().flat_map(each).collect() } else { vec![(0, 0)] }
    });
    for line in Positions::new([0; N]..std::array::from_fn(|axis| lines[axis].len())) {
        let (mut row, mut row_place) = (0, 0);
        for axis in 0..N {
            let (at, place) = lines[axis][line[axis]];
            row += at * geometry.strides[axis];
            row_place += place * strides[axis];
        }
        for segment in &segments[N - 1] {
            let mut done = 0;
            while done < segment.len {
                let index = row + segment.start + done;
                let (page, at) = (index / page_len, index % page_len);
                let mut extent = [1; N];
                extent[N - 1] = (segment.len - done).min(page_len - at);
                let place = row_place + (segment.place + done) * strides[N - 1];
                // SAFETY: the row's part ends with the page at the latest; `check` has found room for all
                // places.
                unsafe { reader.copy(page, at, &extent, place)? };
                done += extent[N - 1];
            }
        }
    }
    Ok(())
}
