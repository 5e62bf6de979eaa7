//! Copies between a box of an N-dimensional array and memory. Each page is visited once.

use std::iter::Peekable;

use backend_api::Device;
use bytemuck::{cast_slice, cast_slice_mut};

use super::geometry::LayoutGeometry;
use super::pieces::{BoxPieces, PagePiece, Segment, segments_of};
use super::shape::{self, PositionBox, Positions};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::pager::{ExclusiveHold, Fetch, Stream};
use crate::ops::view::{INTERNAL, Store, StoreMut};

/// Prefetch distance of a copy, in pages per channel.
const LOOKAHEAD: usize = 8;

/// Reads the elements that combine one segment per axis into memory with these strides. Along the last axis
/// that has several elements, they are contiguous in memory.
///
/// The segments must satisfy the conditions of [`BoxPieces::new`].
pub(super) fn read<S: Store, const N: usize>(
    store: &S,
    geometry: &LayoutGeometry<N>,
    segments: [&[Segment]; N],
    strides: [usize; N],
    into: &mut [S::Element],
) -> Result<()> {
    let Some(array) = store.as_array() else {
        let mut pieces = BoxPieces::new(geometry, segments, strides, usize::MAX);
        return pieces.try_for_each(|piece| {
            store.read_at(piece.at, &mut into[piece.place..][..piece.extent[N - 1]], INTERNAL)
        });
    };
    let pieces = BoxPieces::new(geometry, segments, strides, array.page_len());
    visit(
        array,
        &pieces,
        |_| true,
        |piece, stream| array.pager().hold_shared(piece.page as u64, stream),
        |page, piece| {
            let from: &[S::Element] = cast_slice(page.bytes());
            copy_block(&piece.extent, (from, piece.at, &geometry.strides), (into, piece.place, &strides));
        },
    )
}

/// Writes a box, which is inside of the shape, from memory with these strides.
pub(super) fn write<S: StoreMut, const N: usize>(
    store: &S,
    geometry: &LayoutGeometry<N>,
    of: &PositionBox<N>,
    strides: [usize; N],
    from: &[S::Element],
) -> Result<()> {
    let segments = segments_of(of);
    let segments = segments.each_ref().map(std::slice::from_ref);
    let Some(array) = store.as_array() else {
        let mut pieces = BoxPieces::new(geometry, segments, strides, usize::MAX);
        return pieces.try_for_each(|piece| {
            store.write_at(piece.at, &from[piece.place..][..piece.extent[N - 1]], INTERNAL)
        });
    };
    let pieces = BoxPieces::new(geometry, segments, strides, array.page_len());
    change(array, geometry, &pieces, |to, piece| {
        copy_block(&piece.extent, (from, piece.place, &strides), (to, piece.at, &geometry.strides));
    })
}

/// Writes one value to a box, which is inside of the shape.
pub(super) fn fill<T: Element, D: Device, const N: usize>(
    array: &VirtualArray<T, D>,
    geometry: &LayoutGeometry<N>,
    of: &PositionBox<N>,
    value: T,
) -> Result<()> {
    let segments = segments_of(of);
    let pieces = BoxPieces::new(
        geometry,
        segments.each_ref().map(std::slice::from_ref),
        geometry.strides,
        array.page_len(),
    );
    change(array, geometry, &pieces, |to, piece| {
        let (axis, len) = rows(&piece.extent, &geometry.strides, &geometry.strides);
        for at in row_starts(&piece.extent, axis) {
            to[piece.at + shape::dot(&at, &geometry.strides)..][..len].fill(value);
        }
    })
}

/// Runs a function on the elements of the page of each piece.
fn change<T: Element, D: Device, const N: usize>(
    array: &VirtualArray<T, D>,
    geometry: &LayoutGeometry<N>,
    pieces: &BoxPieces<'_, N>,
    mut run: impl FnMut(&mut [T], &PagePiece<N>),
) -> Result<()> {
    let hold = |piece: &PagePiece<N>, stream| {
        let fetch = if piece.whole { Fetch::Overwrite } else { Fetch::Contents };
        array.pager().hold_exclusive(piece.page as u64, fetch, stream)
    };
    // Do not fetch pages that the call overwrites entirely.
    visit(
        array,
        pieces,
        |piece| !piece.whole,
        hold,
        |page: &mut ExclusiveHold<'_>, piece| {
            if piece.whole && geometry.tiling.is_some_and(|tiling| shape::volume(&piece.extent) < tiling.len)
            {
                // Clear the whole page first: padding (beyond the array's edges) must read as zeroes.
                page.bytes().fill(0);
            }
            run(cast_slice_mut(page.bytes()), piece);
        },
    )
}

/// Runs a function on all pieces; holds each page once. Prefetches pages if `is_fetched` returns true.
fn visit<T: Element, D: Device, H, const N: usize>(
    array: &VirtualArray<T, D>,
    pieces: &BoxPieces<'_, N>,
    is_fetched: impl Fn(&PagePiece<N>) -> bool,
    mut hold: impl FnMut(&PagePiece<N>, Stream) -> Result<H>,
    mut run: impl FnMut(&mut H, &PagePiece<N>),
) -> Result<()> {
    let mut last = None;
    let fetched = pieces.clone().filter(&is_fetched).map(|piece| piece.page);
    let mut fetched = fetched.filter(move |&page| last.replace(page) != Some(page));
    // Report a box in a single page to read-ahead, because the program may read a sequence of boxes. For a
    // box of several pages, this function prefetches the pages itself.
    let first = [fetched.next(), fetched.next()];
    let is_single = first[1].is_none();
    let stream = if is_single { Stream::Follow } else { Stream::Ignore };
    let mut ahead = (!is_single).then(|| BoxAhead::new(array, first.into_iter().flatten().chain(fetched)));
    let mut held: Option<(usize, H)> = None;
    for piece in pieces.clone() {
        let mut page = match held.take() {
            Some((page, hold)) if page == piece.page => hold,
            before => {
                drop(before);
                if let Some(ahead) = ahead.as_mut().filter(|_| is_fetched(&piece)) {
                    ahead.step();
                }
                hold(&piece, stream)?
            }
        };
        run(&mut page, &piece);
        held = Some((piece.page, page));
    }
    Ok(())
}

/// Prefetch of pages that a copy uses in order, in batches.
struct BoxAhead<'a, T: Element, D: Device, I: Iterator<Item = usize>> {
    array: &'a VirtualArray<T, D>,
    /// Pages whose prefetch has not started.
    rest: Peekable<I>,
    /// Number of pages whose prefetch has started, and that the copy has not used.
    pending: usize,
    /// The limit of `pending`; below two, nothing is prefetched.
    window: usize,
}

impl<'a, T: Element, D: Device, I: Iterator<Item = usize>> BoxAhead<'a, T, D, I> {
    fn new(array: &'a VirtualArray<T, D>, pages: I) -> Self {
        let pager = array.pager();
        let quarter = usize::try_from(pager.frames() / 4).unwrap_or(usize::MAX);
        let window = (LOOKAHEAD * pager.channels().len()).min(quarter);
        Self { array, rest: pages.peekable(), pending: 0, window }
    }

    /// Advances by one page; call this before the use of each page.
    fn step(&mut self) {
        if self.window < 2 {
            return;
        }
        if self.pending <= self.window / 2 {
            self.fetch();
        }
        self.pending = self.pending.saturating_sub(1);
    }

    fn fetch(&mut self) {
        while self.pending < self.window
            && let Some(first) = self.rest.next()
        {
            let mut end = first + 1;
            let most = first + self.window - self.pending;
            while end < most && self.rest.next_if_eq(&end).is_some() {
                end += 1;
            }
            self.pending += end - first;
            if let Err(error) = self.array.pager().prefetch(first as u64..end as u64) {
                crate::base::trace::read_ahead_failed(&error);
            }
        }
    }
}

/// A slice of elements, the index of its first relevant one, and the strides of a block.
type Strided<'s, E, const N: usize> = (E, usize, &'s [usize; N]);

/// Copies a block of elements, row by row. Elements along the last axis that has several are contiguous.
fn copy_block<T: Copy, const N: usize>(
    extent: &[usize; N],
    (from, from_at, from_strides): Strided<'_, &[T], N>,
    (to, to_at, to_strides): Strided<'_, &mut [T], N>,
) {
    let (axis, len) = rows(extent, from_strides, to_strides);
    for at in row_starts(extent, axis) {
        let (first, to_first) =
            (from_at + shape::dot(&at, from_strides), to_at + shape::dot(&at, to_strides));
        // Copy a single element directly, because a call of `memcpy` costs more.
        if len == 1 {
            to[to_first] = from[first];
        } else {
            to[to_first..][..len].copy_from_slice(&from[first..][..len]);
        }
    }
}

/// Returns the first axis from which on a block is contiguous on both sides, and the length of such a row.
fn rows<const N: usize>(extent: &[usize; N], a: &[usize; N], b: &[usize; N]) -> (usize, usize) {
    let (mut axis, mut len) = (N - 1, extent[N - 1]);
    while axis > 0 && (extent[axis - 1] == 1 || a[axis - 1] == len && b[axis - 1] == len) {
        axis -= 1;
        len *= extent[axis];
    }
    (axis, len)
}

/// Returns the positions in a block at which its contiguous rows begin.
fn row_starts<const N: usize>(extent: &[usize; N], axis: usize) -> Positions<N> {
    Positions::new([0; N]..std::array::from_fn(|at| if at < axis { extent[at] } else { 1 }))
}
