//! `check_pages`: compares the checksums of all pages of an array, and returns the damaged pages.

use backend_api::{Device, ErrorKind as DeviceErrorKind};

use super::VirtualArray;
use super::page_guard::Visit;
use crate::base::element::Element;
use crate::base::error::{Error, Result};

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Reads all pages from their devices or files, and compares their checksums. Returns the index of each
    /// damaged page, with an error that names the device. Only arrays with
    /// [`checksums`](crate::Builder::checksums) and arrays in files have checksums; else the list is empty.
    ///
    /// The call first writes back modified pages. It then reads all pages through the cache, one after the
    /// other, and evicts other pages. Other threads may use the array meanwhile. A write of the whole page
    /// repairs a damaged page.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u64>::builder(1000).checksums(true).build()?;
    /// array.write(0, &[1; 1000])?;
    /// for (page, error) in array.check_pages()? {
    ///     println!("elements from {} on: {error}", page * array.page_len());
    /// }
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) for a thread that holds guards; errors of devices
    /// of other kinds than [`Corrupted`](DeviceErrorKind::Corrupted).
    pub fn check_pages(&self) -> Result<Vec<(usize, Error)>> {
        self.pager().expect_no_guards()?;
        self.pager().evict(&(0..self.page_count() as u64))?;
        let mut wrong = Vec::new();
        let mut page = 0;
        // Read the count again for each page, because another thread may change the array's length meanwhile.
        while page < self.page_count() {
            let cut = self.cut(&(0..self.len()), page);
            match cut.and_then(|cut| self.visit(cut, Visit::Stay)).map(drop) {
                Err(error) if is_corrupted(&error) => wrong.push((page, error)),
                Err(error) if page < self.page_count() => return Err(error),
                _ => {}
            }
            page += 1;
        }
        Ok(wrong)
    }
}

fn is_corrupted(error: &Error) -> bool {
    error.device_error().is_some_and(|error| error.kind() == DeviceErrorKind::Corrupted)
}
