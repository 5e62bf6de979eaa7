//! Division of a box by page: computes the part of a box that each page stores.

use std::ops::Range;

use super::geometry::{LayoutGeometry, Tiling};
use super::shape::{self, PositionBox};

/// Consecutive elements along one axis, and their position along this axis in the program's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) place: usize,
}

/// Returns a box as one segment per axis, which fills memory from its beginning.
pub(crate) fn segments_of<const N: usize>(of: &PositionBox<N>) -> [Segment; N] {
    std::array::from_fn(|axis| {
        let (start, end) = (of.start[axis], of.end[axis]);
        Segment { start, len: end - start, place: 0 }
    })
}

/// The part of some boxes that one page stores, or a part of that; not empty.
#[derive(Clone, Debug)]
pub(super) struct PagePiece<const N: usize> {
    pub(super) page: usize,
    /// True if the boxes contain all elements of the page, ignoring padding.
    pub(super) whole: bool,
    pub(super) extent: [usize; N],
    /// The index in the page of the piece's first element.
    pub(super) at: usize,
    /// The index in the program's memory of the piece's first element.
    pub(super) place: usize,
}

/// Iterates over all pieces of the boxes that combine one segment per axis, ascending by page.
///
/// The axes are divided into cells: tiles or, in row-major arrays, blocks that are contiguous both in the
/// array and in the program's memory. The iterator returns all pieces of a cell together.
#[derive(Clone)]
pub(super) struct BoxPieces<'a, const N: usize> {
    geometry: &'a LayoutGeometry<N>,
    /// The segments of each axis; none is empty.
    segments: [&'a [Segment]; N],
    /// The distance between neighbours along each axis, in the program's memory.
    strides: [usize; N],
    /// Number of elements of a page, in row-major arrays.
    page_len: usize,
    cell: [usize; N],
    /// In row-major arrays, the first axis from which on a cell covers the array, and the first one from
    /// which on it covers the box.
    inner: usize,
    run_axis: usize,
    begin: [AxisPart; N],
    /// The first parts of the present cell along each axis, and the present parts; `None` at the end.
    next: Option<([AxisPart; N], [AxisPart; N])>,
    /// The rest of the present block, in row-major arrays.
    block: Option<RowBlock>,
}

/// The elements along one axis that are in one cell and in one segment.
#[derive(Clone, Copy, Default)]
struct AxisPart {
    segment: usize,
    cell: usize,
    start: usize,
    len: usize,
    place: usize,
}

/// Elements that are contiguous in a row-major array and in the program's memory.
#[derive(Clone)]
struct RowBlock {
    start: usize,
    end: usize,
    place: usize,
    /// The range of the array that contains the elements.
    run: Range<usize>,
}

impl<'a, const N: usize> BoxPieces<'a, N> {
    /// The segments must ascend, be inside of the shape, and be inside of the memory. An empty segment must
    /// be the only one of its axis; then there are no pieces.
    pub(super) fn new(
        geometry: &'a LayoutGeometry<N>,
        segments: [&'a [Segment]; N],
        strides: [usize; N],
        page_len: usize,
    ) -> Self {
        let shape = &geometry.shape;
        let has_one = |axis: usize, len: usize| matches!(segments[axis], [only] if only.len == len);
        let run_axis = (1..N).rev().find(|&axis| !has_one(axis, shape[axis])).unwrap_or(0);
        let (mut inner, mut dense) = (N - 1, shape[N - 1]);
        while inner > run_axis && (has_one(inner - 1, 1) || strides[inner - 1] == strides[N - 1] * dense) {
            inner -= 1;
            dense *= shape[inner];
        }
        let cell = match &geometry.tiling {
            Some(tiling) => tiling.tile,
            None => std::array::from_fn(|axis| if axis < inner { 1 } else { shape[axis] }),
        };
        let (begin, next, block) = ([AxisPart::default(); N], None, None);
        let mut pieces =
            Self { geometry, segments, strides, page_len, cell, inner, run_axis, begin, next, block };
        if segments.iter().all(|list| list.first().is_some_and(|first| first.len > 0)) {
            pieces.begin = std::array::from_fn(|axis| pieces.part(axis, 0, 0));
            pieces.next = Some((pieces.begin, pieces.begin));
        }
        pieces
    }

    #[inline]
    fn part(&self, axis: usize, number: usize, offset: usize) -> AxisPart {
        let (segment, extent) = (self.segments[axis][number], self.cell[axis]);
        let start = segment.start + offset;
        let (cell, in_cell) =
            if extent == 1 { (start, 1) } else { (start / extent, extent - start % extent) };
        let len = in_cell.min(segment.len - offset);
        AxisPart { segment: number, cell, start, len, place: segment.place + offset }
    }

    #[inline]
    fn after(&self, axis: usize, part: &AxisPart) -> Option<AxisPart> {
        let segment = &self.segments[axis][part.segment];
        let offset = part.start + part.len - segment.start;
        if offset < segment.len {
            Some(self.part(axis, part.segment, offset))
        } else if part.segment + 1 < self.segments[axis].len() {
            Some(self.part(axis, part.segment + 1, 0))
        } else {
            None
        }
    }

    /// Advances to the next combination of parts, in a cell and from cell to cell; the last axis is fastest.
    fn next_parts(&mut self) -> Option<[AxisPart; N]> {
        let (mut first, mut at) = self.next.take()?;
        let parts = at;
        let mut ahead = [None; N];
        for axis in (0..N).rev() {
            match self.after(axis, &parts[axis]) {
                Some(part) if part.cell == parts[axis].cell => {
                    at[axis] = part;
                    self.next = Some((first, at));
                    return Some(parts);
                }
                after => (ahead[axis], at[axis]) = (after, first[axis]),
            }
        }
        for axis in (0..N).rev() {
            if let Some(part) = ahead[axis] {
                first[axis] = part;
                self.next = Some((first, first));
                break;
            }
            first[axis] = self.begin[axis];
        }
        Some(parts)
    }

    /// Returns the index of a combination of parts in the program's memory.
    fn place(&self, parts: &[AxisPart; N]) -> usize {
        (0..N).map(|axis| parts[axis].place * self.strides[axis]).sum()
    }

    fn piece_of_tile(&mut self, tiling: &Tiling<N>) -> Option<PagePiece<N>> {
        let parts = self.next_parts()?;
        let at: [usize; N] = std::array::from_fn(|axis| parts[axis].start % tiling.tile[axis]);
        let stored = |axis: usize| self.geometry.shape[axis] - (parts[axis].start - at[axis]);
        Some(PagePiece {
            page: tiling.number_of(&parts.map(|part| part.cell)),
            whole: (0..N).all(|axis| parts[axis].len == tiling.tile[axis].min(stored(axis))),
            extent: parts.map(|part| part.len),
            at: shape::dot(&at, &self.geometry.strides),
            place: self.place(&parts),
        })
    }

    fn next_block(&mut self) -> Option<RowBlock> {
        let parts = self.next_parts()?;
        let (strides, inner, outer) = (&self.geometry.strides, self.inner, self.run_axis);
        let start = shape::dot(&parts.map(|part| part.start), strides);
        let in_run = |axis: usize| (parts[axis].start - self.segments[axis][0].start) * strides[axis];
        let run = start - (outer..N).map(in_run).sum::<usize>();
        let run = run..run + self.segments[outer][0].len * strides[outer];
        Some(RowBlock {
            start,
            end: start + parts[inner].len * strides[inner],
            place: self.place(&parts),
            run,
        })
    }

    fn piece_of_block(&mut self) -> Option<PagePiece<N>> {
        let RowBlock { start, end, place, run } = match self.block.take() {
            Some(block) => block,
            None => self.next_block()?,
        };
        let page = start / self.page_len;
        let first = page * self.page_len;
        let page_end = (first + self.page_len).min(self.geometry.stored_len());
        let count = (end - start).min(page_end - start);
        let mut extent = [1; N];
        extent[N - 1] = count;
        let whole = run.start <= first && page_end <= run.end;
        if start + count < end {
            self.block = Some(RowBlock { start: start + count, end, place: place + count, run });
        }
        Some(PagePiece { page, whole, extent, at: start - first, place })
    }
}

impl<const N: usize> Iterator for BoxPieces<'_, N> {
    type Item = PagePiece<N>;

    #[inline]
    fn next(&mut self) -> Option<PagePiece<N>> {
        match &self.geometry.tiling {
            Some(tiling) => self.piece_of_tile(tiling),
            None => self.piece_of_block(),
        }
    }
}
