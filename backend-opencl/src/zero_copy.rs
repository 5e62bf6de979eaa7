//! Test at the opening of a device, which shows if kernels and the program access the same pinned memory.
//!
//! The OpenCL standard does not specify which contents of a mapped buffer a kernel sees, and drivers differ.
//! NVIDIA's driver keeps a copy of its own on the GPU for `CL_MEM_ALLOC_HOST_PTR`, but not for buffers of its
//! extension `cl_nv_create_buffer` in host memory. So the device relies only on the result of this test.

use opencl3::memory::CL_MEM_READ_WRITE;

use crate::discovery::{Handles, ONE_PIECE};
use crate::driver::objects::{CommandQueue, Context, DriverArgument, Memory, Status};
use crate::kernel::{BuiltKernels, KernelSet};
use crate::retry::{PATIENCE, insist, keep_for_good};

const PAGE: usize = 4096;
const PAGES: usize = 64;
/// Bytes of test memory: one half to send, the other for the bytes that return.
const BYTES: usize = 2 * PAGES * PAGE;
/// Number of rounds of the test. One is not enough, because a driver may copy only at the first use.
const ROUNDS: u8 = 3;

/// Returns true if kernels and the program access the same memory in NVIDIA's host buffers.
pub(crate) fn works(
    context: &Context,
    handles: Handles,
    queue: &CommandQueue,
    kernels: &BuiltKernels,
) -> bool {
    let trial = || -> Status<bool> {
        let memory = context.host_buffer_nv(handles.platform, CL_MEM_READ_WRITE, BYTES)?;
        let address = queue.map(&memory, BYTES)?;
        // SAFETY: all of the buffer is mapped.
        let same = unsafe { same_memory(context, queue, kernels, &memory, address) };
        // SAFETY: all enqueued commands are done, and the address is not used any more.
        let unmapped = unsafe { queue.unmap(&memory, address) };
        unmapped.and_then(|()| queue.finish())?;
        same
    };
    trial().unwrap_or_else(|status| {
        tracing::debug!(status, "a driver refused buffers in host memory");
        false
    })
}

/// Sends pages from `address` to the device and back, by kernels that use `memory`, with other bytes in each
/// round. Returns true if all bytes arrive. All enqueued commands are done when the function returns.
///
/// # Safety
/// `memory` has `BYTES` bytes, `address` is valid for the same length, and no other code uses either
/// meanwhile.
unsafe fn same_memory(
    context: &Context,
    queue: &CommandQueue,
    kernels: &BuiltKernels,
    memory: &Memory,
    address: *mut u8,
) -> Status<bool> {
    const HALF: usize = BYTES / 2;
    let there = context.buffer(CL_MEM_READ_WRITE, HALF)?;
    // Copy the pages in reverse order to the device, and then back to the second half of the host memory.
    let list = |first: usize| -> Status<Memory> {
        let copies: Vec<u8> = (0..PAGES)
            .flat_map(|i| [(PAGES - 1 - i) * PAGE, (first + i) * PAGE, PAGE])
            .flat_map(|number| (number as u64).to_ne_bytes())
            .collect();
        let memory = context.buffer(CL_MEM_READ_WRITE, copies.len())?;
        // SAFETY: the buffer has this length, and `copies` live until they were read.
        let written = unsafe { queue.write(copies.as_ptr(), &memory, 0, copies.len(), None) };
        let finished = insist(PATIENCE, || queue.finish());
        if finished.is_err() {
            keep_for_good(copies);
        }
        written.and(finished)?;
        Ok(memory)
    };
    let lists = [(list(0)?, 1), (list(PAGES)?, 0)];
    let mut set = KernelSet::default();
    for round in 0..ROUNDS {
        let sent: Vec<u8> = (0..HALF).map(|i| (i / PAGE * 7 + i % 251) as u8 ^ round).collect();
        // SAFETY: guaranteed by the caller; no work is in flight.
        unsafe { sent.as_ptr().copy_to_nonoverlapping(address, HALF) };
        for (list, to_device) in &lists {
            let mut arguments = vec![DriverArgument::Buffer(&there); 8];
            arguments.extend([
                DriverArgument::U32(ONE_PIECE),
                DriverArgument::Buffer(memory),
                DriverArgument::Buffer(list),
                DriverArgument::U32(PAGES as u32),
                DriverArgument::U32(1),
                DriverArgument::U32(*to_device),
            ]);
            let kernel = set.prepare(kernels, "copy_16", &arguments)?;
            let groups = kernels.groups_up_to(PAGES as u64);
            // SAFETY: both halves of `memory`, and `there`, have room for all pages.
            let launched = unsafe { queue.launch(kernel, groups, kernels.group) };
            let finished = queue.finish();
            launched.and(finished)?;
        }
        let mut back = vec![0; HALF];
        // SAFETY: as above.
        unsafe { address.add(HALF).copy_to_nonoverlapping(back.as_mut_ptr(), HALF) };
        if back != sent {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use backend_api::DeviceKind;
    use opencl3::memory::CL_MEM_ALLOC_HOST_PTR;

    use super::*;
    use crate::driver::sys;
    use crate::options::{KernelCache, OpenClOptions};

    #[test]
    fn memory_that_is_not_the_same_is_found_out() {
        for found in crate::devices() {
            let handles = found.handles;
            let context = Context::new(sys().unwrap(), handles.platform, handles.device).unwrap();
            let queue = context.queue(handles.device).unwrap();
            let kernels = BuiltKernels::new(
                &context,
                &found,
                &OpenClOptions::new().with_kernel_cache(KernelCache::Off),
            )
            .unwrap();
            let flags = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;
            let [one, other] = [(); 2].map(|()| context.buffer(flags, BYTES).unwrap());
            let address = queue.map(&one, BYTES).unwrap();
            // SAFETY: the buffers are mapped, and no other code uses them.
            let (same, not) = unsafe {
                (
                    same_memory(&context, &queue, &kernels, &one, address),
                    same_memory(&context, &queue, &kernels, &other, address),
                )
            };
            assert_eq!(not, Ok(false));
            // The mapped buffer of a processor is the memory that kernels access. A GPU may keep a copy.
            assert!(same == Ok(true) || found.info().kind != DeviceKind::Cpu, "{same:?}");
            // SAFETY: no work is in flight.
            unsafe { queue.unmap(&one, address).unwrap() };
            queue.finish().unwrap();
        }
    }
}
