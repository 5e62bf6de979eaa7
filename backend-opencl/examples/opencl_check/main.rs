//! Lists the OpenCL devices and measures what copies and kernels cost, next to bare OpenCL calls.
//!
//! `cargo run --release --example opencl_check -- [DEVICE] [quick] [copies] [bare]`, where DEVICE is an index
//! or a part of a name, identity or platform. `quick` takes little memory; `copies` keeps kernels from pinned
//! memory; `bare` measures the driver alone instead.

mod bare;

use std::error::Error;
use std::ptr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use backend_api::{
    Commit, Device, DeviceBuffer, DeviceKind, Elements, Fill, Gather, HostBuffer, HostMemory, Queue, Scatter,
    Search, Transfer,
};
use backend_opencl::{Discovered, OpenClDevice, Options, devices_matching};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::memory::{Buffer, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, ClMem};
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let is_word = |argument: &&String| ["quick", "copies", "bare"].contains(&argument.as_str());
    let filter = arguments.iter().find(|argument| !is_word(argument)).cloned().unwrap_or_default();
    let found = devices_matching(&filter);
    println!("{} OpenCL device(s)", found.len());
    for device in &found {
        describe(device);
    }
    for device in &found {
        println!("\n=== {}", device.info());
        if has("bare") {
            bare::all(device)?;
        } else {
            let quick = has("quick") || device.info().kind == DeviceKind::Cpu;
            measure(device, &Options::new().with_zero_copy(!has("copies")), quick)?;
        }
    }
    Ok(())
}

fn describe(found: &Discovered) {
    let info = found.info();
    println!("- {} by {} [{}]", info.name, info.vendor, found.platform());
    println!("  {}, identity {}, aliases {:?}", info.kind, info.identity, info.aliases);
    println!("  {} in all, {} in one piece", size(info.total_bytes), size(info.largest_allocation_bytes));
    println!("  driver {}, {} copy engines, NUMA node {:?}", info.driver, info.copy_engines, info.numa_node);
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Gigabytes (10^9) a second.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// The shortest of several runs, after one to warm up.
fn best(mut run: impl FnMut() -> Outcome<()>) -> Outcome<Duration> {
    run()?;
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        run()?;
        shortest = shortest.min(start.elapsed());
    }
    Ok(shortest)
}

struct Rig {
    device: Arc<OpenClDevice>,
    queue: Queue<OpenClDevice>,
    memory: DeviceBuffer<OpenClDevice>,
    frames: HostBuffer<OpenClDevice>,
    /// Bytes of both.
    bytes: u64,
}

fn measure(found: &Discovered, options: &Options, quick: bool) -> Outcome<()> {
    let start = Instant::now();
    let device = Arc::new(OpenClDevice::open(found, options)?);
    println!(
        "opened in {:?}, kernels {}",
        start.elapsed(),
        if device.kernels_were_cached() { "from disk" } else { "built" }
    );
    println!("memory {:?}", device.memory()?);
    println!("kernels reach pinned memory: {}", device.kernels_reach_pinned_memory());
    let bytes: u64 = if quick { 32 << 20 } else { 1 << 30 };
    let start = Instant::now();
    let frames = HostBuffer::new(&device, bytes as usize, HostMemory::Pinned)?;
    println!("{} pinned in {:?}", size(bytes), start.elapsed());
    let memory = DeviceBuffer::new(&device, bytes, Commit::Proven)?;
    let queue = Queue::new(&device)?;
    let rig = Rig { device, queue, memory, frames, bytes };
    small_reads(found, &rig, quick)?;
    batches(&rig)?;
    bulk(&rig)?;
    indexed(&rig)?;
    drop(rig.frames);
    drop(rig.memory);
    kernels(&rig.device, &rig.queue, quick)
}

fn small_reads(found: &Discovered, rig: &Rig, quick: bool) -> Outcome<()> {
    println!("one read and wait, in microseconds (mean)     bare    here");
    let context = Context::from_device(&opencl3::device::Device::new(cl_device(found)?))?;
    // SAFETY: no host pointer; properties are none.
    let (bare, mut buffer, mut host) = unsafe {
        (
            CommandQueue::create_default_with_properties(&context, 0, 0)?,
            Buffer::<u8>::create(&context, CL_MEM_READ_WRITE, 4 << 20, ptr::null_mut())?,
            Buffer::<u8>::create(
                &context,
                CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                4 << 20,
                ptr::null_mut(),
            )?,
        )
    };
    let mut address = ptr::null_mut();
    // SAFETY: the whole of the buffer is mapped, and unmapped before it goes.
    let pinned = unsafe {
        bare.enqueue_map_buffer(
            &host,
            CL_BLOCKING,
            CL_MAP_READ | CL_MAP_WRITE,
            0,
            4 << 20,
            &mut address,
            &[],
        )?;
        std::slice::from_raw_parts_mut(address.cast::<u8>(), 4 << 20)
    };
    // SAFETY: both buffers are 4 MiB long.
    unsafe { bare.enqueue_write_buffer(&mut buffer, CL_BLOCKING, 0, pinned, &[])? };
    let rounds = if quick { 200 } else { 2000 };
    for bytes in [4 << 10, 16 << 10, 64 << 10, 1 << 20] {
        let time = best(|| {
            for round in 0..rounds {
                let offset = (round % 3) * (1 << 20);
                // SAFETY: the event is waited for before the memory is used again.
                let event = unsafe {
                    bare.enqueue_read_buffer(&buffer, CL_NON_BLOCKING, offset, &mut pinned[..bytes], &[])?
                };
                event.wait()?;
            }
            Ok(())
        })?;
        let ours = best(|| {
            for round in 0..rounds {
                let from = rig.memory.at((round as u64 % 3) * (1 << 20));
                let copy = Transfer::Download { from, to: rig.frames.at(0), bytes: bytes as u64 };
                rig.device.wait(rig.queue.submit(&[copy])?)?;
            }
            Ok(())
        })?;
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / rounds as f64;
        println!(
            "  {:>8}                               {:8.2} {:8.2}",
            size(bytes as u64),
            micros(time),
            micros(ours)
        );
    }
    // SAFETY: `pinned` is not used from here on.
    unsafe { bare.enqueue_unmap_mem_object(host.get_mut(), address, &[])? };
    bare.finish()?;

    println!("reads of 4 KiB and waits from several threads with queues of their own, in thousands a second");
    for threads in [1, 2, 4, 8, 16] {
        println!("  {threads:>2} threads {:8.1}", reads_of_threads(rig, threads, rounds as u64)?);
    }
    Ok(())
}

/// How many reads of 4 KiB, each waited for, threads with queues of their own make together, in thousands a
/// second.
fn reads_of_threads(rig: &Rig, threads: usize, rounds: u64) -> Outcome<f64> {
    const WARM_UP: u64 = 100;
    let queues = (0..threads).map(|_| Queue::new(&rig.device)).collect::<Result<Vec<_>, _>>()?;
    let barrier = Barrier::new(threads + 1);
    let (failed, time) = std::thread::scope(|scope| {
        let work = |thread: usize, queue| {
            let barrier = &barrier;
            move || -> backend_api::Result<()> {
                let queue: &Queue<OpenClDevice> = queue;
                let mut outcome = Ok(());
                for round in 0..rounds + WARM_UP {
                    if round == WARM_UP {
                        barrier.wait();
                    }
                    let from = rig.memory.at(round * 4096 % (1 << 20));
                    let to = rig.frames.at(thread as u64 * 4096);
                    let read = queue.submit(&[Transfer::Download { from, to, bytes: 4096 }]);
                    outcome = outcome.and(read.and_then(|ticket| rig.device.wait(ticket)));
                }
                barrier.wait();
                outcome
            }
        };
        let running: Vec<_> =
            queues.iter().enumerate().map(|(thread, queue)| scope.spawn(work(thread, queue))).collect();
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        let time = start.elapsed();
        (running.into_iter().any(|thread| !matches!(thread.join(), Ok(Ok(())))), time)
    });
    if failed {
        return Err("a read failed".into());
    }
    Ok((threads as u64 * rounds) as f64 / time.as_secs_f64() / 1e3)
}

/// The driver's handle, which the crate keeps to itself: found again by platform and place.
fn cl_device(found: &Discovered) -> Outcome<opencl3::types::cl_device_id> {
    for platform in opencl3::platform::get_platforms()? {
        for id in platform.get_devices(opencl3::device::CL_DEVICE_TYPE_ALL)? {
            if opencl3::device::Device::new(id).name()?.trim() == found.info().name {
                return Ok(id);
            }
        }
    }
    Err("the device has gone".into())
}

/// Numbers that look random.
fn scattered(i: u64, of: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9) % of
}

fn batches(rig: &Rig) -> Outcome<()> {
    println!(
        "pages at scattered places, GB/s           up: packed  scattered   down: packed  scattered frames"
    );
    for (page, count) in [(4_u64 << 10, 1024_u64), (64 << 10, 256), (256 << 10, 64), (1 << 20, 16)] {
        let places = rig.bytes / page;
        let slot = |i: u64| rig.memory.at((scattered(i, places / 2) * 2) * page);
        let packed = |i: u64| rig.frames.at(i * page);
        // Every other frame, so that none lies next to the one before.
        let apart = |i: u64| rig.frames.at((i * 2 % places) * page);
        let list = |up: bool, packed_frames: bool| -> Vec<Transfer> {
            (0..count.min(places / 2))
                .map(|i| {
                    let frame = if packed_frames { packed(i) } else { apart(i) };
                    if up {
                        Transfer::Upload { from: frame, to: slot(i), bytes: page }
                    } else {
                        Transfer::Download { from: slot(i), to: frame, bytes: page }
                    }
                })
                .collect()
        };
        let time = |copies: Vec<Transfer>| -> Outcome<f64> {
            let bytes = copies.iter().map(Transfer::bytes).sum();
            let time = best(|| Ok(rig.device.wait(rig.queue.submit(&copies)?)?))?;
            Ok(rate(bytes, time))
        };
        println!(
            "  {:>8} x {count:<5}                          {:8.2} {:10.2} {:14.2} {:10.2}",
            size(page),
            time(list(true, true))?,
            time(list(true, false))?,
            time(list(false, true))?,
            time(list(false, false))?
        );
    }
    Ok(())
}

fn bulk(rig: &Rig) -> Outcome<()> {
    let other = Queue::new(&rig.device)?;
    let half = rig.bytes / 2;
    let up = Transfer::Upload { from: rig.frames.at(0), to: rig.memory.at(0), bytes: half };
    let down = Transfer::Download { from: rig.memory.at(half), to: rig.frames.at(half), bytes: half };
    let one = |copy| best(|| Ok(rig.device.wait(rig.queue.submit(&[copy])?)?));
    let both = best(|| {
        let (a, b) = (rig.queue.submit(&[up])?, other.submit(&[down])?);
        rig.device.wait(a)?;
        Ok(rig.device.wait(b)?)
    })?;
    println!(
        "{} at once, GB/s: up {:.1}, down {:.1}, both {:.1}",
        size(half),
        rate(half, one(up)?),
        rate(half, one(down)?),
        rate(2 * half, both)
    );
    Ok(())
}

fn indexed(rig: &Rig) -> Outcome<()> {
    println!("elements by index                    gather M/s   GB/s   scatter M/s   GB/s");
    let area = rig.bytes / 2;
    for stride in [4_u64, 44, 128, 1024, 4096] {
        let elements = Elements { start: rig.memory.at(0), count: rig.bytes / stride, stride };
        let count = (area / 2 / stride).min(area / 8).min(16 << 20);
        // An odd factor, so that no index comes twice.
        let limit = 1_u64 << elements.count.ilog2();
        let indices: Vec<u8> =
            (0..count).flat_map(|i| (i.wrapping_mul(0x9e37_79b9) & (limit - 1)).to_ne_bytes()).collect();
        rig.frames.write(0, &indices);
        let (indices, values) = (rig.frames.at(0), rig.frames.at(area));
        let gather = Gather { elements, indices, count, values };
        let scatter = Scatter { elements, indices, count, values };
        let gather = best(|| Ok(rig.device.wait(rig.queue.gather(&gather)?)?))?;
        let scatter = best(|| Ok(rig.device.wait(rig.queue.scatter(&scatter)?)?))?;
        let million = |time: Duration| count as f64 / time.as_secs_f64() / 1e6;
        println!(
            "  {:>8}                           {:10.1} {:6.2}    {:10.1} {:6.2}",
            size(stride),
            million(gather),
            rate(count * stride, gather),
            million(scatter),
            rate(count * stride, scatter)
        );
    }
    Ok(())
}

fn kernels(device: &Arc<OpenClDevice>, queue: &Queue<OpenClDevice>, quick: bool) -> Outcome<()> {
    let usable = device.memory()?.usable_bytes;
    let bytes = if quick { 64 << 20 } else { (8 << 30).min(usable / 4) } & !0xFFFF;
    let memory = DeviceBuffer::new(device, 2 * bytes, Commit::Proven)?;
    let answer = HostBuffer::new(device, 16 + 8 * 1024, HostMemory::Pinned)?;
    let time = best(|| {
        Ok(device.wait(queue.fill(&Fill { to: memory.at(0), bytes, pattern: &[1, 2, 3, 4] })?)?)
    })?;
    println!("over {}: fill {:.1} GB/s", size(bytes), rate(bytes, time));
    let copy = Transfer::Internal { from: memory.at(0), to: memory.at(bytes), bytes };
    let time = best(|| Ok(device.wait(queue.submit(&[copy])?)?))?;
    println!(
        "  copy on the device   {:8.1} GB/s read and written: compare searches with this",
        rate(2 * bytes, time)
    );
    device.wait(queue.fill(&Fill { to: memory.at(0), bytes: 2 * bytes, pattern: &[0] })?)?;
    let search = |name: &str, stride: u64, value: &[u8], limit: u64| -> Outcome<()> {
        let elements = Elements { start: memory.at(0), count: 2 * bytes / stride, stride };
        let search =
            Search { elements, field_offset: 0, value, limit, count_all: true, answer: answer.at(0) };
        let time = best(|| Ok(device.wait(queue.search(&search)?)?))?;
        println!("  search {name:<24} {:8.1} GB/s of elements, {time:?}", rate(2 * bytes, time));
        Ok(())
    };
    search("u8, no match", 1, &[9], 16)?;
    search("u32, no match", 4, &[9, 9, 9, 9], 16)?;
    search("u32, only counting", 4, &[9, 9, 9, 9], 0)?;
    search("u64, no match", 8, &[9; 8], 16)?;
    search("16 bytes, no match", 16, &[9; 16], 16)?;
    search("4 of 8 bytes, no match", 8, &[9; 4], 16)?;
    search("4 of 44 bytes, no match", 44, &[9; 4], 16)?;
    search("4 of 128 bytes, no match", 128, &[9; 4], 16)?;
    search("u32, all match", 4, &[0; 4], 1024)?;
    let first = Search {
        elements: Elements { start: memory.at(0), count: bytes / 2, stride: 4 },
        field_offset: 0,
        value: &[0; 4],
        limit: 1,
        count_all: false,
        answer: answer.at(0),
    };
    let time = best(|| Ok(device.wait(queue.search(&first)?)?))?;
    println!("  first match at the start {time:?}");
    drop(memory);

    let largest = device.info().largest_allocation_bytes;
    let long = largest + largest / 4;
    let usable = device.memory()?.usable_bytes;
    if !quick && long <= usable {
        let start = Instant::now();
        let memory = DeviceBuffer::new(device, long, Commit::Proven)?;
        println!("{} in several pieces, proven in {:?}", size(long), start.elapsed());
        let elements = Elements { start: memory.at(0), count: long / 44, stride: 44 };
        queue.fill(&Fill { to: memory.at(0), bytes: long, pattern: &[0] })?;
        let last = elements.count - 1;
        queue.fill(&Fill { to: memory.at(last * 44), bytes: 4, pattern: &[7] })?;
        let search = Search {
            elements,
            field_offset: 0,
            value: &[7; 4],
            limit: 1,
            count_all: true,
            answer: answer.at(0),
        };
        let start = Instant::now();
        device.wait(queue.search(&search)?)?;
        let time = start.elapsed();
        let mut words = [0; 24];
        answer.read(0, &mut words);
        let index = u64::from_ne_bytes(words[16..].try_into()?);
        println!("  search across pieces {:.1} GB/s; found {index}, expected {last}", rate(long, time));
    }
    Ok(())
}
