//! Measures the devices' limits: the speed of copies through their backends, without an array. Measures each
//! limit once, at its first use.

use super::measure::{Effort, Sample, Summary, Unit, on_threads, repeat, until};
use super::setup::Setup;
use anyhow::{Context, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use vmarray::device::{
    Commit, DeviceBuffer, Elements, Gather, HostBuffer, HostMemory, Queue, Reach, Scatter, Ticket, Transfer,
};
use vmarray::{AnyDevice, device::Device};

/// The direction of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Device to host.
    Down,
    /// Host to device.
    Up,
    /// Both at once; bytes of both directions count.
    Both,
}

/// The pairs of devices between which a measurement makes direct copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// The first one copies from the second one.
    OneWay,
    /// Each copies from the next one, and the last one from the first: of two devices both directions at
    /// once.
    Ring,
}

/// A hardware limit that the benchmarks measure, such as the bus bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Copies of this number of bytes, one per call, with many calls in flight.
    Queued(Way, usize),
    /// Copies of this number of bytes between scattered places, 256 per call.
    Batched(Way, usize),
    /// One copy of this number of bytes to the host and a wait for it, repeatedly, by this number of threads
    /// with a queue each.
    Single(usize, usize),
    /// Copies within the device; reads count, and as many bytes are written.
    Internal,
    /// Copies from device to device; each byte counts once.
    Link(Link),
    /// Elements of this number of bytes at random places: gathered (`Down`, on two queues) or scattered
    /// (`Up`, on one queue) by long kernels.
    Indexed(Way, usize),
}

/// The copy length in bytes that reaches the bus's full bandwidth.
const LONG: usize = 16 << 20;
/// The length in bytes of copies between devices, if both have memory for it.
const LINK_PIECE: u64 = 256 << 20;
/// The number of copies in one batched call.
const BATCH: usize = 256;
/// Alignment of values in bytes: a GPU that writes parts of a memory sector is a fifth slower.
const VALUES_ALIGN: usize = 256;
/// The maximum number of calls in flight.
const IN_FLIGHT: usize = 64;

/// Memory and queues on one device.
struct Card {
    device: Arc<AnyDevice>,
    down: Queue<AnyDevice>,
    up: Queue<AnyDevice>,
    memory: DeviceBuffer<AnyDevice>,
    host: HostBuffer<AnyDevice>,
}

/// Allocates `bytes` bytes of pinned host memory if the system allows it, else of pageable memory.
pub fn pinned(device: &Arc<AnyDevice>, bytes: usize) -> Result<HostBuffer<AnyDevice>> {
    let pinned = HostBuffer::new(device, bytes, HostMemory::Pinned);
    Ok(pinned.or_else(|_| HostBuffer::new(device, bytes, HostMemory::Pageable))?)
}

/// The submissions in flight on a device.
struct InFlight<'a> {
    card: &'a Card,
    most: usize,
    tickets: VecDeque<Ticket>,
}

impl<'a> InFlight<'a> {
    fn new(card: &'a Card, most: usize) -> Self {
        Self { card, most, tickets: VecDeque::new() }
    }

    /// Adds a submission, and waits for the oldest one if there are more than `most`.
    fn add(&mut self, ticket: Ticket) -> Result<()> {
        self.tickets.push_back(ticket);
        let oldest = if self.tickets.len() > self.most { self.tickets.pop_front() } else { None };
        oldest.map_or(Ok(()), |ticket| Ok(self.card.device.wait(ticket)?))
    }

    fn wait(self) -> Result<()> {
        self.tickets.into_iter().try_for_each(|ticket| Ok(self.card.device.wait(ticket)?))
    }
}

/// The measured limits of the devices. Each limit is measured at its first use.
pub struct Raw {
    effort: Effort,
    is_omitted: bool,
    cards: Vec<Card>,
    known: HashMap<Limit, Summary>,
}

impl Raw {
    /// Allocates memory for the measurements on each device.
    pub fn new(setup: &Setup) -> Result<Self> {
        let bytes = if setup.quick { (64 << 20, 32 << 20) } else { (setup.plain_bytes, 256 << 20) };
        let devices = if setup.is_in_turns { &[][..] } else { &setup.devices };
        Ok(Self { is_omitted: setup.is_in_turns, ..Self::of(devices, setup.brief, bytes)? })
    }

    /// Allocates the first number of bytes on each device, and the second number on the host for each device.
    fn of(devices: &[Arc<AnyDevice>], effort: Effort, bytes: (usize, usize)) -> Result<Self> {
        let (device_bytes, host_bytes) = bytes;
        let card = |device: &Arc<AnyDevice>| -> Result<Card> {
            Ok(Card {
                device: Arc::clone(device),
                down: Queue::new(device)?,
                up: Queue::new(device)?,
                memory: DeviceBuffer::new(device, device_bytes as u64, Commit::Proven)?,
                host: pinned(device, host_bytes)?,
            })
        };
        let cards = devices.iter().map(card).collect::<Result<_>>()?;
        Ok(Self { effort, is_omitted: false, cards, known: HashMap::new() })
    }

    /// Returns the bandwidth in GB/s of long copies between host and device, in the direction `way`.
    pub fn bus(&mut self, way: Way) -> Result<Summary> {
        self.get(Limit::Queued(way, LONG))
    }

    /// Returns a limit, which the first call measures. Limits of operations are in thousands per second, of
    /// elements in millions per second, and all other limits in GB/s.
    pub fn get(&mut self, what: Limit) -> Result<Summary> {
        if self.is_omitted {
            return Ok(Summary::NONE);
        }
        if let Some(known) = self.known.get(&what) {
            return Ok(*known);
        }
        let seconds = self.effort.seconds;
        let series = repeat(&self.effort, || match what {
            Limit::Queued(Way::Both, bytes) => self.stream(&[Way::Down, Way::Up], bytes, 1, seconds),
            Limit::Batched(Way::Both, bytes) => self.stream(&[Way::Down, Way::Up], bytes, BATCH, seconds),
            Limit::Queued(way, bytes) => self.stream(&[way], bytes, 1, seconds),
            Limit::Batched(way, bytes) => self.stream(&[way], bytes, BATCH, seconds),
            Limit::Single(bytes, threads) => self.one_by_one(bytes, threads, seconds),
            Limit::Internal => self.within(seconds),
            Limit::Link(link) => self.between(link, seconds),
            Limit::Indexed(way, bytes) => self.by_index(way, bytes, seconds),
        })?;
        let unit = match what {
            Limit::Single(..) => Unit::KiloPerSecond,
            Limit::Indexed(..) => Unit::MegaPerSecond,
            _ => Unit::GigabytesPerSecond,
        };
        let summary = series.summary(unit).context("nothing was measured")?;
        self.known.insert(what, summary);
        Ok(summary)
    }

    /// Measures copies of all devices at once, with one thread per device and direction.
    fn stream(&self, ways: &[Way], bytes: usize, batch: usize, seconds: f64) -> Result<Sample> {
        on_threads(self.cards.len() * ways.len(), |thread| {
            let card = &self.cards[thread / ways.len()];
            let way = ways[thread % ways.len()];
            // Each direction uses half of the host memory.
            let half = card.host.bytes() / 2;
            let from = if way == Way::Up { half } else { 0 };
            let (host_places, device_places) = (half / bytes, card.memory.bytes() as usize / bytes);
            let batch = batch.min(host_places).max(1);
            let mut next = 0;
            let mut transfer = || {
                next += 1;
                let host = card.host.at((from + next % host_places.max(1) * bytes) as u64);
                // Choose a device address far from the previous transfer's address, like accesses to random
                // pages. The addresses of a batch differ.
                let device = card.memory.at((next.wrapping_mul(7919) % device_places.max(1) * bytes) as u64);
                let bytes = bytes as u64;
                match way {
                    Way::Up => Transfer::Upload { from: host, to: device, bytes },
                    _ => Transfer::Download { from: device, to: host, bytes },
                }
            };
            let queue = if way == Way::Up { &card.up } else { &card.down };
            let mut in_flight = InFlight::new(card, IN_FLIGHT);
            let mut transfers = Vec::with_capacity(batch);
            let calls = until(seconds, 4, || {
                transfers.clear();
                transfers.extend((0..batch).map(|_| transfer()));
                in_flight.add(queue.submit(&transfers)?)
            })?;
            in_flight.wait()?;
            Ok(calls * (batch * bytes) as f64)
        })
    }

    fn one_by_one(&self, bytes: usize, threads: usize, seconds: f64) -> Result<Sample> {
        let queues: Vec<Queue<AnyDevice>> = (0..threads)
            .map(|thread| Queue::new(&self.cards[thread % self.cards.len()].device))
            .collect::<Result<_, _>>()?;
        on_threads(threads, |thread| {
            let card = &self.cards[thread % self.cards.len()];
            let (places, device_places) = (card.host.bytes() / bytes, card.memory.bytes() as usize / bytes);
            let mut next = thread * 1_000_003;
            until(seconds, 8, || {
                next += 7919;
                let from = card.memory.at((next % device_places * bytes) as u64);
                let to = card.host.at((thread % places * bytes) as u64);
                let ticket =
                    queues[thread].submit(&[Transfer::Download { from, to, bytes: bytes as u64 }])?;
                Ok(card.device.wait(ticket)?)
            })
        })
    }

    fn by_index(&self, way: Way, bytes: usize, seconds: f64) -> Result<Sample> {
        on_threads(self.cards.len(), |thread| {
            let card = &self.cards[thread];
            let half = card.host.bytes() / 2;
            let (elements, stride) = (card.memory.bytes() / bytes as u64, bytes as u64);
            // A scatter needs distinct indices. The step is a prime number, so the indices are distinct
            // unless the number of elements is a multiple of the step.
            let count = ((half - VALUES_ALIGN) / (8 + bytes)).min(4 << 20).min(elements as usize) / 2 * 2;
            let values_at = (count * 8).next_multiple_of(VALUES_ALIGN);
            for list in 0..2 {
                for k in 0..count {
                    let index = (k as u64 * 1_000_003 + list) % elements;
                    card.host.write(list as usize * half + k * 8, &index.to_ne_bytes());
                }
            }
            let elements = Elements { start: card.memory.at(0), count: elements, stride };
            let mut in_flight = InFlight::new(card, 1);
            let mut list = 0;
            let calls = until(seconds, 2, || {
                let indices = card.host.at((list * half) as u64);
                let values = card.host.at((list * half + values_at) as u64);
                // Alternate gathers between two queues, so that they overlap. Scatters use one queue, because
                // two at a time could write to the same element.
                let queue = if way == Way::Down && list == 0 { &card.down } else { &card.up };
                list = 1 - list;
                let count = count as u64;
                in_flight.add(match way {
                    Way::Up => {
                        queue.submit(&Scatter { elements: elements.into(), indices, count, values })?
                    }
                    _ => queue.submit(&Gather { elements: elements.into(), indices, count, values })?,
                })
            })?;
            in_flight.wait()?;
            Ok(calls * count as f64)
        })
    }

    /// Returns true if there are several devices, and each can copy directly from the next device.
    pub fn has_link(&self) -> bool {
        let nexts = self.cards.iter().zip(self.cards.iter().cycle().skip(1));
        let reach = |(own, next): (&Card, &Card)| own.device.reaches(next.device.info());
        self.cards.len() > 1 && nexts.map(reach).all(|reach| reach >= Reach::Copies)
    }

    fn between(&self, link: Link, seconds: f64) -> Result<Sample> {
        let pulling = if link == Link::OneWay { 1 } else { self.cards.len() };
        on_threads(pulling, |thread| {
            let (card, next) = (&self.cards[thread], &self.cards[(thread + 1) % self.cards.len()]);
            let bytes = (card.memory.bytes() / 2).min(LINK_PIECE);
            // Write to the end of this device's memory, since another device reads the beginning.
            let (from, to) = (next.memory.at(0), card.memory.at(card.memory.bytes() - bytes));
            let copy = Transfer::Internal { from, to, bytes };
            let mut in_flight = InFlight::new(card, 4);
            let calls = until(seconds, 4, || in_flight.add(card.down.submit(&[copy])?))?;
            in_flight.wait()?;
            Ok(calls * bytes as f64)
        })
    }

    fn within(&self, seconds: f64) -> Result<Sample> {
        on_threads(self.cards.len(), |thread| {
            let card = &self.cards[thread];
            let half = card.memory.bytes() / 2;
            let copy = Transfer::Internal { from: card.memory.at(0), to: card.memory.at(half), bytes: half };
            let calls = until(seconds, 4, || {
                let mut last = None;
                for _ in 0..4 {
                    last = Some(card.down.submit(&[copy])?);
                }
                last.map_or(Ok(()), |ticket| Ok(card.device.wait(ticket)?))
            })?;
            Ok(calls * 4.0 * half as f64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmarray::host::HostDevice;

    #[test]
    fn links_are_measured_where_there_are_some() -> Result<()> {
        let devices = [(); 3].map(|()| HostDevice::builder().bytes(2 << 20).build());
        let devices = devices.into_iter().map(|device| Ok(Arc::new(AnyDevice::from(device?))));
        let devices = devices.collect::<Result<Vec<_>>>()?;
        let effort = Effort { runs: 1, seconds: 0.001 };
        assert!(!Raw::of(&devices[..1], effort, (1 << 20, 4096))?.has_link());
        let mut raw = Raw::of(&devices, effort, (1 << 20, 4096))?;
        assert!(raw.has_link());
        for link in [Link::OneWay, Link::Ring] {
            assert!(raw.get(Limit::Link(link))?.median > 0.0);
        }
        Ok(())
    }
}
