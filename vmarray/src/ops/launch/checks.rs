//! Checks of arguments before each launch: their shapes, the kernel variant for these shapes, and overlaps of
//! results with other arguments.

use vmarray_kernel::launch::{DomainAxis, LaunchVariant, SHORT_MAX};
use vmarray_kernel::{ParameterInfo, ParameterKind};

use super::bound_arguments::{ArgumentPlaces, BoundArguments, BoundElements};
use super::kernel::{KernelVariants, PreparedKernel};
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::ops::view::StoredBox;

impl<P: ArgumentPlaces> BoundArguments<'_, P> {
    /// Returns an error if the arguments with one element for each work-item (GPU thread) have different
    /// shapes.
    pub fn expect_one_shape(&self, kernel: &PreparedKernel) -> Result<()> {
        let mut own = self.own();
        let Some(expected) = own.next().map(|first| first.places.extents()) else { return Ok(()) };
        for of in own {
            let (argument, got) = (of.info.name, of.places.extents());
            if let ([expected], [got]) = (expected, got) {
                expect_len(argument, *expected, *got)?;
            } else if expected != got {
                let ((kernel, place), argument) = (kernel.name_and_place(), argument.into());
                let (expected, got) = (expected.to_vec(), got.to_vec());
                return Err(ErrorKind::KernelShape { kernel, place, argument, expected, got }.into());
            }
        }
        Ok(())
    }

    /// Returns an error if a result overlaps another argument, because work-items (GPU threads) would race on
    /// the shared elements. Arguments that the kernel only reads may overlap each other.
    pub fn expect_apart(&self, kernel: &PreparedKernel) -> Result<()> {
        for one in self.elements.iter().filter(|of| of.is_result()) {
            let own = one.places.range();
            let is_same = |other: &&BoundElements<'_, P>| {
                let range = other.places.range();
                other.number != one.number
                    && one.places.is_in_store_of(&other.places)
                    && own.start < range.end
                    && range.start < own.end
            };
            if let Some(other) = self.elements.iter().find(is_same) {
                let ((kernel, place), result) = (kernel.name_and_place(), one.info.name.into());
                let argument = other.info.name.into();
                return Err(ErrorKind::KernelOverlap { kernel, place, result, argument }.into());
            }
        }
        Ok(())
    }

    /// Returns the variant of `kernels` for elements stored as in `domain`, or the reason for which the
    /// kernel cannot run on these elements.
    pub fn variant(&self, kernels: &KernelVariants, domain: &StoredBox) -> Result<LaunchVariant, String> {
        let axes = domain.axes.len();
        let at = kernels.usual.lowered.parameters.iter().find_map(|parameter| match parameter.kind {
            ParameterKind::At(axes) => Some(axes),
            _ => None,
        });
        if let Some(at) = at.filter(|at| *at != axes) {
            return Err(format!("it has an `At<{at}>`, but its result has {axes} axes: use an `At<{axes}>`"));
        }
        let is_other =
            |of: &BoundElements<'_, P>| matches!(of.info.kind, ParameterKind::Window(_, of) if of != axes);
        if self.elements.iter().any(is_other) {
            return Err(format!(
                "its result has {axes} axes, but a window has another number of axes: use `Window<T, {axes}>`"
            ));
        }
        let (mut form, is_part) = (LaunchVariant::default(), domain.is_part());
        if !kernels.tile.is_empty() {
            let mut axes = domain.axes.iter().zip(&kernels.tile);
            form.is_part = axes.any(|(axis, tile)| axis.extent % tile != 0);
            form.is_tiled = true;
            return Ok(form);
        }
        if at.is_none_or(|at| at == 1) && !is_part {
            return Ok(form);
        }
        if axes > 4 {
            return Err("its result has more than 4 axes: use a section of at most 4 axes".into());
        }
        if kernels.group_len.is_some() && is_part {
            let reason = "its result is a section of an array, which work-groups do not support: give the \
                          whole array";
            return Err(reason.into());
        }
        if domain.is_cut() && self.own().filter(|of| of.is_result()).count() > 1 {
            let reason = "its results are sections of arrays, which is supported for one result only: give whole \
                          arrays";
            return Err(reason.into());
        }
        form.axes = if at.is_some() { 0 } else { axes };
        (form.is_tiled, form.is_part) = (domain.is_tiled(), is_part);
        Ok(form)
    }
}

/// Returns true if a kernel computes positions, and therefore has a faster variant with 32-bit positions.
pub(super) fn has_positions(parameters: &[ParameterInfo]) -> bool {
    parameters.iter().any(|of| match of.kind {
        ParameterKind::At(axes) | ParameterKind::Anywhere(_, axes) => axes > 1,
        ParameterKind::Window(..) => true,
        _ => false,
    })
}

/// Returns true if 32 bits suffice for the positions of elements.
pub(super) fn is_short(stored: &StoredBox) -> bool {
    let len = |axis: &DomainAxis| axis.tiles.saturating_mul(axis.tile);
    stored.range().end < SHORT_MAX as usize
        && stored.axes.iter().skip(1).all(|axis| len(axis) < SHORT_MAX as usize)
}
