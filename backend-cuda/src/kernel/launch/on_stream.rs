//! Kernels and host functions on streams of the program, without tickets.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use backend_api::kernel::VerifiedKernel;
use backend_api::{
    Error, ErrorKind, Extents, HostSpan, Result, StreamId, StreamKernel, StreamLauncher, StreamLayout,
    StreamView,
};

use super::cache::TranslatedKernel;
use super::codegen::{KernelKey, LeadingParameters, ViewLayout};
use crate::core::CudaCore;
use crate::device::CudaDevice;
use crate::driver::objects::launch_on;
use crate::driver::{StatusCode, StreamHandle, check};
use crate::kernel::argument;

/// The most words of parameters that a launch passes without an allocation.
const WORDS: usize = 128;

/// A translated kernel whose work-items cannot fail.
struct CudaStreamKernel {
    core: Arc<CudaCore>,
    built: Arc<TranslatedKernel>,
    threads: u32,
    ranges: Vec<usize>,
    params: usize,
}

impl fmt::Debug for CudaStreamKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaStreamKernel").field("device", &self.core.card.info).finish_non_exhaustive()
    }
}

impl Drop for CudaStreamKernel {
    fn drop(&mut self) {
        // The kernel's code must not be unloaded while it runs. A lost device runs nothing.
        if let Ok(_current) = self.core.enter("release")
            && let Err(code) = self.core.context.synchronize()
        {
            self.core.error("release", code);
        }
    }
}

/// Returns the error of a call for a stream of the program. A stream that does not exist is an error of the
/// program, and not the loss of the device.
fn refusal(core: &CudaCore, operation: &'static str, code: StatusCode) -> Error {
    match code {
        StatusCode::INVALID_HANDLE | StatusCode::INVALID_CONTEXT => {
            let error = Error::new(ErrorKind::InvalidArgument, operation);
            let detail = "the stream does not exist, or belongs to another GPU or context";
            core.here(error.with_detail(detail))
        }
        code => core.error(operation, code),
    }
}

fn stream_handle(stream: StreamId) -> StreamHandle {
    StreamHandle(std::ptr::with_exposed_provenance_mut(stream.0 as usize))
}

impl StreamKernel for CudaStreamKernel {
    unsafe fn launch(
        &self,
        stream: StreamId,
        items: u64,
        views: &[StreamView<'_>],
        params: &[u64],
    ) -> Result<()> {
        const OPERATION: &str = "launch";
        let ranges = views.iter().map(|view| view.starts.len());
        if !ranges.eq(self.ranges.iter().copied()) || params.len() != self.params {
            let error = Error::new(ErrorKind::InvalidArgument, OPERATION);
            let detail = "the views or parameters are not the ones that the kernel was loaded for";
            return Err(self.core.here(error.with_detail(detail)));
        }
        if items == 0 {
            return Ok(());
        }
        let mut words = [0; WORDS];
        words[LeadingParameters::Items as usize] = items;
        let of_views = views.iter().flat_map(|view| std::iter::once(&view.count).chain(view.starts));
        let given = words[LeadingParameters::COUNT..].iter_mut().zip(of_views.chain(params));
        given.for_each(|(word, value)| *word = *value);
        let (core, blocks) = (&self.core, items.div_ceil(self.threads.into()));
        let _current = core.enter(OPERATION)?;
        // SAFETY: the words are the parameters that the kernel declares, at most `WORDS` as `load` has
        // checked. The caller guarantees the stream, the memory, and that the kernel stays inside of it.
        unsafe {
            let (function, arguments) = (self.built.function, &mut [argument(&words[0])]);
            launch_on(&core.context, stream_handle(stream), function, blocks, (self.threads, 0), arguments)
        }
        .map_err(|code| refusal(core, OPERATION, code))
    }
}

/// Calls the function in the box, in a thread of the driver.
///
/// # Safety
/// `data` is the address of such a box, which no other code uses.
unsafe extern "C" fn call(data: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let function = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic must not unwind into the driver. The panic's message is printed nevertheless.
    drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(*function)));
}

impl StreamLauncher for CudaDevice {
    fn load(&self, kernel: &VerifiedKernel, layouts: &[StreamLayout]) -> Result<Box<dyn StreamKernel>> {
        const OPERATION: &str = "load";
        let (core, body) = (&self.core, kernel.body());
        let refuse = |kind, detail: &str| Err(core.here(Error::new(kind, OPERATION).with_detail(detail)));
        if layouts.len() != body.views.len() {
            return refuse(ErrorKind::InvalidArgument, "there is not one layout for each view of the kernel");
        }
        if kernel.needs().private_heap || body.table_bytes() > 0 {
            return refuse(ErrorKind::Unsupported, "kernels on streams have no private heap and no tables");
        }
        let view = |layout: &StreamLayout| ViewLayout {
            stride: layout.stride,
            align: layout.align.min(16),
            page_len: if layout.ranges == 1 { 1 } else { layout.page_len },
            bases: layout.ranges,
            is_inside: true,
            ahead: 0,
        };
        let key = KernelKey::plain(kernel.clone(), layouts.iter().map(view).collect());
        key.check(OPERATION).map_err(|error| core.here(error))?;
        let ranges: Vec<usize> = layouts.iter().map(|layout| layout.ranges).collect();
        let params = body.params.len();
        if LeadingParameters::COUNT + ranges.iter().map(|ranges| 1 + ranges).sum::<usize>() + params > WORDS {
            return refuse(ErrorKind::Unsupported, "the kernel has too many views, ranges or parameters");
        }
        let threads = key.threads();
        let _current = core.enter(OPERATION)?;
        let built =
            core.kernels.launches.get(&core.context, key).map_err(|code| core.error(OPERATION, code))?;
        match built.filter(|built| built.blocks.is_none()) {
            Some(built) => {
                Ok(Box::new(CudaStreamKernel { core: Arc::clone(core), built, threads, ranges, params }))
            }
            None => refuse(
                ErrorKind::Unsupported,
                "work-items of the kernel can fail, because it has bounds checks",
            ),
        }
    }

    fn kernel_address(&self, host: HostSpan<'_>, bytes: u64) -> Result<u64> {
        const OPERATION: &str = "kernel_address";
        let names = self.core.memory.lookup();
        names.check_host(OPERATION, host, bytes).map_err(|error| self.core.here(error))?;
        names.host_address(host).mapped.ok_or_else(|| {
            let error = Error::new(ErrorKind::Unsupported, OPERATION);
            self.core.here(error.with_detail("kernels can access only page-locked memory"))
        })
    }

    unsafe fn call_host(&self, stream: StreamId, function: Box<dyn FnOnce() + Send>) -> Result<()> {
        const OPERATION: &str = "call_host";
        let _current = self.core.enter(OPERATION)?;
        let (table, mut is_capturing) = (&self.core.context.driver.table, 0);
        // SAFETY: the caller guarantees the stream; the call writes one number.
        check(unsafe { (table.stream_is_capturing)(stream_handle(stream), &raw mut is_capturing) })
            .map_err(|code| refusal(&self.core, OPERATION, code))?;
        if is_capturing != 0 {
            let error = Error::new(ErrorKind::Unsupported, OPERATION);
            let detail = "a graph would call the host function again, and it can be called only once";
            return Err(self.core.here(error.with_detail(detail)));
        }
        let data = Box::into_raw(Box::new(function)).cast::<c_void>();
        // SAFETY: the caller guarantees the stream. The driver passes the box to one call of the function.
        let enqueued = check(unsafe { (table.launch_host_func)(stream_handle(stream), call, data) });
        enqueued.map_err(|code| {
            // SAFETY: the driver has refused the call, so the box is unused.
            drop(unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) });
            refusal(&self.core, OPERATION, code)
        })
    }
}
