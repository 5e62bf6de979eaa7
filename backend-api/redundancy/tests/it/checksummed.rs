use std::sync::Arc;

use backend_api::wrap::{Fault, Operation};
use backend_api::{
    Commit, Device, DeviceBuffer, DeviceSpan, Elements, ErrorKind, Fill, Gather, HostBuffer, HostMemory,
    LEFT_OUT, LaunchView, Queue, QueueProgress, Reach, Result, Scatter, Ticket, Transfer,
};
use backend_host::{HostDevice, SimulatedDevice};
use vmarray_conformance::wrap::Faulty;
use vmarray_redundancy::Checksummed;
use vmarray_support::links::reach;

const UNIT: usize = 64;
const UNITS: usize = 8;

type Inner = Faulty<HostDevice>;

pub fn checksummed<D: Device>(inner: Arc<D>) -> Arc<Checksummed<D>> {
    // SAFETY: all objects of the device are returned to it, and this thread polls it for the end of work.
    Arc::new(unsafe { Checksummed::new(inner, UNIT) })
}

/// Changes a byte of device memory, as no work of the device does.
fn flip<D: Device>(inner: &Arc<D>, at: DeviceSpan<'_>) {
    let (queue, host) =
        (Queue::new(inner).unwrap(), HostBuffer::new(inner, 1, HostMemory::Pageable).unwrap());
    host.write(0, &[0xA5]);
    let ticket = queue.submit(&[Transfer::Upload { from: host.at(0), to: at, bytes: 1 }]).unwrap();
    inner.wait(ticket).unwrap();
}

/// Eight units of device memory, as much host memory, a queue, and the inner device, which changes memory
/// unnoticed.
struct Scene<D: Device> {
    inner: Arc<D>,
    device: Arc<Checksummed<D>>,
    queue: Queue<Checksummed<D>>,
    memory: DeviceBuffer<Checksummed<D>>,
    host: HostBuffer<Checksummed<D>>,
}

impl Scene<Inner> {
    fn new() -> Self {
        Self::on(Faulty::new(HostDevice::new(1 << 20).unwrap()))
    }
}

impl<D: Device> Scene<D> {
    /// Fills unit `n` with bytes `n`, all with checksums.
    fn on(inner: D) -> Self {
        let inner = Arc::new(inner);
        let device = checksummed(Arc::clone(&inner));
        let queue = Queue::new(&device).unwrap();
        let memory = DeviceBuffer::new(&device, (UNITS * UNIT) as u64, Commit::Lazy).unwrap();
        let host = HostBuffer::new(&device, UNITS * UNIT, HostMemory::Pageable).unwrap();
        let scene = Self { inner, device, queue, memory, host };
        (0..UNITS).for_each(|unit| scene.host.write(unit * UNIT, &[unit as u8; UNIT]));
        scene.done(scene.up(0, UNITS));
        scene
    }

    fn at(&self, unit: usize) -> DeviceSpan<'_> {
        self.memory.at((unit * UNIT) as u64)
    }

    fn up(&self, unit: usize, units: usize) -> Ticket {
        let (from, to) = (self.host.at((unit * UNIT) as u64), self.at(unit));
        self.queue.submit(&[Transfer::Upload { from, to, bytes: (units * UNIT) as u64 }]).unwrap()
    }

    fn down(&self, unit: usize, units: usize) -> Ticket {
        let (from, to) = (self.at(unit), self.host.at((unit * UNIT) as u64));
        self.queue.submit(&[Transfer::Download { from, to, bytes: (units * UNIT) as u64 }]).unwrap()
    }

    fn done(&self, ticket: Ticket) {
        self.device.wait(ticket).unwrap();
    }

    fn flip(&self, unit: usize) {
        flip(&self.inner, self.at(unit).plus(17));
    }

    /// Returns the units with a wrong checksum, each read independently.
    fn wrong(&self) -> Vec<usize> {
        let is_wrong = |unit: &usize| match self.device.wait(self.down(*unit, 1)) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupted);
                assert_eq!(error.offset(), Some((unit * UNIT) as u64));
                assert!(error.device().contains(&self.inner.info().name));
                true
            }
        };
        (0..UNITS).filter(is_wrong).collect()
    }

    /// Runs `work`, and then flips a bit of each unit. Returns the units in which the device detects that:
    /// the units that still have a checksum.
    fn known_after(&self, work: impl FnOnce(&Self) -> Result<Ticket>) -> Vec<usize> {
        let ticket = work(self).unwrap();
        let _ = self.device.wait(ticket);
        (0..UNITS).for_each(|unit| self.flip(unit));
        let known = self.wrong();
        // A unit without a checksum now has one, computed from its changed contents.
        assert_eq!(self.wrong(), known);
        known
    }
}

#[test]
fn a_changed_byte_is_found_however_the_unit_is_copied() {
    let scene = Scene::new();
    assert_eq!(scene.wrong(), []);
    scene.flip(3);
    assert_eq!(scene.wrong(), [3]);
    let all = scene.down(0, UNITS);
    let later = scene.queue.submit(&[]).unwrap();
    // Only the failed ticket reports the failure, at each poll.
    assert!(scene.device.wait(later).is_ok());
    for _ in 0..2 {
        assert_eq!(scene.device.wait(all).unwrap_err().kind(), ErrorKind::Corrupted);
        assert_eq!(scene.device.poll(all).unwrap_err().offset(), Some(3 * UNIT as u64));
    }
    assert_eq!(scene.device.poll(later), Ok(QueueProgress::Done));
    // A copy of a part of a unit is not verified. After a write, the whole unit is valid.
    let part = Transfer::Download { from: scene.at(3).plus(1), to: scene.host.at(0), bytes: UNIT as u64 };
    scene.done(scene.queue.submit(&[part]).unwrap());
    scene.done(scene.up(3, 1));
    assert_eq!(scene.wrong(), []);
}

#[test]
fn device_writes_have_no_checksum_until_copied() {
    let but = |without: &[usize]| (0..UNITS).filter(|unit| !without.contains(unit)).collect::<Vec<_>>();
    let fill = |scene: &Scene<Inner>| {
        scene.queue.submit(&Fill { to: scene.at(2).plus(60), bytes: 8, pattern: &[9] })
    };
    assert_eq!(Scene::new().known_after(fill), but(&[2, 3]));
    let upload = |scene: &Scene<Inner>| {
        // The copy covers unit 1 and parts of its neighbours.
        let (from, to) = (scene.host.at(0), scene.at(0).plus(60));
        scene.queue.submit(&[Transfer::Upload { from, to, bytes: UNIT as u64 + 8 }])
    };
    assert_eq!(Scene::new().known_after(upload), but(&[0, 2]));
    let internal = |scene: &Scene<Inner>| {
        let from = scene.at(0).plus(1);
        scene.queue.submit(&[Transfer::Internal { from, to: scene.at(6), bytes: UNIT as u64 }])
    };
    assert_eq!(Scene::new().known_after(internal), but(&[6]));
    let nothing =
        |scene: &Scene<Inner>| scene.queue.submit(&Fill { to: scene.at(2).plus(5), bytes: 0, pattern: &[9] });
    assert_eq!(Scene::new().known_after(nothing), but(&[]));
    // A scatter invalidates exactly the units of its list: elements of 24 bytes, some of which span two
    // units.
    let scatter = |scene: &Scene<Inner>| {
        scene.host.write(0, [3, LEFT_OUT, 5, 20].map(u64::to_ne_bytes).as_flattened());
        let elements = Elements { start: scene.memory.at(0), count: 21, stride: 24 };
        let (indices, values) = (scene.host.at(0), scene.host.at(32));
        scene.queue.submit(&Scatter { elements: elements.into(), indices, count: 4, values })
    };
    assert_eq!(Scene::new().known_after(scatter), but(&[1, 2, 7]));
    // The same with interleaved pages.
    let striped = |scene: &Scene<Inner>| {
        scene.host.write(0, [10_u64, 25].map(u64::to_ne_bytes).as_flattened());
        let bases = [scene.at(0), scene.at(4)];
        let elements = LaunchView::Striped { bases: &bases, page_len: 8, count: 64, stride: 8 };
        let (indices, values) = (scene.host.at(0), scene.host.at(16));
        scene.queue.submit(&Scatter { elements, indices, count: 2, values })
    };
    assert_eq!(Scene::new().known_after(striped), but(&[4, 5]));
}

#[test]
fn a_list_that_is_yet_to_be_written_has_all_forgotten() {
    let scene = Scene::on(SimulatedDevice::builder(1).bytes(1 << 20).build());
    // An earlier kernel in the queue writes the list.
    scene.host.write(0, &7_u64.to_ne_bytes());
    scene.done(scene.up(0, 1));
    scene.host.write(0, &0_u64.to_ne_bytes());
    let bytes = UNIT as u64;
    let list = Transfer::Download { from: scene.at(0), to: scene.host.at(0), bytes };
    scene.queue.submit(&[list]).unwrap();
    let elements = Elements { start: scene.at(0), count: UNITS as u64, stride: bytes };
    let (indices, values) = (scene.host.at(0), scene.host.at(bytes));
    let scatter = Scatter { elements: elements.into(), indices, count: 1, values };
    scene.done(scene.queue.submit(&scatter).unwrap());
    assert_eq!(scene.wrong(), []);
}

#[test]
fn host_memory_may_be_used_again_by_later_work_of_the_queue() {
    let scene = Scene::on(SimulatedDevice::builder(2).bytes(1 << 20).build());
    let bytes = UNIT as u64;
    scene.host.write(0, &[99; UNIT]);
    // All copies go to one place, one after the other, without a wait between them.
    let down = |unit| Transfer::Download { from: scene.at(unit), to: scene.host.at(0), bytes };
    let all: Vec<Ticket> = (1..UNITS).map(|unit| scene.queue.submit(&[down(unit)]).unwrap()).collect();
    // This upload reads the same place. The contents of the place change before the upload runs.
    let up = Transfer::Upload { from: scene.host.at(0), to: scene.at(0), bytes };
    let up = scene.queue.submit(&[up]).unwrap();
    scene.done(up);
    all.into_iter().for_each(|ticket| scene.done(ticket));
    assert_eq!(scene.wrong(), []);
    scene.flip(0);
    assert_eq!(scene.wrong(), [0]);
    // A kernel that writes to this host memory has the same effect.
    scene.host.write(UNIT, &0_u64.to_ne_bytes());
    let elements = Elements { start: scene.at(5), count: 1, stride: bytes };
    let (values, indices) = (scene.host.at(0), scene.host.at(bytes));
    let down = scene.queue.submit(&[down(3)]).unwrap();
    let gather = scene.queue.submit(&Gather { elements: elements.into(), indices, count: 1, values });
    scene.done(gather.unwrap());
    scene.done(down);
}

#[test]
fn a_read_before_a_write_does_not_check_the_write() {
    for seed in 0..20 {
        let scene = Scene::on(SimulatedDevice::builder(seed).bytes(1 << 20).build());
        scene.queue.submit(&Fill { to: scene.at(2), bytes: UNIT as u64, pattern: &[9] }).unwrap();
        let down = scene.down(2, 1);
        scene.queue.submit(&Fill { to: scene.at(2), bytes: UNIT as u64, pattern: &[8] }).unwrap();
        scene.done(down);
        assert_eq!(scene.wrong(), []);
        scene.flip(2);
        assert_eq!(scene.wrong(), [2]);
    }
}

#[test]
fn checksums_go_with_copies_of_whole_units() {
    let scene = Scene::new();
    scene.queue.submit(&Fill { to: scene.at(1), bytes: 1, pattern: &[9] }).unwrap();
    scene.flip(2);
    // The copy covers units 0 to 2 and a part of unit 3. One of these units has no checksum, and one has a
    // wrong byte.
    let bytes = 3 * UNIT as u64 + 5;
    let copy = Transfer::Internal { from: scene.at(0), to: scene.at(4), bytes };
    scene.done(scene.queue.submit(&[copy]).unwrap());
    scene.flip(4);
    scene.flip(5);
    scene.flip(7);
    assert_eq!(scene.wrong(), [2, 4, 6]);
    // After a failed copy, the checksum is unknown.
    let fault = Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1).reported_later();
    scene.inner.inject(fault);
    let copy = Transfer::Internal { from: scene.at(0), to: scene.at(4), bytes: UNIT as u64 };
    assert!(scene.device.wait(scene.queue.submit(&[copy]).unwrap()).is_err());
    assert_eq!(scene.wrong(), [2, 6]);
}

/// One copy of a batch has an error; the others are still verified.
#[test]
fn all_of_a_batch_is_compared() {
    let scene = Scene::new();
    scene.queue.submit(&Fill { to: scene.at(5), bytes: UNIT as u64, pattern: &[9] }).unwrap();
    scene.flip(1);
    assert!(scene.device.wait(scene.down(0, UNITS)).is_err());
    // This copy gives unit 5 a checksum.
    scene.flip(5);
    assert_eq!(scene.wrong(), [1, 5]);
}

#[test]
fn checksums_are_compared_before_a_batch_is_reported_done() {
    for is_by_other_queues in [false, true] {
        let scene = Scene::on(SimulatedDevice::builder(3).bytes(1 << 20).build());
        scene.queue.submit(&Fill { to: scene.at(1), bytes: UNIT as u64, pattern: &[9] }).unwrap();
        let down = scene.down(0, 2);
        let (other, third) = (Queue::new(&scene.device).unwrap(), Queue::new(&scene.device).unwrap());
        let later = if is_by_other_queues {
            other.order_after(down).unwrap();
            third.order_after(other.submit(&[]).unwrap()).unwrap();
            third.submit(&[])
        } else {
            scene.queue.submit(&[])
        };
        scene.done(later.unwrap());
        // The program knows now that the copy is over, and reuses its host memory.
        scene.host.write(0, &[77; 2 * UNIT]);
        scene.done(down);
        // The checksum of unit 1 must come from the copied data, not from the reused memory.
        assert_eq!(scene.wrong(), []);
        scene.flip(1);
        assert_eq!(scene.wrong(), [1]);
    }
}

#[test]
fn memory_may_go_before_anybody_asks() {
    let scene = Scene::new();
    let (flipped, sound) = (scene.down(0, 1), scene.down(1, 2));
    scene.flip(4);
    let wrong = scene.down(4, 1);
    let Scene { device, queue, memory, host, .. } = scene;
    drop(host);
    drop(memory);
    assert!(device.poll(flipped).is_ok() && device.poll(sound).is_ok());
    assert_eq!(device.poll(wrong).unwrap_err().kind(), ErrorKind::Corrupted);
    drop(queue);
    // The failure is forgotten, because the queue of the ticket has ended.
    assert_eq!(device.poll(wrong), Ok(QueueProgress::Done));
}

#[test]
fn after_a_failed_copy_nothing_is_known() {
    for later in [false, true] {
        let scene = Scene::new();
        (0..UNITS).for_each(|unit| scene.host.write(unit * UNIT, &[unit as u8 + 100; UNIT]));
        let fault = Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1);
        scene.inner.inject(if later { fault.reported_later() } else { fault });
        let (from, to) = (scene.host.at(0), scene.at(0));
        let copies = [0, 4 * UNIT as u64].map(|at| Transfer::Upload {
            from: from.plus(at),
            to: to.plus(at),
            bytes: 4 * UNIT as u64,
        });
        let failed = scene.queue.submit(&copies).and_then(|ticket| scene.device.wait(ticket));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::CopyFailed);
        assert_eq!(scene.wrong(), [], "the half that was carried out, and the one that was not");
        scene.done(scene.up(0, UNITS));
        scene.flip(6);
        assert_eq!(scene.wrong(), [6]);
    }
}

#[test]
fn memory_that_grows_has_checksums_all_along() {
    let inner = Arc::new(HostDevice::new(1 << 20).unwrap());
    let device = checksummed(Arc::clone(&inner));
    let queue = Queue::new(&device).unwrap();
    // The memory ends within a unit.
    let memory = DeviceBuffer::extensible(&device, 100, 1000, Commit::Lazy).unwrap();
    let host = HostBuffer::new(&device, 1000, HostMemory::Pageable).unwrap();
    let copy = |bytes| queue.submit(&[Transfer::Upload { from: host.at(0), to: memory.at(0), bytes }]);
    device.wait(copy(100).unwrap()).unwrap();
    memory.extend(1000, Commit::Lazy).unwrap();
    device.wait(copy(1000).unwrap()).unwrap();
    let down =
        |bytes| queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(0), bytes }]).unwrap();
    device.wait(down(1000)).unwrap();
    assert_eq!(memory.extend(2000, Commit::Lazy).unwrap_err().kind(), ErrorKind::TooLarge);
    device.wait(down(1000)).unwrap();
    for unit in [1, 14] {
        let at = unit * UNIT as u64;
        flip(&inner, memory.at(at));
        assert_eq!(device.wait(down(1000)).unwrap_err().offset(), Some(at));
        device
            .wait(
                queue.submit(&[Transfer::Upload { from: host.at(0), to: memory.at(at), bytes: 64 }]).unwrap(),
            )
            .unwrap();
    }
    // The end is not at a unit boundary.
    flip(&inner, memory.at(999));
    device.wait(down(1000)).unwrap();
}

#[test]
fn writes_of_other_devices_are_known() {
    let scene = Scene::new();
    // Another checking device reaches the memory, and uses units of another length. SAFETY: as above.
    let other = Arc::new(unsafe { Checksummed::new(Arc::new(HostDevice::new(1 << 20).unwrap()), 100) });
    assert_eq!(other.reaches(scene.device.info()), Reach::Maps);
    let queue = Queue::new(&other).unwrap();
    let own = DeviceBuffer::new(&other, 100, Commit::Lazy).unwrap();
    queue.submit(&Fill { to: own.at(0), bytes: 100, pattern: &[200] }).unwrap();
    let copy = Transfer::Internal { from: own.at(0), to: scene.at(2), bytes: 100 };
    other.wait(queue.submit(&[copy]).unwrap()).unwrap();
    assert_eq!(scene.wrong(), []);
    scene.flip(1);
    scene.flip(3);
    assert_eq!(scene.wrong(), [1, 3]);
}

#[test]
fn links_from_and_to_devices_without_checksums_are_tried() {
    let plain: Arc<dyn Device> = Arc::new(HostDevice::new(4 << 20).unwrap());
    let other: Arc<dyn Device> = checksummed(Arc::new(HostDevice::new(4 << 20).unwrap()));
    for (from, to) in [(&plain, &other), (&other, &plain)] {
        assert_eq!(reach(from, to, |_, _, error| panic!("{error:?}")), Reach::Maps);
    }
}

#[test]
fn threads_that_ask_for_one_ticket_get_one_answer() {
    for seed in 0..20 {
        let scene = Scene::on(SimulatedDevice::builder(seed).bytes(1 << 20).build());
        scene.flip(2);
        let tickets = [scene.down(0, 2), scene.down(2, 2), scene.down(4, 4)];
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (scene, tickets) = (&scene, &tickets);
                scope.spawn(move || {
                    for number in 0..3 {
                        let number = (number + thread) % 3;
                        let outcome = scene.device.wait(tickets[number]);
                        assert_eq!(outcome.is_err(), number == 1, "seed {seed}");
                    }
                });
            }
        });
    }
}
