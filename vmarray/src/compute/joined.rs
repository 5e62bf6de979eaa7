//! Several arrays of the same length, element by element.

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use backend_api::Device;
use bytemuck::NoUninit;

use super::store::{Other, Plan, Writer};
use crate::array::VirtualArray;
use crate::element::{Element, Field};
use crate::error::{ErrorKind, Result};
use crate::expr::{Assignment, Expr, IntoAssignments, IntoExpr, Scalar};

/// An array together with others of the same length, however each of them is placed: for values that are computed from
/// several arrays and written to the first.
///
/// Where all are placed alike (the same devices, channels and page length), their elements are worked on where they
/// lie. Else those of the others are read and copied to the first one's devices, some MiB at a time.
///
/// ```
/// use vmarray::{Field, VirtualArray};
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
pub struct Joined<'a, T: Element, O: Joinable<'a, T, D>, D: Device> {
    target: &'a VirtualArray<T, D>,
    others: O,
    staged: bool,
}

impl<'a, T: Element, O: Joinable<'a, T, D>, D: Device> std::fmt::Debug for Joined<'a, T, O, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined").field("len", &self.target.len()).field("staged", &self.staged).finish()
    }
}

/// The elements of one of several joined arrays: of type `T`, in expressions over `S`. `N` is the array's number among
/// them: 0 for the one that is written to.
///
/// ```
/// use vmarray::{Field, VirtualArray};
/// let (a, b) = (VirtualArray::<u32>::new(9)?, VirtualArray::<u32>::new(9)?);
/// let joined = a.join((&b,))?;
/// let (x, y) = joined.rows();
/// joined.transform(.., x.set(Field::whole(), y.get(Field::whole()) + 1))?;
/// assert_eq!(a.get(8)?, 1);
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
    /// The value of a field of this array's element. See [`Row`].
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let (a, b) = (VirtualArray::<u32>::new(9)?, VirtualArray::<[u16; 2]>::new(9)?);
    /// let joined = a.join((&b,))?;
    /// let (_, y) = joined.rows();
    /// let second = y.get(Field::<[u16; 2], [u16; 2]>::whole().nth::<1>());
    /// # let _ = second;
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn get<F: Scalar + NoUninit>(self, field: Field<T, F>) -> Expr<S, F> {
        Expr::field(N, field.offset())
    }
}

impl<S, T: Element> Row<(T, S), T, 0> {
    /// What writes a value to a field of this array, which is the first one. See [`Row`].
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray, expr::index};
    /// let (a, b) = (VirtualArray::<u64>::new(9)?, VirtualArray::<u64>::new(9)?);
    /// let joined = a.join((&b,))?;
    /// let (x, _) = joined.rows();
    /// joined.transform(.., x.set(Field::whole(), index()))?;
    /// assert_eq!(a.get(8)?, 8);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// The others are only read; to write to them does not compile, whatever their elements are:
    ///
    /// ```compile_fail,E0599
    /// # use vmarray::{Field, VirtualArray};
    /// # let (a, b) = (VirtualArray::<u64>::new(9)?, VirtualArray::<u64>::new(9)?);
    /// # let joined = a.join((&b,))?;
    /// let (_, y) = joined.rows();
    /// let assignment = y.set(Field::whole(), 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn set<F: Scalar + NoUninit>(
        self,
        field: Field<T, F>,
        value: impl IntoExpr<(T, S), F>,
    ) -> Assignment<(T, S)> {
        value.into_expr().assigned(0, field.offset())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What can be [joined](VirtualArray::join): a tuple of one to three references to arrays over the same kind of
/// devices.
///
/// ```
/// use vmarray::{AnyDevice, VirtualArray, compute::Joinable};
/// fn check<'a>(_: impl Joinable<'a, u32, AnyDevice>) {}
/// let b = VirtualArray::<f64>::new(10)?;
/// check((&b,));
/// check((&b, &b));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Joinable<'a, T: Element, D: Device>: sealed::Sealed + Copy {
    /// The element types of the arrays, in expressions together with that of the first.
    type Elements;
    /// Their rows, that of the first array included.
    type Rows;
    /// See [`Joined::rows`].
    #[doc(hidden)]
    fn rows() -> Self::Rows;
    #[doc(hidden)]
    fn lengths(self) -> Vec<usize>;
    #[doc(hidden)]
    fn placed_as(self, target: &VirtualArray<T, D>) -> bool;
    #[doc(hidden)]
    fn write(
        self,
        target: &VirtualArray<T, D>,
        range: std::ops::Range<usize>,
        staged: bool,
        plan: &dyn std::any::Any,
    ) -> Result<()>;
}

macro_rules! joinable {
    ($Tuple:ty; $($A:ident $a:ident $n:literal),*) => {
        impl<'a, $($A: Element,)* D: Device> sealed::Sealed for ($(&'a VirtualArray<$A, D>,)*) {}

        impl<'a, T: Element, $($A: Element,)* D: Device> Joinable<'a, T, D> for ($(&'a VirtualArray<$A, D>,)*) {
            type Elements = $Tuple;
            type Rows = (Row<(T, $Tuple), T, 0>, $(Row<(T, $Tuple), $A, $n>,)*);

            fn rows() -> Self::Rows {
                (Row::NEW, $(Row::<(T, $Tuple), $A, $n>::NEW,)*)
            }

            fn lengths(self) -> Vec<usize> {
                let ($($a,)*) = self;
                vec![$($a.len()),*]
            }

            fn placed_as(self, target: &VirtualArray<T, D>) -> bool {
                let ($($a,)*) = self;
                true $(&& are_placed_alike(target, $a))*
            }

            fn write(
                self,
                target: &VirtualArray<T, D>,
                range: std::ops::Range<usize>,
                staged: bool,
                plan: &dyn std::any::Any,
            ) -> Result<()> {
                let ($($a,)*) = self;
                let others: [&dyn Other<D>; _] = [$($a),*];
                match plan.downcast_ref::<Plan>() {
                    Some(plan) => Writer { target, others: &others, staged }.run(&range, plan),
                    None => Ok(()),
                }
            }
        }
    };
}
joinable!((A,); A a 1);
joinable!((A, B); A a 1, B b 2);
joinable!((A, B, C); A a 1, B b 2, C c 3);

/// Whether element `i` of both lies at the same place of the same channel of the same device.
fn are_placed_alike<A: Element, B: Element, D: Device>(
    a: &VirtualArray<A, D>,
    b: &VirtualArray<B, D>,
) -> bool {
    let (one, two) = (a.pager().channels(), b.pager().channels());
    a.page_len() == b.page_len()
        && one.len() == two.len()
        && one.iter().zip(two).all(|(one, two)| Arc::ptr_eq(one.device(), two.device()))
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// This array together with others, to write to this one what is computed from all. See [`Joined`].
    ///
    /// # Errors
    /// [`LengthMismatch`](ErrorKind::LengthMismatch).
    ///
    /// ```
    /// let a = vmarray::VirtualArray::<u32>::new(10)?;
    /// let b = vmarray::VirtualArray::<u32>::new(11)?;
    /// assert!(a.join((&b,)).is_err());
    /// assert!(a.join((&a,)).is_ok());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn join<'a, O: Joinable<'a, T, D>>(&'a self, others: O) -> Result<Joined<'a, T, O, D>> {
        let expected = self.len();
        if let Some(got) = others.lengths().into_iter().find(|len| *len != expected) {
            return Err(ErrorKind::LengthMismatch { expected, got }.into());
        }
        Ok(Joined { target: self, others, staged: !others.placed_as(self) })
    }
}

impl<'a, T: Element, O: Joinable<'a, T, D>, D: Device> Joined<'a, T, O, D> {
    /// The elements of all arrays, for expressions: first that of the array that is written to.
    ///
    /// ```
    /// let (a, b) = (vmarray::VirtualArray::<u32>::new(9)?, vmarray::VirtualArray::<f64>::new(9)?);
    /// let joined = a.join((&b, &a))?;
    /// let (x, y, z) = joined.rows();
    /// # let _ = (x, y, z);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn rows(&self) -> O::Rows {
        O::rows()
    }

    /// As [`VirtualArray::transform`], with values from all arrays.
    ///
    /// # Errors
    /// As there, and what [reading](VirtualArray::read) the others reports.
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let (a, b) = (VirtualArray::<i32>::new(9)?, VirtualArray::<i32>::new(9)?);
    /// b.fill(.., 4)?;
    /// let joined = a.join((&b,))?;
    /// let (x, y) = joined.rows();
    /// joined.transform(3.., x.set(Field::whole(), y.get(Field::whole()) * -2))?;
    /// assert_eq!(a.to_vec(2..4)?, [0, -8]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn transform(
        &self,
        range: impl RangeBounds<usize>,
        assignments: impl IntoAssignments<(T, O::Elements)>,
    ) -> Result<()> {
        let range = self.target.checked_range(range)?;
        let plan = Plan::new(None, assignments.into_assignments())?;
        self.others.write(self.target, range, self.staged, &plan)
    }

    /// As [`VirtualArray::assign_where`], with a condition and values from all arrays.
    ///
    /// # Errors
    /// As [`transform`](Self::transform).
    ///
    /// ```
    /// use vmarray::{Field, VirtualArray};
    /// let (a, b) = (VirtualArray::<i32>::new(9)?, VirtualArray::<i32>::new(9)?);
    /// b.fill(4.., 4)?;
    /// let joined = a.join((&b,))?;
    /// let (x, y) = joined.rows();
    /// let (x_value, y_value) = (x.get(Field::whole()), y.get(Field::whole()));
    /// joined.assign_where(.., y_value.gt(x_value), x.set(Field::whole(), 1))?;
    /// assert_eq!(a.to_vec(3..5)?, [0, 1]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn assign_where(
        &self,
        range: impl RangeBounds<usize>,
        condition: impl IntoExpr<(T, O::Elements), bool>,
        assignments: impl IntoAssignments<(T, O::Elements)>,
    ) -> Result<()> {
        let range = self.target.checked_range(range)?;
        let plan = Plan::new(Some(condition.into_expr()), assignments.into_assignments())?;
        self.others.write(self.target, range, self.staged, &plan)
    }
}
