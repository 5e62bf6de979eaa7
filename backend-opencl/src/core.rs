//! State that all parts of an OpenCL device share: its context, its kernels, and a flag that it is lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use backend_api::{DeviceInfo, DeviceKind, Error, ErrorKind, Result, Routing};
use opencl3::memory::CL_MEM_READ_WRITE;
use opencl3::types::{cl_device_id, cl_int};
use parking_lot::{Mutex, RwLock};
use vmarray_support::warn;

use crate::discovery::{DeviceTraits, Discovered, Handles, piece_bytes};
use crate::driver::objects::{CommandQueue, Context, Memory, Status};
use crate::driver::{Sys, sys};
use crate::error::{self, Severity};
use crate::kernel::BuiltKernels;
use crate::kernel::compute::cache::BuiltProgramCache;
use crate::kernel::launch::cache::BuiltKernelCache;
use crate::options::OpenClOptions;
use crate::retry::{DOUBT, insist, keep_for_good};
use crate::wakers::{CompletionSender, WakeJob, WakeableQueue};
use crate::zero_copy;

const OPEN: &str = "open";

/// State of one opened device. Fields are dropped in this order: the context last.
#[derive(Debug)]
pub(crate) struct OpenClCore {
    pub info: DeviceInfo,
    pub handles: Handles,
    pub traits: DeviceTraits,
    pub kernels: BuiltKernels,
    pub programs: BuiltProgramCache,
    /// Cache of the program's kernels, built for launches.
    pub launches: BuiltKernelCache,
    /// An extra queue with little work, for mapping memory and for probing the device.
    pub service: CommandQueue,
    probe: Memory,
    pub context: Context,
    lost: OnceLock<Error>,
    /// True if the driver itself reports that the device is gone. None of its work then continues.
    gone: AtomicBool,
    tracks: Mutex<Vec<Weak<dyn WakeableQueue>>>,
    /// Number of callbacks that the driver still has to make, plus the number of wakers that the completion
    /// thread still has to run.
    pub callbacks: Arc<AtomicUsize>,
    /// True if pinned memory uses NVIDIA's host buffers. A trial has then shown that kernels can access them.
    pub host_buffers_nv: bool,
    pub completion_thread: CompletionSender,
    /// The measured routes (copy methods) for copies of different numbers and sizes.
    pub routing: RwLock<Routing>,
    /// True if the device wipes memory before its release.
    pub wipes: Arc<AtomicBool>,
}

impl OpenClCore {
    pub fn open(found: &Discovered, options: &OpenClOptions) -> Result<Arc<Self>> {
        let sys = sys().map_err(|status| error::driver(OPEN, ErrorKind::Driver, status).on(found.info()))?;
        Self::open_by(sys, found, options)
    }

    /// Opens a device, with `sys` as the table of driver functions.
    pub fn open_by(sys: &'static Sys, found: &Discovered, options: &OpenClOptions) -> Result<Arc<Self>> {
        const OPERATION: &str = OPEN;
        let mut info = found.info().clone();
        if let Some(bytes) = options.largest_allocation_bytes {
            info.largest_allocation_bytes = info.largest_allocation_bytes.min(bytes.max(4096));
            info.memory_piece_bytes = Some(piece_bytes(info.largest_allocation_bytes));
        }
        let refused = |status| error::driver(OPERATION, ErrorKind::Driver, status).on(&info);
        let handles = found.handles;
        let context = Context::new(sys, handles.platform, handles.device).map_err(refused)?;
        let service = context.queue(handles.device).map_err(refused)?;
        let probe = context.buffer(CL_MEM_READ_WRITE, 4).map_err(refused)?;
        let kernels = BuiltKernels::new(&context, found, options).map_err(|error| error.on(&info))?;
        let mut traits = found.traits;
        traits.shares_fine_grained &= options.zero_copy;
        // If device and host share memory, skip the extension: kernels can access host memory anyway.
        let host_buffers_nv = options.zero_copy
            && traits.has_host_buffers_nv
            && !traits.shares_fine_grained
            && zero_copy::works(&context, handles, &service, &kernels);
        let callbacks = Arc::default();
        let completion_thread = CompletionSender::new(&callbacks).map_err(|error| {
            Error::new(ErrorKind::System, OPERATION)
                .with_detail(format!("the thread that runs wakers cannot start: {error}"))
                .on(&info)
        })?;
        Ok(Arc::new(Self {
            handles,
            traits,
            kernels,
            programs: BuiltProgramCache::default(),
            launches: BuiltKernelCache::default(),
            service,
            probe,
            context,
            info,
            lost: OnceLock::new(),
            gone: AtomicBool::new(false),
            tracks: Mutex::default(),
            callbacks,
            host_buffers_nv,
            completion_thread,
            routing: RwLock::default(),
            wipes: Arc::default(),
        }))
    }

    /// Returns the context and the device for which programs are built.
    pub fn target(&self) -> (&Context, cl_device_id) {
        (&self.context, self.handles.device)
    }

    /// Returns true if kernels of the device can read a clock, which time limits need.
    pub fn has_clock(&self) -> bool {
        self.info.kind == DeviceKind::Cpu && self.traits.shares_fine_grained
    }

    /// Checks that the device is not lost.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Lost`] if the device is lost.
    pub fn alive(&self, operation: &'static str) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(error) => Err(renamed(error, operation, &self.info)),
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Returns true if the device is lost, and all of its work is over.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Registers the completion tracker of a queue, whose submissions fail when the device is lost.
    pub fn watch(&self, track: &Arc<dyn WakeableQueue>) {
        let mut tracks = self.tracks.lock();
        tracks.retain(|known| known.strong_count() > 0);
        tracks.push(Arc::downgrade(track));
        drop(tracks);
        if self.is_gone()
            && let Some(error) = self.lost.get()
        {
            track.lose(error.clone());
        }
    }

    /// Declares the device lost: every call fails from now on. If the driver reports that the device is gone,
    /// `gone` is true, and all pending work fails as well. Otherwise the work may continue, and tickets wait
    /// for it. The caller may hold any lock, because other threads wake the waiters.
    pub fn lose(&self, error: Error, gone: bool) {
        let is_first = self.lost.set(error).is_ok();
        let Some(error) = self.lost.get() else { return };
        if is_first {
            tracing::warn!(%error, "an OpenCL device is lost");
        }
        let is_news = if gone { !self.gone.swap(true, Ordering::AcqRel) } else { is_first };
        if !is_news {
            return;
        }
        let tracks: Vec<_> = self.tracks.lock().iter().filter_map(Weak::upgrade).collect();
        for track in tracks {
            if gone {
                track.lose(error.clone());
                self.callbacks.fetch_add(1, Ordering::AcqRel);
                self.completion_thread.send(WakeJob { track, done: None });
            } else {
                track.see_off();
            }
        }
    }

    /// Converts a driver's status code to an error, of kind `otherwise` if the code is unspecific, and
    /// declares the device lost if necessary. If the code is ambiguous, blocks briefly to probe the device.
    pub fn fail(&self, operation: &'static str, otherwise: ErrorKind, status: cl_int) -> Error {
        let error = error::driver(operation, otherwise, status).on(&self.info);
        let gone = match error::severity(status) {
            Severity::Single => return error,
            Severity::Lost => true,
            Severity::Doubtful if self.is_lost() => false,
            Severity::Doubtful => match insist(DOUBT, || self.probe()) {
                Ok(()) => return error,
                // The probe failed too, but both errors may come from a lack of resources. So assume that
                // earlier work continues, unless the driver reports a loss.
                Err(again) => error::severity(again) == Severity::Lost,
            },
        };
        self.lost_with(operation, status, "", gone)
    }

    /// Declares the device lost, because the driver does not report the state of work. Returns the error.
    pub fn give_up(&self, operation: &'static str, status: cl_int) -> Error {
        let gone = error::severity(status) == Severity::Lost;
        self.lost_with(operation, status, "the driver does not report whether its work is complete", gone)
    }

    fn lost_with(&self, operation: &'static str, status: cl_int, detail: &str, gone: bool) -> Error {
        let error = Error::new(ErrorKind::Lost, operation)
            .on(&self.info)
            .with_driver(i64::from(status), error::name(status))
            .with_detail(detail);
        self.lose(error.clone(), gone);
        error
    }

    /// Executes a trivial command, which cannot fail on a working device.
    fn probe(&self) -> Status<()> {
        // The value is static, because the driver may still read it if `finish` fails.
        static VALUE: [u8; 4] = [0; 4];
        // SAFETY: the buffer has four bytes, and so has the value.
        let written = unsafe { self.service.write(VALUE.as_ptr(), &self.probe, 0, 4, None) };
        let finished = self.service.finish();
        written.and(finished)
    }

    /// Keeps memory allocated until the process ends, because work in flight may still access the memory. If
    /// the memory should be wiped (`is_wiped`), warns that it is not.
    pub fn keep(&self, memory: impl Send + 'static, is_wiped: bool) {
        if is_wiped && self.wipes.load(Ordering::Acquire) {
            let reason = "the device is lost, and may still use it";
            warn::not_wiped("memory", &self.info, &reason);
        }
        keep_for_good(memory);
    }

    /// Blocks until the driver has made all of its callbacks, and the completion thread holds no reference to
    /// the device. Then the calling thread can release the context. Does not wait for wakers. If a waker in
    /// the completion thread drops the device, the call returns at once, and the context is released after
    /// the last waker.
    pub fn await_callbacks(&self) {
        if self.completion_thread.is_this_thread() {
            return;
        }
        // Limit the wait, because the driver of a lost device may never call the registered callbacks.
        const TURNS: u32 = 100_000;
        let mut turns = 0;
        while self.callbacks.load(Ordering::Acquire) > 0 && (turns < TURNS || !self.is_lost()) {
            // Do not block here: the completion thread may run a waker that waits for a lock of the caller.
            if !self.completion_thread.settle_next() {
                std::thread::yield_now();
            }
            turns += 1;
        }
    }
}

/// Returns the error that lost the device, as an error of another operation.
fn renamed(error: &Error, operation: &'static str, info: &DeviceInfo) -> Error {
    let mut same =
        Error::new(error.kind(), operation).on(info).with_detail(error.detail()).with_advice(error.advice());
    if let Some(driver) = error.driver() {
        same = same.with_driver(driver.code, driver.name.clone());
    }
    same
}
