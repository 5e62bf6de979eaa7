//! Tests of futures: they block no executor and leak nothing, and a few submissions serve thousands of them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use vmarray::prelude::*;

use crate::common::executor::{Executor, all, block_on};
use crate::common::{Numbers, POLICIES, Shape, together};
use proptest::prelude::*;
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::host::{SimulatedDevice, SimulatedDeviceBuilder};
use vmarray::{ErrorKind, VirtualArray, device::Device};
use vmarray_conformance::wrap::Faulty;

/// Runs a closure while another thread holds a page exclusively.
fn while_another_thread_holds(array: &VirtualArray<u32>, page: usize, run: impl FnOnce()) {
    while_another_thread_changes(array, page, |_| (), run);
}

/// The same, and the other thread changes the page at the end.
fn while_another_thread_changes<T: Element>(
    array: &VirtualArray<T>,
    page: usize,
    change: impl FnOnce(&mut [T]) + Send,
    run: impl FnOnce(),
) {
    std::thread::scope(|scope| {
        // The channels are local, so that a panic ends the other thread's wait.
        let (to_main, from_other) = std::sync::mpsc::channel();
        let (to_other, from_main) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let mut guard = array.page_mut(page).unwrap();
            to_main.send(()).unwrap();
            from_main.recv().unwrap();
            change(&mut guard);
        });
        from_other.recv().unwrap();
        run();
        to_other.send(()).unwrap();
    });
}

/// Pages of 16 `u32` in one channel, each element its own index, and an empty cache.
fn numbered(pages: usize, frames: usize) -> VirtualArray<u32> {
    let array = Shape { counts_hits: true, ..Shape::one(16, frames) }.build(16 * pages);
    fill(&array);
    array
}

/// The same on a device.
fn on<D: Device>(device: &Arc<D>, pages: usize, frames: usize) -> VirtualArray<u32> {
    let shape = Shape { counts_hits: true, ..Shape::one(16, frames) };
    let array = shape.describe(16 * pages, vec![device.clone()]).build().unwrap();
    fill(&array);
    array
}

fn fill(array: &VirtualArray<u32>) {
    array.write(0, &(0..array.len() as u32).collect::<Vec<u32>>()).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
}

/// Builder of a device whose work ends when the test says so.
fn delayed() -> SimulatedDeviceBuilder {
    let device = SimulatedDevice::builder(5).latency(Duration::from_millis(100)).jitter(0.0);
    device.manual_wakes(true).bytes(64 << 20)
}

fn simulated(pages: usize, frames: usize) -> (Arc<SimulatedDevice>, VirtualArray<u32>) {
    let device = Arc::new(delayed().build());
    let array = on(&device, pages, frames);
    (device, array)
}

/// Elements that are too long for the bytes of a page that tasks receive by value.
type Long = [u32; 128];

/// Pages of two long elements, each filled with its index.
fn long(len: usize, frames: usize) -> (Arc<SimulatedDevice>, VirtualArray<Long>) {
    let device = Arc::new(delayed().build());
    let array = Shape::one(2, frames).describe::<Long, _>(len, vec![device.clone()]).build().unwrap();
    array.write(0, &(0..len).map(|i| [i as u32; 128]).collect::<Vec<Long>>()).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    (device, array)
}

/// Starts a task for each element; each checks that the value is the index.
fn get_all(
    device: &SimulatedDevice,
    array: &VirtualArray<u32>,
    indices: impl IntoIterator<Item = usize, IntoIter: Clone>,
) {
    let (mut executor, indices) = (Executor::default(), indices.into_iter());
    for index in indices.clone() {
        executor.spawn(array.get_async(index));
    }
    let values = executor.run(|| device.run());
    assert!(values.into_iter().map(|value| value.unwrap() as usize).eq(indices));
}

/// Counts its wake-ups.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_hit_is_ready_at_once() {
    let array = numbered(10, 4);
    array.get(3).unwrap();
    array.reset_stats();
    for i in 0..16 {
        assert!(matches!(poll_once(&mut array.get_async(i)), Poll::Ready(Ok(x)) if x == i as u32));
        assert!(matches!(poll_once(&mut array.set_async(i, i as u32)), Poll::Ready(Ok(()))));
    }
    assert!(matches!(poll_once(&mut array.page_async(0)), Poll::Ready(Ok(page)) if page[7] == 7));
    assert_eq!((array.stats().hits, array.stats().total().misses), (Some(33), 0));
}

#[test]
fn thousands_of_loads_from_one_thread_share_few_submissions() {
    let (device, array) = simulated(10_000, 8000);
    get_all(&device, &array, (0..4000).map(|page| 16 * page + 3));
    let total = array.stats().total();
    assert_eq!((total.misses, array.stats().hits), (4000, Some(0)));
    assert_eq!(total.bytes_from_device, 4000 * 64);
    // The first three requests are submitted at once, one by one. Later requests are submitted together, at
    // most 256 at a time.
    assert_eq!(total.submissions, 3 + 3997_u64.div_ceil(256));
}

#[test]
fn requests_take_no_more_frames_than_there_are() {
    for frames in [1, 2, 9, 64] {
        let (device, array) = simulated(1000, frames);
        get_all(&device, &array, (0..1000).map(|k| 16 * (k * 911 % 1000)));
        let stats = array.stats();
        assert_eq!(
            (stats.hits, stats.total().misses, stats.total().bytes_from_device),
            (Some(0), 1000, 64_000)
        );
    }
}

#[test]
fn new_futures_polled_once_find_resident_elements() {
    let (device, array) = simulated(100, 40);
    let first_try = (0..10).find(|_| {
        let found = poll_once(&mut array.get_async(16 * 5 + 3));
        device.run();
        matches!(found, Poll::Ready(Ok(83)))
    });
    assert!(first_try.is_some());
    assert_eq!(array.stats().total().misses, 1);
}

#[test]
fn one_page_that_many_ask_for_costs_the_cache_no_more_than_one() {
    let (device, array) = simulated(1000, 512);
    (0..512).for_each(|page| drop(array.get(16 * page)));
    (512..600).for_each(|page| get_all(&device, &array, [16 * page]));
    let before = array.stats().total().evictions;
    get_all(&device, &array, (0..400).map(|i| 16 * 900 + i % 16));
    // A search takes at most one revolution of the clock.
    assert!(array.stats().total().evictions - before <= 64);
}

#[test]
fn a_failed_write_back_of_one_task_is_not_reported_to_a_hit_of_another() {
    let device = Arc::new(Faulty::new(crate::common::host()));
    let array = on(&device, 20, 4);
    (0..4).for_each(|page| array.set(16 * page, 100).unwrap());
    // Every frame needs a write-back.
    device.inject(Fault::anywhere(DeviceErrorKind::CopyFailed));
    let values = all([0, 9, 9, 1].map(|page| array.get_async(16 * page)));
    let [hit, miss, also, other] = values.try_into().unwrap();
    assert_eq!((hit.unwrap(), other.unwrap()), (100, 100));
    assert_eq!(miss.unwrap_err().device_error().unwrap().kind(), DeviceErrorKind::CopyFailed);
    assert_eq!(also.unwrap_err().device_error().unwrap().kind(), DeviceErrorKind::CopyFailed);
    device.clear();
    array.flush(..).unwrap();
    assert_eq!(all([0, 9].map(|page| array.get_async(16 * page))), [Ok(100), Ok(16 * 9)]);
}

#[test]
fn many_futures_of_one_page_have_it_loaded_once() {
    let (device, array) = simulated(10, 4);
    let mut executor = Executor::default();
    for i in 0..32 {
        executor.spawn(array.get_async(i));
    }
    executor.settle();
    // The requests are submitted, so the next requests find the page in transit.
    for i in 0..16 {
        executor.spawn(array.get_async(i));
    }
    executor.settle();
    assert_eq!(executor.unfinished(), 48);
    let values = executor.run(|| device.run());
    assert!(values.into_iter().zip((0..32).chain(0..16)).all(|(x, i)| x.unwrap() == i));
    let total = array.stats().total();
    assert_eq!((total.misses, total.submissions, total.bytes_from_device), (2, 2, 128));
}

#[test]
fn nothing_is_polled_in_vain() {
    let (device, array) = simulated(4000, 2000);
    let mut executor = Executor::default();
    for page in 0..1000 {
        executor.spawn(array.get_async(16 * page));
    }
    executor.settle();
    assert_eq!(executor.polls, 1000);
    // Each run serves half of a quarter of the frames, so four runs serve all requests.
    for _ in 0..4 {
        device.run();
        executor.settle();
    }
    assert_eq!((executor.polls, executor.unfinished()), (2000, 0));
}

#[test]
fn tasks_that_were_answered_may_not_be_polled_any_more() {
    for (frames, count) in [(500, 100), (500, 4), (20, 100)] {
        // Some waiting requests, or some answered requests, are dropped or not polled again.
        for when in 0..3 {
            let (device, array) = simulated(1000, frames);
            let mut executor = Executor::default();
            (0..count).for_each(|page| {
                executor.spawn(array.get_async(16 * page));
            });
            let lost: Vec<usize> = match when {
                0 => (0..count).filter(|place| *place == 0 || place.is_power_of_two()).collect(),
                _ => (0..count.min(8) - 1).collect(),
            };
            if when == 0 {
                (0..count).for_each(|_| assert!(executor.step()));
                lost.iter().for_each(|task| executor.forget_task(*task));
            } else {
                executor.settle();
                device.run();
                lost.iter().for_each(|task| match when {
                    1 => executor.forget_task(*task),
                    _ => executor.drop_task(*task),
                });
            }
            let values = executor.run(|| device.run());
            assert_eq!(values.len(), count - lost.len(), "{frames} {count} {when}");
            assert!(values.into_iter().all(|value| value.unwrap() % 16 == 0));
        }
    }
}

#[test]
fn long_ranges_give_others_their_turn() {
    let (device, array) = simulated(10_000, 8000);
    let mut executor = Executor::default();
    executor.spawn(array.prefetch_async(..));
    assert!(executor.step());
    let first = array.stats().total().prefetches;
    assert!(first > 0 && first <= 1024, "{first} pages in one poll");
    for result in executor.run(|| device.run()) {
        result.unwrap();
    }
    // Evictions free at most half of the frames.
    let total = array.stats().total();
    assert_eq!((total.prefetches, total.bytes_from_device), (4000, 4000 * 64));
    array.write(0, &vec![1; 16 * 7000]).unwrap();
    array.reset_stats();
    let mut executor = Executor::default();
    executor.spawn(array.flush_async(..));
    let mut before = 0;
    while executor.unfinished() > 0 {
        if !executor.step() {
            device.run();
        }
        let submitted = array.stats().total().bytes_to_device;
        assert!(submitted - before <= 1024 * 64, "{} bytes in one poll", submitted - before);
        before = submitted;
    }
}

#[test]
fn a_future_that_is_not_polled_any_more_keeps_no_thread_waiting() {
    let (_device, array) = simulated(10, 1);
    // The page is in transit to the only frame.
    let mut forgotten = array.get_async(5);
    assert!(poll_once(&mut forgotten).is_pending());
    assert_eq!(array.get(6).unwrap(), 6, "the same page");
    array.evict(..).unwrap();
    let mut forgotten_too = array.get_async(5);
    assert!(poll_once(&mut forgotten_too).is_pending());
    assert_eq!(array.get(100).unwrap(), 100, "another page, which needs the frame");
    array.set(5, 1).unwrap();
    array.flush(..).unwrap();
    // The futures return the value that the load read, before the write.
    assert!(matches!(poll_once(&mut forgotten), Poll::Ready(Ok(5))));
    assert!(matches!(poll_once(&mut forgotten_too), Poll::Ready(Ok(5))));
}

#[test]
fn futures_that_are_not_polled_any_more_keep_no_task_waiting() {
    // Test one load at a time and several; one forgotten future, and more than the concurrent loads.
    for (frames, forgotten) in [(1, 1), (2, 3), (8, 1), (8, 3), (8, 4), (8, 20)] {
        for polls in 1..4 {
            let (device, array) = simulated(100, frames);
            let mut kept: Vec<_> = (0..forgotten).map(|page| array.get_async(16 * page)).collect();
            let mut executor = Executor::default();
            let mut spawn = |page: usize| {
                executor.spawn(array.get_async(16 * page));
            };
            // If the number of forgotten futures is odd, one request is made before they are polled.
            (50..50 + forgotten % 2).for_each(&mut spawn);
            for _ in 0..polls {
                kept.iter_mut().for_each(|future| drop(poll_once(future)));
            }
            (60..90).for_each(&mut spawn);
            let values = executor.run(|| device.run());
            assert_eq!(values.len(), 30 + forgotten % 2);
            assert!(values.into_iter().all(|value| value.unwrap() % 16 == 0));
        }
    }
}

#[test]
fn a_task_that_waits_for_a_frame_keeps_no_other_from_its_error() {
    let array = numbered(10, 1);
    let guard = array.page(0).unwrap();
    let (to_main, from_other) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let array = &array;
        let waits = scope.spawn(move || {
            let mut executor = Executor::default();
            executor.spawn(array.get_async(100));
            executor.settle();
            assert_eq!(executor.unfinished(), 1);
            to_main.send(()).unwrap();
            executor.run(|| ()).pop().unwrap()
        });
        from_other.recv().unwrap();
        let error = block_on(array.get_async(50)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooManyGuards { .. }), "{error:?}");
        drop(guard);
        assert_eq!(waits.join().unwrap().unwrap(), 100);
    });
}

#[test]
fn tasks_are_served_before_a_thread_has_their_page_for_itself() {
    let (device, array) = simulated(10, 3);
    let mut executor = Executor::default();
    // Each request has its own page; three pages are in transit.
    for i in [16, 32, 48] {
        executor.spawn(array.get_async(i));
    }
    executor.settle();
    // Another thread holds the page as soon as it arrives; the requested value was copied by then.
    while_another_thread_holds(&array, 2, || {
        for _ in 0..10 {
            device.run();
            executor.settle();
        }
        assert_eq!(executor.unfinished(), 0);
    });
    let values = executor.run(|| device.run());
    assert_eq!(values.into_iter().map(|value| value.unwrap()).collect::<Vec<u32>>(), [16, 32, 48]);
}

/// A waker that polls another future.
struct PollsAnother(Mutex<Option<vmarray::futures::GetAsync<'static, u32>>>);

impl Wake for PollsAnother {
    fn wake(self: Arc<Self>) {
        let taken = self.0.lock().unwrap().take();
        if let Some(mut future) = taken {
            let is_pending = poll_once(&mut future).is_pending();
            *self.0.lock().unwrap() = is_pending.then_some(future);
        }
    }
}

#[test]
fn a_waker_may_poll_a_future_that_waits_for_the_same_load() {
    let (to_main, from_other) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let (device, array) = simulated(10, 3);
        static ARRAY: OnceLock<VirtualArray<u32>> = OnceLock::new();
        let array = ARRAY.get_or_init(|| array);
        let held = [array.page(0).unwrap(), array.page(1).unwrap()];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut first, mut second) = (array.get_async(100), array.get_async(101));
                assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
                assert!(poll_once(&mut first).is_pending(), "on its way");
                // This future waits for the end of a guard, and is woken whenever a guard may have ended.
                let waker = Arc::new(PollsAnother(Mutex::new(Some(second))));
                let (mut page, woken) = (array.page_async(9), Waker::from(waker.clone()));
                assert!(Pin::new(&mut page).poll(&mut Context::from_waker(&woken)).is_pending());
                device.run();
                assert!(matches!(poll_once(&mut first), Poll::Ready(Ok(100))));
                assert!(waker.0.lock().unwrap().is_none(), "it was polled, and ready");
            });
        });
        drop(held);
        to_main.send(()).unwrap();
    });
    from_other.recv_timeout(Duration::from_secs(30)).expect("it is stuck, or has failed");
    test.join().unwrap();
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("expected by this test");
    }
}

#[test]
fn a_panicking_waker_leaves_no_task_waiting() {
    // The device loads one page at a time: first a page that two of three futures need, then another page.
    let (device, array) = simulated(10, 2);
    let panics = Waker::from(Arc::new(Panics));
    let mut first = array.get_async(100);
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&panics)).is_pending());
    let mut executor = Executor::default();
    executor.spawn(array.get_async(101));
    executor.spawn(array.get_async(50));
    executor.settle();
    assert_eq!(executor.unfinished(), 2);
    let values = executor.run(|| device.run());
    assert!(values.into_iter().map(Result::unwrap).eq([101, 50]));
    assert_eq!(block_on(first).unwrap(), 100);
}

#[test]
fn a_long_read_gives_others_their_turn() {
    let array = numbered(1000, 1000);
    array.discard(..).unwrap();
    let mut into = vec![1; array.len()];
    let mut read = array.read_async(0, &mut into);
    assert!(poll_once(&mut read).is_pending());
    block_on(read).unwrap();
    assert!(into.iter().all(|x| *x == 0));
    let indices = vec![5; 100_000];
    let mut gather = array.gather_async(&indices);
    assert!(poll_once(&mut gather).is_pending());
    assert!(block_on(gather).unwrap().into_iter().all(|x| x == 0));
}

#[test]
fn guards_are_waited_for_and_end_the_wait() {
    let array = numbered(10, 4);
    let guard = array.page_mut(3).unwrap();
    let all_wait = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let (get, set) = (array.get_async(48), array.set_async(49, 9));
            let page = array.page_async(3);
            let mut executor: Executor<'_, u32> = Executor::default();
            executor.spawn(async { get.await.unwrap() });
            executor.spawn(async { set.await.map(|()| 0).unwrap() });
            executor.spawn(async { page.await.unwrap()[2] });
            executor.settle();
            assert_eq!(executor.unfinished(), 3);
            all_wait.wait();
            executor.run(|| ())
        });
        all_wait.wait();
        drop(guard);
        assert_eq!(waiting.join().unwrap(), [48, 0, 50]);
    });
    assert_eq!(array.get(49).unwrap(), 9);
}

#[test]
fn a_guard_that_is_taken_later_ends_a_wait_that_it_forbids() {
    let array = numbered(10, 4);
    while_another_thread_holds(&array, 2, || {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut page = pin!(array.page_async(2));
        let mut context = Context::from_waker(&waker);
        assert!(page.as_mut().poll(&mut context).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        // A wait for page 2 while this thread holds page 5 is an error, because the other thread could wait
        // for page 5.
        let other = array.page(5).unwrap();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        let Poll::Ready(Err(error)) = page.as_mut().poll(&mut context) else { panic!("waits") };
        assert!(matches!(error.kind(), ErrorKind::WouldDeadlock { page: 2 }));
        drop(other);
    });
    assert_eq!(block_on(array.page_async(2)).unwrap()[0], 32);
}

#[test]
fn guards_are_counted_and_waited_for_where_there_are_too_many() {
    let array = numbered(10, 3);
    let first = block_on(array.page_async(0)).unwrap();
    let second = block_on(array.page_mut_async(1)).unwrap();
    let error = block_on(array.page_async(2)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooManyGuards { .. }), "{error:?}");
    let (to_main, from_other) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let array = &array;
        let waits = scope.spawn(move || {
            let mut executor = Executor::default();
            executor.spawn(async { array.page_async(2).await.unwrap()[0] });
            executor.settle();
            assert_eq!(executor.unfinished(), 1);
            to_main.send(()).unwrap();
            executor.run(|| ())
        });
        from_other.recv().unwrap();
        drop(first);
        assert_eq!(waits.join().unwrap(), [32]);
    });
    drop(second);
}

#[test]
fn a_failure_is_reported_to_the_tasks_of_its_page() {
    for later in [false, true] {
        let device = Arc::new(Faulty::new(delayed().build()));
        let array = on(&device, 23, 80);
        // Three pages are loaded alone. Then one submission of all other pages fails, and the channel loads
        // them one by one.
        let fault = Fault::new(Operation::Submit, DeviceErrorKind::CopyFailed).on_call(4);
        device.inject(if later { fault.reported_later() } else { fault });
        let mut executor = Executor::default();
        (0..23).for_each(|page| {
            executor.spawn(array.get_async(16 * page));
        });
        let values = executor.run(|| device.inner().run());
        assert!(values.into_iter().enumerate().all(|(page, x)| x.unwrap() == 16 * page as u32));
        let total = array.stats().total();
        assert!(total.bytes_from_device >= 23 * 64, "{total:?}");
        assert!(total.misses > 23, "pages whose load failed were loaded once more: {total:?}");
        array.evict(..).unwrap();
        device.lose();
        for value in all((0..20).map(|page| array.get_async(16 * page))) {
            assert_eq!(value.unwrap_err().device_error().unwrap().kind(), DeviceErrorKind::Lost);
        }
    }
}

/// On a device whose work is done at the first poll, as the rules of devices allow.
fn at_once(pages: usize, frames: usize, policy: vmarray::EvictionPolicy) -> VirtualArray<u32> {
    let device = Arc::new(SimulatedDevice::builder(3).bytes(1 << 20).build());
    let shape = Shape { policy, ..Shape::one(16, frames) };
    let array = shape.describe(16 * pages, vec![device]).build().unwrap();
    fill(&array);
    array
}

#[test]
fn tasks_that_outnumber_frames_are_each_served_by_one_load() {
    for policy in POLICIES {
        for (tasks, frames) in [(20, 4), (400, 32), (400, 1)] {
            let array = at_once(1000, frames, policy);
            let values = all((0..tasks).map(|k| array.get_async(16 * (k * 7 % 1000))));
            assert!(values.into_iter().enumerate().all(|(k, x)| x.unwrap() == 16 * (k as u32 * 7 % 1000)));
            assert_eq!(array.stats().total().misses, tasks as u64, "{policy:?} {frames}");
            // No task polls before the end; the values are kept.
            let mut kept: Vec<_> = (0..tasks).map(|k| array.get_async(16 * (k * 11 % 1000) + 1)).collect();
            array.evict(..).unwrap();
            array.reset_stats();
            kept.iter_mut().for_each(|future| {
                let _ = poll_once(future).map(|x| x.unwrap());
            });
            assert!(array.stats().total().misses <= tasks as u64, "{policy:?} {frames}");
        }
    }
}

/// Starts `tasks` tasks. Each gets a chain of elements, in which a value determines the next index.
fn dependent_gets(array: &VirtualArray<u32>, tasks: usize, gets: usize, seed: u64) {
    all((0..tasks).map(|task| async move {
        let mut numbers = Numbers::new(seed + task as u64);
        let mut sum = 0_usize;
        for _ in 0..gets {
            let i = (numbers.below(array.len()) + sum) % array.len();
            let x = array.get_async(i).await.unwrap();
            assert_eq!(x, i as u32);
            sum += x as usize;
        }
    }));
}

#[test]
fn tasks_of_many_threads_that_outnumber_frames_load_nothing_twice() {
    for (threads, tasks, frames) in [(1, 300, 8), (4, 100, 16), (8, 20, 3)] {
        let device = Arc::new(SimulatedDevice::builder(5).build());
        let array = on(&device, 4000, frames);
        together(threads, |thread| dependent_gets(&array, tasks, 10, 1000 * thread as u64));
        let (stats, asked) = (array.stats(), (threads * tasks * 10) as u64);
        assert_eq!(stats.hits.unwrap() + stats.total().misses, asked);
        assert!(stats.total().misses <= asked);
        assert_eq!(stats.total().bytes_from_device, stats.total().misses * 64);
    }
}

#[test]
fn guards_of_tasks_that_outnumber_frames_are_each_served_by_one_load() {
    for policy in POLICIES {
        for frames in [1, 2, 5] {
            let array = at_once(100, frames, policy);
            let sums = all((0..60).map(|page| {
                let array = &array;
                async move {
                    // Some tasks write, and some get elements in between.
                    match page % 3 {
                        0 => array.page_mut_async(page).await.unwrap()[3] += 1,
                        1 => assert_eq!(array.get_async(16 * page).await.unwrap(), 16 * page as u32),
                        _ => {}
                    }
                    array.page_async(page).await.unwrap()[3]
                }
            }));
            assert!(
                sums.into_iter()
                    .enumerate()
                    .all(|(page, x)| x == (16 * page + 3 + usize::from(page % 3 == 0)) as u32)
            );
        }
    }
}

#[test]
fn a_page_that_has_come_for_a_guard_keeps_its_frame_until_it_is_taken() {
    let (device, array) = simulated(100, 4);
    let mut coming = array.page_async(7);
    assert!(poll_once(&mut coming).is_pending());
    device.run();
    // A hundred other pages pass through the other frames.
    (0..100).for_each(|page| assert_eq!(array.get(16 * page).unwrap(), 16 * page as u32));
    array.set(16 * 7 + 1, 5).unwrap();
    let misses = array.stats().total().misses;
    let Poll::Ready(Ok(page)) = poll_once(&mut coming) else { panic!("it is there") };
    assert_eq!((page[0], page[1]), (16 * 7, 5));
    assert_eq!(array.stats().total().misses, misses);
    drop(page);
    // A dropped future leaves its frame to others.
    let mut gone = array.page_mut_async(50);
    assert!(poll_once(&mut gone).is_pending());
    device.run();
    drop(gone);
    let guards: Vec<_> = (0..3).map(|page| array.page(page).unwrap()).collect();
    assert_eq!(array.get(16 * 50).unwrap(), 16 * 50);
    drop(guards);
}

/// Tasks copy long elements out of frames while frames are free, and else receive copies.
#[test]
fn long_elements_reach_tasks_that_outnumber_frames() {
    for frames in [1, 4, 40] {
        let (device, array) = long(2 * 500, frames);
        // Futures that are not polled keep some frames until other requests need them.
        let mut kept: Vec<_> = (0..100).map(|page| array.get_async(2 * page)).collect();
        kept.iter_mut().for_each(|future| assert!(poll_once(future).is_pending()));
        device.run();
        let mut executor = Executor::default();
        (100..500).for_each(|page| {
            executor.spawn(array.get_async(2 * page + 1));
        });
        let values = executor.run(|| device.run());
        assert!(values.into_iter().zip(100..).all(|(x, page)| x.unwrap() == [2 * page + 1; 128]));
        let guards: Vec<_> = (0..frames.max(2) - 1).map(|page| array.page(page).unwrap()).collect();
        if frames > 1 {
            assert_eq!(array.get(999).unwrap(), [999; 128]);
        }
        drop(guards);
        let loads = array.stats().total().misses;
        for (page, mut future) in kept.into_iter().enumerate() {
            let found = poll_once(&mut future);
            assert!(matches!(found, Poll::Ready(Ok(x)) if x == [2 * page as u32; 128]), "{frames} {page}");
        }
        assert_eq!(array.stats().total().misses, loads, "{frames}");
        assert!(loads <= 500 + frames as u64 + 1, "{frames} {loads}");
    }
}

#[test]
fn a_thread_does_not_wait_for_a_frame_reserved_for_its_own_future() {
    let ((device, array), (_, other)) = (simulated(100, 2), simulated(100, 1));
    let is_refused = |array: &VirtualArray<u32>, page| {
        let error = array.page(page).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooManyGuards { .. }), "{error:?}");
    };
    let mut coming = array.page_async(0);
    assert!(poll_once(&mut coming).is_pending());
    is_refused(&array, 1);
    device.run();
    is_refused(&array, 1);
    // Futures of another array are refused too, because they could wait for pages of this one.
    while_another_thread_holds(&other, 3, || is_refused(&other, 4));
    let Poll::Ready(Ok(page)) = poll_once(&mut coming) else { panic!("it is there") };
    assert_eq!(page[1], 1);
    drop((page, coming));
    drop((array.page(1).unwrap(), other.page(4).unwrap()));
    // A dropped future no longer counts, and neither does a forgotten future whose array is gone.
    let mut coming = array.page_async(5);
    assert!(poll_once(&mut coming).is_pending());
    drop(coming);
    drop(array.page(6).unwrap());
    let gone = Box::leak(Box::new(simulated(100, 2).1));
    let mut coming = gone.page_async(0);
    assert!(poll_once(&mut coming).is_pending());
    is_refused(gone, 1);
    // Forget the future, but keep it reachable, so that a leak sanitizer does not report it.
    static FORGOTTEN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
    FORGOTTEN.store(Box::into_raw(Box::new(coming)).cast(), Ordering::Relaxed);
    // SAFETY: the pointer came from a box, and no later use refers to it.
    drop(unsafe { Box::from_raw(std::ptr::from_mut(gone)) });
    let _first = array.page(6).unwrap();
    assert_eq!(array.get(16 * 40).unwrap(), 16 * 40);
}

#[test]
fn a_long_read_that_finds_its_page_held_is_served_by_the_same_load() {
    let (device, array) = long(200, 8);
    let mut read = array.get_async(0);
    assert!(poll_once(&mut read).is_pending());
    device.run();
    let change = |page: &mut [Long]| page[0] = [1000; 128];
    while_another_thread_changes(&array, 0, change, || {
        assert!(poll_once(&mut read).is_pending(), "the page is held");
    });
    // Only one frame is free.
    let guards: Vec<_> = (1..8).map(|page| array.page(page).unwrap()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(array.get(199).unwrap(), [199; 128]));
    });
    drop(guards);
    array.reset_stats();
    assert!(matches!(poll_once(&mut read), Poll::Ready(Ok(x)) if x == [1000; 128]));
    assert_eq!(array.stats().total().misses, 0);
}

#[test]
fn a_dropped_write_leaves_its_page_clean() {
    let (device, array) = simulated(100, 4);
    let mut write = array.set_async(16 * 7 + 1, 5);
    assert!(poll_once(&mut write).is_pending());
    drop(write);
    device.run();
    array.flush(..).unwrap();
    assert_eq!(array.stats().total().bytes_to_device, 0);
    assert_eq!(array.get(16 * 7 + 1).unwrap(), 16 * 7 + 1);
}

/// A thread holds the only frame for a moment, without a page that a task could wait for.
#[test]
fn a_task_gets_the_frame_that_a_thread_had_in_its_hands() {
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 3000 };
    let array: VirtualArray<u32> = Shape::one(16, 1).build(16 * (ROUNDS + 1));
    array.set(0, 7).unwrap();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for page in 1..=ROUNDS {
                barrier.wait();
                array.set(16 * page, 1).unwrap();
                barrier.wait();
            }
        });
        for _ in 0..ROUNDS {
            barrier.wait();
            assert_eq!(block_on(array.get_async(0)).unwrap(), 7);
            barrier.wait();
        }
    });
}

#[test]
fn guards_of_tasks_and_threads_share_one_frame() {
    let device = Arc::new(SimulatedDevice::builder(5).build());
    let array = on(&device, 40, 1);
    together(6, |thread| {
        let mut numbers = Numbers::new(thread as u64);
        for _ in 0..200 {
            let page = numbers.below(3);
            let x = match (thread % 3, numbers.below(3)) {
                (0, _) => block_on(array.page_async(page)).unwrap()[2],
                (1, _) => block_on(array.get_async(16 * page + 2)).unwrap(),
                (_, 0) => {
                    array.evict(..).unwrap();
                    continue;
                }
                _ => array.get(16 * page + 2).unwrap(),
            };
            assert_eq!(x, 16 * page as u32 + 2);
        }
    });
}

#[test]
fn failed_write_backs_are_reported_to_the_tasks_that_need_the_frames() {
    for (later, frames) in [(false, 1), (true, 1), (false, 4), (true, 4)] {
        let device = SimulatedDevice::builder(3).bytes(1 << 20).build();
        let device = Arc::new(Faulty::new(device));
        let array = on(&device, 100, frames);
        (0..frames).for_each(|page| array.set(16 * page, 7).unwrap());
        let fault = Fault::anywhere(DeviceErrorKind::CopyFailed);
        device.inject(if later { fault.reported_later() } else { fault });
        for value in all((10..30).map(|page| array.get_async(16 * page))) {
            assert_eq!(value.unwrap_err().device_error().unwrap().kind(), DeviceErrorKind::CopyFailed);
        }
        assert!(array.stats().total().failed_write_backs <= 20 * frames as u64);
        device.clear();
        // No data is lost. The next flush may report write-backs that background work began.
        let _ = array.flush(..);
        array.evict(..).unwrap();
        assert!((0..frames).all(|page| array.get(16 * page).unwrap() == 7), "{later} {frames}");
        let values = all((10..30).map(|page| array.get_async(16 * page)));
        assert!(values.into_iter().zip(10..).all(|(x, page)| x.unwrap() == 16 * page));
    }
}

const LEN: usize = 60;

/// All possible values of an element: written by a task, finished or not, or by a thread.
type Possible = std::cell::RefCell<Vec<Vec<u32>>>;

/// Work of a task that can be dropped at any point.
async fn work(array: &VirtualArray<u32>, possible: &Possible, mut numbers: Numbers, holds_page: bool) {
    let seen = |i: usize, x: u32| {
        let possible = &possible.borrow()[i];
        assert!(possible.contains(&x), "element {i} is {x}, not one of {possible:?}");
    };
    let is_expected = |error: vmarray::Error| {
        let deadlock =
            matches!(error.kind(), ErrorKind::WouldDeadlock { .. } | ErrorKind::TooManyGuards { .. });
        assert!(deadlock || error.device_error().is_some(), "{error:?}");
    };
    let (i, x, page_len) = (numbers.below(LEN), 1 + numbers.below(8) as u32, array.page_len());
    if holds_page && x % 2 == 0 {
        possible.borrow_mut()[i].push(x);
        match array.page_mut_async(i / page_len).await {
            Ok(mut page) => page[i % page_len] = x,
            Err(error) => is_expected(error),
        }
        return;
    }
    if holds_page {
        match array.page_async(i / page_len).await {
            Ok(page) => page.range().zip(page.iter()).for_each(|(i, x)| seen(i, *x)),
            Err(error) => is_expected(error),
        }
        return;
    }
    match numbers.below(13) {
        0..4 => array.get_async(i).await.map_or_else(is_expected, |x| seen(i, x)),
        4..7 => {
            possible.borrow_mut()[i].push(x);
            array.set_async(i, x).await.map_or_else(is_expected, |()| ());
        }
        7 | 8 => {
            let mut back = vec![0; numbers.below(LEN - i)];
            match array.read_async(i, &mut back).await {
                Ok(()) => back.iter().zip(i..).for_each(|(x, i)| seen(i, *x)),
                Err(error) => is_expected(error),
            }
        }
        9 | 10 => {
            let indices: Vec<usize> = (0..numbers.below(20)).map(|_| numbers.below(LEN)).collect();
            match array.gather_async(&indices).await {
                Ok(values) => indices.iter().zip(values).for_each(|(&i, x)| seen(i, x)),
                Err(error) => is_expected(error),
            }
        }
        11 => array.prefetch_async(..i).await.map_or_else(is_expected, |()| ()),
        _ => array.flush_async(..).await.map_or_else(is_expected, |()| ()),
    }
}

fn dropped_anywhere(seed: u64, failures: f64, steps: usize) {
    let mut numbers = Numbers::new(seed);
    let shape = Shape::any(&mut numbers, 5, 4);
    let device = SimulatedDevice::builder(seed)
        .bytes(1 << 20)
        .latency(Duration::from_micros(5))
        .jitter(4.0)
        .fault(Fault::anywhere(DeviceErrorKind::CopyFailed).with_chance(failures, seed).reported_later())
        .fault(Fault::anywhere(DeviceErrorKind::Driver).with_chance(failures, !seed));
    let device = Arc::new(device.manual_wakes(true).build());
    let Ok(array) = shape.describe::<u32, _>(LEN, vec![device.clone(); shape.channels.len()]).build() else {
        return;
    };
    let possible = Possible::new(vec![vec![0]; LEN]);
    let mut executor = Executor::default();
    let mut guards = Vec::new();
    for _ in 0..steps {
        let (i, x) = (numbers.below(LEN), 1 + numbers.below(8) as u32);
        match numbers.below(22) {
            0..6 => {
                let holds_page = numbers.below(4) == 0;
                let task = work(&array, &possible, Numbers::new(numbers.next()), holds_page);
                let number = executor.spawn(task);
                guards.extend(holds_page.then_some(number));
            }
            what @ 6..10 => {
                let number = numbers.below(executor.spawn(async {}) + 1);
                // Some futures are dropped, and some are kept but never polled again. A page that was loaded
                // for a guard keeps its frame, as the guard does.
                if what < 8 || guards.contains(&number) {
                    executor.drop_task(number);
                } else {
                    executor.forget_task(number);
                }
            }
            10..16 => (0..1 + numbers.below(19)).for_each(|_| _ = executor.step()),
            16..19 => device.advance(Duration::from_micros(numbers.below(60) as u64)),
            // A blocking write instead of a task.
            19 => {
                possible.borrow_mut()[i].push(x);
                let _ = array.set(i, x);
            }
            20 => {
                if let Ok(x) = array.get(i) {
                    assert!(possible.borrow()[i].contains(&x));
                }
            }
            _ => drop(array.evict(..)),
        }
    }
    let rest = executor.unfinished();
    if rest % 2 == 0 {
        executor.run(|| device.run());
    } else {
        drop(executor);
    }
    // After all work has ended, every page and every frame must be free again.
    device.run();
    let insist = |run: &mut dyn FnMut() -> vmarray::Result<()>| {
        while let Err(error) = run() {
            assert!(error.device_error().is_some(), "{error:?}");
        }
    };
    let (pages, channels) = (array.page_count(), array.homes().len());
    let most = (shape.frames.min(pages.div_ceil(channels)) - 1).max(1);
    let mut held = Vec::new();
    for page in (0..pages).filter(|page| page % channels == 0).take(most) {
        insist(&mut || array.page_mut(page).map(|guard| held.push(guard)));
    }
    drop(held);
    for i in 0..LEN {
        insist(&mut || array.get(i).map(|x| assert!(possible.borrow()[i].contains(&x))));
        insist(&mut || array.set(i, 100 + i as u32));
    }
    insist(&mut || array.evict(..));
    for i in 0..LEN {
        insist(&mut || array.get(i).map(|x| assert_eq!(x, 100 + i as u32)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: backend_api::wrap::random_cases(600), ..ProptestConfig::default() })]

    #[test]
    fn futures_dropped_anywhere_leave_nothing_behind(seed in 0..100_000_u64, fails in any::<bool>(), steps in 1..60_usize) {
        dropped_anywhere(seed, if fails { 0.1 } else { 0.0 }, steps);
    }
}

/// Tasks on several executors, and blocking threads, share a cache of a few frames. Each has its own elements
/// and reads its own writes.
#[test]
fn tasks_and_threads_share_an_array() {
    for policy in POLICIES {
        let shape = Shape { page_len: 6, channels: vec![2], frames: 3, policy, ..Shape::default() };
        let array = shape.build::<[u32; 3]>(240);
        together(4, |thread| {
            if thread % 2 == 0 {
                all((0..10).map(|task| own_elements(&array, thread * 10 + task)));
            } else {
                let writers = (thread * 10..thread * 10 + 10).step_by(3);
                writers.for_each(|n| crate::gather::own_elements(&array, n, WRITERS, n as u64));
            }
        });
    }
}

const WRITERS: usize = 40;

async fn own_elements(array: &VirtualArray<[u32; 3]>, writer: usize) {
    let mut numbers = Numbers::new(writer as u64);
    for n in 0..100 {
        let i = numbers.below(240 / WRITERS) * WRITERS + writer;
        array.set_async(i, [n; 3]).await.unwrap();
        if n % 3 == 0 {
            assert_eq!(array.gather_async(&[i]).await.unwrap(), [[n; 3]]);
        }
        if n % 7 == 0 {
            array.flush_async(..).await.unwrap();
        }
        assert_eq!(array.get_async(i).await.unwrap(), [n; 3]);
        if n % 5 == 0 {
            let page = array.page_async(i / 6).await.unwrap();
            assert_eq!(page[i % 6], [n; 3]);
        }
    }
}
