//! What everything of one device shares: its context, its kernels, and whether it is still there.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use backend_api::{DeviceInfo, Error, ErrorKind, Result, Routing};
use opencl3::error_codes::CL_DEVICE_NOT_AVAILABLE;
use opencl3::memory::CL_MEM_READ_WRITE;
use opencl3::types::cl_int;
use parking_lot::{Mutex, RwLock};

use crate::compute::Programs;
use crate::courier::{Courier, Errand};
use crate::discovery::{Discovered, Handles, Traits};
use crate::error::{self, Severity};
use crate::options::Options;
use crate::program::Kernels;
use crate::raw::{CommandQueue, Context, Memory, Order, Status};
use crate::sys::sys;
use crate::track::Track;
use crate::zero_copy;

/// One opened device. Fields go in this order: the context last.
#[derive(Debug)]
pub(crate) struct Core {
    pub info: DeviceInfo,
    pub handles: Handles,
    pub traits: Traits,
    pub kernels: Kernels,
    pub programs: Programs,
    /// For mapping, and for asking whether the device is there. Never flooded with work.
    pub service: CommandQueue,
    probe: Memory,
    pub context: Context,
    lost: OnceLock<Error>,
    tracks: Mutex<Vec<Weak<Track>>>,
    /// How many callbacks the driver still owes us, and errands the courier.
    pub callbacks: Arc<AtomicUsize>,
    /// Whether pinned memory is made of NVIDIA's host buffers, which kernels were seen to reach.
    pub host_buffers_nv: bool,
    pub courier: Courier,
    /// The routes of copies that were measured.
    pub routing: RwLock<Routing>,
    /// Whether memory is wiped before it is given back.
    pub wipes: Arc<AtomicBool>,
}

impl Core {
    pub fn open(found: &Discovered, options: &Options) -> Result<Arc<Self>> {
        const OPERATION: &str = "open";
        let mut info = found.info().clone();
        if let Some(bytes) = options.largest_allocation_bytes {
            info.largest_allocation_bytes = info.largest_allocation_bytes.min(bytes.max(4096));
        }
        let refused = |status| error::driver(OPERATION, ErrorKind::Driver, status).on(&info);
        let sys = sys().map_err(refused)?;
        let handles = found.handles;
        let context = Context::new(sys, handles.platform, handles.device).map_err(refused)?;
        let service = context.queue(handles.device).map_err(refused)?;
        let probe = context.buffer(CL_MEM_READ_WRITE, 4).map_err(refused)?;
        let kernels = Kernels::new(&context, found, options).map_err(|error| error.on(&info))?;
        let mut traits = found.traits;
        traits.shares_fine_grained &= options.zero_copy;
        // Kernels reach shared memory anyway.
        let host_buffers_nv = options.zero_copy
            && traits.has_host_buffers_nv
            && !traits.shares_fine_grained
            && zero_copy::works(&context, handles, &service, &kernels);
        let callbacks = Arc::default();
        let courier = Courier::new(&callbacks).map_err(|error| {
            Error::new(ErrorKind::System, OPERATION)
                .with_detail(format!("no thread for wakers: {error}"))
                .on(&info)
        })?;
        Ok(Arc::new(Self {
            handles,
            traits,
            kernels,
            programs: Programs::default(),
            service,
            probe,
            context,
            info,
            lost: OnceLock::new(),
            tracks: Mutex::default(),
            callbacks,
            host_buffers_nv,
            courier,
            routing: RwLock::default(),
            wipes: Arc::default(),
        }))
    }

    /// # Errors
    /// [`ErrorKind::Lost`] once the device is.
    pub fn alive(&self, operation: &'static str) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(error) => Err(renamed(error, operation, &self.info)),
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Has a queue's history told when the device is lost.
    pub fn watch(&self, track: &Arc<Track>) {
        let mut tracks = self.tracks.lock();
        tracks.retain(|known| known.strong_count() > 0);
        tracks.push(Arc::downgrade(track));
        drop(tracks);
        if let Some(error) = self.lost.get() {
            track.timeline.lose(error.clone());
        }
    }

    /// Declares the device lost: everything pending fails, and every call from now on. Can be called under any lock:
    /// those who wait are woken by the courier.
    pub fn lose(&self, error: Error) {
        if self.lost.set(error.clone()).is_err() {
            return;
        }
        tracing::warn!(%error, "an OpenCL device is lost");
        let tracks: Vec<_> = self.tracks.lock().iter().filter_map(Weak::upgrade).collect();
        for track in tracks {
            track.timeline.lose(error.clone());
            self.callbacks.fetch_add(1, Ordering::AcqRel);
            self.courier.send(Errand { track, done: None });
        }
    }

    /// Turns a driver's answer into an error, and finds out whether it means that the device is lost. Blocks for a
    /// moment if the code leaves that open.
    pub fn fail(&self, operation: &'static str, otherwise: ErrorKind, status: cl_int) -> Error {
        let error = error::driver(operation, otherwise, status).on(&self.info);
        let lost = match error::severity(status) {
            Severity::Lost => true,
            Severity::Doubtful => self.probe().is_err(),
            Severity::Single => false,
        };
        if !lost {
            return error;
        }
        let error = Error::new(ErrorKind::Lost, operation)
            .on(&self.info)
            .with_driver(i64::from(status), error::name(status));
        self.lose(error.clone());
        error
    }

    /// Asks the device for something that cannot fail on one that works.
    fn probe(&self) -> Status<()> {
        if self.is_lost() {
            return Err(CL_DEVICE_NOT_AVAILABLE);
        }
        let value = [0_u8; 4];
        // SAFETY: the buffer has four bytes, and `finish` keeps `value` alive until they were read.
        let written = unsafe { self.service.write(value.as_ptr(), &self.probe, 0, 4, Order::default()) };
        let finished = self.service.finish();
        written.and(finished)
    }

    /// Blocks until the driver has made every callback that it owes and the courier holds nothing of the device, so
    /// that the context goes in this thread and not later. Not in the courier's own thread, where a waker drops the
    /// device: there the context goes with the last errand.
    pub fn await_callbacks(&self) {
        if self.courier.is_this_thread() {
            return;
        }
        // A lost device may owe its callbacks for ever.
        const PATIENCE: u32 = 100_000;
        let mut turns = 0;
        while self.callbacks.load(Ordering::Acquire) > 0 && (turns < PATIENCE || !self.is_lost()) {
            std::thread::yield_now();
            turns += 1;
        }
    }
}

/// The same failure as seen by another operation.
fn renamed(error: &Error, operation: &'static str, info: &DeviceInfo) -> Error {
    let mut same =
        Error::new(error.kind(), operation).on(info).with_detail(error.detail()).with_advice(error.advice());
    if let Some(driver) = error.driver() {
        same = same.with_driver(driver.code, driver.name.clone());
    }
    same
}
