//! The benchmark that measures a device's profile. The caller gives the clock, so tests can simulate time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use backend_api::{
    Commit, Device, DeviceBuffer, DeviceKind, Elements, HostBuffer, HostMemory, Queue, Request, Route,
    Routing, Search, Ticket, Transfer,
};

use super::Profile;
use crate::base::error::Result;

const PAGES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, LONGEST];
const LONGEST: usize = 1 << 20;
/// The default page length in bytes, which also tests if routes help in both directions at once.
const TYPICAL: usize = 64 << 10;
/// A single copy of a longer page may take at most this factor of the time of the default length.
const BEARABLE: f64 = 1.25;
/// Number of single copies that are timed together.
const ALONE: usize = 3;
/// A page length suffices if its speed is at least this fraction of the greatest.
const NEARLY: f64 = 0.9;
/// Time that an array needs for a page in a scan, summed over all threads. If the bus were faster, it would
/// wait for the processor.
const WORK: Duration = Duration::from_micros(1);

/// Maximum bytes of one submission, as in an array.
const BATCH_BYTES: usize = 2 << 20;
/// Number of batches in flight in each direction.
const IN_FLIGHT: usize = 2;
/// Approximate time of a timed stream of copies.
const STREAM: Duration = Duration::from_millis(3);
/// Minimum bytes of a timed stream.
const LEAST_BYTES: usize = 2 * BATCH_BYTES;
/// Number of timed streams; their median counts.
const ROUNDS: usize = 5;
/// After this time, the measurement times each stream only once.
const HURRY: Duration = Duration::from_millis(600);
/// Maximum bytes of memory for each direction, on the device and in RAM.
const MEMORY_BYTES: usize = 16 << 20;

/// Bytes of memory for timing a discrete GPU, whose caches hold less than half of it.
const CARD_BYTES: u64 = 256 << 20;
/// Maximum time that copying this memory may take on the bus.
const COPY_TIME: Duration = Duration::from_millis(5);

/// Maximum time on the bus of batches that compare routes.
const ROUTE_TIME: Duration = Duration::from_millis(1);
/// Maximum bytes of batches that compare routes: as in write-backs, an array's longest submissions.
const ROUTE_BYTES: usize = 8 << 20;
/// Number of timings of a route at first.
const ROUTE_ROUNDS: usize = 5;
/// Number of further timings of a route that seems better.
const SECOND_LOOK: usize = 7;
/// Least gain of a route over the device's default, as a fraction of the time.
const GAIN: f64 = 0.10;
/// The tested lengths of copies, the most important first, because the time may not suffice for all.
const BY_IMPORTANCE: [u64; Routing::PIECE_BYTES.len()] = {
    let [shortest, short, typical, long, longest] = Routing::PIECE_BYTES;
    [typical, short, shortest, long, longest]
};
/// A route that takes this many times as long as the fastest is dropped,
const HOPELESS: u32 = 2;
/// after this many timings.
const CHANCES: usize = 2;
/// Time limit for comparing batches by all routes.
const ROUTES_END: Duration = Duration::from_millis(450);
/// In both directions at once, a route table may be slower by this fraction, which is the noise.
const NOISE: f64 = 0.03;
/// Number of timings of both directions with the table, and without it.
const BOTH_ROUNDS: usize = 7;

type Clock<'a> = &'a dyn Fn() -> Duration;

/// The state of one measurement.
struct Scene<'a> {
    device: &'a Arc<dyn Device>,
    clock: Clock<'a>,
    start: Duration,
    down: Queue<dyn Device>,
    up: Queue<dyn Device>,
    slots: DeviceBuffer<dyn Device>,
    frames: HostBuffer<dyn Device>,
    /// Bytes of memory for one direction. Downloads use the first half of both memories, uploads the second.
    bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProbedWay {
    Down,
    Up,
}

/// Restores the route table of a device on drop.
struct Restore<'a>(&'a dyn Device, Routing);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.set_routing(self.1);
    }
}

/// Measures a device by a clock, and then restores the device's settings.
pub(super) fn measure(device: &Arc<dyn Device>, clock: Clock<'_>) -> Result<Profile> {
    let _restore = Restore(&**device, device.routing());
    device.set_routing(Routing::new());
    let usable = device.memory()?.usable_bytes;
    // Use less memory for the measurement if the device is small.
    let scene = Scene::new(device, clock, (usable / 4).min(MEMORY_BYTES as u64) as usize)?;
    // Warm up: after this call, the driver has committed lazily allocated memory, and has loaded its kernels.
    scene.stream(&[ProbedWay::Up, ProbedWay::Down], LONGEST, 2 * scene.bytes)?;
    let speed = scene.time(&[ProbedWay::Down], LONGEST, scene.bytes)?;
    let routing = scene.routing(speed)?;
    device.set_routing(routing);

    let pages = scene.pages(speed)?;
    let page_bytes = suited(&pages);
    let read = pages.iter().map(|page| page.read).max().unwrap_or(0);
    let write = pages.iter().map(|page| page.write).max().unwrap_or(0);
    let both = scene.speed(&[ProbedWay::Up, ProbedWay::Down], page_bytes, speed)?;
    let call = pages.first().map_or(Duration::ZERO, |page| {
        page.alone.saturating_sub(Duration::from_secs_f64(page.bytes as f64 / page.read.max(1) as f64))
    });
    let (device_memory, search) = scene.device_memory(speed, call)?;
    let host_memory = scene.host_memory();
    let measured = Profile::new(read, write, both, page_bytes);
    Ok(Profile { routing, call, device_memory, search, host_memory, ..measured })
}

/// Results of the measurement for one page length.
#[derive(Clone, Copy, Debug)]
struct Page {
    bytes: usize,
    /// Bandwidth in streams of copies, in bytes per second.
    read: u64,
    write: u64,
    /// Time of copying a single page, including the wait.
    alone: Duration,
}

/// Returns the shortest page length that is nearly fastest in streams, and not too slow for single misses.
fn suited(pages: &[Page]) -> usize {
    let alone = pages.iter().find(|page| page.bytes == TYPICAL).map_or(Duration::MAX, |page| page.alone);
    let bearable =
        |page: &&Page| page.bytes <= TYPICAL || page.alone.as_secs_f64() <= BEARABLE * alone.as_secs_f64();
    let candidates = || pages.iter().filter(bearable);
    let read = candidates().map(|page| page.read).max().unwrap_or(0);
    let write = candidates().map(|page| page.write).max().unwrap_or(0);
    let nearly = |speed: u64, best: u64| speed as f64 >= NEARLY * best as f64;
    let shortest = bytes_in(WORK, read.max(write)).min(TYPICAL);
    candidates()
        .find(|page| nearly(page.read, read) && nearly(page.write, write) && page.bytes >= shortest)
        .or(candidates().next_back())
        .map_or(TYPICAL, |page| page.bytes)
}

impl<'a> Scene<'a> {
    fn new(device: &'a Arc<dyn Device>, clock: Clock<'a>, bytes: usize) -> Result<Self> {
        // Round down to whole pages of the longest tested length, if such a page fits.
        let bytes = match bytes {
            0 => 1,
            few if few < LONGEST => few,
            many => many - many % LONGEST,
        };
        let frames = HostBuffer::new(device, 2 * bytes, HostMemory::Pinned)
            .or_else(|_| HostBuffer::new(device, 2 * bytes, HostMemory::Pageable))?;
        Ok(Self {
            device,
            clock,
            start: clock(),
            down: Queue::new(device)?,
            up: Queue::new(device)?,
            slots: DeviceBuffer::new(device, 2 * bytes as u64, Commit::Lazy)?,
            frames,
            bytes,
        })
    }

    fn elapsed(&self) -> Duration {
        (self.clock)().saturating_sub(self.start)
    }

    fn queue(&self, way: ProbedWay) -> &Queue<dyn Device> {
        if way == ProbedWay::Down { &self.down } else { &self.up }
    }

    /// Returns copies of pieces between slots and frames in different orders, so that none can be merged.
    /// `number` selects a part of the memory.
    fn batch(&self, way: ProbedWay, piece_bytes: usize, pieces: usize, number: usize) -> Vec<Transfer<'_>> {
        let piece_bytes = piece_bytes.min(self.bytes);
        let room = self.bytes / piece_bytes;
        let pieces = pieces.clamp(1, room);
        let first = number % (room / pieces) * pieces;
        let base = if way == ProbedWay::Down { 0 } else { self.bytes };
        let at = |place: usize| (base + place * piece_bytes) as u64;
        (0..pieces)
            .map(|piece| {
                let home = self.slots.at(at(first + piece));
                let host = self.frames.at(at(first + pieces - 1 - piece));
                let bytes = piece_bytes as u64;
                match way {
                    ProbedWay::Down => Transfer::Download { from: home, to: host, bytes },
                    ProbedWay::Up => Transfer::Upload { from: host, to: home, bytes },
                }
            })
            .collect()
    }

    /// Copies at least `bytes` bytes in each direction at the same time, as an array does, with some batches
    /// in flight. Returns the bytes of all directions together.
    fn stream(&self, ways: &[ProbedWay], page_bytes: usize, bytes: usize) -> Result<u64> {
        let batch_bytes = BATCH_BYTES.max(page_bytes).min(self.bytes);
        let (pages, batches) = ((batch_bytes / page_bytes).max(1), bytes.div_ceil(batch_bytes));
        let parts = (self.bytes / batch_bytes).clamp(1, batches.max(1));
        let made =
            |way: &ProbedWay| (0..parts).map(|part| self.batch(*way, page_bytes, pages, part)).collect();
        let made: Vec<Vec<Vec<Transfer>>> = ways.iter().map(made).collect();
        let mut under_way: VecDeque<Ticket> = VecDeque::new();
        let mut copied = 0;
        for number in 0..batches {
            for (way, made) in ways.iter().zip(&made) {
                if under_way.len() >= IN_FLIGHT * ways.len()
                    && let Some(first) = under_way.pop_front()
                {
                    self.device.wait(first)?;
                }
                let batch = &made[number % parts];
                copied += batch.iter().map(Transfer::bytes).sum::<u64>();
                under_way.push_back(self.queue(*way).submit(batch)?);
            }
        }
        for ticket in under_way {
            self.device.wait(ticket)?;
        }
        Ok(copied)
    }

    /// Returns the bandwidth of one such stream, over all directions, in bytes per second.
    fn time(&self, ways: &[ProbedWay], page_bytes: usize, bytes: usize) -> Result<u64> {
        let start = (self.clock)();
        let copied = self.stream(ways, page_bytes, bytes)?;
        let time = (self.clock)().saturating_sub(start);
        Ok((u128::from(copied) * 1_000_000_000 / time.as_nanos().max(1)) as u64)
    }

    /// Returns the bytes of a timed stream, on a device of about this `speed`.
    fn amount(&self, speed: u64) -> usize {
        bytes_in(STREAM, speed).max(self.bytes.min(LEAST_BYTES))
    }

    /// Returns true if there is time for another round.
    fn goes_on(&self, rounds: usize) -> bool {
        rounds == 0 || rounds < ROUNDS && self.elapsed() < HURRY
    }

    /// Returns the median bandwidth of some streams, on a device of about this `speed`.
    fn speed(&self, ways: &[ProbedWay], page_bytes: usize, speed: u64) -> Result<u64> {
        let mut speeds = Vec::with_capacity(ROUNDS);
        while self.goes_on(speeds.len()) {
            speeds.push(self.time(ways, page_bytes, self.amount(speed))?);
        }
        Ok(median(speeds))
    }

    /// Measures each page length. The lengths alternate, so that disturbances affect all equally.
    fn pages(&self, speed: u64) -> Result<Vec<Page>> {
        let mut figures = PAGES.map(|bytes| (bytes, [const { Vec::new() }; 2], Vec::new()));
        let mut rounds = 0;
        while self.goes_on(rounds) {
            for (page_bytes, [down, up], alone) in &mut figures {
                down.push(self.time(&[ProbedWay::Down], *page_bytes, self.amount(speed))?);
                up.push(self.time(&[ProbedWay::Up], *page_bytes, self.amount(speed))?);
                for number in 0..ALONE {
                    alone.push(self.once(
                        None,
                        ProbedWay::Down,
                        &self.batch(ProbedWay::Down, *page_bytes, 1, number),
                    )?);
                }
            }
            rounds += 1;
        }
        let page = |(bytes, [down, up], alone): (usize, [Vec<u64>; 2], Vec<Duration>)| Page {
            bytes,
            read: median(down),
            write: median(up),
            alone: median(alone),
        };
        Ok(figures.map(page).into())
    }

    /// Returns the bytes per second of copies and of searches in the device's own memory. `speed` is the
    /// approximate bandwidth of its bus, and `call` the fixed time of a submission and its wait.
    fn device_memory(&self, speed: u64, call: Duration) -> Result<(u64, u64)> {
        const ELEMENT: u64 = 4;
        let is_card = self.device.info().kind == DeviceKind::DiscreteGpu;
        let usable = self.device.memory()?.usable_bytes;
        let own = if is_card && usable / 4 >= CARD_BYTES {
            DeviceBuffer::new(self.device, CARD_BYTES, Commit::Lazy).ok()
        } else {
            None
        };
        let memory = own.as_ref().unwrap_or(&self.slots);
        // Choose the length by the speed of the bus. Device memory is at least as fast, so the copy takes at
        // most `COPY_TIME`.
        let half = (memory.bytes() / 2).min(bytes_in(COPY_TIME, speed) as u64) / ELEMENT * ELEMENT;
        if half == 0 {
            return Ok((0, 0));
        }
        let copy = [Transfer::Internal { from: memory.at(0), to: memory.at(half), bytes: half }];
        let elements = Elements { start: memory.at(0), count: 2 * half / ELEMENT, stride: ELEMENT };
        let answer = HostBuffer::new(self.device, Search::HEADER_BYTES as usize, HostMemory::Pageable)?;
        let search = Search {
            elements,
            field_offset: 0,
            value: &[0xA5; ELEMENT as usize],
            limit: 0,
            count_all: true,
            answer: answer.at(0),
        };
        let queue = self.queue(ProbedWay::Down);
        let copied = self.best_of(call, || queue.submit(&copy))?;
        let searched = self.best_of(call, || queue.submit(&search))?;
        // If the work takes no measurable time beyond that of a call, the speed is unknown (0).
        let speed =
            |time: Option<Duration>| time.map_or(0, |time| (2.0 * half as f64 / time.as_secs_f64()) as u64);
        Ok((speed(copied), speed(searched)))
    }

    /// Returns the least time of some work, minus that of a call; `None` if this is zero.
    fn best_of(
        &self,
        call: Duration,
        submit: impl Fn() -> backend_api::Result<Ticket>,
    ) -> Result<Option<Duration>> {
        let once = || -> Result<Duration> {
            let start = (self.clock)();
            self.device.wait(submit()?)?;
            Ok((self.clock)().saturating_sub(start))
        };
        // Warm up once, because lazily allocated memory and kernels are loaded at the first run.
        once()?;
        let time = once()?.min(once()?);
        Ok(time.checked_sub(call).filter(|time| !time.is_zero()))
    }

    /// Returns the bytes per second that this thread copies from host memory; 0 if the clock stands still.
    fn host_memory(&self) -> u64 {
        let mut copied = vec![0; self.frames.bytes()];
        self.frames.read(0, &mut copied);
        let start = (self.clock)();
        self.frames.read(0, &mut copied);
        let time = (self.clock)().saturating_sub(start);
        std::hint::black_box(&copied);
        // A clock that did not advance, as in simulations, gives no speed.
        if time.is_zero() { 0 } else { (copied.len() as f64 / time.as_secs_f64()) as u64 }
    }

    /// Returns the routes that are faster than the default of a device of about this `speed`.
    fn routing(&self, speed: u64) -> Result<Routing> {
        let mut routing = Routing::new();
        if self.device.routes().len() < 2 {
            return Ok(routing);
        }
        let most = bytes_in(ROUTE_TIME, speed).min(ROUTE_BYTES).min(self.bytes);
        let ways = [ProbedWay::Down, ProbedWay::Up];
        for way in ways {
            for &route in self.device.routes() {
                // Warm up: after this call, the driver has loaded everything that the route needs.
                self.once(Some(route), way, &self.batch(way, 4096, 16, 0))?;
            }
        }
        for piece_bytes in BY_IMPORTANCE {
            for way in ways {
                let mut last = None;
                for pieces in Routing::PIECES {
                    let measurable = pieces * piece_bytes as usize <= most;
                    if measurable && self.elapsed() < ROUTES_END {
                        last = self.best_route(way, pieces, piece_bytes as usize)?;
                    }
                    // Batches longer than the longest measured ones use the same route.
                    match way {
                        ProbedWay::Down => routing.set_download(pieces, piece_bytes, last),
                        ProbedWay::Up => routing.set_upload(pieces, piece_bytes, last),
                    }
                }
            }
        }
        self.holds_both_ways(&routing, speed).map(|holds| if holds { routing } else { Routing::new() })
    }

    /// Returns the route of a batch that is faster than the device's default, if any.
    fn best_route(&self, way: ProbedWay, pieces: usize, piece_bytes: usize) -> Result<Option<Route>> {
        let own = std::iter::once(None);
        let all: Vec<Option<Route>> =
            own.chain(self.device.routes().iter().map(|route| Some(*route))).collect();
        let medians = self.compare(&all, way, pieces, piece_bytes, false)?;
        let best = all.iter().zip(&medians).min_by_key(|(_, median)| **median);
        let Some((&Some(best), median)) = best else { return Ok(None) };
        if !is_gain(*median, medians[0]) {
            return Ok(None);
        }
        let again = self.compare(&[None, Some(best)], way, pieces, piece_bytes, true)?;
        Ok(is_gain(again[1], again[0]).then_some(best))
    }

    /// Returns the median time of a batch by each route. The routes alternate, so that disturbances affect
    /// all equally; slow ones are dropped early.
    fn compare(
        &self,
        routes: &[Option<Route>],
        way: ProbedWay,
        pieces: usize,
        piece_bytes: usize,
        is_careful: bool,
    ) -> Result<Vec<Duration>> {
        let rounds = if is_careful { SECOND_LOOK } else { ROUTE_ROUNDS };
        let mut times = vec![Vec::with_capacity(rounds); routes.len()];
        for round in 0..rounds {
            let batch = self.batch(way, piece_bytes, pieces, round);
            let fastest = times.iter().flatten().min().copied();
            for (route, times) in routes.iter().zip(&mut times) {
                let is_hopeless = |fastest| times.iter().all(|time| *time > HOPELESS * fastest);
                // Always measure the device's default route (`None`), with which other routes are compared.
                if round < CHANCES || route.is_none() || !fastest.is_some_and(is_hopeless) {
                    if is_careful {
                        // Run once unmeasured, to replace the previous route's cache contents.
                        self.once(*route, way, &batch)?;
                    }
                    times.push(self.once(*route, way, &batch)?);
                }
            }
        }
        Ok(times.into_iter().map(median).collect())
    }

    /// Returns the time of one batch, including the wait.
    fn once(&self, route: Option<Route>, way: ProbedWay, batch: &[Transfer]) -> Result<Duration> {
        let start = (self.clock)();
        let queue = self.queue(way);
        let ticket = match route {
            Some(route) => self.device.submit(queue.handle(), &Request::Copies(batch, Some(route)))?,
            None => queue.submit(batch)?,
        };
        self.device.wait(ticket)?;
        Ok((self.clock)().saturating_sub(start))
    }

    /// Returns true if a route table, which was found for single directions, does not slow down both at once.
    fn holds_both_ways(&self, routing: &Routing, speed: u64) -> Result<bool> {
        if routing.is_empty() {
            return Ok(true);
        }
        let bytes = self.amount(speed);
        let mut shares = Vec::with_capacity(BOTH_ROUNDS);
        for _ in 0..BOTH_ROUNDS {
            let [own, found] = [Routing::new(), *routing].map(|table| {
                self.device.set_routing(table);
                self.time(&[ProbedWay::Up, ProbedWay::Down], TYPICAL, bytes)
            });
            // Compare two consecutive measurements, because other work on the machine disturbs both equally.
            shares.push(found? as f64 / own? as f64);
        }
        self.device.set_routing(Routing::new());
        shares.sort_unstable_by(f64::total_cmp);
        Ok(shares[BOTH_ROUNDS / 2] >= 1.0 - NOISE)
    }
}

/// Returns the median of at least one value.
fn median<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Returns true if a time is sufficiently better than that of the device's default.
fn is_gain(time: Duration, own: Duration) -> bool {
    time.as_secs_f64() <= (1.0 - GAIN) * own.as_secs_f64()
}

fn bytes_in(time: Duration, bytes_per_second: u64) -> usize {
    (u128::from(bytes_per_second) * time.as_nanos() / 1_000_000_000) as usize
}

#[cfg(all(test, feature = "host"))]
mod tests;
