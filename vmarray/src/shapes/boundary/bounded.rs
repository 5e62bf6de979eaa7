//! Views of arrays and of their sections.

use backend_api::Device;

use super::modes::Boundary;
use super::view::BoundaryView;
use crate::array::VirtualArray;
use crate::array::section::{Section, SectionMut};
use crate::base::element::Element;
use crate::shapes::nd::{NdArray, NdSection, NdSectionMut};

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// A view that says what is read outside. See [`boundary`](crate::boundary).
    ///
    /// ```
    /// use vmarray::boundary::Clamp;
    /// let array = vmarray::VirtualArray::<u8>::new(4)?;
    /// array.set(3, 1)?;
    /// assert_eq!(array.bounded(Clamp).get([9])?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn bounded<R: Boundary<T, 1>>(&self, mode: R) -> BoundaryView<&Self, 1, R> {
        BoundaryView::new(self, mode)
    }
}

impl<T: Element, const N: usize, D: Device> NdArray<T, N, D> {
    /// A view that says what is read outside. See [`boundary`](crate::boundary).
    ///
    /// ```
    /// use vmarray::boundary::Clamp;
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 4])?;
    /// image.set([3, 0], 1)?;
    /// assert_eq!(image.bounded(Clamp).get([9, -5])?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn bounded<R: Boundary<T, N>>(&self, mode: R) -> BoundaryView<&Self, N, R> {
        BoundaryView::new(self, mode)
    }
}

impl<'a, T: Element, const N: usize, const M: usize, D: Device> NdSection<'a, T, N, D, M> {
    /// A view that says what is read outside of the section. See [`boundary`](crate::boundary).
    ///
    /// ```
    /// use vmarray::boundary::Clamp;
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 4])?;
    /// image.set([1, 1], 1)?;
    /// assert_eq!(image.section([1, 1]..)?.bounded(Clamp).get([-2, -2])?, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn bounded<R: Boundary<T, M>>(self, mode: R) -> BoundaryView<Self, M, R> {
        BoundaryView::new(self, mode)
    }
}

impl<T: Element, const N: usize, const M: usize, D: Device> NdSectionMut<'_, T, N, D, M> {
    /// A view that says what is read outside of the section. See [`boundary`](crate::boundary).
    ///
    /// ```
    /// use vmarray::boundary::{Clamp, Ignored};
    /// let image = vmarray::NdArray::<u8, 2>::new([4, 4])?;
    /// let brush = image.section_mut([1, 1]..)?.bounded(Clamp).with_writes(Ignored);
    /// brush.write_window([-1, -1], [2, 2], &[1, 2, 3, 4])?;
    /// assert_eq!((image.get([0, 0])?, image.get([1, 1])?), (0, 4));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn bounded<R: Boundary<T, M>>(self, mode: R) -> BoundaryView<Self, M, R> {
        BoundaryView::new(self, mode)
    }
}

impl<T: Element, D: Device> Section<'_, T, D> {
    /// A view that says what is read outside of the section. See [`boundary`](crate::boundary).
    ///
    /// ```
    /// use vmarray::boundary::Circular;
    /// let array = vmarray::VirtualArray::<u8>::new(6)?;
    /// array.write(0, &[1, 2, 3, 4, 5, 6])?;
    /// assert_eq!(array.section(2..4)?.bounded(Circular).to_vec([-1], [4])?, [4, 3, 4, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn bounded<R: Boundary<T, 1>>(self, mode: R) -> BoundaryView<Self, 1, R> {
        BoundaryView::new(self, mode)
    }
}

impl<T: Element, D: Device> SectionMut<'_, T, D> {
    /// A view that says what is read outside of the section. See [`boundary`](crate::boundary).
    ///
    /// ```
    /// use vmarray::boundary::{Clamp, Ignored};
    /// let array = vmarray::VirtualArray::<u8>::new(6)?;
    /// let view = array.section_mut(2..4)?.bounded(Clamp).with_writes(Ignored);
    /// view.write_window([-1], [4], &[1, 2, 3, 4])?;
    /// assert_eq!(array.to_vec(..)?, [0, 0, 2, 3, 0, 0]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn bounded<R: Boundary<T, 1>>(self, mode: R) -> BoundaryView<Self, 1, R> {
        BoundaryView::new(self, mode)
    }
}
