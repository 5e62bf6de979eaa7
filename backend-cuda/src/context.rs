//! The CUDA context of a device, and guards that make the context current in the calling thread.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;
use parking_lot::Mutex;

use crate::driver::{ContextHandle, Driver, DriverResult, StatusCode, StreamHandle, check};
use crate::memory_cache::MemoryCache;

/// A driver context: the GPU's primary one, which this value retains, or a context of the program.
#[derive(Debug)]
pub(crate) struct CudaContext {
    pub(crate) driver: &'static Driver,
    handle: ContextHandle,
    ordinal: c_int,
    is_primary: bool,
    /// Distinguishes successive contexts with the same handle.
    generation: u64,
    /// The stream that wipes memory before its release, if wiping is on. It is created when wiping is turned
    /// on, because a full GPU may refuse a stream later.
    wiper: OnceLock<StreamHandle>,
    /// Other contexts by their generation; true if kernels and copies of this context can access their
    /// memory.
    peers: Mutex<Vec<(u64, bool)>>,
    /// Recently released memory, kept for reuse.
    pub(crate) kept: MemoryCache,
}

thread_local! {
    /// The context that this crate left current on this thread, if the thread had no context before.
    static LEFT: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

impl CudaContext {
    /// Retains the primary context of a GPU, which all code of the process shares.
    pub(crate) fn primary(driver: &'static Driver, ordinal: c_int) -> DriverResult<Self> {
        let mut handle = ContextHandle::NULL;
        // SAFETY: writes one handle; the driver answers a wrong ordinal with an error.
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
            kept: MemoryCache::default(),
        }
    }

    /// Uses a context of the program.
    ///
    /// # Safety
    /// The context must exist until `self` is dropped.
    pub(crate) unsafe fn adopted(driver: &'static Driver, handle: ContextHandle) -> DriverResult<Self> {
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

    /// Returns and retains the context that is current on this thread; `None` if it is not a primary context.
    pub(crate) fn current(driver: &'static Driver) -> DriverResult<Option<Self>> {
        let mut found = ContextHandle::NULL;
        // SAFETY: writes one handle.
        check(unsafe { (driver.table.context_get_current)(&raw mut found) })?;
        if found == ContextHandle::NULL {
            return Ok(None);
        }
        let (mut ordinal, mut flags, mut is_active) = (0, 0, 0);
        // SAFETY: each call writes the value that its pointer has room for; the query creates no primary
        // context.
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

    /// Returns true if both values have the same driver context.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        std::ptr::eq(self.driver, other.driver) && self.handle == other.handle
    }

    /// Name of the GPU for messages, when no other description is known.
    pub(crate) fn name(&self) -> String {
        format!("CUDA device {}", self.ordinal)
    }

    pub(crate) fn handle(&self) -> ContextHandle {
        self.handle
    }

    /// Makes the context current on this thread until the guard is dropped.
    ///
    /// The function queries the current context each time, since other libraries may have changed it; the
    /// driver answers from a thread-local in a few nanoseconds. The drop restores the context of other code.
    /// If the thread had no context, this one stays current. A thread that only pages then changes the
    /// context only in its first call.
    pub(crate) fn enter(&self) -> DriverResult<Entered<'_>> {
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

    /// Makes the context current again while a guard of [`enter`](Self::enter) lives, because code of the
    /// program may have left another context current.
    pub(crate) fn enter_again(&self) -> DriverResult {
        self.set_current(self.handle)
    }

    fn set_current(&self, handle: ContextHandle) -> DriverResult {
        // SAFETY: the handle is this context's own, alive as long as `self`, or one that was current
        // before.
        check(unsafe { (self.driver.table.context_set_current)(handle) })
    }

    /// Returns true if kernels and copies in this context can access memory of another context. The first
    /// call enables the access.
    ///
    /// Two contexts of one GPU cannot access each other's memory. The driver copies between all GPUs, but
    /// through its own host memory if they lack peer access.
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
            tracing::debug!(
                ?code,
                from = self.ordinal,
                to = other.ordinal,
                "a GPU cannot access the memory of another GPU"
            );
            false
        });
        peers.push((other.generation, is_reached));
        is_reached
    }

    fn open_to(&self, other: &Self) -> DriverResult<bool> {
        let (table, mut can_access) = (&self.driver.table, 0);
        // SAFETY: writes one integer; the ordinals are valid.
        check(unsafe { (table.device_can_access_peer)(&raw mut can_access, self.ordinal, other.ordinal) })?;
        if can_access == 0 || self.ordinal == other.ordinal {
            return Ok(false);
        }
        let _current = self.enter()?;
        // SAFETY: the handle is of a context that is alive.
        match check(unsafe { (table.context_enable_peer_access)(other.handle, 0) }) {
            Err(code) if code != StatusCode::PEER_ACCESS_ALREADY_ENABLED => Err(code),
            _ => Ok(true),
        }
    }

    /// Creates a stream that does not synchronise with other streams. The context must be current.
    pub(crate) fn make_stream(&self) -> DriverResult<StreamHandle> {
        let mut stream = StreamHandle::NULL;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check(unsafe { (self.driver.table.stream_create)(&raw mut stream, flags) })?;
        Ok(stream)
    }

    /// Blocks until all work in the context is done. The context must be current.
    pub(crate) fn synchronize(&self) -> DriverResult {
        // SAFETY: takes no argument; a context is current.
        check(unsafe { (self.driver.table.context_synchronize)() })
    }

    /// Turns on wiping of memory before its release.
    pub(crate) fn start_wiping(&self) -> DriverResult {
        if self.wiper().is_some() {
            return Ok(());
        }
        let _current = self.enter()?;
        let stream = self.make_stream()?;
        if let Err(stream) = self.wiper.set(stream) {
            // Another thread has stored its own stream first, so destroy this stream.
            self.destroy(stream);
        }
        Ok(())
    }

    /// The stream that wipes memory, if wiping is on.
    pub(crate) fn wiper(&self) -> Option<StreamHandle> {
        self.wiper.get().copied()
    }

    /// Destroys a stream without work in flight.
    fn destroy(&self, stream: StreamHandle) {
        // SAFETY: the stream is alive, and this was its only handle.
        let destroyed =
            self.enter().and_then(|_current| check(unsafe { (self.driver.table.stream_destroy)(stream) }));
        if let Err(code) = destroyed {
            tracing::debug!(?code, "cannot destroy a stream, because the device is lost");
        }
    }

    /// Returns the bytes that the driver can allocate now, and the total bytes of the GPU.
    pub(crate) fn memory_of_driver(&self) -> DriverResult<(u64, u64)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: writes two integers.
        check(unsafe { (self.driver.table.mem_get_info)(&raw mut free, &raw mut total) })?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        self.give_all_back();
        if let Some(stream) = self.wiper.take() {
            self.destroy(stream);
        }
        if self.is_primary {
            let (left, generation) = LEFT.get();
            if left == self.handle.0.addr() && generation == self.generation {
                // The release below may destroy the context, so do not leave the context current.
                let _ = self.set_current(ContextHandle::NULL);
                LEFT.set((0, 0));
            }
            // SAFETY: pairs with the retain in `primary`.
            if let Err(code) = check(unsafe { (self.driver.table.primary_release)(self.ordinal) }) {
                tracing::warn!(
                    ?code,
                    ordinal = self.ordinal,
                    "cannot release the primary context of the GPU"
                );
            }
        }
    }
}

/// Guard of [`CudaContext::enter`]: while it lives, the context is current on this thread.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    context: &'a CudaContext,
    put_back: Option<ContextHandle>,
    /// Makes the guard stay on its thread, because each thread has its own current context.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.put_back {
            let put_back: Result<(), StatusCode> = self.context.set_current(before);
            if let Err(code) = put_back {
                tracing::warn!(?code, "cannot restore the context that was current before the call");
            }
        }
    }
}
