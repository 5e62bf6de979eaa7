//! Arguments of a [`Session`]'s kernel launches: elements of arrays that it borrows or has copied.

use std::marker::PhantomData;
use std::ops::RangeBounds;

use backend_api::Device;
use vmarray_kernel::{Anywhere, ElementMemory, KernelType, Own, Rows, Shared, kind};
#[cfg(doc)]
use vmarray_kernel::{Parameter, Window};

#[cfg(doc)]
#[cfg(doc)]
use super::Session;
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::pager::Pager;
use crate::ops::launch::broadcast::Modes;
use crate::ops::sealed::Internal;
use crate::ops::view::{INTERNAL, Linear, Shape, StoredBox};

/// Arrays that a [`Session`] can [hold](Session::hold) (borrow for its launches): [`VirtualArray`] and
/// [`NdArray`](crate::NdArray), in rows or tiles. The trait is sealed.
///
/// ```
/// use vmarray::kernel::{Bindable, Session, SessionArray};
/// use vmarray::prelude::*;
///
/// fn both<'a, A: Bindable>(
///     session: &mut Session<'a>,
///     [one, other]: [&'a mut A; 2],
/// ) -> vmarray::Result<[SessionArray<A::Element, A::Shape>; 2]> {
///     Ok([session.hold(one)?, session.hold(other)?])
/// }
/// let [mut a, mut b] = [NdArray::<u8, 2>::new([2, 3])?, NdArray::<u8, 2>::new([2, 3])?];
/// let mut session = Session::new();
/// both(&mut session, [&mut a, &mut b])?;
/// session.finish()?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait Bindable {
    /// Type of the array's elements.
    type Element: ElementMemory;
    /// Shape of the array, which determines the type of its indices.
    type Shape: Shape;

    /// Returns the array's pager, the number of stored elements, and the array's shape.
    #[doc(hidden)]
    fn homes(&self, _: Internal) -> (&Pager, usize, Self::Shape);
}

impl<T: ElementMemory + Element, D: Device> Bindable for VirtualArray<T, D> {
    type Element = T;
    type Shape = Linear;

    fn homes(&self, _: Internal) -> (&Pager, usize, Linear) {
        (self.pager(), self.len(), Linear::whole(self.len()))
    }
}

/// Elements that a [`Session`] has borrowed, as an argument for parameters of type [`Own`], `&mut Own`,
/// [`Anywhere`], [`Window`] and [`Shared`]. [`hold`](Session::hold) returns a whole array,
/// [`section`](Self::section) a part of it.
///
/// ```
/// use vmarray::kernel::{SessionArray, Session};
/// use vmarray::prelude::*;
///
/// let mut array = VirtualArray::<f32>::new(10)?;
/// let mut session = Session::new();
/// let held: SessionArray<f32> = session.hold(&mut array)?;
/// let same = held;
/// # let _ = (held, same);
/// session.finish()?;
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct SessionArray<T, S = Linear> {
    pub(super) of: BindingNumber,
    pub(super) shape: S,
    pub(super) marker: PhantomData<fn() -> T>,
}

/// Elements that a [`Session`] has copied, as an argument for parameters of type [`Own`], [`Anywhere`] and
/// [`Window`]. Returned by [`copy`](Session::copy). Copies of several dimensions are stored row by row.
///
/// ```
/// use vmarray::kernel::{SessionCopy, Own, Session};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn add(by: &Own<u32>, x: &mut Own<u32>) {
///     x.set(x.get() + by.get());
/// }
/// let (mut array, by) = (VirtualArray::<u32>::new(3)?, Source::new(vec![1_u32, 20, 300])?);
/// let mut session = Session::new();
/// let x = session.hold(&mut array)?;
/// let by: SessionCopy<u32> = session.copy(&by)?;
/// for _ in 0..5 {
///     add::run_in(&mut session, (by, x))?;
/// }
/// session.finish()?;
/// assert_eq!(array.to_vec(..)?, [5, 100, 1500]);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub struct SessionCopy<T, S = Linear> {
    pub(super) of: BindingNumber,
    pub(super) shape: S,
    pub(super) marker: PhantomData<fn() -> T>,
}

macro_rules! handles {
    ($($Handle:ident)*) => { $(
        impl<T, S: Copy> Clone for $Handle<T, S> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T, S: Copy> Copy for $Handle<T, S> {}

        impl<T, S> std::fmt::Debug for $Handle<T, S> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($Handle)).field("of", &self.of).finish_non_exhaustive()
            }
        }

        impl<T, S: Shape> $Handle<T, S> {
            /// Returns a part of the elements: a range or a box. The call copies nothing.
            ///
            /// # Errors
            /// The errors of [`section`](crate::views::View::section) of a view.
            ///
            /// ```
            /// use vmarray::kernel::{Own, Session};
            /// use vmarray::prelude::*;
            ///
            /// #[vmarray::kernel]
            /// fn add(by: &Own<u32>, x: &mut Own<u32>) {
            ///     x.set(x.get() + by.get());
            /// }
            /// let (mut array, by) = (VirtualArray::<u32>::new(6)?, VirtualArray::<u32>::new(6)?);
            /// by.fill(.., 3)?;
            /// let mut session = Session::new();
            /// let x = session.hold(&mut array)?;
            /// let threes = session.copy(&by)?;
            /// add::run_in(&mut session, (threes.section(..2)?, x.section(2..4)?))?;
            /// session.finish()?;
            /// assert_eq!(array.to_vec(..)?, [0, 0, 3, 3, 0, 0]);
            /// # Ok::<(), vmarray::Error>(())
            /// ```
            pub fn section(self, bounds: impl RangeBounds<S::Index>) -> Result<Self> {
                Ok(Self { shape: self.shape.cut(&self.shape.checked(bounds)?), ..self })
            }

            pub(crate) fn elements(self) -> Binding {
                Binding::Elements(self.places())
            }

            fn places(&self) -> BindingPlaces {
                let (extents, stored) = (self.shape.axes(), self.shape.stored());
                BindingPlaces { of: self.of, extents, stored }
            }

            /// Adds boundary modes, if devices support them.
            pub(crate) fn with_modes(self, modes: Modes) -> SessionWindow<T, S> {
                SessionWindow { of: self.places(), modes, marker: PhantomData }
            }
        }
    )* };
}
handles!(SessionArray SessionCopy);

/// Elements of a [`Session`] with a boundary mode (the values beyond the edges), as an argument for a
/// parameter `Window<T, N>`. Kernels read the elements in place, without a halo. Created by
/// [`bounded`](SessionArray::bounded). Without a boundary mode, pass the elements themselves; a work-item
/// (GPU thread) then reads no values beyond the edges.
///
/// ```
/// use vmarray::boundary::Circular;
/// use vmarray::kernel::{At, Own, Session, SessionWindow, Window};
/// use vmarray::prelude::*;
///
/// /// Game of life on a ring: a cell with one neighbour changes.
/// #[vmarray::kernel]
/// fn step(at: At<1>, old: &Window<u8, 1>, new: &mut Own<u8>) {
///     let neighbours = old[at.plus(-1)] + old[at.plus(1)];
///     new.set(if neighbours == 1 { 1 - old[at] } else { old[at] });
/// }
/// let (mut one, mut other) = (VirtualArray::<u8>::new(7)?, VirtualArray::<u8>::new(7)?);
/// one.set(0, 1)?;
/// let mut session = Session::new();
/// let (a, b) = (session.hold(&mut one)?, session.hold(&mut other)?);
/// let ring: SessionWindow<u8> = a.bounded(Circular);
/// step::run_in(&mut session, (ring, b))?;
/// step::run_in(&mut session, (b.bounded(Circular), a))?;
/// session.finish()?;
/// assert_eq!(other.to_vec(..)?, [1, 1, 0, 0, 0, 0, 1]);
/// assert_eq!(one.to_vec(..)?, [1, 0, 1, 0, 0, 1, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SessionWindow<T, S = Linear> {
    of: BindingPlaces,
    modes: Modes,
    marker: PhantomData<fn() -> (T, S)>,
}

impl<T, S> SessionWindow<T, S> {
    pub(crate) fn around(self) -> Binding {
        Binding::Around(self.of, self.modes)
    }
}

/// Identifies the elements of one array that a [`Session`] has borrowed or copied: the session's number, and
/// the array's index in the session.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingNumber {
    pub(in crate::ops::launch) session: u64,
    pub(in crate::ops::launch) number: usize,
}

/// A range or box of elements that a [`Session`] has borrowed or copied.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct BindingPlaces {
    pub(in crate::ops::launch) of: BindingNumber,
    pub(in crate::ops::launch) extents: Vec<usize>,
    pub(in crate::ops::launch) stored: Option<StoredBox>,
}

/// An argument of a [`Session`]'s kernel launch, after conversion from the caller's type to the common form
/// of all launches.
#[doc(hidden)]
#[derive(Debug)]
pub enum Binding {
    Values(Vec<u64>),
    Elements(BindingPlaces),
    /// Elements whose neighbourhoods GPU threads read, with boundary modes if devices support them.
    Around(BindingPlaces, Modes),
}

/// Types of launch arguments in a [`Session`] for a kernel parameter of type `P`, which has a
/// [kind](Parameter::Kind).
///
/// ```
/// use vmarray::kernel::{SessionArray, SessionArgument, Own, Parameter};
///
/// fn accepts<P: Parameter>(_: impl SessionArgument<P, P::Kind>) {}
/// accepts::<f32>(7.0);
/// fn accepts_held(held: SessionArray<f32>) {
///     accepts::<&mut Own<f32>>(held);
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a kernel in a session cannot take a `{Self}` as its parameter of type `{P}`",
    label = "this cannot be the argument for `{P}`",
    note = "for a value parameter give a value of its type, for `&[T; N]` a reference to such an array",
    note = "for `&Own<T>` and `&Anywhere<T, N>` give the result of `session.hold(&mut array)?` or \
            `session.copy(&view)?`",
    note = "for `&Window<T, N>` give `held.bounded(mode)`, where `held` is the result of `hold` or `copy`",
    note = "for `&Rows<T>` give `(starts, elements)`, two results of `hold` or `copy`",
    note = "for `&mut Own<T>` and `&Shared<T>` give the result of `session.hold(&mut array)?`"
)]
pub trait SessionArgument<P, Kind> {
    #[doc(hidden)]
    fn bind(self, _: Internal) -> Binding;

    /// Appends one [`Binding`] for each device parameter of this argument. Rows have two, others have one.
    #[doc(hidden)]
    fn bind_all(self, into: &mut Vec<Binding>, _: Internal)
    where
        Self: Sized,
    {
        into.push(self.bind(INTERNAL));
    }
}

/// An argument for rows: the start of each row and the end of the last one, and all elements.
impl<T: ElementMemory, S, V> SessionArgument<&'static Rows<T>, kind::RowsKind> for (S, V)
where
    S: SessionArgument<&'static Anywhere<u64>, kind::AnywhereKind>,
    V: SessionArgument<&'static Anywhere<T>, kind::AnywhereKind>,
{
    fn bind(self, _: Internal) -> Binding {
        self.1.bind(INTERNAL)
    }

    fn bind_all(self, into: &mut Vec<Binding>, _: Internal) {
        into.extend([self.0.bind(INTERNAL), self.1.bind(INTERNAL)]);
    }
}

impl<T: KernelType> SessionArgument<T, kind::ValueKind> for T {
    fn bind(self, _: Internal) -> Binding {
        let mut values = Vec::new();
        self.values(&mut values);
        Binding::Values(values)
    }
}

impl<T: KernelType, const N: usize> SessionArgument<&'static [T; N], kind::TableKind> for &[T; N] {
    fn bind(self, _: Internal) -> Binding {
        let mut values = Vec::new();
        (*self).values(&mut values);
        Binding::Values(values)
    }
}

macro_rules! elements {
    ($($Handle:ident<$T:ident: $Bound:ident $(, $S:ident)?> $kind:ident $Parameter:ty;)*) => { $(
        impl<$T: $Bound $(, $S: Shape)?> SessionArgument<$Parameter, kind::$kind> for $Handle<$T $(, $S)?> {
            fn bind(self, _: Internal) -> Binding {
                self.elements()
            }
        }
    )* };
}
elements! {
    SessionArray<T: ElementMemory, S> OwnKind &'static Own<T>;
    SessionArray<T: ElementMemory, S> AnywhereKind &'static Anywhere<T>;
    SessionArray<T: ElementMemory, S> OwnMutKind &'static mut Own<T>;
    SessionArray<T: ElementMemory> SharedKind &'static Shared<T>;
    SessionCopy<T: ElementMemory, S> OwnKind &'static Own<T>;
    SessionCopy<T: ElementMemory, S> AnywhereKind &'static Anywhere<T>;
}

/// Tuples of launch arguments in a [`Session`] for the parameters of a kernel, whose types are `P`.
///
/// ```
/// use vmarray::kernel::{SessionArray, SessionArguments, Kernel, Own, Session};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn scale(by: f32, x: &mut Own<f32>) {
///     x.set(x.get() * by);
/// }
///
/// type Parameters = <scale as Kernel>::Parameters;
/// fn twice<A: SessionArguments<Parameters> + Clone>(session: &mut Session<'_>, all: A) -> vmarray::Result<()> {
///     scale::run_in(session, all.clone())?;
///     scale::run_in(session, all)
/// }
/// # let _ = |session: &mut Session<'_>, x: SessionArray<f32>| twice(session, (2.0, x));
/// ```
#[diagnostic::on_unimplemented(
    message = "the kernel's parameters are `{P}`, which `{Self}` does not fit",
    label = "wrong arguments, or a wrong number of them",
    note = "arguments are one tuple, in the order of the parameters; `At` is left out"
)]
pub trait SessionArguments<P> {
    #[doc(hidden)]
    fn bind(self, _: Internal) -> Vec<Binding>;
}
