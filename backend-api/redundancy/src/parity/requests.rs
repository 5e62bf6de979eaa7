//! Execution of requests by a member's thread: on the member's device, or after its loss on reconstructed
//! data.

use super::Core;
use super::copies::{If, PIECE_BYTES};
use super::degraded::targets_of;
use super::locks::StripeUse;
use super::parity_update::{ParityUpdate, no_scratch};
use super::scratch::ScratchBytes;
use super::stripe_layout::StripeTarget;
use crate::several::access_set::AccessSet;
use backend_api::expr::{Action, Geometry, Partial};
use backend_api::{
    Compute, DeviceSpan, Elements, Error, Fill, Gather, HostId, HostSpan, LEFT_OUT, Launch, Request, Result,
    Route, Scatter, Search, Transfer, racy,
};

/// Bytes from the host that are to be written: at most a piece.
#[derive(Debug, Default)]
struct Writes {
    targets: Vec<StripeTarget>,
    memory: Option<ScratchBytes>,
    /// The bytes in use.
    len: usize,
}

impl Writes {
    fn has_room(&self, bytes: u64) -> bool {
        self.len as u64 + bytes <= PIECE_BYTES
    }

    /// Adds a target, and returns the place for its bytes. The caller has checked for room, or these are
    /// the first bytes.
    fn add(&mut self, core: &Core, target: StripeTarget) -> Result<&mut [u8]> {
        let (start, end) = (self.len, self.len + target.bytes as usize);
        if self.memory.as_ref().is_none_or(|memory| memory.len() < end) {
            self.memory = Some(core.scratch(PIECE_BYTES.max(target.bytes))?);
        }
        self.targets.push(target);
        self.len = end;
        Ok(self.memory.as_mut().map_or(&mut [], |memory| &mut memory[start..end]))
    }
}

impl Core {
    /// Executes a request. All work before it is over.
    pub(super) fn carry_out(&self, position: usize, request: &Request<'_>) -> Result<()> {
        match *request {
            Request::Copies(transfers, route) => self.copies(position, transfers, route),
            Request::Fill(fill) => self.fill(position, fill),
            Request::Scatter(scatter) => self.scatter(position, scatter),
            Request::Launch(launch) => self.launch(position, launch),
            Request::Compute(compute) if matches!(compute.action, Action::Store { .. }) => {
                self.store(position, compute)
            }
            Request::Search(_) | Request::Gather(_) | Request::Compute(_) => loop {
                match self.run_request(position, request) {
                    Err(error) if self.is_loss(position, &error) => {}
                    other => return other,
                }
                let asked = match *request {
                    Request::Search(search) => self.search(position, search),
                    Request::Gather(gather) => self.gather(position, gather),
                    Request::Compute(compute) => self.compute(position, compute),
                    _ => Ok(()),
                };
                match asked {
                    // The error comes from a lost device. If a spare has replaced it meanwhile, repeat the
                    // request on the spare.
                    Err(_) if self.is_current(position) => {}
                    other => return other,
                }
            },
        }
    }

    fn copies(&self, position: usize, transfers: &[Transfer<'_>], route: Option<Route>) -> Result<()> {
        let is_download = |transfer: &&Transfer<'_>| matches!(transfer, Transfer::Download { .. });
        let downloads: Vec<_> = transfers.iter().filter(is_download).copied().collect();
        self.download(position, &downloads, route)?;
        let mut writes = Writes::default();
        for transfer in transfers {
            let (to, bytes) = match *transfer {
                Transfer::Upload { to, bytes, .. } | Transfer::Internal { to, bytes, .. } => (to, bytes),
                Transfer::Download { .. } => continue,
            };
            let mut offset = 0;
            while offset < bytes {
                let length = (bytes - offset).min(PIECE_BYTES);
                if !writes.has_room(length) {
                    self.write_all(position, &mut writes)?;
                }
                let data = writes.add(self, at(to.plus(offset), length))?;
                match *transfer {
                    Transfer::Internal { from, .. } => {
                        self.read_position(position, &[at(from.plus(offset), length)], data)?;
                    }
                    Transfer::Upload { from, .. } => {
                        self.read_host_into(position, from.host(), from.offset() + offset, data)?;
                    }
                    Transfer::Download { .. } => break,
                }
                offset += length;
            }
        }
        self.write_all(position, &mut writes)
    }

    fn download(&self, position: usize, downloads: &[Transfer<'_>], route: Option<Route>) -> Result<()> {
        if downloads.is_empty() {
            return Ok(());
        }
        match self.run_request(position, &Request::Copies(downloads, route)) {
            Err(error) if self.is_loss(position, &error) => {}
            other => return other,
        }
        for download in downloads {
            let Transfer::Download { from, to, bytes } = *download else { continue };
            let mut offset = 0;
            while offset < bytes {
                let length = (bytes - offset).min(PIECE_BYTES);
                let mut data = self.scratch(length)?;
                self.read_position(position, &[at(from.plus(offset), length)], &mut data)?;
                self.write_host(position, to.host(), to.offset() + offset, &data)?;
                offset += length;
            }
        }
        Ok(())
    }

    /// Writes the collected bytes, in their order if targets overlap.
    fn write_all(&self, position: usize, writes: &mut Writes) -> Result<()> {
        let mut ordered: Vec<_> = writes.targets.iter().collect();
        ordered.sort_unstable_by_key(|target| (target.buffer, target.offset));
        let overlap =
            |pair: &[&StripeTarget]| pair[0].buffer == pair[1].buffer && pair[0].end() > pair[1].offset;
        let step = if ordered.windows(2).any(overlap) { 1 } else { writes.targets.len().max(1) };
        let (mut from, all) = (0, writes.memory.as_deref().unwrap_or_default());
        for targets in writes.targets.chunks(step) {
            let bytes: u64 = targets.iter().map(|target| target.bytes).sum();
            let new = &all[from..from + bytes as usize];
            from += bytes as usize;
            self.change(&ParityUpdate {
                position,
                targets,
                reads: &[],
                known: Some(new),
                run: &|| self.write(position, If::Current, targets, new),
                run_degraded: &no_scratch,
            })?;
        }
        writes.targets.clear();
        writes.len = 0;
        Ok(())
    }

    fn fill(&self, position: usize, fill: &Fill<'_>) -> Result<()> {
        let pattern = fill.pattern.len() as u64;
        let piece = PIECE_BYTES / pattern * pattern;
        let mut offset = 0;
        while offset < fill.bytes {
            let bytes = piece.min(fill.bytes - offset);
            let mut new = self.scratch(bytes)?;
            new.chunks_mut(fill.pattern.len()).for_each(|to| to.copy_from_slice(&fill.pattern[..to.len()]));
            let part = Fill { to: fill.to.plus(offset), bytes, pattern: fill.pattern };
            self.change(&ParityUpdate {
                position,
                targets: &[at(part.to, bytes)],
                reads: &[],
                known: Some(&new),
                run: &|| self.run_request(position, &Request::Fill(&part)),
                run_degraded: &no_scratch,
            })?;
            offset += bytes;
        }
        Ok(())
    }

    fn scatter(&self, position: usize, scatter: &Scatter<'_>) -> Result<()> {
        let (elements, stride) = (scatter.elements, scatter.elements.stride());
        let indices = self.indices(position, scatter.indices, scatter.count)?;
        if indices.iter().any(|index| *index != LEFT_OUT && *index >= elements.count()) {
            return Err(Error::index_outside("scatter"));
        }
        let values =
            self.read_host(position, scatter.values.host(), scatter.values.offset(), scatter.count * stride)?;
        let mut writes = Writes::default();
        for (index, value) in indices.iter().zip(values.chunks_exact(stride as usize)) {
            if *index == LEFT_OUT {
                continue;
            }
            if !writes.has_room(stride) {
                self.write_all(position, &mut writes)?;
            }
            let Some((base, behind)) = elements.place(*index) else { continue };
            writes.add(self, at(base.plus(behind), stride))?.copy_from_slice(value);
        }
        self.write_all(position, &mut writes)
    }

    /// Executes the stores of an expression, a piece at a time.
    fn store(&self, position: usize, compute: &Compute<'_>) -> Result<()> {
        each_part(compute, |part, _| {
            let request = Request::Compute(part);
            let touches = AccessSet::of(&request);
            let targets = targets_of(touches.writes.iter());
            self.change(&ParityUpdate {
                position,
                targets: &targets,
                reads: &targets_of(touches.reads.iter()),
                known: None,
                run: &|| self.run_request(position, &request),
                run_degraded: &|| Ok(self.run_degraded(position, &request, &touches, &targets)?.device),
            })
        })
    }

    fn launch(&self, position: usize, launch: &Launch<'_>) -> Result<()> {
        let request = Request::Launch(launch);
        let touches = AccessSet::of(&request);
        let targets = targets_of(touches.writes.iter());
        self.change(&ParityUpdate {
            position,
            targets: &targets,
            reads: &targets_of(touches.reads.iter()),
            known: None,
            run: &|| self.run_request(position, &request),
            run_degraded: &|| {
                let done = self.run_degraded(position, &request, &touches, &targets)?;
                for (host, offset, bytes) in &done.host {
                    self.write_host(position, *host, *offset, bytes)?;
                }
                Ok(done.device)
            },
        })
    }

    /// Runs a request that reads a lost device's data on another device, and returns its answer.
    fn ask_another(&self, position: usize, request: &Request<'_>) -> Result<Vec<u64>> {
        let touches = AccessSet::of(request);
        let segments = self.rows.lock().segments(&targets_of(touches.reads.iter()));
        let _locked = self.locks.lock(StripeUse::Rebuild, &segments);
        let done = self.run_degraded(position, request, &touches, &[])?;
        let words = |(_, _, bytes): &(HostId, u64, ScratchBytes)| -> Vec<u64> {
            bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
        };
        Ok(done.host.first().map(words).unwrap_or_default())
    }

    fn search(&self, position: usize, search: &Search<'_>) -> Result<()> {
        let mut found = Found::new(search.limit, search.count_all);
        let step = part_len(search.elements.stride);
        let mut first = 0;
        while first < search.elements.count && !found.is_enough() {
            let elements = part_of(&search.elements, first, step);
            let limit = found.limit_left();
            let part = Search { elements, limit, ..*search };
            found.take(first, &self.ask_another(position, &Request::Search(&part))?);
            first += step;
        }
        self.write_words(position, search.answer, &found.words())
    }

    fn compute(&self, position: usize, compute: &Compute<'_>) -> Result<()> {
        let Some(answer) = compute.answer() else { return Ok(()) };
        let words = match compute.action {
            Action::Find { limit, count_all, predicate, .. } => {
                let mut found = Found::new(limit, count_all);
                each_part(compute, |part, first| {
                    if found.is_enough() {
                        return Ok(());
                    }
                    let action = Action::Find { predicate, limit: found.limit_left(), count_all, answer };
                    let part = Compute { action, ..*part };
                    found.take(first, &self.ask_another(position, &Request::Compute(&part))?);
                    Ok(())
                })?;
                found.words()
            }
            Action::Histogram { bins, .. } => {
                let mut words = vec![0_u64; bins as usize];
                each_part(compute, |part, _| {
                    let answer = self.ask_another(position, &Request::Compute(part))?;
                    words.iter_mut().zip(answer).for_each(|(bin, more)| *bin += more);
                    Ok(())
                })?;
                words
            }
            Action::Sum { value, .. } => {
                let is_float = compute.program.types()[value.at()].is_float();
                let mut all = Partial::of_integers(0, 0);
                each_part(compute, |part, _| {
                    let mut list = vec![all];
                    list.extend(Partial::list(&self.ask_another(position, &Request::Compute(part))?));
                    let count = list.iter().map(|part| part.count).sum();
                    all = if is_float {
                        Partial::of_floats(count, Partial::sum_of_floats(&list))
                    } else {
                        Partial::of_integers(count, Partial::sum_of_integers(&list))
                    };
                    Ok(())
                })?;
                Partial::answer(&[all])
            }
            Action::Extremes { .. } => {
                let mut all: Vec<Partial> = Vec::new();
                each_part(compute, |part, first| {
                    let answer = self.ask_another(position, &Request::Compute(part))?;
                    let of_part = Partial::list(&answer).into_iter().filter(|part| part.count > 0);
                    all.extend(of_part.map(|Partial { count, words: [least, at, greatest, place] }| {
                        let numbers = [at, place].map(|number| number.wrapping_add(first));
                        Partial::of_extremes(count, (least, numbers[0]), (greatest, numbers[1]))
                    }));
                    if let (Some(least), Some(greatest)) = (Partial::least(&all), Partial::greatest(&all)) {
                        let count = all.iter().map(|part| part.count).sum();
                        all = vec![Partial::of_extremes(count, least, greatest)];
                    }
                    Ok(())
                })?;
                Partial::answer(&all)
            }
            Action::Store { .. } => return Ok(()),
        };
        self.write_words(position, answer, &words)
    }

    fn gather(&self, position: usize, gather: &Gather<'_>) -> Result<()> {
        let (elements, stride) = (gather.elements, gather.elements.stride());
        let indices = self.indices(position, gather.indices, gather.count)?;
        if indices.iter().any(|index| *index != LEFT_OUT && *index >= elements.count()) {
            return Err(Error::index_outside("gather"));
        }
        let step = part_len(stride) as usize;
        for (number, part) in indices.chunks(step).enumerate() {
            let is_wanted = |(_, index): &(usize, &u64)| **index != LEFT_OUT;
            let wanted: Vec<_> = part.iter().enumerate().filter(is_wanted).collect();
            let places = wanted.iter().filter_map(|(_, index)| elements.place(**index));
            let targets: Vec<_> = places.map(|(base, behind)| at(base.plus(behind), stride)).collect();
            let mut values = self.scratch(wanted.len() as u64 * stride)?;
            self.read_position(position, &targets, &mut values)?;
            let to = gather.values.offset() + (number * step) as u64 * stride;
            if wanted.len() == part.len() {
                self.write_host(position, gather.values.host(), to, &values)?;
                continue;
            }
            for ((place, _), value) in wanted.iter().zip(values.chunks_exact(stride as usize)) {
                self.write_host(position, gather.values.host(), to + *place as u64 * stride, value)?;
            }
        }
        Ok(())
    }

    fn indices(&self, position: usize, from: HostSpan<'_>, count: u64) -> Result<Vec<u64>> {
        let bytes = self.read_host(position, from.host(), from.offset(), count * 8)?;
        Ok(bytes.as_chunks().0.iter().map(|index| u64::from_ne_bytes(*index)).collect())
    }

    /// Returns the address of a range of a member's host memory.
    fn host_address(&self, position: usize, host: HostId, offset: u64, bytes: u64) -> Result<*mut u8> {
        let unknown = || {
            Error::new(backend_api::ErrorKind::UnknownHandle, "parity")
                .with_detail("the host memory is released, or belongs to another device")
        };
        let known = self.member_queues[position].lock().hosts.get(&host).copied();
        let known = known.filter(|host| offset.checked_add(bytes).is_some_and(|end| end <= host.bytes));
        let known = known.ok_or_else(unknown)?;
        Ok(std::ptr::with_exposed_provenance_mut(known.address + offset as usize))
    }

    pub(super) fn read_host(
        &self,
        position: usize,
        host: HostId,
        offset: u64,
        bytes: u64,
    ) -> Result<ScratchBytes> {
        let mut read = self.scratch(bytes)?;
        self.read_host_into(position, host, offset, &mut read)?;
        Ok(read)
    }

    fn read_host_into(&self, position: usize, host: HostId, offset: u64, into: &mut [u8]) -> Result<()> {
        let address = self.host_address(position, host, offset, into.len() as u64)?;
        // SAFETY: the range is inside of memory that exists until its release, which waits for the request
        // that names it; accesses of its owner are tolerated.
        unsafe { racy::read(address, into) };
        Ok(())
    }

    pub(super) fn write_host(&self, position: usize, host: HostId, offset: u64, bytes: &[u8]) -> Result<()> {
        let address = self.host_address(position, host, offset, bytes.len() as u64)?;
        // SAFETY: as for reading; the request names the range as a target.
        unsafe { racy::write(address, bytes) };
        Ok(())
    }

    fn write_words(&self, position: usize, to: HostSpan<'_>, words: &[u64]) -> Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.write_host(position, to.host(), to.offset(), &bytes)
    }
}

/// The answer of a search that runs in parts.
struct Found {
    limit: u64,
    count_all: bool,
    total: u64,
    list: Vec<u64>,
}

impl Found {
    fn new(limit: u64, count_all: bool) -> Self {
        Self { limit, count_all, total: 0, list: Vec::new() }
    }

    fn limit_left(&self) -> u64 {
        self.limit - self.list.len() as u64
    }

    /// Returns true if the answer is complete.
    fn is_enough(&self) -> bool {
        !self.count_all && self.total > 0 && self.limit_left() == 0
    }

    /// Adds the answer for elements from `first` on.
    fn take(&mut self, first: u64, words: &[u64]) {
        let [total, listed, list @ ..] = words else { return };
        self.total += total;
        self.list.extend(list.iter().take(*listed as usize).map(|number| number + first));
    }

    fn words(&self) -> Vec<u64> {
        [self.total, self.list.len() as u64].into_iter().chain(self.list.iter().copied()).collect()
    }
}

fn at(place: DeviceSpan<'_>, bytes: u64) -> StripeTarget {
    StripeTarget::new(place.buffer(), place.offset(), bytes)
}

/// The number of elements of a part.
fn part_len(stride: u64) -> u64 {
    (PIECE_BYTES / stride.max(1)).max(1)
}

fn part_of<'a>(elements: &Elements<'a>, first: u64, step: u64) -> Elements<'a> {
    Elements {
        start: elements.start.plus(first * elements.stride),
        count: step.min(elements.count - first),
        stride: elements.stride,
    }
}

/// Calls `run` with parts of a computation, and the number of the first element of each. A computation
/// without elements is one part.
fn each_part(compute: &Compute<'_>, mut run: impl FnMut(&Compute<'_>, u64) -> Result<()>) -> Result<()> {
    let stride = compute.sources.iter().map(|source| source.stride).max().unwrap_or(1);
    let step = part_len(stride);
    let mut first = 0;
    loop {
        let sources: Vec<_> = compute.sources.iter().map(|source| part_of(source, first, step)).collect();
        let geometry = Geometry { first: compute.geometry.first.wrapping_add(first), ..compute.geometry };
        run(&Compute { sources: &sources, geometry, ..*compute }, first)?;
        first += step;
        if first >= compute.count() {
            return Ok(());
        }
    }
}
