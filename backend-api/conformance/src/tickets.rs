//! Conformance checks of tickets (numbers of submissions), and of calls that observe them (wait, poll, wake).

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use backend_api::{
    Elements, ErrorKind, Fill, Gather, QueueHandle, QueueProgress, Request, Scatter, Search, Ticket, Transfer,
};

use super::context::assert_refused;
use super::scene::Scene;
use super::{Context, indexed};

pub(super) fn tickets_rise_by_one(cx: &Context<'_>) {
    let (memory, host) = (cx.memory(1024), cx.host(1024));
    let elements = Elements { start: memory.at(0), count: 16, stride: 8 };
    host.write(0, &[0; 1024]);
    let knows_kernels = cx.knows(&["search", "gather", "scatter"]);
    let queues = [cx.queue(), cx.queue()];
    for round in 0..5 {
        for (q, queue) in queues.iter().enumerate() {
            // Submit different numbers of requests: each queue must number its own tickets.
            for _ in 0..=q {
                let up = Transfer::Upload { from: host.at(512), to: memory.at(512), bytes: 8 };
                let (value, answer) = (&[1], host.at(256));
                let search = Search { elements, field_offset: 0, value, limit: 0, count_all: true, answer };
                let gather =
                    Gather { elements: elements.into(), indices: host.at(0), count: 2, values: host.at(128) };
                let scatter = Scatter {
                    elements: elements.into(),
                    indices: host.at(0),
                    count: 1,
                    values: host.at(512),
                };
                let fill = Fill { to: memory.at(900), bytes: 9, pattern: &[1] };
                let copies = [up];
                let mut requests = vec![Request::from(&copies), Request::from(&[]), Request::from(&fill)];
                if knows_kernels {
                    requests.extend([Request::from(&search), (&gather).into(), (&scatter).into()]);
                }
                let tickets: Vec<Ticket> = requests
                    .iter()
                    .map(|request| queue.submit(request).expect("the submission must give a ticket"))
                    .collect();
                for pair in tickets.windows(2) {
                    assert_eq!(
                        pair[1].value,
                        pair[0].value + 1,
                        "wrong number of the ticket after {:?}",
                        pair[0]
                    );
                }
                assert!(tickets.iter().all(|t| t.queue == queue.id()), "a ticket must name its queue");
                if round == 0 && q == 0 {
                    assert_eq!(tickets[0].value, 1, "the first ticket of a queue must be 1");
                }
                cx.wait(tickets[tickets.len() - 1]);
            }
        }
    }
    let last = |q: usize| queues[q].submit(&[]).expect("an empty batch must succeed");
    let each = if knows_kernels { 6 } else { 3 };
    assert_eq!(
        [last(0).value, last(1).value],
        [5 * each + 1, 10 * each + 1],
        "wrong number of the last ticket of each queue"
    );
}

pub(super) fn tickets_that_were_never_given_are_unknown(cx: &Context<'_>) {
    let queue = cx.queue();
    let first = Ticket { queue: queue.id(), value: 1 };
    let unknown = |ticket: Ticket| {
        let what = format!("{ticket:?}, which was never issued");
        assert_refused(&what, cx.device().poll(ticket), ErrorKind::UnknownHandle);
        assert_refused(&what, cx.device().wait(ticket), ErrorKind::UnknownHandle);
    };
    unknown(first);
    let given = queue.submit(&[]).expect("an empty batch must succeed");
    cx.wait(given);
    for value in [2, 3, 1000, u64::MAX] {
        unknown(Ticket { value, ..first });
    }
    unknown(Ticket { queue: QueueHandle::unique().id(), value: 1 });
}

pub(super) fn done_stays_done(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 1 << 20, 1 << 20);
    let tickets: Vec<_> = (0..10).map(|k| scene.submit(&[scene.upload(k, 2 * k, 1 << 19)])).collect();
    // Work must also end if the program only polls and never waits.
    let deadline = Instant::now() + cx.limits().patience;
    let mut done = 0;
    while done < tickets.len() {
        match cx.device().poll(tickets[done]).expect("the poll of an issued ticket must succeed") {
            QueueProgress::Done => done += 1,
            QueueProgress::Pending => {
                assert!(
                    Instant::now() < deadline,
                    "the program only polls, and the work did not end before the deadline"
                );
                std::thread::yield_now();
            }
        }
    }
    for ticket in tickets.into_iter().rev() {
        cx.wait(ticket);
        for _ in 0..3 {
            assert_eq!(
                cx.device().poll(ticket).expect("the poll of an issued ticket must succeed"),
                QueueProgress::Done
            );
        }
        cx.wait(ticket);
    }
    scene.assert_as_expected("work that was polled for");
}

pub(super) fn refused_calls_take_no_ticket(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 100, 100);
    let mut last = scene.submit(&[]);
    for _ in 0..3 {
        let beyond = scene.upload(50, 50, 51);
        assert_refused("a copy beyond the end", scene.queue.submit(&[beyond]), ErrorKind::InvalidArgument);
        let fill = Fill { to: scene.memory.at(0), bytes: 101, pattern: &[1] };
        assert_refused("a fill beyond the end", scene.queue.submit(&fill), ErrorKind::InvalidArgument);
        let next = scene.submit(&[scene.upload(0, 1, 9)]);
        assert_eq!(next.value, last.value + 1, "calls that return an error must not take a ticket");
        last = next;
    }
    scene.assert_as_expected("work between refused calls");
}

pub(super) fn tickets_of_an_ended_queue_stay_askable(cx: &Context<'_>) {
    if !cx.knows(&["gather"]) {
        return;
    }
    let queue = cx.queue();
    let first = queue.submit(&[]).expect("an empty batch must succeed");
    let failing = indexed::failing_gather(cx, &queue);
    let last = queue.submit(&[]).expect("an empty batch must succeed");
    drop(queue);
    for ticket in [first, failing.ticket, last] {
        let progress =
            cx.device().poll(ticket).expect("the poll of a ticket of a released queue must succeed");
        assert_eq!(progress, QueueProgress::Done, "{ticket:?} of a released queue is not done");
        cx.wait(ticket);
        let woken = Woken::new();
        cx.device().wake(ticket, woken.waker.clone());
        woken.assert_comes(1, cx.limits().patience);
    }
    let never = Ticket { value: last.value + 1, ..last };
    let refused = cx.device().poll(never);
    assert_refused("a ticket that a released queue never issued", refused, ErrorKind::UnknownHandle);
}

pub(super) fn many_threads_wait_for_one_ticket(cx: &Context<'_>) {
    if !cx.knows(&["gather"]) {
        return;
    }
    let mut scene = Scene::new(cx, 1 << 20, 1 << 20);
    let device = cx.device();
    for round in 0..5 {
        let before = scene.submit(&[scene.upload(round, 0, 1 << 19), scene.upload(0, 1 << 19, 1 << 19)]);
        let failing = indexed::failing_gather(cx, &scene.queue);
        let last = scene.submit(&[scene.download(5, 5, 1 << 19)]);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let failed = failing.ticket;
                scope.spawn(move || match thread % 4 {
                    0 => device.wait(last).expect("the work must succeed"),
                    1 => device.wait(before).expect("the work must succeed"),
                    2 => assert_refused(
                        "the wait of one of many threads for failed work",
                        device.wait(failed),
                        ErrorKind::KernelFailed,
                    ),
                    _ => {
                        while device.poll(last).expect("the work must succeed") == QueueProgress::Pending {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
    }
    scene.assert_as_expected("work that many threads waited for");
}

/// A waker, and a channel that receives a message at each wake-up.
struct Woken {
    waker: Waker,
    times: Receiver<()>,
}

struct Telling(Sender<()>);

impl Wake for Telling {
    fn wake(self: Arc<Self>) {
        // After a failed check the receiver no longer exists. Ignore the error of the send.
        let _ = self.0.send(());
    }
}

impl Woken {
    fn new() -> Self {
        let (sender, times) = mpsc::channel();
        Self { waker: Arc::new(Telling(sender)).into(), times }
    }

    /// Blocks until the waker has been woken `times` more times.
    #[track_caller]
    fn assert_comes(&self, times: u32, patience: Duration) {
        for time in 0..times {
            let woken = self.times.recv_timeout(patience).is_ok();
            assert!(woken, "woken {time} times instead of {times} within {patience:?}");
        }
    }

    /// Asserts that the waker was woken `times` more times since the last call.
    #[track_caller]
    fn assert_came(&self, times: usize) {
        assert_eq!(self.times.try_iter().count(), times, "wrong number of wake-ups");
    }
}

pub(super) fn wakers_are_woken_once_when_work_is_done(cx: &Context<'_>) {
    let mut scene = Scene::new(cx, 1 << 20, 1 << 20);
    let mut asked = Vec::new();
    for k in 0..20 {
        let ticket = scene.submit(&[scene.upload(k, 20 - k, 1 << 19)]);
        let woken = Woken::new();
        cx.device().wake(ticket, woken.waker.clone());
        asked.push((ticket, woken));
    }
    // The device must run the wakers even if no thread waits or polls.
    for (ticket, woken) in &asked {
        woken.assert_comes(1, cx.limits().patience);
        let progress = cx.device().poll(*ticket).expect("the work must succeed");
        assert_eq!(progress, QueueProgress::Done, "{ticket:?} is not done when its waker runs");
    }
    let last = scene.submit(&[scene.upload(0, 0, 100)]);
    scene.settle(last);
    for (_, woken) in &asked {
        woken.assert_came(0);
    }
    scene.assert_as_expected("work with a waker");
}

pub(super) fn wakers_for_done_work_run_at_once(cx: &Context<'_>) {
    let queue = cx.queue();
    let done = queue.submit(&[]).expect("an empty batch must succeed");
    cx.wait(done);
    for _ in 0..3 {
        let woken = Woken::new();
        cx.device().wake(done, woken.waker.clone());
        woken.assert_came(1);
    }
}

pub(super) fn wakers_for_work_that_fails_are_woken(cx: &Context<'_>) {
    if !cx.knows(&["gather"]) {
        return;
    }
    let queue = cx.queue();
    let failing = indexed::failing_gather(cx, &queue);
    let woken = Woken::new();
    cx.device().wake(failing.ticket, woken.waker.clone());
    woken.assert_comes(1, cx.limits().patience);
    assert_refused("the poll after the waker", cx.device().poll(failing.ticket), ErrorKind::KernelFailed);
    cx.device().wake(failing.ticket, woken.waker.clone());
    woken.assert_came(1);
}

pub(super) fn wakers_from_many_threads_are_all_woken(cx: &Context<'_>) {
    const EACH: u32 = 25;
    let mut scene = Scene::new(cx, 1 << 20, 1 << 20);
    let (woken, device) = (Woken::new(), cx.device());
    for round in 0..4 {
        let tickets = [0, 1, 2, 3].map(|k| scene.submit(&[scene.upload(k, round, 1 << 18)]));
        std::thread::scope(|scope| {
            for ticket in tickets {
                let waker = &woken.waker;
                scope.spawn(move || {
                    for _ in 0..EACH {
                        device.wake(ticket, waker.clone());
                    }
                    device.wait(ticket).expect("the work must succeed");
                });
            }
        });
        woken.assert_comes(4 * EACH, cx.limits().patience);
    }
    let ticket = scene.submit(&[]);
    scene.settle(ticket);
    woken.assert_came(0);
    scene.assert_as_expected("work with several wakers");
}
