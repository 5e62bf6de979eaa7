//! Implements the view traits for arrays.

use backend_api::Device;

use super::section::{Section, SectionMut};
use super::shape::Linear;
use super::{View, ViewMut};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::ops::sealed::Internal;

impl<'a, T: Element, D: Device> View<'a> for &'a VirtualArray<T, D> {
    type Element = T;
    type Index = usize;
    type Store = VirtualArray<T, D>;
    type Shape = Linear;
    type Section = Section<'a, Self::Store>;

    #[inline(always)]
    fn parts(self) -> (&'a Self::Store, Linear) {
        (self, Linear::whole(self.len()))
    }

    fn of_parts(store: &'a Self::Store, shape: Linear, _: Internal) -> Self::Section {
        Section::new(store, shape)
    }
}

impl<'a, T: Element, D: Device> ViewMut<'a> for &'a VirtualArray<T, D> {
    type SectionMut = SectionMut<'a, Self::Store>;

    fn of_parts_mut(store: &'a Self::Store, shape: Linear, _: Internal) -> Self::SectionMut {
        Section::new(store, shape)
    }
}
