//! Launches of the program's kernels on an OpenCL device: translation, cache, and kernel arguments.

#[forbid(unsafe_code)]
pub(crate) mod cache;
#[forbid(unsafe_code)]
pub(super) mod codegen;
mod foreign;
#[forbid(unsafe_code)]
mod places;

use std::sync::Arc;

use backend_api::kernel::{KernelFacts, Needs, Report};
use backend_api::{DeviceKind, Error, ErrorKind, Launch, Result};

use self::cache::BuiltKernel;
use self::codegen::{LaunchKey, ViewShape};
pub(crate) use self::places::ViewPlaces;
use crate::core::OpenClCore;
use crate::discovery::WideAtomics;
use crate::driver::objects::DriverArgument;
use crate::host_memory::HostPiece;
use crate::kernel_clock::KernelClock;
use crate::memory::OwnMemory;
use crate::queue::{OpenClSubmission, QueueScratch};

const OPERATION: &str = "launch";
/// Kernel features that the device supports. Only 64-bit atomics differ between devices.
fn can(core: &OpenClCore) -> Needs {
    Needs {
        atomics_of_64_bits: core.traits.wide_atomics != WideAtomics::None,
        forward_progress: core.info.forward_progress,
        ..Needs::ALL
    }
}

/// Maximum number of OpenCL buffers among the arguments of a kernel.
const PIECES_MAX: usize = 16;
/// Maximum bytes of private heaps of all running items; one group runs at a time if it needs more. The same
/// limit applies to the saved values of work-items that run whole groups.
const PRIVATE_HEAPS_BYTES: u64 = 256 << 20;
/// Maximum number of kernels in one OpenCL program: compilers are slow to start, and slow with long texts.
const KERNELS_IN_A_PROGRAM: usize = 16;

/// Returns true if the launch has a time limit and the device's kernels can read a clock. One work-item then
/// runs an item or a whole group.
fn has_time_limit(core: &OpenClCore, launch: &Launch<'_>) -> bool {
    launch.time_limit.is_some() && core.has_clock() && launch.kernel.body().has_loops()
}

/// Returns the cache key of the kernel for a launch.
///
/// # Errors
/// `Unsupported` for launches that this backend cannot run.
fn shape_of(core: &OpenClCore, launch: &Launch<'_>, views: &[ViewPlaces]) -> Result<LaunchKey> {
    launch.kernel.needs().check(OPERATION, can(core)).map_err(|error| error.on(&core.info))?;
    let body = launch.kernel.body();
    let at_most = |what: &str, wanted: u64, most: u64| {
        if wanted <= most {
            return Ok(());
        }
        let detail = format!("the launch needs {wanted} {what}, but the device supports {most}");
        Err(Error::new(ErrorKind::Unsupported, OPERATION).with_detail(detail).on(&core.info))
    };
    // On processors, one OpenCL work-item runs a whole group of the kernel. The reason is a bug in PoCL (at
    // least 3.1): if branches in loops with barriers differ, PoCL treats variables as uniform in a
    // work-group.
    let is_split = body.group_len.is_some() && core.info.kind == DeviceKind::Cpu;
    if !is_split {
        at_most("items of a group", body.group_len.unwrap_or(1).into(), core.traits.max_group as u64)?;
    }
    let pieces: usize = views.iter().flat_map(|view| &view.bases).map(|(_, _, pieces, _)| pieces).sum();
    if pieces > PIECES_MAX {
        let detail =
            format!("the views span {pieces} OpenCL buffers, but at most {PIECES_MAX} are supported");
        return Err(Error::new(ErrorKind::Unsupported, OPERATION).with_detail(detail).on(&core.info));
    }
    let view = |(view, placed): (&backend_api::LaunchView<'_>, &ViewPlaces)| {
        let starts = view.bases().iter().fold(view.stride() | 8, |all, base| all | base.offset());
        ViewShape {
            stride: view.stride(),
            align: 1 << starts.trailing_zeros(),
            page_len: view.page_len(),
            bases: placed.bases.iter().map(|(buffer, _, pieces, _)| (*pieces, buffer.shift)).collect(),
        }
    };
    let needs_index = LaunchKey::needs_index(body);
    let of_index = |number: u64| if needs_index { number } else { 1 };
    let shape = LaunchKey {
        kernel: launch.kernel.clone(),
        views: launch.views.iter().zip(views).map(view).collect(),
        page_len: of_index(launch.geometry.page_len),
        channels: of_index(launch.geometry.channels),
        has_budget: launch.budget.is_some(),
        has_time_limit: has_time_limit(core, launch),
        has_wide_atomics: core.traits.wide_atomics == WideAtomics::All,
        is_split,
    };
    at_most("bytes of group memory", shape.local_bytes(), core.traits.local_bytes)?;
    Ok(shape)
}

impl OpenClCore {
    /// Builds the kernels of checked launches that are not cached, several in one program.
    pub(crate) fn prepare_kernels(&self, launches: &[(&Launch<'_>, Vec<ViewPlaces>)]) -> Result<()> {
        let mut missing: Vec<LaunchKey> = Vec::new();
        for (launch, views) in launches {
            if let Some(code) = foreign::code_of(self, launch, views) {
                if code.submission().is_none() {
                    foreign::built(self, code)?;
                }
                continue;
            }
            let shape = shape_of(self, launch, views)?;
            if self.launches.built.find(&shape).is_none() && !missing.contains(&shape) {
                missing.push(shape);
            }
        }
        missing.chunks(KERNELS_IN_A_PROGRAM).try_for_each(|shapes| self.build(shapes).map(drop))
    }

    /// Returns the kernel of a key, and builds it if it is not in the cache.
    fn kernel(&self, shape: LaunchKey) -> Result<Arc<BuiltKernel>> {
        match self.launches.built.find(&shape) {
            Some(found) => Ok(found),
            None => self.build(&[shape]),
        }
    }

    /// Builds kernels in one program; returns the last kernel.
    fn build(&self, shapes: &[LaunchKey]) -> Result<Arc<BuiltKernel>> {
        let name = |number: usize| format!("launch_{number}");
        let mut text = String::new();
        if shapes.iter().any(|shape| shape.kernel.needs().atomics_of_64_bits) {
            text.push_str("#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n");
            if shapes.iter().any(|shape| shape.has_wide_atomics) {
                text.push_str("#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable\n");
            }
        }
        let mut kept = Vec::new();
        for (number, shape) in shapes.iter().enumerate() {
            let (kernel, kept_bytes) = shape.text(&name(number));
            text.push_str(&kernel);
            kept.push(kept_bytes);
        }
        // Build without a lock, so other threads can use other programs meanwhile.
        let program = self.kernels.build_kernels(self.target(), &text).map_err(|error| {
            let needs_doubles = shapes.iter().any(|shape| shape.kernel.needs().f64);
            if needs_doubles && !self.kernels.has_doubles(self.target()) {
                return Error::new(ErrorKind::Unsupported, OPERATION)
                    .with_detail("the device does not support f64")
                    .on(&self.info);
            }
            error.on(&self.info)
        })?;
        let program = Arc::new(program);
        let add = |(number, shape): (usize, &LaunchKey)| {
            let kept_bytes = kept[number];
            let built = BuiltKernel { program: Arc::clone(&program), name: name(number), kept_bytes };
            // Drop an evicted program at once: drivers keep programs alive while commands use them.
            self.launches.built.add(shape.clone(), built).0
        };
        let last = shapes.iter().enumerate().map(add).last();
        last.ok_or_else(|| {
            Error::new(ErrorKind::KernelFailed, OPERATION)
                .with_detail("the list of kernels to prepare is empty")
        })
    }

    /// Returns the driver's properties of a kernel, such as its private memory.
    pub(crate) fn kernel_facts(&self, launch: &Launch<'_>, views: &[ViewPlaces]) -> Result<KernelFacts> {
        self.kernel(shape_of(self, launch, views)?)?;
        let mut facts = KernelFacts::default();
        let own = launch.kernel.body().group_len;
        facts.group_len = own.or_else(|| u32::try_from(self.kernels.group).ok());
        Ok(facts)
    }
}

/// Submits a checked launch.
pub(crate) fn launch(
    submission: &mut OpenClSubmission<'_>,
    launch: &Launch<'_>,
    views: &[ViewPlaces],
    (host, at): (&HostPiece, u64),
) -> Result<()> {
    let core = submission.core;
    if let Some(code) = foreign::code_of(core, launch, views) {
        return foreign::launch(submission, launch, code, views, (host, at));
    }
    let shape = shape_of(core, launch, views)?;
    let is_split = shape.is_split;
    let built = core.kernel(shape)?;
    let report = submission.scratch(QueueScratch::Answer, Report::BYTES)?;
    submission.upload(vec![0; Report::BYTES as usize], &report)?;
    if launch.items > 0 {
        let tables = upload_tables(submission, launch.table)?;
        let mut arguments = view_arguments(launch, views);
        arguments.extend(launch.params.iter().map(|bits| DriverArgument::U64(*bits)));
        arguments.extend(tables.as_ref().map(|tables| DriverArgument::Buffer(tables)));
        let group = launch.kernel.body().group_len.map_or(core.kernels.group, |len| len as usize);
        let groups = core.kernels.groups_up_to(launch.items.div_ceil(group as u64));
        let private_heap = match launch.kernel.needs().private_heap {
            false => None,
            true => {
                let slab = launch.private_heap_bytes.max(8);
                let most = (groups * group) as u64;
                let slabs = (PRIVATE_HEAPS_BYTES / slab).clamp(group as u64, most.max(group as u64));
                Some((submission.scratch(QueueScratch::PrivateHeaps, slabs.saturating_mul(slab))?, slabs))
            }
        };
        if let Some((memory, slabs)) = &private_heap {
            let bytes = DriverArgument::U64(launch.private_heap_bytes);
            arguments.extend([DriverArgument::Buffer(memory), DriverArgument::U64(*slabs), bytes]);
        }
        let kept = match is_split {
            false => None,
            true => {
                let slabs = private_heap.as_ref().map_or(u64::MAX, |(_, slabs)| slabs / group as u64);
                let width =
                    (PRIVATE_HEAPS_BYTES / built.kept_bytes.max(1)).min(slabs).clamp(1, groups as u64);
                Some((submission.scratch(QueueScratch::Kept, width * built.kept_bytes)?, width))
            }
        };
        if let Some((memory, width)) = &kept {
            arguments.extend([DriverArgument::Buffer(memory), DriverArgument::U64(*width)]);
        }
        let group = if is_split { 1 } else { group };
        arguments.extend([
            DriverArgument::U64(launch.items),
            DriverArgument::U64(launch.geometry.first),
            DriverArgument::U64(launch.geometry.channel),
            DriverArgument::U64(launch.budget.unwrap_or(0)),
            DriverArgument::Buffer(&report),
        ]);
        if let Some(limit) = launch.time_limit.filter(|_| has_time_limit(core, launch)) {
            // Without a clock, pass a placeholder, and a limit that is never exceeded.
            let clock = submission.start_clock().map(|clock| DriverArgument::Shared(clock.cast()));
            let ticks = if clock.is_some() { KernelClock::ticks(limit) } else { u32::MAX };
            arguments.extend([clock.unwrap_or(DriverArgument::Buffer(&report)), DriverArgument::U32(ticks)]);
        }
        // SAFETY: views were checked to be inside their memory, fields inside their elements, and tables to
        // have the declared length; the kernel compares every index with these lengths.
        unsafe { submission.launch_of(&built.program, &built.name, (groups, group), &arguments)? };
    }
    // SAFETY: the report was checked to have room.
    unsafe { submission.read(&report, 0, host.at(at), Report::BYTES, true) }
}

/// Returns the kernel arguments of views: for each memory range its buffers and the offset, then the number
/// of elements.
fn view_arguments<'a>(launch: &Launch<'_>, views: &'a [ViewPlaces]) -> Vec<DriverArgument<'a>> {
    let mut arguments = Vec::new();
    for (view, placed) in launch.views.iter().zip(views) {
        for (buffer, first, pieces, before) in &placed.bases {
            let touched = &buffer.pieces[*first..(first + pieces).min(buffer.pieces.len())];
            arguments.extend(touched.iter().map(|piece| DriverArgument::Buffer(piece)));
            arguments.push(DriverArgument::U64(*before));
        }
        arguments.push(DriverArgument::U64(view.count()));
    }
    arguments
}

/// Uploads the tables of a launch to scratch memory, if it has any.
fn upload_tables(submission: &mut OpenClSubmission<'_>, table: &[u8]) -> Result<Option<Arc<OwnMemory>>> {
    if table.is_empty() {
        return Ok(None);
    }
    let tables = submission.scratch(QueueScratch::Parameters, table.len() as u64)?;
    submission.upload(table.to_vec(), &tables)?;
    Ok(Some(tables))
}
