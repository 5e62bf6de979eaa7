//! Gather and scatter of elements at the positions that an index set lists as tuples.

use super::region::NdShape;
use super::shape::position_outside;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::index_sets::{Dimension, Tuples, distinct};
use crate::ops::view::Shape as _;

const CHUNK: usize = 4096;

/// Returns the indices in the store of the elements at a set's tuples. `axes` are the labels of the columns
/// with the indices along each axis of the view.
pub(super) fn places<S: Tuples + ?Sized, const N: usize, const M: usize>(
    view: &NdShape<N, M>,
    set: &S,
    axes: [Dimension; M],
) -> Result<Vec<usize>> {
    let dimensions = set.dimensions();
    distinct(dimensions.iter().copied())?;
    let mut columns = [0; M];
    for (column, dimension) in columns.iter_mut().zip(axes) {
        let unknown = ErrorKind::UnknownDimension { dimension };
        *column = dimensions.iter().position(|known| *known == dimension).ok_or(unknown)?;
    }
    let width = dimensions.len();
    let mut places = zeroed_vec(set.len())?;
    let mut tuples = zeroed_vec::<u64>(set.len().min(CHUNK).saturating_mul(width))?;
    for (first, chunk) in (0..).step_by(CHUNK).zip(places.chunks_mut(CHUNK)) {
        let tuples = &mut tuples[..chunk.len() * width];
        set.read_tuples(first, tuples)?;
        for (place, tuple) in chunk.iter_mut().zip(tuples.chunks_exact(width)) {
            let mut at = [0; M];
            for axis in 0..M {
                let (value, extent) = (tuple[columns[axis]], view.extents[axis]);
                let inside = usize::try_from(value).ok().filter(|value| *value < extent);
                at[axis] = inside.ok_or_else(|| position_outside(axis, value.into(), extent))?;
            }
            *place = view.place(at)?;
        }
    }
    Ok(places)
}
