//! Arrays as views of Python hold them: closed by hand, known to be of another process after a fork, and
//! known to the expressions that are still to be computed from them.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::Python;
use vmarray::access::LentRun;
use vmarray::device::Device as _;

use crate::element::Unit;
use crate::fault::{Result, raised};
use crate::node::Lazy;
use crate::store::{Elements, Options, Place, build, interrupted};

/// The class of exceptions and the text for a use of an array that is lent.
const LENT: (&str, &str) = (
    "LentError",
    "the items are lent to another package; delete what was made of `device_memory`, such as tensors, and close it",
);

/// So many bytes are worked on between two looks at signals.
pub const PIECE_BYTES: usize = 256 << 20;

/// An array of the library.
pub struct Handle {
    state: Mutex<State>,
    pub unit: Unit,
    /// How arrays are made that are computed from it.
    pub options: Options,
    /// Whether it lies on cards, whose kernels are sooner done than a copy to RAM.
    pub is_on_cards: bool,
    /// Whether its home is Python's.
    is_at_home: bool,
    process: u32,
    /// What is computed from it later.
    pending: Mutex<Vec<Weak<Lazy>>>,
}

/// What can be done with an array.
enum State {
    Open(Arc<Open>),
    /// Others use it where it lies.
    Lent,
    Closed,
}

/// An array that others use where it lies, which it may be used again after.
pub struct Loan {
    handle: Arc<Handle>,
    /// None when it is being dropped.
    open: Option<Arc<Open>>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.handle.process == std::process::id() {
            // Who has an error to tell is a stream of others, or the next use of the device.
            let addresses = self.handle.options.devices.iter().filter_map(|device| device.addresses());
            addresses.for_each(|addresses| drop(addresses.synchronize()));
        }
        if let Some(open) = self.open.take() {
            *lock(&self.handle.state) = State::Open(open);
        }
    }
}

/// An array that is in use, and stays open meanwhile.
pub type Open = Owned<dyn Elements>;

/// What has threads and devices, which a process that was forked off has not.
pub struct Owned<T: ?Sized + Send> {
    /// None when it is being dropped.
    inner: Option<Box<T>>,
    process: u32,
}

impl<T: ?Sized + Send> Owned<T> {
    pub fn new(inner: Box<T>) -> Self {
        Self { inner: Some(inner), process: std::process::id() }
    }

    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.inner.as_deref_mut()
    }
}

impl<T: ?Sized + Send> Drop for Owned<T> {
    fn drop(&mut self) {
        let mut inner = self.inner.take();
        if self.process != std::process::id() {
            std::mem::forget(inner);
            return;
        }
        // Without Python's lock, which who writes pages may wait for.
        let _ = Python::try_attach(|py| py.detach(|| drop(inner.take())));
        drop(inner);
    }
}

impl<T: ?Sized + Send> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_deref().expect("it is there until it is dropped")
    }
}

/// Locks what no thread leaves in disorder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// Makes an array of so many elements. Blocks.
    pub fn new(unit: Unit, len: usize, options: Options, place: &Place) -> Result<Arc<Self>> {
        let elements = build(unit, len, &options, place)?;
        let is_on_cards = matches!(place, Place::Memory) && options.are_cards();
        Ok(Self::made(unit, elements, options, is_on_cards, matches!(place, Place::Home(_))))
    }

    /// An array of elements that are there.
    pub fn of(unit: Unit, elements: Box<dyn Elements>, options: Options, is_on_cards: bool) -> Arc<Self> {
        Self::made(unit, elements, options, is_on_cards, false)
    }

    fn made(
        unit: Unit,
        elements: Box<dyn Elements>,
        options: Options,
        is_on_cards: bool,
        is_at_home: bool,
    ) -> Arc<Self> {
        let state = Mutex::new(State::Open(Arc::new(Owned::new(elements))));
        let options = Options { max_len: None, page_bytes: None, ..options };
        Arc::new(Self {
            state,
            unit,
            options,
            is_on_cards,
            is_at_home,
            process: std::process::id(),
            pending: Mutex::default(),
        })
    }

    /// The array, if it can be used.
    pub fn open(&self) -> Result<Arc<Open>> {
        if self.process != std::process::id() {
            let text = "the array was made before this process was forked off, whose threads and devices it has not; \
                        start processes by `multiprocessing.get_context(\"spawn\")` and make or open arrays in them";
            return Err(Python::attach(|py| raised(py, "ForkedError", text)).into());
        }
        let (class, text) = match &*lock(&self.state) {
            State::Open(open) => return Ok(Arc::clone(open)),
            State::Lent => LENT,
            State::Closed => {
                ("ClosedError", "the array is closed; use it before `close`, or within its `with` block")
            }
        };
        Err(Python::attach(|py| raised(py, class, text)).into())
    }

    /// Lends elements to others, until the loan and all that was made of it is dropped; says where those from
    /// the first on lie that are side by side. Blocks.
    pub fn lend(self: &Arc<Self>, range: Range<usize>) -> Result<(Arc<Loan>, LentRun)> {
        let mut open = self.open()?;
        {
            let mut state = lock(&self.state);
            // This has one, and the state the other.
            if !matches!(&*state, State::Open(_)) || Arc::strong_count(&open) > 2 {
                let text = "another thread is using the array; lend it when nobody does";
                drop(state);
                return Err(Python::attach(|py| raised(py, "LentError", text)).into());
            }
            *state = State::Lent;
        }
        let run = match Arc::get_mut(&mut open).and_then(Owned::get_mut) {
            Some(elements) => elements.lend(range),
            None => unreachable!("nobody else has it, and nobody else can get it"),
        };
        let loan = Arc::new(Loan { handle: Arc::clone(self), open: Some(open) });
        Ok((loan, run?))
    }

    /// Gives the array up, as soon as nobody uses it any more. What is pending on it is computed before, and
    /// what has changed is written to where Python has it.
    pub fn close(&self) -> Result<()> {
        if self.is_closed() {
            return Ok(());
        }
        self.settle(None)?;
        if self.is_at_home {
            self.open()?.sync()?;
        }
        let mut state = lock(&self.state);
        if matches!(&*state, State::Lent) {
            drop(state);
            return Err(Python::attach(|py| raised(py, LENT.0, LENT.1)).into());
        }
        let before = std::mem::replace(&mut *state, State::Closed);
        drop(state);
        // Without the lock: what it has may take a while to be given back.
        drop(before);
        Ok(())
    }

    pub fn is_closed(&self) -> bool {
        matches!(&*lock(&self.state), State::Closed)
    }

    /// Remembers that an expression is computed from it.
    pub fn is_read_by(&self, lazy: &Arc<Lazy>) {
        let mut pending = lock(&self.pending);
        if pending.len() == pending.capacity() {
            pending.retain(|one| one.strong_count() > 0);
        }
        pending.push(Arc::downgrade(lazy));
    }

    /// Computes what is pending on it: before it is written to. One that nobody asks for any more is left
    /// out. On an error what is not computed stays pending.
    pub fn settle(&self, unwanted: Option<&Lazy>) -> Result<()> {
        // What another process has locked stays so in one that is forked off.
        self.open()?;
        loop {
            let Some(one) = lock(&self.pending).last().cloned() else { return Ok(()) };
            match one.upgrade() {
                Some(lazy) if !unwanted.is_some_and(|unwanted| std::ptr::eq(unwanted, &*lazy)) => {
                    lazy.view()?;
                }
                _ => {}
            }
            lock(&self.pending).retain(|other| !other.ptr_eq(&one));
        }
    }

    /// Has work done on a range of elements, a piece after the other, so that signals are handled meanwhile.
    pub fn in_pieces(
        &self,
        range: Range<usize>,
        mut work: impl FnMut(Range<usize>) -> vmarray::Result<()>,
    ) -> Result<()> {
        self.in_pieces_of(PIECE_BYTES, range, |part| Ok(work(part)?))
    }

    /// The same, of so many bytes each.
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
