//! How fast it is, next to the driver called directly.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_api::{
    Commit, Device, DeviceBuffer, Elements, Fill, Gather, HostBuffer, HostMemory, Queue, Scatter, Search,
    Transfer,
};
use backend_cuda::{Completion, CudaDevice, Options, Route};

use crate::raw::{self, Kernels, Raw};

type Outcome = Result<(), Box<dyn Error>>;

/// The median of the time that `work` takes, in microseconds.
pub fn median(times: usize, mut work: impl FnMut() -> Outcome) -> Result<f64, Box<dyn Error>> {
    let mut taken = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        work()?;
        taken.push(start.elapsed());
    }
    taken.sort_unstable();
    Ok(micros(taken[times / 2]))
}

pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// GB/s.
pub fn rate(bytes: u64, micros: f64) -> f64 {
    bytes as f64 / micros / 1e3
}

/// One small copy and the wait for it.
pub fn latency(index: u32) -> Outcome {
    println!("\n== one copy and the wait for it, µs (median of 20000)");
    let device = Arc::new(CudaDevice::open(index)?);
    let raw = Raw::new(device.context(), 1 << 20);
    let mut value = 0;
    for bytes in [4096_usize, 65_536, 1 << 20] {
        for (name, is_upload) in [("download", false), ("upload", true)] {
            let copy = || if is_upload { raw.upload(bytes) } else { raw.download(bytes) };
            for _ in 0..1000 {
                copy();
                raw.synchronize();
            }
            let times = 20_000_000 / bytes.max(1000);
            let synchronize = median(times, || {
                copy();
                raw.synchronize();
                Ok(())
            })?;
            let event = median(times, || {
                copy();
                raw.event();
                Ok(())
            })?;
            let counter = median(times, || {
                copy();
                value += 1;
                raw.counter(value);
                Ok(())
            })?;
            print!(
                "{bytes:>8} {name:<8} raw: synchronize {synchronize:.2} event {event:.2} counter {counter:.2}; \
                 ours:"
            );
            for completion in [Completion::Counter, Completion::Event] {
                let device =
                    Arc::new(CudaDevice::open_with(index, &Options::new().with_completion(completion))?);
                let queue = Queue::new(&device)?;
                let memory = DeviceBuffer::new(&device, bytes as u64, Commit::Lazy)?;
                let host = HostBuffer::new(&device, bytes, HostMemory::Pinned)?;
                let bytes = bytes as u64;
                let transfer = if is_upload {
                    Transfer::Upload { from: host.at(0), to: memory.at(0), bytes }
                } else {
                    Transfer::Download { from: memory.at(0), to: host.at(0), bytes }
                };
                let ours = median(times, || {
                    let ticket = queue.submit(&[transfer])?;
                    device.wait(ticket)?;
                    Ok(())
                })?;
                let submit_only = {
                    let start = Instant::now();
                    for _ in 0..500 {
                        queue.submit(&[transfer])?;
                    }
                    let taken = micros(start.elapsed()) / 500.0;
                    device.wait(queue.submit(&[])?)?;
                    taken
                };
                print!(" {completion:?} {ours:.2} (submit alone {submit_only:.2})");
            }
            println!();
        }
    }
    let per_call = |name: &str, times: u32, call: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..times {
            call();
        }
        println!("{name}: {:.0} ns", start.elapsed().as_secs_f64() * 1e9 / f64::from(times));
    };
    let context = raw.current();
    per_call("cuCtxGetCurrent", 1_000_000, &mut || {
        raw.current();
    });
    per_call("cuCtxSetCurrent", 1_000_000, &mut || raw.set_current(context));
    per_call("cuMemcpyDtoHAsync 4 KiB alone", 500, &mut || raw.download(4096));
    raw.synchronize();
    per_call("cuEventRecord alone", 500, &mut || raw.record_only());
    raw.synchronize();
    per_call("cuStreamWriteValue64 alone", 500, &mut || {
        value += 1;
        raw.write_only(value);
    });
    raw.synchronize();
    let queue = Queue::new(&device)?;
    let ticket = queue.submit(&[])?;
    device.wait(ticket)?;
    let mut failed = false;
    per_call("poll of a finished ticket", 1_000_000, &mut || failed |= device.poll(ticket).is_err());
    let empty = median(10_000, || Ok(device.wait(queue.submit(&[])?)?))?;
    println!("empty submission and wait: {empty:.2} µs");
    Ok(())
}

/// Many submissions of one copy each, and the wait for the last.
pub fn queued(index: u32) -> Outcome {
    println!("\n== queued copies, one a submission, then one wait: GB/s (median of 15)");
    const ROOM: usize = 256 << 20;
    let device = Arc::new(CudaDevice::open(index)?);
    let raw = Raw::new(device.context(), ROOM);
    let mut value = 0;
    let benches = [Completion::Counter, Completion::Event].map(|completion| {
        let device = Arc::new(CudaDevice::open_with(index, &Options::new().with_completion(completion))?);
        let queue = Queue::new(&device)?;
        let memory = DeviceBuffer::new(&device, ROOM as u64, Commit::Lazy)?;
        let host = HostBuffer::new(&device, ROOM, HostMemory::Pinned)?;
        Ok::<_, backend_api::Error>((device, queue, memory, host, completion))
    });
    for bytes in [64_usize << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 64 << 20] {
        for (name, is_upload) in [("download", false), ("upload", true)] {
            let count = (ROOM / bytes).min(500);
            let total = (count * bytes) as u64;
            let copies = |after: &mut dyn FnMut()| {
                for i in 0..count {
                    raw.copy(is_upload, i * bytes, bytes);
                    after();
                }
                raw.synchronize();
                Ok(())
            };
            let plain = median(15, || copies(&mut || {}))?;
            let events = median(15, || copies(&mut || raw.record_only()))?;
            let counters = median(15, || {
                copies(&mut || {
                    value += 1;
                    raw.write_only(value);
                })
            })?;
            print!(
                "{bytes:>9} {name:<8} raw {:.2}, with events {:.2}, with counters {:.2}; ours:",
                rate(total, plain),
                rate(total, events),
                rate(total, counters)
            );
            for bench in &benches {
                let (device, queue, memory, host, completion) = bench.as_ref().map_err(Clone::clone)?;
                let transfers: Vec<Transfer> = (0..count)
                    .map(|i| {
                        let (d, h, bytes) =
                            (memory.at((i * bytes) as u64), host.at((i * bytes) as u64), bytes as u64);
                        if is_upload {
                            Transfer::Upload { from: h, to: d, bytes }
                        } else {
                            Transfer::Download { from: d, to: h, bytes }
                        }
                    })
                    .collect();
                let ours = median(15, || {
                    let mut last = None;
                    for transfer in &transfers {
                        last = Some(queue.submit(std::slice::from_ref(transfer))?);
                    }
                    last.map_or(Ok(()), |ticket| Ok(device.wait(ticket)?))
                })?;
                print!(" {completion:?} {:.2} ({:.1} % of raw)", rate(total, ours), plain / ours * 100.0);
            }
            println!();
        }
    }
    Ok(())
}

const COUNTS: [usize; 15] = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256, 1024, 4096, 16_384, 65_536];

/// Batches of copies by number, size and way.
pub fn copies(index: u32) -> Outcome {
    let ways = [
        ("single", Some(Route::Single)),
        ("batch", Some(Route::Batch)),
        ("kernel", Some(Route::Kernel)),
        ("chosen", None),
    ];
    /// The most that one submission moves.
    const TOTAL_MAX: u64 = 256 << 20;
    let mut benches = Vec::new();
    for (_, route) in ways {
        let options = route.map_or(Options::new(), |route| Options::new().with_route(route));
        let device = Arc::new(CudaDevice::open_with(index, &options)?);
        let queue = Queue::new(&device)?;
        let memory = DeviceBuffer::new(&device, TOTAL_MAX, Commit::Lazy)?;
        let host = HostBuffer::new(&device, 2 * TOTAL_MAX as usize, HostMemory::Pinned)?;
        benches.push((device, queue, memory, host));
    }
    for (direction, name) in [(0, "download"), (1, "upload"), (2, "both ways")] {
        println!("\n== {name}: GB/s of one submission and its wait, alone; every other page of the host");
        println!(
            "{:>9} {:>6} {:>8} {:>8} {:>8} {:>8}",
            "bytes", "count", "single", "batch", "kernel", "chosen"
        );
        for bytes in [4_u64 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            for count in COUNTS {
                let total = bytes * count as u64;
                if total > TOTAL_MAX {
                    continue;
                }
                print!("{bytes:>9} {count:>6}");
                for ((device, queue, memory, host), (_, route)) in benches.iter().zip(ways) {
                    if count > 4096 && matches!(route, Some(Route::Single | Route::Batch)) {
                        print!(" {:>8}", "-");
                        continue;
                    }
                    let transfers: Vec<Transfer> = (0..count as u64)
                        .map(|i| {
                            let (d, h) = (memory.at(i * bytes), host.at(2 * i * bytes));
                            if direction == 1 || direction == 2 && i % 2 == 0 {
                                Transfer::Upload { from: h, to: d, bytes }
                            } else {
                                Transfer::Download { from: d, to: h, bytes }
                            }
                        })
                        .collect();
                    let once = || Ok(device.wait(queue.submit(&transfers)?)?);
                    once()?;
                    let taken = median(if total > 64 << 20 { 7 } else { 31 }, once)?;
                    print!(" {:>8.2}", rate(total, taken));
                }
                println!();
            }
        }
    }
    Ok(())
}

/// Threads that each wait for one copy at a time.
pub fn threads(index: u32) -> Outcome {
    println!("\n== copies waited for one at a time by T threads, thousands a second (download)");
    for completion in [Completion::Counter, Completion::Event] {
        for bytes in [4096_u64, 65_536] {
            for threads in [1, 2, 4, 8, 16, 32] {
                let device =
                    Arc::new(CudaDevice::open_with(index, &Options::new().with_completion(completion))?);
                let each = 20_000;
                let start = std::sync::Barrier::new(threads + 1);
                let taken = std::thread::scope(|scope| {
                    let workers: Vec<_> = (0..threads)
                        .map(|_| {
                            scope.spawn(|| {
                                let ready = (|| {
                                    let queue = Queue::new(&device)?;
                                    let memory = DeviceBuffer::new(&device, bytes, Commit::Lazy)?;
                                    let host = HostBuffer::new(&device, bytes as usize, HostMemory::Pinned)?;
                                    Ok::<_, backend_api::Error>((queue, memory, host))
                                })();
                                start.wait();
                                let (queue, memory, host) = ready?;
                                let copy = Transfer::Download { from: memory.at(0), to: host.at(0), bytes };
                                for _ in 0..each {
                                    device.wait(queue.submit(&[copy])?)?;
                                }
                                start.wait();
                                Ok::<_, backend_api::Error>(())
                            })
                        })
                        .collect();
                    start.wait();
                    let begin = Instant::now();
                    start.wait();
                    let taken = begin.elapsed();
                    for worker in workers {
                        worker.join().map_err(|_| "a thread panicked")??;
                    }
                    Ok::<_, Box<dyn Error>>(taken)
                })?;
                println!(
                    "{completion:?} {bytes:>6} bytes, {threads:>2} threads: {:.0}",
                    (threads * each) as f64 / taken.as_secs_f64() / 1e3
                );
            }
        }
    }
    Ok(())
}

/// Searches, fills and copies on the card.
pub fn search(index: u32) -> Outcome {
    println!("\n== on the card");
    let device = Arc::new(CudaDevice::open(index)?);
    let queue = Queue::new(&device)?;
    let bytes = (8_u64 << 30).min(device.memory()?.usable_bytes / 3) / 4096 * 4096;
    let memory = DeviceBuffer::new(&device, bytes, Commit::Proven)?;
    {
        let second = DeviceBuffer::new(&device, bytes, Commit::Lazy)?;
        let copy = Transfer::Internal { from: memory.at(0), to: second.at(0), bytes };
        let taken = median(9, || Ok(device.wait(queue.submit(&[copy])?)?))?;
        println!("copy: {:.0} GB/s read and as much written", rate(bytes, taken));
    }
    for pattern in [&[0_u8][..], &[1, 2, 3, 4], &[1, 2, 3], &[7; 44]] {
        let mut pattern = pattern.to_vec();
        if pattern.len() == 44 {
            pattern[3] = 1;
        }
        let fill = Fill { to: memory.at(0), bytes, pattern: &pattern };
        let taken = median(9, || Ok(device.wait(queue.fill(&fill)?)?))?;
        println!("fill, pattern of {}: {:.0} GB/s", pattern.len(), rate(bytes, taken));
    }
    device.wait(queue.fill(&Fill { to: memory.at(0), bytes, pattern: &[0] })?)?;
    let yardstick = plain_read(&device, bytes)?;
    let answer = HostBuffer::new(&device, 64 << 20, HostMemory::Pinned)?;
    let measure = |name: &str,
                   stride: u64,
                   field_offset: u64,
                   value: &[u8],
                   limit: u64,
                   count_all: bool|
     -> Outcome {
        let elements = Elements { start: memory.at(0), count: bytes / stride, stride };
        let search = Search { elements, field_offset, value, limit, count_all, answer: answer.at(0) };
        let taken = median(15, || Ok(device.wait(queue.search(&search)?)?))?;
        let mut header = [0; 16];
        answer.read(0, &mut header);
        let total = u64::from_le_bytes(header[..8].try_into()?);
        println!(
            "search {name}: {taken:.0} µs, {:.0} GB/s of array ({:.1} % of a plain read), {:.1} G elements/s, {total} \
             matches",
            rate(bytes, taken),
            yardstick / taken * 100.0,
            elements.count as f64 / taken / 1e3
        );
        Ok(())
    };
    measure("u8, none", 1, 0, &[9], 0, true)?;
    measure("u16, none", 2, 0, &[9; 2], 0, true)?;
    measure("u32, none", 4, 0, &[9; 4], 0, true)?;
    measure("u32, none, 1000 wanted", 4, 0, &[9; 4], 1000, true)?;
    measure("u32, none, the first wanted", 4, 0, &[9; 4], 1, false)?;
    measure("u64, none", 8, 0, &[9; 8], 0, true)?;
    measure("16 bytes, none", 16, 0, &[9; 16], 0, true)?;
    measure("4 of 8 bytes, none", 8, 0, &[9; 4], 0, true)?;
    measure("4 of 44 bytes, none", 44, 8, &[9; 4], 0, true)?;
    measure("8 of 48 bytes, none", 48, 8, &[9; 8], 0, true)?;
    measure("4 of 64 bytes, none", 64, 8, &[9; 4], 0, true)?;
    measure("4 of 128 bytes, none", 128, 8, &[9; 4], 0, true)?;
    measure("4 of 4096 bytes, none", 4096, 8, &[9; 4], 0, true)?;
    measure("44 of 44 bytes, none", 44, 0, &[9; 44], 0, true)?;
    measure("u32, all, 1 wanted", 4, 0, &[0; 4], 1, false)?;
    measure("u32, all, 1 wanted, all counted", 4, 0, &[0; 4], 1, true)?;
    measure("u32, all, 8 M wanted", 4, 0, &[0; 4], 8_000_000, false)?;
    for tenth in [9, 5, 1] {
        let to = memory.at(bytes / 10 * tenth / 4 * 4);
        device.wait(queue.fill(&Fill { to, bytes: 4, pattern: &[6; 4] })?)?;
        measure(&format!("u32, the first at {tenth}0 %"), 4, 0, &[6; 4], 1, false)?;
    }
    for i in 0..1000_u64 {
        let to = memory.at(i * (bytes / 1000) / 4 * 4);
        device.wait(queue.fill(&Fill { to, bytes: 4, pattern: &[5; 4] })?)?;
    }
    measure("u32, 1000 spread out, all wanted", 4, 0, &[5; 4], 1_000_000, true)?;
    let elements = Elements { start: memory.at(0), count: 1000, stride: 4 };
    let small = Search {
        elements,
        field_offset: 0,
        value: &[9; 4],
        limit: 10,
        count_all: true,
        answer: answer.at(0),
    };
    let taken = median(5000, || Ok(device.wait(queue.search(&small)?)?))?;
    println!("search of 1000 elements: {taken:.1} µs");
    Ok(())
}

/// How long it takes to read so much of the card's memory and do nothing with it, in microseconds; and how
/// the search's own kernel does with other chunks than it gets.
pub fn plain_read(device: &CudaDevice, bytes: u64) -> Result<f64, Box<dyn Error>> {
    let kernels = Kernels::new(device.context(), usize::try_from(bytes)?);
    let multiprocessors = device.card().multiprocessors;
    let (memory, scratch) = (kernels.memory, kernels.scratch);
    let mut best = f64::INFINITY;
    for name in [c"read_plain", c"read_unrolled", c"read_tiles"] {
        let function = kernels.function(name);
        print!("plain read, {}:", name.to_string_lossy());
        for each in [4, 8, 16, 32, 64] {
            let (vectors, value) = (bytes / 16, 9_u32);
            let mut arguments = [argument(&memory), argument(&vectors), argument(&value), argument(&scratch)];
            let taken = median(15, || {
                // SAFETY: the arguments are (u64, u64, u32, u64), and the addresses those of the two
                // memories.
                unsafe { kernels.run(function, multiprocessors * each, &mut arguments) };
                Ok(())
            })?;
            best = best.min(taken);
            print!(" {each} blocks {:.0}", rate(bytes, taken));
        }
        println!(" GB/s");
    }
    let function = kernels.function(c"search_count_packed_4");
    for each in [4, 8] {
        print!("the search's kernel, {each} blocks a multiprocessor, by KiB of a chunk:");
        for kib in [4_u64, 8, 16, 32, 64, 128, 256, 512, 1024, 4096] {
            let per_chunk = kib << 8;
            let chunks = [memory, bytes / 4, 4, 0, per_chunk, (bytes / 4).div_ceil(per_chunk)];
            let (value, second, stop_at) = (9_u64, 0_u64, u64::MAX);
            let counts = scratch + 64;
            let mut arguments = [
                argument(&chunks),
                argument(&value),
                argument(&second),
                argument(&stop_at),
                argument(&scratch),
                argument(&counts),
            ];
            let taken = median(15, || {
                // SAFETY: the arguments are (Chunks, u64, u64, u64, u64, u64); there is room for all counts.
                unsafe { kernels.run(function, multiprocessors * each, &mut arguments) };
                Ok(())
            })?;
            print!(" {kib}: {:.0}", rate(bytes, taken));
        }
        println!(" GB/s");
    }
    Ok(best)
}

fn argument<T>(value: &T) -> *mut std::ffi::c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// Gather and scatter by a list of random indices.
pub fn indexed(index: u32) -> Outcome {
    println!("\n== random elements by index list, both in pinned memory");
    let device = Arc::new(CudaDevice::open(index)?);
    let queue = Queue::new(&device)?;
    let bytes = (16_u64 << 30).min(device.memory()?.usable_bytes / 2);
    let memory = DeviceBuffer::new(&device, bytes, Commit::Proven)?;
    for stride in [1_u64, 4, 8, 16, 44, 45, 128, 1024, 4096, 65_536] {
        let count = bytes / stride;
        let wanted = ((512_u64 << 20) / stride).min(8 << 20).min(count);
        // An odd step through a range of a power of two meets each place once.
        let range = 1_u64 << count.ilog2();
        let indices: Vec<u8> = (0..wanted)
            .map(|k| (k.wrapping_mul(0x9E37_79B9_7F4A_7C15) & (range - 1)).to_le_bytes())
            .collect::<Vec<_>>()
            .concat();
        let list = HostBuffer::new(&device, indices.len(), HostMemory::Pinned)?;
        list.write(0, &indices);
        let values = HostBuffer::new(&device, (wanted * stride) as usize, HostMemory::Pinned)?;
        let elements = Elements { start: memory.at(0), count, stride };
        let gather = Gather { elements, indices: list.at(0), count: wanted, values: values.at(0) };
        let scatter = Scatter { elements, indices: list.at(0), count: wanted, values: values.at(0) };
        let gathered = median(9, || Ok(device.wait(queue.gather(&gather)?)?))?;
        let scattered = median(9, || Ok(device.wait(queue.scatter(&scatter)?)?))?;
        let few = Gather { count: 16, ..gather };
        let small = median(3000, || Ok(device.wait(queue.gather(&few)?)?))?;
        println!(
            "{stride:>6} bytes: gather {:>8.1} M/s {:>5.1} GB/s, scatter {:>8.1} M/s {:>5.1} GB/s, 16 elements {small:.1} µs",
            wanted as f64 / gathered,
            rate(wanted * stride, gathered),
            wanted as f64 / scattered,
            rate(wanted * stride, scattered),
        );
    }
    Ok(())
}

/// Two ways to page-locked memory: how long they take, and how well the processor reaches it.
pub fn pinned(index: u32) -> Outcome {
    println!("\n== pinned memory, 2 GiB");
    let device = Arc::new(CudaDevice::open(index)?);
    let _raw = Raw::new(device.context(), 4096);
    let bytes = 2_usize << 30;
    let touch = |name: &str, start: *mut u8| {
        let words = bytes / 8;
        let start = start.cast::<u64>();
        let begin = Instant::now();
        let (mut at, mut sum) = (1_usize, 0_u64);
        let times = 20_000_000;
        for _ in 0..times {
            at = at.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            // SAFETY: the place is inside of the memory.
            sum = sum.wrapping_add(unsafe { start.add((at >> 20) % words).read_volatile() });
        }
        println!(
            "   {name}: random read {:.1} ns ({sum})",
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(times)
        );
    };
    for _ in 0..2 {
        let begin = Instant::now();
        let start = raw::host_alloc(bytes);
        let allocated = begin.elapsed();
        // SAFETY: as long as that.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        println!(
            "cuMemHostAlloc: {:.0} ms, zeroed after {:.0} ms",
            micros(allocated) / 1e3,
            micros(begin.elapsed()) / 1e3
        );
        touch("cuMemHostAlloc", start.cast());
        let begin = Instant::now();
        raw::host_free(start);
        println!("   freed in {:.0} ms", micros(begin.elapsed()) / 1e3);
        for huge in [false, true] {
            let begin = Instant::now();
            let mut map = memmap2::MmapMut::map_anon(bytes)?;
            if huge {
                map.advise(memmap2::Advice::HugePage)?;
            }
            map.advise(memmap2::Advice::PopulateWrite)?;
            let populated = begin.elapsed();
            raw::register(map.as_mut_ptr().cast(), bytes);
            println!(
                "mmap, huge pages {huge}: populated after {:.0} ms, registered after {:.0} ms",
                micros(populated) / 1e3,
                micros(begin.elapsed()) / 1e3
            );
            touch("registered", map.as_mut_ptr());
            let begin = Instant::now();
            raw::unregister(map.as_mut_ptr().cast());
            println!("   unregistered in {:.0} ms", micros(begin.elapsed()) / 1e3);
        }
    }
    // Does the card reach registered memory as fast?
    let queue = Queue::new(&device)?;
    let size = 256_usize << 20;
    let memory = DeviceBuffer::new(&device, size as u64, Commit::Lazy)?;
    let own = HostBuffer::new(&device, size, HostMemory::Pinned)?;
    let mut map = memmap2::MmapMut::map_anon(size)?;
    map.advise(memmap2::Advice::HugePage)?;
    let address = std::ptr::NonNull::new(map.as_mut_ptr()).ok_or("no address")?;
    // SAFETY: the mapping lives until after the release below.
    let imported = unsafe { device.import_host(address, size, HostMemory::Pinned) }?;
    for (name, at) in [("allocated", own.at(0)), ("registered", imported.at(0))] {
        let bytes = size as u64;
        let up = median(9, || {
            Ok(device.wait(queue.submit(&[Transfer::Upload { from: at, to: memory.at(0), bytes }])?)?)
        })?;
        let down = median(9, || {
            Ok(device.wait(queue.submit(&[Transfer::Download { from: memory.at(0), to: at, bytes }])?)?)
        })?;
        println!("{name}: upload {:.1}, download {:.1} GB/s", rate(bytes, up), rate(bytes, down));
    }
    device.release_host(imported);
    Ok(())
}
