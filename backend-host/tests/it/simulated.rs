//! Tests of the settings of the simulated device, and their effects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use backend_api::waker;
use backend_api::wrap::Fault;
use backend_api::{
    Commit, Device, DeviceBuffer, Error, ErrorKind, Fill, HostBuffer, HostMemory, Queue, QueueProgress,
    Ticket, Transfer,
};
use backend_host::{SimulatedDevice, SimulatedDeviceBuilder};

const MICROSECOND: Duration = Duration::from_micros(1);
const PAGE: u64 = 1_000;

struct Rig {
    device: Arc<SimulatedDevice>,
    queues: Vec<Queue<SimulatedDevice>>,
    memory: DeviceBuffer<SimulatedDevice>,
    host: HostBuffer<SimulatedDevice>,
}

impl Rig {
    fn new(builder: SimulatedDeviceBuilder, queues: usize) -> Self {
        let device = Arc::new(builder.trace(true).build());
        Self {
            queues: (0..queues).map(|_| Queue::new(&device).unwrap()).collect(),
            memory: DeviceBuffer::new(&device, 100 * PAGE, Commit::Lazy).unwrap(),
            host: HostBuffer::new(&device, 100 * PAGE as usize, HostMemory::Pageable).unwrap(),
            device,
        }
    }

    fn upload(&self, page: u64) -> Transfer<'_> {
        Transfer::Upload { from: self.host.at(page * PAGE), to: self.memory.at(page * PAGE), bytes: PAGE }
    }

    fn download(&self, page: u64) -> Transfer<'_> {
        Transfer::Download { from: self.memory.at(page * PAGE), to: self.host.at(page * PAGE), bytes: PAGE }
    }

    fn page(&self, page: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE as usize];
        self.host.read((page * PAGE) as usize, &mut bytes);
        bytes
    }

    fn fill(&self, queue: usize, page: u64, byte: u8) -> Ticket {
        let fill = Fill { to: self.memory.at(page * PAGE), bytes: PAGE, pattern: &[byte] };
        self.queues[queue].submit(&fill).unwrap()
    }
}

/// One microsecond for each submission and for each page.
fn exact() -> SimulatedDeviceBuilder {
    SimulatedDevice::builder(1).latency(MICROSECOND).jitter(0.0).bandwidth(1_000_000_000)
}

/// A rule that fails the submission of this number at its end.
fn fails(number: u64) -> Fault {
    Fault::anywhere(ErrorKind::CopyFailed).on_call(number).reported_later()
}

#[test]
fn a_batch_costs_one_latency_and_single_copies_one_each() {
    let rig = Rig::new(exact(), 1);
    let batch: Vec<_> = (0..10).map(|page| rig.upload(page)).collect();
    rig.device.wait(rig.queues[0].submit(&batch).unwrap()).unwrap();
    assert_eq!(rig.device.now(), 11 * MICROSECOND);
    let mut last = None;
    for copy in &batch {
        last = Some(rig.queues[0].submit(std::slice::from_ref(copy)).unwrap());
    }
    rig.device.wait(last.unwrap()).unwrap();
    assert_eq!(rig.device.now(), (11 + 20) * MICROSECOND);
}

#[test]
fn a_wait_for_done_work_ignores_later_work() {
    let rig = Rig::new(exact(), 2);
    let submit = |queue: usize| rig.queues[queue].submit(&[]).unwrap();
    let first = submit(0);
    rig.device.wait(first).unwrap();
    submit(0);
    rig.device.wait(first).unwrap();
    assert_eq!(rig.device.now(), MICROSECOND);
    rig.device.advance(MICROSECOND / 2);
    rig.queues[1].order_after(first).unwrap();
    rig.device.wait(submit(1)).unwrap();
    assert_eq!(rig.device.now(), 5 * MICROSECOND / 2);
}

#[test]
fn queues_share_a_link_and_spend_their_latencies_together() {
    let rig = Rig::new(exact(), 4);
    let up: Vec<_> = (0..3).map(|i| rig.queues[i as usize].submit(&[rig.upload(i)]).unwrap()).collect();
    let down = rig.queues[3].submit(&[rig.download(50)]).unwrap();
    rig.device.wait(down).unwrap();
    assert_eq!(rig.device.now(), 2 * MICROSECOND);
    up.into_iter().for_each(|ticket| rig.device.wait(ticket).unwrap());
    assert_eq!(rig.device.now(), 4 * MICROSECOND);
    let trace = rig.device.trace();
    assert_eq!(trace.iter().map(|done| done.upload_bytes).sum::<u64>(), 3 * PAGE);
    assert_eq!(trace.iter().map(|done| done.download_bytes).sum::<u64>(), PAGE);
    assert!(trace.iter().all(|done| done.started == Duration::ZERO && done.failure.is_none()));
}

#[test]
fn time_stands_still_without_polls() {
    let rig = Rig::new(exact().poll_step(MICROSECOND / 10), 1);
    let ticket = rig.queues[0].submit(&[rig.upload(0)]).unwrap();
    assert_eq!(rig.device.now(), Duration::ZERO);
    let mut polls = 0;
    while rig.device.poll(ticket).unwrap() == QueueProgress::Pending {
        polls += 1;
    }
    assert_eq!((polls, rig.device.now()), (19, 2 * MICROSECOND));
    assert_eq!(rig.device.poll(ticket).unwrap(), QueueProgress::Done);
    assert_eq!(rig.device.now(), 2 * MICROSECOND);
}

#[test]
fn effects_come_when_the_time_has_come_and_all_at_once() {
    let rig = Rig::new(exact(), 1);
    rig.device.wait(rig.fill(0, 0, 7)).unwrap();
    let started = rig.device.now();
    let ticket = rig.queues[0].submit(&[rig.download(0)]).unwrap();
    rig.device.advance(2 * MICROSECOND - Duration::from_nanos(1));
    assert_eq!(rig.page(0), [0; PAGE as usize]);
    rig.device.advance(Duration::from_nanos(1));
    assert_eq!(rig.page(0), [7; PAGE as usize]);
    assert_eq!(rig.device.poll(ticket).unwrap(), QueueProgress::Done);
    assert_eq!(rig.device.now() - started, 2 * MICROSECOND);
    // The simulated copy reads its source when the copy ends.
    rig.host.write(0, &[1; PAGE as usize]);
    rig.queues[0].submit(&[rig.upload(0)]).unwrap();
    rig.host.write(0, &[2; PAGE as usize]);
    rig.device.wait(rig.queues[0].submit(&[rig.download(0)]).unwrap()).unwrap();
    assert_eq!(rig.page(0), [2; PAGE as usize]);
}

#[test]
fn new_device_memory_holds_garbage() {
    let rig = Rig::new(exact(), 1);
    rig.device.wait(rig.queues[0].submit(&[rig.download(0)]).unwrap()).unwrap();
    assert!(rig.page(0).iter().any(|&byte| byte != rig.page(0)[0]));
}

#[test]
fn one_seed_is_one_history() {
    let history = |seed| {
        let builder = SimulatedDevice::builder(seed)
            .fault(Fault::anywhere(ErrorKind::CopyFailed).with_chance(0.1, 1).reported_later())
            .fault(Fault::anywhere(ErrorKind::Driver).with_chance(0.1, 2))
            .fault(Fault::anywhere(ErrorKind::Lost).with_chance(0.01, 3).reported_later());
        let rig = Rig::new(builder, 3);
        let mut outcomes = Vec::new();
        for step in 0..60 {
            let queue = &rig.queues[step % 3];
            let copy = if step % 2 == 0 { rig.upload(step as u64) } else { rig.download(step as u64) };
            outcomes.push(queue.submit(&[copy]).map(|ticket| ticket.value).map_err(|error| error.kind()));
            rig.device.advance(3 * MICROSECOND);
        }
        rig.device.run();
        let mut bytes = vec![0; 100 * PAGE as usize];
        rig.host.read(0, &mut bytes);
        let times: Vec<_> = rig.device.trace().iter().map(|done| (done.finished, done.failure)).collect();
        (outcomes, bytes, times, rig.device.now())
    };
    assert!(history(5) == history(5));
    assert!(history(5) != history(6));
}

#[test]
fn queues_overtake_each_other_and_work_of_one_queue_does_not() {
    let mut overtaken = 0;
    for seed in 0..20 {
        let rig = Rig::new(SimulatedDevice::builder(seed), 2);
        for page in 0..10 {
            rig.queues[page as usize % 2].submit(&[rig.upload(page)]).unwrap();
        }
        rig.device.run();
        let trace = rig.device.trace();
        for queue in &rig.queues {
            let values: Vec<_> = trace
                .iter()
                .filter(|done| done.ticket.queue == queue.id())
                .map(|done| done.ticket.value)
                .collect();
            assert_eq!(values, [1, 2, 3, 4, 5]);
        }
        overtaken += usize::from(!trace.iter().map(|done| done.ticket.queue).is_sorted_by(|a, b| a != b));
    }
    assert!(overtaken > 10, "only {overtaken} of 20 seeds reorder");
}

#[test]
fn a_failure_leaves_its_target_in_some_state_and_all_else_alone() {
    let (mut untouched, mut whole, mut mixed) = (0, 0, 0);
    for seed in 0..60 {
        let rig = Rig::new(SimulatedDevice::builder(seed).fault(fails(2)), 1);
        rig.device.wait(rig.fill(0, 0, 7)).unwrap();
        let failed = rig.queues[0].submit(&[rig.download(0)]).unwrap();
        let later = rig.queues[0].submit(&[rig.download(1)]).unwrap();
        rig.device.wait(later).unwrap();
        for _ in 0..2 {
            assert_eq!(rig.device.wait(failed).unwrap_err().kind(), ErrorKind::CopyFailed);
        }
        match rig.page(0) {
            page if page.iter().all(|&byte| byte == 0) => untouched += 1,
            page if page.iter().all(|&byte| byte == 7) => whole += 1,
            _ => mixed += 1,
        }
        assert_eq!(rig.page(2), [0; PAGE as usize]);
        assert_eq!(rig.device.trace()[1].failure, Some(ErrorKind::CopyFailed));
    }
    assert!(untouched > 0 && mixed > 0, "untouched {untouched}, whole {whole}, mixed {mixed}");
}

#[test]
fn a_refused_call_gives_no_ticket_and_the_queue_goes_on() {
    let rig = Rig::new(exact().fault(Fault::anywhere(ErrorKind::Driver).on_call(2)), 1);
    let first = rig.fill(0, 0, 1);
    let error = rig.queues[0].submit(&[rig.upload(3)]).unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Driver, "submit"));
    let next = rig.fill(0, 0, 2);
    assert_eq!(next.value, first.value + 1);
    rig.device.wait(next).unwrap();
    assert_eq!(rig.device.submissions(), 3);
}

#[test]
fn a_lost_device_says_so_everywhere_and_gives_memory_back() {
    for (at, in_flight) in [(1, true), (3, false)] {
        let rig = Rig::new(exact().fault(Fault::anywhere(ErrorKind::Lost).on_call(at).reported_later()), 2);
        let Rig { device, queues, memory, host } = &rig;
        let done = rig.fill(0, 0, 1);
        let pending = rig.fill(1, 1, 1);
        if !in_flight {
            device.run();
            device.wait(done).unwrap();
        }
        let trigger = if in_flight { done } else { rig.fill(0, 0, 2) };
        assert_eq!(device.wait(trigger).unwrap_err().kind(), ErrorKind::Lost);
        if in_flight {
            assert_eq!(device.poll(pending).unwrap_err().kind(), ErrorKind::Lost);
        } else {
            device.wait(pending).unwrap();
        }
        let refusals: [Option<Error>; 8] = [
            device.create_queue().err(),
            device.memory().err(),
            device.allocate(1, Commit::Lazy).err(),
            device.allocate_host(1, HostMemory::Pageable).err(),
            queues[0].submit(&[]).err(),
            queues[1].submit(&[rig.upload(0)]).err(),
            queues[0].submit(&Fill { to: memory.at(0), bytes: 1, pattern: b"x" }).err(),
            queues[0].order_after(done).err(),
        ];
        for refusal in refusals {
            assert_eq!(refusal.unwrap().kind(), ErrorKind::Lost);
        }
        host.write(0, b"still there");
        let newest = Ticket { queue: queues[0].id(), value: trigger.value };
        drop(rig.queues);
        assert_eq!(rig.device.poll(newest).unwrap(), QueueProgress::Done);
    }
}

#[test]
fn a_waker_lets_time_pass_by_default() {
    for manual in [false, true] {
        let rig = Rig::new(exact().manual_wakes(manual), 1);
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let waker = waker(move || _ = counted.fetch_add(1, Ordering::SeqCst));
        let ticket = rig.fill(0, 0, 1);
        rig.device.wake(ticket, waker.clone());
        assert_eq!(count.load(Ordering::SeqCst), usize::from(!manual));
        rig.device.advance(MICROSECOND);
        assert_eq!(count.load(Ordering::SeqCst), usize::from(!manual));
        rig.device.advance(MICROSECOND);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        rig.device.wake(ticket, waker);
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn releasing_memory_finishes_the_work_that_touches_it_and_no_more() {
    let rig = Rig::new(exact(), 2);
    let other = DeviceBuffer::new(&rig.device, PAGE, Commit::Lazy).unwrap();
    rig.queues[0].submit(&Fill { to: other.at(0), bytes: PAGE, pattern: b"x" }).unwrap();
    let long: Vec<_> = (0..50).map(|page| rig.fill(1, page, 1)).collect();
    drop(other);
    assert_eq!(rig.device.now(), 2 * MICROSECOND);
    assert_eq!(rig.device.poll(long[49]).unwrap(), QueueProgress::Pending);
}

#[test]
fn rates_are_kept() {
    let rig = Rig::new(
        SimulatedDevice::builder(3)
            .fault(Fault::anywhere(ErrorKind::KernelFailed).with_chance(0.25, 3).reported_later()),
        1,
    );
    for _ in 0..1000 {
        rig.fill(0, 0, 1);
    }
    rig.device.run();
    let failed = rig.device.trace().iter().filter(|done| done.failure.is_some()).count();
    assert!((200..300).contains(&failed), "{failed} of 1000");
}
