//! Kernels that the program provides itself: PTX text, or functions that submit work to a CUDA stream. Matrix
//! products by cuBLAS.

use std::sync::Arc;

use backend_api::kernel::{self, NativeLaunch, NativeQueue, NativeView, Report};
use backend_api::{Error, Launch, LaunchView};

use super::super::argument;
use super::super::search::AnswerPlace;
use crate::cublas::BlasProduct;
use crate::driver::objects::LoadedKernel;
use crate::driver::{DriverResult, StatusCode};
use crate::host_memory::HostAddress;
use crate::submission::CudaSubmission;

/// Number of work-items of a group if the kernel does not specify it.
const GROUP_LEN: u32 = 256;

/// Returns the program's own code of a kernel for this device, if it has some and each view is contiguous.
pub(super) fn code_of<'a>(launch: &Launch<'a>) -> Option<&'a kernel::Code> {
    let is_run = |view: &LaunchView<'_>| view.bases().len() == 1;
    let code = launch.kernel.code().filter(|_| launch.views.iter().all(is_run))?;
    (code.submission().is_some() || code.texts()[0].is_some()).then_some(code)
}

/// Submits a launch, with these start addresses of views, to the program's own code or to cuBLAS. Returns
/// false if the kernel must run instead. Stores an error of the program or of cuBLAS in `foreign_error`.
pub(super) fn run(
    work: &mut CudaSubmission<'_>,
    launch: &Launch<'_>,
    bases: &[u64],
    report: HostAddress,
    foreign_error: &mut Option<Error>,
) -> DriverResult<bool> {
    let is_done = match code_of(launch) {
        Some(code) => run_code(work, launch, code, bases, foreign_error).map(|()| true)?,
        None => multiply(work, launch, bases, foreign_error)?,
    };
    if is_done {
        // No work-item can fail, so the report is zero.
        let report = AnswerPlace::new(work, report, Report::BYTES)?;
        // SAFETY: the report has this length.
        unsafe {
            work.stream().clear(report.address, Report::BYTES)?;
            report.fetch(work, Report::BYTES)?;
        }
    }
    Ok(is_done)
}

fn run_code(
    work: &mut CudaSubmission<'_>,
    launch: &Launch<'_>,
    code: &kernel::Code,
    bases: &[u64],
    foreign_error: &mut Option<Error>,
) -> DriverResult {
    if let Some(submit) = code.submission() {
        let view =
            |(view, base): (&LaunchView<'_>, &u64)| NativeView::new(*base, 0, view.count(), view.stride());
        let views: Vec<NativeView> = launch.views.iter().zip(bases).map(view).collect();
        let (context, stream) = (work.context().handle().0, work.stream().raw().0);
        let queue = NativeQueue::Cuda { context, stream };
        let native = NativeLaunch::new(queue, &views, launch.items, launch.geometry, launch.params);
        let submitted = submit(&native);
        work.context().enter_again()?;
        if let Err(error) = submitted {
            *foreign_error = Some(error);
            // Return any error code: the caller then waits for all submitted work.
            return Err(StatusCode::INVALID_VALUE);
        }
    } else {
        let loaded = loaded(work, code)?;
        let mut words: Vec<u64> = bases.iter().copied().chain([launch.items]).collect();
        words.extend(launch.params);
        let threads = launch.kernel.body().group_len.unwrap_or(GROUP_LEN);
        let mut arguments: Vec<_> = words.iter().map(argument).collect();
        // SAFETY: the author of the code guarantees its arguments and accesses; views were checked to be
        // inside their memory.
        unsafe {
            let blocks = launch.items.div_ceil(threads.into());
            let group = (threads, code.shared_bytes());
            work.stream().launch_of(loaded.function, blocks, group, &mut arguments)?;
        }
    }
    Ok(())
}

/// Submits a launch to cuBLAS, if it multiplies matrices and the library can compute it.
fn multiply(
    work: &mut CudaSubmission<'_>,
    launch: &Launch<'_>,
    bases: &[u64],
    foreign_error: &mut Option<Error>,
) -> DriverResult<bool> {
    let core = work.core;
    let Some(product) = BlasProduct::of_launch(launch) else { return Ok(false) };
    let Some(addresses) = product.addresses(bases).filter(|_| core.cublas.is_ready(&core.context)) else {
        return Ok(false);
    };
    let workspace = match work.workspace() {
        Err(StatusCode::OUT_OF_MEMORY) => return Ok(false),
        workspace => workspace?,
    };
    // SAFETY: the elements of the product are inside their views, which were checked to be inside their
    // memory. That memory lives until the ticket is done, and so does the workspace, which only this queue
    // uses. The context is current during a submission.
    let done =
        unsafe { core.cublas.multiply((&core.context, work.stream()), workspace, &product, addresses) };
    match done {
        Ok(()) => Ok(true),
        // The kernel overwrites all elements, so it can follow a product that was begun.
        Err(status) if status.is_refusal() => Ok(false),
        Err(status) => {
            *foreign_error = Some(core.here(status.error("launch")));
            // Return any error code: the caller then waits for all submitted work.
            Err(StatusCode::INVALID_VALUE)
        }
    }
}

/// Returns the kernel of a PTX text, and loads it if it is not in the cache.
fn loaded(work: &CudaSubmission<'_>, code: &kernel::Code) -> DriverResult<Arc<LoadedKernel>> {
    let texts = &work.core.kernels.launches.texts;
    if let Some(known) = texts.find(code) {
        return Ok(known);
    }
    let text = code.texts()[0].map_or("", |text| text);
    // These codes mean that the PTX text requires a newer GPU or driver.
    let loaded = LoadedKernel::load(work.context(), &format!("{text}\0"), code.entry());
    let loaded = loaded.map_err(|code| match code {
        StatusCode::NO_BINARY_FOR_GPU | StatusCode::INVALID_PTX | StatusCode::UNSUPPORTED_PTX_VERSION => {
            StatusCode::NOT_SUPPORTED
        }
        other => other,
    })?;
    if code.shared_bytes() > 0 {
        loaded.allow_shared(code.shared_bytes())?;
    }
    let (loaded, forgotten) = texts.add(code.clone(), loaded);
    // Work in flight may use the evicted text's kernels. If the wait for that work fails, leak the module.
    if let Some(forgotten) = forgotten
        && let Err(code) = work.context().synchronize()
    {
        std::mem::forget(forgotten);
        return Err(code);
    }
    Ok(loaded)
}
