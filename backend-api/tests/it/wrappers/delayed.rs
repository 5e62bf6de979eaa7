use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use backend_api::conformance::reference::ReferenceDevice;
use backend_api::wrap::{Delayed, Engines, Fault, Faulty, Operation, Speed};
use backend_api::{
    Commit, Device, DeviceBuffer, Elements, ErrorKind, Fill, Gather, HostBuffer, HostMemory, Progress, Queue,
    Scatter, Search, Ticket, Transfer,
};

/// A byte a nanosecond to the device, half of that from it, a tenth of a nanosecond within.
const SPEED: Speed = Speed {
    latency: Duration::from_nanos(100),
    piece_latency: Duration::from_nanos(10),
    upload_bytes_per_second: 1_000_000_000,
    download_bytes_per_second: 500_000_000,
    internal_bytes_per_second: 10_000_000_000,
    ..Speed::INSTANT
};

struct Rig {
    device: Arc<Delayed<ReferenceDevice>>,
    memory: DeviceBuffer<Delayed<ReferenceDevice>>,
    host: HostBuffer<Delayed<ReferenceDevice>>,
}

fn rig(speed: Speed) -> Rig {
    let device = Arc::new(Delayed::new(ReferenceDevice::new(1 << 20), speed));
    let memory = DeviceBuffer::new(&device, 100_000, Commit::Lazy).unwrap();
    let host = HostBuffer::new(&device, 100_000, HostMemory::Pageable).unwrap();
    Rig { device, memory, host }
}

impl Rig {
    fn queue(&self) -> Queue<Delayed<ReferenceDevice>> {
        Queue::new(&self.device).unwrap()
    }
    fn up(&self, bytes: u64) -> Transfer<'_> {
        Transfer::Upload { from: self.host.at(0), to: self.memory.at(0), bytes }
    }
    fn down(&self, bytes: u64) -> Transfer<'_> {
        Transfer::Download { from: self.memory.at(0), to: self.host.at(0), bytes }
    }
    fn nanos(&self) -> u128 {
        self.device.now().as_nanos()
    }
    fn span(&self, ticket: Ticket) -> (u128, u128) {
        let span = self.device.span(ticket).unwrap();
        (span.start.as_nanos(), span.end.as_nanos())
    }
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn work_takes_what_its_latency_pieces_and_bytes_take() {
    let rig = rig(SPEED);
    let queue = rig.queue();
    let elements = Elements { start: rig.memory.at(0), count: 100, stride: 10 };
    rig.host.write(0, &[0; 16]);
    let search =
        Search { elements, field_offset: 0, value: &[1], limit: 0, count_all: true, answer: rig.host.at(0) };
    let (indices, values) = (rig.host.at(0), rig.host.at(100));
    let tickets = [
        queue.submit(&[rig.up(1000)]).unwrap(),
        queue.submit(&[rig.down(1000)]).unwrap(),
        queue.submit(&[rig.up(10), rig.up(0), rig.up(20)]).unwrap(),
        queue.submit(&[]).unwrap(),
        queue.fill(&Fill { to: rig.memory.at(0), bytes: 5000, pattern: &[1] }).unwrap(),
        queue.search(&search).unwrap(),
        queue.gather(&Gather { elements, indices, count: 1, values }).unwrap(),
        queue.scatter(&Scatter { elements, indices, count: 2, values }).unwrap(),
    ];
    assert_eq!(rig.nanos(), 0, "nobody has waited yet");
    let mut end = 0;
    let expected = [1110, 2110, 160, 100, 610, 210, 130, 130];
    for (ticket, takes) in tickets.into_iter().zip(expected) {
        assert_eq!(rig.span(ticket), (end, end + takes));
        end += takes;
    }
    rig.device.wait(tickets[1]).unwrap();
    assert_eq!(rig.nanos(), 3220);
    rig.device.wait(tickets[0]).unwrap();
    assert_eq!(rig.nanos(), 3220, "the clock never goes back");
    assert_eq!(rig.device.busy(queue.id()).as_nanos(), end);
    drop(queue);
    assert_eq!(rig.nanos(), end, "ending a queue waits for its work");
    assert_eq!(rig.device.span(Ticket { value: 9, ..tickets[0] }), None);
    assert_eq!(rig.span(tickets[7]).1, end, "tickets of ended queues are remembered");
}

#[test]
fn queues_overlap_unless_they_share_an_engine_or_are_ordered() {
    for engines in [Engines::PerQueue, Engines::PerDirection] {
        let rig = rig(Speed { engines, latency: Duration::ZERO, piece_latency: Duration::ZERO, ..SPEED });
        let (a, b, c) = (rig.queue(), rig.queue(), rig.queue());
        let (one, other) = (a.submit(&[rig.up(1000)]).unwrap(), b.submit(&[rig.up(500)]).unwrap());
        let down = c.submit(&[rig.down(600)]).unwrap();
        let spans = [one, other, down].map(|ticket| rig.device.span(ticket).unwrap());
        assert!(spans[2].overlaps(&spans[0]));
        assert_eq!(spans[0].overlaps(&spans[1]), engines == Engines::PerQueue);
        let shared = engines == Engines::PerDirection;
        assert_eq!(rig.span(other), if shared { (1000, 1500) } else { (0, 500) });
        assert_eq!(rig.span(down), (0, 1200));
        c.order_after(one).unwrap();
        let after = c.submit(&[rig.down(10)]).unwrap();
        assert_eq!(rig.span(after), (1200, 1220), "what is over already delays nobody");
        b.order_after(down).unwrap();
        b.order_after(one).unwrap();
        let after = b.submit(&[rig.up(10)]).unwrap();
        assert_eq!(rig.span(after).0, if shared { 1500 } else { 1200 });
        for ticket in [one, other, down] {
            rig.device.wait(ticket).unwrap();
        }
        assert_eq!(rig.nanos(), if shared { 1500 } else { 1200 });
    }
}

#[test]
fn work_starts_no_earlier_than_it_is_submitted() {
    let rig = rig(Speed { call: Duration::from_nanos(7), ..SPEED });
    let queue = rig.queue();
    rig.device.advance(Duration::from_nanos(50));
    let first = queue.submit(&[]).unwrap();
    assert_eq!(rig.span(first), (57, 157));
    let second = queue.submit(&[]).unwrap();
    assert_eq!(rig.span(second), (157, 257));
    assert_eq!(rig.nanos(), 64, "the calls themselves");
    queue.submit(&[rig.up(1 << 40)]).unwrap_err();
    assert_eq!(rig.nanos(), 64, "what is refused takes no time");
    assert_eq!(rig.device.busy(queue.id()).as_nanos(), 200);
}

#[test]
fn polls_follow_the_virtual_clock() {
    let rig = rig(Speed { poll: Duration::from_nanos(40), ..SPEED });
    let queue = rig.queue();
    let ticket = queue.submit(&[]).unwrap();
    assert_eq!(rig.device.poll(ticket).unwrap(), Progress::Pending);
    assert_eq!(rig.device.poll(ticket).unwrap(), Progress::Pending);
    assert_eq!(rig.device.poll(ticket).unwrap(), Progress::Done, "after 120 of 100 ns");
    assert_eq!(rig.nanos(), 120);
}

#[test]
fn giving_memory_back_waits_for_the_work_that_touches_it() {
    let rig = rig(SPEED);
    let (queue, other) = (rig.queue(), DeviceBuffer::new(&rig.device, 100, Commit::Lazy).unwrap());
    let host = HostBuffer::new(&rig.device, 100, HostMemory::Pageable).unwrap();
    queue.submit(&[Transfer::Upload { from: host.at(0), to: rig.memory.at(0), bytes: 90 }]).unwrap();
    queue.fill(&Fill { to: other.at(0), bytes: 100, pattern: &[1] }).unwrap();
    queue.submit(&[rig.up(1000)]).unwrap();
    assert_eq!(rig.nanos(), 0);
    drop(host);
    assert_eq!(rig.nanos(), 200);
    drop(other);
    assert_eq!(rig.nanos(), 320);
}

#[test]
fn held_wakers_come_when_their_time_has_come() {
    let rig = rig(SPEED);
    let queues = [rig.queue(), rig.queue(), rig.queue()];
    rig.device.hold_wakers(true);
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    for (i, queue) in queues.iter().enumerate() {
        let ticket = queue.submit(&[rig.up(1000 * (3 - i as u64))]).unwrap();
        rig.device.wake(ticket, woken.clone().into());
    }
    assert_eq!((rig.nanos(), woken.0.load(Ordering::SeqCst)), (0, 0));
    for (n, end) in [1110, 2110, 3110].into_iter().enumerate() {
        assert_eq!(rig.device.advance_to_next(), Some(Duration::from_nanos(end)));
        assert_eq!(woken.0.load(Ordering::SeqCst), n + 1);
    }
    assert_eq!(rig.device.advance_to_next(), None);
    rig.device.hold_wakers(false);
    let ticket = queues[0].submit(&[]).unwrap();
    rig.device.wake(ticket, woken.clone().into());
    assert_eq!(
        (rig.nanos(), woken.0.load(Ordering::SeqCst)),
        (3210, 4),
        "wakers that are not held count as waits"
    );
}

#[test]
fn failures_come_in_virtual_time_and_loss_at_once() {
    let device = Arc::new(Delayed::new(Faulty::new(ReferenceDevice::new(1000)), SPEED));
    let queue = Queue::new(&device).unwrap();
    device.inner().inject(Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1).reported_later());
    device.inner().inject(Fault::new(Operation::Submit, ErrorKind::Lost).on_call(3).reported_later());
    let failed = queue.submit(&[]).unwrap();
    assert_eq!(device.poll(failed).unwrap(), Progress::Pending);
    assert_eq!(device.wait(failed).unwrap_err().kind(), ErrorKind::CopyFailed);
    assert_eq!(device.now(), Duration::from_nanos(100));
    queue.submit(&[]).unwrap();
    let lost = queue.submit(&[]).unwrap();
    assert_eq!(device.poll(lost).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(device.wait(lost).unwrap_err().kind(), ErrorKind::Lost);
    assert!(device.now() < Duration::from_nanos(200));
}
