//! Staging of operands: before a kernel or an assignment writes a run (contiguous elements on a device),
//! copies the other operands to the same device. The copies are direct if the devices can access each other,
//! and otherwise go through the host.

use std::ops::Range;
use std::sync::Arc;

use backend_api::{Commit, Device, DeviceBuffer, Elements, Queue, Ticket, Transfer};
use parking_lot::Mutex;
use vmarray_support::links::is_same;

use super::change::Operand;
use super::fetch::{can_put_from, put_from};
use super::run::{Lane, Run};
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::stats::Counters;
use crate::engine::channel::PinnedPiece;

/// Elements of another store for one part of a change. If the change writes them, they are written back.
#[derive(Debug)]
pub(crate) struct ReadOperand<'a> {
    operand: Operand<'a>,
    /// The index of the operand among the columns (operands) of a run (contiguous elements on a device).
    pub column: usize,
    /// The index in the store of the element that belongs to the first element of the part.
    first: usize,
    pub stride: usize,
    len: usize,
    /// The elements in host memory, unless they were copied directly to the devices.
    bytes: Mutex<Vec<u8>>,
    /// The devices to which the elements were copied directly, with the memory of each copy.
    on_devices: Vec<OnDevice>,
}

/// A device, and an allocation of its memory.
type OnDevice = (Arc<dyn Device>, Arc<DeviceBuffer<dyn Device>>);

/// Staged elements of one run: their device memory, and the source of their copy.
pub(crate) struct StagedOperand {
    pub column: usize,
    memory: Arc<DeviceBuffer<dyn Device>>,
    /// The offset in bytes of the first element.
    offset: u64,
    from: StagedFrom,
    pub stride: u64,
    pub is_changed: bool,
}

enum StagedFrom {
    /// Host memory, to which changed elements are copied back.
    Host(PinnedPiece),
    /// A copy of the part's elements in device memory, and the index of its first element.
    Part(Arc<DeviceBuffer<dyn Device>>, usize),
    /// None: the elements are already on the device.
    There,
}

impl<'a> ReadOperand<'a> {
    /// Reads an operand's elements for `part` of a range into host memory, or copies them directly to
    /// `devices`. `first` is the start of the range, and `column` the operand's index among all operands.
    pub fn new(
        (column, operand): &(usize, Operand<'a>),
        part: &Range<usize>,
        first: usize,
        devices: &[Arc<dyn Device>],
    ) -> Result<Self> {
        let (stride, of) = (operand.stride(), part.start - first..part.end - first);
        let on_devices = fetched(operand, &of, devices)?;
        let mut bytes = Vec::new();
        if on_devices.is_empty() {
            bytes = zeroed_vec(part.len() * stride)?;
            operand.read_bytes(of, &mut bytes)?;
        }
        let (operand, bytes) = (operand.further(part.start - first), Mutex::new(bytes));
        let (first, len) = (part.start, part.len());
        Ok(Self { operand, column: *column, first, stride, len, bytes, on_devices })
    }

    /// Returns device memory for the operand's elements that correspond to a run (contiguous elements on a
    /// device): new memory, or the operand's copy on the run's device.
    pub fn stage(&self, lane: &dyn Lane, run: Run<'_>) -> Result<StagedOperand> {
        let (column, stride) = (self.column, self.stride as u64);
        let is_changed = self.is_changed();
        let own = self.on_devices.iter().find(|(device, _)| Arc::ptr_eq(device, lane.device()));
        let own = own.map(|(_, memory)| memory);
        if let (Some(part), Some((_, first, _))) = (own, run.parts().next()) {
            // If the run's indices are contiguous, its elements are contiguous in the operand's device copy,
            // too. The device then reads this copy directly.
            if run.parts().all(|(number, index, _)| index - number == first) {
                let (memory, offset) = (Arc::clone(part), (first - self.first) as u64 * stride);
                return Ok(StagedOperand {
                    column,
                    memory,
                    offset,
                    from: StagedFrom::There,
                    stride,
                    is_changed,
                });
            }
        }
        let bytes = run.count() * self.stride;
        let memory = Arc::new(DeviceBuffer::new(lane.device(), bytes as u64, Commit::Lazy)?);
        let from = match own {
            Some(part) => StagedFrom::Part(Arc::clone(part), self.first),
            None => {
                let host = lane.buffer(bytes)?;
                let all = self.bytes.lock();
                for (number, index, len) in run.parts() {
                    let from = (index - self.first) * self.stride;
                    host.write(number * self.stride, &all[from..from + len * self.stride]);
                }
                StagedFrom::Host(host)
            }
        };
        Ok(StagedOperand { column, memory, offset: 0, from, stride, is_changed })
    }

    /// Copies changed elements of a run (contiguous elements) from the page-locked copy `staged` to the
    /// operand's copy in RAM. Each part is (number in the run, index, length). No effect on device copies.
    pub fn unstage(&self, staged: &StagedOperand, parts: &[(usize, usize, usize)]) {
        let StagedFrom::Host(host) = &staged.from else { return };
        let mut all = self.bytes.lock();
        for (number, index, len) in parts {
            let to = (index - self.first) * self.stride;
            host.read(number * self.stride, &mut all[to..to + len * self.stride]);
        }
    }

    /// Returns true if the operation writes to the operand.
    pub fn is_changed(&self) -> bool {
        self.operand.target.is_some()
    }

    /// Writes changed elements back to the operand's store. Does nothing if the operand is only read.
    pub fn write_back(&self) -> Result<()> {
        let Some(target) = self.operand.target else { return Ok(()) };
        if let Some((device, memory)) = self.on_devices.first() {
            let range = self.operand.start..self.operand.start + self.len;
            if put_from(target, &range, device, memory.at(0))? {
                return Ok(());
            }
            let broken = backend_api::Error::new(backend_api::ErrorKind::Unsupported, "write");
            return Err(broken
                .with_detail("a link between devices broke during the launch; repeat the launch")
                .into());
        }
        target.write_bytes(self.operand.start, &self.bytes.lock())
    }
}

impl StagedOperand {
    /// Returns the elements in device memory that correspond to a run (contiguous elements on a device).
    pub fn elements(&self, run: Run<'_>) -> Elements<'_> {
        Elements { start: self.memory.at(self.offset), count: run.count() as u64, stride: self.stride }
    }

    /// After the device has finished, returns host memory, if any, to the channel `lane` (share of a device).
    pub fn end(self, lane: &dyn Lane) {
        if let StagedFrom::Host(host) = self.from {
            lane.keep(host);
        }
    }

    /// Submits the copy of the operand's elements for `run` to the device; `None` if they are already there.
    pub fn begin(
        &self,
        queue: &Queue<dyn Device>,
        run: Run<'_>,
        counters: &Counters,
    ) -> backend_api::Result<Option<Ticket>> {
        let (to, bytes) = (self.memory.at(self.offset), run.count() as u64 * self.stride);
        match &self.from {
            StagedFrom::There => Ok(None),
            StagedFrom::Host(host) => {
                let ticket = queue.submit(&[Transfer::Upload { from: host.at(0), to, bytes }])?;
                counters.bytes_to_device.add(bytes);
                counters.bytes_through_host.add(bytes);
                Ok(Some(ticket))
            }
            StagedFrom::Part(part, first) => {
                let copies = run.parts().map(|(number, index, len)| Transfer::Internal {
                    from: part.at((index - first) as u64 * self.stride),
                    to: to.plus(number as u64 * self.stride),
                    bytes: len as u64 * self.stride,
                });
                queue.submit(&copies.collect::<Vec<_>>()).map(Some)
            }
        }
    }

    /// Returns true if the device's changes must be copied back through host memory.
    pub fn comes_back(&self) -> bool {
        self.is_changed && matches!(self.from, StagedFrom::Host(_))
    }

    /// Submits the copy of changed elements (`bytes` bytes) from the device back to host memory.
    pub fn download(&self, queue: &Queue<dyn Device>, bytes: u64) -> backend_api::Result<Ticket> {
        let StagedFrom::Host(host) = &self.from else {
            unreachable!(
                "changed elements are staged from the \
                    host"
            )
        };
        queue.submit(&[Transfer::Download { from: self.memory.at(0), to: host.at(0), bytes }])
    }
}

/// Returns true if the device can copy changed elements directly back to their store. If there is one device,
/// all runs change the same copy, so its memory has all changes.
fn can_put_back(operand: &Operand<'_>, count: usize, devices: &[Arc<dyn Device>]) -> bool {
    let ([device], Some(target)) = (devices, operand.target) else { return false };
    target.devices().iter().all(|(own, _)| is_same(own, device)) && can_put_from(target, count, device)
}

/// Copies elements directly to each of several devices. Returns an empty list if one lacks a link or memory.
fn fetched(operand: &Operand<'_>, of: &Range<usize>, devices: &[Arc<dyn Device>]) -> Result<Vec<OnDevice>> {
    let mut all = Vec::new();
    if operand.store.devices().is_empty()
        || operand.target.is_some() && !can_put_back(operand, of.len(), devices)
    {
        return Ok(all);
    }
    let bytes = (of.len() * operand.stride()) as u64;
    for device in devices {
        let Ok(memory) = DeviceBuffer::new(device, bytes, Commit::Lazy) else { return Ok(Vec::new()) };
        if !operand.fetch_to(of, device, memory.at(0))? {
            return Ok(Vec::new());
        }
        all.push((Arc::clone(device), Arc::new(memory)));
    }
    Ok(all)
}
