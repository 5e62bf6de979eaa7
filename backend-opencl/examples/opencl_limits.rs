//! Benchmark of the OpenCL backend: lists devices, and compares its speed with direct calls of the driver.
//!
//!     cargo run --release -p vmarray-backend-opencl --example opencl_limits -- [DEVICE]
//!
//! DEVICE is an index or a part of a name, identity or platform. `cargo xtask bench` measures arrays on a
//! device.

use std::error::Error;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_api::{Commit, Device as _, DeviceBuffer, HostBuffer, HostMemory, Queue, Transfer};
use backend_opencl::{Discovered, OpenClDevice, OpenClOptions, devices_matching};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_ALL, Device};
use opencl3::kernel::Kernel;
use opencl3::memory::{
    Buffer, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, ClMem,
};
use opencl3::program::Program;
use opencl3::types::{
    CL_BLOCKING, CL_NON_BLOCKING, cl_context, cl_int, cl_mem, cl_mem_flags, cl_platform_id,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The type of `clCreateBufferNV`.
type CreateNv =
    unsafe extern "C" fn(cl_context, cl_mem_flags, u64, usize, *mut c_void, *mut cl_int) -> cl_mem;

const BYTES: usize = 64 << 20;
const KERNELS: &str = "
kernel void move_words(global const uint4 *from, global uint4 *to, ulong words) {
    for (ulong i = get_global_id(0); i < words; i += get_global_size(0))
        to[i] = from[i];
}";

fn main() -> Outcome {
    let found = devices_matching(&std::env::args().nth(1).unwrap_or_default());
    for found in &found {
        println!("\n{:?}\non {}", found.info(), found.platform());
        let device = Device::new(handle(found)?);
        println!("shared memory capabilities {:?}", device.svm_capabilities());
        println!("extensions {}", device.extensions()?);
        let context = Context::from_device(&device)?;
        let queue = CommandQueue::create_default_with_properties(&context, 0, 0)?;
        reads(found, &context, &queue)?;
        pinned(&device, &context, &queue)?;
    }
    Ok(())
}

/// Finds the driver's handle by name, because the crate keeps it private.
fn handle(found: &Discovered) -> Outcome<opencl3::types::cl_device_id> {
    for platform in opencl3::platform::get_platforms()? {
        for id in platform.get_devices(CL_DEVICE_TYPE_ALL)? {
            if Device::new(id).name()?.trim() == found.info().name {
                return Ok(id);
            }
        }
    }
    Err("the device is no longer in the list of devices".into())
}

/// Returns the shortest time of several runs, after a warm-up.
fn best(mut run: impl FnMut() -> Outcome) -> Outcome<Duration> {
    run()?;
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        run()?;
        shortest = shortest.min(start.elapsed());
    }
    Ok(shortest)
}

/// A mapped OpenCL buffer and its address.
struct Pinned {
    buffer: Buffer<u8>,
    address: *mut u8,
}

impl Pinned {
    /// Maps all of a buffer of [`BYTES`].
    fn map(queue: &CommandQueue, buffer: Buffer<u8>) -> Outcome<Self> {
        let mut address = ptr::null_mut();
        let flags = CL_MAP_READ | CL_MAP_WRITE;
        // SAFETY: the whole of the buffer is mapped.
        unsafe { queue.enqueue_map_buffer(&buffer, CL_BLOCKING, flags, 0, BYTES, &mut address, &[])? };
        Ok(Self { buffer, address: address.cast() })
    }

    /// # Safety
    /// No other code uses the memory while the slice lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn bytes(&self) -> &mut [u8] {
        // SAFETY: the whole buffer is mapped, as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.address, BYTES) }
    }

    fn unmap(mut self, queue: &CommandQueue) -> Outcome {
        // SAFETY: no slice of the mapped memory exists any more.
        unsafe { queue.enqueue_unmap_mem_object(self.buffer.get_mut(), self.address.cast(), &[])? };
        Ok(queue.finish()?)
    }
}

fn buffer(context: &Context, flags: cl_mem_flags, host: *mut c_void) -> Outcome<Buffer<u8>> {
    // SAFETY: `host` is null, or BYTES long and outlives the buffer.
    Ok(unsafe { Buffer::create(context, CL_MEM_READ_WRITE | flags, BYTES, host)? })
}

/// Measures one read and the wait for it.
fn reads(found: &Discovered, context: &Context, queue: &CommandQueue) -> Outcome {
    const ROUNDS: u32 = 500;
    println!("one read and its wait, microseconds (mean): bare, here");
    let there = buffer(context, 0, ptr::null_mut())?;
    let pinned = Pinned::map(queue, buffer(context, CL_MEM_ALLOC_HOST_PTR, ptr::null_mut())?)?;
    let device = Arc::new(OpenClDevice::open(found, &OpenClOptions::new())?);
    let own = Queue::new(&device)?;
    let memory = DeviceBuffer::new(&device, BYTES as u64, Commit::Proven)?;
    let host = HostBuffer::new(&device, BYTES, HostMemory::Pinned)?;
    for bytes in [4 << 10, 16 << 10, 64 << 10, 1 << 20] {
        let bare = best(|| {
            for _ in 0..ROUNDS {
                // SAFETY: the wait for the event ends before the memory is used again.
                let event = unsafe {
                    let to = &mut pinned.bytes()[..bytes];
                    queue.enqueue_read_buffer(&there, CL_NON_BLOCKING, 0, to, &[])?
                };
                event.wait()?;
            }
            Ok(())
        })?;
        let copy = Transfer::Download { from: memory.at(0), to: host.at(0), bytes: bytes as u64 };
        let ours = best(|| (0..ROUNDS).try_for_each(|_| Ok(device.wait(own.submit(&[copy])?)?)))?;
        let [bare, ours] = [bare, ours].map(|time| (time / ROUNDS).as_secs_f64() * 1e6);
        println!("  {:>5} KiB {bare:8.2} {ours:8.2}", bytes >> 10);
    }
    pinned.unmap(queue)
}

/// Checks for each kind of pinned memory that kernels see the program's writes, and measures their speed.
fn pinned(device: &Device, context: &Context, queue: &CommandQueue) -> Outcome {
    let program =
        Program::create_and_build_from_source(context, KERNELS, "").map_err(|log| log.to_string())?;
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
    let mut own = vec![0_u8; BYTES + 4096];
    let shift = own.as_ptr().align_offset(4096);
    let own: *mut c_void = own[shift..].as_mut_ptr().cast();
    let none = ptr::null_mut();
    println!("kernels on a mapped buffer of {} MiB: seen up and down; GB/s up, down", BYTES >> 20);
    for (name, made) in [
        ("ALLOC_HOST_PTR", buffer(context, CL_MEM_ALLOC_HOST_PTR, none)),
        ("NV, host", nv(CL_MEM_READ_WRITE, 1, none)),
        ("NV, pinned", nv(CL_MEM_READ_WRITE, 2, none)),
        ("NV, host and pinned", nv(CL_MEM_READ_WRITE, 3, none)),
        ("USE_HOST_PTR", buffer(context, CL_MEM_USE_HOST_PTR, own)),
        ("NV, USE_HOST_PTR pinned", nv(CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, 3, own)),
    ] {
        let seen = made.and_then(|made| trial(context, queue, &kernel, Pinned::map(queue, made)?));
        println!("  {name:<24} {}", seen.unwrap_or_else(|error| error.to_string()));
    }
    Ok(())
}

fn trial(context: &Context, queue: &CommandQueue, kernel: &Kernel, pinned: Pinned) -> Outcome<String> {
    let there = buffer(context, 0, ptr::null_mut())?;
    let run = |from: &Buffer<u8>, to: &Buffer<u8>| -> Outcome {
        let words = (BYTES / 16) as u64;
        // SAFETY: both buffers have BYTES bytes.
        unsafe {
            kernel.set_arg(0, &from.get())?;
            kernel.set_arg(1, &to.get())?;
            kernel.set_arg(2, &words)?;
            queue.enqueue_nd_range_kernel(kernel.get(), 1, ptr::null(), &(132 * 2048), &256, &[])?;
        }
        Ok(queue.finish()?)
    };
    let mut seen = [true; 2];
    for round in 1..4_u8 {
        // SAFETY: no work is in flight, here and below.
        unsafe { pinned.bytes() }.fill(round);
        run(&pinned.buffer, &there)?;
        let mut back = vec![0; BYTES];
        // SAFETY: the buffer has the length of the slice.
        unsafe { queue.enqueue_read_buffer(&there, CL_BLOCKING, 0, &mut back, &[])? };
        seen[0] &= back.iter().all(|&byte| byte == round);
        // SAFETY: as above.
        unsafe { pinned.bytes() }.fill(0);
        run(&there, &pinned.buffer)?;
        // SAFETY: as above.
        seen[1] &= unsafe { pinned.bytes() }.iter().all(|&byte| byte == round);
    }
    let times = [best(|| run(&pinned.buffer, &there))?, best(|| run(&there, &pinned.buffer))?];
    pinned.unmap(queue)?;
    let [up, down] = times.map(|time| BYTES as f64 / time.as_secs_f64() / 1e9);
    Ok(format!("{seen:?}; {up:.1} {down:.1}"))
}

/// The function of NVIDIA's extension `cl_nv_create_buffer`, if the driver has it.
fn create_nv(device: &Device) -> Outcome<Option<CreateNv>> {
    type Find = unsafe extern "C" fn(cl_platform_id, *const c_char) -> *mut c_void;
    // SAFETY: the library is loaded already; loading it again changes nothing. The signature is that of
    // the OpenCL 1.2 headers, and the name ends with a zero byte. The function under this name has the
    // signature of the extension.
    unsafe {
        let library = libloading::Library::new("libOpenCL.so.1")?;
        let find = library.get::<Find>(b"clGetExtensionFunctionAddressForPlatform\0")?;
        let address = find(device.platform()?, c"clCreateBufferNV".as_ptr());
        Ok((!address.is_null()).then(|| std::mem::transmute::<*mut c_void, CreateNv>(address)))
    }
}
