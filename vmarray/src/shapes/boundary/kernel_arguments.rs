//! Boxes, and views with a boundary mode, as arguments of kernels.

use std::marker::PhantomData;
use std::ops::Range;

use backend_api::Device;
use vmarray_kernel::launch::Mode;
use vmarray_kernel::{Anywhere, ElementMemory, Own, Window, kind};

use super::box_shape::BoxShape;
use super::modes::Boundary;
use super::view::BoundaryView;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::engine::pager::Pager;
use crate::ops::launch::{
    Argument, Bindable, Binding, Bound, Broadcast, Modes, SessionArgument, SessionArray, SessionCopy,
    SessionWindow, Shown, Windowed, changed, inside, placed,
};
use crate::ops::sealed::Internal;
use crate::ops::view::SignedBox;
use crate::ops::view::{INTERNAL, Shape, Store, StoreMut, View};
use crate::shapes::nd::{NdArray, NdSectionMut, NdShape};

/// A view with a boundary mode as a kernel argument, which GPU threads read at any position.
pub(super) struct Everywhere<'a, V, const N: usize, R, W> {
    of: BoundaryView<V, N, R, W>,
    marker: PhantomData<&'a ()>,
}

impl<V, const N: usize, R, W> Everywhere<'_, V, N, R, W> {
    pub fn new(of: BoundaryView<V, N, R, W>) -> Self {
        Self { of, marker: PhantomData }
    }
}

impl<'a, T, V, const N: usize, R, W> Broadcast for Everywhere<'a, V, N, R, W>
where
    T: Element,
    V: View<'a, Element = T, Shape: BoxShape<N>>,
    R: Boundary<T, N> + Sync,
    W: Sync,
{
    fn stride(&self) -> usize {
        size_of::<T>()
    }

    fn shown(&self, positions: &[Range<isize>]) -> SignedBox {
        let mut shown = inside(positions, &self.of.source().parts().1.axes());
        for (axis, shown) in shown.iter_mut().enumerate() {
            // With `Checked`, do not read positions beyond the edges here. Such positions are an error only
            // if a kernel reads them.
            if !matches!(self.of.mode().built_in(axis, INTERNAL), Some((Mode::Checked, _))) {
                *shown = positions[axis].clone();
            }
        }
        shown
    }

    fn read_bytes(&self, of: &[Range<isize>], into: &mut [u8]) -> Result<()> {
        // The byte buffer may not be aligned for the element type, so read into a vector first.
        let mut values = zeroed_vec(into.len() / size_of::<T>())?;
        let origin = std::array::from_fn(|axis| of[axis].start);
        self.of.read_window(origin, std::array::from_fn(|axis| of[axis].len()), &mut values)?;
        into.copy_from_slice(bytemuck::cast_slice(&values));
        Ok(())
    }
}

/// Returns the modes of all axes, if devices can apply them.
fn modes<T: ElementMemory, const N: usize>(of: &impl Boundary<T, N>) -> Modes {
    let mode = |axis| {
        let (mode, value) = of.built_in(axis, INTERNAL)?;
        let mut values = Vec::new();
        value.unwrap_or(T::ZERO).values(&mut values);
        Some((mode, values))
    };
    (0..N).map(mode).collect()
}

impl<T: ElementMemory, S: Shape> SessionArray<T, S> {
    /// Adds a boundary mode, so that a kernel can read elements beyond the edges: a mode of the library, or a
    /// tuple with a mode for each axis. See [`SessionWindow`].
    ///
    /// ```
    /// use vmarray::boundary::Clamp;
    /// use vmarray::kernel::{At, Own, Session, Window};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn next(at: At<1>, of: &Window<u32, 1>, out: &mut Own<u32>) {
    ///     out.set(of[at.plus(1)]);
    /// }
    /// let (mut from, mut to) = (VirtualArray::<u32>::new(3)?, VirtualArray::<u32>::new(3)?);
    /// from.write(0, &[1, 2, 3])?;
    /// let mut session = Session::new();
    /// let (a, b) = (session.hold(&mut from)?, session.hold(&mut to)?);
    /// next::run_in(&mut session, (a.bounded(Clamp), b))?;
    /// session.finish()?;
    /// assert_eq!(to.to_vec(..)?, [2, 3, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn bounded<const N: usize>(self, mode: impl Boundary<T, N>) -> SessionWindow<T, S>
    where
        S: BoxShape<N>,
    {
        self.with_modes(modes(&mode))
    }
}

impl<T: ElementMemory, S: Shape> SessionCopy<T, S> {
    /// Adds a boundary mode, so that a kernel can read elements beyond the edges, as
    /// [`SessionArray::bounded`] does.
    ///
    /// ```
    /// use vmarray::boundary::Clamp;
    /// use vmarray::kernel::{At, Own, Session, Window};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn next(at: At<1>, x: &Window<u32, 1>, out: &mut Own<u32>) {
    ///     out.set(x[at.plus(1)]);
    /// }
    /// let (from, mut to) = (VirtualArray::<u32>::new(3)?, VirtualArray::<u32>::new(3)?);
    /// from.write(0, &[1, 2, 3])?;
    /// let mut session = Session::new();
    /// let out = session.hold(&mut to)?;
    /// let copied = session.copy(&from)?;
    /// next::run_in(&mut session, (copied.bounded(Clamp), out))?;
    /// session.finish()?;
    /// assert_eq!(to.to_vec(..)?, [2, 3, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn bounded<const N: usize>(self, mode: impl Boundary<T, N>) -> SessionWindow<T, S>
    where
        S: BoxShape<N>,
    {
        self.with_modes(modes(&mode))
    }
}

impl<'a, T, V, R, W> Argument<'a, &'static Window<T, 1>, kind::WindowKind>
    for Windowed<BoundaryView<V, 1, R, W>, usize>
where
    T: ElementMemory,
    V: View<'a, Element = T, Shape: BoxShape<1>, Store: Store<Device: Device>> + 'a,
    R: Boundary<T, 1> + Sync + 'a,
    W: Sync + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let modes = modes(self.of.mode());
        let source = self.of.source();
        let of = Box::new(Everywhere::new(self.of));
        Bound::Around(placed(source, of), vec![self.halo], modes)
    }
}

impl<'a, T, V, const N: usize, R, W> Argument<'a, &'static Window<T, N>, kind::WindowKind>
    for Windowed<BoundaryView<V, N, R, W>, [usize; N]>
where
    T: ElementMemory,
    V: View<'a, Element = T, Shape: BoxShape<N>, Store: Store<Device: Device>> + 'a,
    R: Boundary<T, N> + Sync + 'a,
    W: Sync + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let modes = modes(self.of.mode());
        let source = self.of.source();
        let of = Box::new(Everywhere::new(self.of));
        Bound::Around(placed(source, of), self.halo.to_vec(), modes)
    }
}

impl<'a, T, V, const N: usize> Argument<'a, &'static Window<T, N>, kind::WindowKind>
    for Windowed<V, [usize; N]>
where
    T: ElementMemory,
    V: View<'a, Element = T, Shape: BoxShape<N>, Store: Store<Device: Device>> + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let modes = Some(vec![(Mode::Checked, Vec::new()); N]);
        Bound::Around(placed(self.of, Box::new(Shown(self.of))), self.halo.to_vec(), modes)
    }
}

impl<T: ElementMemory + Element, const N: usize, D: Device> Bindable for NdArray<T, N, D> {
    type Element = T;
    type Shape = NdShape<N>;

    fn homes(&self, _: Internal) -> (&Pager, usize, NdShape<N>) {
        let (elements, shape) = self.parts();
        (elements.pager(), elements.len(), shape)
    }
}

impl<T: ElementMemory, S: BoxShape<N>, const N: usize>
    SessionArgument<&'static Window<T, N>, kind::WindowKind> for SessionWindow<T, S>
{
    fn bind(self, _: Internal) -> Binding {
        self.around()
    }
}

macro_rules! held_windows {
    ($($Handle:ident)*) => { $(
        impl<T: ElementMemory, S: BoxShape<N>, const N: usize>
            SessionArgument<&'static Window<T, N>, kind::WindowKind> for $Handle<T, S>
        {
            fn bind(self, _: Internal) -> Binding {
                self.elements()
            }
        }
    )* };
}
held_windows!(SessionArray SessionCopy);

macro_rules! held_anywhere {
    ($($Handle:ident $N:literal;)*) => { $(
        impl<T: ElementMemory, S: BoxShape<$N>> SessionArgument<&'static Anywhere<T, $N>, kind::AnywhereKind>
            for $Handle<T, S>
        {
            fn bind(self, _: Internal) -> Binding {
                self.elements()
            }
        }
    )* };
}
held_anywhere!(SessionArray 2; SessionArray 3; SessionArray 4; SessionCopy 2; SessionCopy 3; SessionCopy 4;);

macro_rules! anywhere {
    ($($N:literal)*) => { $(
        impl<'a, T: ElementMemory, V> Argument<'a, &'static Anywhere<T, $N>, kind::AnywhereKind> for V
        where
            V: View<'a, Element = T, Shape: BoxShape<$N>, Store: Store<Device: Device>> + 'a,
        {
            fn bound(self, _: Internal) -> Bound<'a> {
                Bound::Elements(placed(self, Box::new(Shown(self))))
            }
        }
    )* };
}
anywhere!(2 3 4);

impl<'a, T: ElementMemory + Element, const N: usize, D: Device>
    Argument<'a, &'static mut Own<T>, kind::OwnMutKind> for &'a mut NdArray<T, N, D>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        changed(&*self).alone()
    }
}

impl<'a, T: ElementMemory, S: StoreMut<Element = T>, const N: usize, const M: usize>
    Argument<'a, &'static mut Own<T>, kind::OwnMutKind> for NdSectionMut<'a, S, N, M>
{
    fn bound(self, _: Internal) -> Bound<'a> {
        changed(self)
    }
}
