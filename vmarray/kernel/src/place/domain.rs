//! The domain of a launch: along each axis of the result, the indices for which items (GPU threads) run.

use crate::lower::AxisPart;

/// One axis of a stored array, and the range of a launch's items (GPU threads) along the axis. The array is
/// stored in tiles with contiguous elements; in row-major storage, a tile has one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainAxis {
    /// Index of the first item (GPU thread) along the axis.
    pub start: usize,
    /// Number of items (GPU threads) along the axis.
    pub extent: usize,
    /// Number of tiles of the stored array along the axis.
    pub tiles: usize,
    /// Number of elements of a tile along the axis.
    pub tile: usize,
}

impl DomainAxis {
    /// Creates an axis of `extent` elements without tiles, with an item (GPU thread) for each element.
    #[must_use]
    pub const fn whole(extent: usize) -> Self {
        Self { start: 0, extent, tiles: extent, tile: 1 }
    }

    /// Returns a property of the axis, which launches pass to kernels; `is_short`: see [`Divisor::of`].
    #[must_use]
    pub fn scalar(&self, part: AxisPart, is_short: bool) -> u64 {
        let divisor = |of: usize| Divisor::of(of.max(1) as u64, is_short);
        let (tiles, tile) = (divisor(self.tiles), divisor(self.tile));
        match part {
            AxisPart::Start => self.start as u64,
            AxisPart::Extent => self.extent as u64,
            AxisPart::Tiles => self.tiles as u64,
            AxisPart::TilesFactor => tiles.factor,
            AxisPart::TilesShift => tiles.shift.into(),
            AxisPart::Tile => self.tile as u64,
            AxisPart::TileFactor => tile.factor,
            AxisPart::TileShift => tile.shift.into(),
        }
    }
}

/// A divisor, stored as a factor and a shift, because GPUs have no fast division. For a dividend `n` whose
/// top bit is clear, the quotient is the upper half of `2 * n * factor`, shifted right by `shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    /// Factor of the multiplication that replaces the division.
    pub factor: u64,
    /// Number of bits by which the upper half of the product is shifted to the right.
    pub shift: u32,
}

impl Divisor {
    /// Returns the divisor for divisions by `number`, at least 1. Dividends have at most 31 bits if
    /// `is_short`, else at most 63.
    #[must_use]
    pub const fn of(number: u64, is_short: bool) -> Self {
        let shift = number.next_power_of_two().trailing_zeros();
        let bits = if is_short { 31 } else { 63 };
        // The factor is 2^(bits + shift) / number, rounded up. For a dividend of `bits` bits, the rounding
        // error of the quotient is less than 1 / number, so the quotient is exact.
        let factor = (1_u128 << (bits + shift)).div_ceil(number as u128) as u64;
        Self { factor, shift }
    }
}

/// The domain of a launch: the range of its items (GPU threads) along each axis of the result.
#[derive(Clone, Copy, Debug)]
pub struct Domain<const N: usize> {
    axes: [DomainAxis; N],
    pub extents: [usize; N],
    tile_len: usize,
    is_tiled: bool,
    /// True if the launch covers only a part of the result: some elements then have no item (GPU thread).
    pub is_part: bool,
}

impl<const N: usize> Domain<N> {
    pub fn whole(shape: [usize; N]) -> Self {
        Self {
            axes: shape.map(DomainAxis::whole),
            extents: shape,
            tile_len: 1,
            is_tiled: false,
            is_part: false,
        }
    }

    pub fn new(axes: [DomainAxis; N], is_tiled: bool, is_part: bool) -> Self {
        let tile_len = axes.iter().map(|axis| axis.tile).product();
        Self { axes, extents: axes.map(|axis| axis.extent), tile_len, is_tiled, is_part }
    }

    /// Returns the position of the stored element with this number; out of bounds if no item has the element.
    #[inline(always)]
    fn position(&self, number: usize) -> [usize; N] {
        let (mut tile, mut within) = (number, 0);
        if self.is_tiled {
            (tile, within) = (number / self.tile_len, number % self.tile_len);
        }
        let mut position = [0; N];
        for axis in (0..N).rev() {
            let of = &self.axes[axis];
            let (mut index, rest) = if axis == 0 { (tile, 0) } else { (tile % of.tiles, tile / of.tiles) };
            tile = rest;
            if self.is_tiled {
                index = index * of.tile + within % of.tile;
                within /= of.tile;
            }
            position[axis] = index.wrapping_sub(of.start);
        }
        position
    }

    #[inline(always)]
    fn contains(&self, position: &[usize; N]) -> bool {
        position.iter().zip(&self.extents).all(|(at, extent)| at < extent)
    }
}

/// A cursor that computes the positions (indices along each axis) of consecutive items (GPU threads).
#[derive(Debug)]
pub struct PlaceCursor<const N: usize> {
    pub domain: Domain<N>,
    next: usize,
    position: [usize; N],
}

impl<const N: usize> PlaceCursor<N> {
    pub fn new(domain: Domain<N>) -> Self {
        Self { domain, next: usize::MAX, position: [0; N] }
    }

    #[inline(always)]
    pub fn position(&mut self, number: usize) -> [usize; N] {
        let along = self.position[N - 1].wrapping_add(1);
        // If this element follows the previous element along the last axis, only the last index changes.
        if number == self.next && !self.domain.is_tiled && along < self.domain.extents[N - 1] {
            self.position[N - 1] = along;
        } else {
            self.position = self.domain.position(number);
        }
        self.next = number.wrapping_add(1);
        self.position
    }

    /// Returns true if the launch has an item (GPU thread) for the stored element `number`.
    #[inline(always)]
    pub fn has(&mut self, number: usize) -> bool {
        let position = self.position(number);
        self.domain.contains(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_equal_divisions() {
        let ends =
            [1_u64, 2, 3, 5, 7, 9, 10, 63, 64, 65, 1000, 4096, u64::from(u32::MAX), 1 << 40, (1 << 62) + 1];
        let numbers = ends.into_iter().flat_map(|end| [end - 1, end, end + 1, end * 3 / 2, (1 << 63) - end]);
        for number in numbers.chain([0, (1 << 63) - 1]).filter(|number| *number < 1 << 63) {
            for by in ends.into_iter().flat_map(|end| [end, end + 1, (1 << 63) - end]) {
                let Divisor { factor, shift } = Divisor::of(by, false);
                let upper = ((u128::from(2 * number) * u128::from(factor)) >> 64) as u64;
                assert_eq!(upper >> shift, number / by, "{number} / {by}");
            }
        }
        let numbers = || {
            (0..32).flat_map(|bits| [(1_u64 << bits) - 1, (1 << bits) / 3 * 2, (1 << bits) - 5 % (1 << bits)])
        };
        for number in numbers().filter(|number| *number < 1 << 31) {
            for by in numbers().filter(|by| (1..1 << 31).contains(by)) {
                let Divisor { factor, shift } = Divisor::of(by, true);
                assert!(factor < 1 << 32);
                assert_eq!(((2 * number * factor) >> 32) >> shift, number / by, "{number} / {by}");
            }
        }
    }
}
