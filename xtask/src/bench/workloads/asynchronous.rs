//! Tasks of one thread or of some, thousands of them, each with one random element after another.

use super::{Bench, size};
use crate::bench::elements::{Block, Payload, Record};
use crate::bench::measure::{Sample, Unit, on_threads, timed};
use crate::bench::raw::Way;
use crate::random::{Random, mix};
use anyhow::{Result, bail, ensure};
use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use vmarray::VirtualArray;
use vmarray::prelude::*;

/// Tasks of the thread.
const TASKS: usize = 4096;

pub fn run(bench: &mut Bench) -> Result<()> {
    one::<Record>(bench, Some(64))?;
    one::<Block>(bench, Some(1))?;
    crowds(bench)
}

/// Threads, tasks of each, and the elements that all of them get in one run: more tasks than frames, as few,
/// and fewer.
const CROWDS: [(usize, usize, usize); 4] =
    [(16, 500, 800_000), (4, 4000, 800_000), (1, 10_000, 800_000), (16, 100, 800_000)];

/// Many tasks that share a cache of 4096 pages of 64 KiB; where an element lies depends on the one before.
fn crowds(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("async/dependent/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let bytes = setup.medium_bytes;
    let array = setup.filled::<u32>(bytes, Some(16 << 10), (bytes / 4).min(256 << 20))?;
    let page_bytes = array.page_len() * size_of::<u32>();
    let mut seed = 0;
    for (threads, tasks, count) in CROWDS {
        let name = format!("async/dependent/4/{}/t{threads}x{tasks}", size(page_bytes));
        let Some(mut row) = bench.row(name, Unit::KiloPerSecond) else { continue };
        let each = (count / threads / tasks / if setup.quick { 20 } else { 1 }).max(2);
        row.ours(&setup.effort, &array, || {
            seed += 1;
            on_threads(threads, |thread| {
                let first = mix(seed * 1000 + thread as u64);
                let mut all = Tasks::default();
                (0..tasks).for_each(|task| all.spawn(dependent(&array, each, first + task as u64)));
                all.run()?;
                Ok((each * tasks) as f64)
            })
        })?;
        let pages = |gigabytes: f64| gigabytes * 1e6 / page_bytes as f64;
        row.limit("batched", bench.raw.batched(Way::Down, page_bytes)?.scaled(pages(1.0)));
        row.limit("bus", bench.raw.bus(Way::Down)?.scaled(pages(1.0)));
        bench.push(row);
    }
    Ok(())
}

/// Gets so many elements, each at a place that the last one decides.
async fn dependent(array: &VirtualArray<u32>, count: usize, seed: u64) -> Result<()> {
    let mut state = seed;
    for _ in 0..count {
        let index = (mix(state) % array.len() as u64) as usize;
        let value = array.get_async(index).await?;
        ensure!(value.belongs_to(index), "element {index} is wrong");
        state = state.wrapping_mul(31).wrapping_add(u64::from(value) | 1);
    }
    Ok(())
}

fn one<T: Payload>(bench: &mut Bench, page_len: Option<usize>) -> Result<()> {
    let setup = bench.setup.clone();
    let effort = &setup.effort;
    if !["get", "hit"].iter().any(|what| bench.wants_any(&format!("async/{what}/{}/", T::SIZE))) {
        return Ok(());
    }
    let bytes = setup.medium_bytes;
    let cache = (bytes / 8).min(64 << 20);
    let array = setup.filled::<T>(bytes, page_len, cache)?;
    let page_bytes = array.page_len() * size_of::<T>();
    let count = if setup.quick { 100_000 } else { 1_000_000 };
    let mut seed = 0;
    if let Some(mut row) =
        bench.row(format!("async/get/{}/{}/t1", T::SIZE, size(page_bytes)), Unit::KiloPerSecond)
    {
        row.ours(effort, &array, || {
            seed += 1;
            gets(&array, count, array.len(), seed)
        })?;
        row.limit("single", bench.raw.single(page_bytes, 1)?);
        bench.push(row);
    }
    if let Some(mut row) =
        bench.row(format!("async/hit/{}/{}/t1", T::SIZE, size(page_bytes)), Unit::Nanoseconds)
    {
        let few = (cache / 4 / size_of::<T>()).max(1);
        (0..few).try_for_each(|index| array.get(index).map(drop))?;
        row.ours(effort, &array, || {
            seed += 1;
            gets(&array, count, few, seed)
        })?;
        bench.push(row);
    }
    Ok(())
}

/// Reads random elements below `end`, by all tasks together.
fn gets<T: Payload>(array: &VirtualArray<T>, count: usize, end: usize, seed: u64) -> Result<Sample> {
    let each = count / TASKS;
    let task = |number: usize| async move {
        let mut random = Random::new(seed * 10_000 + number as u64);
        for _ in 0..each {
            let index = random.index(end);
            // Looked at where it is: to move a long element on takes as long as to read it.
            match &array.get_async(index).await {
                Ok(element) => ensure!(black_box(element).belongs_to(index), "element {index} is wrong"),
                Err(error) => return Err(error.clone().into()),
            }
        }
        Ok(())
    };
    timed(1, || {
        let mut tasks = Tasks::default();
        (0..TASKS).for_each(|number| tasks.spawn(task(number)));
        tasks.run()?;
        Ok((each * TASKS) as f64)
    })
}

#[derive(Default)]
struct Ready {
    tasks: Mutex<VecDeque<usize>>,
    woken: Condvar,
}

struct Task {
    number: usize,
    is_ready: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::AcqRel)
            && let Ok(mut tasks) = self.ready.tasks.lock()
        {
            tasks.push_back(self.number);
            if tasks.len() == 1 {
                self.ready.woken.notify_one();
            }
        }
    }
}

type Boxed<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// The simplest executor there is: one thread, tasks in the order in which they are woken.
#[derive(Default)]
struct Tasks<'a> {
    /// Those that are not over.
    tasks: Vec<Option<(Boxed<'a>, Arc<Task>, Waker)>>,
    ready: Arc<Ready>,
}

impl<'a> Tasks<'a> {
    fn spawn(&mut self, future: impl Future<Output = Result<()>> + 'a) {
        let number = self.tasks.len();
        let task = Arc::new(Task { number, is_ready: AtomicBool::new(false), ready: self.ready.clone() });
        task.wake_by_ref();
        self.tasks.push(Some((Box::pin(future), task.clone(), task.into())));
    }

    fn run(&mut self) -> Result<()> {
        let mut left = self.tasks.len();
        let mut batch = VecDeque::new();
        while left > 0 {
            {
                let Ok(ready) = self.ready.tasks.lock() else { bail!("a waker panicked") };
                let Ok(mut ready) = self.ready.woken.wait_while(ready, |ready| ready.is_empty()) else {
                    bail!("a waker panicked")
                };
                std::mem::swap(&mut *ready, &mut batch);
            }
            for number in batch.drain(..) {
                // One that is over may be woken once more.
                let Some((future, task, waker)) = &mut self.tasks[number] else { continue };
                task.is_ready.store(false, Ordering::Release);
                if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                    result?;
                    self.tasks[number] = None;
                    left -= 1;
                }
            }
        }
        Ok(())
    }
}
