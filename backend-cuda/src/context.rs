//! The CUDA context of a device, and making it current.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;
use parking_lot::Mutex;

use crate::driver::{Code, ContextHandle, Driver, Outcome, StreamHandle, check};
use crate::kept::Kept;

/// A context: the card's primary one, which is held as long as this lives, or one that the program made.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    handle: ContextHandle,
    ordinal: c_int,
    is_primary: bool,
    /// Tells apart contexts that one after the other have the same handle.
    generation: u64,
    /// In which memory is wiped before it is given back, if it is. Made when that is asked for: a card that
    /// is full may refuse one later.
    wiper: OnceLock<StreamHandle>,
    /// Other contexts, by what tells them apart, and whether kernels and copies of this one reach memory
    /// there.
    peers: Mutex<Vec<(u64, bool)>>,
    /// Memory that was given back a moment ago.
    pub(crate) kept: Kept,
}

thread_local! {
    /// The context that this thread was left with by this crate, if it had none of its own.
    static LEFT: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

impl Context {
    /// The primary context of a card, which is shared with everything else in the process that uses it.
    pub(crate) fn primary(driver: &'static Driver, ordinal: c_int) -> Outcome<Self> {
        let mut handle = ContextHandle::NULL;
        // SAFETY: writes one handle; a wrong ordinal is answered with an error.
        check(unsafe { (driver.table.primary_retain)(&raw mut handle, ordinal) })?;
        Ok(Self::of(driver, handle, ordinal, true))
    }

    fn of(driver: &'static Driver, handle: ContextHandle, ordinal: c_int, is_primary: bool) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let generation = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            driver,
            handle,
            ordinal,
            is_primary,
            generation,
            wiper: OnceLock::new(),
            peers: Mutex::default(),
            kept: Kept::default(),
        }
    }

    /// A context of the program.
    ///
    /// # Safety
    /// The context must be alive, and stay so until `self` is dropped.
    pub(crate) unsafe fn adopted(driver: &'static Driver, handle: ContextHandle) -> Outcome<Self> {
        let mut context = Self::of(driver, handle, 0, false);
        let mut ordinal = 0;
        {
            let _current = context.enter()?;
            // SAFETY: writes one integer.
            check(unsafe { (driver.table.context_get_device)(&raw mut ordinal) })?;
        }
        context.ordinal = ordinal;
        Ok(context)
    }

    /// The context that is current on this thread, if it is the primary one of its card; held from now on.
    pub(crate) fn current(driver: &'static Driver) -> Outcome<Option<Self>> {
        let mut found = ContextHandle::NULL;
        // SAFETY: writes one handle.
        check(unsafe { (driver.table.context_get_current)(&raw mut found) })?;
        if found == ContextHandle::NULL {
            return Ok(None);
        }
        let (mut ordinal, mut flags, mut is_active) = (0, 0, 0);
        // SAFETY: each writes what it is given room for; asking does not make a primary context.
        unsafe {
            check((driver.table.context_get_device)(&raw mut ordinal))?;
            check((driver.table.primary_get_state)(ordinal, &raw mut flags, &raw mut is_active))?;
        }
        if is_active == 0 {
            return Ok(None);
        }
        let context = Self::primary(driver, ordinal)?;
        Ok((context.handle == found).then_some(context))
    }

    pub(crate) fn ordinal(&self) -> c_int {
        self.ordinal
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.is_primary
    }

    /// Whether both stand for the same context of the driver.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        std::ptr::eq(self.driver, other.driver) && self.handle == other.handle
    }

    /// What it is called where nothing more is known.
    pub(crate) fn name(&self) -> String {
        format!("CUDA device {}", self.ordinal)
    }

    pub(crate) fn handle(&self) -> ContextHandle {
        self.handle
    }

    /// Makes the context current on this thread until the guard is dropped.
    ///
    /// What is current is asked for each time, since other libraries may have changed it; the driver answers
    /// from a thread-local in a few nanoseconds. A context of somebody else is put back by the guard. A
    /// thread that had none keeps this one, so that threads that do nothing but page change nothing after
    /// their first call.
    pub(crate) fn enter(&self) -> Outcome<Entered<'_>> {
        let mut found = ContextHandle::NULL;
        // SAFETY: writes one handle.
        check(unsafe { (self.driver.table.context_get_current)(&raw mut found) })?;
        let (left, generation) = LEFT.get();
        let was_left = left != 0 && found.0.addr() == left;
        let mut put_back = None;
        if found != self.handle || (was_left && generation != self.generation) {
            self.set_current(self.handle)?;
            if found == ContextHandle::NULL || was_left {
                LEFT.set((self.handle.0.addr(), self.generation));
            } else {
                put_back = Some(found);
            }
        }
        Ok(Entered { context: self, put_back, not_send: PhantomData })
    }

    /// Makes the context current again while a guard of [`enter`](Self::enter) lives, after code of the
    /// program that may have left another one.
    pub(crate) fn enter_again(&self) -> Outcome {
        self.set_current(self.handle)
    }

    fn set_current(&self, handle: ContextHandle) -> Outcome {
        // SAFETY: the handle is this context's own, alive as long as `self`, or one that was current before.
        check(unsafe { (self.driver.table.context_set_current)(handle) })
    }

    /// Whether kernels and copies in this context reach memory of another, after it has been seen to.
    ///
    /// Two contexts of one card do not. The driver copies between all cards, but where these do not reach
    /// each other it does so through host memory of its own.
    pub(crate) fn reaches(&self, other: &Self) -> bool {
        if !std::ptr::eq(self.driver, other.driver) {
            return false;
        }
        if self.handle == other.handle {
            return true;
        }
        let mut peers = self.peers.lock();
        if let Some((_, is_reached)) = peers.iter().find(|(generation, _)| *generation == other.generation) {
            return *is_reached;
        }
        let is_reached = self.open_to(other).unwrap_or_else(|code| {
            tracing::debug!(?code, from = self.ordinal, to = other.ordinal, "a card cannot be reached");
            false
        });
        peers.push((other.generation, is_reached));
        is_reached
    }

    fn open_to(&self, other: &Self) -> Outcome<bool> {
        let (table, mut can_access) = (&self.driver.table, 0);
        // SAFETY: writes one integer; the ordinals are those of cards.
        check(unsafe { (table.device_can_access_peer)(&raw mut can_access, self.ordinal, other.ordinal) })?;
        if can_access == 0 || self.ordinal == other.ordinal {
            return Ok(false);
        }
        let _current = self.enter()?;
        // SAFETY: the handle is of a context that is alive.
        match check(unsafe { (table.context_enable_peer_access)(other.handle, 0) }) {
            Err(code) if code != Code::PEER_ACCESS_ALREADY_ENABLED => Err(code),
            _ => Ok(true),
        }
    }

    /// A stream that waits for no other. The context is current.
    pub(crate) fn make_stream(&self) -> Outcome<StreamHandle> {
        let mut stream = StreamHandle::NULL;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check(unsafe { (self.driver.table.stream_create)(&raw mut stream, flags) })?;
        Ok(stream)
    }

    /// Blocks until all work in the context is done. The context is current.
    pub(crate) fn synchronize(&self) -> Outcome {
        // SAFETY: takes nothing; a context is current.
        check(unsafe { (self.driver.table.context_synchronize)() })
    }

    /// Has memory wiped from now on before it is given back.
    pub(crate) fn start_wiping(&self) -> Outcome {
        if self.wiper().is_some() {
            return Ok(());
        }
        let _current = self.enter()?;
        let stream = self.make_stream()?;
        if let Err(stream) = self.wiper.set(stream) {
            // Another thread was faster.
            self.destroy(stream);
        }
        Ok(())
    }

    /// The stream in which memory is wiped, if it is.
    pub(crate) fn wiper(&self) -> Option<StreamHandle> {
        self.wiper.get().copied()
    }

    /// Destroys a stream in which nothing is in flight.
    fn destroy(&self, stream: StreamHandle) {
        // SAFETY: the stream is alive, and this was its only name.
        let destroyed =
            self.enter().and_then(|_current| check(unsafe { (self.driver.table.stream_destroy)(stream) }));
        if let Err(code) = destroyed {
            tracing::debug!(?code, "a stream was not destroyed: the device is lost");
        }
    }

    /// Has the driver find memory: once more without what is kept, if there is too little of it.
    pub(crate) fn find_memory(&self, mut find: impl FnMut() -> Outcome) -> Outcome {
        match find() {
            Err(Code::OUT_OF_MEMORY) if Kept::give_all_back_of(self) => find(),
            outcome => outcome,
        }
    }

    /// Bytes that are free, those that are kept among them, and all bytes.
    pub(crate) fn memory(&self) -> Outcome<(u64, u64)> {
        let (free, total) = self.memory_of_driver()?;
        Ok((free + Kept::bytes_of(self), total))
    }

    /// Bytes that the driver has to give out, and all bytes.
    pub(crate) fn memory_of_driver(&self) -> Outcome<(u64, u64)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: writes two integers.
        check(unsafe { (self.driver.table.mem_get_info)(&raw mut free, &raw mut total) })?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.kept.give_all_back(self);
        if let Some(stream) = self.wiper.take() {
            self.destroy(stream);
        }
        if self.is_primary {
            let (left, generation) = LEFT.get();
            if left == self.handle.0.addr() && generation == self.generation {
                // Do not leave this thread with a context that may be about to end.
                let _ = self.set_current(ContextHandle::NULL);
                LEFT.set((0, 0));
            }
            // SAFETY: pairs with the retain in `primary`.
            if let Err(code) = check(unsafe { (self.driver.table.primary_release)(self.ordinal) }) {
                tracing::warn!(?code, ordinal = self.ordinal, "the primary context could not be released");
            }
        }
    }
}

/// Proof that a context is current on this thread; see [`Context::enter`].
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    context: &'a Context,
    put_back: Option<ContextHandle>,
    /// What is current belongs to a thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.put_back {
            let put_back: Result<(), Code> = self.context.set_current(before);
            if let Err(code) = put_back {
                tracing::warn!(?code, "the context that was current before could not be made current again");
            }
        }
    }
}
