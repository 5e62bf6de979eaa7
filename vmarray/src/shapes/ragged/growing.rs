//! Arrays that are replaced by longer ones when they are full.

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::base::element::Element;
use crate::base::error::{Error, ErrorKind, Result};
use crate::ops::view::ViewMut as _;

/// An array, and how to build a longer one.
#[derive(Debug)]
pub(super) struct Growing<T: Element, D: Device> {
    builder: Builder<T, D>,
    array: VirtualArray<T, D>,
    used: usize,
}

impl<T: Element, D: Device> Growing<T, D> {
    pub(super) fn new(builder: Builder<T, D>, capacity: usize) -> Result<Self> {
        let array = builder.resized(capacity).build()?;
        Ok(Self { builder, array, used: 0 })
    }

    pub(super) fn array(&self) -> &VirtualArray<T, D> {
        &self.array
    }

    pub(super) fn into_array(self) -> VirtualArray<T, D> {
        self.array
    }

    /// Makes room for `len` elements in all and keeps those that are there: doubles if there is room, so that
    /// an element is copied about once however many are added.
    pub(super) fn reserve(&mut self, len: usize) -> Result<()> {
        if len <= self.array.len() {
            return Ok(());
        }
        // Devices may have room for what is needed and not for twice as much; some more than that is worth
        // trying, since each growth copies all there is.
        let present = self.array.len();
        let try_with = |spare: usize| self.builder.resized(len.max(present.saturating_add(spare))).build();
        let longer = try_with(present)
            .or_else(|_| try_with(present / 4))
            .or_else(|_| try_with(present / 16))
            .or_else(|_| try_with(0))
            .map_err(|error| self.explained(error))?;
        longer.copy_from(0, &self.array)?;
        self.array = longer;
        Ok(())
    }

    /// Says so if there is room for the longer array, but not beside this one.
    fn explained(&self, error: Error) -> Error {
        let present_bytes = self.array.footprint().device_bytes;
        match *error.kind() {
            ErrorKind::DoesNotFit {
                all_asked_bytes: asked_bytes, all_usable_bytes: usable_bytes, ..
            } if present_bytes > 0 && asked_bytes <= usable_bytes.saturating_add(present_bytes) => {
                ErrorKind::NoRoomToGrow { present_bytes, asked_bytes, usable_bytes }.into()
            }
            _ => error,
        }
    }

    /// Adds elements at the end.
    pub(super) fn append(&mut self, values: &[T]) -> Result<()> {
        self.reserve(self.used.saturating_add(values.len()))?;
        self.array.write(self.used, values)?;
        self.used += values.len();
        Ok(())
    }
}
