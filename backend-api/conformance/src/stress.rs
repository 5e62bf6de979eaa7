//! Conformance stress tests of a device: random sequences of requests, from many threads, on many queues.

use std::sync::Arc;

use parking_lot::Mutex;

use backend_api::wrap::SplitMix64;
use backend_api::{Device, Fill, Transfer};

use super::context::assert_holds;
use super::scene::{Gathered, Scattered, Scene};
use super::{Context, Limits};

const MEMORY: usize = 60_000;
const HOST: usize = 50_000;

/// Submits one random request of a random kind.
fn step(scene: &mut Scene<'_>, random: &mut SplitMix64, knows_kernels: bool) {
    let mut below = |bound: usize| random.index(bound);
    let bytes = [1, 16, 300, 5000, 20_000][below(5)];
    let bytes = below(bytes + 1);
    match below(10) {
        0 | 1 => {
            let copy = scene.upload(below(HOST - bytes), below(MEMORY - bytes), bytes);
            scene.submit(&[copy]);
        }
        2 | 3 => {
            let copy = scene.download(below(MEMORY - bytes), below(HOST - bytes), bytes);
            scene.submit(&[copy]);
        }
        4 => {
            let (low, high) = (below(10_000), 30_000 + below(10_000));
            let copy = if bytes % 2 == 0 { (low, high) } else { (high, low) };
            scene.submit(&[scene.internal(copy.0, copy.1, bytes)]);
        }
        5 => {
            let pattern: Vec<u8> = (0..=below(40)).map(|_| below(256) as u8).collect();
            scene.fill(below(MEMORY - bytes), bytes, &pattern);
        }
        6 => {
            // The copies of a batch may run in any order, so each copy writes to its own range.
            let pieces: Vec<_> = (0..below(30))
                .map(|k| match k % 2 {
                    0 => scene.upload(25_000 + below(20_000), k * 900, below(900)),
                    _ => scene.download(30_000 + below(20_000), k * 800, below(800)),
                })
                .collect();
            scene.submit(&pieces);
        }
        kernel if knows_kernels => {
            let (stride, start) = (1 + below(70), below(1000));
            let count = 1 + below(700);
            let elements = scene.elements(start, count, stride);
            let wanted = below(count.min(200));
            if kernel == 7 {
                // Take the searched value from the expected contents, which equal the device's memory.
                let index = below(count);
                let size = 1 + below(stride.min(3));
                let field = start + index * stride;
                let value = scene.expected[field..field + size].to_vec();
                scene.search(elements, (0, &value), (wanted as u64, below(2) == 0), 8 * below(1000));
                return;
            }
            // Wait for all submitted work, because the code below writes host memory that the work may use.
            scene.finish();
            let mut order: Vec<u64> = (0..count as u64).collect();
            for i in 0..wanted {
                order.swap(i, i + below(count - i));
            }
            let indices = 8 * below(100);
            scene.write_indices(indices, &order[..wanted]);
            let values = 5000 + below(20_000);
            let by = if kernel == 8 { Gathered } else { Scattered };
            scene.indexed(by, elements, wanted, [indices, values]);
        }
        _ => {}
    }
}

/// Returns the random number generator of the random program `program`. It depends on the seed in the
/// [`Limits`](super::Limits).
fn random(cx: &Context<'_>, program: u64) -> SplitMix64 {
    SplitMix64::new(SplitMix64::new(cx.limits().seed).next() ^ program)
}

pub(super) fn random_programs_in_one_queue(cx: &Context<'_>) {
    let knows_kernels = cx.knows(&["search", "gather", "scatter"]);
    for program in 0..4 {
        let mut random = random(cx, program);
        let mut scene = Scene::new(cx, MEMORY, HOST);
        for round in 0..100 {
            step(&mut scene, &mut random, knows_kernels);
            if round % 25 == 24 {
                scene.assert_as_expected(&format!("random program {program}, after {round} steps"));
            }
        }
    }
}

pub(super) fn random_programs_that_move_between_queues(cx: &Context<'_>) {
    let knows_kernels = cx.knows(&["search", "gather", "scatter"]);
    for program in 10..14 {
        let mut random = random(cx, program);
        let mut scene = Scene::new(cx, MEMORY, HOST);
        let mut resting = vec![cx.queue(), cx.queue(), cx.queue()];
        for round in 0..100 {
            if random.below(3) == 0 {
                let next = resting.swap_remove(random.below(3) as usize);
                let former = scene.go_on_in(next);
                resting.push(former);
            }
            step(&mut scene, &mut random, knows_kernels);
            if round % 50 == 49 {
                scene.assert_as_expected(&format!(
                    "random program {program} in four queues, after {round} steps"
                ));
            }
        }
    }
}

pub(super) fn threads_with_queues_of_their_own(cx: &Context<'_>) {
    let (device, limits) = (cx.device(), cx.limits());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || threads_program(device, limits, thread));
        }
    });
}

fn threads_program(device: &Arc<dyn Device>, limits: Limits, thread: u64) {
    let cx = Context::new(device, limits);
    let knows_kernels = cx.knows(&["search", "gather", "scatter"]);
    let mut random = random(&cx, 100 + thread);
    for _ in 0..2 {
        let mut scene = Scene::new(&cx, MEMORY, HOST);
        for _ in 0..40 {
            step(&mut scene, &mut random, knows_kernels);
        }
        scene.assert_as_expected(&format!("the random program of thread {thread}"));
    }
}

pub(super) fn threads_that_share_a_queue(cx: &Context<'_>) {
    const THREADS: usize = 4;
    const EACH: usize = 60;
    const PART: usize = 10_000;
    let (queue, memory, host) = (cx.queue(), cx.memory((THREADS * PART) as u64), cx.host(2 * THREADS * PART));
    host.write(0, &cx.noise(12, THREADS * PART));
    let tickets = Mutex::new(Vec::new());
    let device = cx.device();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (queue, memory, host, tickets) = (&queue, &memory, &host, &tickets);
            scope.spawn(move || {
                let at = (thread * PART) as u64;
                for round in 0..EACH as u64 {
                    let pattern = [thread as u8, round as u8];
                    let fill = Fill { to: memory.at(at), bytes: PART as u64, pattern: &pattern };
                    let up = Transfer::Upload { from: host.at(at), to: memory.at(at), bytes: PART as u64 };
                    let to = host.at((THREADS * PART) as u64 + at);
                    let down = Transfer::Download { from: memory.at(at), to, bytes: PART as u64 };
                    let mine = [
                        queue.submit(&fill).expect("the fill must succeed"),
                        queue.submit(&[up]).expect("the upload must succeed"),
                        queue.submit(&[down]).expect("the download must succeed"),
                    ];
                    assert!(mine.is_sorted(), "the tickets of a thread must ascend: {mine:?}");
                    if round % 8 == 0 {
                        device.wait(mine[1]).expect("the work must succeed");
                    }
                    tickets.lock().extend(mine.map(|ticket| ticket.value));
                }
            });
        }
    });
    let mut tickets = tickets.into_inner();
    tickets.sort_unstable();
    assert!(
        tickets.iter().copied().eq(1..=(3 * THREADS * EACH) as u64),
        "the queue must issue each ticket once"
    );
    cx.wait(queue.submit(&[]).expect("an empty batch must succeed"));
    let sent = cx.noise(12, THREADS * PART);
    assert_holds("data that threads sent through one queue", &host, THREADS * PART, &sent);
}

pub(super) fn queues_come_and_go(cx: &Context<'_>) {
    let (device, limits) = (cx.device(), cx.limits());
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let cx = Context::new(device, limits);
                let mut scene = Scene::new(&cx, 4096, 4096);
                for round in 0..40 {
                    let former = scene.go_on_in(cx.queue());
                    scene.submit(&[scene.upload(round, thread, 4000)]);
                    drop(former);
                    scene.submit(&[scene.download(round, 2 * round, 4000)]);
                }
                scene.assert_as_expected("work in queues that come and go");
            });
        }
    });
}
