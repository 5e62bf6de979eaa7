//! The interpreter's access to the memory of a launch's views, and the conversion of fields to bits.

use crate::Result;

/// Gives the [interpreter](super::Interpreter) access to the memory of a launch's views (array arguments).
///
/// The interpreter calls the methods only for existing elements, and for fields inside of elements.
///
/// ```
/// use backend_api::kernel::{Slices, Views};
/// let mut bytes = [1, 2, 3, 4, 5, 6];
/// let mut views = Slices::new(vec![(&mut bytes, 3)]);
/// assert_eq!(views.count(0), 2);
/// let mut field = [0; 2];
/// views.read(0, 1, 1, &mut field)?;
/// assert_eq!(field, [5, 6]);
/// views.write(0, 0, 2, &[9])?;
/// assert_eq!(bytes, [1, 2, 9, 4, 5, 6]);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub trait Views {
    /// Returns the number of elements of the view with the index `view`.
    fn count(&self, view: usize) -> u64;

    /// Copies the field at `offset` bytes in an element to `to`.
    ///
    /// # Errors
    /// Any error of the implementation.
    fn read(&mut self, view: usize, element: u64, offset: u32, to: &mut [u8]) -> Result<()>;

    /// Copies `from` to the field at `offset` bytes in an element.
    ///
    /// # Errors
    /// Any error of the implementation.
    fn write(&mut self, view: usize, element: u64, offset: u32, from: &[u8]) -> Result<()>;

    /// Atomically changes a number of 4 or 8 bytes in a field, and returns the old bits. `change` maps the
    /// old bits to the new bits, and may run more than once. The default implementation reads and then
    /// writes, which is not atomic if several threads use the view.
    ///
    /// # Errors
    /// Any error of the implementation.
    fn change(
        &mut self,
        view: usize,
        element: u64,
        offset: u32,
        bytes: u32,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64> {
        let mut field = [0; 8];
        let field = &mut field[..bytes as usize];
        self.read(view, element, offset, field)?;
        let old = to_bits(field);
        from_bits(field, change(old).to_le_bytes());
        self.write(view, element, offset, field)?;
        Ok(old)
    }
}

/// [`Views`] whose memory is byte slices, for interpretation on one thread.
///
/// ```
/// use backend_api::kernel::{Slices, Views};
/// assert_eq!(Slices::new(vec![(&mut [0; 9], 4)]).count(0), 2);
/// ```
#[derive(Debug)]
pub struct Slices<'a>(Vec<(&'a mut [u8], usize)>);

impl<'a> Slices<'a> {
    /// Creates one view from each pair of a slice and a stride (the bytes from one element to the next). A
    /// view ignores bytes after its last whole element.
    ///
    /// # Panics
    /// If a stride is 0.
    #[must_use]
    pub fn new(slices: Vec<(&'a mut [u8], usize)>) -> Self {
        assert!(
            slices.iter().all(|(_, stride)| *stride > 0),
            "a slice has a stride of 0 bytes, but needs at least 1"
        );
        Self(slices)
    }
}

impl Views for Slices<'_> {
    fn count(&self, view: usize) -> u64 {
        let (bytes, stride) = &self.0[view];
        (bytes.len() / stride) as u64
    }

    fn read(&mut self, view: usize, element: u64, offset: u32, to: &mut [u8]) -> Result<()> {
        let (bytes, stride) = &self.0[view];
        let at = element as usize * stride + offset as usize;
        to.copy_from_slice(&bytes[at..at + to.len()]);
        Ok(())
    }

    fn write(&mut self, view: usize, element: u64, offset: u32, from: &[u8]) -> Result<()> {
        let (bytes, stride) = &mut self.0[view];
        let at = element as usize * *stride + offset as usize;
        bytes[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
}

/// Returns the bits of a field of 1, 2, 4 or 8 bytes, padded with zeros; 0 for other lengths.
#[inline(always)]
pub fn to_bits(field: &[u8]) -> u64 {
    match *field {
        [a] => a.into(),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// Writes the low bytes of the little-endian `bits` to all bytes of the field, in the byte order of the host.
#[inline(always)]
pub fn from_bits(field: &mut [u8], bits: [u8; 8]) {
    let len = field.len();
    field.copy_from_slice(&bits[..len]);
    if cfg!(target_endian = "big") {
        field.reverse();
    }
}
