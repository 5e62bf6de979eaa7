//! Elements that many items read: those of windows, and whole arrays. Devices get copies of them, those of
//! windows a part at a time.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, DeviceSpan, Elements, HostBuffer, HostMemory, Queue, Transfer, View,
};

use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::pager::Pager;
use crate::ops::executor::{Operand, OperandStore, STAGED_BYTES};

/// Elements that are read by positions, which may be outside.
#[doc(hidden)]
pub trait Spread: Sync {
    /// Bytes of an element.
    fn stride(&self) -> usize;

    /// Which of some positions can be read.
    fn shown(&self, positions: Range<isize>) -> Range<isize>;

    /// Reads elements from a position on as bytes. The calling thread holds nothing.
    fn read_bytes(&self, start: isize, into: &mut [u8]) -> Result<()>;

    /// Whether it is room for what a kernel writes first.
    fn is_room(&self) -> bool {
        false
    }
}

/// A counter that begins at zero.
pub(super) struct FromZero;

impl Spread for FromZero {
    fn stride(&self) -> usize {
        size_of::<u64>()
    }

    fn shown(&self, positions: Range<isize>) -> Range<isize> {
        positions
    }

    fn read_bytes(&self, _: isize, into: &mut [u8]) -> Result<()> {
        into.fill(0);
        Ok(())
    }
}

/// Room for elements of so many bytes.
pub(super) struct Room(pub usize);

impl Spread for Room {
    fn stride(&self) -> usize {
        self.0
    }

    fn shown(&self, positions: Range<isize>) -> Range<isize> {
        positions
    }

    fn read_bytes(&self, _: isize, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn is_room(&self) -> bool {
        true
    }
}

/// What is there, and nothing else.
pub(super) struct Inside<'a> {
    pub operand: Operand<'a>,
    pub len: usize,
}

impl Spread for Inside<'_> {
    fn stride(&self) -> usize {
        self.operand.stride()
    }

    fn shown(&self, positions: Range<isize>) -> Range<isize> {
        let inside = |position: isize| position.clamp(0, self.len as isize);
        inside(positions.start)..inside(positions.end)
    }

    fn read_bytes(&self, start: isize, into: &mut [u8]) -> Result<()> {
        let start = start as usize;
        self.operand.read_bytes(start..start + into.len() / self.stride(), into)
    }
}

/// An argument of which items read what lies around them.
pub(super) struct SpreadArgument<'a> {
    /// The number of its parameter.
    pub number: usize,
    pub of: Box<dyn Spread + 'a>,
    /// How far it reaches; all if this is missing.
    pub halo: Option<usize>,
    /// How many elements it has, where kernels ask for that.
    pub len: usize,
}

/// The most channels of an array that is read where it lives: some devices are given each of them by itself.
const DEALT_CHANNELS_MAX: usize = 8;

/// An array from its first element on, all of which can be read where it lives.
pub(super) struct DealtArgument<'a> {
    /// The number of its parameter.
    pub number: usize,
    pub pager: &'a Pager,
    pub len: usize,
    bases: Vec<DeviceSpan<'static>>,
    stride: usize,
}

impl<'a> DealtArgument<'a> {
    /// An argument, if the runs of a store and all of it lie on one device.
    pub fn new(number: usize, of: &Operand<'a>, len: usize, store: &dyn OperandStore) -> Option<Self> {
        let (runs, pager, stride) = (store.pager()?.channels(), of.store.pager()?, of.stride());
        let device = runs.first()?.device();
        let mut channels = runs.iter().chain(pager.channels());
        let is_there = channels.all(|channel| Arc::ptr_eq(channel.device(), device));
        let fits = of.start == 0 && len > 0 && pager.channels().len() <= DEALT_CHANNELS_MAX;
        let bases = pager.channels().iter().map(|channel| channel.slot_memory()).collect();
        (is_there && fits).then_some(Self { number, pager, len, bases, stride })
    }

    /// Its pages.
    pub fn pages(&self) -> Range<u64> {
        0..(self.len as u64).div_ceil(self.page_len())
    }

    fn page_len(&self) -> u64 {
        (self.pager.page_bytes() / self.stride) as u64
    }

    pub fn view(&self) -> View<'_> {
        let (count, stride) = (self.len as u64, self.stride as u64);
        View::Dealt { bases: &self.bases, page_len: self.page_len(), count, stride }
    }
}

/// Where such elements are on a device.
struct Copied {
    memory: DeviceBuffer<dyn Device>,
    positions: Range<isize>,
}

/// Copies of such elements on a device.
pub(super) struct DeviceCopies<'a> {
    counters: &'a Counters,
    queue: Queue<dyn Device>,
    host: HostBuffer<dyn Device>,
    /// By argument.
    copied: Vec<Option<Copied>>,
    /// Where nothing is, until something is copied; if that is asked for.
    nothing: Option<DeviceBuffer<dyn Device>>,
}

impl<'a> DeviceCopies<'a> {
    pub fn new(
        device: &Arc<dyn Device>,
        counters: &'a Counters,
        arguments: &[SpreadArgument<'_>],
        items: usize,
        is_asked_before: bool,
    ) -> Result<Self> {
        let bytes = |argument: &SpreadArgument<'_>| {
            let halo = |halo: usize| items.saturating_add(halo.saturating_mul(2));
            let count = argument.halo.map_or(argument.len, halo).max(1);
            // An element may be longer than what is copied at a time.
            argument.of.stride().saturating_mul(count).min(STAGED_BYTES.max(argument.of.stride()))
        };
        let bytes = arguments.iter().map(bytes).max().unwrap_or(1);
        Ok(Self {
            counters,
            queue: Queue::new(device)?,
            host: HostBuffer::new(device, bytes, HostMemory::Pageable)?,
            copied: arguments.iter().map(|_| None).collect(),
            nothing: is_asked_before.then(|| DeviceBuffer::new(device, 1, Commit::Lazy)).transpose()?,
        })
    }

    pub fn is_on(&self, device: &dyn Device) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(self.queue.device()), device)
    }

    /// Has room for some positions of an argument.
    fn make_room(&mut self, argument: usize, positions: &Range<isize>, stride: usize) -> Result<()> {
        let bytes = positions.len().saturating_mul(stride).max(1) as u64;
        let old = self.copied[argument].take().map(|copied| copied.memory);
        let memory = match old.filter(|memory| memory.bytes() >= bytes) {
            Some(memory) => memory,
            None => DeviceBuffer::new(self.queue.device(), bytes, Commit::Lazy)?,
        };
        self.copied[argument] = Some(Copied { memory, positions: positions.clone() });
        Ok(())
    }

    /// Copies elements there, which begin so many bytes behind the first.
    fn upload(&self, argument: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(copied) = &self.copied[argument] else { unreachable!("there is room") };
        self.host.write(0, bytes);
        let (from, to) = (self.host.at(0), copied.memory.at(offset));
        let upload = Transfer::Upload { from, to, bytes: bytes.len() as u64 };
        self.queue.device().wait(self.queue.submit(&[upload])?)?;
        self.counters.bytes_to_device.add(bytes.len() as u64);
        Ok(())
    }

    /// Copies the first bytes of an argument back.
    pub fn download(&self, argument: usize, bytes: usize) -> Result<Vec<u8>> {
        let mut all = zeroed_vec(bytes)?;
        let Some(copied) = &self.copied[argument] else { return Ok(all) };
        for (number, piece) in all.chunks_mut(self.host.bytes()).enumerate() {
            let (from, to) = (copied.memory.at((number * self.host.bytes()) as u64), self.host.at(0));
            let download = Transfer::Download { from, to, bytes: piece.len() as u64 };
            self.queue.device().wait(self.queue.submit(&[download])?)?;
            self.host.read(0, piece);
            self.counters.bytes_from_device.add(piece.len() as u64);
        }
        Ok(all)
    }

    /// The elements of an argument, and the position of the first.
    pub fn elements(&self, argument: usize, stride: u64) -> Option<(Elements<'_>, isize)> {
        let Some(Copied { memory, positions }) = &self.copied[argument] else {
            let memory = self.nothing.as_ref()?;
            return Some((Elements { start: memory.at(0), count: 0, stride }, 0));
        };
        let count = positions.len() as u64;
        Some((Elements { start: memory.at(0), count, stride }, positions.start))
    }
}

/// Has all devices hold what the items of a range need.
pub(super) fn copy_around(
    devices: &mut [DeviceCopies<'_>],
    arguments: &[SpreadArgument<'_>],
    items: &Range<usize>,
) -> Result<()> {
    for (number, argument) in arguments.iter().enumerate() {
        let (stride, halo) =
            (argument.of.stride(), argument.halo.map(|halo| isize::try_from(halo).unwrap_or(isize::MAX)));
        let wanted = match halo {
            Some(halo) => {
                (items.start as isize).saturating_sub(halo)..(items.end as isize).saturating_add(halo)
            }
            None => 0..argument.len as isize,
        };
        let positions = argument.of.shown(wanted);
        let is_there = |device: &DeviceCopies<'_>| {
            device.copied[number].as_ref().is_some_and(|copied| copied.positions == positions)
        };
        if halo.is_none() && devices.iter().all(is_there) {
            continue;
        }
        for device in &mut *devices {
            device.make_room(number, &positions, stride)?;
        }
        if argument.of.is_room() {
            continue;
        }
        let at_once = (STAGED_BYTES / stride).max(1);
        for first in positions.clone().step_by(at_once) {
            let count = at_once.min((positions.end - first) as usize);
            let mut bytes = zeroed_vec(count * stride)?;
            argument.of.read_bytes(first, &mut bytes)?;
            let offset = (first - positions.start) as u64 * stride as u64;
            devices.iter().try_for_each(|device| device.upload(number, offset, &bytes))?;
        }
    }
    Ok(())
}
