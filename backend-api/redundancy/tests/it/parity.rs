use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Wake;
use std::thread;

use backend_api::expr::{Action, FieldStore, Geometry, Type, Value};
use backend_api::kernel::{Access, Body, Memory, Op, Reg, Report, VerifiedKernel, ViewDecl};
use backend_api::wrap::{Fault, SplitMix64};
use backend_api::{
    Commit, Compute, Device, DeviceBuffer, Elements, ErrorKind, Fill, HostBuffer, HostMemory, Launch,
    LaunchView, Queue, QueueHandle, QueueProgress, Request, Scatter, Ticket, Transfer,
};
use backend_host::{HostDevice, SimulatedDevice};
use vmarray_conformance::wrap::{Counting, Faulty};
use vmarray_conformance::{Outcome, check_drop};
use vmarray_redundancy::{ParityGroup, ParityMember, ReplicaState};

use super::several::{PART, bytes, card, inverted, use_memory};

/// The bytes of each member, an arbitrary number.
const BYTES: u64 = 5000;

/// A group whose members have contents.
struct Rig<D> {
    cards: Vec<Arc<D>>,
    group: ParityGroup,
    queues: Vec<Queue<ParityMember>>,
    memories: Vec<DeviceBuffer<ParityMember>>,
    expected: Vec<Vec<u8>>,
}

#[test]
fn the_drop_of_a_member_waits_for_no_waker() {
    let device =
        || -> Arc<dyn Device> { Arc::new(HostDevice::builder().bytes(16 << 20).threads(2).build().unwrap()) };
    let group = ParityGroup::new([device(), device(), device()]).unwrap();
    let member = Arc::clone(&group.members()[1]);
    drop(group);
    assert_eq!(check_drop(member), Outcome::Passed);
}

/// Ways to change memory.
#[derive(Clone, Copy, Debug)]
enum Change {
    Upload,
    Mixed,
    Fill,
    Internal,
    Scatter,
    Store,
    Launch,
}

const CHANGES: [Change; 7] = [
    Change::Upload,
    Change::Mixed,
    Change::Fill,
    Change::Internal,
    Change::Scatter,
    Change::Store,
    Change::Launch,
];

/// Inverts numbers of 64 bits.
fn inverting() -> VerifiedKernel {
    let (of, [at, value]) = (Memory::Value(Type::U64), [0, 1].map(Reg));
    let body = Body {
        registers: vec![Type::U64; 2],
        views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, of)] }],
        code: vec![
            Op::Literal { to: at, bits: 0 },
            Op::Load { to: value, view: 0, at, offset: 0, of },
            Op::Unary { op: backend_api::kernel::Unary::Not, to: value, of: value },
            Op::Store { view: 0, at, offset: 0, of, value },
        ],
        ..Body::default()
    };
    VerifiedKernel::new(body).unwrap()
}

fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    (0..bytes).map(|_| random.next() as u8).collect()
}

impl<D: Device> Rig<D> {
    fn new(cards: Vec<Arc<D>>) -> Self {
        let group = ParityGroup::new(cards.iter().map(|card| Arc::clone(card) as Arc<dyn Device>)).unwrap();
        let queues: Vec<_> = group.members().iter().map(|member| Queue::new(member).unwrap()).collect();
        let memory = |(at, member)| DeviceBuffer::new(member, BYTES - at as u64, Commit::Lazy).unwrap();
        let memories = group.members().iter().enumerate().map(memory).collect();
        let expected = (0..).zip(&queues).map(|(seed, _)| noise(seed, BYTES - seed)).collect();
        let rig = Self { cards, group, queues, memories, expected };
        for (at, contents) in rig.expected.iter().enumerate() {
            let ticket = rig.upload(at, 0, contents);
            rig.group.members()[at].wait(ticket).unwrap();
        }
        rig
    }

    fn upload(&self, at: usize, offset: u64, contents: &[u8]) -> Ticket {
        let host = HostBuffer::new(&self.group.members()[at], contents.len(), HostMemory::Pageable).unwrap();
        host.write(0, contents);
        let (to, bytes) = (self.memories[at].at(offset), contents.len() as u64);
        self.queues[at].submit(&[Transfer::Upload { from: host.at(0), to, bytes }]).unwrap()
    }

    /// Changes the first member's data. Waits.
    fn change(&mut self, change: Change) -> backend_api::Result<()> {
        let (member, queue, memory) = (&self.group.members()[0], &self.queues[0], &self.memories[0]);
        let expected = &mut self.expected[0];
        let host = HostBuffer::new(member, 4096, HostMemory::Pageable)?;
        let numbers = Elements { start: memory.at(8), count: 600, stride: 8 };
        let (program, kernel) = (inverted(), inverting());
        let ticket = match change {
            Change::Upload => {
                let new = noise(7, 3000);
                host.write(0, &new);
                expected[1500..4500].copy_from_slice(&new);
                queue.submit(&[Transfer::Upload { from: host.at(0), to: memory.at(1500), bytes: 3000 }])
            }
            Change::Mixed => {
                let new = noise(8, 100);
                host.write(0, &new);
                expected[10..110].copy_from_slice(&new);
                expected.copy_within(4000..4500, 2000);
                let mut transfers = vec![
                    Transfer::Upload { from: host.at(0), to: memory.at(10), bytes: 100 },
                    Transfer::Download { from: memory.at(4800), to: host.at(200), bytes: 50 },
                    Transfer::Internal { from: memory.at(4000), to: memory.at(2000), bytes: 500 },
                ];
                transfers.push(Transfer::Upload { from: host.at(50), to: memory.at(60), bytes: 50 });
                queue.submit(&transfers)
            }
            Change::Fill => {
                expected[100..4101].iter_mut().zip([1, 2, 3].iter().cycle()).for_each(|(to, by)| *to = *by);
                queue.submit(&Fill { to: memory.at(100), bytes: 4001, pattern: &[1, 2, 3] })
            }
            Change::Internal => {
                expected.copy_within(0..2000, 2500);
                queue.submit(&[Transfer::Internal { from: memory.at(0), to: memory.at(2500), bytes: 2000 }])
            }
            Change::Scatter => {
                let elements = Elements { start: memory.at(3), count: 700, stride: 7 };
                for (number, index) in [0_u64, 699, 365, 366, backend_api::LEFT_OUT].into_iter().enumerate() {
                    host.write(number * 8, &index.to_ne_bytes());
                    host.write(1000 + number * 7, &[number as u8; 7]);
                    if let Some(to) = expected.get_mut((index as usize).saturating_mul(7).saturating_add(3)..)
                    {
                        to[..7].fill(number as u8);
                    }
                }
                let (indices, values) = (host.at(0), host.at(1000));
                queue.submit(&Scatter { elements: elements.into(), indices, count: 5, values })
            }
            Change::Store => {
                expected[8..4808].iter_mut().for_each(|byte| *byte = !*byte);
                let action = Action::Store {
                    stores: &[FieldStore { value: Value(1), source: 0, offset: 0 }],
                    filter: None,
                };
                let (sources, geometry) = ([numbers], Geometry::plain(0));
                queue.submit(&Compute { program: &program, sources: &sources, geometry, action })
            }
            Change::Launch => {
                expected[8..4808].iter_mut().for_each(|byte| *byte = !*byte);
                let views = [LaunchView::Run(numbers)];
                let launch = Launch::new(&kernel, 600, Geometry::plain(0), host.at(0));
                queue.submit(&Launch { views: &views, ..launch })
            }
        };
        member.wait(ticket?)?;
        if let Change::Mixed = change {
            let mut read = [0; 50];
            host.read(200, &mut read);
            assert_eq!(read, self.expected[0][4800..4850]);
        }
        if let Change::Launch = change {
            let mut words = [[0; 8]; Report::BYTES as usize / 8];
            host.read(0, words.as_flattened_mut());
            assert_eq!(words[0], [0; 8], "no item failed");
        }
        Ok(())
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        self.queues.iter().zip(&self.memories).map(|(queue, memory)| bytes(queue, memory)).collect()
    }

    #[track_caller]
    fn assert_contents(&self, what: &dyn std::fmt::Debug) {
        for (at, (found, expected)) in self.contents().iter().zip(&self.expected).enumerate() {
            let first = found.iter().zip(expected).position(|(found, expected)| found != expected);
            assert!(found == expected, "{what:?}: member {at} differs from byte {first:?} on");
        }
    }

    fn rebuild(&self, spare: Arc<dyn Device>) -> backend_api::Result<()> {
        self.group.rebuild(&self.group.first_lost().unwrap_or_else(|| spare.clone()), spare)
    }
}

fn states(group: &ParityGroup) -> Vec<ReplicaState> {
    group.replicas().iter().map(|replica| replica.state).collect()
}

type Card = Faulty<HostDevice>;

fn cards(count: usize) -> Vec<Arc<Card>> {
    let card = |_| Arc::new(Faulty::new(HostDevice::builder().bytes(1 << 20).threads(1).build().unwrap()));
    (0..count).map(card).collect()
}

#[test]
fn each_device_can_be_lost() {
    for count in 3..=5 {
        for lost in 0..count {
            let mut rig = Rig::new(cards(count));
            for change in CHANGES {
                rig.change(change).unwrap();
            }
            rig.assert_contents(&"whole");
            rig.cards[lost].lose();
            rig.assert_contents(&"lost");
            for change in CHANGES {
                rig.change(change).unwrap();
                rig.assert_contents(&(count, lost, change));
            }
            assert!(rig.group.is_degraded());
            rig.rebuild(cards(1)[0].clone()).unwrap();
            assert!(states(&rig.group).iter().all(|state| *state == ReplicaState::Current));
            rig.cards[(lost + 1) % count].lose();
            rig.assert_contents(&"rebuilt");
        }
    }
}

/// Any call of any device detects the loss during a change: the change is completed, and no other memory
/// is touched.
#[test]
fn a_loss_at_any_moment_of_a_change_loses_nothing() {
    for change in CHANGES {
        for (at, later) in [(0, false), (0, true), (1, false), (1, true), (2, false), (2, true)] {
            for call in 1.. {
                let mut rig = Rig::new(cards(3));
                let fault = Fault::anywhere(ErrorKind::Lost).on_call(call);
                rig.cards[at].inject(if later { fault.reported_later() } else { fault });
                let what = (change, at, later, call);
                rig.change(change).unwrap_or_else(|error| panic!("{what:?}: {error}"));
                if rig.cards[at].injected() == 0 {
                    assert!(call > 2 || at > 0, "some calls were made: {what:?}");
                    break;
                }
                rig.cards[at].lose();
                rig.assert_contents(&what);
                rig.rebuild(cards(1)[0].clone()).unwrap();
                rig.cards[(at + call as usize) % 3].lose();
                rig.assert_contents(&what);
            }
        }
    }
}

/// Calls that fail occasionally leave parities that match the data. Calls that fail permanently count as a
/// loss.
#[test]
fn failures_never_leave_a_parity_that_is_wrong() {
    for change in CHANGES {
        for (at, lasting) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
            for call in 1.. {
                let mut rig = Rig::new(cards(3));
                let fault = Fault::anywhere(ErrorKind::CopyFailed).reported_later();
                rig.cards[at].inject(if lasting { fault.from_call(call) } else { fault.on_call(call) });
                let changed = rig.change(change);
                if rig.cards[at].injected() == 0 {
                    break;
                }
                rig.cards[at].clear();
                let contents = rig.contents();
                let what = (change, at, lasting, call);
                if changed.is_ok() {
                    assert!(contents == rig.expected, "{what:?}");
                } else {
                    assert!(contents[1..] == rig.expected[1..], "{what:?}");
                }
                // The group does not use a device again after its loss.
                if !rig.group.is_degraded() {
                    rig.cards[call as usize % 3].lose();
                }
                assert!(rig.contents() == contents, "{what:?}");
            }
        }
    }
}

/// A device that silently drops one copy to it.
#[derive(Debug)]
struct Forgetful {
    inner: HostDevice,
    left: AtomicU64,
    is_lost: AtomicBool,
}

// SAFETY: the inner device keeps the contract for all requests; a dropped request touches no memory.
unsafe impl Device for Forgetful {
    fn submit(&self, queue: &QueueHandle, request: &Request<'_>) -> backend_api::Result<Ticket> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(backend_api::Error::new(ErrorKind::Lost, "submit"));
        }
        let is_upload =
            matches!(request, Request::Copies([Transfer::Upload { .. }, ..], _) | Request::Fill(_));
        if is_upload && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            return self.inner.submit(queue, &Request::Copies(&[], None));
        }
        self.inner.submit(queue, request)
    }
    backend_api::forward! { self => self.inner;
        info memory create_queue release_queue allocate allocate_extensible extend release allocate_host import_host
        release_host
        prepare poll wait wake order_after
    }
}

#[test]
fn contents_forgotten_by_a_device_are_detected() {
    for at in 0..3 {
        for upload in 1.. {
            let device = |_| {
                let inner = HostDevice::builder().bytes(1 << 20).threads(1).build().unwrap();
                Arc::new(Forgetful { inner, left: AtomicU64::new(u64::MAX / 2), is_lost: false.into() })
            };
            let mut rig = Rig::new((0..3).map(device).collect());
            rig.cards[at].left.store(upload, Ordering::Relaxed);
            rig.change(Change::Upload).unwrap();
            if rig.cards[at].left.load(Ordering::Relaxed) as i64 > 0 {
                assert!(upload > 1);
                break;
            }
            // The test detects lost writes of data at once, and lost writes of parity after the loss of the
            // data.
            let is_missed =
                |rig: &Rig<_>| catch_unwind(AssertUnwindSafe(|| rig.assert_contents(&"forgotten"))).is_err();
            let at_once = is_missed(&rig);
            assert_eq!(at_once, at == 0, "upload {upload} to device {at}");
            rig.cards[0].is_lost.store(true, Ordering::Relaxed);
            assert!(at_once || is_missed(&rig), "upload {upload} to device {at}");
        }
    }
}

#[test]
fn a_write_moves_the_documented_bytes() {
    let cards: Vec<_> = (0..4).map(|_| Arc::new(Counting::new(HostDevice::new(1 << 20).unwrap()))).collect();
    let free = |cards: &[Arc<Counting<HostDevice>>]| -> Vec<u64> {
        cards.iter().map(|card| card.memory().unwrap().free_bytes).collect()
    };
    let before = free(&cards);
    let rig = Rig::new(cards);
    // A third of a member's memory, rounded up to a multiple of 256 bytes.
    let parity = ParityGroup::parity_bytes(BYTES, 4);
    assert_eq!(parity, 1792);
    for (at, (before, after)) in before.iter().zip(free(&rig.cards)).enumerate() {
        assert_eq!(before - after, BYTES - at as u64 + parity);
    }
    let work = |at: usize| rig.cards[at].counts().work;
    let totals = || {
        let works = [0, 1, 2, 3].map(work);
        (works.map(|work| work.download_bytes), works.map(|work| work.upload_bytes))
    };
    let (downloads, uploads) = totals();
    let ticket = rig.upload(0, 0, &[7; 1792]);
    rig.group.members()[0].wait(ticket).unwrap();
    let (downloads_now, uploads_now) = totals();
    let moved = |before: [u64; 4], now: [u64; 4]| -> Vec<u64> {
        now.iter().zip(before).map(|(now, before)| now - before).collect()
    };
    // The change reads and overwrites the old data and the parity of the first part. The second device stores
    // this parity.
    assert_eq!(moved(downloads, downloads_now), [1792, 1792, 0, 0]);
    assert_eq!(moved(uploads, uploads_now), [1792, 1792, 0, 0]);
    // A write of the same data does not change the parity.
    let ticket = rig.upload(0, 0, &[7; 1792]);
    rig.group.members()[0].wait(ticket).unwrap();
    let (downloads, uploads) = totals();
    assert_eq!(moved(downloads_now, downloads), [1792, 0, 0, 0]);
    assert_eq!(moved(uploads_now, uploads), [1792, 0, 0, 0]);
    // The member's own device executes reads.
    let _ = bytes(&rig.queues[1], &rig.memories[1]);
    assert_eq!(moved(downloads, totals().0), [0, BYTES - 1, 0, 0]);
}

#[test]
fn memory_comes_and_goes_beside_memory_that_stays() {
    let mut rig = Rig::new(cards(3));
    let free = |at: usize, rig: &Rig<Card>| rig.cards[at].memory().unwrap().free_bytes;
    let before = [0, 1, 2].map(|at| free(at, &rig));
    for round in 0..5_usize {
        // A member's released memory is reused for its next allocation while the other members keep
        // theirs.
        let at = round % 3;
        let memory = rig.memories.remove(at);
        let bytes = memory.bytes();
        drop(memory);
        rig.memories.insert(at, DeviceBuffer::new(&rig.group.members()[at], bytes, Commit::Lazy).unwrap());
        let short = DeviceBuffer::new(&rig.group.members()[at], 100, Commit::Lazy).unwrap();
        drop(short);
        rig.expected[at] = noise(round as u64 + 50, bytes);
        let ticket = rig.upload(at, 0, &rig.expected[at].clone());
        rig.group.members()[at].wait(ticket).unwrap();
        assert_eq!([0, 1, 2].map(|at| free(at, &rig)), before);
    }
    rig.cards[1].lose();
    // A lost device's memory can still be allocated.
    let one = DeviceBuffer::new(&rig.group.members()[1], 3000, Commit::Proven).unwrap();
    let queue = &rig.queues[1];
    let filled = queue.submit(&Fill { to: one.at(0), bytes: 3000, pattern: &[9] }).unwrap();
    queue.device().wait(filled).unwrap();
    assert_eq!(bytes(queue, &one), [9; 3000]);
    rig.rebuild(cards(1)[0].clone()).unwrap();
    assert_eq!(bytes(queue, &one), [9; 3000]);
    drop(one);
    rig.assert_contents(&"rebuilt");
    let Rig { cards, queues, memories, .. } = rig;
    drop((queues, memories));
    assert_eq!(cards[0].memory().unwrap().free_bytes, 1 << 20, "all of it was given back");
}

#[test]
fn refused_requests_leave_the_group_unchanged() {
    let rig = Rig::new(cards(3));
    let refused = |devices: Vec<Arc<Card>>| {
        let devices = devices.into_iter().map(|card| card as Arc<dyn Device>);
        ParityGroup::new(devices).unwrap_err().kind()
    };
    assert_eq!(refused(cards(2)), ErrorKind::InvalidArgument);
    assert_eq!(
        refused([cards(3), rig.cards[..1].to_vec(), rig.cards[..1].to_vec()].concat()),
        ErrorKind::InvalidArgument
    );
    assert_eq!(rig.rebuild(cards(1)[0].clone()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    rig.cards[1].lose();
    assert!(rig.group.members()[1].memory().is_ok(), "the others have it");
    assert_eq!(rig.rebuild(rig.cards[0].clone()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let small = Arc::new(HostDevice::new(1 << 10).unwrap());
    assert_eq!(rig.rebuild(small).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(states(&rig.group)[1], ReplicaState::Lost);
    let bad = cards(1).remove(0);
    bad.inject(Fault::new(backend_api::wrap::Operation::Submit, ErrorKind::Lost));
    assert_eq!(rig.rebuild(bad).unwrap_err().kind(), ErrorKind::Lost);
    rig.assert_contents(&"after a spare was lost");
    rig.rebuild(cards(1)[0].clone()).unwrap();
    rig.assert_contents(&"rebuilt");
    // If two devices are lost at once, only the data of these two devices is lost.
    rig.cards[0].lose();
    rig.cards[2].lose();
    for at in [0, 2] {
        assert!(rig.group.members().iter().all(|member| member.memory().is_ok()));
        assert!(!rig.group.has_contents(at));
        let host = HostBuffer::new(&rig.group.members()[1], 8, HostMemory::Pageable).unwrap();
        let read = Transfer::Download { from: rig.memories[1].at(0), to: host.at(0), bytes: 8 };
        rig.group.members()[1].wait(rig.queues[1].submit(&[read]).unwrap()).unwrap();
        let fill = rig.queues[at].submit(&Fill { to: rig.memories[at].at(0), bytes: 9, pattern: &[1] });
        let error = rig.group.members()[at].wait(fill.unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.detail().contains("another device"), "{error}");
    }
    assert!(rig.group.has_contents(1));
    assert_eq!(rig.rebuild(cards(1)[0].clone()).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(bytes(&rig.queues[1], &rig.memories[1]), rig.expected[1]);
}

#[test]
fn wakers_outlive_a_loss_and_may_wait() {
    struct Count(AtomicUsize, Arc<ParityMember>, Ticket);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.1.wait(self.2).unwrap();
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let cards = [1, 2, 3].map(card);
    let rig = Rig::<Faulty<SimulatedDevice>>::new(cards.to_vec());
    let (member, queue, memory) = (&rig.group.members()[0], &rig.queues[0], &rig.memories[0]);
    let host = HostBuffer::new(member, 64, HostMemory::Pageable).unwrap();
    let read =
        || queue.submit(&[Transfer::Download { from: memory.at(0), to: host.at(0), bytes: 64 }]).unwrap();
    let fill = || queue.submit(&Fill { to: memory.at(0), bytes: 64, pattern: &[1] }).unwrap();
    for number in 1..=4 {
        let tickets = [read(), fill(), read(), fill()];
        if number == 2 {
            cards[0].lose();
        }
        // Each waker waits for the last ticket, in the thread that runs the waker.
        let count = Arc::new(Count(AtomicUsize::new(0), Arc::clone(member), tickets[3]));
        tickets.iter().for_each(|ticket| member.wake(*ticket, Arc::clone(&count).into()));
        tickets.iter().for_each(|ticket| member.wait(*ticket).unwrap());
        while count.0.load(Ordering::SeqCst) < 4 {
            assert_eq!(member.poll(tickets[3]).unwrap(), QueueProgress::Done);
            thread::yield_now();
        }
    }
}

/// Each device is lost and replaced, one after the other, while threads use all members.
#[test]
fn nothing_is_lost_while_devices_come_and_go() {
    for count in 3..=5 {
        let mut cards: Vec<_> = (0..count as u64).map(card).collect();
        let group = ParityGroup::new(cards.iter().map(|card| Arc::clone(card) as Arc<dyn Device>)).unwrap();
        let is_over = &AtomicBool::new(false);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..count)
                .map(|number| {
                    let member = Arc::clone(&group.members()[number]);
                    scope.spawn(move || {
                        let memory = DeviceBuffer::new(&member, PART as u64, Commit::Lazy).unwrap();
                        use_memory(&member, &memory, 0, number as u64, is_over);
                    })
                })
                .collect();
            let mut random = SplitMix64::new(count as u64);
            let rebuilt = (0..10).try_for_each(|turn| {
                let at = random.index(count);
                cards[at].lose();
                while !group.is_degraded() {
                    thread::yield_now();
                    if workers.iter().any(|worker| worker.is_finished()) {
                        return Err("a thread has ended".to_owned());
                    }
                }
                cards[at] = card(10 + turn);
                let lost = group.first_lost().ok_or("nothing is lost")?;
                group.rebuild(&lost, cards[at].clone()).map_err(|error| error.to_string())
            });
            is_over.store(true, Ordering::Relaxed);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            rebuilt.unwrap();
        });
        assert!(states(&group).iter().all(|state| *state == ReplicaState::Current));
    }
}
