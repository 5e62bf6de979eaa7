//! Computations on array elements on an OpenCL device: generates kernels from expression programs, and
//! divides the elements into launches.

#[forbid(unsafe_code)]
pub(crate) mod cache;
#[forbid(unsafe_code)]
pub(super) mod codegen;

use std::sync::Arc;

use backend_api::expr::{Action, Geometry, Partial};
use backend_api::kernel::{Report, ScalarFunction};
use backend_api::{Compute, Error, ErrorKind, Result};

use self::codegen::{Comparison, SpecializedProgram};
use super::listing::{Limit, Listing};
use crate::core::OpenClCore;
use crate::driver::objects::{DriverArgument, Memory, Program};
use crate::host_memory::HostPiece;
use crate::kernel_clock::KernelClock;
use crate::memory::{Buffer, OwnMemory};
use crate::queue::{OpenClSubmission, QueueScratch};

const OPERATION: &str = "compute";
/// Length in bytes of a chunk of a search that may stop early: short, because all chunks in progress finish.
const CHUNK_BYTES_EARLY: u64 = 64 << 10;
/// Bounds for the length in bytes of a chunk of a full search.
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = (32 << 10)..=(512 << 10);
/// Number of work-groups that count for a histogram; each has its own copy of all bins.
const HISTOGRAM_GROUPS: usize = 256;
/// Log2 of the maximum number of elements that a work-group processes in one launch. Its counts of bins have
/// 32 bits, and sums of that many 32-bit halves do not overflow a signed number of 64 bits.
const GROUP_ELEMENTS_LOG2: u32 = 31;
/// Alignment in bytes of assembled copies of elements that span two pieces.
const ALIGNMENT: u64 = 64;
/// Bytes of the report about a function call over its time limit.
const LATE_BYTES: u64 = 16;

impl OpenClCore {
    /// Builds the kernels for a request, if they are not cached.
    pub(crate) fn prepare_program(&self, request: &Compute<'_>) -> Result<()> {
        self.program(SpecializedProgram::new(request, self.has_clock()).0).map(drop)
    }

    /// Returns the kernels for a specialised program, and builds them if they are not cached.
    fn program(&self, shape: SpecializedProgram) -> Result<Arc<Program>> {
        if let Some(found) = self.programs.0.find(&shape) {
            return Ok(found);
        }
        // Build without a lock, so other threads can use other programs meanwhile.
        let built = self.kernels.build_more(self.target(), &shape.text()).map_err(|error| {
            if shape.needs_doubles() && !self.kernels.has_doubles(self.target()) {
                return Error::new(ErrorKind::Unsupported, OPERATION)
                    .with_detail("the device does not support f64")
                    .on(&self.info);
            }
            error.on(&self.info)
        })?;
        // Drop an evicted program at once: drivers keep programs alive while pending commands use them.
        Ok(self.programs.0.add(shape, built).0)
    }
}

/// Consecutive elements that are in one piece (OpenCL buffer) of each source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// The index of the first element. `count` is the number of elements.
    before: u64,
    count: u64,
    /// For each source: the piece, or `None` for an assembled element, and the byte offset of the first
    /// element in it.
    places: Vec<(Option<usize>, u64)>,
}

/// Divides elements into segments of at most `most` elements. `sources` has for each source the offset of
/// element 0, its stride, and log2 of its pieces' length.
fn segments(sources: &[(u64, u64, u32)], count: u64, most: u64) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut before = 0;
    while before < count {
        let whole = sources.iter().map(|&(start, stride, shift)| {
            let at = start + before * stride;
            let end = ((at >> shift) + 1) << shift;
            (end - at) / stride
        });
        let here = whole.min().unwrap_or(0).min(count - before).min(most);
        let mut room = 0;
        let places = sources.iter().map(|&(start, stride, shift)| {
            let at = start + before * stride;
            if here > 0 || (at >> shift) == ((at + stride - 1) >> shift) {
                return (Some((at >> shift) as usize), at & ((1 << shift) - 1));
            }
            let place = room;
            room += stride.next_multiple_of(ALIGNMENT);
            (None, place)
        });
        segments.push(Segment { before, count: here.max(1), places: places.collect() });
        before += here.max(1);
    }
    segments
}

/// The data that all launches of one computation share.
struct Work<'a> {
    compute: &'a Compute<'a>,
    buffers: &'a [Arc<Buffer>],
    segments: Vec<Segment>,
    program: Arc<Program>,
    literals: Vec<u64>,
    comparison: Option<Comparison>,
    /// The value for comparisons with a field, if the kernels read it from memory.
    value: Option<&'a Memory>,
    straddlers: Option<&'a Memory>,
    limits: Option<&'a Limits>,
}

impl Work<'_> {
    fn arguments(&self, segment: &Segment) -> Vec<DriverArgument<'_>> {
        let mut arguments = Vec::new();
        for (buffer, (piece, offset)) in self.buffers.iter().zip(&segment.places) {
            let memory = match (piece, self.straddlers) {
                (None, Some(straddlers)) => straddlers,
                (piece, _) => &buffer.pieces[piece.unwrap_or(0)],
            };
            arguments.extend([DriverArgument::Buffer(memory), DriverArgument::U64(*offset)]);
        }
        arguments.extend(self.literals.iter().map(|literal| DriverArgument::U64(*literal)));
        if let (Some(_), Some((_, source, offset, bytes))) =
            (self.comparison, self.compute.program.field_equals())
        {
            let stride = self.compute.sources[source].stride;
            let field = [
                DriverArgument::U64(offset.into()),
                DriverArgument::U64(stride),
                DriverArgument::U32(bytes.len() as u32),
            ];
            arguments.extend(field);
        }
        arguments.extend(self.value.map(DriverArgument::Buffer));
        arguments.extend(self.limits.into_iter().flat_map(Limits::arguments));
        let geometry = self.compute.geometry;
        arguments.extend([
            DriverArgument::U64(geometry.first.wrapping_add(segment.before)),
            DriverArgument::U64(geometry.channel),
            DriverArgument::U64(segment.count),
        ]);
        arguments
    }

    /// Assembles an element that spans two pieces in scratch memory or, if `back`, copies it back.
    fn straddle(&self, submission: &mut OpenClSubmission<'_>, segment: &Segment, back: bool) -> Result<()> {
        let Some(straddlers) = self.straddlers else { return Ok(()) };
        for (source, (buffer, (piece, offset))) in self.buffers.iter().zip(&segment.places).enumerate() {
            if piece.is_some() || (back && !self.compute.writes(source)) {
                continue;
            }
            let elements = self.compute.sources[source];
            let start = elements.start.offset() + segment.before * elements.stride;
            for part in buffer.parts(start, elements.stride) {
                let (there, here) =
                    ((&**buffer.pieces[part.piece], part.offset), (straddlers, offset + part.before));
                let (from, to) = if back { (here, there) } else { (there, here) };
                submission.copy(from, to, part.bytes, false)?;
            }
        }
        Ok(())
    }

    /// Launches a kernel for one segment.
    ///
    /// # Safety
    /// With the further arguments, the kernel only accesses its buffers.
    unsafe fn launch(
        &self,
        submission: &mut OpenClSubmission<'_>,
        name: &str,
        groups: usize,
        segment: &Segment,
        more: &[DriverArgument<'_>],
    ) -> Result<()> {
        let mut arguments = self.arguments(segment);
        arguments.extend_from_slice(more);
        self.straddle(submission, segment, false)?;
        let shape = (groups, submission.core.kernels.group);
        // SAFETY: the segment was checked to be inside its buffers, and fields inside their elements; the
        // caller guarantees the rest.
        unsafe { submission.launch_of(&self.program, name, shape, &arguments)? };
        if matches!(self.compute.action, Action::Store { .. }) {
            self.straddle(submission, segment, true)?;
        }
        Ok(())
    }
}

/// The time limits of a computation's functions, and the report about the first call that exceeds its limit.
struct Limits {
    /// Device memory for the report, which the first call over its limit writes.
    late: Arc<OwnMemory>,
    /// Host memory for the same report.
    verdict: *mut u8,
    clock: Option<*mut u8>,
    ticks: Vec<u32>,
}

impl Limits {
    /// Starts the queue's clock if a function has a time limit.
    fn new(
        submission: &mut OpenClSubmission<'_>,
        shape: &SpecializedProgram,
        geometry: Geometry,
    ) -> Result<Option<Self>> {
        let functions: Vec<(usize, ScalarFunction)> =
            shape.limited().into_iter().map(|(number, function)| (number, function.clone())).collect();
        if functions.is_empty() {
            return Ok(None);
        }
        let limit = |(_, function): &(usize, ScalarFunction)| {
            function.time_limit().map_or(u32::MAX, KernelClock::ticks)
        };
        let ticks = functions.iter().map(limit).collect();
        let verdict = submission.verdict(move |[low, high, site, call]| {
            let (_, function) = functions.iter().find(|(number, _)| *number == call as usize)?;
            let site = Report { site, ..Report::default() }.loop_over_time()?;
            let number = (u64::from(low) | u64::from(high) << 32).wrapping_sub(geometry.first);
            Some(function.over_time(site, geometry.index(number)))
        })?;
        let late = submission.scratch(QueueScratch::Late, LATE_BYTES)?;
        submission.upload(vec![0; LATE_BYTES as usize], &late)?;
        Ok(Some(Self { late, verdict, clock: submission.start_clock(), ticks }))
    }

    /// Returns the additional kernel arguments for time limits.
    fn arguments(&self) -> Vec<DriverArgument<'_>> {
        let mut arguments = vec![DriverArgument::Buffer(&self.late)];
        match self.clock {
            Some(clock) => {
                arguments.push(DriverArgument::Shared(clock.cast()));
                arguments.extend(self.ticks.iter().map(|ticks| DriverArgument::U32(*ticks)));
            }
            // Without time limits, pass a placeholder for the clock, and limits that are never exceeded.
            None => {
                arguments.push(DriverArgument::Buffer(&self.late));
                arguments.extend(self.ticks.iter().map(|_| DriverArgument::U32(u32::MAX)));
            }
        }
        arguments
    }

    /// Enqueues the copy of the report to the host, after all kernels.
    fn finish(&self, submission: &mut OpenClSubmission<'_>) -> Result<()> {
        // SAFETY: both sides have this length.
        unsafe { submission.read(&self.late, 0, self.verdict, LATE_BYTES, true) }
    }
}

/// Submits a checked computation.
pub(crate) fn compute(
    submission: &mut OpenClSubmission<'_>,
    request: &Compute<'_>,
    buffers: &[Arc<Buffer>],
    answer: Option<(&HostPiece, u64)>,
) -> Result<()> {
    let core = submission.core;
    if request.count() == 0 {
        return answer.map_or(Ok(()), |answer| answer_zeroes(submission, request, answer));
    }
    let (shape, literals) = SpecializedProgram::new(request, core.has_clock());
    let limits = Limits::new(submission, &shape, request.geometry)?;
    let comparison = shape.comparison;
    let value = match request.program.field_equals() {
        Some((_, _, _, bytes)) if comparison.is_some_and(|comparison| comparison.is_long) => {
            let memory = submission.scratch(QueueScratch::Parameters, bytes.len() as u64)?;
            submission.upload(bytes.to_vec(), &memory)?;
            Some(memory)
        }
        _ => None,
    };
    let program = core.program(shape)?;
    let places: Vec<_> = request
        .sources
        .iter()
        .zip(buffers)
        .map(|(source, buffer)| (source.start.offset(), source.stride, buffer.shift))
        .collect();
    let most = (core.kernels.groups.min(HISTOGRAM_GROUPS) as u64) << GROUP_ELEMENTS_LOG2;
    let mut segments = segments(&places, request.count(), most);
    join_equal_sources(request, &mut segments);
    let straddling = segments.iter().any(|segment| segment.places.iter().any(|(piece, _)| piece.is_none()));
    let straddlers = if straddling {
        let bytes = request.sources.iter().map(|source| source.stride.next_multiple_of(ALIGNMENT)).sum();
        Some(submission.scratch(QueueScratch::Straddlers, bytes)?)
    } else {
        None
    };
    let work = Work {
        compute: request,
        buffers,
        segments,
        program,
        literals,
        comparison,
        value: value.as_ref().map(|scratch| &***scratch),
        straddlers: straddlers.as_ref().map(|scratch| &***scratch),
        limits: limits.as_ref(),
    };
    match (request.action, answer) {
        (Action::Store { .. }, _) => {
            for segment in &work.segments {
                let groups = core.kernels.groups_for(segment.count);
                // SAFETY: the kernel takes no further arguments.
                unsafe { work.launch(submission, "compute_store", groups, segment, &[])? };
            }
        }
        (Action::Find { .. }, Some(answer)) => find(submission, &work, answer)?,
        (Action::Sum { .. }, Some(answer)) => reduce(submission, &work, "compute_sum", answer)?,
        (Action::Extremes { .. }, Some(answer)) => reduce(submission, &work, "compute_extremes", answer)?,
        (Action::Histogram { .. }, Some(answer)) => histogram(submission, &work, answer)?,
        // Only a computation that stores has no result.
        (_, None) => {}
    }
    limits.map_or(Ok(()), |limits| limits.finish(submission))
}

/// Writes the result for zero elements, which consists of zeroes.
fn answer_zeroes(
    submission: &mut OpenClSubmission<'_>,
    request: &Compute<'_>,
    (host, at): (&HostPiece, u64),
) -> Result<()> {
    let bytes = match request.action {
        Action::Find { .. } => 16,
        Action::Sum { .. } | Action::Extremes { .. } => 8,
        _ => request.answer_bytes(),
    };
    let zeroes = submission.scratch(QueueScratch::Answer, bytes)?;
    submission.upload(vec![0; bytes as usize], &zeroes)?;
    // SAFETY: the answer was checked to have room.
    unsafe { submission.read(&zeroes, 0, host.at(at), bytes, true) }
}

/// Makes equal sources share assembled elements. Otherwise a write through one source would be undone by the
/// copy-back of the other source.
fn join_equal_sources(request: &Compute<'_>, segments: &mut [Segment]) {
    for later in 1..request.sources.len() {
        let same = |&first: &usize| request.sources[first] == request.sources[later];
        if let Some(first) = (0..later).find(same) {
            segments.iter_mut().for_each(|segment| segment.places[later] = segment.places[first]);
        }
    }
}

/// Computes one partial result for each work-group of every segment.
fn reduce(
    submission: &mut OpenClSubmission<'_>,
    work: &Work<'_>,
    kernel: &'static str,
    (host, at): (&HostPiece, u64),
) -> Result<()> {
    let core = submission.core;
    let most = Compute::PARTIALS_MAX as usize / work.segments.len();
    if most == 0 {
        return Err(Error::new(ErrorKind::Unsupported, OPERATION)
            .with_detail(format!(
                "the elements are in {} pieces, but at most {} are supported",
                work.segments.len(),
                Compute::PARTIALS_MAX
            ))
            .on(&core.info));
    }
    let groups = |segment: &Segment| core.kernels.groups_for(segment.count).min(most);
    let all: usize = work.segments.iter().map(groups).sum();
    let bytes = 8 + all as u64 * Partial::BYTES;
    let partials = submission.scratch(QueueScratch::Answer, bytes)?;
    let mut before = 0;
    for segment in &work.segments {
        let mut more = vec![
            DriverArgument::Buffer(&partials),
            DriverArgument::U32(before as u32),
            DriverArgument::U32(all as u32),
        ];
        if kernel == "compute_extremes" {
            more.push(DriverArgument::U64(segment.before));
        }
        // SAFETY: the buffer has room for the partial results of all groups.
        unsafe { work.launch(submission, kernel, groups(segment), segment, &more)? };
        before += groups(segment);
    }
    // SAFETY: the answer was checked to have room for the greatest number of partial results.
    unsafe { submission.read(&partials, 0, host.at(at), bytes, true)? };
    Ok(())
}

fn histogram(
    submission: &mut OpenClSubmission<'_>,
    work: &Work<'_>,
    (host, at): (&HostPiece, u64),
) -> Result<()> {
    let core = submission.core;
    let Action::Histogram { bins, .. } = work.compute.action else { return Ok(()) };
    let most = core.kernels.groups.min(HISTOGRAM_GROUPS);
    let counts = submission.scratch(QueueScratch::Counts, most as u64 * u64::from(bins) * 4)?;
    let totals = submission.scratch(QueueScratch::Answer, u64::from(bins) * 8)?;
    for (number, segment) in work.segments.iter().enumerate() {
        let groups = core.kernels.groups_for(segment.count).min(most);
        let more = [DriverArgument::U32(bins), DriverArgument::Buffer(&counts)];
        // SAFETY: the buffers have room for the bins of all groups, here and below, and for the totals.
        unsafe { work.launch(submission, "compute_histogram", groups, segment, &more)? };
        let arguments = [
            DriverArgument::U32(bins),
            DriverArgument::Buffer(&counts),
            DriverArgument::U32(groups as u32),
            DriverArgument::U32(u32::from(number == 0)),
            DriverArgument::Buffer(&totals),
        ];
        let shape = (core.kernels.groups_for(bins.into()), core.kernels.group);
        // SAFETY: see above.
        unsafe { submission.launch_of(&work.program, "compute_histogram_answer", shape, &arguments)? };
    }
    // SAFETY: the answer was checked to have room for all bins.
    unsafe { submission.read(&totals, 0, host.at(at), u64::from(bins) * 8, true)? };
    Ok(())
}

/// Submits a search: counts the matches, computes prefix sums, and lists the matches.
fn find(submission: &mut OpenClSubmission<'_>, work: &Work<'_>, answer: (&HostPiece, u64)) -> Result<()> {
    let core = submission.core;
    let Action::Find { limit, count_all, .. } = work.compute.action else { return Ok(()) };
    let limit = Limit::new(limit, work.compute.count(), count_all);
    let packed = work.comparison.and_then(|comparison| Some((comparison.source, comparison.packed?)));
    let chunk_bytes = if limit.early {
        CHUNK_BYTES_EARLY
    } else {
        let even = work.compute.bytes() / (core.kernels.groups as u64 * 8);
        even.clamp(*CHUNK_BYTES.start(), *CHUNK_BYTES.end())
    };
    let bytes_each = (work.compute.bytes() / work.compute.count()).max(1);
    // Make the chunk's number of elements a multiple of the work-group's length, in elements or vectors, so
    // all work-items of a group get equally many.
    let multiple = core.kernels.group as u64 * packed.map_or(1, |(_, bytes)| 16 / bytes);
    let per_chunk = (chunk_bytes / bytes_each).max(1).next_multiple_of(multiple);
    let mut chunks = 0_u32;
    // For each segment (elements in one OpenCL buffer): the number of elements before its first whole vector
    // (the head), the number of its chunks, and the number of chunks in earlier segments.
    let cut: Vec<(&Segment, u64, u32, u32)> = (work.segments.iter())
        .map(|segment| {
            let head = packed.map_or(0, |(source, bytes)| {
                let (_, at) = segment.places[source];
                (at.next_multiple_of(16) - at) / bytes
            });
            // Chunk 0 also contains the head (elements before the first whole vector), so chunk 0 exists even
            // if no elements follow.
            let body = segment.count.saturating_sub(head);
            let (here, before) = (body.div_ceil(per_chunk).max(1) as u32, chunks);
            chunks = chunks.saturating_add(here);
            (segment, head, here, before)
        })
        .collect();
    let listing = Listing::new(submission, limit, chunks, cut.len())?;
    let shape_of = |head: u64, here| {
        vec![
            DriverArgument::U32(head as u32),
            DriverArgument::U32(per_chunk as u32),
            DriverArgument::U32(here),
        ]
    };
    for (number, &(segment, head, here, before)) in cut.iter().enumerate() {
        let mut more = shape_of(head, here);
        more.extend(listing.to_count(number, before));
        let groups = core.kernels.groups_up_to(here.into());
        // SAFETY: the segment's chunks have their places in `counts`, its number in `state`.
        unsafe { work.launch(submission, "compute_count", groups, segment, &more)? };
    }
    listing.answer(submission, answer, |submission, listing, range| {
        cut.iter().try_for_each(|&(segment, head, here, before)| {
            let mut more = shape_of(head, here);
            more.extend(listing.to_list(before, segment.before, range));
            let groups = core.kernels.groups_up_to(here.into());
            // SAFETY: counts and offsets have a place for each chunk; the kernel writes at most as many
            // indices as the range has, for which the list has room.
            unsafe { work.launch(submission, "compute_list", groups, segment, &more) }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_hold_every_element_once_and_in_order() {
        let cases: [&[(u64, u64, u32)]; 4] = [
            &[(0, 4, 12)],
            &[(4, 44, 12), (8, 8, 10)],
            &[(3, 13, 12), (1, 1, 12), (4000, 7, 11)],
            &[(0, 5000, 12)],
        ];
        for (sources, most) in cases.into_iter().flat_map(|sources| [(sources, 7), (sources, u64::MAX)]) {
            let mut next = 0;
            for segment in segments(sources, 1000, most) {
                assert_eq!(segment.before, next);
                assert!((1..=most).contains(&segment.count));
                next += segment.count;
                for (&(start, stride, shift), (piece, offset)) in sources.iter().zip(&segment.places) {
                    let begin = start + segment.before * stride;
                    let end = begin + segment.count * stride;
                    match piece {
                        Some(piece) => {
                            assert_eq!(begin, ((*piece as u64) << shift) + offset);
                            assert!(end <= (*piece as u64 + 1) << shift);
                        }
                        None => {
                            assert_eq!(segment.count, 1);
                            assert_ne!(begin >> shift, (end - 1) >> shift);
                        }
                    }
                }
            }
            assert_eq!(next, 1000);
        }
    }
}
