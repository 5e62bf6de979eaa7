//! Several arrays and sources of the same length, element by element.

use std::marker::PhantomData;
use std::ops::Range;

use backend_api::Device;
use bytemuck::NoUninit;

use super::Plan;
use crate::base::element::{Element, Field};
use crate::base::error::{ErrorKind, Result};
use crate::ops::executor::{Operand, Question};
use crate::ops::expr::{Assignment, Expr, IntoExpr, Scalar};
use crate::ops::view::sealed::{Internal, Sealed};
use crate::ops::view::{INTERNAL, Linear, Query, QueryMut, Store, StoreMut as _, View, ViewMut};

/// A view together with others of the same length, element by element, however each of them is placed. See
/// [`View::join`]. All operations of [`Query`] ask about several at once, and those of [`QueryMut`] write to
/// the first.
///
/// Where all are ranges of arrays that are placed alike (the same devices, channels and page length) and
/// begin at the same index, their elements are worked on where they lie. Else each operation copies some MiB
/// at a time: what is written, those of the others to the first one's devices; what is asked, all of them to
/// one of those devices.
///
/// ```
/// # use vmarray::prelude::*;
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
    others: Vec<Operand<'a>>,
    marker: PhantomData<fn(O) -> O>,
}

impl<'a, V: View<'a>, O: Joinable<'a, V>> std::fmt::Debug for Joined<'a, V, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined")
            .field("len", &self.target.len())
            .field("others", &self.others.len())
            .finish_non_exhaustive()
    }
}

/// The elements of one of several that are joined: of type `T`, in expressions over `S`. `N` is its number
/// among them: 0 for the one that is written to.
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
    /// The value of a field of this one's element. See [`Row`].
    pub fn get<F: Scalar + NoUninit>(self, field: Field<T, F>) -> Expr<S, F> {
        Expr::field(N, field.offset())
    }
}

impl<S, T: Element> Row<(T, S), T, 0> {
    /// What writes a value to a field of this one, which is the first. See [`Row`].
    ///
    /// The others are only read; to write to them does not compile, whatever their elements are:
    ///
    /// ```compile_fail,E0599
    /// # use vmarray::prelude::*;
    /// # let (a, b) = (VirtualArray::<u64>::new(9)?, VirtualArray::<u64>::new(9)?);
    /// # let joined = a.join((&b,))?;
    /// let (_, y) = joined.rows();
    /// let assignment = y.set(Field::whole(), 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn set<F: Scalar + NoUninit>(
        self,
        field: Field<T, F>,
        value: impl IntoExpr<(T, S), F>,
    ) -> Assignment<(T, S)> {
        value.into_expr().assigned(0, field.offset())
    }
}

/// A [`View`] that can be [joined](View::join) to others, over devices of any kind.
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
pub trait Column<'a>: View<'a, Shape = Linear> {
    #[doc(hidden)]
    fn operand(self, _: Internal) -> (Operand<'a>, usize);
}

impl<'a, D: Device, V: View<'a, Shape = Linear, Store: Store<Device = D>>> Column<'a> for V {
    fn operand(self, _: Internal) -> (Operand<'a>, usize) {
        let (store, shape) = self.parts();
        (Operand::new(store.as_operand(INTERNAL), shape.start), shape.len)
    }
}

/// What can be [joined](View::join) to a view: a tuple of one to seven [columns](Column).
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
    /// The element types of the others, in expressions together with that of the first.
    type Elements;
    /// Their rows, that of the first included.
    type Rows;
    /// See [`Joined::rows`].
    #[doc(hidden)]
    fn rows() -> Self::Rows;
    /// What devices are given, and how long each is.
    #[doc(hidden)]
    fn operands(self, _: Internal) -> Vec<(Operand<'a>, usize)>;
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

            fn operands(self, _: Internal) -> Vec<(Operand<'a>, usize)> {
                let ($($a,)*) = self;
                vec![$($a.operand(INTERNAL)),*]
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

impl<'a, V: View<'a, Shape = Linear>, O: Joinable<'a, V>> Joined<'a, V, O> {
    pub(crate) fn new(target: V, others: O) -> Result<Self> {
        let (expected, others) = (target.len(), others.operands(INTERNAL));
        if let Some(&(_, got)) = others.iter().find(|(_, len)| *len != expected) {
            return Err(ErrorKind::LengthMismatch { of: "what is joined", expected, got }.into());
        }
        let others = others.into_iter().map(|(operand, _)| operand).collect();
        Ok(Self { target, others, marker: PhantomData })
    }

    /// The elements of all, for expressions: first that of the one that is written to.
    #[must_use]
    pub fn rows(&self) -> O::Rows {
        O::rows()
    }

    /// The others' elements beside those of a range of the first one's store.
    fn beside(&self, range: &Range<usize>) -> Vec<Operand<'a>> {
        let (_, shape) = self.target.parts();
        self.others.iter().map(|other| other.further(range.start - shape.start)).collect()
    }
}

impl<'a, V: View<'a>, O: Joinable<'a, V>> Sealed for &Joined<'a, V, O> {}

impl<'a, V: View<'a, Shape = Linear>, O: Joinable<'a, V>> Query<'a> for &Joined<'a, V, O> {
    type Row = (V::Element, O::Elements);
    type Index = usize;
    type Shape = Linear;

    fn region(self) -> Linear {
        self.target.parts().1
    }

    fn ask<Q: Question>(self, range: &Range<usize>, question: &Q, _: Internal) -> Result<Q::Whole> {
        self.target.parts().0.ask(&self.beside(range), range, question, INTERNAL)
    }
}

impl<'a, V: ViewMut<'a, Shape = Linear>, O: Joinable<'a, V>> QueryMut<'a> for &Joined<'a, V, O> {
    fn assign(self, range: &Range<usize>, plan: &Plan, _: Internal) -> Result<()> {
        self.target.parts().0.as_target(INTERNAL).change(&self.beside(range), range, plan)
    }
}
