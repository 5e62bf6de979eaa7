//! Conformance checks of the order of work, within a queue and after submissions to other queues.

use backend_api::{ErrorKind, QueueHandle, Ticket, Transfer};

use super::context::{assert_holds, assert_refused};
use super::scene::{Gathered, Scattered, Scene};
use super::{Context, indexed};

pub(super) fn work_in_a_queue_sees_earlier_work(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 70_000, 70_000);
    // Each step reads the bytes that the previous step wrote. The program does not wait between the steps.
    for step in 0..60 {
        let at = step * 1000;
        scene.submit(&[scene.upload(at, at + 3, 1500)]);
        scene.submit(&[scene.internal(at + 3, at + 1600, 1400)]);
        scene.fill(at + 1700, 100, &[step as u8, 1, 2]);
        scene.submit(&[scene.download(at + 1600, at + 1000, 1400)]);
    }
    scene.assert_as_expected("a chain of copies and fills");
}

pub(super) fn the_last_of_many_writes_stays(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 10_000, 100_000);
    for round in 0..300_usize {
        match round % 3 {
            0 => scene.fill(round, 5000, &round.to_le_bytes()),
            1 => scene.submit(&[scene.upload(round * 7, round, 5000)]),
            _ => scene.submit(&[scene.internal(0, 5000, 4000), scene.upload(1, 0, 0)]),
        };
    }
    scene.assert_as_expected("writes to one place");
}

pub(super) fn kernels_and_copies_keep_their_order(cx: &Context<'_>) {
    if !cx.knows(&["gather", "scatter"]) {
        return;
    }
    const COUNT: usize = 500;
    const STRIDE: usize = 12;
    let mut scene = Scene::new(cx, COUNT * STRIDE, 4 * COUNT * STRIDE);
    let elements = scene.elements(0, COUNT, STRIDE);
    let indices: Vec<u64> = (0..COUNT as u64).map(|i| i * 7 % COUNT as u64).collect();
    let (values, back) = (COUNT * 8, COUNT * 8 + COUNT * STRIDE);
    scene.write_indices(0, &indices);
    for round in 0..30_u8 {
        // The scatter's values are the results of the previous round.
        scene.indexed(Scattered, elements, COUNT, [0, values]);
        scene.fill(usize::from(round) * STRIDE, STRIDE, &[round, 0xFF]);
        scene.indexed(Gathered, elements, COUNT, [0, back]);
        scene.submit(&[scene.download(0, values, COUNT * STRIDE)]);
    }
    scene.assert_as_expected("scatter, fill, gather, download, thirty times");
}

pub(super) fn done_means_all_work_before_is_done(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 1 << 20, 1 << 20);
    let mut tickets = Vec::new();
    for i in 0..8 {
        tickets.push(scene.submit(&[scene.download(i << 17, (7 - i) << 17, 1 << 17)]));
    }
    // Submit a small copy after a large one in the same queue.
    tickets.push(scene.submit(&[scene.download(3, 5, 1)]));
    let last = *tickets.last().expect("the loop has submitted nine batches");
    cx.wait(last);
    for ticket in tickets {
        let progress =
            cx.device().poll(ticket).expect("the poll of a ticket before a finished one must succeed");
        assert_eq!(
            progress,
            backend_api::QueueProgress::Done,
            "{ticket:?} is not done, but the later {last:?} is"
        );
    }
    assert_holds("downloads, read after the last one", &scene.host, 0, &scene.expected_host);
}

/// Checks `order_after` with data that passes through three queues in a ring.
pub(super) fn order_after_carries_effects_between_queues(cx: &Context<'_>) {
    const BYTES: u64 = 100_000;
    const ROUNDS: u64 = 30;
    let queues = [cx.queue(), cx.queue(), cx.queue()];
    let (one, other) = (cx.memory(BYTES), cx.memory(BYTES + ROUNDS * 16));
    let host = cx.host(BYTES as usize);
    let mut last: Option<Ticket> = None;
    let then = |queue: usize, last: Option<Ticket>| {
        if let Some(last) = last {
            queues[queue].order_after(last).expect("`order_after` must accept a ticket of another queue");
        }
        &queues[queue]
    };
    for round in 0..ROUNDS {
        let pattern = (round * 0x0101_0101_0101 + 1).to_le_bytes();
        last = Some(cx.fill(then(0, last), &one, BYTES, &pattern));
        last = Some(cx.download(then(1, last), &one, &host, BYTES));
        last = Some(cx.upload(then(2, last), &host, &other, BYTES));
        // Save the last pattern that the copy delivered whole, to compare it at the end.
        let from = other.at(BYTES / 16 * 16 - 16);
        let keep = Transfer::Internal { from, to: other.at(BYTES + round * 16), bytes: 16 };
        last = Some(then(0, last).submit(&[keep]).expect("the internal copy must succeed"));
    }
    let evidence = cx.host((ROUNDS * 16) as usize);
    let down = Transfer::Download { from: other.at(BYTES), to: evidence.at(0), bytes: ROUNDS * 16 };
    cx.wait(then(1, last).submit(&[down]).expect("the download must succeed"));
    let expected: Vec<u8> =
        (0..ROUNDS).flat_map(|round| (round * 0x0101_0101_0101 + 1).to_le_bytes().repeat(2)).collect();
    assert_holds("data that passed through three queues", &evidence, 0, &expected);
}

pub(super) fn order_after_several_tickets_waits_for_all(cx: &Context<'_>) {
    const PART: u64 = 200_000;
    let sources: Vec<_> = (0..3).map(|_| (cx.queue(), cx.memory(PART))).collect();
    let (sink, host) = (cx.queue(), cx.host(3 * PART as usize));
    for round in 0..6_u8 {
        for (i, (queue, memory)) in sources.iter().enumerate() {
            let pattern = [round * 3 + i as u8, 0x11];
            sink.order_after(cx.fill(queue, memory, PART, &pattern))
                .expect("`order_after` must accept a ticket of another queue");
        }
        let places = (0..3).map(|i| host.at(i * PART)).zip(&sources);
        let downloads: Vec<_> = places
            .map(|(to, (_, memory))| Transfer::Download { from: memory.at(0), to, bytes: PART })
            .collect();
        let done = sink.submit(&downloads).expect("the downloads must succeed");
        for (queue, _) in &sources {
            queue.order_after(done).expect("`order_after` must accept a ticket of another queue");
        }
        cx.wait(done);
        let expected: Vec<u8> =
            (0..3).flat_map(|i| [round * 3 + i, 0x11].repeat(PART as usize / 2)).collect();
        assert_holds("memory that three queues wrote", &host, 0, &expected);
    }
}

pub(super) fn order_after_in_both_directions_does_not_block(cx: &Context<'_>) {
    let (a, b, memory) = (cx.queue(), cx.queue(), cx.memory(4096));
    let mut last = None;
    for round in 0..200_u32 {
        for queue in [&a, &b] {
            if let Some(last) = last {
                queue.order_after(last).expect("`order_after` must accept a ticket of another queue");
            }
            last = Some(cx.fill(queue, &memory, 4096, &round.to_le_bytes()));
        }
    }
    cx.wait(last.expect("the submission must give a ticket"));
    let mut scene = Scene::new(cx, 4096, 0);
    let copy = Transfer::Internal { from: memory.at(0), to: scene.memory.at(0), bytes: 4096 };
    let ticket = scene.queue.submit(&[copy]).expect("the internal copy must succeed");
    scene.settle(ticket);
    scene.expected = 199_u32.to_le_bytes().repeat(1024);
    scene.assert_as_expected("memory after two hundred rounds");
}

pub(super) fn order_after_takes_any_ticket_of_the_device(cx: &Context<'_>) {
    if !cx.knows(&["gather"]) {
        return;
    }
    let mut scene = Scene::new(cx, 1000, 1000);
    let other = cx.queue();
    let done = other.submit(&[]).expect("an empty batch must succeed");
    cx.wait(done);
    let before = scene.submit(&[scene.upload(0, 0, 10)]);
    scene.queue.order_after(done).expect("`order_after` must accept a ticket of finished work");
    scene.queue.order_after(done).expect("`order_after` must accept the same ticket again");
    scene.queue.order_after(before).expect("`order_after` must accept a ticket of its own queue");
    let failing = indexed::failing_gather(cx, &other);
    let failed = failing.ticket;
    scene.queue.order_after(failed).expect("`order_after` must accept a ticket of work that fails");
    let after = scene.submit(&[scene.upload(10, 10, 20)]);
    assert_eq!(after.value, before.value + 1, "`order_after` must not issue a ticket");
    scene.assert_as_expected("work ordered after finished work, its own queue's work, and failed work");
    assert_refused("a wait for failed work", cx.device().wait(failed), ErrorKind::KernelFailed);
    scene.queue.order_after(failed).expect("`order_after` must accept a ticket of failed work");
    scene.submit(&[scene.upload(30, 30, 40)]);
    scene.assert_as_expected("work ordered after failed work");
}

pub(super) fn order_after_refuses_unknown_tickets(cx: &Context<'_>) {
    let queue = cx.queue();
    let ticket = queue.submit(&[]).expect("an empty batch must succeed");
    let (device, unknown) = (cx.device(), ErrorKind::UnknownHandle);
    let refused = device.order_after(&QueueHandle::unique(), ticket);
    assert_refused("an order in an unknown queue", refused, unknown);
    for never in [
        Ticket { queue: QueueHandle::unique().id(), value: 1 },
        Ticket { value: ticket.value + 1, ..ticket },
        Ticket { value: u64::MAX, ..ticket },
    ] {
        assert_refused("an order after a ticket that was never issued", queue.order_after(never), unknown);
    }
    cx.wait(queue.submit(&[]).expect("an empty batch must succeed"));
}

pub(super) fn work_goes_on_after_a_failure(cx: &Context<'_>) {
    if !cx.knows(&["gather"]) {
        return;
    }
    let mut scene = Scene::new(cx, 5000, 5000);
    for round in 0..5 {
        let before = scene.submit(&[scene.upload(round, 100 * round, 1000)]);
        let failing = indexed::failing_gather(cx, &scene.queue);
        let failed = failing.ticket;
        let after = scene.submit(&[scene.internal(100 * round, 2500, 1000)]);
        let values = [failed.value, after.value];
        assert_eq!(
            values,
            [before.value + 1, before.value + 2],
            "wrong ticket numbers before and after a failure"
        );
        cx.wait(after);
        cx.wait(before);
        for _ in 0..2 {
            assert_refused("the wait for a failure", cx.device().wait(failed), ErrorKind::KernelFailed);
            assert_refused("the poll of a failure", cx.device().poll(failed), ErrorKind::KernelFailed);
        }
        scene.assert_as_expected("work before and after a failure");
    }
}
