//! [`RaggedBuilder`]: sets the options of a new ragged array, and makes it from rows or through a writer.

use std::sync::Arc;

use backend_api::Device;

use super::{CHUNK, RaggedArray, RaggedWriter, offsets_of};
use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::any::AnyDevice;

/// The settings of a new ragged array. Each setting has a default.
///
/// ```
/// use vmarray::{host::HostDevice, prelude::*};
/// use std::sync::Arc;
/// let device = Arc::new(HostDevice::new(1 << 20)?);
/// let builder = RaggedArray::<u32>::builder()
///     .devices([device])
///     .elements(|elements| elements.page_len(512))
///     .offsets(|offsets| offsets.cache_bytes(1 << 16));
/// let rows = builder.with_lengths([1000, 0, 3000])?;
/// assert_eq!((rows.items().len(), rows.items().page_len()), (4000, 512));
/// assert_eq!(RaggedArray::<u8>::builder().from_rows(["many", "words"])?.row(1)?.to_vec(..)?, b"words");
/// let writer = RaggedArray::<u8>::builder().capacity(10, 100).writer()?;
/// writer.push(&[1; 200])?;
/// assert_eq!(writer.freeze()?.items().len(), 200);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "describes a ragged array"]
pub struct RaggedBuilder<T: Element, D: Device> {
    pub(super) elements: Builder<T, D>,
    offsets: Option<Builder<u64, D>>,
    capacity: (usize, usize),
}

impl<T: Element> RaggedArray<T> {
    /// Creates a builder for a ragged array with other devices or settings.
    pub fn builder() -> RaggedBuilder<T, AnyDevice> {
        RaggedBuilder { elements: VirtualArray::builder(0), offsets: None, capacity: (0, 0) }
    }
}

impl<T: Element, D: Device> RaggedBuilder<T, D> {
    /// Sets the devices that store elements and offsets, and with them the type parameter `D`. Keeps all
    /// other settings.
    pub fn devices<E: Device>(self, devices: impl IntoIterator<Item = Arc<E>>) -> RaggedBuilder<T, E> {
        let devices: Vec<Arc<E>> = devices.into_iter().collect();
        let offsets = self.offsets.map(|offsets| offsets.devices(devices.iter().cloned()));
        RaggedBuilder { elements: self.elements.devices(devices), offsets, capacity: self.capacity }
    }

    /// Changes the settings of the array of elements by `change`. The rows determine the array's length.
    pub fn elements(mut self, change: impl FnOnce(Builder<T, D>) -> Builder<T, D>) -> Self {
        self.elements = change(self.elements);
        self
    }

    /// Changes the settings of the array of row offsets. At the first call, `change` gets the present
    /// settings of the elements, without the page length. Later changes of the elements' settings do not
    /// affect the offsets.
    pub fn offsets(mut self, change: impl FnOnce(Builder<u64, D>) -> Builder<u64, D>) -> Self {
        self.offsets = Some(change(self.describe_offsets()));
        self
    }

    /// Sets the initial capacity of a writer, in rows and in elements. Beyond this capacity the writer's
    /// arrays grow in place until the devices are full. An array cannot grow in place on devices whose memory
    /// cannot grow, or if it has 65536 or more pages shorter than 4 KiB. The writer then copies its data to a
    /// longer array next to the current one, so it can fill at most half of the devices' memory. Beyond that,
    /// a push returns [`NoRoomToGrow`](crate::ErrorKind::NoRoomToGrow). To fill more of the memory, set the
    /// capacity.
    pub fn capacity(mut self, rows: usize, elements: usize) -> Self {
        self.capacity = (rows, elements);
        self
    }

    pub(super) fn describe_offsets(&self) -> Builder<u64, D> {
        self.offsets.as_ref().map_or_else(|| self.elements.twin(0), |offsets| offsets.resized(0))
    }

    /// Builds a writer. Any number of threads can then add rows through it.
    ///
    /// # Errors
    /// The errors of [`Builder::build`].
    pub fn writer(self) -> Result<RaggedWriter<T, D>> {
        let offsets = self.describe_offsets();
        RaggedWriter::new(self.elements, offsets, self.capacity)
    }

    /// Builds an array whose rows have the given lengths, and whose elements are zero.
    ///
    /// # Errors
    /// [`TooLong`](crate::ErrorKind::TooLong), and the errors of [`Builder::build`].
    pub fn with_lengths(self, lengths: impl IntoIterator<Item = usize>) -> Result<RaggedArray<T, D>> {
        let (offsets, rows, total) = offsets_of(lengths, &self.describe_offsets())?;
        Ok(RaggedArray::of(offsets, (rows, total), self.elements.with_len(total).build()?))
    }

    /// Builds an array of the given rows, in order. Copies their elements.
    ///
    /// # Errors
    /// The errors of [`RaggedWriter::push`].
    pub fn from_rows<R: AsRef<[T]>>(self, rows: impl IntoIterator<Item = R>) -> Result<RaggedArray<T, D>> {
        let rows = rows.into_iter();
        let count = self.capacity.0.max(rows.size_hint().0);
        let elements = self.capacity.1;
        let writer = self.capacity(count, elements).writer()?;
        let (mut batch, mut lengths) = (Vec::new(), Vec::new());
        for row in rows {
            batch.extend_from_slice(row.as_ref());
            lengths.push(row.as_ref().len());
            if batch.len() >= CHUNK || lengths.len() >= CHUNK {
                writer.push_joined(&batch, &lengths)?;
                batch.clear();
                lengths.clear();
            }
        }
        writer.push_joined(&batch, &lengths)?;
        writer.freeze()
    }
}
