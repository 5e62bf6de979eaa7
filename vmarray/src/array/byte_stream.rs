//! [`ByteStream`]: an array of bytes as a file, with the traits `Read`, `Write` and `Seek`.

use std::io::{self, Read, Seek, SeekFrom, Write};

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::error::{Error, ErrorKind};

/// An array of bytes as a file, with the traits `Read`, `Write` and `Seek` of the standard library.
///
/// Writes overwrite existing bytes, and extend the array at its end if it can [grow](VirtualArray#growth). A
/// program may seek beyond the end. There, reads return no bytes, and a write fills the gap with zeroes. Each
/// call locks one page at a time; a long call bypasses the cache. For calls of a few bytes, wrap the stream
/// in a [`BufReader`](io::BufReader) or a [`BufWriter`](io::BufWriter).
///
/// # Errors
/// An error of the array becomes an [`io`] error of kind [`Other`](io::ErrorKind::Other). If the array cannot
/// grow, the kind is [`StorageFull`](io::ErrorKind::StorageFull) or
/// [`OutOfMemory`](io::ErrorKind::OutOfMemory), and the failed call has written no bytes.
///
/// ```
/// use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
/// use vmarray::prelude::*;
/// let mut array = VirtualArray::<u8>::builder(0).max_len(1 << 20).build()?;
/// let mut stream = array.byte_stream();
/// for line in 0..1000 {
///     writeln!(stream, "line {line}").unwrap();
/// }
/// stream.seek(SeekFrom::End(-4)).unwrap();
/// let mut end = String::new();
/// stream.read_to_string(&mut end).unwrap();
/// assert_eq!((&*end, stream.position()), ("999\n", 8890));
/// stream.rewind().unwrap();
/// assert_eq!(BufReader::new(stream).lines().nth(7).unwrap().unwrap(), "line 7");
/// assert_eq!((array.len(), array.get(0)?), (8890, b'l'));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Debug)]
pub struct ByteStream<'a, D: Device> {
    array: &'a mut VirtualArray<u8, D>,
    position: u64,
}

impl<D: Device> VirtualArray<u8, D> {
    /// Returns the array as a file, positioned at the first byte.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// use std::io::Read;
    /// let mut array = VirtualArray::<u8>::try_from(&b"some bytes"[..])?;
    /// let mut text = String::new();
    /// array.byte_stream().read_to_string(&mut text).unwrap();
    /// assert_eq!(text, "some bytes");
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn byte_stream(&mut self) -> ByteStream<'_, D> {
        ByteStream { array: self, position: 0 }
    }
}

impl<D: Device> ByteStream<'_, D> {
    /// The index of the next byte to read or write.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    fn len(&self) -> u64 {
        self.array.len() as u64
    }
}

impl<D: Device> Read for ByteStream<'_, D> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.len().saturating_sub(self.position).min(into.len() as u64) as usize;
        if count > 0 {
            // The position is below the length, so it fits `usize`.
            self.array.read_range(self.position as usize, &mut into[..count]).map_err(io_error)?;
            self.position += count as u64;
        }
        Ok(count)
    }
}

impl<D: Device> Write for ByteStream<'_, D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let too_long = || io_error(ErrorKind::TooLong { elements: u64::MAX, element_bytes: 1 }.into());
        let start = usize::try_from(self.position).map_err(|_| too_long())?;
        let end = start.checked_add(bytes.len()).ok_or_else(too_long)?;
        let len = self.array.len();
        let write = |array: &mut VirtualArray<u8, D>| {
            if start > len {
                array.fill_range(&(len..start), 0)?;
            }
            array.write_range(start, bytes)
        };
        let written = match end.checked_sub(len).filter(|more| *more > 0) {
            Some(more) => self.array.lengthen(more, |array, _| write(array)),
            None => write(self.array),
        };
        written.map_err(io_error)?;
        self.position = end as u64;
        Ok(bytes.len())
    }

    /// Does nothing, because written bytes are in the array already.
    /// [`View::flush`](crate::views::View::flush) copies them to its devices.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<D: Device> Seek for ByteStream<'_, D> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.len().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let outside = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "cannot seek before the first byte; use a position of 0 or more",
            )
        };
        self.position = position.ok_or_else(outside)?;
        Ok(self.position)
    }
}

/// Wraps an error of the array in one of the standard library.
fn io_error(error: Error) -> io::Error {
    use backend_api::ErrorKind::OutOfMemory;
    let kind = match error.kind() {
        ErrorKind::LengthLimit { .. } | ErrorKind::TooLong { .. } => io::ErrorKind::StorageFull,
        _ if error.device_error().is_some_and(|error| error.kind() == OutOfMemory) => {
            io::ErrorKind::OutOfMemory
        }
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
