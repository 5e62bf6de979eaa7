//! Conformance checks of lifetimes: the program may release queues and memory while submitted work uses them.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use parking_lot::Mutex;

use backend_api::waker;
use backend_api::{Commit, Device, DeviceBuffer, Fill, Queue, Transfer};

use super::context::assert_holds;
use super::scene::Scene;
use super::{Context, Outcome};

const BYTES: u64 = 300_000;

/// Returns a queue with many fills in flight, so that the next submission cannot start soon.
fn busy_queue(cx: &Context<'_>, memory: &DeviceBuffer<dyn Device>) -> Queue<dyn Device> {
    let queue = cx.queue();
    for round in 0..24 {
        cx.fill(&queue, memory, memory.bytes(), &[round; 60]);
    }
    queue
}

/// Checks that dropping a device does not wait for running wakers. A waker may wait for a lock that the
/// dropping thread holds, so such a wait would be a deadlock.
///
/// The caller must pass the last reference to the device. Returns [`Skipped`](Outcome::Skipped) if the device
/// runs wakers in the calling thread. If dropping the device waits for the waker, the function never returns.
///
/// # Panics
/// Panics if the device returns an error for the memory, a queue or a fill of this check.
///
/// ```
/// use std::sync::Arc;
/// use vmarray_conformance::{Outcome, check_drop};
/// # use backend_host::HostDevice;
/// let device = HostDevice::builder().bytes(16 << 20).threads(2).build()?;
/// assert_eq!(check_drop(Arc::new(device)), Outcome::Passed);
/// # Ok::<_, backend_api::Error>(())
/// ```
pub fn check_drop<D: Device + ?Sized>(device: Arc<D>) -> Outcome {
    const TRIES: usize = 200;
    let me = thread::current().id();
    let (began, begun) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let blocking = waker(move || {
        let is_elsewhere = thread::current().id() != me;
        let _ = began.send(is_elsewhere);
        if is_elsewhere {
            let _ = released.lock().recv();
        }
    });
    let (woke, woken) = channel();
    let other = waker(move || {
        let _ = woke.send(());
    });
    let queues = [(); 2].map(|()| Queue::new(&device).expect("the creation of a queue must succeed"));
    let memory = DeviceBuffer::new(&device, 4 << 20, Commit::Lazy)
        .expect("the allocation of device memory must succeed");
    let submit = |queue: &Queue<D>| {
        let fill = Fill { to: memory.at(0), bytes: memory.bytes(), pattern: &[7, 1] };
        (0..8)
            .map(|_| queue.submit(&fill).expect("the fill must succeed"))
            .reduce(|_, ticket| ticket)
            .expect("eight fills must give eight tickets")
    };
    let is_held = (0..TRIES).any(|_| {
        device.wake(submit(&queues[0]), blocking.clone());
        begun.recv() == Ok(true)
    });
    if !is_held {
        return Outcome::Skipped("wakers run in the calling thread".into());
    }
    // The device's waker thread is blocked in the first waker. After the release of the device, the thread
    // must run these wakers, too.
    for queue in &queues {
        device.wake(submit(queue), other.clone());
    }
    drop(memory);
    drop(queues);
    drop(device);
    drop(release);
    for _ in 0..2 {
        woken.recv().expect("the wakers of finished work must run");
    }
    Outcome::Passed
}

pub(super) fn giving_device_memory_back_waits_for_work(cx: &Context<'_>) {
    let other = cx.memory(1 << 20);
    for round in 0..6 {
        let (queue, host) = (busy_queue(cx, &other), cx.host(BYTES as usize));
        let memory = cx.memory(BYTES);
        cx.fill(&queue, &memory, BYTES, &[round, 7]);
        cx.download(&queue, &memory, &host, BYTES);
        drop(memory);
        // Dropping the memory has waited for the download, so host memory already has the downloaded bytes.
        assert_holds(
            "a download from memory that was released meanwhile",
            &host,
            0,
            &[round, 7].repeat(BYTES as usize / 2),
        );
    }
}

pub(super) fn giving_host_memory_back_waits_for_work(cx: &Context<'_>) {
    let other = cx.memory(1 << 20);
    for round in 0..6 {
        let mut scene = Scene::new(cx, BYTES as usize, 0);
        let queue = busy_queue(cx, &other);
        let host = cx.host(BYTES as usize);
        host.write(0, &cx.noise(round, BYTES as usize));
        let ticket = cx.upload(&queue, &host, &scene.memory, BYTES);
        drop(host);
        // The device may reuse the address of the released memory. The upload must still have the old bytes.
        let next = cx.host(BYTES as usize);
        next.write(0, &vec![0xBB; BYTES as usize]);
        cx.wait(ticket);
        scene.expected = cx.noise(round, BYTES as usize);
        scene.assert_as_expected("an upload from memory that was released meanwhile");
    }
}

pub(super) fn ending_a_queue_waits_for_its_work(cx: &Context<'_>) {
    let other = cx.memory(1 << 20);
    let (memory, host) = (cx.memory(BYTES), cx.host(BYTES as usize));
    for round in 0..6 {
        let queue = busy_queue(cx, &other);
        cx.fill(&queue, &memory, BYTES, &[round, 9]);
        cx.download(&queue, &memory, &host, BYTES);
        drop(queue);
        assert_holds(
            "a download by a queue that has ended",
            &host,
            0,
            &[round, 9].repeat(BYTES as usize / 2),
        );
    }
}

/// A queue, a buffer or host memory; dropping it releases it.
trait Held {}
impl<T> Held for T {}

pub(super) fn things_can_be_given_back_in_any_order(cx: &Context<'_>) {
    let orders =
        [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1], [1, 2, 0, 3], [2, 0, 3, 1], [3, 0, 1, 2]];
    let watched = cx.host(BYTES as usize);
    for (round, order) in orders.into_iter().enumerate() {
        let [one, other] = [cx.memory(BYTES), cx.memory(BYTES)];
        let (queue, host) = (cx.queue(), cx.host(BYTES as usize));
        let pattern = [round as u8, 3, 5];
        cx.fill(&queue, &one, BYTES, &pattern);
        let copies = [
            Transfer::Internal { from: one.at(0), to: other.at(0), bytes: BYTES },
            Transfer::Download { from: other.at(0), to: host.at(0), bytes: BYTES },
            Transfer::Upload { from: host.at(0), to: one.at(0), bytes: BYTES },
            Transfer::Download { from: one.at(0), to: watched.at(0), bytes: BYTES },
        ];
        let tickets = copies.map(|copy| queue.submit(&[copy]).expect("the copy must succeed"));
        let mut things: [Option<Box<dyn Held + '_>>; 4] =
            [Some(Box::new(one)), Some(Box::new(other)), Some(Box::new(queue)), Some(Box::new(host))];
        for thing in order {
            things[thing] = None;
        }
        cx.wait(tickets[3]);
        let expected: Vec<u8> = pattern.iter().copied().cycle().take(BYTES as usize).collect();
        assert_holds(&format!("objects released in the order {order:?}"), &watched, 0, &expected);
    }
}

pub(super) fn queues_do_not_block_each_others_memory(cx: &Context<'_>) {
    // Two queues use one buffer. The release of one queue must not affect the other queue's work or the
    // buffer.
    let (memory, host) = (cx.memory(BYTES), cx.host(BYTES as usize));
    for round in 0..5 {
        let [one, other] = [cx.queue(), cx.queue()];
        let half = BYTES / 2;
        cx.fill(&one, &memory, half, &[round]);
        other
            .submit(&Fill { to: memory.at(half), bytes: half, pattern: &[round + 100] })
            .expect("the fill must succeed");
        drop(one);
        cx.wait(cx.download(&other, &memory, &host, BYTES));
        let expected: Vec<u8> = [vec![round; half as usize], vec![round + 100; half as usize]].concat();
        assert_holds("memory that two queues wrote", &host, 0, &expected);
    }
}

pub(super) fn memory_in_use_by_others_can_be_given_back_meanwhile(cx: &Context<'_>) {
    let (device, limits) = (cx.device(), cx.limits());
    thread::scope(|scope| {
        for thread in 0..3_u8 {
            scope.spawn(move || {
                let cx = Context::new(device, limits);
                let host = cx.host(20_000);
                for round in 0..30_u8 {
                    let (queue, memory) = (cx.queue(), cx.memory(20_000));
                    let pattern = [thread, round];
                    cx.fill(&queue, &memory, 20_000, &pattern);
                    cx.download(&queue, &memory, &host, 20_000);
                    if round % 2 == 0 {
                        drop(memory);
                    } else {
                        drop(queue);
                    }
                    assert_holds("a download by one of three threads", &host, 0, &pattern.repeat(10_000));
                }
            });
        }
    });
}
