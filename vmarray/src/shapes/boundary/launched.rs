//! Views with a mode as windows of kernels.

use std::marker::PhantomData;
use std::ops::Range;

use vmarray_kernel::{Memory, Window, kind};

use super::modes::Boundary;
use super::view::BoundaryView;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::ops::compute::Column;
use crate::ops::launch::{Argument, Bound, Spread, Windowed};
use crate::ops::view::INTERNAL;
use crate::ops::view::sealed::Internal;

/// What a view shows at any position.
struct Everywhere<'a, V, R, W> {
    of: BoundaryView<V, 1, R, W>,
    marker: PhantomData<&'a ()>,
}

impl<'a, T, V, R, W> Spread for Everywhere<'a, V, R, W>
where
    T: Memory,
    V: Column<'a, Element = T> + Sync,
    R: Boundary<T, 1> + Sync,
    W: Sync,
{
    fn stride(&self) -> usize {
        size_of::<T>()
    }

    fn shown(&self, positions: Range<isize>) -> Range<isize> {
        positions
    }

    fn read_bytes(&self, start: isize, into: &mut [u8]) -> Result<()> {
        // Bytes of a buffer are not aligned for any type.
        let mut values = zeroed_vec(into.len() / size_of::<T>())?;
        self.of.read_window([start], [values.len()], &mut values)?;
        into.copy_from_slice(bytemuck::cast_slice(&values));
        Ok(())
    }
}

impl<'a, T, V, R, W> Argument<'a, &'static Window<T, 1>, kind::Window>
    for Windowed<BoundaryView<V, 1, R, W>, usize>
where
    T: Memory,
    V: Column<'a, Element = T> + Sync + 'a,
    R: Boundary<T, 1> + Sync + 'a,
    W: Sync + 'a,
{
    fn bound(self, _: Internal) -> Bound<'a> {
        let within = self.of.source().operand(INTERNAL);
        let of = Everywhere { of: self.of, marker: PhantomData };
        Bound::Around(Box::new(of), self.halo, within)
    }
}
