//! Tests of futures in common executors: tokio, smol, and `FuturesUnordered` on one thread. `select!` and
//! drops cancel some of the futures while copies fail.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use vmarray::prelude::*;

use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, select_biased};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::host::SimulatedDevice;
use vmarray::{Error, EvictionPolicy, VirtualArray};
use vmarray_conformance::wrap::Faulty;

use crate::common::executor::all;
use crate::common::{Numbers, POLICIES, Shape};

type Array = VirtualArray<u64>;
type Slow = Faulty<SimulatedDevice>;

const PAGE_LEN: usize = 64;
const PAGES: usize = 200;

/// Copies take as long as on a GPU; one in a hundred fails.
fn array(policy: EvictionPolicy, frames: usize, seed: u64) -> (Arc<Array>, Arc<Slow>) {
    let device = Arc::new(Faulty::new(SimulatedDevice::builder(seed).build()));
    let shape = Shape { page_len: PAGE_LEN, channels: vec![1], frames, policy, ..Shape::default() };
    let array = shape.describe(PAGE_LEN * PAGES, vec![device.clone()]).build().unwrap();
    let fault = Fault::new(Operation::Submit, DeviceErrorKind::CopyFailed);
    device.inject(fault.clone().with_chance(0.005, seed));
    device.inject(fault.with_chance(0.005, seed + 1).reported_later());
    (Arc::new(array), device)
}

/// Ready at the second poll, so its competitor has the first turn.
fn yield_once() -> impl Future<Output = ()> + Unpin {
    let mut turns = 0;
    futures::future::poll_fn(move |context| {
        turns += 1;
        context.waker().wake_by_ref();
        if turns == 2 { Poll::Ready(()) } else { Poll::Pending }
    })
}

fn check(error: &Error) {
    assert!(error.device_error().is_some(), "{error}");
}

/// Possible values of an element with one writer.
struct Known {
    index: usize,
    values: Vec<u64>,
}

impl Known {
    fn is(&mut self, value: u64) {
        assert!(self.values.contains(&value), "element {} is {value}, not of {:?}", self.index, self.values);
        self.values = vec![value];
    }
}

/// The task owns an element in each of some pages that it shares with other tasks.
async fn work(array: Arc<Array>, task: usize, turns: usize) {
    let mut numbers = Numbers::new(task as u64 + 1);
    let mut known: Vec<Known> =
        (0..4).map(|_| Known { index: numbers.below(PAGES) * PAGE_LEN + task, values: vec![0] }).collect();
    known.sort_by_key(|known| known.index);
    known.dedup_by_key(|known| known.index);
    for turn in 1..=turns as u64 {
        let at = numbers.below(known.len());
        let index = known[at].index;
        match numbers.below(6) {
            0 | 1 => match array.get_async(index).await {
                Ok(value) => known[at].is(value),
                Err(error) => check(&error),
            },
            2 => match array.set_async(index, turn).await {
                Ok(()) => known[at].values = vec![turn],
                Err(error) => {
                    check(&error);
                    known[at].values.push(turn);
                }
            },
            // The future was dropped after one poll, or it is done: the write is complete, or has no effect.
            3 => {
                known[at].values.push(turn);
                select_biased! {
                    done = array.set_async(index, turn).fuse() => if done.is_ok() { known[at].values = vec![turn] },
                    () = yield_once().fuse() => {}
                }
            }
            4 => select_biased! {
                done = array.get_async(index).fuse() => match done {
                    Ok(value) => known[at].is(value),
                    Err(error) => check(&error),
                },
                () = yield_once().fuse() => {}
            },
            _ => {
                let indices: Vec<usize> = known.iter().map(|known| known.index).collect();
                match array.gather_async(&indices).await {
                    Ok(values) => known.iter_mut().zip(values).for_each(|(known, value)| known.is(value)),
                    Err(error) => check(&error),
                }
            }
        }
    }
}

/// Reads for ever. It yields at times so that it can be aborted; a device in virtual time never makes it
/// pend.
async fn read_on(array: Arc<Array>, seed: u64) {
    let mut numbers = Numbers::new(seed);
    loop {
        yield_once().await;
        if let Err(error) = array.get_async(numbers.below(array.len())).await {
            check(&error);
        }
    }
}

/// No reported write is lost.
fn settle(array: &Array, device: &Slow) {
    device.clear();
    // Ignore an error: the flush may report earlier failures.
    let _ = array.flush(..);
    array.evict(..).unwrap();
    // No old request occupies a frame any more, so new requests for all pages succeed.
    let values = all((0..PAGES).map(|page| array.get_async(page * PAGE_LEN)));
    assert!(values.into_iter().all(|value| value.is_ok()));
}

#[test]
fn tokio_runs_them_on_any_number_of_threads() {
    for (threads, frames) in [(1, 1), (2, 3), (8, 16), (32, 4)] {
        let (array, device) = array(EvictionPolicy::Clock, frames, threads as u64);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().unwrap();
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            (0..PAGE_LEN).for_each(|task| drop(tasks.spawn(work(array.clone(), task, 40))));
            let readers: Vec<_> = (0..20).map(|task| tokio::spawn(read_on(array.clone(), task))).collect();
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
            // Abort the readers at any point of their work.
            readers.iter().for_each(tokio::task::JoinHandle::abort);
        });
        settle(&array, &device);
    }
}

#[test]
fn smol_runs_them_on_any_number_of_threads() {
    for (threads, frames) in [(1, 2), (4, 1), (32, 8)] {
        let (array, device) = array(EvictionPolicy::TwoQueue, frames, threads as u64);
        let executor = smol::Executor::new();
        let tasks: Vec<_> = (0..PAGE_LEN).map(|task| executor.spawn(work(array.clone(), task, 40))).collect();
        let (stop, stopped) = smol::channel::unbounded::<()>();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| smol::block_on(executor.run(stopped.recv())));
            }
            // A blocking thread keeps futures longer than it needs them.
            scope.spawn(|| {
                let mut numbers = Numbers::new(7);
                while !stop.is_closed() {
                    let mut lost = array.get_async(numbers.below(array.len()));
                    let _ = (&mut lost).now_or_never();
                    let _ = array.get(numbers.below(array.len())).map_err(|error| check(&error));
                }
            });
            smol::block_on(async {
                for task in tasks {
                    task.await;
                }
            });
            stop.close();
        });
        settle(&array, &device);
    }
}

#[test]
fn unordered_futures_share_a_thread() {
    for policy in POLICIES {
        for frames in [1, 5, 64] {
            let (array, device) = array(policy, frames, frames as u64);
            let mut tasks: FuturesUnordered<_> =
                (0..PAGE_LEN).map(|task| work(array.clone(), task, 40)).collect();
            futures::executor::block_on(async { while tasks.next().await.is_some() {} });
            settle(&array, &device);
        }
    }
}

/// Guards and their futures stay on their thread.
#[test]
fn guards_of_unordered_futures_take_turns() {
    for frames in [1, 2, 7] {
        let (array, device) = array(EvictionPolicy::Lru, frames, 1);
        device.clear();
        let turn = |page: usize| {
            let array = &array;
            async move {
                for _ in 0..3 {
                    array.page_mut_async(page % 20).await.unwrap()[page / 20] += 1;
                    select_biased! {
                        page = array.page_async(page).fuse() => assert!(page.is_ok()),
                        () = yield_once().fuse() => {}
                    }
                }
            }
        };
        let mut tasks: FuturesUnordered<_> = (0..100).map(turn).collect();
        futures::executor::block_on(async { while tasks.next().await.is_some() {} });
        drop(tasks);
        for page in 0..20 {
            assert_eq!(array.to_vec(page * PAGE_LEN..page * PAGE_LEN + 5).unwrap(), [3; 5]);
        }
    }
}

#[test]
fn a_runtime_that_is_shut_down_leaves_nothing_behind() {
    let (array, device) = array(EvictionPolicy::Clock, 2, 3);
    device.clear();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    (0..PAGE_LEN).for_each(|task| drop(runtime.spawn(work(array.clone(), task, 1_000_000))));
    runtime.block_on(work(array.clone(), 0, 0));
    // Drop all tasks in the middle of their waits.
    drop(runtime);
    assert_eq!(Arc::strong_count(&array), 1);
    array.evict(..).unwrap();
    drop(array.page_mut(0).unwrap());
}
