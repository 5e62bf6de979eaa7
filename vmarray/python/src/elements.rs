//! Trait objects for the library's arrays, so that Python's views access elements of any type as bytes.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use vmarray::access::{ExportedSlice, Registered};
use vmarray::compute::AnyColumn;
use vmarray::device::expr::{Program, Value};
use vmarray::expr::Expr;
use vmarray::nd::Accumulation;
use vmarray::order::{Groups, Side};
use vmarray::rows::RowTableBuilder;
use vmarray::{AnyDevice, Footprint};

use crate::numpy_arrays::Items;

/// A device program, the value that an operation uses, and an optional condition that selects elements.
pub struct Code {
    pub program: Program,
    pub value: Value,
    pub filter: Option<Value>,
}

/// Result of a reduction.
#[derive(Clone, Copy, Debug)]
pub enum Reduced {
    Int(i128),
    Float(f64),
    /// Index and value of an element; `None` without elements.
    IntAt(Option<(usize, i64)>),
    FloatAt(Option<(usize, f64)>),
}

/// Kind of reduction that devices apply to the values of a [`Code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Number of true values.
    Count,
    /// Sum of `I64` values, modulo 2^64.
    IntSum,
    /// Sum of `F64` values.
    FloatSum,
    /// Index of the first least or greatest `I64` value.
    IntExtreme { is_least: bool },
    /// Index of the first least or greatest `F64` value; NaNs are ignored.
    FloatExtreme { is_least: bool },
    /// Index of the first true value.
    First,
    /// Index of the first `F64` value that is NaN.
    FirstNan,
}

/// The equal bins of a histogram from `first` to `last`, inclusive. The edges between bins are `first +
/// number * step`.
#[derive(Clone, Copy, Debug)]
pub struct Bins {
    pub count: usize,
    first: f64,
    last: f64,
    step: f64,
    precision: Precision,
}

/// Precision in which edges of bins are computed.
#[derive(Clone, Copy, Debug)]
enum Precision {
    Double,
    /// The edges are computed in 64 bits, and rounded to 32.
    Rounded,
    Single,
}

impl Bins {
    /// Returns `count` bins from `first` to `last`. Devices compute the edges in the named `precision`.
    pub fn new(count: usize, (first, last): (f64, f64), step: f64, precision: &str) -> Self {
        let precision = match precision {
            "single" => Precision::Single,
            "rounded" => Precision::Rounded,
            _ => Precision::Double,
        };
        Self { count, first, last, step, precision }
    }

    /// Returns the index of each value's bin, and a bool that is true if the value is in a bin. Estimates the
    /// index, and corrects it by comparison with the adjacent edges.
    pub fn of<R>(self, value: Expr<R, f64>) -> (Expr<R, u32>, Expr<R, bool>) {
        let most = (self.count - 1) as f64;
        let scale = self.count as f64 / (self.last - self.first);
        let guess = ((value.clone() - self.first) * scale).floor().max(0.0).min(most);
        let is_below = value.clone().lt(self.edge(guess.clone()));
        let is_above = value.clone().ge(self.edge(guess.clone() + 1.0)) & guess.clone().lt(most);
        let bin = is_above.select(guess.clone() + 1.0, is_below.select(guess.clone() - 1.0, guess));
        let is_inside = value.clone().ge(self.first) & value.le(self.last);
        (bin.max(0.0).cast(), is_inside)
    }

    fn edge<R>(self, number: Expr<R, f64>) -> Expr<R, f64> {
        match self.precision {
            Precision::Double => number * self.step + self.first,
            Precision::Rounded => (number * self.step + self.first).cast::<f32>().cast(),
            Precision::Single => (number.cast::<f32>() * self.step as f32 + self.first as f32).cast(),
        }
    }
}

/// An array of the library with elements of any type. Indices and lengths count elements.
pub trait Elements: Send + Sync {
    fn len(&self) -> usize;
    fn read(&self, start: usize, into: &mut [u8]) -> vmarray::Result<()>;
    fn write(&self, start: usize, from: &[u8]) -> vmarray::Result<()>;
    fn gather(&self, list: &[usize], into: &mut [u8]) -> vmarray::Result<()>;
    /// Reads rows of `row_bytes` bytes, which begin at these elements.
    fn read_rows(&self, starts: &[usize], row_bytes: usize, into: &mut [u8]) -> vmarray::Result<()> {
        starts.iter().zip(into.chunks_mut(row_bytes)).try_for_each(|(start, row)| self.read(*start, row))
    }
    fn scatter(&self, list: &[usize], from: &[u8]) -> vmarray::Result<()>;
    fn fill(&self, range: Range<usize>, value: &[u8]) -> vmarray::Result<()>;
    fn push(&self, from: &[u8]) -> vmarray::Result<()>;
    /// Returns the memory of the elements, if all of them are in plain memory of this process.
    fn items(&self) -> Option<Arc<Items>> {
        None
    }
    /// Runs `work` on the memory of the elements, which stay there meanwhile; `false` if they are elsewhere.
    fn write_in_place(&self, _work: &mut dyn FnMut(&Arc<Items>)) -> bool {
        false
    }
    /// Copies elements of another store; `false` if its type differs.
    fn copy_from(&self, start: usize, from: &dyn Elements, range: Range<usize>) -> vmarray::Result<bool>;
    fn column(&self, range: Range<usize>) -> vmarray::Result<AnyColumn<'_>>;
    /// Writes a value to the elements of a range, at an offset within each.
    fn change<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        offset: usize,
    ) -> vmarray::Result<()>;
    fn ask<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        asked: Asked,
    ) -> vmarray::Result<Reduced>;
    /// Finds the first elements of a range that meet a condition, as indices from the range's start.
    fn find<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        limit: usize,
    ) -> vmarray::Result<Vec<usize>>;
    /// Counts the values of a range in each bin.
    fn histogram<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        bins: Bins,
    ) -> vmarray::Result<Vec<u64>>;
    /// Returns the interface for matrix products, if the elements are numbers that have it.
    fn multiplied(&self) -> Option<&dyn Multiplied>;
    /// Returns the interface for sorts and searches, if the elements have an order.
    fn ordered(&self) -> Option<&dyn Ordered>;
    /// Copies elements of a range at the indices in `list`; `None` if that is no array of `u64`.
    fn take(&self, range: Range<usize>, list: &dyn Elements) -> vmarray::Result<Option<Box<dyn Elements>>>;
    /// Shuffles a range; the seed determines the order.
    fn shuffle(&self, range: Range<usize>, seed: u64) -> vmarray::Result<()>;
    /// Exports elements in place until the array's next use; returns the range's first contiguous part.
    fn export(&mut self, range: Range<usize>) -> vmarray::Result<ExportedSlice>;
    /// Returns the options of a table whose rows each have `row_len` elements of the range.
    fn rows(&mut self, range: Range<usize>, row_len: usize) -> vmarray::Result<RowTableBuilder<'_>>;
    /// Registers memory that the devices of the array may write to directly.
    fn register(&self, words: Vec<u64>) -> vmarray::Result<Registered<u64>>;
    fn flush(&self) -> vmarray::Result<()>;
    fn sync(&self) -> vmarray::Result<()>;
    fn footprint(&self) -> vmarray::Result<Footprint>;
    fn page_len(&self) -> usize;
    fn max_len(&self) -> usize;
    fn as_any(&self) -> &dyn Any;
}

/// A matrix within an array: rows and columns of elements at regular distances.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    pub extents: [usize; 2],
    pub start: usize,
    pub strides: [isize; 2],
}

/// Arrays of numbers that devices can multiply as matrices.
pub trait Multiplied {
    /// Writes the product of two matrices to matrix `number` of the array, which holds contiguous matrices.
    /// Returns `false` if the arrays have different types.
    fn assign_product(
        &self,
        number: usize,
        a: (&dyn Elements, Strided),
        b: (&dyn Elements, Strided),
    ) -> vmarray::Result<bool>;
}

/// Kind of a reduction of elements along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    Sum,
    Least,
    Greatest,
    /// The index of the first least or greatest element.
    PlaceOfLeast,
    PlaceOfGreatest,
}

/// Operations on elements that are numbers: sorts, searches, group-by. Indices count from the start of the
/// range.
pub trait Ordered {
    fn sort(&self, range: Range<usize>, is_descending: bool) -> vmarray::Result<()>;
    /// Indices that sort the elements, as `u64`; the order is stable.
    fn argsort(&self, range: Range<usize>) -> vmarray::Result<Box<dyn Elements>>;
    /// The distinct elements, sorted.
    fn unique(&self, range: Range<usize>) -> vmarray::Result<Box<dyn Elements>>;
    /// Finds the indices at which to insert elements into sorted ones, as `u64`; `None` if the types differ.
    fn search(
        &self,
        range: Range<usize>,
        sorted: (&dyn Elements, Range<usize>),
        side: Side,
    ) -> vmarray::Result<Option<Box<dyn Elements>>>;
    /// Returns the bytes of the element that a sort would move to index `nth`.
    fn nth(&self, range: Range<usize>, nth: usize) -> vmarray::Result<Vec<u8>>;
    /// Reduces the elements from `first` on, as a box of three axes, along the middle axis. Sums fill an
    /// array of `f64` or `i64`, places one of `u64`, and minima and maxima one of the elements' type. NaNs
    /// are extreme. Returns `false` if the result has another type, or if there are too few elements for the
    /// box `shape`.
    fn reduce_axis(
        &self,
        first: usize,
        shape: [usize; 3],
        what: Along,
        into: &dyn Elements,
    ) -> vmarray::Result<bool>;
    /// Replaces each element by the sum of its row up to itself; each row has `row` elements.
    fn prefix_sums(&self, row: usize) -> vmarray::Result<()>;
    /// Writes cumulative sums or products of the elements from `first` on, as a box of three axes, along the
    /// middle axis, to all elements of `into`, in the order of the elements. Returns `false` as `reduce_axis`
    /// does.
    fn accumulate_axis(
        &self,
        first: usize,
        shape: [usize; 3],
        how: Accumulation,
        into: &dyn Elements,
    ) -> vmarray::Result<bool>;
    /// Groups equal elements; `None` unless they are `u64` or `i64`.
    fn grouped(&self, range: Range<usize>) -> vmarray::Result<Option<Groups<u64, AnyDevice>>>;
    /// Computes the sum, minimum or maximum of each group, with the type of the result.
    fn by_group(
        &self,
        range: Range<usize>,
        groups: &Groups<u64, AnyDevice>,
        what: &str,
    ) -> vmarray::Result<Box<dyn Elements>>;
}
