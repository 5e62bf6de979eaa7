//! Arrays that are replaced by longer ones when they are full.

use backend_api::Device;

use crate::array::VirtualArray;
use crate::builder::Builder;
use crate::element::Element;
use crate::error::Result;

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

    /// Makes room for `len` elements in all and keeps those that are there: at least doubles, so that an element is
    /// copied about once however many are added.
    pub(super) fn reserve(&mut self, len: usize) -> Result<()> {
        if len <= self.array.len() {
            return Ok(());
        }
        let longer = self.builder.resized(len.max(self.array.len().saturating_mul(2))).build();
        // Devices may have room for what is needed and not for twice as much.
        let longer = longer.or_else(|_| self.builder.resized(len).build())?;
        longer.copy_from(0, &self.array, ..)?;
        self.array = longer;
        Ok(())
    }

    /// Adds elements at the end.
    pub(super) fn append(&mut self, values: &[T]) -> Result<()> {
        self.reserve(self.used.saturating_add(values.len()))?;
        self.array.write(self.used, values)?;
        self.used += values.len();
        Ok(())
    }
}
