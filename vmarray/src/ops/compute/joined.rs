//! Several arrays and sources of the same length, element by element.

use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};

use backend_api::Device;
use bytemuck::NoUninit;

use super::{Other, Plan};
use crate::array::VirtualArray;
use crate::array::range::checked as checked_range;
use crate::base::element::{Element, Field};
use crate::base::error::{ErrorKind, Result};
use crate::ops::expr::{Assignment, Expr, IntoAssignments, IntoExpr, Scalar};

/// An array or a [`Source`](crate::Source) together with others of the same length, however each of them is placed:
/// for values that are computed from several and written to the first.
///
/// Where all are arrays that are placed alike (the same devices, channels and page length), their elements are worked
/// on where they lie. Else those of the others are read and copied to the first one's devices, some MiB at a time, by
/// each operation.
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
    target: &'a dyn Target<T, D>,
    others: Vec<&'a dyn Other<D>>,
    marker: PhantomData<fn(O) -> O>,
}

/// What can be written to together with others: an array or a source.
pub(crate) trait Target<T: Element, D: Device>: Sync {
    /// How many elements there are.
    fn len(&self) -> usize;
    /// Writes to a range what is computed from it and from the same range of others, which are as long.
    fn store(&self, others: &[&dyn Other<D>], range: &Range<usize>, plan: &Plan) -> Result<()>;
}

impl<T: Element, D: Device> Target<T, D> for VirtualArray<T, D> {
    fn len(&self) -> usize {
        self.len()
    }

    fn store(&self, others: &[&dyn Other<D>], range: &Range<usize>, plan: &Plan) -> Result<()> {
        self.store(others, range, plan)
    }
}

impl<'a, T: Element, O: Joinable<'a, T, D>, D: Device> std::fmt::Debug for Joined<'a, T, O, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined")
            .field("len", &self.target.len())
            .field("others", &self.others.len())
            .finish_non_exhaustive()
    }
}

/// The elements of one of several that are joined: of type `T`, in expressions over `S`. `N` is its number among them:
/// 0 for the one that is written to.
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
    /// The value of a field of this one's element. See [`Row`].
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
    pub fn get<F: Scalar + NoUninit>(self, field: Field<T, F>) -> Expr<S, F> {
        Expr::field(N, field.offset())
    }
}

impl<S, T: Element> Row<(T, S), T, 0> {
    /// What writes a value to a field of this one, which is the first. See [`Row`].
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
    pub fn set<F: Scalar + NoUninit>(
        self,
        field: Field<T, F>,
        value: impl IntoExpr<(T, S), F>,
    ) -> Assignment<(T, S)> {
        value.into_expr().assigned(0, field.offset())
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// One of what is [joined](VirtualArray::join), to be read, as that one is known to this crate alone.
#[doc(hidden)]
pub struct Joint<'a, D: Device>(&'a dyn Other<D>);

impl<'a, D: Device> Joint<'a, D> {
    pub(crate) fn new(other: &'a dyn Other<D>) -> Self {
        Self(other)
    }
}

/// A reference to an array or to a [`Source`](crate::Source), over a kind of devices.
///
/// ```
/// use vmarray::{AnyDevice, Source, VirtualArray, compute::Column};
/// fn element_bytes<'a>(_: impl Column<'a, AnyDevice, Element = u64>) -> usize {
///     size_of::<u64>()
/// }
/// let (array, source) = (VirtualArray::<u64>::new(10)?, Source::new(vec![0_u64; 10])?);
/// assert_eq!(element_bytes(&array), element_bytes(&source));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Column<'a, D: Device>: sealed::Sealed + Copy {
    /// The type of its elements.
    type Element: Element;
    #[doc(hidden)]
    fn joint(self) -> Joint<'a, D>;
}

impl<T: Element, D: Device> sealed::Sealed for &VirtualArray<T, D> {}

impl<'a, T: Element, D: Device> Column<'a, D> for &'a VirtualArray<T, D> {
    type Element = T;

    fn joint(self) -> Joint<'a, D> {
        Joint::new(self)
    }
}

/// What can be [joined](VirtualArray::join): a tuple of one to three references to arrays and sources over the same
/// kind of devices.
///
/// ```
/// use vmarray::{AnyDevice, Source, VirtualArray, compute::Joinable};
/// fn check<'a>(_: impl Joinable<'a, u32, AnyDevice>) {}
/// let (b, c) = (VirtualArray::<f64>::new(10)?, Source::new(vec![0_u8; 10])?);
/// check((&b,));
/// check((&b, &b));
/// check((&c, &b));
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Joinable<'a, T: Element, D: Device>: sealed::Sealed + Copy {
    /// The element types of the others, in expressions together with that of the first.
    type Elements;
    /// Their rows, that of the first included.
    type Rows;
    /// See [`Joined::rows`].
    #[doc(hidden)]
    fn rows() -> Self::Rows;
    #[doc(hidden)]
    fn joints(self) -> Vec<Joint<'a, D>>;
}

macro_rules! joinable {
    ($Tuple:ty; $($A:ident $a:ident $n:literal),*) => {
        impl<$($A: sealed::Sealed),*> sealed::Sealed for ($($A,)*) {}

        impl<'a, T: Element, $($A: Column<'a, D>,)* D: Device> Joinable<'a, T, D> for ($($A,)*) {
            type Elements = $Tuple;
            type Rows = (Row<(T, $Tuple), T, 0>, $(Row<(T, $Tuple), $A::Element, $n>,)*);

            fn rows() -> Self::Rows {
                (Row::NEW, $(Row::<(T, $Tuple), $A::Element, $n>::NEW,)*)
            }

            fn joints(self) -> Vec<Joint<'a, D>> {
                let ($($a,)*) = self;
                vec![$($a.joint()),*]
            }
        }
    };
}
joinable!((A::Element,); A a 1);
joinable!((A::Element, B::Element); A a 1, B b 2);
joinable!((A::Element, B::Element, C::Element); A a 1, B b 2, C c 3);

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// This array together with other arrays and sources, to write to this one what is computed from all. See
    /// [`Joined`].
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
        Joined::new(self, others)
    }
}

impl<'a, T: Element, O: Joinable<'a, T, D>, D: Device> Joined<'a, T, O, D> {
    /// # Errors
    /// [`LengthMismatch`](ErrorKind::LengthMismatch).
    pub(crate) fn new(target: &'a dyn Target<T, D>, others: O) -> Result<Self> {
        let (expected, others) = (target.len(), others.joints());
        let others: Vec<_> = others.into_iter().map(|Joint(other)| other).collect();
        if let Some(got) = others.iter().map(|other| other.len()).find(|len| *len != expected) {
            return Err(ErrorKind::LengthMismatch { of: "what is joined", expected, got }.into());
        }
        Ok(Self { target, others, marker: PhantomData })
    }

    /// The elements of all, for expressions: first that of the one that is written to.
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

    /// As [`VirtualArray::transform`], or that of [`Source`](crate::Source), with values from all.
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
        let range = checked_range(range, self.target.len())?;
        let plan = Plan::new(None, assignments.into_assignments())?;
        self.target.store(&self.others, &range, &plan)
    }

    /// As [`VirtualArray::assign_where`], or that of [`Source`](crate::Source), with a condition and values from all.
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
        let range = checked_range(range, self.target.len())?;
        let plan = Plan::new(Some(condition.into_expr()), assignments.into_assignments())?;
        self.target.store(&self.others, &range, &plan)
    }
}
