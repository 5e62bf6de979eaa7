//! Windows that extend beyond the edges of a view: finds the elements to read, and completes the window in
//! memory by the boundary mode.

use super::modes::{Boundary, BoundaryPlace, is_inside};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::shapes::nd::{Positions, Segment, position_outside, strides};

/// The reads and copies that complete a window along one axis.
pub(super) struct Axis<T> {
    /// The segments of elements to read, ascending; each element once.
    pub(super) read: Vec<Segment>,
    /// The copies within the window: from, to, count. No destination of a copy is the source of another.
    copies: Vec<(usize, usize, usize)>,
    /// Positions in the window that get a value of the mode.
    values: Vec<(usize, T)>,
}

impl<T: Element> Axis<T> {
    /// Maps all indices of a window by the mode. The window begins at `origin`; its indices do not overflow.
    pub(super) fn new<const N: usize>(
        mode: &impl Boundary<T, N>,
        axis: usize,
        origin: isize,
        window: usize,
        extent: usize,
    ) -> Result<Self> {
        let index = |at: usize| origin + at.cast_signed();
        // The part of the window (box to read, maybe beyond the edges) that is inside of the view.
        let first = left_of(origin).min(window);
        let inside = match extent.cast_signed().checked_sub(origin) {
            Some(end) => first..end.clamp(first.cast_signed(), window.cast_signed()).cast_unsigned(),
            None => first..window,
        };
        let mut read = Vec::new();
        if !inside.is_empty() {
            let start = index(inside.start).cast_unsigned();
            read.push(Segment { start, len: inside.len(), place: inside.start });
        }
        let (mut others, mut values) = (Vec::new(), Vec::new());
        for at in (0..inside.start).chain(inside.end..window) {
            match mode.place(axis, index(at), extent) {
                BoundaryPlace::At(element) if element < extent => others.push((element, at)),
                BoundaryPlace::At(_) | BoundaryPlace::Outside => {
                    return Err(position_outside(axis, index(at) as i128, extent));
                }
                BoundaryPlace::Value(value) => values.push((at, value)),
            }
        }
        // Read an element that occurs only beyond the view's edges once, to its first place in the window.
        let shown = |element: usize| {
            let at = element.cast_signed().checked_sub(origin)?;
            inside.contains(&at.cast_unsigned()).then(|| at.cast_unsigned())
        };
        let mut absent: Vec<_> = others.iter().copied().filter(|other| shown(other.0).is_none()).collect();
        absent.sort_unstable();
        absent.dedup_by_key(|(element, _)| *element);
        read.extend(absent.iter().map(|(start, place)| Segment { start: *start, len: 1, place: *place }));
        read.sort_unstable_by_key(|segment| segment.start);
        let mut copies = Vec::new();
        for (element, to) in others {
            let from = shown(element).or_else(|| {
                let known = absent.binary_search_by_key(&element, |(element, _)| *element).ok()?;
                Some(absent[known].1)
            });
            if let Some(from) = from.filter(|from| *from != to) {
                copies.push((from, to, 1));
            }
        }
        copies.sort_unstable_by_key(|(_, to, _)| *to);
        copies.dedup_by(|next, last| {
            let follows = next.0 == last.0 + last.2 && next.1 == last.1 + last.2;
            last.2 += usize::from(follows);
            follows
        });
        read.dedup_by(|next, last| {
            let follows = next.start == last.start + last.len && next.place == last.place + last.len;
            last.len += if follows { next.len } else { 0 };
            follows
        });
        Ok(Self { read, copies, values })
    }
}

/// Returns the number of indices of a window before the first element.
pub(super) fn left_of(origin: isize) -> usize {
    if origin < 0 { origin.unsigned_abs() } else { 0 }
}

pub(super) fn is_within(origin: isize, window: usize, extent: usize) -> bool {
    window == 0 || is_inside(origin, extent) && window <= extent - origin.cast_unsigned()
}

/// Completes a window in memory after its elements were read.
pub(super) fn complete<T: Element, const N: usize>(axes: &[Axis<T>; N], window: &[usize; N], into: &mut [T]) {
    let strides = strides(window);
    for axis in (0..N).rev() {
        let Axis { copies, values, .. } = &axes[axis];
        if copies.is_empty() && values.is_empty() {
            continue;
        }
        // Along earlier axes, visit only positions that reads have filled. The loop goes from the last axis
        // to the first, so it completes the other positions later.
        let lines: [Vec<usize>; N] = std::array::from_fn(|before| {
            if before >= axis {
                return vec![0];
            }
            axes[before].read.iter().flat_map(|s| s.place..s.place + s.len).collect()
        });
        for line in Positions::new([0; N]..std::array::from_fn(|axis| lines[axis].len())) {
            let base: usize = (0..axis).map(|axis| lines[axis][line[axis]] * strides[axis]).sum();
            let line = &mut into[base..base + window[axis] * strides[axis]];
            let stride = strides[axis];
            for &(from, to, count) in copies {
                if count * stride == 1 {
                    line[to] = line[from];
                } else {
                    line.copy_within(from * stride..(from + count) * stride, to * stride);
                }
            }
            for &(at, value) in values {
                line[at * stride..(at + 1) * stride].fill(value);
            }
        }
    }
}
