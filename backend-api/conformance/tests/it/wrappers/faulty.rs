use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use backend_api::wrap::{Fault, Operation};
use backend_api::{
    Commit, Device, DeviceBuffer, ErrorKind, Fill, HostBuffer, HostMemory, Queue, QueueProgress, Result,
    Ticket, Transfer,
};
use backend_host::{HostDevice, SimulatedDevice};
use vmarray_conformance::reference::ReferenceDevice;
use vmarray_conformance::wrap::Faulty;

fn device() -> Arc<Faulty<ReferenceDevice>> {
    Arc::new(Faulty::new(ReferenceDevice::new(1 << 20)))
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn rules_strike_the_calls_that_they_name() {
    let device = device();
    let queue = Queue::new(&device).unwrap();
    let memory = DeviceBuffer::new(&device, 100, Commit::Lazy).unwrap();
    let outcomes = |fault: Fault| -> String {
        device.clear();
        device.inject(fault);
        (0..9).map(|_| if queue.submit(&[]).is_ok() { '.' } else { 'x' }).collect()
    };
    let rule = || Fault::new(Operation::Submit, ErrorKind::CopyFailed);
    assert_eq!(outcomes(rule().from_call(7)), "......xxx");
    assert_eq!(outcomes(rule().with_chance(0.0, 1)), ".........");
    assert_eq!(outcomes(rule().with_chance(1.0, 1)), "xxxxxxxxx");
    let some = outcomes(rule().with_chance(0.5, 1));
    assert!(some.contains('x') && some.contains('.'), "{some}");
    assert_eq!(outcomes(rule().with_chance(0.5, 1)), some);
    assert_ne!(outcomes(rule().with_chance(0.5, 2)), some);
    // The rule neither counts nor fails other operations, and ignores other queues.
    assert_eq!(outcomes(Fault::new(Operation::Fill, ErrorKind::KernelFailed)), ".........");
    let other = Queue::new(&device).unwrap();
    assert_eq!(outcomes(rule().in_queue(other.id())), ".........");
    assert_eq!(kind(other.submit(&[])), ErrorKind::CopyFailed);
    // Rules for all operations together.
    device.clear();
    device.inject(Fault::anywhere(ErrorKind::Driver).on_call(2));
    queue.submit(&[]).unwrap();
    let before = device.injected();
    assert_eq!(kind(queue.submit(&Fill { to: memory.at(0), bytes: 1, pattern: &[1] })), ErrorKind::Driver);
    assert_eq!(device.injected(), before + 1);
}

#[test]
fn every_operation_can_be_refused_and_leaves_no_trace() {
    let device = device();
    let queue = Queue::new(&device).unwrap();
    let memory = DeviceBuffer::new(&device, 100, Commit::Lazy).unwrap();
    let ticket = queue.submit(&[]).unwrap();
    device.inject(Fault::anywhere(ErrorKind::OutOfMemory).every(1));
    let error = device.allocate(77, Commit::Lazy).unwrap_err();
    assert_eq!((error.kind(), error.bytes()), (ErrorKind::OutOfMemory, Some(77)));
    assert!(error.available_bytes().is_some() && !error.device().is_empty());
    let mut own = [0_u8; 8];
    // SAFETY: the call fails, so the device does not know the memory.
    let imported = unsafe { device.import_host((&mut own[0]).into(), 8, HostMemory::Pageable) };
    let kinds = [
        kind(device.allocate_host(77, HostMemory::Pageable)),
        kind(imported),
        kind(device.create_queue()),
        kind(device.memory()),
        kind(queue.order_after(ticket)),
        kind(queue.submit(&[])),
        kind(queue.submit(&Fill { to: memory.at(0), bytes: 1, pattern: &[1] })),
    ];
    assert_eq!((kinds, device.injected()), ([ErrorKind::OutOfMemory; 7], 8));
    device.clear();
    assert_eq!(queue.submit(&[]).unwrap().value, ticket.value + 1);
    assert_eq!(device.memory().unwrap().free_bytes, (1 << 20) - 100);
}

#[test]
fn a_failure_reported_later_belongs_to_its_ticket_and_half_of_its_batch_is_done() {
    let device = device();
    let queue = Queue::new(&device).unwrap();
    let memory = DeviceBuffer::new(&device, 100, Commit::Lazy).unwrap();
    let host = HostBuffer::new(&device, 200, HostMemory::Pageable).unwrap();
    queue.submit(&Fill { to: memory.at(0), bytes: 100, pattern: &[1] }).unwrap();
    host.write(0, &[2; 100]);
    device.inject(Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1).reported_later());
    device.inject(Fault::new(Operation::Fill, ErrorKind::KernelFailed).on_call(1).reported_later());
    let up = |at| Transfer::Upload { from: host.at(at), to: memory.at(at), bytes: 50 };
    let copied = queue.submit(&[up(0), up(50)]).unwrap();
    let filled = queue.submit(&Fill { to: memory.at(0), bytes: 10, pattern: &[3] }).unwrap();
    let down = Transfer::Download { from: memory.at(0), to: host.at(100), bytes: 100 };
    let last = queue.submit(&[down]).unwrap();
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    device.wake(copied, woken.clone().into());
    for _ in 0..2 {
        assert_eq!(kind(device.wait(copied)), ErrorKind::CopyFailed);
        assert_eq!(kind(device.poll(copied)), ErrorKind::CopyFailed);
        assert_eq!(kind(device.poll(filled)), ErrorKind::KernelFailed);
        device.wait(last).unwrap();
    }
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    let mut found = [0; 100];
    host.read(100, &mut found);
    assert_eq!(found[..50], [2; 50]);
    assert_eq!(found[50..], [1; 50]);
    drop(queue);
    assert_eq!(device.poll(copied).unwrap(), QueueProgress::Done, "failures of an ended queue are forgotten");
}

#[test]
fn a_lost_device_fails_all_but_done_work() {
    let slow = SimulatedDevice::builder(1).bytes(1000).latency(Duration::from_secs(1)).jitter(0.0);
    let device = Arc::new(Faulty::new(slow.manual_wakes(true).build()));
    let queue = Queue::new(&device).unwrap();
    let tickets = [(); 5].map(|()| queue.submit(&[]).unwrap());
    let memory = DeviceBuffer::new(&device, 100, Commit::Lazy).unwrap();
    device.wait(tickets[1]).unwrap();
    assert_eq!(device.poll(tickets[2]).unwrap(), QueueProgress::Pending);
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    device.wake(tickets[4], woken.clone().into());
    assert_eq!(woken.0.load(Ordering::SeqCst), 0);

    device.lose();
    assert!(device.is_lost());
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "the waker of lost work runs");
    for ticket in &tickets[..2] {
        assert_eq!(device.poll(*ticket).unwrap(), QueueProgress::Done);
        device.wait(*ticket).unwrap();
    }
    for ticket in &tickets[2..] {
        assert_eq!(kind(device.poll(*ticket)), ErrorKind::Lost);
        assert_eq!(device.inner().poll(*ticket).unwrap(), QueueProgress::Done, "nothing of it is under way");
        assert_eq!(kind(device.wait(*ticket)), ErrorKind::Lost);
        device.wake(*ticket, woken.clone().into());
    }
    assert_eq!(woken.0.load(Ordering::SeqCst), 4);
    // The loss is permanent.
    device.inner().advance(Duration::from_secs(100));
    assert_eq!(woken.0.load(Ordering::SeqCst), 4, "a waker is woken once");
    assert_eq!(kind(device.poll(tickets[4])), ErrorKind::Lost);
    let never = Ticket { value: 6, ..tickets[0] };
    assert_eq!(kind(device.poll(never)), ErrorKind::UnknownHandle);
    assert_eq!(kind(queue.submit(&[])), ErrorKind::Lost);
    assert_eq!(kind(queue.order_after(tickets[0])), ErrorKind::Lost);
    assert_eq!(kind(device.create_queue()), ErrorKind::Lost);
    assert_eq!(kind(device.allocate(1, Commit::Lazy)), ErrorKind::Lost);
    assert_eq!(kind(device.memory()), ErrorKind::Lost);
    drop((memory, queue));
    assert_eq!(device.inner().memory().unwrap().free_bytes, 1000, "memory can be given back");
}

#[test]
fn a_loss_reaches_every_thread() {
    for after in [0, 1, 7, 40, 150] {
        let device = Arc::new(Faulty::new(HostDevice::new(1 << 20).unwrap()));
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        let asked = AtomicUsize::new(0);
        device.inject(Fault::anywhere(ErrorKind::Lost).on_call(20 + after));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // Runs until a call returns an error.
                    let work = || -> Result<()> {
                        let queue = Queue::new(&device)?;
                        let memory = DeviceBuffer::new(&device, 1000, Commit::Lazy)?;
                        loop {
                            let fill = Fill { to: memory.at(0), bytes: 1000, pattern: &[1] };
                            let tickets = [queue.submit(&fill)?, queue.submit(&[])?];
                            for ticket in tickets {
                                asked.fetch_add(1, Ordering::SeqCst);
                                device.wake(ticket, woken.clone().into());
                            }
                            device.poll(tickets[0])?;
                            device.wait(tickets[1])?;
                        }
                    };
                    assert_eq!(kind(work()), ErrorKind::Lost);
                });
            }
        });
        assert_eq!(device.injected(), 1);
        // All queues have ended, so every waker was called.
        assert_eq!(woken.0.load(Ordering::SeqCst), asked.load(Ordering::SeqCst));
    }
}

#[test]
fn a_rule_can_lose_the_device_at_once_or_with_the_call_in_flight() {
    for later in [false, true] {
        let device = device();
        let queue = Queue::new(&device).unwrap();
        let mut rule = Fault::new(Operation::Submit, ErrorKind::Lost).on_call(3);
        if later {
            rule = rule.reported_later();
        }
        device.inject(rule);
        let tickets = [queue.submit(&[]).unwrap(), queue.submit(&[]).unwrap()];
        match queue.submit(&[]) {
            Ok(ticket) if later => assert_eq!(kind(device.wait(ticket)), ErrorKind::Lost),
            other => assert_eq!((kind(other), later), (ErrorKind::Lost, false)),
        }
        for ticket in tickets {
            device.wait(ticket).unwrap();
        }
        device.clear();
        assert_eq!(kind(queue.submit(&[])), ErrorKind::Lost, "for good");
        assert_eq!(device.injected(), 1);
    }
}
