//! Driver functions that the crate `cust` links to, for programs that are linked without the driver.
//!
//! `cust` declares them as functions of a library `cuda`, which a program would need when it is linked and
//! when it starts. The functions here replace that library: each looks up the driver's function at its first
//! call. Without a driver, all return `CUDA_ERROR_NOT_INITIALIZED`. A function that the driver lacks returns
//! `CUDA_ERROR_NOT_FOUND`. The list has the functions that the sources of `cust` 0.3.2 use. Their types equal
//! the declarations of `cust_raw` 0.11.3.
//!
//! An error code that the enum in `cust_raw` lacks becomes `CUDA_ERROR_UNKNOWN`.

// Allow these function names, because they are the names in the driver's C interface.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};
use std::sync::OnceLock;

use cust::sys::*;

const NOT_INITIALIZED: u32 = 3;
const NOT_FOUND: u32 = 500;
const UNKNOWN: u32 = 999;

/// All error codes of the enum in `cust_raw`.
#[rustfmt::skip]
const KNOWN: [u32; 87] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 34, 100, 101, 102, 200, 201, 202, 205, 206, 207, 208,
    209, 210, 211, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223, 224, 300, 301, 302, 303,
    304, 400, 401, 500, 600, 700, 701, 702, 703, 704, 705, 708, 709, 710, 711, 712, 713, 714, 715, 716,
    717, 718, 719, 720, 800, 801, 802, 803, 804, 805, 806, 807, 808, 809, 900, 901, 902, 903, 904, 905,
    906, 907, 908, 909, 910, 911, 999,
];

/// Returns `code`, or `CUDA_ERROR_UNKNOWN` if the enum lacks it.
fn known(code: u32) -> u32 {
    if KNOWN.binary_search(&code).is_ok() { code } else { UNKNOWN }
}

macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// Calls the driver's function of this name.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            type Found = unsafe extern "C" fn($($type),*) -> u32;
            static FOUND: OnceLock<Result<Found, u32>> = OnceLock::new();
            let found = FOUND.get_or_init(|| {
                let library = crate::driver::library().map_err(|_| NOT_INITIALIZED)?;
                // SAFETY: the library is never unloaded; the type is that of the function in the driver's
                // header, with the result as the integer that the C enum is.
                unsafe { library.get::<Found>(stringify!($name).as_bytes()) }
                    .map(|symbol| *symbol)
                    .map_err(|_| NOT_FOUND)
            });
            match found {
                // SAFETY: guaranteed by the caller.
                Ok(function) => known(unsafe { function($($argument),*) }),
                Err(code) => *code,
            }
        }
    )*};
}

#[rustfmt::skip]
forward! {
    fn cuArray3DCreate_v2(a0: *mut CUarray, a1: *const CUDA_ARRAY3D_DESCRIPTOR);
    fn cuArray3DGetDescriptor_v2(a0: *mut CUDA_ARRAY3D_DESCRIPTOR, a1: CUarray);
    fn cuArrayDestroy(a0: CUarray);
    fn cuCtxCreate_v2(a0: *mut CUcontext, a1: c_uint, a2: CUdevice);
    fn cuCtxDestroy_v2(a0: CUcontext);
    fn cuCtxGetApiVersion(a0: CUcontext, a1: *mut c_uint);
    fn cuCtxGetCacheConfig(a0: *mut CUfunc_cache);
    fn cuCtxGetCurrent(a0: *mut CUcontext);
    fn cuCtxGetDevice(a0: *mut CUdevice);
    fn cuCtxGetFlags(a0: *mut c_uint);
    fn cuCtxGetLimit(a0: *mut usize, a1: CUlimit);
    fn cuCtxGetSharedMemConfig(a0: *mut CUsharedconfig);
    fn cuCtxGetStreamPriorityRange(a0: *mut c_int, a1: *mut c_int);
    fn cuCtxPopCurrent_v2(a0: *mut CUcontext);
    fn cuCtxPushCurrent_v2(a0: CUcontext);
    fn cuCtxSetCacheConfig(a0: CUfunc_cache);
    fn cuCtxSetCurrent(a0: CUcontext);
    fn cuCtxSetLimit(a0: CUlimit, a1: usize);
    fn cuCtxSetSharedMemConfig(a0: CUsharedconfig);
    fn cuCtxSynchronize();
    fn cuDestroyExternalMemory(a0: CUexternalMemory);
    fn cuDeviceGet(a0: *mut CUdevice, a1: c_int);
    fn cuDeviceGetAttribute(a0: *mut c_int, a1: CUdevice_attribute, a2: CUdevice);
    fn cuDeviceGetCount(a0: *mut c_int);
    fn cuDeviceGetName(a0: *mut c_char, a1: c_int, a2: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(a0: CUdevice);
    fn cuDevicePrimaryCtxReset_v2(a0: CUdevice);
    fn cuDevicePrimaryCtxRetain(a0: *mut CUcontext, a1: CUdevice);
    fn cuDevicePrimaryCtxSetFlags_v2(a0: CUdevice, a1: c_uint);
    fn cuDeviceTotalMem_v2(a0: *mut usize, a1: CUdevice);
    fn cuDriverGetVersion(a0: *mut c_int);
    fn cuEventCreate(a0: *mut CUevent, a1: c_uint);
    fn cuEventDestroy_v2(a0: CUevent);
    fn cuEventElapsedTime(a0: *mut f32, a1: CUevent, a2: CUevent);
    fn cuEventQuery(a0: CUevent);
    fn cuEventRecord(a0: CUevent, a1: CUstream);
    fn cuEventSynchronize(a0: CUevent);
    fn cuExternalMemoryGetMappedBuffer(a0: *mut CUdeviceptr, a1: CUexternalMemory, a2: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC);
    fn cuFuncGetAttribute(a0: *mut c_int, a1: CUfunction_attribute, a2: CUfunction);
    fn cuFuncSetCacheConfig(a0: CUfunction, a1: CUfunc_cache);
    fn cuFuncSetSharedMemConfig(a0: CUfunction, a1: CUsharedconfig);
    fn cuGetErrorString(a0: CUresult, a1: *mut *const c_char);
    fn cuGraphAddKernelNode(a0: *mut CUgraphNode, a1: CUgraph, a2: *const CUgraphNode, a3: usize, a4: *const CUDA_KERNEL_NODE_PARAMS);
    fn cuGraphCreate(a0: *mut CUgraph, a1: c_uint);
    fn cuGraphDebugDotPrint(a0: CUgraph, a1: *const c_char, a2: c_uint);
    fn cuGraphDestroy(a0: CUgraph);
    fn cuGraphGetEdges(a0: CUgraph, a1: *mut CUgraphNode, a2: *mut CUgraphNode, a3: *mut usize);
    fn cuGraphGetNodes(a0: CUgraph, a1: *mut CUgraphNode, a2: *mut usize);
    fn cuGraphKernelNodeGetParams(a0: CUgraphNode, a1: *mut CUDA_KERNEL_NODE_PARAMS);
    fn cuGraphNodeGetType(a0: CUgraphNode, a1: *mut CUgraphNodeType);
    fn cuImportExternalMemory(a0: *mut CUexternalMemory, a1: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
    fn cuInit(a0: c_uint);
    fn cuLaunchHostFunc(a0: CUstream, a1: CUhostFn, a2: *mut c_void);
    fn cuLaunchKernel(a0: CUfunction, a1: c_uint, a2: c_uint, a3: c_uint, a4: c_uint, a5: c_uint, a6: c_uint, a7: c_uint, a8: CUstream, a9: *mut *mut c_void, a10: *mut *mut c_void);
    fn cuLinkAddData_v2(a0: CUlinkState, a1: CUjitInputType, a2: *mut c_void, a3: usize, a4: *const c_char, a5: c_uint, a6: *mut CUjit_option, a7: *mut *mut c_void);
    fn cuLinkComplete(a0: CUlinkState, a1: *mut *mut c_void, a2: *mut usize);
    fn cuLinkCreate_v2(a0: c_uint, a1: *mut CUjit_option, a2: *mut *mut c_void, a3: *mut CUlinkState);
    fn cuLinkDestroy(a0: CUlinkState);
    fn cuMemAdvise(a0: CUdeviceptr, a1: usize, a2: CUmem_advise, a3: CUdevice);
    fn cuMemAllocAsync(a0: *mut CUdeviceptr, a1: usize, a2: CUstream);
    fn cuMemAllocHost_v2(a0: *mut *mut c_void, a1: usize);
    fn cuMemAllocManaged(a0: *mut CUdeviceptr, a1: usize, a2: c_uint);
    fn cuMemAlloc_v2(a0: *mut CUdeviceptr, a1: usize);
    fn cuMemFreeAsync(a0: CUdeviceptr, a1: CUstream);
    fn cuMemFreeHost(a0: *mut c_void);
    fn cuMemFree_v2(a0: CUdeviceptr);
    fn cuMemGetInfo_v2(a0: *mut usize, a1: *mut usize);
    fn cuMemPrefetchAsync(a0: CUdeviceptr, a1: usize, a2: CUdevice, a3: CUstream);
    fn cuMemcpy2D_v2(a0: *const CUDA_MEMCPY2D);
    fn cuMemcpyAtoH_v2(a0: *mut c_void, a1: CUarray, a2: usize, a3: usize);
    fn cuMemcpyDtoDAsync_v2(a0: CUdeviceptr, a1: CUdeviceptr, a2: usize, a3: CUstream);
    fn cuMemcpyDtoD_v2(a0: CUdeviceptr, a1: CUdeviceptr, a2: usize);
    fn cuMemcpyDtoHAsync_v2(a0: *mut c_void, a1: CUdeviceptr, a2: usize, a3: CUstream);
    fn cuMemcpyDtoH_v2(a0: *mut c_void, a1: CUdeviceptr, a2: usize);
    fn cuMemcpyHtoA_v2(a0: CUarray, a1: usize, a2: *const c_void, a3: usize);
    fn cuMemcpyHtoDAsync_v2(a0: CUdeviceptr, a1: *const c_void, a2: usize, a3: CUstream);
    fn cuMemcpyHtoD_v2(a0: CUdeviceptr, a1: *const c_void, a2: usize);
    fn cuMemsetD16Async(a0: CUdeviceptr, a1: c_ushort, a2: usize, a3: CUstream);
    fn cuMemsetD16_v2(a0: CUdeviceptr, a1: c_ushort, a2: usize);
    fn cuMemsetD32Async(a0: CUdeviceptr, a1: c_uint, a2: usize, a3: CUstream);
    fn cuMemsetD32_v2(a0: CUdeviceptr, a1: c_uint, a2: usize);
    fn cuMemsetD8Async(a0: CUdeviceptr, a1: c_uchar, a2: usize, a3: CUstream);
    fn cuMemsetD8_v2(a0: CUdeviceptr, a1: c_uchar, a2: usize);
    fn cuModuleGetFunction(a0: *mut CUfunction, a1: CUmodule, a2: *const c_char);
    fn cuModuleGetGlobal_v2(a0: *mut CUdeviceptr, a1: *mut usize, a2: CUmodule, a3: *const c_char);
    fn cuModuleLoad(a0: *mut CUmodule, a1: *const c_char);
    fn cuModuleLoadData(a0: *mut CUmodule, a1: *const c_void);
    fn cuModuleLoadDataEx(a0: *mut CUmodule, a1: *const c_void, a2: c_uint, a3: *mut CUjit_option, a4: *mut *mut c_void);
    fn cuModuleUnload(a0: CUmodule);
    fn cuOccupancyAvailableDynamicSMemPerBlock(a0: *mut usize, a1: CUfunction, a2: c_int, a3: c_int);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(a0: *mut c_int, a1: CUfunction, a2: c_int, a3: usize);
    fn cuOccupancyMaxPotentialBlockSize(a0: *mut c_int, a1: *mut c_int, a2: CUfunction, a3: CUoccupancyB2DSize, a4: usize, a5: c_int);
    fn cuStreamCreateWithPriority(a0: *mut CUstream, a1: c_uint, a2: c_int);
    fn cuStreamDestroy_v2(a0: CUstream);
    fn cuStreamGetFlags(a0: CUstream, a1: *mut c_uint);
    fn cuStreamGetPriority(a0: CUstream, a1: *mut c_int);
    fn cuStreamSynchronize(a0: CUstream);
    fn cuStreamWaitEvent(a0: CUstream, a1: CUevent, a2: c_uint);
    fn cuSurfObjectCreate(a0: *mut CUsurfObject, a1: *const CUDA_RESOURCE_DESC);
    fn cuSurfObjectDestroy(a0: CUsurfObject);
    fn cuSurfObjectGetResourceDesc(a0: *mut CUDA_RESOURCE_DESC, a1: CUsurfObject);
    fn cuTexObjectCreate(a0: *mut CUtexObject, a1: *const CUDA_RESOURCE_DESC, a2: *const CUDA_TEXTURE_DESC, a3: *const CUDA_RESOURCE_VIEW_DESC);
    fn cuTexObjectDestroy(a0: CUtexObject);
    fn cuTexObjectGetResourceDesc(a0: *mut CUDA_RESOURCE_DESC, a1: CUtexObject);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_the_enum_lacks_become_unknown() {
        assert!(KNOWN.is_sorted());
        assert_eq!([known(0), known(2), known(719), known(12_345)], [0, 2, 719, UNKNOWN]);
    }

    #[test]
    fn cust_answers_with_or_without_a_driver() {
        let has_driver = !matches!(crate::driver::driver(), Err(crate::driver::Missing::Library));
        let started = cust::init(cust::CudaFlags::empty());
        if !has_driver {
            assert_eq!(started, Err(cust::error::CudaError::NotInitialized));
            assert!(cust::device::Device::num_devices().is_err());
        }
    }
}
