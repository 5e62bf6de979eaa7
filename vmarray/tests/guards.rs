//! Guards of several arrays in one thread: in which order they may wait for each other.

mod common;

use std::sync::mpsc;
use std::thread;

use common::Shape;
use vmarray::{ErrorKind, VirtualArray};

fn array() -> VirtualArray<u32> {
    Shape { frames: 8, channels: vec![1], ..Shape::default() }.build(64)
}

/// Runs `wait` while another thread has page 0 of `array` exclusively, which it gives back only when somebody waits.
fn while_page_0_is_taken<R>(array: &VirtualArray<u32>, wait: impl FnOnce() -> R) -> R {
    let (is_taken, taken) = mpsc::channel();
    let (end, is_over) = mpsc::channel::<()>();
    thread::scope(|threads| {
        threads.spawn(move || {
            let _page = array.page_mut(0).unwrap();
            let before = array.stats().total().waits;
            is_taken.send(()).unwrap();
            while array.stats().total().waits == before
                && is_over.try_recv() == Err(mpsc::TryRecvError::Empty)
            {
                thread::yield_now();
            }
        });
        taken.recv().unwrap();
        let result = wait();
        drop(end);
        result
    })
}

#[test]
fn a_holder_of_an_older_array_waits_for_a_younger_one_and_not_the_other_way_round() {
    let (older, younger) = (array(), array());
    let _held = older.page_mut(7).unwrap();
    while_page_0_is_taken(&younger, || younger.page(0).map(drop)).unwrap();
    drop(_held);
    let _held = younger.page(7).unwrap();
    let error = while_page_0_is_taken(&older, || older.page(0).map(drop)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WouldDeadlock { page: 0 });
}

#[test]
fn two_arrays_are_walked_in_parallel_while_others_do_the_same() {
    let (a, b) = (array(), array());
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..50 {
                    for (a, b) in a.pages_mut().zip(b.pages_mut()) {
                        a.unwrap().iter_mut().zip(b.unwrap().iter_mut()).for_each(|(a, b)| {
                            *a += 1;
                            *b += 2;
                        });
                    }
                }
            });
        }
    });
    assert!(a.iter().all(|x| x.unwrap() == 200));
    assert!(b.iter().all(|x| x.unwrap() == 400));
}

#[test]
fn a_leaked_guard_troubles_its_thread_only_as_long_as_its_array_lives() {
    let (survivor, leaky) = (array(), array());
    std::mem::forget(leaky.page(3).unwrap());
    let error = while_page_0_is_taken(&survivor, || survivor.get(0)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WouldDeadlock { page: 0 });
    drop(leaky);
    assert_eq!(while_page_0_is_taken(&survivor, || survivor.get(0)).unwrap(), 0);
}
