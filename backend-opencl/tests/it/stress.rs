//! Stress tests of threads that share one device: some allocate and release memory and queues while others
//! copy, search and move elements.

use std::sync::Arc;
use std::thread;

use backend_api::waker;
use backend_api::{
    Commit, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue, QueueProgress,
    Result, Search, Ticket, Transfer,
};
use backend_opencl::{OpenClDevice, OpenClOptions};

use crate::{chosen, open};

/// Sleeps exactly until the ticket's waker is called.
fn wait_by_waker(device: &OpenClDevice, ticket: Ticket) -> Result<()> {
    let this = thread::current();
    device.wake(ticket, waker(move || this.unpark()));
    while device.poll(ticket)? == QueueProgress::Pending {
        thread::park();
    }
    Ok(())
}

fn worker(
    device: &Arc<OpenClDevice>,
    shared: &DeviceBuffer<OpenClDevice>,
    thread: u64,
    rounds: u64,
) -> Result<()> {
    const PAGE: u64 = 1200;
    const PAGES: u64 = 40;
    let mine = thread * PAGE * PAGES;
    let first = Queue::new(device)?;
    for round in 0..rounds {
        let second = Queue::new(device)?;
        let kind = if round % 3 == 0 { HostMemory::Pageable } else { HostMemory::Pinned };
        let frames = HostBuffer::new(device, (2 * PAGE * PAGES) as usize, kind)?;
        let bytes: Vec<u8> =
            (0..PAGE * PAGES).map(|i| (i / PAGE * 3 + i % 200 + thread + round) as u8).collect();
        frames.write(0, &bytes);
        let slot = |i: u64| shared.at(mine + (i * 7 + round) % PAGES * PAGE);
        let up: Vec<_> = (0..PAGES)
            .map(|i| Transfer::Upload { from: frames.at(i * PAGE), to: slot(i), bytes: PAGE })
            .collect();
        let there = first.submit(&up)?;
        second.order_after(there)?;
        // Memory of this thread alone, which is released while work uses it.
        let scratch = DeviceBuffer::new(device, PAGE * PAGES, Commit::Lazy)?;
        let aside = Transfer::Internal { from: shared.at(mine), to: scratch.at(0), bytes: PAGE * PAGES };
        second.submit(&[aside])?;
        let back = HostBuffer::new(device, (PAGE * PAGES + 4096) as usize, kind)?;
        let indices: Vec<u8> = (0..PAGES).flat_map(|i| ((i * 7 + round) % PAGES).to_ne_bytes()).collect();
        back.write((PAGE * PAGES) as usize, &indices);
        let elements = Elements { start: scratch.at(0), count: PAGES, stride: PAGE };
        let gather = Gather {
            elements: elements.into(),
            indices: back.at(PAGE * PAGES),
            count: PAGES,
            values: back.at(0),
        };
        let gathered = second.submit(&gather)?;
        let answer = frames.at((PAGE * PAGES).next_multiple_of(8));
        let search = Search {
            elements: Elements { stride: 1, count: PAGE * PAGES, ..elements },
            field_offset: 0,
            value: &bytes[..1],
            limit: 3,
            count_all: true,
            answer,
        };
        let searched = second.submit(&search)?;
        let filled = second.submit(&Fill { to: scratch.at(0), bytes: PAGE * PAGES, pattern: b"gone" })?;
        drop(scratch);
        if round % 2 == 0 {
            wait_by_waker(device, searched)?;
        } else {
            device.wait(searched)?;
        }
        device.wait(gathered)?;
        let mut found = vec![0; bytes.len()];
        back.read(0, &mut found);
        assert_eq!(found, bytes, "thread {thread}, round {round}");
        let mut total = [0; 8];
        frames.read(answer.offset() as usize, &mut total);
        let expected = bytes.iter().filter(|&&byte| byte == bytes[0]).count() as u64;
        assert_eq!(u64::from_ne_bytes(total), expected, "thread {thread}, round {round}");
        drop(second);
        assert_eq!(device.poll(filled)?, QueueProgress::Done);
    }
    Ok(())
}

#[test]
fn threads_with_several_queues_each_share_a_device() {
    const THREADS: u64 = 6;
    const BUDGET: u64 = 64 << 20;
    for found in chosen() {
        for options in [
            OpenClOptions::new(),
            OpenClOptions::new().with_zero_copy(false),
            OpenClOptions::new().with_largest_allocation_bytes(50_000).with_zero_copy(false),
        ] {
            let device = open(&found, &options.with_budget_bytes(BUDGET));
            let shared = DeviceBuffer::new(&device, THREADS * 48_000, Commit::Proven).expect("little memory");
            thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        scope.spawn({
                            let (device, shared) = (&device, &shared);
                            move || worker(device, shared, thread, 40)
                        })
                    })
                    .collect();
                for thread in threads {
                    thread.join().expect("no panic").expect("no error");
                }
            });
            drop(shared);
            assert_eq!(device.memory().expect("a status").usable_bytes, BUDGET);
        }
    }
}
