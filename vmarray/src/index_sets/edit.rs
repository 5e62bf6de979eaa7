//! Operations that derive an index set from others: `project`, `relabel`, `sort`, `dedup`.

use super::{Combine, Dimension, IndexSet, count_of, distinct};
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::{Result, expect_len};
use crate::base::memory::zeroed_vec;

impl IndexSet {
    /// Computes the natural join with another set: each pair of tuples with equal values in the common
    /// dimensions becomes one result. [`Combine`] documents the order of the results. It also has settings
    /// for threads and memory, writes results larger than RAM, counts results, and computes products.
    ///
    /// # Errors
    /// [`NoCommonDimension`](ErrorKind::NoCommonDimension), [`TooLong`](ErrorKind::TooLong),
    /// [`NoMemory`](ErrorKind::NoMemory).
    pub fn combine(&self, other: &Self) -> Result<Self> {
        Combine::new(self, other).run()?.to_index_set()
    }

    /// Returns a copy of the set with some of the columns, in the given order. Keeps duplicates, so the
    /// number of tuples does not change.
    ///
    /// # Errors
    /// [`UnknownDimension`](ErrorKind::UnknownDimension),
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension), [`NoMemory`](ErrorKind::NoMemory).
    pub fn project(&self, dimensions: impl IntoIterator<Item = Dimension>) -> Result<Self> {
        let dimensions = distinct(dimensions)?;
        let columns = dimensions.iter().map(|&label| self.position(label)).collect::<Result<Vec<usize>>>()?;
        let mut values = zeroed_vec(count_of(self.len, columns.len())?)?;
        if !columns.is_empty() {
            for (to, row) in values.chunks_exact_mut(columns.len()).zip(self.rows()) {
                to.iter_mut().zip(&columns).for_each(|(to, &at)| *to = row[at]);
            }
        }
        Ok(Self::assemble(dimensions, values, self.len))
    }

    /// Replaces the labels of the columns. The values stay in place.
    ///
    /// # Errors
    /// [`DuplicateDimension`](ErrorKind::DuplicateDimension);
    /// [`LengthMismatch`](ErrorKind::LengthMismatch) if the numbers of labels and columns differ.
    pub fn relabel(mut self, dimensions: impl IntoIterator<Item = Dimension>) -> Result<Self> {
        let dimensions = distinct(dimensions)?;
        expect_len("the list of labels", self.width(), dimensions.len())?;
        self.dimensions = dimensions;
        Ok(self)
    }

    /// Sorts the tuples in lexicographic order: by the first column, then by the second, and so on. Sets of
    /// up to eight columns are sorted in place. Wider sets need memory for a copy.
    ///
    /// # Errors
    /// [`NoMemory`](ErrorKind::NoMemory) for the copy.
    pub fn sort(&mut self) -> Result<()> {
        macro_rules! by_width {
            ($($W:literal)+) => {
                match self.width() {
                    0 => {}
                    $($W => self.values.as_chunks_mut::<$W>().0.sort_unstable(),)+
                    width => {
                        let mut order = zeroed_vec::<usize>(self.len)?;
                        order.iter_mut().enumerate().for_each(|(number, place)| *place = number);
                        order.sort_unstable_by_key(|&number| &self.values[number * width..][..width]);
                        let mut values = zeroed_vec(self.values.len())?;
                        for (to, number) in values.chunks_exact_mut(width).zip(order) {
                            to.copy_from_slice(&self.values[number * width..][..width]);
                        }
                        self.values = values;
                    }
                }
            };
        }
        by_width!(1 2 3 4 5 6 7 8);
        Ok(())
    }

    /// Removes in place each tuple that equals the one before, as [`Vec::dedup`] does. In a sorted set this
    /// removes all duplicates.
    pub fn dedup(&mut self) {
        let width = self.width();
        let mut kept = self.len.min(1);
        for number in 1..self.len {
            let (row, last) = (number * width..(number + 1) * width, (kept - 1) * width);
            if width > 0 && self.values[row.clone()] != self.values[last..last + width] {
                self.values.copy_within(row, kept * width);
                kept += 1;
            }
        }
        self.values.truncate(kept * width);
        self.len = kept;
    }
}
