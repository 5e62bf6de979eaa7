//! Kernels that the program provides itself: OpenCL C text, or functions that submit work to an OpenCL queue.

use std::sync::Arc;

use backend_api::kernel::{Code, NativeLaunch, NativeQueue, NativeView, Report};
use backend_api::{Launch, LaunchView, Result};

use super::places::ViewPlaces;
use crate::core::OpenClCore;
use crate::driver::objects::{DriverArgument, Program};
use crate::host_memory::HostPiece;
use crate::memory::OwnMemory;
use crate::queue::{OpenClSubmission, QueueScratch};

/// Number of work-items of a group if the kernel does not specify it and the device supports this number.
const GROUP_LEN: usize = 256;

/// Returns the program's own code of a kernel for this device, if there is some, the device supports its
/// group, and each view is contiguous in one buffer.
pub(super) fn code_of<'a>(core: &OpenClCore, launch: &Launch<'a>, views: &[ViewPlaces]) -> Option<&'a Code> {
    let is_run = |view: &ViewPlaces| matches!(view.bases[..], [(_, _, 1, _)]);
    let group = launch.kernel.body().group_len.unwrap_or(1) as usize;
    let is_taken = group <= core.traits.max_group && views.iter().all(is_run);
    let code = launch.kernel.code().filter(|_| is_taken)?;
    (code.submission().is_some() || code.texts()[1].is_some()).then_some(code)
}

/// Returns the OpenCL program of a text, and builds it if it is not in the cache.
pub(super) fn built(core: &OpenClCore, code: &Code) -> Result<Arc<Program>> {
    let texts = &core.launches.texts;
    let text = code.texts()[1].map_or_else(|| "".into(), Arc::clone);
    if let Some(known) = texts.find(&text) {
        return Ok(known);
    }
    let program = core.kernels.build_foreign(core.target(), &text).map_err(|error| error.on(&core.info))?;
    // Drop an evicted program at once: drivers keep programs alive while pending commands use them.
    Ok(texts.add(text, program).0)
}

/// Submits a checked launch.
pub(super) fn launch(
    submission: &mut OpenClSubmission<'_>,
    launch: &Launch<'_>,
    code: &Code,
    views: &[ViewPlaces],
    (host, at): (&HostPiece, u64),
) -> Result<()> {
    let report = submission.scratch(QueueScratch::Answer, Report::BYTES)?;
    submission.upload(vec![0; Report::BYTES as usize], &report)?;
    let pieces = views.iter().flat_map(|view| &view.bases);
    let places = pieces.map(|(buffer, first, _, before)| (&*buffer.pieces[*first], *before));
    if code.submission().is_some() {
        let view = |(view, (piece, before)): (&LaunchView<'_>, (&OwnMemory, u64))| {
            NativeView::new(piece.handle().addr() as u64, before, view.count(), view.stride())
        };
        let native: Vec<NativeView> = launch.views.iter().zip(places).map(view).collect();
        submission.foreign(|context, queue| {
            let queue = NativeQueue::OpenCl { context, queue };
            let native = NativeLaunch::new(queue, &native, launch.items, launch.geometry, launch.params);
            code.submission().map_or(Ok(()), |submit| submit(&native))
        })?;
    } else if launch.items > 0 {
        let program = built(submission.core, code)?;
        let mut arguments = Vec::new();
        places.for_each(|(piece, before)| {
            arguments.extend([DriverArgument::Buffer(piece), DriverArgument::U64(before)])
        });
        arguments.push(DriverArgument::U64(launch.items));
        let body = launch.kernel.body();
        for (bits, of) in launch.params.iter().zip(&body.params) {
            let is_long = of.bytes() == 8;
            arguments.push(if is_long {
                DriverArgument::U64(*bits)
            } else {
                DriverArgument::U32(*bits as u32)
            });
        }
        let own = submission.core.traits.max_group.min(GROUP_LEN);
        let group = body.group_len.map_or(own, |len| len as usize);
        let groups = launch.items.div_ceil(group as u64) as usize;
        // SAFETY: the author of the code guarantees its arguments and accesses; views were checked to be
        // inside their memory.
        unsafe { submission.launch_of(&program, code.entry(), (groups, group), &arguments)? };
    }
    // SAFETY: the report was checked to have room.
    unsafe { submission.read(&report, 0, host.at(at), Report::BYTES, true) }
}
