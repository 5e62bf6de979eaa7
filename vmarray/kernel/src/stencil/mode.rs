//! Boundary modes of arrays: the results of reads beyond an array's edges.

use crate::boundary;

/// Boundary mode of one axis: the result of a read beyond the edges of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The read is out of bounds: it returns zero, and the item (GPU thread) fails.
    #[default]
    Checked,
    /// The read returns a constant, which the launch passes.
    Value,
    /// The read returns the nearest element, at the edge.
    Clamp,
    /// Periodic: the first element follows the last one.
    Circular,
    /// Mirrored at the edge elements, which are not repeated: `c b | a b c | b a`.
    Mirror,
    /// Mirrored at the edges, so that edge elements are repeated: `b a | a b c | c b`.
    Symmetric,
}

impl Mode {
    const ALL: [Self; 6] =
        [Self::Checked, Self::Value, Self::Clamp, Self::Circular, Self::Mirror, Self::Symmetric];

    /// Returns the number of the mode, which a launch passes as a scalar.
    #[must_use]
    pub const fn number(self) -> u64 {
        self as u64
    }

    pub(crate) fn of_number(number: u64) -> Self {
        Self::ALL.get(number as usize).copied().unwrap_or_default()
    }

    /// Returns true if the mode replaces an index out of bounds by another index.
    pub(crate) const fn moves(self) -> bool {
        !matches!(self, Self::Checked | Self::Value)
    }

    /// Returns the index that a mode that [moves](Self::moves) selects for an index on a non-empty axis.
    pub(super) fn shown(self, index: isize, extent: usize) -> usize {
        match self {
            Self::Checked | Self::Value | Self::Clamp => boundary::clamp(index, extent),
            Self::Circular => boundary::circular(index, extent),
            Self::Mirror => boundary::mirror(index, extent),
            Self::Symmetric => boundary::symmetric(index, extent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_show_elements_as_their_pictures_do() {
        let shown = |mode: Mode, extent| (-5..9).map(|at| mode.shown(at, extent)).collect::<Vec<_>>();
        assert_eq!(shown(Mode::Clamp, 3), [0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!(shown(Mode::Circular, 3), [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!(shown(Mode::Mirror, 3), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1, 0]);
        assert_eq!(shown(Mode::Symmetric, 3), [1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0, 1, 2]);
        for mode in Mode::ALL {
            assert_eq!(Mode::of_number(mode.number()), mode);
            assert!(!mode.moves() || shown(mode, 1) == [0; 14]);
        }
    }
}
