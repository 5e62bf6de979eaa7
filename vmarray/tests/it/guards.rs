//! Tests of guards of several arrays in one thread: the permitted orders of waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use vmarray::prelude::*;

use crate::common::executor::block_on;
use crate::common::{Shape, together};
use vmarray::{ErrorKind, Field, VirtualArray};

fn array() -> VirtualArray<u32> {
    Shape { frames: 8, channels: vec![1], ..Shape::default() }.build(64)
}

/// Runs `wait` while another thread holds page 0 of `array` exclusively, and releases it only when a thread
/// waits.
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
    together(4, |_| {
        for (a, b) in (0..50).flat_map(|_| a.pages_mut().zip(b.pages_mut())) {
            a.unwrap().iter_mut().zip(b.unwrap().iter_mut()).for_each(|(a, b)| {
                *a += 1;
                *b += 2;
            });
        }
    });
    assert!(a.iter().all(|x| x.unwrap() == 200));
    assert!(b.iter().all(|x| x.unwrap() == 400));
}

#[test]
fn an_iterator_has_an_item_for_each_element_and_tries_once() {
    let array = array();
    array.for_each_mut(.., |index, value| *value = index as u32).unwrap();
    let held = array.page_mut(2).unwrap();
    let (before, behind) = (0..held.range().start, held.range().end..array.len());
    let in_order: Vec<_> = array.iter().collect();
    let mut backwards: Vec<_> = array.iter().rev().collect();
    backwards.reverse();
    let mut folded = Vec::new();
    array.iter().for_each(|value| folded.push(value));
    for (seen, is_read) in [(in_order, &before), (backwards, &behind), (folded, &before)] {
        assert_eq!(seen.len(), array.len());
        for (index, value) in seen.into_iter().enumerate() {
            assert_eq!(value.ok(), is_read.contains(&index).then_some(index as u32));
        }
    }
}

/// A device that panics on command.
#[derive(Debug)]
struct Panicking {
    inner: vmarray::host::HostDevice,
    panics: AtomicBool,
}

// SAFETY: the inner device does all work.
unsafe impl vmarray::device::Device for Panicking {
    vmarray::device::forward! { self => self.inner;
        info memory create_queue release_queue allocate allocate_extensible extend release allocate_host import_host
        release_host
        prepare poll wait wake order_after
    }

    fn submit(
        &self,
        queue: &vmarray::device::QueueHandle,
        request: &vmarray::device::Request<'_>,
    ) -> vmarray::device::Result<vmarray::device::Ticket> {
        assert!(!self.panics.load(Ordering::Relaxed), "the test asked for this panic");
        self.inner.submit(queue, request)
    }
}

#[test]
fn an_iterator_reads_no_page_that_a_panic_made_it_let_go() {
    let inner = vmarray::host::HostDevice::new(1 << 20).unwrap();
    let device = std::sync::Arc::new(Panicking { inner, panics: AtomicBool::new(false) });
    let builder = VirtualArray::<u32>::builder(40).devices([crate::common::as_any(&device)]).page_len(10);
    let array = builder.frames_per_channel(16).build().unwrap();
    array.for_each_mut(.., |index, value| *value = index as u32).unwrap();
    array.evict(..).unwrap();
    let mut iter = array.iter();
    assert_eq!(iter.next_back().unwrap().unwrap(), 39);
    device.panics.store(true, Ordering::Relaxed);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| iter.next().map(drop)));
    assert!(caught.is_err());
    device.panics.store(false, Ordering::Relaxed);
    // Other threads can use the page, and the counts are correct.
    array.page_mut(3).unwrap().fill(7);
    assert_eq!((iter.len(), iter.next_back().unwrap().unwrap(), iter.len()), (39, 7, 38));
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

#[test]
fn refusals_because_of_a_guard_depend_only_on_the_guard() {
    let value = Field::<u32, u32>::whole;
    // Test each earlier state: empty, contents at home, zeroes at home, contents only in a frame.
    let befores: [fn(&VirtualArray<u32>); 4] = [
        |_| (),
        |array| array.fill(.., 1).and_then(|()| array.evict(..)).unwrap(),
        |array| assert_eq!(array.sum(.., Field::<u32, u32>::whole()).unwrap(), 0),
        |array| array.fill(.., 1).unwrap(),
    ];
    for (number, before) in befores.into_iter().enumerate() {
        let array = array();
        before(&array);
        let refused = |what: &str, result: vmarray::Result<()>| {
            let error = result.expect_err(&format!("{what} after {number}"));
            assert_eq!(*error.kind(), ErrorKind::WouldDeadlock { page: 3 }, "{what} after {number}");
        };
        let first = array.page_range(3).start;
        let mut page = array.page_mut(3).unwrap();
        page[0] = 7;
        // Run twice, because a run may change the state for the next.
        for _ in 0..2 {
            refused("get", array.get(first).map(|_: u32| ()));
            refused("set", array.set(first, 1));
            refused("page", array.page(3).map(drop));
            refused("to_vec", array.to_vec(..).map(drop));
            refused("write", array.write(0, &[1; 64]));
            refused("get_async", block_on(array.get_async(first)).map(|_: u32| ()));
            refused("set_async", block_on(array.set_async(first, 1)));
            refused("page_async", block_on(array.page_async(3)).map(drop));
            refused("flush_async", block_on(array.flush_async(..)));
            refused("count_where", array.count_where(.., value().eq(7)).map(drop));
            refused("find", array.find(value(), &7).map(drop));
            refused("sum", array.sum(.., value()).map(drop));
            refused("transform", array.transform(.., value().set(1)));
            refused("gather", array.gather(&[0, first]).map(drop));
            refused("scatter", array.scatter(&[0, first + 1], &[1, 2]));
            refused("flush", array.flush(..));
            refused("evict", array.evict(..));
        }
        // Accesses to other pages are not refused.
        let others = array.page_range(4).start..;
        array.transform(others.clone(), value().set(2)).unwrap();
        array.count_where(others.clone(), value().eq(2)).unwrap();
        array.flush(others.clone()).unwrap();
        assert_eq!((array.get(others.start).unwrap(), block_on(array.get_async(63)).unwrap()), (2, 2));
        drop(page);
        assert_eq!(array.count_where(.., value().eq(7)).unwrap(), 1, "after {number}");
        let page = array.page(3).unwrap();
        for _ in 0..2 {
            assert_eq!(array.count_where(.., value().eq(7)).unwrap(), 1, "after {number}");
            array.flush(..).unwrap();
            assert_eq!((array.get(first).unwrap(), array.gather(&[first]).unwrap()), (7, vec![7]));
            drop(array.page(3).unwrap());
            refused("set", array.set(first, 1));
            refused("page_mut", array.page_mut(3).map(drop));
            refused("transform", array.transform(.., value().set(1)));
            refused("scatter", array.scatter(&[first], &[1]));
            refused("evict", array.evict(..));
        }
        drop(page);
        array.write(0, &[1; 64]).unwrap();
        assert_eq!(array.to_vec(..).unwrap(), [1; 64]);
    }
}
