//! The reference device with one deliberate flaw, which the suite must find.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::task::Waker;

use backend_api::expr::{Action, Geometry};
use backend_api::kernel::{NativeLaunch, NativeQueue, NativeView, Op, Rmw, SubgroupOp, VerifiedKernel};
use backend_api::{
    BufferHandle, BufferId, Commit, Compute, Device, DeviceInfo, DeviceKind, DeviceSpan, Error, ErrorKind,
    Fill, Gather, HostAllocation, HostId, HostMemory, HostSpan, LEFT_OUT, Launch, LaunchView, MemoryStatus,
    QueueHandle, QueueId, QueueProgress, Request, Result, Scatter, Search, Ticket, Transfer, racy,
};
use parking_lot::Mutex;
use vmarray_conformance::reference::ReferenceDevice;

super::flaws! {
    /// The flaws, and the checks that find each at every run.
    UploadsMissTheirLastByte:
        copies_of_every_small_size_and_alignment batches_that_read_one_place_many_times
        random_programs_in_one_queue random_programs_that_move_between_queues queues_come_and_go;
    DownloadsMissTheirLastByte:
        copies_of_every_small_size_and_alignment copies_by_every_route threads_with_queues_of_their_own
        threads_that_share_a_queue;
    UploadsGoOneTooFar: copies_of_every_small_size_and_alignment;
    InternalCopiesMoveWords:
        copies_between_every_pair_of_alignments copies_within_and_between_buffers batches_of_mixed_directions;
    UploadsAreAlignedDown: copies_between_every_pair_of_alignments copies_with_every_kind_of_host_memory;
    CopiesEndAt64KiB: copies_of_large_and_odd_sizes batches_of_unequal_pieces proven_memory_is_memory;
    CopiesOfNothingAreRefused: copies_of_nothing;
    NothingIsRefused:
        fills_of_nothing gathers_and_scatters_of_nothing allocations_of_nothing_are_valid
        computations_of_nothing launches_of_nothing;
    EmptyBatchesAreRefused: an_empty_batch_gives_a_ticket;
    BatchesEndAtAThousand: batches_of_thousands_of_pieces;
    RefusedBatchesAreHalfDone: a_refused_batch_changes_nothing;
    RefusedCallsTakeTickets: refused_calls_take_no_ticket;
    TicketsSkip: tickets_rise_by_one;
    OverlapIsAccepted: internal_copies_that_overlap_are_refused;
    RangesOutsideAreIgnored:
        ranges_outside_are_refused kernels_on_ranges_outside_are_refused malformed_requests_are_refused;
    UnknownNamesAreInvalid: unknown_names_are_refused;
    UnknownReleasesPanic: unknown_names_are_refused;
    FillsAreWholePatterns: fills_with_patterns_of_every_length fills_of_large_and_odd_sizes;
    FillsAreAlignedDown: fills_of_every_small_size_and_alignment;
    LongPatternsAreCut: malformed_requests_are_refused;
    SearchesMissTheLast: searches_of_every_stride searches_that_match_all_or_none_or_the_ends;
    SearchesGoOneTooFar: searches_of_every_stride;
    SearchesIgnoreTheField: searches_of_every_stride;
    SearchesCompareAPrefix: searches_for_values_of_every_size;
    SearchesListOneTooMany: searches_list_no_more_than_the_limit;
    SearchesStopCounting: searches_list_no_more_than_the_limit;
    SearchesDescend: searches_that_match_all_or_none_or_the_ends;
    SearchesEndAt64Ki: searches_of_many_elements;
    SearchesOfNothingAreRefused: searches_of_nothing;
    StrideZeroIsAccepted: malformed_requests_are_refused;
    ComputationsMissTheLast:
        computations_with_every_operation computations_of_many_elements computations_of_short_elements;
    ComputationsForgetAStore: computations_that_store_in_several_fields;
    ComputationsIgnoreTheFilter: computations_of_many_elements;
    ComputationsShareTheirAnswer: computations_in_flight_at_once_do_not_mix;
    ComputationsCountFromZero: random_computations;
    AnyComputationIsAccepted: malformed_computations_are_refused;
    PreparationsCompute: preparing_changes_nothing;
    LaunchesMissTheLast:
        launches_with_every_operation random_launches launches_with_half_precision
        launches_on_striped_pages launches_keep_their_order items_that_fail_go_on
        elements_of_several_fields_are_moved
        code_from_elsewhere_is_run;
    AnyLaunchIsAccepted: malformed_launches_are_refused a_foreign_submission_may_refuse_a_launch;
    BarriersAreLeftOut:
        groups_share_memory_and_meet items_of_a_group_take_different_ways atomics_of_every_kind
        items_that_meet_leave_loops_by_their_budget;
    LanesAreOthers: operations_across_lanes;
    ArenasAreHalved: items_have_memory_of_their_own;
    AtomicsDoNotAdd: atomics_of_every_kind items_append_their_values groups_wait_for_earlier_groups;
    ReleasesAdd: values_are_released_and_acquired;
    PreparationsLaunch: preparing_launches_changes_nothing;
    GathersMissTheLast: gathers_of_every_stride gathers_and_scatters_of_large_elements;
    GathersCutIndices: a_gather_with_an_index_outside_fails;
    GathersClampIndices: a_gather_with_an_index_outside_fails gathers_in_flight_at_once_do_not_mix;
    ScattersMissTheLast:
        scatters_of_every_stride gathers_and_scatters_of_many_elements kernels_and_copies_keep_their_order;
    ScattersClampIndices: a_scatter_with_an_index_outside_fails entries_left_out_move_nothing;
    EntriesLeftOutAreOutside: entries_left_out_move_nothing;
    PagesHaveOneElement: gathers_and_scatters_of_elements_in_pages;
    FailuresAreForgotten: work_goes_on_after_a_failure many_threads_wait_for_one_ticket;
    FailuresAreReportedOnce: work_goes_on_after_a_failure;
    FailuresStick: work_goes_on_after_a_failure;
    WakersAreLost:
        wakers_for_done_work_run_at_once wakers_are_woken_once_when_work_is_done
        wakers_from_many_threads_are_all_woken;
    WakersComeTwice: wakers_for_done_work_run_at_once wakers_are_woken_once_when_work_is_done;
    UnknownTicketsAreDone: tickets_that_were_never_given_are_unknown;
    EndedQueuesAreUnknown: tickets_of_an_ended_queue_stay_askable;
    OrdersTakeTickets: order_after_takes_any_ticket_of_the_device;
    OrdersTakeAnything: order_after_refuses_unknown_tickets;
    HostPiecesOverlap: pieces_of_host_memory_do_not_overlap;
    DevicePiecesOverlap: pieces_of_device_memory_do_not_overlap;
    HostMemoryIsNotZeroed: new_host_memory_is_zeroed_and_aligned;
    HostMemoryIsMisaligned: new_host_memory_is_zeroed_and_aligned;
    FullIsADriverError: more_memory_than_there_is_is_refused;
    FullHasNoFigures: more_memory_than_there_is_is_refused;
    ExtensionsAreForgotten: memory_grows_in_its_place;
    ExtensionsLoseContents: memory_grows_in_its_place;
    ExtensionsKnowNoEnd: memory_that_cannot_grow_stays_as_it_is;
    MemoryLeaks: memory_that_was_given_back_can_be_had_again;
    MemoryIsOversold: a_full_device_says_so_and_goes_on;
    MoreIsFreeThanThereIs: the_memory_status_is_plausible;
    IdentityIsEmpty: the_information_is_plausible;
    ImportsAreCopies: imported_memory_is_copied_from_and_to;
    SeamsCutCopies: buffers_larger_than_one_piece_are_one;
    ImportsAreWiped: wiping_spares_used_and_imported_memory;
}

/// The length of the pieces of buffers on a device with small pieces.
const PIECE: u64 = 1 << 20;
/// The greatest length of overlapping pieces.
const ARENA: u64 = 16 << 10;

#[derive(Debug)]
pub struct Flawed {
    inner: ReferenceDevice,
    info: DeviceInfo,
    flaw: Flaw,
    /// The place of all small buffers and pieces of host memory, if they overlap.
    device_arena: OnceLock<BufferHandle>,
    host_arena: OnceLock<HostAllocation>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The addresses of host memory, as numbers.
    hosts: HashMap<HostId, usize>,
    reported: Vec<Ticket>,
    ended: Vec<QueueId>,
    /// The allocations that contain pieces with a late start.
    skewed: HashMap<HostId, HostAllocation>,
    in_arena: Vec<BufferId>,
    imports: Vec<HostId>,
}

impl Flawed {
    pub fn new(flaw: Flaw) -> Self {
        Self::with_pieces(flaw, flaw == Flaw::SeamsCutCopies)
    }

    pub fn with_pieces(flaw: Flaw, small: bool) -> Self {
        let inner = ReferenceDevice::new(64 << 20);
        let identity = if flaw == Flaw::IdentityIsEmpty { "" } else { "flawed:0" };
        let total = if flaw == Flaw::MemoryIsOversold { 16 << 20 } else { 64 << 20 };
        let info = DeviceInfo::new("flawed", "flawed device", DeviceKind::Simulated, identity);
        let mut info = info.with_total_bytes(total);
        if small {
            info.largest_allocation_bytes = PIECE;
        }
        let (device_arena, host_arena, state) = Default::default();
        Self { inner, info, flaw, device_arena, host_arena, state }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn refuses_nothing(&self, amount: u64) -> Result<()> {
        if self.is(Flaw::NothingIsRefused) && amount == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "anything"));
        }
        Ok(())
    }

    fn real<'a>(&'a self, at: DeviceSpan<'a>) -> DeviceSpan<'a> {
        if !self.state.lock().in_arena.contains(&at.buffer()) {
            return at;
        }
        let arena = || {
            self.inner.allocate(ARENA, Commit::Lazy).expect("the allocation of device memory must succeed")
        };
        self.device_arena.get_or_init(arena).at(at.offset())
    }

    fn bend<'a>(&'a self, transfer: &Transfer<'a>) -> Transfer<'a> {
        let mut bent = *transfer;
        match &mut bent {
            Transfer::Upload { to, .. } => *to = self.real(*to),
            Transfer::Download { from, .. } => *from = self.real(*from),
            Transfer::Internal { from, to, .. } => (*from, *to) = (self.real(*from), self.real(*to)),
        }
        let (to_offset, bytes) = match &mut bent {
            Transfer::Upload { to, bytes, .. } => {
                match self.flaw {
                    Flaw::UploadsMissTheirLastByte => *bytes = bytes.saturating_sub(1),
                    Flaw::UploadsGoOneTooFar if *bytes > 0 => *bytes += 1,
                    Flaw::UploadsAreAlignedDown if *bytes >= 16 => *to = aligned_down(*to),
                    _ => {}
                }
                (to.offset(), bytes)
            }
            Transfer::Download { from, bytes, .. } => {
                if self.is(Flaw::DownloadsMissTheirLastByte) {
                    *bytes = bytes.saturating_sub(1);
                }
                (from.offset(), bytes)
            }
            Transfer::Internal { to, bytes, .. } => {
                if self.is(Flaw::InternalCopiesMoveWords) {
                    *bytes &= !3;
                }
                (to.offset(), bytes)
            }
        };
        if self.is(Flaw::CopiesEndAt64KiB) {
            *bytes = 65_536.min(*bytes);
        }
        if self.is(Flaw::SeamsCutCopies) {
            *bytes = (PIECE - to_offset % PIECE).min(*bytes);
        }
        bent
    }

    /// Applies the flaw to a refusal.
    fn refusal(&self, queue: &QueueHandle, result: Result<Ticket>) -> Result<Ticket> {
        let Err(error) = result else { return result };
        let invalid = error.kind() == ErrorKind::InvalidArgument;
        match self.flaw {
            Flaw::RangesOutsideAreIgnored if invalid => self.inner.submit(queue, &Request::Copies(&[], None)),
            Flaw::OverlapIsAccepted if error.detail().contains("overlap") => {
                self.inner.submit(queue, &Request::Copies(&[], None))
            }
            Flaw::StrideZeroIsAccepted if error.detail().contains("stride") => {
                self.inner.submit(queue, &Request::Copies(&[], None))
            }
            Flaw::RefusedCallsTakeTickets if invalid => {
                self.inner.submit(queue, &Request::Copies(&[], None))?;
                Err(error)
            }
            Flaw::UnknownNamesAreInvalid if error.kind() == ErrorKind::UnknownHandle => {
                Err(Error::new(ErrorKind::InvalidArgument, "submit"))
            }
            _ => Err(error),
        }
    }

    fn answer(&self, at: HostSpan<'_>, words: usize) -> *mut u64 {
        let start = self.state.lock().hosts[&at.host()] + at.offset() as usize;
        assert!(start.is_multiple_of(8) && words > 0);
        std::ptr::with_exposed_provenance_mut(start)
    }

    /// Applies the flaw to a kernel's code.
    fn bend_code(&self, code: &mut Vec<Op>) {
        code.retain(|op| !(self.is(Flaw::BarriersAreLeftOut) && *op == Op::Barrier));
        for op in code {
            match op {
                Op::Subgroup { how: SubgroupOp::ShuffleXor(mask), .. } if self.is(Flaw::LanesAreOthers) => {
                    *mask ^= 1
                }
                Op::Atomic { op, .. } if self.is(Flaw::AtomicsDoNotAdd) && *op == Rmw::Add => {
                    *op = Rmw::Exchange;
                }
                Op::Atomic { op, .. } if self.is(Flaw::ReleasesAdd) && *op == Rmw::Release => *op = Rmw::Add,
                Op::If { then, otherwise, .. } => {
                    self.bend_code(then);
                    self.bend_code(otherwise);
                }
                Op::Block { body } | Op::Loop { body } => self.bend_code(body),
                _ => {}
            }
        }
    }

    /// Other indices in place of the request's, in leaked host memory of the inner device.
    fn bent_indices<'a>(&self, elements: &LaunchView<'_>, indices: HostSpan<'a>, count: u64) -> HostSpan<'a> {
        let bend = |index: u64| match self.flaw {
            Flaw::GathersCutIndices => index & u64::from(u32::MAX),
            Flaw::EntriesLeftOutAreOutside => index.min(LEFT_OUT - 1),
            _ => index.min(elements.count().saturating_sub(1)),
        };
        let Some(&start) = self.state.lock().hosts.get(&indices.host()) else { return indices };
        let bytes = count as usize * 8;
        let copy = self
            .inner
            .allocate_host(bytes, HostMemory::Pageable)
            .expect("the allocation of host memory must succeed");
        for k in 0..count as usize {
            let from = std::ptr::with_exposed_provenance::<u64>(start + indices.offset() as usize + k * 8);
            // SAFETY: the request was valid, so the memory holds `count` aligned indices; the copy has the
            // same length.
            unsafe { copy.address().as_ptr().cast::<u64>().add(k).write(bend(from.read())) };
        }
        // SAFETY: the copy is never released.
        unsafe { copy.at(0).detach() }
    }
}

fn aligned_down(at: DeviceSpan<'_>) -> DeviceSpan<'_> {
    at.with_offset(at.offset() & !3)
}

impl Flawed {
    fn copy(&self, queue: &QueueHandle, transfers: &[Transfer<'_>]) -> Result<Ticket> {
        let refused = || Err(Error::new(ErrorKind::InvalidArgument, "submit"));
        match self.flaw {
            Flaw::EmptyBatchesAreRefused if transfers.is_empty() => return refused(),
            Flaw::CopiesOfNothingAreRefused if transfers.iter().any(|t| t.bytes() == 0) => return refused(),
            Flaw::TicketsSkip => drop(self.inner.submit(queue, &Request::Copies(&[], None))),
            _ => {}
        }
        let end =
            if self.is(Flaw::BatchesEndAtAThousand) { transfers.len().min(1000) } else { transfers.len() };
        let bent: Vec<_> = transfers[..end].iter().map(|transfer| self.bend(transfer)).collect();
        let result = self
            .inner
            .submit(queue, &Request::Copies(&bent, None))
            .or_else(|_| self.inner.submit(queue, &Request::Copies(transfers, None)));
        if result.is_err() && self.is(Flaw::RefusedBatchesAreHalfDone) {
            for transfer in transfers {
                drop(self.inner.submit(queue, &Request::Copies(&[*transfer], None)));
            }
        }
        self.refusal(queue, result)
    }

    fn fill(&self, queue: &QueueHandle, fill: &Fill<'_>) -> Result<Ticket> {
        self.refuses_nothing(fill.bytes)?;
        let mut bent = *fill;
        bent.to = self.real(bent.to);
        match self.flaw {
            Flaw::FillsAreWholePatterns if !fill.pattern.is_empty() => {
                bent.bytes = fill.bytes / fill.pattern.len() as u64 * fill.pattern.len() as u64;
            }
            Flaw::FillsAreAlignedDown => bent.to = aligned_down(bent.to),
            Flaw::LongPatternsAreCut => bent.pattern = &fill.pattern[..fill.pattern.len().min(4096)],
            _ => {}
        }
        self.refusal(queue, self.inner.submit(queue, &Request::Fill(&bent)))
    }

    fn search(&self, queue: &QueueHandle, search: &Search<'_>) -> Result<Ticket> {
        let mut bent = *search;
        match self.flaw {
            Flaw::SearchesMissTheLast => bent.elements.count = search.elements.count.saturating_sub(1),
            Flaw::SearchesGoOneTooFar => bent.elements.count = search.elements.count.saturating_add(1),
            Flaw::SearchesIgnoreTheField => bent.field_offset = 0,
            Flaw::SearchesCompareAPrefix if search.value.len() > 1 => {
                bent.value = &search.value[..search.value.len() - 1];
            }
            Flaw::SearchesListOneTooMany => bent.limit = search.limit.saturating_add(1),
            Flaw::SearchesEndAt64Ki => bent.elements.count = search.elements.count.min(1 << 16),
            Flaw::SearchesOfNothingAreRefused if search.elements.count == 0 => {
                return Err(Error::new(ErrorKind::InvalidArgument, "search"));
            }
            _ => {}
        }
        let result = self
            .inner
            .submit(queue, &Request::Search(&bent))
            .or_else(|_| self.inner.submit(queue, &Request::Search(search)));
        if result.is_ok() && matches!(self.flaw, Flaw::SearchesStopCounting | Flaw::SearchesDescend) {
            let answer = self.answer(search.answer, 2);
            // SAFETY: the search was accepted, so its answer has room, and no other code uses the answer
            // now.
            let answer = unsafe {
                let listed = answer.add(1).read() as usize;
                std::slice::from_raw_parts_mut(answer, 2 + listed)
            };
            if self.is(Flaw::SearchesDescend) {
                answer[2..].reverse();
            } else {
                answer[0] = answer[1];
            }
        }
        self.refusal(queue, result)
    }

    fn gather(&self, queue: &QueueHandle, gather: &Gather<'_>) -> Result<Ticket> {
        self.refuses_nothing(gather.count)?;
        let mut bent = *gather;
        match self.flaw {
            Flaw::GathersMissTheLast => bent.count = gather.count.saturating_sub(1),
            Flaw::PagesHaveOneElement => {
                if let LaunchView::Striped { page_len, .. } = &mut bent.elements {
                    *page_len = 1;
                }
            }
            Flaw::GathersCutIndices | Flaw::GathersClampIndices | Flaw::EntriesLeftOutAreOutside
                if gather.count < 1 << 20 =>
            {
                bent.indices = self.bent_indices(&gather.elements, gather.indices, gather.count);
            }
            _ => {}
        }
        self.refusal(queue, self.inner.submit(queue, &Request::Gather(&bent)))
    }

    fn scatter(&self, queue: &QueueHandle, scatter: &Scatter<'_>) -> Result<Ticket> {
        let mut bent = *scatter;
        match self.flaw {
            Flaw::ScattersMissTheLast => bent.count = scatter.count.saturating_sub(1),
            Flaw::ScattersClampIndices if scatter.count < 1 << 20 => {
                bent.indices = self.bent_indices(&scatter.elements, scatter.indices, scatter.count);
            }
            _ => {}
        }
        self.refusal(queue, self.inner.submit(queue, &Request::Scatter(&bent)))
    }

    fn compute(&self, queue: &QueueHandle, compute: &Compute<'_>) -> Result<Ticket> {
        self.refuses_nothing(compute.count())?;
        let mut bent = *compute;
        let mut shorter = compute.sources.to_vec();
        shorter.iter_mut().for_each(|source| source.count = source.count.saturating_sub(1));
        match &mut bent.action {
            _ if self.is(Flaw::ComputationsMissTheLast) => bent.sources = &shorter,
            Action::Store { stores, .. } if self.is(Flaw::ComputationsForgetAStore) && stores.len() > 1 => {
                *stores = &stores[1..];
            }
            Action::Sum { filter, .. } | Action::Store { filter, .. }
                if self.is(Flaw::ComputationsIgnoreTheFilter) =>
            {
                *filter = None;
            }
            Action::Sum { answer, .. } if self.is(Flaw::ComputationsShareTheirAnswer) => {
                *answer = answer.with_offset(0)
            }
            _ if self.is(Flaw::ComputationsCountFromZero) => bent.geometry = Geometry::plain(0),
            _ => {}
        }
        let accepts = self.is(Flaw::AnyComputationIsAccepted);
        let result = self.inner.submit(queue, &Request::Compute(&bent));
        if accepts && result.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidArgument) {
            return self.inner.submit(queue, &Request::Copies(&[], None));
        }
        self.refusal(queue, result)
    }

    fn launch(&self, queue: &QueueHandle, launch: &Launch<'_>) -> Result<Ticket> {
        self.refuses_nothing(launch.items)?;
        let mut bent = *launch;
        if self.is(Flaw::LaunchesMissTheLast) {
            bent.items = launch.items.saturating_sub(1);
        }
        if self.is(Flaw::ArenasAreHalved) {
            bent.private_heap_bytes = launch.private_heap_bytes / 16 * 8;
        }
        if self.is(Flaw::AnyLaunchIsAccepted)
            && let Some(submit) = launch.kernel.code().and_then(|code| code.submission())
        {
            // Run the native submission, and ignore its result.
            let stream = std::ptr::null_mut();
            let (to, view) =
                (NativeQueue::Cuda { context: stream, stream }, NativeView::new(0, 0, launch.items, 8));
            let _ = submit(&NativeLaunch::new(to, &[view], launch.items, launch.geometry, launch.params));
        }
        let mut body = launch.kernel.body().clone();
        self.bend_code(&mut body.code);
        // Skip changed bodies that are not valid kernels.
        let kernel = VerifiedKernel::new(body).unwrap_or_else(|_| launch.kernel.clone());
        bent.kernel = &kernel;
        let result = self.inner.submit(queue, &Request::Launch(&bent));
        if self.is(Flaw::AnyLaunchIsAccepted) && result.is_err() {
            return self.inner.submit(queue, &Request::Copies(&[], None));
        }
        self.refusal(queue, result)
    }
}

// SAFETY: flaws of memory break the contract. The suite, which uses this device exclusively, detects them
// before any code depends on it. The memory belongs to the reference device, so all work stays within it,
// and lives as long as it does.
unsafe impl Device for Flawed {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryStatus> {
        let mut status = self.inner.memory()?;
        if self.is(Flaw::MoreIsFreeThanThereIs) {
            status.free_bytes = status.total_bytes + 1;
        }
        Ok(status)
    }

    backend_api::forward! { self => self.inner; create_queue }

    fn release_queue(&self, queue: QueueHandle) {
        self.state.lock().ended.push(queue.id());
        self.inner.release_queue(queue);
    }

    fn allocate(&self, bytes: u64, commit: Commit) -> Result<BufferHandle> {
        self.refuses_nothing(bytes)?;
        if self.is(Flaw::DevicePiecesOverlap) && bytes <= ARENA {
            let alias = BufferHandle::unique();
            self.state.lock().in_arena.push(alias.id());
            return Ok(alias);
        }
        match self.inner.allocate(bytes, commit) {
            Err(_) if self.is(Flaw::FullIsADriverError) => {
                Err(Error::new(ErrorKind::Driver, "allocate").with_bytes(bytes))
            }
            Err(error) if self.is(Flaw::FullHasNoFigures) => Err(Error::new(error.kind(), "allocate")),
            other => other,
        }
    }

    fn allocate_extensible(&self, bytes: u64, most: u64, commit: Commit) -> Result<BufferHandle> {
        let most = if self.is(Flaw::ExtensionsKnowNoEnd) { u64::MAX } else { most };
        self.inner.allocate_extensible(bytes, most, commit)
    }

    fn extend(&self, buffer: &BufferHandle, bytes: u64, commit: Commit) -> Result<()> {
        if self.is(Flaw::ExtensionsAreForgotten) {
            return Ok(());
        }
        self.inner.extend(buffer, bytes, commit)?;
        if self.is(Flaw::ExtensionsLoseContents) {
            let queue = self.inner.create_queue()?;
            self.inner.submit(&queue, &Request::Fill(&Fill { to: buffer.at(0), bytes, pattern: &[0xCD] }))?;
        }
        Ok(())
    }

    fn release(&self, buffer: BufferHandle) {
        if self.is(Flaw::MemoryLeaks) {
            return;
        }
        if self.is(Flaw::UnknownReleasesPanic) {
            let queue = self.inner.create_queue().expect("the creation of a queue must succeed");
            let nothing = Fill { to: buffer.at(0), bytes: 0, pattern: &[0] };
            self.inner.submit(&queue, &Request::Fill(&nothing)).expect("the device must know the buffer");
        }
        self.inner.release(buffer);
    }

    fn allocate_host(&self, bytes: usize, kind: HostMemory) -> Result<HostAllocation> {
        self.refuses_nothing(bytes as u64)?;
        if self.is(Flaw::HostPiecesOverlap) && bytes as u64 <= ARENA {
            let arena = self.host_arena.get_or_init(|| {
                self.inner
                    .allocate_host(ARENA as usize, HostMemory::Pageable)
                    .expect("the allocation of host memory must succeed")
            });
            // SAFETY: the arena is never released and longer than this.
            return unsafe { self.inner.import_host(arena.address(), bytes, kind) };
        }
        let mut allocation = self.inner.allocate_host(bytes, kind)?;
        if self.is(Flaw::HostMemoryIsMisaligned) {
            let whole = self.inner.allocate_host(bytes + 64, kind)?;
            // SAFETY: the memory is 64 bytes longer than the part, and is kept until the handle of the part
            // is released.
            let part = unsafe { self.inner.import_host(whole.address().add(64), bytes, kind)? };
            self.inner.release_host(std::mem::replace(&mut allocation, part));
            self.state.lock().skewed.insert(allocation.id(), whole);
        }
        self.state.lock().hosts.insert(allocation.id(), allocation.address().as_ptr().expose_provenance());
        if self.is(Flaw::HostMemoryIsNotZeroed) && bytes > 0 {
            // SAFETY: the memory has `bytes` bytes.
            unsafe { racy::fill(allocation.address().as_ptr().add(bytes - 1), 1, 1) };
        }
        Ok(allocation)
    }

    unsafe fn import_host(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        kind: HostMemory,
    ) -> Result<HostAllocation> {
        if self.is(Flaw::ImportsAreCopies) {
            let copy = self.inner.allocate_host(bytes, kind)?;
            // SAFETY: the caller promises `bytes` bytes, and the copy has the same length.
            unsafe { racy::copy(address.as_ptr(), copy.address().as_ptr(), bytes) };
            return Ok(copy);
        }
        // SAFETY: guaranteed by the caller.
        let host = unsafe { self.inner.import_host(address, bytes, kind) }?;
        self.state.lock().imports.push(host.id());
        Ok(host)
    }

    fn wipe_on_release(&self) -> Result<()> {
        if self.is(Flaw::ImportsAreWiped) { Ok(()) } else { self.inner.wipe_on_release() }
    }

    fn release_host(&self, host: HostAllocation) {
        let id = host.id();
        if self.is(Flaw::ImportsAreWiped) && self.state.lock().imports.contains(&id) {
            // SAFETY: imported memory belongs to the program until it is released.
            unsafe { racy::fill(host.address().as_ptr(), 0, host.bytes()) };
        }
        self.inner.release_host(host);
        let mut state = self.state.lock();
        state.hosts.remove(&id);
        state.skewed.remove(&id).into_iter().for_each(|whole| self.inner.release_host(whole));
    }

    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> Result<Ticket> {
        match request {
            Request::Copies(transfers, _) => self.copy(queue, transfers),
            Request::Fill(fill) => self.fill(queue, fill),
            Request::Search(search) => self.search(queue, search),
            Request::Gather(gather) => self.gather(queue, gather),
            Request::Scatter(scatter) => self.scatter(queue, scatter),
            Request::Compute(compute) => self.compute(queue, compute),
            Request::Launch(launch) => self.launch(queue, launch),
        }
    }

    fn prepare(&self, requests: &[Request<'_>]) -> Result<()> {
        let is_run = |request: &Request<'_>| match request {
            Request::Compute(_) => self.is(Flaw::PreparationsCompute),
            Request::Launch(_) => self.is(Flaw::PreparationsLaunch),
            _ => false,
        };
        if requests.iter().any(is_run) {
            let queue = self.inner.create_queue()?;
            for request in requests {
                self.inner.wait(self.inner.submit(&queue, request)?)?;
            }
            self.inner.release_queue(queue);
        }
        self.inner.prepare(requests)
    }

    fn poll(&self, ticket: Ticket) -> Result<QueueProgress> {
        let mut state = self.state.lock();
        if self.is(Flaw::EndedQueuesAreUnknown) && state.ended.contains(&ticket.queue) {
            return Err(Error::new(ErrorKind::UnknownHandle, "poll"));
        }
        let answer = self.inner.poll(ticket);
        match (answer.as_ref().map_err(Error::kind), self.flaw) {
            (Err(ErrorKind::UnknownHandle), Flaw::UnknownTicketsAreDone)
            | (Err(ErrorKind::KernelFailed), Flaw::FailuresAreForgotten) => Ok(QueueProgress::Done),
            (Err(ErrorKind::KernelFailed), Flaw::FailuresAreReportedOnce) => {
                if state.reported.contains(&ticket) {
                    return Ok(QueueProgress::Done);
                }
                state.reported.push(ticket);
                answer
            }
            (_, Flaw::FailuresStick) => {
                // Earlier tickets may have failed, too, so poll all of them.
                for value in 1..ticket.value {
                    self.inner.poll(Ticket { value, ..ticket })?;
                }
                answer
            }
            _ => answer,
        }
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.poll(ticket).map(|_| ())
    }

    fn wake(&self, ticket: Ticket, waker: Waker) {
        if self.is(Flaw::WakersAreLost) {
            return;
        }
        if self.is(Flaw::WakersComeTwice) {
            waker.wake_by_ref();
        }
        self.inner.wake(ticket, waker);
    }

    fn order_after(&self, queue: &QueueHandle, ticket: Ticket) -> Result<()> {
        if self.is(Flaw::OrdersTakeAnything) {
            return Ok(());
        }
        if self.is(Flaw::OrdersTakeTickets) {
            self.inner.submit(queue, &Request::Copies(&[], None))?;
        }
        self.inner.order_after(queue, ticket)
    }
}
