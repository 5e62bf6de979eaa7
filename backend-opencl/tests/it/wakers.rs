//! Tests of wakers that use the device. The backend runs wakers without a lock, and while no driver waits, so
//! they cannot deadlock.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use backend_api::{Device, Elements, Fill, Gather, HostMemory, QueueProgress, Transfer};
use backend_opencl::OpenClOptions;
use vmarray_conformance::{Outcome, check_drop};

use crate::{Scene, chosen, open};

const BYTES: u64 = 16 << 20;

/// A queue of each device, and memory of [`BYTES`].
fn scenes() -> impl Iterator<Item = Scene> {
    let scene = |found| Scene::new(&found, &OpenClOptions::new(), BYTES, (BYTES, HostMemory::Pinned));
    chosen().into_iter().map(scene)
}

/// A waker that runs a closure, and reports its end.
fn waker(work: impl FnOnce() + Send + 'static) -> (Waker, Receiver<()>) {
    let ((done, ended), work) = (channel(), Mutex::new(Some(work)));
    let run = move || {
        let work = work.lock().expect("no panic").take().expect("woken once");
        work();
        done.send(()).unwrap_or_default();
    };
    (backend_api::waker(run), ended)
}

#[test]
fn a_waker_can_submit_and_wait_in_the_same_queue() {
    for Scene { device, queue, memory, .. } in scenes() {
        let (queue, memory) = (Arc::new(queue), Arc::new(memory));
        let fill = |pattern| Fill { to: memory.at(0), bytes: BYTES, pattern };
        let first = queue.submit(&fill(&[1])).unwrap();
        let (waker, ended) = waker({
            let (device, queue, memory) = (Arc::clone(&device), Arc::clone(&queue), Arc::clone(&memory));
            move || {
                assert_eq!(device.poll(first), Ok(QueueProgress::Done));
                let again = queue.submit(&Fill { to: memory.at(0), bytes: BYTES, pattern: &[2] }).unwrap();
                device.wait(again).unwrap();
                assert_eq!(device.memory().unwrap().total_bytes, device.info().total_bytes);
            }
        });
        device.wake(first, waker);
        // Meanwhile this thread works and waits in the same queue.
        for _ in 0..20 {
            device.wait(queue.submit(&fill(&[3])).unwrap()).unwrap();
        }
        ended.recv().expect("the waker ran to its end");
    }
}

#[test]
fn a_waker_can_release_the_memory_of_its_work() {
    for Scene { device, queue, memory, host } in scenes() {
        let copy = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: BYTES };
        let first = queue.submit(&[copy]).unwrap();
        // When the waker runs, later work still uses all of the memory.
        for _ in 0..10 {
            queue.submit(&[copy]).unwrap();
        }
        let (waker, ended) = waker(move || drop((memory, host, queue)));
        device.wake(first, waker);
        ended.recv().expect("the waker ran to its end");
        assert_eq!(device.poll(first), Ok(QueueProgress::Done));
    }
}

#[test]
fn a_waker_can_drop_the_device() {
    for Scene { device, queue, memory, host } in scenes() {
        drop(host);
        let first = queue.submit(&Fill { to: memory.at(0), bytes: BYTES, pattern: &[1] }).unwrap();
        let (other, other_ended) = waker(|| ());
        let last = queue.submit(&Fill { to: memory.at(0), bytes: BYTES, pattern: &[2] }).unwrap();
        let (waker, ended) = waker({
            let device = Arc::clone(&device);
            move || drop((memory, queue, device))
        });
        let registered = Arc::downgrade(&device);
        device.wake(last, other);
        device.wake(first, waker);
        drop(device);
        ended.recv().expect("the waker ran to its end");
        other_ended.recv().expect("other wakers are woken all the same");
        assert_eq!(registered.strong_count(), 0);
    }
}

#[test]
fn a_drop_waits_for_no_waker() {
    for found in chosen() {
        let outcome = check_drop(open(&found, &OpenClOptions::new()));
        assert!(!matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    }
}

/// Long runs of gathers hold the queue while they wait for the verdict places of old ones.
#[test]
fn a_waker_that_submits_does_not_stop_a_submission_that_waits() {
    const COUNT: u64 = 64;
    for Scene { device, queue, memory, host } in scenes() {
        let queue = Arc::new(queue);
        let elements = Elements { start: memory.at(0), count: COUNT, stride: 8 };
        let gather = Gather {
            elements: elements.into(),
            indices: host.at(0),
            count: COUNT,
            values: host.at(COUNT * 8),
        };
        let mut ends = Vec::new();
        for round in 0..700 {
            let ticket = queue.submit(&gather).unwrap();
            if round % 50 == 0 {
                let (waker, ended) = waker({
                    let (device, queue) = (Arc::clone(&device), Arc::clone(&queue));
                    move || device.wait(queue.submit(&[]).unwrap()).unwrap()
                });
                device.wake(ticket, waker);
                ends.push(ended);
            }
        }
        for ended in ends {
            ended.recv().expect("the waker ran to its end");
        }
    }
}
