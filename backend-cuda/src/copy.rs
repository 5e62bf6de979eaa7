//! Copies of a CUDA device: translates buffer ids to addresses, and merges and submits copies.

use backend_api::{DeviceSpan, Route, Transfer};
use vmarray_support::backends::copies::joined;

use crate::driver::objects::Event;
use crate::driver::{BatchAttributes, DriverResult, StatusCode, check};
use crate::handle_table::HandleLookup;
use crate::host_memory::HostAddress;
use crate::kernel::argument;
use crate::kernel::modules::FixedKernel;
use crate::route::{self, CallPieces, PieceDirection, Possible, RoutePreferences};
use crate::staging::{Loan, STAGING_BYTES};
use crate::submission::CudaSubmission;

/// One copy with addresses in place of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    direction: PieceDirection,
    to: HostAddress,
    from: HostAddress,
    bytes: u64,
}

impl Piece {
    /// Addresses of target and source for kernels, if kernels can access both.
    fn mapped(&self) -> Option<(u64, u64)> {
        Some((self.to.mapped?, self.from.mapped?))
    }
}

fn direction(transfer: &Transfer<'_>) -> PieceDirection {
    match transfer {
        Transfer::Upload { .. } => PieceDirection::Upload,
        Transfer::Download { .. } => PieceDirection::Download,
        Transfer::Internal { .. } => PieceDirection::Internal,
    }
}

/// Returns the number, size and direction of the copies.
fn survey(transfers: &[Transfer<'_>]) -> CallPieces {
    let (mut pieces, mut bytes) = (0, 0);
    let mut ways: Option<PieceDirection> = None;
    for transfer in joined(transfers) {
        pieces += 1;
        bytes += transfer.bytes();
        let way = direction(&transfer);
        ways = Some(if ways.is_none_or(|ways| ways == way) { way } else { PieceDirection::Mixed });
    }
    CallPieces { pieces, bytes, direction: ways.unwrap_or(PieceDirection::Upload) }
}

fn resolve(names: &HandleLookup<'_>, transfer: &Transfer<'_>) -> Piece {
    let device = |at: DeviceSpan<'_>| {
        let address = names.device_address(at);
        HostAddress { host: address, mapped: Some(address) }
    };
    let (to, from) = match *transfer {
        Transfer::Upload { from, to, .. } => (device(to), names.host_address(from)),
        Transfer::Download { from, to, .. } => (names.host_address(to), device(from)),
        Transfer::Internal { from, to, .. } => (device(to), device(from)),
    };
    Piece { direction: direction(transfer), to, from, bytes: transfer.bytes() }
}

/// Submits the checked copies of one call, by the route `forced` if it is given.
pub(crate) fn start(
    work: &mut CudaSubmission<'_>,
    names: &HandleLookup<'_>,
    transfers: &[Transfer<'_>],
    route: Option<Route>,
) -> DriverResult {
    if names.any_foreign() {
        return start_between(work, names, transfers, route);
    }
    let forced = route.or(work.core.route);
    if let [transfer] = transfers
        && forced.is_none()
    {
        // Fast path for a call with a single copy, the most frequent one.
        return if transfer.bytes() > 0 { single(work, &resolve(names, transfer)) } else { Ok(()) };
    }
    if names.hosts_are_mapped() {
        return start_mapped(work, names, transfers, forced);
    }
    // Kernels cannot access pageable memory, and the driver blocks while it copies such memory. So copies of
    // pageable memory come last.
    let (mapped, others): (Vec<Transfer<'_>>, Vec<Transfer<'_>>) =
        transfers.iter().partition(|transfer| resolve(names, transfer).mapped().is_some());
    start_mapped(work, names, &mapped, forced)?;
    joined(&others).try_for_each(|transfer| single(work, &resolve(names, &transfer)))
}

/// Submits copies of which some are from or to other GPUs.
fn start_between(
    work: &mut CudaSubmission<'_>,
    names: &HandleLookup<'_>,
    transfers: &[Transfer<'_>],
    route: Option<Route>,
) -> DriverResult {
    let own = work.context().handle();
    let contexts = |transfer: &Transfer<'_>| match *transfer {
        Transfer::Internal { from, to, .. } => {
            let context = |at| names.foreign_context(at).unwrap_or(own);
            (context(to), context(from))
        }
        _ => (own, own),
    };
    let (within, between): (Vec<Transfer<'_>>, Vec<Transfer<'_>>) =
        transfers.iter().partition(|transfer| contexts(transfer) == (own, own));
    let forced = route.or(work.core.route);
    if !between_by_kernel(work, names, &between, forced)? {
        joined(&between).try_for_each(|transfer| {
            let (piece, (to, from)) = (resolve(names, &transfer), contexts(&transfer));
            // SAFETY: both ranges were checked against memory that stays until the submission is done.
            unsafe { work.stream().copy_between((to, piece.to.host), (from, piece.from.host), piece.bytes) }
        })?;
    }
    if names.hosts_are_mapped() {
        return start_mapped(work, names, &within, forced);
    }
    joined(&within).try_for_each(|transfer| single(work, &resolve(names, &transfer)))
}

/// Submits many short copies from or to other GPUs by one kernel, which accesses their memory over the link.
/// Returns `false` if the copies are few or long, or if the kernel is unavailable.
fn between_by_kernel(
    work: &mut CudaSubmission<'_>,
    names: &HandleLookup<'_>,
    transfers: &[Transfer<'_>],
    forced: Option<Route>,
) -> DriverResult<bool> {
    let load = survey(transfers);
    let preferences = RoutePreferences { forced, routing: *work.core.routing.read() };
    if route::choose(load, Possible { batch: false, kernel: true }, &preferences) != Route::Kernel {
        return Ok(false);
    }
    match load_kernels(work, load) {
        Ok(()) => {
            by_kernel(work, load, joined(transfers).map(|transfer| resolve(names, &transfer)))?;
            Ok(true)
        }
        Err(code) if code.is_fatal() => Err(code),
        Err(_) => Ok(false),
    }
}

/// Submits copies between device memory and pinned memory, or within the GPU.
fn start_mapped(
    work: &mut CudaSubmission<'_>,
    names: &HandleLookup<'_>,
    transfers: &[Transfer<'_>],
    forced: Option<Route>,
) -> DriverResult {
    let load = survey(transfers);
    if load.pieces == 0 {
        return Ok(());
    }
    let batch = work.context().driver.table.has_batch_copies();
    let preferences = RoutePreferences { forced, routing: *work.core.routing.read() };
    let mut route = route::choose(load, Possible { batch, kernel: true }, &preferences);
    let mut pieces = joined(transfers).map(|transfer| resolve(names, &transfer));
    if route == Route::Kernel {
        match load_kernels(work, load) {
            Ok(()) => return by_kernel(work, load, pieces),
            Err(code) if code.is_fatal() => return Err(code),
            // If the driver cannot load the copy kernels, copies take other routes.
            Err(code) => {
                tracing::warn!(?code, "cannot load the copy kernels; copies use other routes");
                route = route::choose(load, Possible { batch, kernel: false }, &preferences);
            }
        }
    }
    match route {
        Route::Batch => by_batch(work, load.pieces, pieces),
        _ => pieces.try_for_each(|piece| single(work, &piece)),
    }
}

fn single(work: &CudaSubmission<'_>, piece: &Piece) -> DriverResult {
    let (stream, &Piece { direction, to, from, bytes }) = (work.stream(), piece);
    // SAFETY: both ranges were checked against memory that stays until the submission is done.
    unsafe {
        match direction {
            PieceDirection::Upload => stream.upload(to.host, from.host, bytes),
            PieceDirection::Download => stream.download(to.host, from.host, bytes),
            PieceDirection::Internal | PieceDirection::Mixed => stream.copy(to.host, from.host, bytes),
        }
    }
}

fn by_batch(work: &CudaSubmission<'_>, count: usize, pieces: impl Iterator<Item = Piece>) -> DriverResult {
    let table = &work.context().driver.table;
    let stream = work.stream().raw();
    let (mut to, mut from) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut sizes = Vec::with_capacity(count);
    for piece in pieces {
        to.push(piece.to.host);
        from.push(piece.from.host);
        sizes.push(piece.bytes as usize);
    }
    let count = sizes.len();
    let mut attributes = BatchAttributes::STREAM_ORDER;
    let mut first_with_attributes = 0_usize;
    if let Some(copy) = table.memcpy_batch_async_v2 {
        // SAFETY: the three lists have `count` entries, and one set of attributes applies from piece 0 on.
        // The ranges were checked.
        return check(unsafe {
            copy(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                sizes.as_mut_ptr(),
                count,
                &raw mut attributes,
                &raw mut first_with_attributes,
                1,
                stream,
            )
        });
    }
    if let Some(copy) = table.memcpy_batch_async {
        let mut failed = 0_usize;
        // SAFETY: as above. The call also writes one integer, the index of a failed piece.
        return check(unsafe {
            copy(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                sizes.as_mut_ptr(),
                count,
                &raw mut attributes,
                &raw mut first_with_attributes,
                1,
                &raw mut failed,
                stream,
            )
        });
    }
    // Unreachable: `choose` selects a batch only if the driver has one of the two batch functions.
    Err(StatusCode::NOT_SUPPORTED)
}

/// The parameters of one copy in the copy kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    to: u64,
    from: u64,
    bytes: u64,
}

/// The number of copies in the parameters of one launch, as in `kernels/copy.cu`. The first launch of each
/// call takes its list from there: the GPU starts at once, and the processor writes the next list meanwhile.
const FEW: usize = 128;
/// The maximum number of copies in the first list: as many as the processor writes during the first launch.
const FIRST_LIST: usize = 768;
/// The factor between the lengths of successive lists. Writing an entry takes the processor less than a third
/// of the time that the bus takes for 4 KiB.
const GROWTH: usize = 3;
/// The maximum number of entries of a list. The bus idles for some microseconds between two launches, so
/// lists should be long.
const LIST: usize = 4096;
/// The maximum number of lists in flight.
const LISTS: usize = 4;
/// The lists leave a part of the queue's staging memory for other uses.
const _: () = assert!(LISTS * LIST * size_of::<Entry>() < STAGING_BYTES);
/// The maximum length in bytes of an entry. One block copies an entry alone, so longer ones would leave other
/// blocks idle.
const PART_BYTES_MAX: u64 = 64 << 10;
const PART_BYTES_MIN: u64 = 4 << 10;
/// The number of blocks that a call should keep busy, to have enough reads in flight for the bus.
const PARTS: u64 = 128;
const BLOCKS_PER_MULTIPROCESSOR: u64 = 8;

/// Returns the length of entries, in bytes, for which enough blocks are busy.
fn part_bytes(total_bytes: u64) -> u64 {
    (total_bytes / PARTS).next_multiple_of(PART_BYTES_MIN).clamp(PART_BYTES_MIN, PART_BYTES_MAX)
}

/// Returns the copies as entries for the kernels, cut into parts of `part_bytes` bytes.
fn parts(part_bytes: u64, mut pieces: impl Iterator<Item = Piece>) -> impl Iterator<Item = Entry> {
    let mut rest = Entry::default();
    std::iter::from_fn(move || {
        while rest.bytes == 0 {
            let piece = pieces.next()?;
            // All pieces are in mapped memory, so `continue` is never reached.
            let Some((to, from)) = piece.mapped() else { continue };
            rest = Entry { to, from, bytes: piece.bytes };
        }
        let bytes = part_bytes.min(rest.bytes);
        let part = Entry { bytes, ..rest };
        rest = Entry { to: part.to + bytes, from: part.from + bytes, bytes: rest.bytes - bytes };
        Some(part)
    })
}

/// Returns an upper bound of the number of entries of a call.
fn parts_max(load: CallPieces) -> u64 {
    load.pieces as u64 + load.bytes / part_bytes(load.bytes)
}

/// Loads the kernels that [`by_kernel`] needs.
fn load_kernels(work: &CudaSubmission<'_>, load: CallPieces) -> DriverResult {
    work.core.kernels.fixed(work.context(), FixedKernel::CopyFew)?;
    if parts_max(load) > FEW as u64 {
        work.core.kernels.fixed(work.context(), FixedKernel::CopyList)?;
    }
    Ok(())
}

/// Copies in launches of growing length: the GPU copies one list while the processor writes the next.
fn by_kernel(
    work: &mut CudaSubmission<'_>,
    load: CallPieces,
    pieces: impl Iterator<Item = Piece>,
) -> DriverResult {
    let blocks = u64::from(work.core.card.multiprocessors) * BLOCKS_PER_MULTIPROCESSOR;
    let part_bytes = part_bytes(load.bytes);
    let mut parts = parts(part_bytes, pieces);
    let mut few = [Entry::default(); FEW];
    let mut count = 0_u32;
    for (place, part) in few.iter_mut().zip(parts.by_ref()) {
        *place = part;
        count += 1;
    }
    let mut arguments = [argument(&few), argument(&count)];
    let kernel = work.core.kernels.fixed(work.context(), FixedKernel::CopyFew)?;
    // SAFETY: the parameters are (Few, u32); the ranges were checked, and are mapped or on the GPU.
    unsafe { work.stream().launch(kernel, blocks.min(count.into()), &mut arguments) }?;
    if (count as usize) < FEW {
        return Ok(());
    }

    let is_reused = parts_max(load) > (FEW + FIRST_LIST + GROWTH * FIRST_LIST + (LISTS - 2) * LIST) as u64;
    let mut lists = Lists { loans: [None; LISTS], given: 0, is_reused };
    let mut room = FIRST_LIST;
    while let Some(first) = parts.next() {
        let loan = lists.next(work)?;
        let list = loan.host.cast::<Entry>();
        // SAFETY: the loan has room for `LIST` entries, at a multiple of 16, and no work in flight uses
        // it.
        unsafe { list.write(first) };
        let mut count = 1_u32;
        for part in parts.by_ref().take(room - 1) {
            // SAFETY: as above; the loop writes at most `LIST` entries.
            unsafe { list.add(count as usize).write(part) };
            count += 1;
        }
        let address = loan.mapped;
        let kernel = work.core.kernels.fixed(work.context(), FixedKernel::CopyList)?;
        let mut arguments = [argument(&address), argument(&count)];
        // SAFETY: the parameters are (u64, u32). The list is borrowed until the submission is done, and is
        // not overwritten before its launch is done. The rest as above.
        unsafe { work.stream().launch(kernel, blocks.min(count.into()), &mut arguments) }?;
        lists.launched(work)?;
        room = (room * GROWTH).min(LIST);
    }
    Ok(())
}

/// Pinned memory for the lists of one call, reused if the call has many lists.
#[derive(Debug)]
struct Lists {
    loans: [Option<Loan>; LISTS],
    given: usize,
    /// True if there are more lists than pieces of memory, so completed launches must be tracked.
    is_reused: bool,
}

impl Lists {
    /// Returns memory for [`LIST`] entries that no work in flight uses.
    fn next(&mut self, work: &mut CudaSubmission<'_>) -> DriverResult<Loan> {
        let number = self.given % LISTS;
        if let Some(loan) = self.loans[number] {
            work.list_event(number)?.synchronize()?;
            return Ok(loan);
        }
        let loan = work.lend(LIST * size_of::<Entry>())?;
        Ok(*self.loans[number].insert(loan))
    }

    /// Records that the last launch uses the memory that `next` returned last.
    fn launched(&mut self, work: &mut CudaSubmission<'_>) -> DriverResult {
        let number = self.given % LISTS;
        self.given += 1;
        if !self.is_reused {
            return Ok(());
        }
        let queue = work.queue;
        work.list_event(number)?.record(&queue.stream)
    }
}

impl CudaSubmission<'_> {
    /// Returns one of the queue's [`LISTS`] events.
    fn list_event(&mut self, number: usize) -> DriverResult<&Event> {
        while self.order.list_events.len() <= number {
            let event = Event::new(self.context())?;
            self.order.list_events.push(event);
        }
        Ok(&self.order.list_events[number])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend_api::{BufferHandle, HostAllocation, HostMemory};

    /// Host memory of no bytes: the test uses names alone.
    fn host() -> HostAllocation {
        // SAFETY: the allocation has no bytes.
        unsafe { HostAllocation::new(std::ptr::NonNull::dangling(), 0, HostMemory::Pageable) }
    }

    #[test]
    fn directions_are_distinguished() {
        let (host, buffer) = (&host(), &BufferHandle::unique());
        let up = Transfer::Upload { from: host.at(0), to: buffer.at(0), bytes: 1 };
        let down = Transfer::Download { from: buffer.at(9), to: host.at(9), bytes: 1 };
        let within = Transfer::Internal { from: buffer.at(20), to: buffer.at(40), bytes: 1 };
        let direction = |transfers: &[Transfer<'_>]| survey(transfers).direction;
        assert_eq!(direction(&[up]), PieceDirection::Upload);
        assert_eq!(direction(&[down, down]), PieceDirection::Download);
        assert_eq!(direction(&[within]), PieceDirection::Internal);
        assert_eq!(direction(&[up, down]), PieceDirection::Mixed);
        assert_eq!(direction(&[within, down]), PieceDirection::Mixed);
        assert_eq!(direction(&[within, up]), PieceDirection::Mixed);
    }

    #[test]
    fn parts_cover_the_pieces_and_keep_blocks_busy() {
        let host = |at| HostAddress { host: at, mapped: Some(at) };
        let piece = |i: u64| Piece {
            direction: PieceDirection::Download,
            from: host(i << 20),
            to: host(1 << 40 | i << 30),
            bytes: 65_536 + i,
        };
        let pieces: Vec<Piece> = (0..8).map(piece).collect();
        let total = pieces.iter().map(|piece| piece.bytes).sum();
        let parts: Vec<Entry> = parts(part_bytes(total), pieces.iter().copied()).collect();
        assert!(parts.len() >= 100 && parts.len() <= 150, "{}", parts.len());
        let mut expected = pieces.iter().flat_map(|piece| {
            let (to, from) = piece.mapped().unwrap();
            (0..piece.bytes).map(move |i| (to + i, from + i))
        });
        for part in &parts {
            for i in 0..part.bytes {
                assert_eq!(expected.next(), Some((part.to + i, part.from + i)));
            }
        }
        assert_eq!(expected.next(), None);
    }
}
