//! Arrays that grow while rows are added: in their place where devices can do that, else by a longer array
//! that replaces them.

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::growth::is_unsupported;
use crate::base::element::Element;
use crate::base::error::{Error, ErrorKind, Result};
use crate::ops::view::ViewMut as _;

/// An array, and how to build a longer one.
#[derive(Debug)]
pub(super) struct Growing<T: Element, D: Device> {
    /// None where a longer one cannot be described.
    builder: Option<Builder<T, D>>,
    /// Whether those that are built are to grow in their place, if devices can do that.
    grows: bool,
    array: VirtualArray<T, D>,
    used: usize,
}

impl<T: Element, D: Device> Growing<T, D> {
    /// With room for so many elements at first, and longer ones as it is described.
    pub(super) fn new(builder: Builder<T, D>, capacity: usize) -> Result<Self> {
        let array = builder.resized(capacity).build()?;
        Ok(Self { builder: Some(builder), grows: false, array, used: 0 })
    }

    /// The same, of an array that grows in its place, if its devices can do that.
    pub(super) fn in_place(builder: Builder<T, D>, capacity: usize) -> Result<Self> {
        match builder.resized(capacity).growing().build() {
            Ok(array) => Ok(Self { builder: Some(builder), grows: true, array, used: 0 }),
            Err(error) if cannot_grow(&error) => Self::new(builder, capacity),
            Err(error) => Err(error),
        }
    }

    /// An array with so many elements that is to have more, in its place.
    pub(super) fn of(array: VirtualArray<T, D>, used: usize) -> Self {
        Self { builder: None, grows: true, array, used }
    }

    pub(super) fn array(&self) -> &VirtualArray<T, D> {
        &self.array
    }

    pub(super) fn into_array(self) -> VirtualArray<T, D> {
        self.array
    }

    /// Makes room for `len` elements in all and keeps those that are there: doubles if there is room, so that
    /// devices are seldom asked, or, where what is there is copied, each element is copied about once however
    /// many are added.
    pub(super) fn reserve(&mut self, len: usize) -> Result<()> {
        let present = self.array.len();
        if len <= present {
            return Ok(());
        }
        let (Some(builder), true) = (&self.builder, len > self.array.max_len()) else {
            // No more than that: there are two arrays of these, and often many.
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
        // Devices may have room for what is needed and not for twice as much; some more than that is worth
        // trying, since each growth copies all there is.
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

/// Whether a device says that its memory cannot grow, or the placement does.
fn cannot_grow(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ParityRefused { .. }) || is_unsupported(error)
}
