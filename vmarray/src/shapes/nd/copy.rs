//! Copies between boxes of an N-dimensional array and memory, each page visited once.

use std::marker::PhantomData;
use std::ops::Range;

use backend_api::Device;

use super::geometry::{Geometry, Tiling, run_axis};
use super::shape::{self, Bounds, Positions};
use super::visit::{BoxAhead, PinFor, Pinned};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::engine::pager::Stream;
use crate::ops::view::{INTERNAL, Store, StoreMut};

/// Memory that a box is copied to or from: an element of the box at `[i, j, …]` is
/// `i * strides[0] + j * strides[1] + …` behind the first.
pub(crate) struct BoxPlaces<'a, T, const N: usize> {
    first: *mut T,
    strides: [isize; N],
    marker: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element, const N: usize> BoxPlaces<'a, T, N> {
    /// Places for the box, row by row in a slice of its length.
    pub(crate) fn dense(extent: &[usize; N], slice: &'a mut [T]) -> Result<Self> {
        expect_len(extent, slice.len())?;
        Ok(Self::at(slice.as_mut_ptr(), shape::strides(extent).map(usize::cast_signed)))
    }

    /// Places in a slice that may have others between them.
    pub(crate) fn strided(extent: &[usize; N], strides: [usize; N], slice: &'a mut [T]) -> Result<Self> {
        shape::check_places(extent, &strides, slice.len())?;
        Ok(Self::at(slice.as_mut_ptr(), steps(extent, strides)))
    }

    fn at(first: *mut T, strides: [isize; N]) -> Self {
        Self { first, strides, marker: PhantomData }
    }

    /// Places that others have checked.
    ///
    /// # Safety
    /// For all elements of the boxes that this is used with, the places are valid for `'a`: to be written to
    /// and borrowed by nobody else, if boxes are read; to be read and written to by nobody, if they are
    /// written.
    pub(crate) unsafe fn from_raw(first: *mut T, strides: [isize; N]) -> Self {
        Self::at(first, strides)
    }
}

/// As [`BoxPlaces::dense`], for a slice that is only read.
pub(crate) struct FromPlaces<'a, T, const N: usize>(BoxPlaces<'a, T, N>);

impl<'a, T: Element, const N: usize> FromPlaces<'a, T, N> {
    pub(crate) fn dense(extent: &[usize; N], slice: &'a [T]) -> Result<Self> {
        expect_len(extent, slice.len())?;
        let strides = shape::strides(extent).map(usize::cast_signed);
        Ok(Self(BoxPlaces::at(slice.as_ptr().cast_mut(), strides)))
    }

    pub(crate) fn strided(extent: &[usize; N], strides: [usize; N], slice: &'a [T]) -> Result<Self> {
        shape::check_places(extent, &strides, slice.len())?;
        Ok(Self(BoxPlaces::at(slice.as_ptr().cast_mut(), steps(extent, strides))))
    }

    /// # Safety
    /// As [`BoxPlaces::from_raw`], for boxes that are written.
    #[cfg_attr(not(feature = "ndarray"), allow(dead_code, reason = "its one user"))]
    pub(crate) unsafe fn from_raw(first: *const T, strides: [isize; N]) -> Self {
        // SAFETY: passed on.
        Self(unsafe { BoxPlaces::from_raw(first.cast_mut(), strides) })
    }
}

/// Strides that were checked. Where there is no second element, any will do, also one that is too large.
fn steps<const N: usize>(extent: &[usize; N], strides: [usize; N]) -> [isize; N] {
    std::array::from_fn(|axis| if extent[axis] > 1 { strides[axis].cast_signed() } else { 0 })
}

fn expect_len<const N: usize>(extent: &[usize; N], got: usize) -> Result<()> {
    let expected = shape::volume(extent);
    if expected == got {
        Ok(())
    } else {
        Err(crate::ErrorKind::LengthMismatch { of: "the slice of the box", expected, got }.into())
    }
}

/// What a box and a page have in common, or a part of that.
struct PagePiece<const N: usize> {
    page: usize,
    /// Whether the box has all elements of the page, padding aside.
    whole: bool,
    extent: [usize; N],
    /// The first element, counted from that of the page.
    at: usize,
    /// The same in the memory outside.
    place: isize,
}

/// Copies a box out. The box lies in the shape.
pub(crate) fn read<S: Store, const N: usize>(
    store: &S,
    geometry: &Geometry<N>,
    of: &Bounds<N>,
    to: BoxPlaces<'_, S::Element, N>,
) -> Result<()> {
    let Some(array) = store.as_array() else { return read_rows(store, geometry, of, to) };
    let strides = geometry.strides.map(usize::cast_signed);
    let pages = geometry.pages(of, array.page_len());
    visit(
        array,
        geometry,
        of,
        &to.strides,
        pages,
        |_| PinFor::Read,
        |page, piece| {
            // SAFETY: the piece lies in the page, which nobody writes to while it is pinned, and in the
            // places, which are borrowed exclusively, as `dense` and `strided` have checked and `from_raw`'s
            // caller has promised.
            unsafe {
                let from = page.address().add(piece.at);
                copy_block(&piece.extent, from, &strides, to.first.offset(piece.place), &to.strides);
            }
        },
    )
}

/// Copies a box in. The box lies in the shape.
pub(crate) fn write<S: StoreMut, const N: usize>(
    store: &S,
    geometry: &Geometry<N>,
    of: &Bounds<N>,
    from: FromPlaces<'_, S::Element, N>,
) -> Result<()> {
    let from = from.0;
    let Some(array) = store.as_array() else { return write_rows(store, geometry, of, from) };
    let strides = geometry.strides.map(usize::cast_signed);
    change(array, geometry, of, &from.strides, |page, piece| {
        // SAFETY: as in `read`, the other way about; the page is this thread's alone.
        unsafe {
            let to = page.address().add(piece.at);
            copy_block(&piece.extent, from.first.offset(piece.place), &from.strides, to, &strides);
        }
    })
}

/// Writes one value to a box. The box lies in the shape.
pub(crate) fn fill<T: Element, D: Device, const N: usize>(
    array: &VirtualArray<T, D>,
    geometry: &Geometry<N>,
    of: &Bounds<N>,
    value: T,
) -> Result<()> {
    let strides = geometry.strides.map(usize::cast_signed);
    change(array, geometry, of, &[0; N], |page, piece| {
        // SAFETY: as in `write`; the value is its own place for all elements.
        unsafe { copy_block(&piece.extent, &value, &[0; N], page.address().add(piece.at), &strides) }
    })
}

/// The rows of a box of a store that holds them one after the other: the place and the position of each.
fn rows<const N: usize>(
    geometry: &Geometry<N>,
    of: &Bounds<N>,
) -> impl Iterator<Item = (usize, [usize; N])> + use<N> {
    let geometry = *geometry;
    let mut starts = of.clone();
    starts.end[N - 1] = starts.end[N - 1].min(starts.start[N - 1] + 1);
    Positions::new(starts).map(move |at| (geometry.index_of(&at), at))
}

fn read_rows<S: Store, const N: usize>(
    store: &S,
    geometry: &Geometry<N>,
    of: &Bounds<N>,
    to: BoxPlaces<'_, S::Element, N>,
) -> Result<()> {
    let mut row = zeroed_vec(of.end[N - 1] - of.start[N - 1])?;
    for (from, at) in rows(geometry, of) {
        store.read_at(from, &mut row, INTERNAL)?;
        let first = place(&at, of, &to.strides);
        for (number, value) in (0..).zip(&row) {
            // SAFETY: the row lies in the places, which are borrowed exclusively, as their makers have
            // checked.
            unsafe { to.first.offset(first + number * to.strides[N - 1]).write(*value) };
        }
    }
    Ok(())
}

fn write_rows<S: StoreMut, const N: usize>(
    store: &S,
    geometry: &Geometry<N>,
    of: &Bounds<N>,
    from: BoxPlaces<'_, S::Element, N>,
) -> Result<()> {
    let mut row = zeroed_vec(of.end[N - 1] - of.start[N - 1])?;
    for (to, at) in rows(geometry, of) {
        let first = place(&at, of, &from.strides);
        for (number, value) in (0..).zip(&mut row) {
            // SAFETY: the row lies in the places, which are borrowed, as their makers have checked.
            *value = unsafe { from.first.offset(first + number * from.strides[N - 1]).read() };
        }
        store.write_at(to, &row, INTERNAL)?;
    }
    Ok(())
}

fn change<T: Element, D: Device, const N: usize>(
    array: &VirtualArray<T, D>,
    geometry: &Geometry<N>,
    of: &Bounds<N>,
    strides: &[isize; N],
    mut run: impl FnMut(&Pinned<'_, T, D>, &PagePiece<N>),
) -> Result<()> {
    let hold = |piece: &PagePiece<N>| if piece.whole { PinFor::Overwrite } else { PinFor::Change };
    let pages = geometry.partial_pages(of, array.page_len(), array.len());
    visit(array, geometry, of, strides, pages, hold, |page, piece| {
        if piece.whole && shape::volume(&piece.extent) < page.len() && geometry.tiling.is_some() {
            // Padding reads as zeroes to the devices.
            // SAFETY: the page is this thread's alone.
            unsafe { page.address().write_bytes(0, page.len()) };
        }
        run(page, piece);
    })
}

/// Runs code on all pieces of a box, ascending by page, each page held once. The pages given are fetched
/// ahead.
fn visit<'a, T: Element, D: Device, const N: usize>(
    array: &'a VirtualArray<T, D>,
    geometry: &Geometry<N>,
    of: &Bounds<N>,
    strides: &[isize; N],
    fetched: impl Iterator<Item = Range<usize>>,
    hold: impl Fn(&PagePiece<N>) -> PinFor,
    mut run: impl FnMut(&Pinned<'a, T, D>, &PagePiece<N>),
) -> Result<()> {
    if shape::is_void(of) {
        return Ok(());
    }
    let mut fetched = fetched.peekable();
    let first = fetched.next();
    // A box of one page may be one of many that follow each other; others look ahead themselves.
    let is_single = first.as_ref().is_none_or(|pages| pages.len() == 1) && fetched.peek().is_none();
    let stream = if is_single { Stream::Follow } else { Stream::Ignore };
    let mut ahead = (!is_single).then(|| BoxAhead::new(array, first.into_iter().chain(fetched)));
    let mut pinned: Option<Pinned<'a, T, D>> = None;
    let take = |piece: PagePiece<N>| -> Result<()> {
        let page = match pinned.take() {
            Some(page) if page.page() == piece.page => page,
            before => {
                drop(before);
                let hold = hold(&piece);
                // What is overwritten whole is not fetched.
                if let Some(ahead) = ahead.as_mut().filter(|_| hold != PinFor::Overwrite) {
                    ahead.step();
                }
                Pinned::new(array, piece.page, hold, stream)?
            }
        };
        run(&page, &piece);
        pinned = Some(page);
        Ok(())
    };
    match &geometry.tiling {
        Some(tiling) => pieces_of_tiles(geometry, tiling, of, strides, take),
        None => pieces_of_rows(geometry, of, strides, array.page_len(), array.len(), take),
    }
}

fn pieces_of_tiles<const N: usize>(
    geometry: &Geometry<N>,
    tiling: &Tiling<N>,
    of: &Bounds<N>,
    strides: &[isize; N],
    mut take: impl FnMut(PagePiece<N>) -> Result<()>,
) -> Result<()> {
    let all = [0; N]..geometry.shape;
    for at in tiling.touched(of) {
        let tile = shape::intersection(&tiling.positions_of(at), &all);
        let part = shape::intersection(&tile, of);
        take(PagePiece {
            page: tiling.number_of(&at),
            whole: part == tile,
            extent: shape::extent(&part),
            at: (0..N).map(|axis| (part.start[axis] - tile.start[axis]) * geometry.strides[axis]).sum(),
            place: place(&part.start, of, strides),
        })?;
    }
    Ok(())
}

fn pieces_of_rows<const N: usize>(
    geometry: &Geometry<N>,
    of: &Bounds<N>,
    strides: &[isize; N],
    page_len: usize,
    len: usize,
    mut take: impl FnMut(PagePiece<N>) -> Result<()>,
) -> Result<()> {
    let extent = shape::extent(of);
    // Runs without gaps in the array, and those of them that have no gaps outside, either.
    let outer = run_axis(&geometry.shape, of);
    let inner = contiguous_axis(&extent, strides, outer);
    let (run_len, part_len) =
        (extent[outer] * geometry.strides[outer], extent[inner] * geometry.strides[inner]);
    let run_starts =
        of.start..std::array::from_fn(|axis| if axis < outer { of.end[axis] } else { of.start[axis] + 1 });
    for run_at in Positions::new(run_starts) {
        let run = geometry.index_of(&run_at);
        let run = run..run + run_len;
        let part_starts = run_at..std::array::from_fn(|axis| {
            if (outer..inner).contains(&axis) { of.end[axis] } else { run_at[axis] + 1 }
        });
        for part_at in Positions::new(part_starts) {
            let start = geometry.index_of(&part_at);
            let first_place = place(&part_at, of, strides);
            let mut done = 0;
            while done < part_len {
                let page = (start + done) / page_len;
                let of_page = page * page_len..((page + 1) * page_len).min(len);
                let count = (part_len - done).min(of_page.end - (start + done));
                let mut extent = [1; N];
                extent[N - 1] = count;
                take(PagePiece {
                    page,
                    whole: run.start <= of_page.start && of_page.end <= run.end,
                    extent,
                    at: start + done - of_page.start,
                    place: first_place + done.cast_signed() * strides[N - 1],
                })?;
                done += count;
            }
        }
    }
    Ok(())
}

/// Where an element of a box is in the memory outside.
fn place<const N: usize>(at: &[usize; N], of: &Bounds<N>, strides: &[isize; N]) -> isize {
    (0..N).map(|axis| (at[axis] - of.start[axis]).cast_signed() * strides[axis]).sum()
}

/// The first axis, not before `first`, from which on a box has no gaps, nor any other order than row by row,
/// in memory of these strides.
fn contiguous_axis<const N: usize>(extent: &[usize; N], strides: &[isize; N], first: usize) -> usize {
    let (mut axis, mut len) = (N - 1, extent[N - 1].cast_signed());
    while axis > first && (extent[axis - 1] == 1 || strides[axis - 1] == strides[N - 1] * len) {
        axis -= 1;
        len *= extent[axis].cast_signed();
    }
    axis
}

/// Copies a block of elements, row by row.
///
/// # Safety
/// The extents are not zero. For all positions in them the source can be read, the target can be written, and
/// nobody else writes to the one or touches the other.
pub(super) unsafe fn copy_block<T: Copy, const N: usize>(
    extent: &[usize; N],
    from: *const T,
    from_strides: &[isize; N],
    to: *mut T,
    to_strides: &[isize; N],
) {
    // Rows that touch on both sides are one.
    let axis = contiguous_axis(extent, from_strides, 0).max(contiguous_axis(extent, to_strides, 0));
    let len: usize = extent[axis..].iter().product();
    let (from_step, to_step) = (from_strides[N - 1], to_strides[N - 1]);
    let mut at = [0; N];
    let (mut from_at, mut to_at) = (0, 0);
    loop {
        // SAFETY: the row's positions are inside of the extents.
        unsafe {
            let (from, to) = (from.offset(from_at), to.offset(to_at));
            if from_step == 1 && to_step == 1 {
                to.copy_from_nonoverlapping(from, len);
            } else if from_step == 0 && to_step == 1 {
                std::slice::from_raw_parts_mut(to, len).fill(*from);
            } else {
                for i in 0..len.cast_signed() {
                    to.offset(i * to_step).write(*from.offset(i * from_step));
                }
            }
        }
        // The next row: outer axes count up, each that is through going back to its start.
        let mut outer = axis;
        loop {
            if outer == 0 {
                return;
            }
            outer -= 1;
            at[outer] += 1;
            // Axes of one element may have any strides: what they add is taken away again before it is used.
            from_at = from_at.wrapping_add(from_strides[outer]);
            to_at = to_at.wrapping_add(to_strides[outer]);
            if at[outer] < extent[outer] {
                break;
            }
            let count = extent[outer].cast_signed();
            from_at = from_at.wrapping_sub(from_strides[outer].wrapping_mul(count));
            to_at = to_at.wrapping_sub(to_strides[outer].wrapping_mul(count));
            at[outer] = 0;
        }
    }
}
