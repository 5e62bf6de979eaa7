//! Queries and assignments by expressions over a view, or over several joined views.

#[cfg(feature = "num-complex")]
mod complex;
mod plan;
mod reduce;
mod select;

use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};

use backend_api::expr::Number;

use self::plan::Condition;
pub use self::plan::Plan;
use self::reduce::{Extremes, Histogram, Total};
pub use self::select::{Select, Selected};
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::Result;
use crate::ops::executor::Question;
use crate::ops::expr::{
    Expr, Filtered, IntoAssignments, IntoExpr, IntoFiltered, Scalar, Summed, assignments_counted_from,
};
use crate::ops::find::Found;
#[cfg(doc)]
use crate::ops::join::Join;
use crate::ops::sealed::{INTERNAL, Internal, Sealed};
use crate::ops::view::{Shape, Store, StoreMut, View, ViewMut};

/// Queries by [expressions](crate::expr), which the devices compute. Implemented for every [`View`] and for
/// all [joined](Join::join) views.
///
/// All devices execute a query concurrently, in place, and return only the results. Before the query, the
/// library copies dirty pages of an array from its cache to their devices. For a [source](crate::Source), the
/// library copies elements to a device if they are not on any device yet. The query sees every write that
/// returned before the query began, and may see concurrent writes. A device translates an expression at its
/// first use, in some milliseconds. Expressions that differ only in constants share a translation.
///
/// ```
/// use vmarray::prelude::*;
/// let (prices, counts) = (VirtualArray::<f64>::new(1000)?, VirtualArray::<u32>::new(1000)?);
/// prices.fill(.., 2.5)?;
/// counts.fill(..10, 4)?;
/// assert_eq!(counts.count_where(.., Field::whole().gt(3))?, 10);
/// let joined = prices.join((&counts,))?;
/// let (price, count) = joined.rows();
/// let product = price.get(Field::whole()) * count.get(Field::whole()).cast::<f64>();
/// assert_eq!((&joined).sum(.., product)?, 100.0);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// Reductions, and searches that stop early:
///
/// ```
/// use vmarray::{expr::index, prelude::*};
///
/// let array = VirtualArray::<i16>::new(10_000)?;
/// array.fill(77..99, -3)?;
/// array.set(500, 8)?;
/// let value = Field::<i16, i16>::whole();
/// assert!(array.any(.., value.lt(0))? && !array.all(.., value.lt(0))?);
/// assert_eq!(array.position_first(.., value.ne(0))?, Some(77));
/// assert_eq!((array.min(.., value)?, array.max(.., value + 2)?), (Some(-3), Some(10)));
/// assert_eq!((array.min_max(.., value)?, array.min(5..5, value)?), (Some((-3, 8)), None));
/// let section = array.section(90..)?;
/// assert_eq!(section.arg_min(.., value)?, Some((0, -3)));
/// assert_eq!(section.arg_max(.., value.only_where(index().lt(100)))?, Some((9, 0)));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Query<'a>: Sealed + Copy {
    /// The row type of an expression: the type of an element, or of one element of each joined view.
    type Row;
    /// The type of a row's index.
    type Index: Copy + std::fmt::Debug + Ord + Send + Sync + Unpin + 'static;
    /// The shape of the view, which maps indices to its store.
    type Shape: Shape<Index = Self::Index>;

    #[doc(hidden)]
    fn region(self) -> Self::Shape;

    #[doc(hidden)]
    fn ask<R: Question>(self, range: &Range<usize>, question: &R, _: Internal) -> Result<R::Whole>;

    /// Returns the number of elements within bounds that meet a condition.
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn count_where(
        self,
        bounds: impl RangeBounds<Self::Index>,
        condition: impl IntoExpr<Self::Row, bool>,
    ) -> Result<usize> {
        let shape = self.region();
        let lowered = shape.lowered(&shape.checked(bounds)?);
        let condition = Condition::new(lowered.condition(condition))?;
        let found = self.ask(&lowered.range, &condition.seek(0, true), INTERNAL);
        Ok(lowered.outcome(found)?.total)
    }

    /// Returns the indices of the first `limit` elements within bounds that meet a condition, in ascending
    /// order. Also returns the number of all matches.
    ///
    /// In a tiled array, elements are not stored in the order of their indices. If there are more matches
    /// than `limit`, the devices therefore search tiles again to determine the first ones.
    ///
    /// # Errors
    /// The errors of [`section`](View::section); [`ExpressionTooLong`](ErrorKind::ExpressionTooLong),
    /// [`NoMemory`](ErrorKind::NoMemory) for more indices than fit into RAM,
    /// [`Device`](ErrorKind::Device); [`WouldDeadlock`](ErrorKind::WouldDeadlock) if the calling thread
    /// holds a page exclusively.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<f32>::new(10_000)?;
    /// array.fill(100..200, 5.0)?;
    /// let found = array.section(50..)?.find_where(60.., Field::whole().ge(2.5), 3)?;
    /// assert_eq!((found.indices, found.total), (vec![60, 61, 62], 90));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn find_where(
        self,
        bounds: impl RangeBounds<Self::Index>,
        condition: impl IntoExpr<Self::Row, bool>,
        limit: usize,
    ) -> Result<Found<Self::Index>> {
        let shape = self.region();
        let of = shape.checked(bounds)?;
        let condition = condition.into_expr();
        let lowered = shape.lowered(&of);
        let all = Condition::new(lowered.condition(condition.clone()))?;
        let found = lowered.outcome(self.ask(&lowered.range, &all.seek(limit, true), INTERNAL))?;
        if found.indices.len() < found.total && !shape.is_in_order(&of) {
            let indices = Ordered::new(self, of, condition).first(limit)?;
            return Ok(Found { indices, total: found.total });
        }
        Ok(found.by_index(&shape))
    }

    /// Returns the index of the first element within bounds that meets a condition. Stops early.
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn position_first(
        self,
        bounds: impl RangeBounds<Self::Index>,
        condition: impl IntoExpr<Self::Row, bool>,
    ) -> Result<Option<Self::Index>> {
        let of = self.region().checked(bounds)?;
        Ok(Ordered::new(self, of, condition.into_expr()).first(1)?.first().copied())
    }

    /// Returns true if any element within bounds meets a condition. The search stops soon after a match.
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn any(
        self,
        bounds: impl RangeBounds<Self::Index>,
        condition: impl IntoExpr<Self::Row, bool>,
    ) -> Result<bool> {
        let shape = self.region();
        let lowered = shape.lowered(&shape.checked(bounds)?);
        let condition = Condition::new(lowered.condition(condition))?;
        let found = self.ask(&lowered.range, &condition.seek(1, false), INTERNAL);
        Ok(!lowered.outcome(found)?.indices.is_empty())
    }

    /// Returns true if all elements within bounds meet a condition. Stops soon after one that does not.
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn all(
        self,
        bounds: impl RangeBounds<Self::Index>,
        condition: impl IntoExpr<Self::Row, bool>,
    ) -> Result<bool> {
        self.any(bounds, !condition.into_expr()).map(|any| !any)
    }

    /// Returns the sum of an expression's values over the elements. Integers are added exactly.
    ///
    /// Floats are added in `f64`, from +0, in an order that depends only on the devices, the channels and the
    /// bounds. The same call on the same contents therefore returns the same sum. For a source this holds if
    /// the same elements are on devices. Each element is read once. The rounding differs from a sum in
    /// ascending order.
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn sum<F: Summed>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        what: impl IntoFiltered<Self::Row, F>,
    ) -> Result<F::Sum> {
        reduced(self, bounds, what, |what| Total::new(what))
    }

    /// Returns the least value of an expression; `None` without elements or if all values are NaNs. NaNs are
    /// ignored, and a zero is returned as +0.
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn min<F: Scalar + Number>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        what: impl IntoFiltered<Self::Row, F>,
    ) -> Result<Option<F>> {
        self.arg_min(bounds, what).map(|found| found.map(|(_, value)| value))
    }

    /// Returns the greatest value of an expression; see [`min`](Self::min).
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn max<F: Scalar + Number>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        what: impl IntoFiltered<Self::Row, F>,
    ) -> Result<Option<F>> {
        self.arg_max(bounds, what).map(|found| found.map(|(_, value)| value))
    }

    /// Returns the least and the greatest value of an expression, in one pass; see [`min`](Self::min).
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn min_max<F: Scalar + Number>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        what: impl IntoFiltered<Self::Row, F>,
    ) -> Result<Option<(F, F)>> {
        let (least, greatest) = reduced(self, bounds, what, |what| Extremes::new(what, true, true))?;
        Ok(least.zip(greatest).map(|((_, least), (_, greatest))| (least, greatest)))
    }

    /// Returns the least value and the index of its first element; see [`min`](Self::min). Of several such
    /// elements, the first is the first in storage order.
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn arg_min<F: Scalar + Number>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        what: impl IntoFiltered<Self::Row, F>,
    ) -> Result<Option<(Self::Index, F)>> {
        let (least, _) = reduced(self, bounds, what, |what| Extremes::new(what, true, false))?;
        Ok(least.and_then(|(place, value)| Some((self.region().index_at(place)?, value))))
    }

    /// Returns the greatest value and the index of its first element; see [`arg_min`](Self::arg_min).
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where).
    fn arg_max<F: Scalar + Number>(
        self,
        bounds: impl RangeBounds<Self::Index>,
        what: impl IntoFiltered<Self::Row, F>,
    ) -> Result<Option<(Self::Index, F)>> {
        let (_, greatest) = reduced(self, bounds, what, |what| Extremes::new(what, false, true))?;
        Ok(greatest.and_then(|(place, value)| Some((self.region().index_at(place)?, value))))
    }

    /// Returns a histogram: the number of elements for each value from 0 to below `bins`; other values are
    /// ignored. A negative number or a NaN becomes 0 in a [cast](crate::expr) to `u32`; `only_where` can
    /// exclude such elements.
    ///
    /// # Errors
    /// The errors of [`find_where`](Self::find_where), and [`BinCount`](ErrorKind::BinCount) unless `bins`
    /// is 1 to 4096.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<f32>::new(1000)?;
    /// array.fill(..300, 2.5)?;
    /// let bin = (Field::whole() * 2.0).cast::<u32>();
    /// assert_eq!(array.histogram(.., bin, 6)?, [700, 0, 0, 0, 0, 300]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    fn histogram(
        self,
        bounds: impl RangeBounds<Self::Index>,
        bin: impl IntoFiltered<Self::Row, u32>,
        bins: usize,
    ) -> Result<Vec<u64>> {
        reduced(self, bounds, bin, |bin| Histogram::new(bin, bins))
    }
}

/// Submits a reduction of an expression to the devices, and returns its result.
fn reduced<'a, Q: Query<'a>, F: Scalar, R: Question>(
    query: Q,
    bounds: impl RangeBounds<Q::Index>,
    what: impl IntoFiltered<Q::Row, F>,
    reduction: impl FnOnce(Filtered<Q::Row, F>) -> Result<R>,
) -> Result<R::Whole> {
    let shape = query.region();
    let lowered = shape.lowered(&shape.checked(bounds)?);
    lowered.outcome(query.ask(&lowered.range, &reduction(lowered.filtered(what))?, INTERNAL))
}

/// Assignments by expressions. Implemented for every [`ViewMut`], and for joins if the first view is
/// writable.
///
/// ```
/// use vmarray::{expr::index, prelude::*};
///
/// let (squares, roots) = (VirtualArray::<u64>::new(100)?, VirtualArray::<u64>::new(100)?);
/// roots.section_mut(1..)?.transform(.., Field::whole().set(index() + 1))?;
/// let joined = squares.join((&roots,))?;
/// let (square, root) = joined.rows();
/// let root = root.get(Field::whole());
/// joined.transform(.., square.set(Field::whole(), root.clone() * root))?;
/// assert_eq!(squares.get(9)?, 81);
/// squares.assign_where(.., Field::whole().gt(50), Field::whole().set(50))?;
/// assert_eq!((squares.get(7)?, squares.get(8)?), (49, 50));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait QueryMut<'a>: Query<'a> {
    #[doc(hidden)]
    fn assign(self, range: &Range<usize>, plan: &Plan, _: Internal) -> Result<()>;

    /// Assigns values to fields of all elements within bounds, on the devices.
    ///
    /// One call assigns up to eight fields. A device computes all values from the element's old contents.
    /// Each element changes atomically: other threads see all of its new fields or none. Accesses to a page
    /// wait while a device works on it.
    ///
    /// # Errors
    /// The errors of [`find_where`](Query::find_where); [`AssignmentCount`](ErrorKind::AssignmentCount);
    /// [`Interrupted`](ErrorKind::Interrupted) lists the changed and the unspecified elements.
    fn transform(
        self,
        bounds: impl RangeBounds<Self::Index>,
        assignments: impl IntoAssignments<Self::Row>,
    ) -> Result<()> {
        assigned(self, bounds, None, assignments)
    }

    /// Like [`transform`](Self::transform), but changes only elements that meet a condition.
    ///
    /// # Errors
    /// The errors of [`transform`](Self::transform).
    fn assign_where(
        self,
        bounds: impl RangeBounds<Self::Index>,
        condition: impl IntoExpr<Self::Row, bool>,
        assignments: impl IntoAssignments<Self::Row>,
    ) -> Result<()> {
        assigned(self, bounds, Some(condition.into_expr()), assignments)
    }
}

/// Assigns to all rows within bounds, or only to rows that meet a condition.
fn assigned<'a, Q: QueryMut<'a>>(
    query: Q,
    bounds: impl RangeBounds<Q::Index>,
    condition: Option<Expr<Q::Row, bool>>,
    assignments: impl IntoAssignments<Q::Row>,
) -> Result<()> {
    let shape = query.region();
    let lowered = shape.lowered(&shape.checked(bounds)?);
    let condition = match condition {
        Some(condition) => Some(lowered.condition(condition)),
        None => lowered.inside.clone(),
    };
    let plan = Plan::new(condition, assignments_counted_from(assignments, lowered.origin))?;
    lowered.outcome(query.assign(&lowered.range, &plan, INTERNAL))
}

/// A search that returns its matches in the order of their indices, one batch at a time.
struct Ordered<'a, Q: Query<'a>> {
    query: Q,
    shape: Q::Shape,
    condition: Expr<Q::Row, bool>,
    /// The regions that are not completely searched, each with the storage index where its search continues.
    /// The next region is last.
    rest: Vec<(Range<Q::Index>, usize)>,
    marker: PhantomData<&'a ()>,
}

impl<'a, Q: Query<'a>> Ordered<'a, Q> {
    fn new(query: Q, of: Range<Q::Index>, condition: Expr<Q::Row, bool>) -> Self {
        let mut search =
            Self { query, shape: query.region(), condition, rest: Vec::new(), marker: PhantomData };
        search.push(of, 0);
        search
    }

    fn push(&mut self, of: Range<Q::Index>, from: usize) {
        if self.shape.cut(&of).count() > 0 {
            self.rest.push((of, from));
        }
    }

    fn first(&mut self, limit: usize) -> Result<Vec<Q::Index>> {
        let mut indices = Vec::new();
        while indices.len() < limit {
            let places = self.next(limit - indices.len())?;
            if places.is_empty() {
                break;
            }
            let start = indices.len();
            indices.extend(places.iter().filter_map(|place| self.shape.index_at(*place)));
            indices[start..].sort_unstable();
        }
        Ok(indices)
    }

    /// Returns the storage indices of the next matches in ascending order; empty at the end.
    fn next(&mut self, limit: usize) -> Result<Vec<usize>> {
        while let Some((of, from)) = self.rest.pop() {
            let lowered = self.shape.lowered(&of);
            let range = lowered.range.start.max(from)..lowered.range.end;
            if range.is_empty() {
                continue;
            }
            let condition = Condition::new(lowered.condition(self.condition.clone()))?;
            let mut found = self.query.ask(&range, &condition.seek(limit, false), INTERNAL)?.indices;
            if found.len() == limit {
                for (of, from) in self.shape.rest(of, &mut found) {
                    self.push(of, from);
                }
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }
}

impl<'a, V: View<'a>> Query<'a> for V {
    type Row = V::Element;
    type Index = <V as View<'a>>::Index;
    type Shape = <V as View<'a>>::Shape;

    fn region(self) -> Self::Shape {
        self.parts().1
    }

    fn ask<R: Question>(self, range: &Range<usize>, question: &R, _: Internal) -> Result<R::Whole> {
        self.parts().0.ask(&[], range, question, INTERNAL)
    }
}

impl<'a, V: ViewMut<'a>> QueryMut<'a> for V {
    fn assign(self, range: &Range<usize>, plan: &Plan, _: Internal) -> Result<()> {
        self.parts().0.as_target(INTERNAL).change(&[], range, plan)
    }
}
