//! [`StoredBox`]: the location of a view's elements in the array or source (program memory), for each axis.

use std::ops::Range;

use vmarray_kernel::launch::DomainAxis;

/// A box of positions, which may be negative.
pub(crate) type SignedBox = Vec<Range<isize>>;

/// Returns the number of positions in a box.
pub(crate) fn count(of: &[Range<isize>]) -> usize {
    of.iter().map(Range::len).product()
}

/// The location of a view's elements in the array or source (program memory), along each axis.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBox {
    pub(crate) axes: Vec<DomainAxis>,
}

impl StoredBox {
    /// Creates the location of a range of a store.
    pub(crate) fn range_of(start: usize, len: usize) -> Self {
        Self { axes: vec![DomainAxis { start, extent: len, tiles: start + len, tile: 1 }] }
    }

    pub(crate) fn is_tiled(&self) -> bool {
        self.axes.iter().any(|axis| axis.tile > 1)
    }

    /// Returns true if elements or padding outside the box may be stored between its elements.
    pub(crate) fn is_part(&self) -> bool {
        let is_part = |axis: &DomainAxis| axis.start > 0 || axis.extent < axis.tiles * axis.tile;
        self.axes.len() > 1 && self.axes.iter().any(is_part)
    }

    /// Like [`is_part`](Self::is_part), but ignores padding.
    pub(crate) fn is_cut(&self) -> bool {
        let is_cut = |axis: &DomainAxis| axis.start > 0 || axis.extent.div_ceil(axis.tile) < axis.tiles;
        self.axes.len() > 1 && self.axes.iter().any(is_cut)
    }

    pub(crate) fn tile_len(&self) -> usize {
        self.axes.iter().map(|axis| axis.tile).product()
    }

    /// Returns the storage index of the element at a position.
    pub(crate) fn place(&self, position: impl Fn(usize, &DomainAxis) -> usize) -> usize {
        let (mut tile, mut within) = (0, 0);
        for (axis, of) in self.axes.iter().enumerate() {
            let at = of.start + position(axis, of);
            tile = tile * of.tiles + at / of.tile;
            within = within * of.tile + at % of.tile;
        }
        tile * self.tile_len() + within
    }

    /// Returns the storage range from the first element to the last.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.place(|_, _| 0);
        let is_empty = self.axes.iter().any(|axis| axis.extent == 0);
        start..if is_empty { start } else { self.place(|_, axis| axis.extent - 1) + 1 }
    }

    /// Distance in storage of two neighbours along an axis, if there are no tiles.
    pub(crate) fn stride(&self, axis: usize) -> usize {
        self.axes[axis + 1..].iter().map(|axis| axis.tiles).product()
    }

    /// Returns a box that contains the positions of all elements in a storage range.
    pub(crate) fn around(&self, range: &Range<usize>) -> SignedBox {
        let tile_of = |place: usize| {
            let (mut rest, mut at) = (place / self.tile_len(), vec![0; self.axes.len()]);
            for (axis, of) in self.axes.iter().enumerate().skip(1).rev() {
                at[axis] = rest % of.tiles;
                rest /= of.tiles;
            }
            at[0] = rest;
            at
        };
        if range.is_empty() {
            return self.axes.iter().map(|_| 0..0).collect();
        }
        let (first, last) = (tile_of(range.start), tile_of(range.end - 1));
        let split = (0..first.len()).find(|axis| first[*axis] != last[*axis]).unwrap_or(first.len());
        let bounds = self.axes.iter().enumerate().map(|(axis, of)| {
            let tiles = if axis <= split { first[axis]..last[axis] + 1 } else { 0..of.tiles };
            let place = |tile: usize| (tile * of.tile).saturating_sub(of.start).min(of.extent) as isize;
            place(tiles.start)..place(tiles.end)
        });
        bounds.collect()
    }

    /// Returns the row-major number in a box of the element with a storage index, if it is there.
    pub(crate) fn number_in(&self, place: usize, of: &[Range<isize>]) -> Option<usize> {
        let (mut tile, mut within) = (place / self.tile_len(), place % self.tile_len());
        let (mut number, mut stride) = (0, 1);
        for (axis, own) in self.axes.iter().enumerate().rev() {
            let along = if axis == 0 { tile } else { tile % own.tiles };
            let at = (along * own.tile + within % own.tile) as isize - own.start as isize;
            (tile, within) = (tile / own.tiles.max(1), within / own.tile);
            if !of[axis].contains(&at) {
                return None;
            }
            number += (at - of[axis].start) as usize * stride;
            stride *= of[axis].len();
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(axes: &[(usize, usize, usize, usize)]) -> StoredBox {
        let axis = |&(start, extent, tiles, tile)| DomainAxis { start, extent, tiles, tile };
        StoredBox { axes: axes.iter().map(axis).collect() }
    }

    #[test]
    fn boxes_have_all_elements_of_ranges_and_numbers_are_row_by_row() {
        let all = [
            stored(&[(0, 4, 4, 1), (0, 5, 5, 1)]),
            stored(&[(1, 2, 4, 1), (2, 3, 6, 1)]),
            stored(&[(0, 5, 3, 2), (1, 6, 3, 3)]),
            stored(&[(1, 3, 2, 2), (0, 1, 1, 4), (2, 3, 3, 2)]),
            StoredBox::range_of(3, 9),
        ];
        for stored in all {
            let extents: Vec<usize> = stored.axes.iter().map(|axis| axis.extent).collect();
            let whole: SignedBox = extents.iter().map(|extent| 0..*extent as isize).collect();
            let mut places = Vec::new();
            for number in 0..extents.iter().product() {
                let at = |axis: usize| number / extents[axis + 1..].iter().product::<usize>() % extents[axis];
                let place = stored.place(|axis, _| at(axis));
                assert_eq!(stored.number_in(place, &whole), Some(number), "{stored:?}");
                places.push(place);
            }
            let range = stored.range();
            assert_eq!(
                (places.iter().min(), places.iter().max()),
                (Some(&range.start), Some(&(range.end - 1)))
            );
            for start in range.clone() {
                for end in start..=range.end {
                    let of = stored.around(&(start..end));
                    for place in (start..end).filter(|place| places.contains(place)) {
                        assert!(stored.number_in(place, &of).is_some(), "{stored:?} {place} in {of:?}");
                    }
                }
            }
        }
    }
}
