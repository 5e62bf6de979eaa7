//! Windows that reach beyond the edges: what has to be read, and what is made of it in memory.

use super::modes::{Boundary, Place, is_inside};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::shapes::nd::{Positions, Segment, position_outside, strides};

/// What a window shows along one axis.
pub(super) struct Axis<T> {
    /// What is read, ascending, each element once.
    pub(super) read: Vec<Segment>,
    /// What is copied within the window: from, to, count. Nothing that is copied to is copied from.
    copies: Vec<(usize, usize, usize)>,
    /// What has a value of its own.
    values: Vec<(usize, T)>,
}

impl<T: Element> Axis<T> {
    /// Looks at all indices from `origin` on, which can be counted.
    pub(super) fn new<const N: usize>(
        mode: &impl Boundary<T, N>,
        axis: usize,
        origin: isize,
        window: usize,
        extent: usize,
    ) -> Result<Self> {
        let index = |at: usize| origin + at.cast_signed();
        // Where the window shows the elements in their own places.
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
                Place::At(element) if element < extent => others.push((element, at)),
                Place::At(_) | Place::Outside => {
                    return Err(position_outside(axis, index(at) as i128, extent));
                }
                Place::Value(value) => values.push((at, value)),
            }
        }
        // Elements that the window shows nowhere in their own places are read to where they are shown first.
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

/// How many indices from `origin` on are before the first element.
pub(super) fn left_of(origin: isize) -> usize {
    if origin < 0 { origin.unsigned_abs() } else { 0 }
}

/// Whether all of a window is inside of an axis.
pub(super) fn is_within(origin: isize, window: usize, extent: usize) -> bool {
    window == 0 || is_inside(origin, extent) && window <= extent - origin.cast_unsigned()
}

/// Makes a window of what was read of it.
pub(super) fn complete<T: Element, const N: usize>(axes: &[Axis<T>; N], window: &[usize; N], into: &mut [T]) {
    let strides = strides(window);
    for axis in (0..N).rev() {
        let Axis { copies, values, .. } = &axes[axis];
        if copies.is_empty() && values.is_empty() {
            continue;
        }
        // What was read along the axes before; all else there is made from that.
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
