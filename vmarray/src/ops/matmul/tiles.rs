//! Matrix products in RAM, one tile of the result after the other. A tile is the sum of products of panels
//! (narrow strips) of the factors.

use std::borrow::Cow;
use std::ops::Range;

use bytemuck::Zeroable as _;

use super::element::{FactorTile, MatMulElement};
use super::matrix::Matrix;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec_large;
use crate::base::progress::{Steps, in_steps};
use crate::base::scoped_threads::CORES;
use crate::engine::shared_work::for_each;
use crate::ops::view::{INTERNAL, Shape as _, StoreMut as _, ViewMut};

/// The maximum number of bytes of a tile of the result.
const TILE_BYTES: usize = if cfg!(test) { 4 << 10 } else { 128 << 20 };
/// The maximum number of bytes of a panel of a factor.
const PANEL_BYTES: usize = if cfg!(test) { 2 << 10 } else { 32 << 20 };
/// The least number of columns in a panel of `a`, and of rows in a panel of `b`, if the factors have them.
const DEPTH_MIN: usize = if cfg!(test) { 8 } else { 512 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileSizes {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
}

impl TileSizes {
    /// Returns the tile sizes with the fewest reads, for a product with `m` rows, `n` columns and depth `k`,
    /// none of them zero. An element of the sum has `bytes` bytes.
    pub fn of([m, n, k]: [usize; 3], bytes: usize) -> Self {
        let (tile, panel) = ((TILE_BYTES / bytes).max(1), (PANEL_BYTES / bytes).max(1));
        let side = (panel / k.min(DEPTH_MIN)).max(1);
        // Try numbers of column strips, from the fewest that fit to `most`. `most` adds four times the number
        // of strips that square tiles would need.
        let fewest = n.div_ceil(side.min(tile));
        let most = (fewest + 4 * n / tile.isqrt().max(1)).min(n);
        let sizes = |strips: usize| {
            let columns = n.div_ceil(strips);
            let rows = (tile / columns).min(side).clamp(1, m);
            // Choose equal heights instead of full tiles and a short last one.
            (m.div_ceil(m.div_ceil(rows)), columns)
        };
        let read = |strips: usize| {
            let (rows, columns) = sizes(strips);
            m as u128 * n.div_ceil(columns) as u128 + n as u128 * m.div_ceil(rows) as u128
        };
        let (rows, columns) = sizes((fewest..=most).min_by_key(|strips| read(*strips)).unwrap_or(fewest));
        Self { rows, columns, depth: (panel / rows.max(columns)).clamp(1, k.max(1)) }
    }
}

/// Divides the range `0..end` into parts of `by` elements.
fn parts(end: usize, by: usize) -> impl Iterator<Item = Range<usize>> {
    (0..end).step_by(by.max(1)).map(move |start| start..end.min(start + by))
}

/// Writes the product of two matrices to a view, which must have matching extents and must not be empty.
pub(super) fn multiply<'a, V>(view: V, a: &Matrix<'_, V::Element>, b: &Matrix<'_, V::Element>) -> Result<()>
where
    V: ViewMut<'a, Index = [usize; 2], Element: MatMulElement>,
{
    let ([m, k], [_, n]) = (a.extents(), b.extents());
    let bytes = size_of::<<V::Element as MatMulElement>::Sum>();
    let sizes = TileSizes::of([m, n, k.max(1)], bytes);
    let lines = m.saturating_mul(n.div_ceil(sizes.columns)) + n.saturating_mul(m.div_ceil(sizes.rows));
    let read_bytes = lines.saturating_mul(k).saturating_mul(size_of::<V::Element>());
    let mut buffers = TileBuffers::<V::Element>::new(sizes, k)?;
    in_steps(read_bytes as u64, |steps| {
        for rows in parts(m, sizes.rows) {
            for columns in parts(n, sizes.columns) {
                let tile = buffers.product((a, b), (&rows, &columns), sizes.depth, steps)?;
                write(view, [rows.start, columns.start]..[rows.end, columns.end], &tile)?;
            }
        }
        Ok(())
    })
}

/// Memory for a tile of sums, and for one panel (narrow tile) of each factor.
struct TileBuffers<T: MatMulElement> {
    sums: Vec<T::Sum>,
    /// True after the first tile. Before, the sums are untouched zero pages, so that the threads of the
    /// product write to them first.
    is_used: bool,
    panels: [Vec<T>; 2],
}

impl<T: MatMulElement> TileBuffers<T> {
    fn new(sizes: TileSizes, k: usize) -> Result<Self> {
        let TileSizes { rows, columns, depth } = sizes;
        let panel = |lines: usize| zeroed_vec_large(lines * depth.min(k));
        let panels = [panel(rows)?, panel(columns)?];
        Ok(Self { sums: zeroed_vec_large(rows * columns)?, is_used: false, panels })
    }

    fn product(
        &mut self,
        (a, b): (&Matrix<'_, T>, &Matrix<'_, T>),
        (rows, columns): (&Range<usize>, &Range<usize>),
        depth: usize,
        steps: &Steps,
    ) -> Result<Cow<'_, [T]>> {
        let sums = &mut self.sums[..rows.len() * columns.len()];
        if std::mem::replace(&mut self.is_used, true) {
            sums.fill(T::Sum::zeroed());
        }
        let [of_a, of_b] = &mut self.panels;
        for within in parts(a.extents()[1], depth) {
            steps.report(((rows.len() + columns.len()) * within.len() * size_of::<T>()) as u64)?;
            let of_a = Panel::read(a, rows, &within, of_a)?;
            let of_b = Panel::read(b, &within, columns, of_b)?;
            add_product::<T>(sums, of_a.tile(), of_b.tile())?;
        }
        Ok(T::rounded(sums))
    }
}

/// Adds the product of two panels to a tile of sums. Each thread computes some rows.
fn add_product<T: MatMulElement>(
    sums: &mut [T::Sum],
    a: FactorTile<'_, T::Sum>,
    b: FactorTile<'_, T::Sum>,
) -> Result<()> {
    // Threads divide the rows. A single row cannot be divided, so compute the transposed product, which has
    // several rows.
    let (a, b) = if a.extents[0] == 1 { (b.transposed(), a.transposed()) } else { (a, b) };
    let ([m, _], [_, n]) = (a.extents, b.extents);
    let each = m.div_ceil(*CORES);
    for_each(*CORES, sums.chunks_mut(each * n).enumerate(), |(number, sums)| {
        T::add_product(sums, a.rows(number * each, sums.len() / n), b);
        Ok(())
    })
}

/// A panel (narrow tile) of a factor, in RAM.
struct Panel<'p, T: Copy> {
    items: Cow<'p, [T]>,
    extents: [usize; 2],
    is_by_columns: bool,
}

impl<'p, S: Copy> Panel<'p, S> {
    /// Reads a panel of a factor to RAM. Each thread reads some of its lines.
    fn read<T: MatMulElement<Sum = S>>(
        of: &Matrix<'_, T>,
        rows: &Range<usize>,
        columns: &Range<usize>,
        into: &'p mut [T],
    ) -> Result<Self> {
        let into = &mut into[..rows.len() * columns.len()];
        let is_by_columns = of.is_by_columns();
        let (lines, within) = if is_by_columns { (columns, rows) } else { (rows, columns) };
        let each = lines.len().div_ceil(*CORES).max(1);
        for_each(*CORES, into.chunks_mut(each * within.len().max(1)).enumerate(), |(number, part)| {
            let start = lines.start + number * each;
            let lines = start..lines.end.min(start + each);
            match is_by_columns {
                true => of.read(rows.clone(), lines, part),
                false => of.read(lines, columns.clone(), part),
            }
        })?;
        Ok(Self { items: T::widened(into), extents: [rows.len(), columns.len()], is_by_columns })
    }

    fn tile(&self) -> FactorTile<'_, S> {
        let [rows, columns] = self.extents;
        let strides = if self.is_by_columns { [1, rows] } else { [columns, 1] };
        FactorTile { items: &self.items, extents: self.extents, strides }
    }
}

/// Writes a tile to a box of a view. Each thread writes some rows.
fn write<'a, V: ViewMut<'a, Index = [usize; 2]>>(
    view: V,
    of: Range<[usize; 2]>,
    tile: &[V::Element],
) -> Result<()> {
    let [columns, end] = [of.end[1] - of.start[1], of.end[0]];
    let each = (end - of.start[0]).div_ceil(*CORES);
    for_each(*CORES, tile.chunks(each * columns).enumerate(), |(number, part)| {
        let row = of.start[0] + number * each;
        write_rows(view, [row, of.start[1]]..[end.min(row + each), of.end[1]], part)
    })
}

fn write_rows<'a, V: ViewMut<'a, Index = [usize; 2]>>(
    view: V,
    of: Range<[usize; 2]>,
    tile: &[V::Element],
) -> Result<()> {
    let (store, shape) = view.parts();
    let mut rest = tile;
    let mut copy = |of: &Range<[usize; 2]>| {
        shape.runs(of).try_for_each(|run| {
            let (own, others) = rest.split_at(run.len());
            rest = others;
            store.write_at(run.start, own, INTERNAL)
        })
    };
    if shape.is_in_order(&of) {
        return copy(&of);
    }
    let columns = of.start[1]..of.end[1];
    (of.start[0]..of.end[0]).try_for_each(|row| copy(&([row, columns.start]..[row + 1, columns.end])))
}
