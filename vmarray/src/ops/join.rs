//! Joins of equally long arrays and sources (memory of the program), element by element (like `zip`).

use std::marker::PhantomData;
use std::ops::Range;

use crate::base::element::{Element, Field};
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::ops::executor::{Operand, OperandStore, Question};
use crate::ops::expr::{Assignment, Expr, FieldType, IntoExpr};
use crate::ops::launch::{Broadcast, Reordered, Shown};
use crate::ops::query::{Plan, Query, QueryMut};
use crate::ops::sealed::{INTERNAL, Internal, Sealed};
use crate::ops::view::{Shape as _, Store, StoreMut as _, StoredBox, View, ViewMut};

/// Joins of a [`View`] with other views of the same shape, element by element.
///
/// ```
/// use vmarray::prelude::*;
/// let (a, b) = (VirtualArray::<u8>::new(9)?, Source::new(vec![7_u8; 9])?);
/// let joined = a.join((&b,))?;
/// let (x, y) = joined.rows();
/// joined.transform(.., x.set(Field::whole(), y.get(Field::whole())))?;
/// assert_eq!(a.get(8)?, 7);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Join<'a>: View<'a> {
    /// Joins the view with others of the same shape, element by element, so that expressions can use the
    /// fields of all views. The argument is a tuple of one to seven views, of any element types: arrays,
    /// sources, sections or boxes. A [shifted](crate::boundary::BoundaryView::shifted) view contributes each
    /// element's neighbour at a fixed distance.
    ///
    /// # Errors
    /// [`LengthMismatch`](ErrorKind::LengthMismatch) if the lengths differ, or
    /// [`KernelShape`](ErrorKind::KernelShape) for boxes; [`RankMismatch`](ErrorKind::RankMismatch) if the
    /// view has fewer axes than its store.
    fn join<O: Joinable<'a, Self>>(self, others: O) -> Result<Joined<'a, Self, O>> {
        Joined::new(self, others)
    }
}

impl<'a, V: View<'a>> Join<'a> for V {}

/// A view joined with other views of the same shape, element by element: see [`Join::join`]. The views may be
/// in different arrays. [`Query`] reads all views, and [`QueryMut`] writes to the first view.
///
/// Devices work in place if all views are ranges of arrays with the same devices, channels (shares of
/// devices) and page length, and begin at the same index. Boxes must also be stored in the same order.
/// Otherwise each operation copies some MiB at a time:
///
/// - A change copies the other views' elements to the devices of the first view.
/// - A query copies all elements to one device.
/// - Elements of arrays do not pass through the host if the devices can access each other
///   ([`ChannelStats::bytes_past_host`](crate::stats::ChannelStats)).
/// - The host reorders elements of views that are [shifted](crate::boundary::BoundaryView::shifted), or
///   stored in another order than the first view.
///
/// ```
/// use vmarray::prelude::*;
/// let (a, b, c) = (VirtualArray::<f32>::new(1000)?, VirtualArray::<f32>::new(1000)?, VirtualArray::<u8>::new(1000)?);
/// b.fill(.., 2.0)?;
/// c.fill(500.., 3)?;
/// let joined = a.join((&b, &c))?;
/// let (x, y, z) = joined.rows();
/// let sum = y.get(Field::whole()) + z.get(Field::whole()).cast::<f32>();
/// joined.assign_where(.., z.get(Field::whole()).gt(0), x.set(Field::whole(), sum))?;
/// assert_eq!((a.get(499)?, a.get(500)?), (0.0, 5.0));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Joined<'a, V: View<'a>, O: Joinable<'a, V>> {
    target: V,
    others: O,
    /// The location of the first view's elements in its store.
    stored: StoredBox,
    marker: PhantomData<&'a ()>,
}

impl<'a, V: View<'a>, O: Joinable<'a, V>> std::fmt::Debug for Joined<'a, V, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined").field("len", &self.target.len()).finish_non_exhaustive()
    }
}

/// One of the joined views after the first.
enum Other<'a> {
    /// Elements that are stored in the same order as the first view's.
    Stored(Operand<'a>),
    /// Elements in another order, which the host reorders, with their store and their range in the store.
    Put(Reordered<'a>, &'a dyn OperandStore, Range<usize>),
}

/// One of several joined views, for expressions that read its elements. `N` is the index of the view (0 for
/// the view that operations write to), `T` the type of its elements, and `S` the type of a row: one element
/// of each view.
///
/// ```
/// use vmarray::{expr::index, prelude::*};
///
/// let (a, b) = (VirtualArray::<u64>::new(9)?, VirtualArray::<[u16; 2]>::new(9)?);
/// b.fill(.., [1, 2])?;
/// let joined = a.join((&b,))?;
/// let (x, y) = joined.rows();
/// let second = y.get(Field::<[u16; 2], [u16; 2]>::whole().nth::<1>()).cast::<u64>();
/// joined.transform(.., x.set(Field::whole(), second + index()))?;
/// assert_eq!(a.get(8)?, 10);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct Row<S, T, const N: u8> {
    marker: PhantomData<fn(&S, &T)>,
}

impl<S, T, const N: u8> Clone for Row<S, T, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, T, const N: u8> Copy for Row<S, T, N> {}

impl<S, T, const N: u8> std::fmt::Debug for Row<S, T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row").field("source", &N).finish()
    }
}

impl<S, T, const N: u8> Row<S, T, N> {
    const NEW: Self = Self { marker: PhantomData };
}

impl<S, T: Element, const N: u8> Row<S, T, N> {
    /// Returns an expression: the value of a field of this view's element. See [`Row`].
    pub fn get<F: FieldType>(self, field: Field<T, F>) -> Expr<S, F::Value> {
        Expr::field::<F>(N, field.offset())
    }
}

impl<S, T: Element> Row<(T, S), T, 0> {
    /// Returns an assignment of a value to a field of this view, which must be the first view. See [`Row`].
    ///
    /// The other views are read only. An assignment to another view does not compile, even if all views have
    /// the same element type:
    ///
    /// ```compile_fail,E0599
    /// use vmarray::prelude::*;
    /// let (a, b) = (VirtualArray::<u64>::new(9)?, VirtualArray::<u64>::new(9)?);
    /// let joined = a.join((&b,))?;
    /// let (_, y) = joined.rows();
    /// let assignment = y.set(Field::whole(), 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn set<F: FieldType>(
        self,
        field: Field<T, F>,
        value: impl IntoExpr<(T, S), F::Value>,
    ) -> Assignment<(T, S)> {
        value.into_expr().assigned::<F>(0, field.offset())
    }
}

/// A view that can be [joined](Join::join) to a view of the same shape: every [`View`], even if its devices
/// have another type, and every [shifted](crate::boundary::BoundaryView::shifted) view.
///
/// ```
/// use vmarray::{compute::Column, prelude::*};
///
/// fn element_bytes<'a>(_: impl Column<'a, Element = u64>) -> usize {
///     size_of::<u64>()
/// }
/// let (array, source) = (VirtualArray::<u64>::new(10)?, Source::new(vec![0_u64; 10])?);
/// assert_eq!(element_bytes(&array), element_bytes(source.section(5..)?));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Column<'a>: Sealed + Copy {
    /// The type of the column's (joined view's) elements.
    type Element: Element;
    /// Returns the elements in the common form of all joins.
    #[doc(hidden)]
    fn listed(self, _: Internal) -> ColumnElements<'a>;
}

/// The elements of a column (joined view), in a form that is the same for all types of columns.
#[doc(hidden)]
#[allow(missing_debug_implementations, reason = "holds what reads elements")]
pub struct ColumnElements<'a> {
    pub(crate) extents: Vec<usize>,
    pub(crate) store: &'a dyn OperandStore,
    /// The location of the elements in the store, if known.
    pub(crate) stored: Option<StoredBox>,
    /// True if the column's elements are not the ones stored at that location, as in a shifted view.
    pub(crate) is_moved: bool,
    /// Reads elements by position.
    pub(crate) of: Box<dyn Broadcast + 'a>,
}

impl<'a, V: View<'a> + 'a> Column<'a> for V {
    type Element = <V as View<'a>>::Element;

    fn listed(self, _: Internal) -> ColumnElements<'a> {
        let (store, shape) = self.parts();
        ColumnElements {
            extents: shape.axes(),
            store: store.as_operand(INTERNAL),
            stored: shape.stored(),
            is_moved: false,
            of: Box::new(Shown(self)),
        }
    }
}

impl<'a> ColumnElements<'a> {
    /// Returns the column in the order of the first view's elements, whose location is `like`.
    fn beside(self, like: &StoredBox) -> Other<'a> {
        let range = self.stored.as_ref().map_or(0..usize::MAX, StoredBox::range);
        let is_alike = |stored: &StoredBox| match (&stored.axes[..], &like.axes[..]) {
            ([_], [_]) => true,
            (own, others) => own == others,
        };
        match self.stored.is_some_and(|stored| is_alike(&stored)) && !self.is_moved {
            true => Other::Stored(Operand::new(self.store, range.start)),
            false => Other::Put(Reordered { of: self.of, like: like.clone() }, self.store, range),
        }
    }
}

/// A [`Column`] whose element type is known only at run time. Join a slice of such columns, of any length, to
/// a view, and build expressions over the join [from programs](Expr::from_program).
///
/// ```
/// use vmarray::compute::AnyColumn;
/// use vmarray::device::expr::{Binary, Instruction, Program, Type, Value};
/// use vmarray::{expr::Expr, prelude::*};
///
/// let (a, b, c) = (VirtualArray::<u64>::new(9)?, Source::new(vec![3_u64; 9])?, Source::new(vec![0_u8; 9])?);
/// let columns = [AnyColumn::new(&b), AnyColumn::new(&c)];
/// let joined = a.join(&columns[..])?;
/// let program = Program::new(vec![
///     Instruction::Field { source: 1, offset: 0, of: Type::U64 },
///     Instruction::Binary { op: Binary::Mul, left: Value(0), right: Value(0) },
/// ])?;
/// joined.transform(.., joined.rows().0.set(Field::whole(), Expr::from_program(&program, Value(1))?))?;
/// assert_eq!(a.get(8)?, 9);
/// // A field of a source that is not there, or outside of its element.
/// for (source, offset) in [(3, 0), (1, 1), (2, 0)] {
///     let program = Program::new(vec![Instruction::Field { source, offset, of: Type::U64 }])?;
///     assert!(joined.sum(.., Expr::<_, u64>::from_program(&program, Value(0))?).is_err());
/// }
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct AnyColumn<'a>(Box<dyn Fn() -> ColumnElements<'a> + 'a>);

impl<'a> AnyColumn<'a> {
    /// Wraps a column (a view to be joined) of any element type.
    pub fn new(column: impl Column<'a> + 'a) -> Self {
        Self(Box::new(move || column.listed(INTERNAL)))
    }
}

impl std::fmt::Debug for AnyColumn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyColumn").finish_non_exhaustive()
    }
}

impl Sealed for &[AnyColumn<'_>] {}

impl<'a, V: View<'a>> Joinable<'a, V> for &[AnyColumn<'a>] {
    type Elements = ();
    type Rows = (Row<(V::Element, ()), V::Element, 0>,);

    fn rows() -> Self::Rows {
        (Row::NEW,)
    }

    fn listed(self, _: Internal) -> Vec<ColumnElements<'a>> {
        self.iter().map(|column| column.0()).collect()
    }
}

/// The columns that [`join`](Join::join) adds to a view: a tuple of one to seven [columns](Column), or a
/// slice of [columns of any type](AnyColumn).
///
/// ```
/// use vmarray::{compute::Joinable, prelude::*};
///
/// fn check<'a, V: View<'a>>(_: V, _: impl Joinable<'a, V>) {}
/// let (a, b, c) = (VirtualArray::<u32>::new(10)?, VirtualArray::<f64>::new(10)?, Source::new(vec![0_u8; 10])?);
/// check(&a, (&b,));
/// check(&a, (&b, &b));
/// check(&a, (&c, &b, a.section(..)?));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Joinable<'a, V: View<'a>>: Sealed + Copy {
    /// The element types of the columns. With the type of the first view, they form the row type.
    type Elements;
    /// One [`Row`] for each joined view, in a tuple that begins with the first view.
    type Rows;
    /// Returns one [`Row`] for each joined view.
    #[doc(hidden)]
    fn rows() -> Self::Rows;
    #[doc(hidden)]
    fn listed(self, _: Internal) -> Vec<ColumnElements<'a>>;
}

macro_rules! joinable {
    ($($A:ident $a:ident $n:literal),*) => {
        impl<$($A: Sealed),*> Sealed for ($($A,)*) {}

        impl<'a, V: View<'a>, $($A: Column<'a>),*> Joinable<'a, V> for ($($A,)*) {
            type Elements = ($($A::Element,)*);
            type Rows = (
                Row<(V::Element, <Self as Joinable<'a, V>>::Elements), V::Element, 0>,
                $(Row<(V::Element, <Self as Joinable<'a, V>>::Elements), $A::Element, $n>,)*
            );

            fn rows() -> Self::Rows {
                (Row::NEW, $(Row::<_, $A::Element, $n>::NEW,)*)
            }

            fn listed(self, _: Internal) -> Vec<ColumnElements<'a>> {
                let ($($a,)*) = self;
                vec![$($a.listed(INTERNAL)),*]
            }
        }
    };
}
joinable!(A a 1);
joinable!(A a 1, B b 2);
joinable!(A a 1, B b 2, C c 3);
joinable!(A a 1, B b 2, C c 3, E e 4);
joinable!(A a 1, B b 2, C c 3, E e 4, F f 5);
joinable!(A a 1, B b 2, C c 3, E e 4, F f 5, G g 6);
joinable!(A a 1, B b 2, C c 3, E e 4, F f 5, G g 6, H h 7);

impl<'a, V: View<'a>, O: Joinable<'a, V>> Joined<'a, V, O> {
    pub(crate) fn new(target: V, others: O) -> Result<Self> {
        let (_, shape) = target.parts();
        let expected = shape.axes();
        for other in others.listed(INTERNAL) {
            match (&expected[..], &other.extents[..]) {
                ([expected], [got]) => expect_len("the other view of the join", *expected, *got)?,
                (expected, got) if expected != got => {
                    let (kernel, argument) = ("join".into(), "others".into());
                    let (expected, got) = (expected.to_vec(), got.to_vec());
                    return Err(ErrorKind::KernelShape {
                        kernel,
                        place: String::new(),
                        argument,
                        expected,
                        got,
                    }
                    .into());
                }
                _ => {}
            }
        }
        let Some(stored) = shape.stored() else {
            let got = expected.len();
            return Err(ErrorKind::RankMismatch { expected: got + 1, got }.into());
        };
        Ok(Self { target, others, stored, marker: PhantomData })
    }

    /// Returns one [`Row`] for each joined view, for use in expressions. The first `Row` belongs to the view
    /// that operations write to.
    #[must_use]
    pub fn rows(&self) -> O::Rows {
        O::rows()
    }

    /// Returns the views after the first, in the first view's storage order.
    fn others(&self) -> Vec<Other<'a>> {
        self.others.listed(INTERNAL).into_iter().map(|other| other.beside(&self.stored)).collect()
    }

    /// Returns the elements of the other views that belong to a range of the first view's store.
    fn beside<'o>(&self, others: &'o [Other<'a>], range: &Range<usize>) -> Vec<Operand<'o>> {
        let first = self.stored.range().start;
        let beside = |other: &'o Other<'a>| match other {
            Other::Stored(operand) => operand.further(range.start - first),
            Other::Put(elements, ..) => Operand::new(elements, range.start),
        };
        others.iter().map(beside).collect()
    }
}

impl<'a, V: View<'a>, O: Joinable<'a, V>> Sealed for &Joined<'a, V, O> {}

impl<'a, V: View<'a>, O: Joinable<'a, V>> Query<'a> for &Joined<'a, V, O> {
    type Row = (V::Element, O::Elements);
    type Index = V::Index;
    type Shape = V::Shape;

    fn region(self) -> V::Shape {
        self.target.parts().1
    }

    fn ask<Q: Question>(self, range: &Range<usize>, question: &Q, _: Internal) -> Result<Q::Whole> {
        self.target.parts().0.ask(&self.beside(&self.others(), range), range, question, INTERNAL)
    }
}

impl<'a, V: ViewMut<'a>, O: Joinable<'a, V>> QueryMut<'a> for &Joined<'a, V, O> {
    fn assign(self, range: &Range<usize>, plan: &Plan, _: Internal) -> Result<()> {
        let (target, others) = (self.target.parts().0.as_target(INTERNAL), self.others());
        for other in &others {
            // Return an error if the target and the argument overlap, because the change would read elements
            // that it has already written.
            if let Other::Put(_, store, own) = other
                && std::ptr::addr_eq(*store, target)
                && own.start < range.end
                && range.start < own.end
            {
                let (place, result, argument) =
                    (String::new(), "the first".into(), "one of the others".into());
                return Err(
                    ErrorKind::KernelOverlap { kernel: "join".into(), place, result, argument }.into()
                );
            }
        }
        target.change(&self.beside(&others, range), range, plan)
    }
}
