//! Broadcast arguments: windows (boxes of neighbouring elements) and whole arrays that many GPU threads read.
//! Each device gets a copy of the argument. Windows are copied one part at a time.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{
    Commit, Device, DeviceBuffer, DeviceSpan, Elements, HostBuffer, HostMemory, LaunchView as DeviceView,
    Queue, Transfer,
};
use vmarray_kernel::StencilPart;
use vmarray_kernel::launch::{Mode, VALUES_MAX};

use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::pager::Pager;
use crate::ops::executor::{Operand, OperandStore, ResultStore, SHORT_BYTES, STAGED_BYTES, put_from};
use crate::ops::view::{INTERNAL, Shape, SignedBox, Store as _, StoredBox, View, count};

/// The boundary mode of each axis, with the scalars of its value. `None` if devices do not support the modes.
pub(crate) type Modes = Option<Vec<(Mode, Vec<u64>)>>;

pub(super) fn device_modes(modes: Modes) -> Option<Vec<(Mode, Vec<u64>)>> {
    let is_long = |(mode, value): &(Mode, Vec<u64>)| *mode == Mode::Value && value.len() > VALUES_MAX;
    modes.filter(|modes| !modes.iter().any(is_long))
}

/// Returns the boundary modes of a parameter except [`Mode::Checked`], with the indices of parameter and
/// axis.
pub(super) fn unchecked_modes(
    parameter: usize,
    modes: &[(Mode, Vec<u64>)],
) -> impl Iterator<Item = (usize, usize, Mode)> {
    let modes = modes.iter().enumerate().filter(|(_, (mode, _))| *mode != Mode::Checked);
    modes.map(move |(axis, (mode, _))| (parameter, axis, *mode))
}

/// Returns a scalar that describes a box of copied elements, which is stored row by row.
pub(super) fn of_box(of: &[Range<isize>], part: StencilPart) -> u64 {
    match part {
        StencilPart::First(axis) => of.get(axis).map_or(0, |positions| positions.start as u64),
        StencilPart::Extent(axis) => of.get(axis).map_or(0, |positions| positions.len() as u64),
        StencilPart::Stride(axis) => of.get(axis + 1..).map_or(0, |others| count(others) as u64),
        StencilPart::Mode(_) | StencilPart::Base | StencilPart::Value(..) => 0,
    }
}

/// Returns a scalar that describes elements read in place.
pub(super) fn of_stored(stored: &StoredBox, modes: &[(Mode, Vec<u64>)], part: StencilPart) -> u64 {
    match part {
        StencilPart::First(_) => 0,
        StencilPart::Extent(axis) => stored.axes[axis].extent as u64,
        StencilPart::Stride(axis) => stored.stride(axis) as u64,
        StencilPart::Base => stored.range().start as u64,
        StencilPart::Mode(axis) => modes.get(axis).map_or(Mode::Checked, |mode| mode.0).number(),
        StencilPart::Value(axis, position) => {
            modes.get(axis).map_or(0, |mode| mode.1.get(position).copied().unwrap_or(0))
        }
    }
}

/// A view whose elements a kernel's work-items (GPU threads) read at any position. Positions may be out of
/// bounds.
#[doc(hidden)]
pub trait Broadcast: Sync {
    /// The size of an element in bytes.
    fn stride(&self) -> usize;

    /// Returns the part of a box of positions that has elements to read.
    fn shown(&self, positions: &[Range<isize>]) -> SignedBox;

    /// Reads the elements of a box as bytes, row by row. The calling thread must hold no locks.
    fn read_bytes(&self, of: &[Range<isize>], into: &mut [u8]) -> Result<()>;

    /// Copies the elements of a box directly to device memory. Returns false if the devices have no link.
    fn fetch_to(&self, of: &[Range<isize>], device: &Arc<dyn Device>, to: DeviceSpan<'_>) -> Result<bool> {
        let _ = (of, device, to);
        Ok(false)
    }

    /// Returns true for scratch memory, which needs no copy because the kernel writes it before reading.
    fn is_room(&self) -> bool {
        false
    }
}

/// An argument that is a counter, initially zero.
pub(super) struct FromZero;

impl Broadcast for FromZero {
    fn stride(&self) -> usize {
        size_of::<u64>()
    }

    fn shown(&self, positions: &[Range<isize>]) -> SignedBox {
        positions.to_vec()
    }

    fn read_bytes(&self, _: &[Range<isize>], into: &mut [u8]) -> Result<()> {
        into.fill(0);
        Ok(())
    }
}

/// An argument that is scratch memory for elements of this size in bytes.
pub(super) struct Room(pub usize);

impl Broadcast for Room {
    fn stride(&self) -> usize {
        self.0
    }

    fn shown(&self, positions: &[Range<isize>]) -> SignedBox {
        positions.to_vec()
    }

    fn read_bytes(&self, _: &[Range<isize>], _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn is_room(&self) -> bool {
        true
    }
}

/// Returns the part of a box that is within extents.
pub(crate) fn inside(of: &[Range<isize>], extents: &[usize]) -> SignedBox {
    let clamped = |(positions, extent): (&Range<isize>, &usize)| {
        let inside = |position: isize| position.clamp(0, *extent as isize);
        inside(positions.start)..inside(positions.end)
    };
    of.iter().zip(extents).map(clamped).collect()
}

/// Elements of a range of a store, read by position without a boundary mode.
pub(crate) struct Inside<'a> {
    pub operand: Operand<'a>,
    pub len: usize,
}

impl Broadcast for Inside<'_> {
    fn stride(&self) -> usize {
        self.operand.stride()
    }

    fn shown(&self, positions: &[Range<isize>]) -> SignedBox {
        inside(positions, &[self.len])
    }

    fn read_bytes(&self, of: &[Range<isize>], into: &mut [u8]) -> Result<()> {
        self.operand.read_bytes(of[0].start as usize..of[0].end as usize, into)
    }

    fn fetch_to(&self, of: &[Range<isize>], device: &Arc<dyn Device>, to: DeviceSpan<'_>) -> Result<bool> {
        self.operand.fetch_to(&(of[0].start as usize..of[0].end as usize), device, to)
    }
}

/// Elements of a view, read by position without a boundary mode.
pub(crate) struct Shown<V>(pub V);

impl<'a, V: View<'a>> Broadcast for Shown<V> {
    fn stride(&self) -> usize {
        size_of::<V::Element>()
    }

    fn shown(&self, positions: &[Range<isize>]) -> SignedBox {
        inside(positions, &self.0.parts().1.axes())
    }

    fn fetch_to(&self, of: &[Range<isize>], device: &Arc<dyn Device>, to: DeviceSpan<'_>) -> Result<bool> {
        fetch_view(self.0, &indices::<V::Shape>(of), device, to)
    }

    fn read_bytes(&self, of: &[Range<isize>], into: &mut [u8]) -> Result<()> {
        // Read into a vector and copy, because the byte buffer may not be aligned for the element type.
        let mut values: Vec<V::Element> = zeroed_vec(into.len() / self.stride())?;
        let (store, shape) = self.0.parts();
        shape.copy_out(store, &indices::<V::Shape>(of), &mut values, INTERNAL)?;
        into.copy_from_slice(bytemuck::cast_slice(&values));
        Ok(())
    }
}

/// Converts positions inside a view to a range of the view's indices.
fn indices<S: Shape>(of: &[Range<isize>]) -> Range<S::Index> {
    let index = |end: fn(&Range<isize>) -> isize| {
        let at: Vec<usize> = of.iter().map(|range| end(range) as usize).collect();
        S::index_of(&at)
    };
    index(|range| range.start)..index(|range| range.end)
}

/// Copies a region of a view directly to memory of a device, if the region is a range of its store and the
/// devices have a link. Short ranges of arrays go through the cache instead, which keeps the pages.
pub(super) fn fetch_view<'a, V: View<'a>>(
    view: V,
    of: &Range<V::Index>,
    device: &Arc<dyn Device>,
    to: DeviceSpan<'_>,
) -> Result<bool> {
    let (store, shape) = view.parts();
    let (store, mut runs) = (store.as_operand(INTERNAL), shape.runs(of));
    let (Some(run), None, Some(false)) = (runs.next(), runs.next(), shape.stored().map(|of| of.is_tiled()))
    else {
        return Ok(false);
    };
    let is_short = store.pager().is_some() && run.len() * store.stride() < SHORT_BYTES;
    Ok(!is_short && store.fetch_to(&run, device, to)?)
}

/// An argument that is copied to devices, with a halo around the work-items if they read only neighbours.
pub(super) struct BroadcastArgument<'a> {
    /// Index of the kernel parameter that the argument belongs to.
    pub number: usize,
    pub of: Box<dyn Broadcast + 'a>,
    /// Number of neighbours along each axis that a work-item (GPU thread) reads; `None` if it may read all
    /// elements.
    pub halo: Option<Vec<usize>>,
    /// Number of elements along each axis, if the kernel reads these extents.
    pub extents: Vec<usize>,
}

impl BroadcastArgument<'_> {
    pub fn len(&self) -> usize {
        self.extents.iter().product()
    }

    /// Returns the number of elements in the box `items` and its halo, or of all elements without a halo.
    pub fn count_around(&self, items: &[Range<isize>]) -> usize {
        let lens = self.wanted(items).into_iter().map(|positions| positions.len());
        lens.fold(1, usize::saturating_mul)
    }

    /// Returns the positions that the work-items of a box read.
    fn wanted(&self, items: &[Range<isize>]) -> SignedBox {
        let Some(halo) = &self.halo else {
            return self.extents.iter().map(|extent| 0..*extent as isize).collect();
        };
        let around = |(items, halo): (&Range<isize>, &usize)| {
            let halo = isize::try_from(*halo).unwrap_or(isize::MAX);
            items.start.saturating_sub(halo)..items.end.saturating_add(halo)
        };
        items.iter().zip(halo).map(around).collect()
    }
}

/// The most channels of an array that is read in place, because each channel can be a kernel argument.
pub(crate) const READ_IN_PLACE_MAX: usize = 8;

/// An argument that the kernel reads in place, striped over the channels of its array.
pub(crate) struct StripedArgument<'a> {
    /// Index of the kernel parameter that the argument belongs to.
    pub number: usize,
    pub pager: &'a Pager,
    /// The number of leading elements of the array that contains all reads.
    len: usize,
    stored: StoredBox,
    modes: Vec<(Mode, Vec<u64>)>,
    bases: Vec<DeviceSpan<'static>>,
    stride: usize,
}

impl<'a> StripedArgument<'a> {
    /// Creates an argument that the kernel reads in place. Returns `None` unless one device stores both the
    /// whole array and the elements of `store`, on which the kernel runs. Also `None` without elements, or
    /// with more than [`READ_IN_PLACE_MAX`] channels (shares of the device).
    pub fn new(
        number: usize,
        of: &Operand<'a>,
        stored: &StoredBox,
        modes: Vec<(Mode, Vec<u64>)>,
        store: &dyn OperandStore,
    ) -> Option<Self> {
        let (runs, pager, stride) = (store.pager()?.channels(), of.store.pager()?, of.stride());
        let device = runs.first()?.device();
        let mut channels = runs.iter().chain(pager.channels());
        let is_there = channels.all(|channel| Arc::ptr_eq(channel.device(), device));
        let range = stored.range();
        let fits = !range.is_empty() && pager.channels().len() <= READ_IN_PLACE_MAX;
        let bases = pager.slot_bases();
        let (stored, len) = (stored.clone(), range.end);
        let argument = Self { number, pager, len, stored, modes, bases, stride };
        (is_there && fits).then_some(argument)
    }

    /// Number of leading elements of the array that contain all reads of work-items (GPU threads).
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn modes(&self) -> impl Iterator<Item = (usize, usize, Mode)> {
        unchecked_modes(self.number, &self.modes)
    }

    /// Returns the scalar `part`, such as an extent, by which the kernel finds the argument's elements.
    pub fn scalar(&self, part: StencilPart) -> u64 {
        of_stored(&self.stored, &self.modes, part)
    }

    /// Returns the pages that work-items (GPU threads) may read.
    pub fn pages(&self) -> Range<u64> {
        self.stored.range().start as u64 / self.page_len()..(self.len as u64).div_ceil(self.page_len())
    }

    fn page_len(&self) -> u64 {
        (self.pager.page_bytes() / self.stride) as u64
    }

    pub fn view(&self) -> DeviceView<'_> {
        let (count, stride) = (self.len as u64, self.stride as u64);
        match self.bases[..] {
            [start] => DeviceView::Run(Elements { start, count, stride }),
            _ => DeviceView::Striped { bases: &self.bases, page_len: self.page_len(), count, stride },
        }
    }
}

/// The copy of an argument's elements on a device, and their positions.
struct Copied {
    memory: DeviceBuffer<dyn Device>,
    positions: SignedBox,
}

/// The copies of all arguments on one device.
pub(super) struct DeviceCopies<'a> {
    counters: &'a Counters,
    queue: Queue<dyn Device>,
    host: HostBuffer<dyn Device>,
    copied: Vec<Option<Copied>>,
    /// Memory without contents, for launches before the first copy.
    nothing: Option<DeviceBuffer<dyn Device>>,
}

impl<'a> DeviceCopies<'a> {
    pub fn new(
        device: &Arc<dyn Device>,
        counters: &'a Counters,
        arguments: &[BroadcastArgument<'_>],
        items: &[Range<isize>],
        is_asked_before: bool,
    ) -> Result<Self> {
        let bytes = |argument: &BroadcastArgument<'_>| {
            let count = argument.count_around(items).max(1);
            // If a single element is longer than `STAGED_BYTES`, make the staging buffer as long as this
            // element.
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

    /// Allocates device memory for elements of an argument at these positions.
    fn make_room(&mut self, argument: usize, positions: &[Range<isize>], stride: usize) -> Result<()> {
        let bytes = count(positions).saturating_mul(stride).max(1) as u64;
        let old = self.copied[argument].take().map(|copied| copied.memory);
        let memory = match old.filter(|memory| memory.bytes() >= bytes) {
            Some(memory) => memory,
            None => DeviceBuffer::new(self.queue.device(), bytes, Commit::Lazy)?,
        };
        self.copied[argument] = Some(Copied { memory, positions: positions.to_vec() });
        Ok(())
    }

    /// Discards the device copy of an argument, so that its next use copies the elements again.
    pub fn forget(&mut self, argument: usize) {
        self.copied[argument] = None;
    }

    /// Copies bytes to the device copy of an argument, at `offset` bytes from its start.
    pub fn upload(&self, argument: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(copied) = &self.copied[argument] else {
            unreachable!(
                "the launch has allocated memory for \
                    copies"
            )
        };
        for (number, piece) in (0_u64..).zip(bytes.chunks(self.host.bytes())) {
            self.host.write(0, piece);
            let to = copied.memory.at(offset + number * self.host.bytes() as u64);
            let upload = Transfer::Upload { from: self.host.at(0), to, bytes: piece.len() as u64 };
            self.queue.device().wait(self.queue.submit(&[upload])?)?;
            self.counters.bytes_to_device.add(piece.len() as u64);
            self.counters.bytes_through_host.add(piece.len() as u64);
        }
        Ok(())
    }

    /// Copies elements of an argument directly to the device. Returns false if the devices have no link.
    fn fetch(&self, argument: usize, of: &dyn Broadcast) -> Result<bool> {
        let Some(copied) = &self.copied[argument] else {
            unreachable!(
                "the launch has allocated memory for \
                    copies"
            )
        };
        of.fetch_to(&copied.positions, self.queue.device(), copied.memory.at(0))
    }

    /// Copies the elements of an argument's device copy to a range of `target`, directly between devices.
    /// Returns false if the devices cannot access each other, or if there is no device copy.
    pub fn put(&self, argument: usize, target: &dyn ResultStore, range: &Range<usize>) -> Result<bool> {
        match &self.copied[argument] {
            Some(copied) => put_from(target, range, self.queue.device(), copied.memory.at(0)),
            None => Ok(false),
        }
    }

    /// Copies the first `bytes` bytes of an argument's device copy to host memory; zeros if there is no copy.
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

    /// Returns the device copy of an argument, and the positions of its elements. Without a copy, returns no
    /// elements, for a check of the kernel before the launch, or `None` if there is no such check.
    pub fn elements(&self, argument: usize, stride: u64) -> Option<(Elements<'_>, &[Range<isize>])> {
        let Some(Copied { memory, positions }) = &self.copied[argument] else {
            let memory = self.nothing.as_ref()?;
            return Some((Elements { start: memory.at(0), count: 0, stride }, &[]));
        };
        let count = count(positions) as u64;
        Some((Elements { start: memory.at(0), count, stride }, positions))
    }
}

/// Copies the elements that the work-items of a box read to all devices.
pub(super) fn copy_around(
    devices: &mut [DeviceCopies<'_>],
    arguments: &[BroadcastArgument<'_>],
    items: &[Range<isize>],
) -> Result<()> {
    for (number, argument) in arguments.iter().enumerate() {
        let stride = argument.of.stride();
        let positions = argument.of.shown(&argument.wanted(items));
        let is_there = |device: &DeviceCopies<'_>| {
            device.copied[number].as_ref().is_some_and(|copied| copied.positions == positions)
        };
        if argument.halo.is_none() && devices.iter().all(is_there) {
            continue;
        }
        for device in &mut *devices {
            device.make_room(number, &positions, stride)?;
        }
        let Some((rows, others)) = positions.split_first() else { continue };
        if argument.of.is_room() || count(&positions) == 0 {
            continue;
        }
        let mut is_past_host = true;
        for device in &*devices {
            is_past_host = is_past_host && device.fetch(number, &*argument.of)?;
        }
        if is_past_host {
            continue;
        }
        let row_bytes = count(others) * stride;
        let at_once = (STAGED_BYTES / row_bytes).max(1);
        for first in rows.clone().step_by(at_once) {
            let end = rows.end.min(first + at_once as isize);
            let of: SignedBox = std::iter::once(first..end).chain(others.iter().cloned()).collect();
            let mut bytes = zeroed_vec((end - first) as usize * row_bytes)?;
            argument.of.read_bytes(&of, &mut bytes)?;
            let offset = (first - rows.start) as u64 * row_bytes as u64;
            devices.iter().try_for_each(|device| device.upload(number, offset, &bytes))?;
        }
    }
    Ok(())
}
