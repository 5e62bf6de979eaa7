//! What the driver does when it is called directly: where kernels find pinned memory, and what calls from
//! several threads cost.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Barrier;
use std::time::Instant;

use backend_opencl::Discovered;
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::Device;
use opencl3::kernel::Kernel;
use opencl3::memory::{
    Buffer, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, ClMem,
};
use opencl3::program::Program;
use opencl3::types::{
    CL_BLOCKING, CL_NON_BLOCKING, cl_context, cl_int, cl_mem, cl_mem_flags, cl_platform_id,
};

use crate::{Outcome, best, cl_device, rate, size};

const BYTES: usize = 64 << 20;
const PIECE: usize = 4096;

const KERNELS: &str = "
kernel void move_words(global const uint4 *from, global uint4 *to, ulong words) {
    for (ulong i = get_global_id(0); i < words; i += get_global_size(0))
        to[i] = from[i];
}";

/// `clCreateBufferNV`.
type CreateNv =
    unsafe extern "C" fn(cl_context, cl_mem_flags, u64, usize, *mut c_void, *mut cl_int) -> cl_mem;

/// A mapped buffer and its address.
struct Pinned {
    buffer: Buffer<u8>,
    address: *mut u8,
    bytes: usize,
}

// SAFETY: every user names a part of its own.
unsafe impl Sync for Pinned {}

impl Pinned {
    fn map(queue: &CommandQueue, buffer: Buffer<u8>, bytes: usize) -> Outcome<Self> {
        let mut address = ptr::null_mut();
        let flags = CL_MAP_READ | CL_MAP_WRITE;
        // SAFETY: the whole of the buffer is mapped.
        unsafe { queue.enqueue_map_buffer(&buffer, CL_BLOCKING, flags, 0, bytes, &mut address, &[])? };
        Ok(Self { buffer, address: address.cast(), bytes })
    }

    fn plain(context: &Context, queue: &CommandQueue, bytes: usize) -> Outcome<Self> {
        let flags = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;
        // SAFETY: no host pointer.
        Self::map(queue, unsafe { Buffer::create(context, flags, bytes, ptr::null_mut())? }, bytes)
    }

    /// # Safety
    /// Nobody else uses these bytes while the slice lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, at: usize, bytes: usize) -> &mut [u8] {
        assert!(at + bytes <= self.bytes);
        // SAFETY: inside of the mapped memory; passed on.
        unsafe { std::slice::from_raw_parts_mut(self.address.add(at), bytes) }
    }

    fn unmap(mut self, queue: &CommandQueue) -> Outcome<()> {
        // SAFETY: no slice of it lives.
        unsafe { queue.enqueue_unmap_mem_object(self.buffer.get_mut(), self.address.cast(), &[])? };
        Ok(queue.finish()?)
    }
}

fn queue(context: &Context) -> Outcome<CommandQueue> {
    Ok(CommandQueue::create_default_with_properties(context, 0, 0)?)
}

pub fn all(found: &Discovered) -> Outcome<()> {
    let device = Device::new(cl_device(found)?);
    println!("OpenCL {}; shared memory capabilities {:?}", device.version()?, device.svm_capabilities());
    println!("extensions {}", device.extensions()?);
    if let Err(error) = kernels_on_pinned(&device) {
        println!("kernels on pinned memory: {error}");
    }
    threads(&device)
}

fn kernels_on_pinned(device: &Device) -> Outcome<()> {
    let context = Context::from_device(device)?;
    let queue = queue(&context)?;
    let program =
        Program::create_and_build_from_source(&context, KERNELS, "").map_err(|log| log.to_string())?;
    let kernel = Kernel::create(&program, "move_words")?;
    let create = create_nv(device)?;
    let nv = |flags: cl_mem_flags, place: u64, host: *mut c_void| -> Outcome<Buffer<u8>> {
        let create = create.ok_or("no clCreateBufferNV")?;
        let mut status = 0;
        // SAFETY: `host` is null, or BYTES long and outlives the buffer.
        let handle = unsafe { create(context.get(), flags, place, BYTES, host, &mut status) };
        if status != 0 || handle.is_null() {
            return Err(format!("error {status}").into());
        }
        Ok(Buffer::new(handle))
    };
    let plain = |flags, host| -> Outcome<Buffer<u8>> {
        // SAFETY: `host` is null, or BYTES long and outlives the buffer.
        Ok(unsafe { Buffer::create(&context, CL_MEM_READ_WRITE | flags, BYTES, host)? })
    };
    let mut own = vec![0_u8; BYTES + 4096];
    let shift = own.as_ptr().align_offset(4096);
    let own: *mut c_void = own[shift..].as_mut_ptr().cast();
    let none = ptr::null_mut();
    type Make<'a> = Box<dyn Fn() -> Outcome<Buffer<u8>> + 'a>;
    let kinds: [(&str, Make<'_>); 6] = [
        ("ALLOC_HOST_PTR", Box::new(|| plain(CL_MEM_ALLOC_HOST_PTR, none))),
        ("NV, host", Box::new(|| nv(CL_MEM_READ_WRITE, 1, none))),
        ("NV, pinned", Box::new(|| nv(CL_MEM_READ_WRITE, 2, none))),
        ("NV, host and pinned", Box::new(|| nv(CL_MEM_READ_WRITE, 3, none))),
        ("USE_HOST_PTR", Box::new(|| plain(CL_MEM_USE_HOST_PTR, own))),
        ("NV, USE_HOST_PTR pinned", Box::new(|| nv(CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, 3, own))),
    ];
    println!(
        "kernels on a mapped buffer of {}: seen both ways; kernel and copy, GB/s; 4 KiB of it by a kernel, us",
        size(BYTES as u64)
    );
    for (name, make) in &kinds {
        let trial = || -> Outcome<String> {
            let pinned = Pinned::map(&queue, make()?, BYTES)?;
            let there = plain(0, none)?;
            let run = |from: &Buffer<u8>, to: &Buffer<u8>, bytes: usize| -> Outcome<()> {
                let words = (bytes / 16) as u64;
                // SAFETY: both buffers have `bytes` bytes.
                unsafe {
                    kernel.set_arg(0, &from.get())?;
                    kernel.set_arg(1, &to.get())?;
                    kernel.set_arg(2, &words)?;
                    let global = (bytes / 16).min(132 * 2048).next_multiple_of(256);
                    queue.enqueue_nd_range_kernel(kernel.get(), 1, ptr::null(), &global, &256, &[])?;
                }
                Ok(queue.finish()?)
            };
            // SAFETY: nothing is in flight when it is used.
            let bytes = unsafe { pinned.part(0, BYTES) };
            let mut seen = [true; 2];
            for round in 1..4_u8 {
                bytes.fill(round);
                run(&pinned.buffer, &there, BYTES)?;
                let mut back = vec![0; BYTES];
                // SAFETY: the buffer is as long.
                unsafe { queue.enqueue_read_buffer(&there, CL_BLOCKING, 0, &mut back, &[])? };
                seen[0] &= back.iter().all(|&byte| byte == round);
                bytes.fill(0);
                run(&there, &pinned.buffer, BYTES)?;
                seen[1] &= bytes.iter().all(|&byte| byte == round);
            }
            let pull = best(|| run(&pinned.buffer, &there, BYTES))?;
            let push = best(|| run(&there, &pinned.buffer, BYTES))?;
            let small_pull = best(|| run(&pinned.buffer, &there, PIECE))?;
            let small_push = best(|| run(&there, &pinned.buffer, PIECE))?;
            // SAFETY: as above.
            let read = best(|| unsafe {
                queue.enqueue_read_buffer(&there, CL_BLOCKING, 0, pinned.part(0, BYTES), &[])?;
                Ok(())
            })?;
            pinned.unmap(&queue)?;
            let rates = [pull, push, read].map(|time| format!("{:6.1}", rate(BYTES as u64, time)));
            Ok(format!(
                "{seen:?} up {} down {} copy down {}; up {:.1} down {:.1}",
                rates[0],
                rates[1],
                rates[2],
                small_pull.as_secs_f64() * 1e6,
                small_push.as_secs_f64() * 1e6
            ))
        };
        println!("  {name:<24} {}", trial().unwrap_or_else(|error| error.to_string()));
    }
    Ok(())
}

/// The function of NVIDIA's extension `cl_nv_create_buffer`, if the driver has it.
fn create_nv(device: &Device) -> Outcome<Option<CreateNv>> {
    type Find = unsafe extern "C" fn(cl_platform_id, *const c_char) -> *mut c_void;
    // SAFETY: loaded already; loading it again changes nothing. The signature is that of the OpenCL 1.2
    // headers, the name ends with a zero byte, and what the driver gives under this name has the signature of
    // the extension.
    unsafe {
        let library = libloading::Library::new("libOpenCL.so.1")?;
        let find = library.get::<Find>(b"clGetExtensionFunctionAddressForPlatform\0")?;
        let address = find(device.platform()?, c"clCreateBufferNV".as_ptr());
        Ok((!address.is_null()).then(|| std::mem::transmute::<*mut c_void, CreateNv>(address)))
    }
}

/// How often several threads can read 4 KiB and wait, in thousands a second.
fn threads(device: &Device) -> Outcome<()> {
    const ROUNDS: usize = 4000;
    println!("bare reads of 4 KiB and waits, in thousands a second");
    println!("              one context: event and wait   blocking read   a context each: event and wait");
    for threads in [1, 2, 4, 8, 16] {
        let mut rates = Vec::new();
        for (blocking, contexts) in [(false, 1), (true, 1), (false, threads)] {
            let contexts: Vec<_> =
                (0..contexts).map(|_| Context::from_device(device)).collect::<Result<_, _>>()?;
            let mut rigs = Vec::new();
            for thread in 0..threads {
                let context = &contexts[thread % contexts.len()];
                let queue = queue(context)?;
                let pinned = Pinned::plain(context, &queue, PIECE)?;
                // SAFETY: no host pointer.
                let memory =
                    unsafe { Buffer::<u8>::create(context, CL_MEM_READ_WRITE, 1 << 20, ptr::null_mut())? };
                rigs.push((queue, pinned, memory));
            }
            let barrier = Barrier::new(threads + 1);
            let time = std::thread::scope(|scope| {
                for (queue, pinned, memory) in &rigs {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        for round in 0..ROUNDS + 100 {
                            if round == 100 {
                                barrier.wait();
                            }
                            let offset = round * PIECE % (1 << 20);
                            // SAFETY: the memory is this thread's, and waited for.
                            let event = unsafe {
                                let here = pinned.part(0, PIECE);
                                let mode = if blocking { CL_BLOCKING } else { CL_NON_BLOCKING };
                                queue.enqueue_read_buffer(memory, mode, offset, here, &[])
                            };
                            if !blocking {
                                drop(event.map(|event| event.wait()));
                            }
                        }
                        barrier.wait();
                    });
                }
                barrier.wait();
                let start = Instant::now();
                barrier.wait();
                start.elapsed()
            });
            rates.push((threads * ROUNDS) as f64 / time.as_secs_f64() / 1e3);
            for (queue, pinned, _) in rigs {
                pinned.unmap(&queue)?;
            }
        }
        println!("  {threads:>2} threads {:30.1} {:15.1} {:32.1}", rates[0], rates[1], rates[2]);
    }
    Ok(())
}
