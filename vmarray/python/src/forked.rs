//! Reads of files in forked processes, which cannot use the library: its threads and locks are the parent's.

use std::any::Any;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use vmarray::access::{ExportedSlice, Registered};
use vmarray::compute::AnyColumn;
use vmarray::device::{Error, ErrorKind};
use vmarray::rows::RowTableBuilder;
use vmarray::{Footprint, Result};

use crate::elements::{Asked, Bins, Code, Elements, Multiplied, Ordered, Reduced};

/// The elements of an array in a file, which forked processes read by system calls alone.
pub struct ForkedReader {
    file: File,
    start: u64,
    len: usize,
    unit_bytes: usize,
}

impl ForkedReader {
    /// Opens the file whose bytes in `range` are elements of `unit_bytes` bytes.
    pub fn open(path: &Path, range: &Range<u64>, unit_bytes: usize) -> std::io::Result<Self> {
        let len = ((range.end - range.start) / unit_bytes as u64) as usize;
        Ok(Self { file: File::open(path)?, start: range.start, len, unit_bytes })
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        #[cfg(unix)]
        return std::os::unix::fs::FileExt::read_exact_at(&self.file, into, at);
        #[cfg(not(unix))]
        {
            let _ = (at, into, &self.file);
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }
}

/// Returns the error of all work but reads.
fn refused<T>(operation: &'static str) -> Result<T> {
    let error = Error::new(ErrorKind::Lost, operation)
        .with_detail("a forked process can only read items of arrays in files that are open with mode \"r\"")
        .with_advice("compute with numpy.asarray of them, or start the process by spawn");
    Err(error.into())
}

impl Elements for ForkedReader {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, start: usize, into: &mut [u8]) -> Result<()> {
        let at = self.start + (start * self.unit_bytes) as u64;
        self.read_at(at, into).map_err(|cause| {
            let detail = format!("cannot read the file in a forked process: {cause}");
            let error = Error::new(ErrorKind::Corrupted, "read").with_offset(at).with_detail(detail);
            error.with_advice("restore the file, if another program has shortened it").into()
        })
    }

    fn gather(&self, list: &[usize], into: &mut [u8]) -> Result<()> {
        // Read elements that follow one another together, because a system call costs more than a copy.
        let mut at = 0;
        while at < list.len() {
            let next = list[at..].windows(2).take_while(|two| two[1] == two[0] + 1).count();
            let (from, to) = (at * self.unit_bytes, (at + next + 1) * self.unit_bytes);
            self.read(list[at], &mut into[from..to])?;
            at += next + 1;
        }
        Ok(())
    }

    fn write(&self, _: usize, _: &[u8]) -> Result<()> {
        refused("write")
    }

    fn scatter(&self, _: &[usize], _: &[u8]) -> Result<()> {
        refused("scatter")
    }

    fn fill(&self, _: Range<usize>, _: &[u8]) -> Result<()> {
        refused("fill")
    }

    fn push(&self, _: &[u8]) -> Result<()> {
        refused("push")
    }

    fn copy_from(&self, _: usize, _: &dyn Elements, _: Range<usize>) -> Result<bool> {
        refused("copy_from")
    }

    fn column(&self, _: Range<usize>) -> Result<AnyColumn<'_>> {
        refused("compute")
    }

    fn change<'a>(&'a self, _: Range<usize>, _: &[AnyColumn<'a>], _: &Code, _: usize) -> Result<()> {
        refused("compute")
    }

    fn ask<'a>(&'a self, _: Range<usize>, _: &[AnyColumn<'a>], _: &Code, _: Asked) -> Result<Reduced> {
        refused("compute")
    }

    fn find<'a>(&'a self, _: Range<usize>, _: &[AnyColumn<'a>], _: &Code, _: usize) -> Result<Vec<usize>> {
        refused("find")
    }

    fn histogram<'a>(&'a self, _: Range<usize>, _: &[AnyColumn<'a>], _: &Code, _: Bins) -> Result<Vec<u64>> {
        refused("histogram")
    }

    fn multiplied(&self) -> Option<&dyn Multiplied> {
        None
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        None
    }

    fn take(&self, _: Range<usize>, _: &dyn Elements) -> Result<Option<Box<dyn Elements>>> {
        refused("take")
    }

    fn shuffle(&self, _: Range<usize>, _: u64) -> Result<()> {
        refused("shuffle")
    }

    fn export(&mut self, _: Range<usize>) -> Result<ExportedSlice> {
        refused("export")
    }

    fn rows(&mut self, _: Range<usize>, _: usize) -> Result<RowTableBuilder<'_>> {
        refused("rows")
    }

    fn register(&self, _: Vec<u64>) -> Result<Registered<u64>> {
        refused("register")
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn footprint(&self) -> Result<Footprint> {
        refused("footprint")
    }

    fn page_len(&self) -> usize {
        self.len
    }

    fn max_len(&self) -> usize {
        self.len
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
