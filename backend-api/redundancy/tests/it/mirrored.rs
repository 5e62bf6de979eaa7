mod memory_use;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Wake;
use std::thread;
use std::time::Duration;

use backend_api::wrap::{Fault, Operation};
use backend_api::{
    Commit, Device, DeviceBuffer, DeviceInfo, ErrorKind, Fill, HostBuffer, HostMemory, Queue, QueueProgress,
    Reach, Ticket, Transfer,
};
use backend_host::{HostDevice, SimulatedDevice, SimulatedFabric};
use vmarray_conformance::wrap::{Counting, Faulty};
use vmarray_redundancy::{Mirrored, ReplicaState};

use memory_use::{Card, PART, bytes, card, use_memory};

fn mirror(cards: &[Card]) -> Arc<Mirrored> {
    Arc::new(Mirrored::new(cards.iter().map(|card| Arc::clone(card) as Arc<dyn Device>)).unwrap())
}

fn states(mirror: &Mirrored) -> Vec<ReplicaState> {
    mirror.replicas().iter().map(|replica| replica.state).collect()
}

/// A device of virtual time that copies to others of its fabric.
fn linked(fabric: &SimulatedFabric, seed: u64) -> Arc<Counting<SimulatedDevice>> {
    let builder = SimulatedDevice::builder(seed).bytes(16 << 20).latency(Duration::from_micros(50));
    Arc::new(Counting::new(builder.fabric(fabric).build()))
}

/// Replaces the first lost device by a spare; if no device is lost, the spare by itself.
fn rebuild(mirror: &Mirrored, spare: Arc<dyn Device>) -> backend_api::Result<()> {
    mirror.rebuild(&mirror.first_lost().unwrap_or_else(|| spare.clone()), spare)
}

#[test]
fn reads_are_shared_out_and_writes_go_to_all() {
    let cards = [(); 2].map(|()| Arc::new(Counting::new(HostDevice::new(1 << 20).unwrap())));
    let mirror = Mirrored::new(cards.clone().map(|card| card as Arc<dyn Device>)).unwrap();
    let mirror = Arc::new(mirror);
    let (queue, memory) =
        (Queue::new(&mirror).unwrap(), DeviceBuffer::new(&mirror, 4096, Commit::Lazy).unwrap());
    queue.submit(&Fill { to: memory.at(0), bytes: 4096, pattern: &[7] }).unwrap();
    for _ in 0..10 {
        assert_eq!(bytes(&queue, &memory), [7; 4096]);
    }
    for card in cards {
        let work = card.counts().work;
        assert_eq!(work.fill_bytes, 4096);
        assert!(work.download_bytes >= 4 * 4096, "{work:?}");
    }
}

#[test]
fn work_under_way_at_a_loss_is_done_by_the_other_device() {
    for lost in 0..2 {
        let cards = [card(1), card(2)];
        let mirror = mirror(&cards);
        let (queue, memory) =
            (Queue::new(&mirror).unwrap(), DeviceBuffer::new(&mirror, 4096, Commit::Lazy).unwrap());
        let host = HostBuffer::new(&mirror, 16 * 4096, HostMemory::Pageable).unwrap();
        let mut tickets = vec![queue.submit(&Fill { to: memory.at(0), bytes: 4096, pattern: &[7] }).unwrap()];
        for at in 0..16 {
            let to = host.at(at * 4096);
            let read = Transfer::Download { from: memory.at(0), to, bytes: 4096 };
            tickets.push(queue.submit(&[read]).unwrap());
        }
        cards[lost].lose();
        // Later work changes the source of these reads. Reads that are repeated must not be affected.
        tickets.push(queue.submit(&Fill { to: memory.at(0), bytes: 4096, pattern: &[8] }).unwrap());
        tickets.into_iter().for_each(|ticket| mirror.wait(ticket).unwrap());
        let mut read = vec![0; 16 * 4096];
        host.read(0, &mut read);
        assert!(read.iter().all(|byte| *byte == 7));
        assert_eq!(bytes(&queue, &memory), [8; 4096]);
        assert!(mirror.is_degraded());
        cards[1 - lost].lose();
        let error = mirror.wait(queue.submit(&[]).unwrap_or(Ticket { queue: queue.id(), value: 1 }));
        assert!(error.is_ok() || error.unwrap_err().kind() == ErrorKind::Lost);
        assert_eq!(queue.submit(&[]).unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[test]
fn wakers_outlive_a_loss() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let cards = [card(1), card(2)];
    let mirror = mirror(&cards);
    let (queue, memory) =
        (Queue::new(&mirror).unwrap(), DeviceBuffer::new(&mirror, 64, Commit::Lazy).unwrap());
    let host = HostBuffer::new(&mirror, 64, HostMemory::Pageable).unwrap();
    let read =
        || queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 64 }]).unwrap();
    let count = Arc::new(Count(AtomicUsize::new(0)));
    for number in 1..=4 {
        let ticket = read();
        if number == 2 {
            cards[0].lose();
        }
        mirror.wake(ticket, Arc::clone(&count).into());
        mirror.wait(ticket).unwrap();
        while count.0.load(Ordering::SeqCst) < number {
            assert_eq!(mirror.poll(ticket).unwrap(), QueueProgress::Done);
        }
    }
    assert_eq!(count.0.load(Ordering::SeqCst), 4);
}

#[test]
fn refused_requests_leave_the_mirror_unchanged() {
    let cards = [card(1), card(2)];
    let mirror = mirror(&cards);
    let twice = Mirrored::new([cards[0].clone() as Arc<dyn Device>, cards[0].clone()]).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::InvalidArgument);
    assert_eq!(rebuild(&mirror, card(3)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let _memory = DeviceBuffer::new(&mirror, 1 << 20, Commit::Lazy).unwrap();
    cards[1].lose();
    assert!(mirror.memory().is_ok());
    assert_eq!(states(&mirror), [ReplicaState::Current, ReplicaState::Lost]);
    assert_eq!(rebuild(&mirror, cards[0].clone()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let small = Arc::new(HostDevice::new(1 << 10).unwrap());
    assert_eq!(rebuild(&mirror, small).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(states(&mirror), [ReplicaState::Current, ReplicaState::Lost]);
    // A lost spare can be replaced by another one.
    let bad = card(4);
    bad.inject(Fault::new(Operation::Submit, ErrorKind::Lost));
    assert_eq!(rebuild(&mirror, bad).unwrap_err().kind(), ErrorKind::Lost);
    rebuild(&mirror, card(5)).unwrap();
    assert_eq!(states(&mirror), [ReplicaState::Current; 2]);
}

#[test]
fn a_copy_that_fails_fails_its_ticket_alone() {
    let cards = [card(1), card(2)];
    let mirror = mirror(&cards);
    let (queue, memory) =
        (Queue::new(&mirror).unwrap(), DeviceBuffer::new(&mirror, 64, Commit::Lazy).unwrap());
    cards[1].inject(Fault::new(Operation::Fill, ErrorKind::KernelFailed).on_call(2).reported_later());
    let fill = || queue.submit(&Fill { to: memory.at(0), bytes: 64, pattern: &[1] }).unwrap();
    let tickets = [fill(), fill(), fill()];
    let outcomes = tickets.map(|ticket| mirror.wait(ticket).map_err(|error| error.kind()));
    assert_eq!(outcomes, [Ok(()), Err(ErrorKind::KernelFailed), Ok(())]);
    assert_eq!(mirror.wait(tickets[1]).unwrap_err().kind(), ErrorKind::KernelFailed);
    assert!(!mirror.is_degraded());
}

/// Each device in turn is lost and replaced while threads write, read and move bytes, each in an exclusive
/// part.
#[test]
fn nothing_is_lost_while_devices_come_and_go() {
    const THREADS: usize = 3;
    let mut cards = vec![card(1), card(2)];
    let mirror = mirror(&cards);
    let memory = DeviceBuffer::new(&mirror, (THREADS * PART) as u64, Commit::Lazy).unwrap();
    let (memory, is_over) = (&memory, &AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let mirror = Arc::clone(&mirror);
                scope.spawn(move || use_memory(&mirror, memory, number * PART, number as u64, is_over))
            })
            .collect();
        let rebuilt = (0..10).try_for_each(|turn| {
            cards[turn % 2].lose();
            while !mirror.is_degraded() {
                thread::yield_now();
                if workers.iter().any(|worker| worker.is_finished()) {
                    return Err("a thread has ended".to_owned());
                }
            }
            cards[turn % 2] = card(10 + turn as u64);
            rebuild(&mirror, cards[turn % 2].clone()).map_err(|error| error.to_string())
        });
        is_over.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        rebuilt.unwrap();
    });
    assert_eq!(states(&mirror), [ReplicaState::Current; 2]);
}

/// A device of another model than all others.
#[derive(Debug)]
struct Model(SimulatedDevice, DeviceInfo);

impl Model {
    fn new(inner: SimulatedDevice, name: &str) -> Self {
        let of = inner.info();
        let mut info = DeviceInfo::new(name, name, of.kind, &of.identity);
        (info.total_bytes, info.largest_allocation_bytes) = (of.total_bytes, of.largest_allocation_bytes);
        Self(inner, info)
    }
}

// SAFETY: the inner device keeps the contract, and does all work.
unsafe impl Device for Model {
    fn info(&self) -> &DeviceInfo {
        &self.1
    }

    backend_api::forward! { self => self.0;
    memory create_queue release_queue allocate allocate_extensible extend release allocate_host import_host
        release_host
    wipe_on_release submit prepare
    kernel_facts poll wait wake reaches order_after }
}

/// Devices of one model, of different models, and devices that copy to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rig {
    Alike,
    Models,
    Linked,
}

/// A mirror of one device, or of two, moves from one device to the next while threads use it. Each case is a
/// test, because it keeps two processors busy for some seconds.
macro_rules! nothing_is_lost_while_devices_are_replaced {
    ($($name:ident: $rig:ident, $replicas:literal;)+) => {
        mod nothing_is_lost_while_devices_are_replaced {
            use super::{Rig, replaced};

            $(
                #[test]
                fn $name() {
                    replaced(Rig::$rig, $replicas);
                }
            )+
        }
    };
}

nothing_is_lost_while_devices_are_replaced! {
    one_by_one_alike: Alike, 1;
    one_of_two_by_one_alike: Alike, 2;
    one_by_another_model: Models, 1;
    one_of_two_by_another_model: Models, 2;
    one_by_one_with_a_link: Linked, 1;
    one_of_two_by_one_with_a_link: Linked, 2;
}

fn replaced(rig: Rig, replicas: u64) {
    const THREADS: usize = 3;
    let fabric = SimulatedFabric::new(Reach::Copies, 100_000_000_000, Duration::from_micros(2));
    let card = |seed| -> Arc<dyn Device> {
        let name = format!("model {seed}");
        let build =
            || SimulatedDevice::builder(100 + seed).bytes(16 << 20).latency(Duration::from_micros(50));
        match rig {
            Rig::Alike => card(seed),
            Rig::Models => Arc::new(Model::new(build().build(), &name)),
            Rig::Linked => linked(&fabric, 100 + seed),
        }
    };
    let mut from: Arc<dyn Device> = card(1);
    let others = (0..replicas - 1).map(|seed| card(50 + seed));
    let mirror = Arc::new(Mirrored::new([from.clone()].into_iter().chain(others)).unwrap());
    let memory = DeviceBuffer::new(&mirror, (THREADS * PART) as u64, Commit::Lazy).unwrap();
    let (memory, is_over) = (&memory, &AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let mirror = Arc::clone(&mirror);
            scope.spawn(move || use_memory(&mirror, memory, number * PART, number as u64, is_over));
        }
        for turn in 0..10 {
            let to: Arc<dyn Device> = card(10 + turn);
            mirror.replace(&from, to.clone()).unwrap();
            let names: Vec<_> = mirror.devices().iter().map(|device| device.info().to_string()).collect();
            assert!(names.contains(&to.info().to_string()) && names.len() as u64 == replicas, "{names:?}");
            let left = from.memory().unwrap();
            assert_eq!(left.free_bytes, left.total_bytes);
            from = to;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(states(&mirror), vec![ReplicaState::Current; replicas as usize], "{rig:?}");
}

#[test]
fn devices_that_reach_each_other_are_replaced_past_the_host() {
    const BYTES: u64 = 1 << 20;
    for is_broken in [false, true] {
        let fabric = SimulatedFabric::new(Reach::Copies, 100_000_000_000, Duration::from_micros(2));
        let cards = [linked(&fabric, 1), linked(&fabric, 2)];
        if is_broken {
            fabric.break_link(cards[0].info(), cards[1].info());
        }
        let mirror = Arc::new(Mirrored::new([cards[0].clone() as Arc<dyn Device>]).unwrap());
        let (queue, memory) =
            (Queue::new(&mirror).unwrap(), DeviceBuffer::new(&mirror, BYTES, Commit::Lazy).unwrap());
        mirror
            .wait(queue.submit(&Fill { to: memory.at(0), bytes: BYTES, pattern: &[7, 1, 9] }).unwrap())
            .unwrap();
        let old: Arc<dyn Device> = cards[0].clone();
        let uploaded = || cards[1].counts().work.upload_bytes;
        mirror.replace(&old, cards[1].clone()).unwrap();
        // If the link is sound, only its test pattern passes through the host and back.
        assert_eq!(uploaded() >= BYTES, is_broken, "{}", uploaded());
        assert!(bytes(&queue, &memory).chunks(3).all(|bytes| bytes == &[7, 1, 9][..bytes.len()]));
        assert_eq!(states(&mirror), [ReplicaState::Current]);
    }
}

/// A device that other devices may write to after its loss reports the loss itself.
#[test]
fn a_new_device_that_is_lost_while_it_is_linked_leaves_the_old_one() {
    let fabric = SimulatedFabric::new(Reach::Copies, 100_000_000_000, Duration::from_micros(2));
    let [old, new] = [11, 12].map(|seed| {
        let builder = SimulatedDevice::builder(seed).bytes(16 << 20).fabric(&fabric);
        Arc::new(Faulty::new(builder.build()))
    });
    let mirror = Arc::new(Mirrored::new([old.clone() as Arc<dyn Device>]).unwrap());
    let (queue, memory) =
        (Queue::new(&mirror).unwrap(), DeviceBuffer::new(&mirror, 9 << 20, Commit::Lazy).unwrap());
    mirror.wait(queue.submit(&Fill { to: memory.at(0), bytes: 9 << 20, pattern: &[7] }).unwrap()).unwrap();
    let there = || mirror.replace(&(old.clone() as _), new.clone());
    there().unwrap();
    mirror.replace(&(new.clone() as _), old.clone()).unwrap();
    // The links are known now, so the next request copies the first piece.
    new.inject(Fault::new(Operation::Submit, ErrorKind::Lost));
    assert_eq!(there().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(states(&mirror), [ReplicaState::Current]);
    assert_eq!(mirror.first_lost().map(|device| device.info().to_string()), None);
    assert!(bytes(&queue, &memory).iter().all(|byte| *byte == 7));
}

#[test]
fn a_device_that_cannot_take_the_place_of_another_leaves_all_as_it_was() {
    let cards = [card(1), card(2)];
    let old: Arc<dyn Device> = cards[0].clone();
    let mirror = Arc::new(Mirrored::new([old.clone()]).unwrap());
    let (queue, memory) =
        (Queue::new(&mirror).unwrap(), DeviceBuffer::new(&mirror, 4096, Commit::Lazy).unwrap());
    mirror.wait(queue.submit(&Fill { to: memory.at(0), bytes: 4096, pattern: &[7] }).unwrap()).unwrap();
    let replace = |old: &Arc<dyn Device>, new| mirror.replace(old, new).map_err(|error| error.kind());
    assert_eq!(replace(&(cards[1].clone() as _), cards[1].clone()), Err(ErrorKind::InvalidArgument));
    assert_eq!(replace(&old, cards[0].clone()), Err(ErrorKind::InvalidArgument));
    let small = Arc::new(HostDevice::new(1 << 10).unwrap());
    assert_eq!(replace(&old, small), Err(ErrorKind::TooLarge));
    let bad = card(4);
    bad.inject(Fault::new(Operation::Submit, ErrorKind::Lost));
    assert_eq!(replace(&old, bad), Err(ErrorKind::Lost));
    assert_eq!(states(&mirror), [ReplicaState::Current]);
    assert_eq!(bytes(&queue, &memory), [7; 4096]);
    replace(&old, cards[1].clone()).unwrap();
    assert_eq!(bytes(&queue, &memory), [7; 4096]);
    // All data has been moved.
    cards[1].lose();
    assert_eq!(queue.submit(&[]).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(replace(&(cards[1].clone() as _), card(5)), Err(ErrorKind::Lost));
}
