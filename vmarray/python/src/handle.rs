//! Handles of the library's arrays, which Python's views share. The program can close a handle's array; a
//! forked process cannot use it.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use vmarray::access::ExportedSlice;
use vmarray::device::Device as _;
use vmarray::store::FileAccess;

use crate::element::Unit;
use crate::elements::Elements;
use crate::fault::{Fault, Result, interrupted, raised};
use crate::fork::{is_forked, process};
use crate::forked::ForkedReader;
use crate::in_ram::{InRam, begins_in_ram, build};
use crate::numpy_arrays::Items;
use crate::store::{Options, Place};

/// Class and text of the exception that is raised if a program uses an exported array.
const EXPORTED: (&str, &str) =
    ("ExportError", "the items are exported; delete the tensors made of `device_memory`, and close it");

/// Maximum number of bytes of work between two checks for signals, such as Ctrl-C.
pub const PIECE_BYTES: usize = 256 << 20;

/// An array of the library that several Python views share.
pub struct Handle {
    state: Mutex<State>,
    pub unit: Unit,
    /// Options for new arrays that are computed from this one.
    pub options: Options,
    /// True if the array is on GPUs, whose kernels are faster than a copy to RAM.
    pub is_on_cards: bool,
    /// True if the array is in RAM alone, which each thread reads in place.
    pub is_in_ram: bool,
    /// True if the array can return to plain memory after an operation on a device.
    is_returned: bool,
    /// True if Python stores the pages, in memory or by functions, or a file of another program.
    is_at_home: bool,
    /// True if the items are in a file or a store, so that a row costs a read of its bytes.
    pub reads_rows: bool,
    /// Reads the file of a read-only array in forked processes.
    forked: Option<Arc<Open>>,
    process: u32,
}

/// State of an array.
enum State {
    Open(Arc<Open>),
    /// Another package uses the array's memory.
    Exported,
    Closed,
}

/// An export of an array's memory to another package. The drop of the export makes the array usable again.
pub struct Export {
    handle: Arc<Handle>,
    /// None when it is being dropped.
    open: Option<Arc<Open>>,
}

impl Export {
    /// True if this process created the array.
    pub fn is_own(&self) -> bool {
        self.handle.is_own()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if self.handle.process == process() {
            // Wait for the other package. Ignore errors, because the next use of the device reports them.
            let addresses = self.handle.options.devices.iter().filter_map(|device| device.addresses());
            addresses.for_each(|addresses| drop(addresses.synchronize()));
        }
        if let Some(open) = self.open.take() {
            *lock(&self.handle.state) = State::Open(open);
        }
    }
}

/// An array in use: it stays open until this value is dropped.
pub type Open = Owned<dyn Elements>;

/// A value that owns threads and devices. A forked process has neither threads nor devices, so a drop
/// there leaks the value.
pub struct Owned<T: ?Sized + Send> {
    /// None when it is being dropped.
    inner: Option<Box<T>>,
    process: u32,
}

impl<T: ?Sized + Send> Owned<T> {
    pub fn new(inner: Box<T>) -> Self {
        Self { inner: Some(inner), process: process() }
    }

    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.inner.as_deref_mut()
    }
}

impl<T: ?Sized + Send> Drop for Owned<T> {
    fn drop(&mut self) {
        let mut inner = self.inner.take();
        if self.process != process() {
            std::mem::forget(inner);
            return;
        }
        // Release Python's lock before the drop, because threads that write pages may wait for the lock.
        let _ = Python::try_attach(|py| py.detach(|| drop(inner.take())));
        drop(inner);
    }
}

impl<T: ?Sized + Send> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_deref().expect("the array exists until the drop")
    }
}

/// Locks a mutex whose value stays consistent if a thread panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a file that the array only reads once more, for forked processes.
fn reader(unit: Unit, place: &Place) -> Option<Box<dyn Elements>> {
    let Place::Files(files, FileAccess::ReadOnly) = place else { return None };
    let [(path, range)] = &files[..] else { return None };
    Some(Box::new(ForkedReader::open(path, range, unit.bytes()).ok()?))
}

impl Handle {
    /// Creates an array of `len` elements of the type `unit`, stored at `place`. Blocks.
    pub fn new(unit: Unit, len: usize, options: Options, place: &Place) -> Result<Arc<Self>> {
        let elements = match (build(unit, len, &options, place), reader(unit, place)) {
            (Err(Fault::Library(_)), Some(reader)) if is_forked() => reader,
            (elements, _) => elements?,
        };
        let is_on_cards = matches!(place, Place::Memory) && options.are_cards();
        let handle = Self::of(unit, elements, options, is_on_cards, place);
        let is_at_home = handle.is_at_home;
        let forked = reader(unit, place).map(|reader| Arc::new(Owned::new(reader)));
        let reads_rows = is_at_home || matches!(place, Place::Create(..) | Place::Open(..));
        Ok(Arc::new(Self { forked, reads_rows, ..Arc::into_inner(handle).expect("the handle is new") }))
    }

    /// Creates a handle of an existing array.
    pub fn of(
        unit: Unit,
        elements: Box<dyn Elements>,
        options: Options,
        is_on_cards: bool,
        place: &Place,
    ) -> Arc<Self> {
        let is_at_home = matches!(place, Place::Home(_) | Place::Files(..));
        // Long results of arrays in files are in temporary files.
        let is_in_files =
            || elements.items().is_none() && elements.footprint().is_ok_and(|bytes| bytes.file_bytes > 0);
        let is_in_ram = matches!(place, Place::Memory) && options.are_in_ram() && !is_in_files();
        let is_returned = is_in_ram && begins_in_ram(elements.len() * unit.bytes(), &options);
        let state = Mutex::new(State::Open(Arc::new(Owned::new(elements))));
        let options = Options { max_len: None, page_bytes: None, ..options };
        let process = process();
        Arc::new(Self {
            state,
            unit,
            options,
            is_on_cards,
            is_in_ram,
            is_returned,
            is_at_home,
            reads_rows: false,
            forked: None,
            process,
        })
    }

    /// Returns the array; an error if the array is closed, exported, or of another process.
    pub fn open(&self) -> Result<Arc<Open>> {
        if self.process != process() {
            if let Some(reader) = &self.forked {
                return Ok(Arc::clone(reader));
            }
            let text = "the array was made before this process was forked, so its threads and devices do \
                        not exist here; start processes by `multiprocessing.get_context(\"spawn\")` and \
                        make or open arrays in them";
            return Err(Python::attach(|py| raised(py, "ForkedError", text)).into());
        }
        let (class, text) = match &*lock(&self.state) {
            State::Open(open) => return Ok(Arc::clone(open)),
            State::Exported => EXPORTED,
            State::Closed => {
                ("ClosedError", "the array is closed; use it before `close`, or within its `with` block")
            }
        };
        Err(Python::attach(|py| raised(py, class, text)).into())
    }

    /// Returns the memory of the items if they are in plain memory, or can return there from an array of the
    /// library; `None` otherwise. Blocks if they return.
    pub fn items(&self) -> Result<Option<Arc<Items>>> {
        let open = self.open()?;
        if let Some(items) = open.items() {
            return Ok(Some(items));
        }
        if !self.is_returned || self.process != process() {
            return Ok(None);
        }
        drop(open);
        let mut state = lock(&self.state);
        let State::Open(open) = &*state else { return Ok(None) };
        // Another reference to the array is that of a thread that uses it.
        if Arc::strong_count(open) > 1 {
            return Ok(open.items());
        }
        let Some(elements) = InRam::copied(self.unit, &***open, &self.options)? else { return Ok(None) };
        let items = elements.items();
        let before = std::mem::replace(&mut *state, State::Open(Arc::new(Owned::new(elements))));
        // Drop the array after the state's lock is released, because the drop takes Python's lock.
        drop(state);
        drop(before);
        Ok(items)
    }

    /// Exports the first contiguous part of a range of elements, in place. The export ends when the program
    /// drops the returned value and everything made of it. Blocks.
    pub fn export(self: &Arc<Self>, range: Range<usize>) -> Result<(Arc<Export>, ExportedSlice)> {
        self.alone(|elements| elements.export(range))
    }

    /// Runs `work` on the array, which other code cannot use from then on, until the program drops the
    /// returned export.
    pub fn alone<R>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut dyn Elements) -> vmarray::Result<R>,
    ) -> Result<(Arc<Export>, R)> {
        let mut open = self.open()?;
        {
            let mut state = lock(&self.state);
            // Two references to the array are normal: of this function, and of the state. Further references
            // mean that other threads use the array.
            if !matches!(&*state, State::Open(_)) || Arc::strong_count(&open) > 2 {
                let text = "another thread uses the array; export it when that has ended";
                drop(state);
                return Err(Python::attach(|py| raised(py, "ExportError", text)).into());
            }
            *state = State::Exported;
        }
        let outcome = match Arc::get_mut(&mut open).and_then(Owned::get_mut) {
            Some(elements) => work(elements),
            None => unreachable!("no other thread holds the reference or can get it"),
        };
        let loan = Arc::new(Export { handle: Arc::clone(self), open: Some(open) });
        Ok((loan, outcome?))
    }

    /// Closes the array. Before that, writes changed pages to their storage in Python, if there is one. The
    /// last thread that uses the array frees its memory.
    pub fn close(&self) -> Result<()> {
        if self.is_at_home {
            self.open()?.sync()?;
        }
        let mut state = lock(&self.state);
        if matches!(&*state, State::Exported) {
            drop(state);
            return Err(Python::attach(|py| raised(py, EXPORTED.0, EXPORTED.1)).into());
        }
        let before = std::mem::replace(&mut *state, State::Closed);
        drop(state);
        // Drop the array after the state's lock is released, because freeing the array's memory may take a
        // while.
        drop(before);
        Ok(())
    }

    /// True if this process created the array, and can use it.
    pub fn is_own(&self) -> bool {
        self.process == process()
    }

    pub fn is_closed(&self) -> bool {
        matches!(&*lock(&self.state), State::Closed)
    }

    /// Runs `work` on a range of elements, piece by piece, and handles signals between pieces.
    pub fn in_pieces(
        &self,
        range: Range<usize>,
        mut work: impl FnMut(Range<usize>) -> vmarray::Result<()>,
    ) -> Result<()> {
        self.in_pieces_of(PIECE_BYTES, range, |part| Ok(work(part)?))
    }

    /// Runs `work` as `in_pieces` does, in pieces of at most `bytes` bytes.
    pub fn in_pieces_of(
        &self,
        bytes: usize,
        range: Range<usize>,
        mut work: impl FnMut(Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let (piece, mut at) = ((bytes / self.unit.bytes()).max(1), range.start);
        while at < range.end {
            let end = range.end.min(at + piece);
            work(at..end)?;
            at = end;
            if at < range.end {
                interrupted()?;
            }
        }
        Ok(())
    }
}
