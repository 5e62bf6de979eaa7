//! Arrays of one dimension, and their sections, as grids.

use backend_api::Device;

use super::geometry::Geometry;
use super::shape::{check_extent, check_places};
use super::{Grid, GridMut, NdLayout, Segment, segments};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::ops::view::{Section, SectionMut, View, ViewMut as _};
use crate::shapes::boundary::Part;

impl<T: Element, D: Device> Grid<1> for VirtualArray<T, D> {
    type Element = T;

    fn extents(&self) -> [usize; 1] {
        [self.len()]
    }

    #[inline(always)]
    fn element(&self, [at]: [usize; 1]) -> Result<T> {
        self.get(at)
    }

    fn read_strided(
        &self,
        [start]: [usize; 1],
        [extent]: [usize; 1],
        [stride]: [usize; 1],
        into: &mut [T],
    ) -> Result<()> {
        check_places(&[extent], &[stride], into.len())?;
        if stride == 1 || extent < 2 {
            return self.read(start, &mut into[..extent]);
        }
        check_extent(&[self.len()], [start], [extent])?;
        let mut values = zeroed_vec(extent)?;
        self.read(start, &mut values)?;
        (0..).zip(values).for_each(|(i, value)| into[i * stride] = value);
        Ok(())
    }

    fn read_segments(&self, segments: [&[Segment]; 1], strides: [usize; 1], into: &mut [T]) -> Result<()> {
        let (geometry, _) = Geometry::new([self.len()], NdLayout::RowMajor)?;
        segments::read(self, &geometry, segments.map(<[Segment]>::to_vec), &strides, into)
    }

    fn fetch_ahead(&self, [start]: [usize; 1], [extent]: [usize; 1]) -> Result<()> {
        View::prefetch(self, start..start.saturating_add(extent))
    }
}

impl<T: Element, D: Device> GridMut<1> for VirtualArray<T, D> {
    #[inline(always)]
    fn set_element(&self, [at]: [usize; 1], value: T) -> Result<()> {
        self.set(at, value)
    }

    fn write_strided(
        &self,
        [start]: [usize; 1],
        [extent]: [usize; 1],
        [stride]: [usize; 1],
        from: &[T],
    ) -> Result<()> {
        check_places(&[extent], &[stride], from.len())?;
        if stride == 1 || extent < 2 {
            return self.write(start, &from[..extent]);
        }
        check_extent(&[self.len()], [start], [extent])?;
        let mut values = zeroed_vec(extent)?;
        (0..).zip(&mut values).for_each(|(i, value)| *value = from[i * stride]);
        self.write(start, &values)
    }
}

/// A section as a part of its array.
fn part<'a, T: Element, D: Device, const W: bool>(
    section: &Section<'a, VirtualArray<T, D>, W>,
) -> Result<Part<&'a VirtualArray<T, D>, 1>> {
    let range = section.range();
    Part::new(section.store(), [range.start]..[range.end])
}

impl<T: Element, D: Device, const W: bool> Grid<1> for Section<'_, VirtualArray<T, D>, W> {
    type Element = T;

    fn extents(&self) -> [usize; 1] {
        [self.len()]
    }

    #[inline(always)]
    fn element(&self, [at]: [usize; 1]) -> Result<T> {
        self.get(at)
    }

    fn read_strided(
        &self,
        start: [usize; 1],
        extent: [usize; 1],
        strides: [usize; 1],
        into: &mut [T],
    ) -> Result<()> {
        part(self)?.read_strided(start, extent, strides, into)
    }

    fn read_segments(&self, segments: [&[Segment]; 1], strides: [usize; 1], into: &mut [T]) -> Result<()> {
        part(self)?.read_segments(segments, strides, into)
    }

    fn fetch_ahead(&self, start: [usize; 1], extent: [usize; 1]) -> Result<()> {
        part(self)?.fetch_ahead(start, extent)
    }
}

impl<T: Element, D: Device> GridMut<1> for SectionMut<'_, VirtualArray<T, D>> {
    #[inline(always)]
    fn set_element(&self, [at]: [usize; 1], value: T) -> Result<()> {
        self.set(at, value)
    }

    fn write_strided(
        &self,
        start: [usize; 1],
        extent: [usize; 1],
        strides: [usize; 1],
        from: &[T],
    ) -> Result<()> {
        part(self)?.write_strided(start, extent, strides, from)
    }
}
