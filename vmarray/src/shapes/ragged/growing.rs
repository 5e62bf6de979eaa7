//! Arrays that grow while a writer adds rows: in place if devices can, else by copying to a longer array.

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::growth::is_unsupported;
use crate::base::element::Element;
use crate::base::error::{Error, ErrorKind, Result};
use crate::ops::view::ViewMut as _;

/// An array, and the settings of a longer one that may replace it.
#[derive(Debug)]
pub(super) struct Growing<T: Element, D: Device> {
    /// `None` if the array cannot be replaced by a longer one.
    builder: Option<Builder<T, D>>,
    /// True if new arrays should be able to grow in place, if devices can do that.
    grows: bool,
    array: VirtualArray<T, D>,
    used: usize,
}

impl<T: Element, D: Device> Growing<T, D> {
    /// Builds an array of `capacity` elements; a longer array that replaces it gets the same settings.
    pub(super) fn new(builder: Builder<T, D>, capacity: usize) -> Result<Self> {
        let array = builder.resized(capacity).build()?;
        Ok(Self { builder: Some(builder), grows: false, array, used: 0 })
    }

    /// Builds an array of `capacity` elements that grows in place, if its devices can do that.
    pub(super) fn in_place(builder: Builder<T, D>, capacity: usize) -> Result<Self> {
        match builder.resized(capacity).growing().build() {
            Ok(array) => Ok(Self { builder: Some(builder), grows: true, array, used: 0 }),
            Err(error) if is_unsupported(&error) => Self::new(builder, capacity),
            Err(error) => Err(error),
        }
    }

    /// Continues an array with `used` elements, which can only grow in place.
    pub(super) fn of(array: VirtualArray<T, D>, used: usize) -> Self {
        Self { builder: None, grows: true, array, used }
    }

    pub(super) fn array(&self) -> &VirtualArray<T, D> {
        &self.array
    }

    pub(super) fn into_array(self) -> VirtualArray<T, D> {
        self.array
    }

    /// Makes the array long enough for `len` elements, and keeps the existing ones. Doubles the length if
    /// possible, so that device allocations are rare. If growth copies, each element is then copied about
    /// once on average.
    pub(super) fn reserve(&mut self, len: usize) -> Result<()> {
        let present = self.array.len();
        if len <= present {
            return Ok(());
        }
        let (Some(builder), true) = (&self.builder, len > self.array.max_len()) else {
            // Reserve at most twice the length, to leave memory for the writer's other array and for other
            // writers.
            let twice = present.saturating_mul(2).min(self.array.max_len());
            if twice <= len || self.array.reserve_exactly_for(twice).is_err() {
                self.array.reserve_exactly_for(len)?;
            }
            let room = len.max(twice).min(self.array.capacity());
            self.array.at_length(room, |_| (room, ()));
            return Ok(());
        };
        let describe = |len| match self.grows {
            true => builder.resized(len).growing(),
            false => builder.resized(len),
        };
        // The devices may lack memory for twice the length, so try smaller reserves. Without any, each growth
        // would copy all elements.
        let try_with = |spare: usize| describe(len.max(present.saturating_add(spare))).build();
        let longer = try_with(present)
            .or_else(|_| try_with(present / 4))
            .or_else(|_| try_with(present / 16))
            .or_else(|_| try_with(0))
            .map_err(|error| self.explained(error))?;
        longer.copy_from(0, &self.array)?;
        self.array = longer;
        Ok(())
    }

    /// Converts an error to `NoRoomToGrow`, if the longer array would fit, but not in addition to this one.
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

    /// Appends elements.
    pub(super) fn append(&mut self, values: &[T]) -> Result<()> {
        self.reserve(self.used.saturating_add(values.len()))?;
        self.array.write(self.used, values)?;
        self.used += values.len();
        Ok(())
    }
}
