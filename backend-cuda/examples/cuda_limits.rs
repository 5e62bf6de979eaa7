//! Benchmark of the CUDA backend: compares its speed with direct calls of the driver in the same process.
//!
//!     cargo run --release -p vmarray-backend-cuda --example cuda_limits -- [WORDS]
//!
//! WORDS select measurements: latency, queued, search, compute; the default is all of them. `cargo xtask
//! bench` measures arrays on a GPU; the conformance suite checks results.

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

use backend_api::expr::{Action, Binary, FieldStore, Geometry, Instruction, Program, Type, Value};
use backend_api::{
    Commit, Compute, Device, DeviceBuffer, Elements, Fill, HostBuffer, HostMemory, Queue, Search, Transfer,
};
use backend_cuda::CudaDevice;
use cudarc::driver::sys;
use vmarray_support::texts::PackedTexts;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;
type Part = fn(&Bench) -> Outcome;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(card) = backend_cuda::devices().into_iter().next() else {
        println!("no NVIDIA card, or no driver");
        return Ok(());
    };
    println!("{card:?}");
    let bench = Bench::new(card.index)?;
    let parts: [(&str, Part); 4] = [
        ("latency", Bench::latency),
        ("queued", Bench::queued),
        ("search", Bench::search),
        ("compute", Bench::compute),
    ];
    for (word, measure) in parts {
        if words.is_empty() || words.iter().any(|wanted| wanted == word) {
            measure(&bench)?;
        }
    }
    Ok(())
}

/// Median time of `work` in microseconds, over `times` runs.
fn median(times: usize, mut work: impl FnMut() -> Outcome) -> Outcome<f64> {
    let mut taken = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        work()?;
        taken.push(start.elapsed());
    }
    taken.sort_unstable();
    Ok(taken[times / 2].as_secs_f64() * 1e6)
}

/// Bandwidth in GB/s.
fn rate(bytes: u64, micros: f64) -> f64 {
    bytes as f64 / micros / 1e3
}

fn check(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

/// The driver called directly: a stream, an event, pinned memory and GPU memory, all in one context.
struct Raw {
    stream: sys::CUstream,
    event: sys::CUevent,
    device: sys::CUdeviceptr,
    host: *mut c_void,
    bytes: usize,
}

impl Raw {
    /// Allocates `bytes` bytes of GPU memory and of pinned memory. The context must outlive the result.
    fn new(context: *mut c_void, bytes: usize) -> Self {
        let (mut stream, mut event, mut device, mut host) = (null_mut(), null_mut(), 0, null_mut());
        // SAFETY: plain driver calls, which write their results.
        unsafe {
            check(sys::cuCtxSetCurrent(context.cast()));
            check(sys::cuStreamCreate(&raw mut stream, 1));
            check(sys::cuEventCreate(&raw mut event, 2));
            check(sys::cuMemAlloc_v2(&raw mut device, bytes));
            check(sys::cuMemHostAlloc(&raw mut host, bytes, 3));
        }
        Self { stream, event, device, host, bytes }
    }

    /// Enqueues a copy between GPU memory and pinned memory, at the same offset in both.
    fn copy(&self, is_upload: bool, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        let device = self.device + offset as u64;
        // SAFETY: the range is within both allocations.
        check(unsafe {
            let host = self.host.byte_add(offset);
            if is_upload {
                sys::cuMemcpyHtoDAsync_v2(device, host, bytes, self.stream)
            } else {
                sys::cuMemcpyDtoHAsync_v2(host, device, bytes, self.stream)
            }
        });
    }

    fn synchronize(&self) {
        // SAFETY: the stream is alive.
        check(unsafe { sys::cuStreamSynchronize(self.stream) });
    }

    /// Records an event and polls it until it completes.
    fn event(&self) {
        // SAFETY: both handles are alive.
        unsafe {
            check(sys::cuEventRecord(self.event, self.stream));
            while sys::cuEventQuery(self.event) != sys::CUresult::CUDA_SUCCESS {}
        }
    }

    /// Returns the least time, in microseconds, in which a kernel reads `bytes` bytes of GPU memory at
    /// `memory`, and does nothing else.
    ///
    /// # Safety
    /// `memory` must have `bytes` bytes.
    unsafe fn plain_read(&self, memory: u64, bytes: u64, multiprocessors: u32) -> Outcome<f64> {
        let texts = PackedTexts::new(include_bytes!("../kernels/ptx.zlib"));
        let mut best = f64::INFINITY;
        for (text, name) in [
            ("yardstick/read_plain", c"read_plain"),
            ("yardstick/read_unrolled", c"read_unrolled"),
            ("yardstick/read_tiles", c"read_tiles"),
        ] {
            let mut module = null_mut();
            // SAFETY: writes one handle; the text ends with a NUL.
            check(unsafe { sys::cuModuleLoadData(&raw mut module, texts.c_text(text).as_ptr().cast()) });
            let function = function(module, name);
            for each in [4, 8, 16, 32, 64] {
                let (vectors, value, scratch) = (bytes / 16, 9_u32, self.device);
                let mut arguments =
                    [argument(&memory), argument(&vectors), argument(&value), argument(&scratch)];
                let taken = median(15, || {
                    // SAFETY: the kernel takes (u64, u64, u32, u64): memory that the caller guarantees,
                    // and room for a result.
                    check(unsafe {
                        let (grid, one, block) = (multiprocessors * each, 1, 256);
                        let arguments = arguments.as_mut_ptr();
                        let (stream, none) = (self.stream, null_mut());
                        sys::cuLaunchKernel(
                            function, grid, one, one, block, one, one, 0, stream, arguments, none,
                        )
                    });
                    self.synchronize();
                    Ok(())
                })?;
                best = best.min(taken);
            }
            // SAFETY: no code of the module runs any more.
            check(unsafe { sys::cuModuleUnload(module) });
        }
        println!("the fastest plain read: {:.0} GB/s", rate(bytes, best));
        Ok(best)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: each object was created in `new`, and no work is in flight after the first call.
        unsafe {
            sys::cuStreamSynchronize(self.stream);
            sys::cuStreamDestroy_v2(self.stream);
            sys::cuEventDestroy_v2(self.event);
            sys::cuMemFree_v2(self.device);
            sys::cuMemFreeHost(self.host);
        }
    }
}

fn function(module: sys::CUmodule, name: &CStr) -> sys::CUfunction {
    let mut function = null_mut();
    // SAFETY: the module is loaded and the name a C string.
    check(unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) });
    function
}

fn argument<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

struct Bench {
    device: Arc<CudaDevice>,
    queue: Queue<CudaDevice>,
}

impl Bench {
    fn new(index: u32) -> Outcome<Self> {
        let device = Arc::new(CudaDevice::open(index)?);
        let queue = Queue::new(&device)?;
        Ok(Self { device, queue })
    }

    /// Allocates device memory and pinned memory of `bytes` bytes each.
    fn memory(&self, bytes: usize) -> Outcome<(DeviceBuffer<CudaDevice>, HostBuffer<CudaDevice>)> {
        let memory = DeviceBuffer::new(&self.device, bytes as u64, Commit::Lazy)?;
        Ok((memory, HostBuffer::new(&self.device, bytes, HostMemory::Pinned)?))
    }

    /// Measures one copy and the wait for it.
    fn latency(&self) -> Outcome {
        println!("\none copy and the wait for it, µs (median): raw, synchronise; raw, event; backend");
        const ROOM: usize = 1 << 20;
        let (raw, (memory, host)) = (Raw::new(self.device.context(), ROOM), self.memory(ROOM)?);
        for bytes in [4096, 65_536, ROOM] {
            for is_upload in [false, true] {
                let times = 20_000_000 / bytes;
                let bare = |wait: &dyn Fn()| {
                    median(times, || {
                        raw.copy(is_upload, 0, bytes);
                        wait();
                        Ok(())
                    })
                };
                bare(&|| raw.synchronize())?;
                let (synchronize, event) = (bare(&|| raw.synchronize())?, bare(&|| raw.event())?);
                let copy = copy(&memory, &host, is_upload, 0, bytes as u64);
                let ours = median(times, || Ok(self.device.wait(self.queue.submit(&[copy])?)?))?;
                println!("{bytes:>8} {:<8} {synchronize:.2} {event:.2} {ours:.2}", way(is_upload));
            }
        }
        Ok(())
    }

    /// Measures many submissions of one copy each, and the wait for the last.
    fn queued(&self) -> Outcome {
        println!("\ncopies queued one a submission, then one wait, GB/s (median): raw; backend");
        const ROOM: usize = 256 << 20;
        let (raw, (memory, host)) = (Raw::new(self.device.context(), ROOM), self.memory(ROOM)?);
        for bytes in [64_usize << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20] {
            for is_upload in [false, true] {
                let count = (ROOM / bytes).min(500);
                let total = (count * bytes) as u64;
                let bare = median(15, || {
                    (0..count).for_each(|i| raw.copy(is_upload, i * bytes, bytes));
                    raw.synchronize();
                    Ok(())
                })?;
                let ours = median(15, || {
                    let mut last = self.queue.submit(&[])?;
                    for i in 0..count {
                        let at = (i * bytes) as u64;
                        last = self.queue.submit(&[copy(&memory, &host, is_upload, at, bytes as u64)])?;
                    }
                    Ok(self.device.wait(last)?)
                })?;
                let (bare, ours) = (rate(total, bare), rate(total, ours));
                println!("{bytes:>9} {:<8} {bare:.2} {ours:.2}", way(is_upload));
            }
        }
        Ok(())
    }

    /// Allocates GPU memory, and measures a kernel that only reads it, in microseconds.
    fn yardstick(&self) -> Outcome<(DeviceBuffer<CudaDevice>, u64, f64)> {
        let bytes = (8_u64 << 30).min(self.device.memory()?.usable_bytes / 3) / (44 * 1024) * (44 * 1024);
        let memory = DeviceBuffer::new(&self.device, bytes, Commit::Proven)?;
        let raw = Raw::new(self.device.context(), 64 << 20);
        let mut start = 0;
        // SAFETY: as many bytes are allocated and only read.
        unsafe { check(sys::cuMemAlloc_v2(&raw mut start, bytes as usize)) };
        // SAFETY: as above; no work is in flight when it is freed.
        let taken = unsafe {
            let taken = raw.plain_read(start, bytes, self.device.card().multiprocessors);
            check(sys::cuMemFree_v2(start));
            taken?
        };
        Ok((memory, bytes, taken))
    }

    /// Measures searches of memory that holds zeroes.
    fn search(&self) -> Outcome {
        println!("\nsearch, µs (median), share of a plain read");
        let (memory, bytes, plain) = self.yardstick()?;
        let answer = HostBuffer::new(&self.device, 64 << 20, HostMemory::Pinned)?;
        let measure = |stride: u64, value: &[u8], limit: u64, count_all: bool| -> Outcome {
            let elements = Elements { start: memory.at(0), count: bytes / stride, stride };
            let search = Search { elements, field_offset: 0, value, limit, count_all, answer: answer.at(0) };
            let taken = median(15, || Ok(self.device.wait(self.queue.submit(&search)?)?))?;
            let (length, share) = (value.len(), plain / taken * 100.0);
            println!("{length:>2} of {stride:>4} bytes, limit {limit:>4}: {taken:.0} {share:.1} %");
            Ok(())
        };
        for (stride, length) in
            [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (8, 4), (44, 4), (44, 44), (4096, 4), (4096, 4096)]
        {
            measure(stride, &[9; 4096][..length], 0, true)?;
        }
        for i in 0..1000 {
            let to = memory.at(i * (bytes / 1000) / 4 * 4);
            self.device.wait(self.queue.submit(&Fill { to, bytes: 4, pattern: &[5; 4] })?)?;
        }
        measure(4, &[5; 4], 1000, true)?;
        for tenth in [9, 5, 1] {
            let to = memory.at(bytes / 10 * tenth / 4 * 4);
            self.device.wait(self.queue.submit(&Fill { to, bytes: 4, pattern: &[6; 4] })?)?;
            print!("first at {tenth}0 %: ");
            measure(4, &[6; 4], 1, false)?;
        }
        Ok(())
    }

    /// Measures computations over 1.5 as `f32`; the bytes are also read as other types.
    fn compute(&self) -> Outcome {
        println!("\ncomputations, µs (median), share of a plain read; the first call, ms more");
        let (memory, bytes, plain) = self.yardstick()?;
        let answer = HostBuffer::new(&self.device, Compute::partials_bytes() as usize, HostMemory::Pinned)?;
        let pattern = 0x3FC0_0000_u32.to_le_bytes();
        self.device.wait(self.queue.submit(&Fill { to: memory.at(0), bytes, pattern: &pattern })?)?;
        let answer = answer.at(0);
        for (of, stride) in
            [(Type::U32, 4), (Type::F32, 4), (Type::U64, 8), (Type::F64, 8), (Type::U8, 1), (Type::U32, 44)]
        {
            let bits = if of == Type::F32 { 0x3F80_0000 } else { 1 };
            let [value, literal, less, sum] = [0, 1, 2, 3].map(Value);
            let program = Program::new(vec![
                Instruction::Field { source: 0, offset: 0, of },
                Instruction::Literal { of, bits },
                Instruction::Binary { op: Binary::Lt, left: value, right: literal },
                Instruction::Binary { op: Binary::Add, left: value, right: literal },
            ])?;
            let sources = [Elements { start: memory.at(0), count: bytes / stride, stride }];
            let stores = [FieldStore { value: sum, source: 0, offset: 0 }];
            for (name, action) in [
                ("count", Action::Find { predicate: less, limit: 0, count_all: true, answer }),
                ("find", Action::Find { predicate: less, limit: 1000, count_all: true, answer }),
                ("sum", Action::Sum { value, filter: None, answer }),
                ("min", Action::Extremes { value, filter: None, least: true, greatest: false, answer }),
                (
                    "min and max",
                    Action::Extremes { value, filter: None, least: true, greatest: true, answer },
                ),
                ("transform in place", Action::Store { stores: &stores, filter: None }),
            ] {
                let request =
                    Compute { program: &program, sources: &sources, geometry: Geometry::plain(0), action };
                let run = || Ok(self.device.wait(self.queue.submit(&request)?)?);
                let first = median(1, run)?;
                let taken = median(15, run)?;
                let (share, more) = (plain / taken * 100.0, (first - taken) / 1e3);
                println!("{name} of {of} every {stride}: {taken:.0} {share:.1} %; {more:.1}");
            }
        }
        Ok(())
    }
}

fn copy<'a>(
    memory: &'a DeviceBuffer<CudaDevice>,
    host: &'a HostBuffer<CudaDevice>,
    is_upload: bool,
    at: u64,
    bytes: u64,
) -> Transfer<'a> {
    if is_upload {
        Transfer::Upload { from: host.at(at), to: memory.at(at), bytes }
    } else {
        Transfer::Download { from: memory.at(at), to: host.at(at), bytes }
    }
}

fn way(is_upload: bool) -> &'static str {
    if is_upload { "upload" } else { "download" }
}
