//! The OpenCL library `libOpenCL`: loads it at run time, and looks up the functions that this crate calls.
//!
//! This crate uses the types, constants and names of `opencl3`, but not its wrappers, for four reasons:
//!
//! - Every enqueue of `opencl3` creates an event, which costs as much as the command.
//! - Its objects panic in `Drop` if the driver returns an error.
//! - It declares function pointers with Rust's calling convention instead of C's.
//! - It searches for the library itself, on Windows also in the program's folder, and may load another one
//!   than this module.

pub(crate) mod objects;

use std::ffi::{OsStr, OsString, c_char, c_void};
use std::sync::OnceLock;

use backend_api::{Absence, AbsenceKind, refused_library};
use libloading::Library;
use opencl3::error_codes::{DLOPEN_FUNCTION_NOT_AVAILABLE, DLOPEN_RUNTIME_LOAD_FAILED};
use opencl3::types::{
    cl_bool, cl_command_queue, cl_command_queue_properties, cl_context, cl_context_properties, cl_device_id,
    cl_device_info, cl_device_type, cl_event, cl_event_info, cl_int, cl_kernel, cl_map_flags, cl_mem,
    cl_mem_flags, cl_platform_id, cl_platform_info, cl_program, cl_program_build_info, cl_program_info,
    cl_svm_mem_flags, cl_uint,
};

pub(crate) type EventCallback = extern "C" fn(cl_event, cl_int, *mut c_void);

/// Type of `clCreateBufferNV` of the extension `cl_nv_create_buffer`. The third argument is the location of
/// the buffer.
pub(crate) type CreateBufferNv =
    unsafe extern "C" fn(cl_context, cl_mem_flags, u64, usize, *mut c_void, *mut cl_int) -> cl_mem;

macro_rules! entry_points {
    (
        required { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)* }
        optional { $(fn $optional:ident($($optional_argument:ident: $optional_type:ty),* $(,)?) $(-> $optional_result:ty)?;)* }
    ) => {
        /// The table of OpenCL functions that this crate calls.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case)]
        pub(crate) struct Sys {
            $(pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
            $(pub $optional: Option<unsafe extern "C" fn($($optional_argument: $optional_type),*) $(-> $optional_result)?>,)*
        }

        impl Sys {
            /// Finds all functions, or returns the name of the first missing one.
            fn from_library(library: Library) -> Result<Self, &'static str> {
                // SAFETY: the signatures below equal the OpenCL 1.2 (optional: 2.0) headers. The
                // pointers live as long as the library, which is never unloaded once all of them are
                // found.
                let table = unsafe {
                    Self {
                        $($name: *library
                            .get(concat!(stringify!($name), "\0").as_bytes())
                            .map_err(|_| stringify!($name))?,)*
                        $($optional: library
                            .get(concat!(stringify!($optional), "\0").as_bytes())
                            .ok()
                            .map(|symbol| *symbol),)*
                    }
                };
                std::mem::forget(library);
                Ok(table)
            }
        }
    };
}

entry_points! {
    required {
        fn clGetPlatformIDs(room: cl_uint, platforms: *mut cl_platform_id, count: *mut cl_uint) -> cl_int;
        fn clGetPlatformInfo(platform: cl_platform_id, name: cl_platform_info, size: usize, value: *mut c_void, written: *mut usize) -> cl_int;
        fn clGetDeviceIDs(platform: cl_platform_id, sort: cl_device_type, room: cl_uint, devices: *mut cl_device_id, count: *mut cl_uint) -> cl_int;
        fn clGetDeviceInfo(device: cl_device_id, name: cl_device_info, size: usize, value: *mut c_void, written: *mut usize) -> cl_int;
        fn clCreateContext(
            properties: *const cl_context_properties,
            count: cl_uint,
            devices: *const cl_device_id,
            notify: Option<unsafe extern "C" fn(*const c_char, *const c_void, usize, *mut c_void)>,
            data: *mut c_void,
            status: *mut cl_int,
        ) -> cl_context;
        fn clReleaseContext(context: cl_context) -> cl_int;
        fn clCreateCommandQueue(context: cl_context, device: cl_device_id, properties: cl_command_queue_properties, status: *mut cl_int) -> cl_command_queue;
        fn clReleaseCommandQueue(queue: cl_command_queue) -> cl_int;
        fn clFlush(queue: cl_command_queue) -> cl_int;
        fn clFinish(queue: cl_command_queue) -> cl_int;
        fn clCreateBuffer(context: cl_context, flags: cl_mem_flags, bytes: usize, host: *mut c_void, status: *mut cl_int) -> cl_mem;
        fn clReleaseMemObject(memory: cl_mem) -> cl_int;
        fn clEnqueueReadBuffer(queue: cl_command_queue, buffer: cl_mem, blocking: cl_bool, offset: usize, bytes: usize, to: *mut c_void, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event) -> cl_int;
        fn clEnqueueWriteBuffer(queue: cl_command_queue, buffer: cl_mem, blocking: cl_bool, offset: usize, bytes: usize, from: *const c_void, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event) -> cl_int;
        fn clEnqueueCopyBuffer(queue: cl_command_queue, from: cl_mem, to: cl_mem, from_offset: usize, to_offset: usize, bytes: usize, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event) -> cl_int;
        fn clEnqueueFillBuffer(queue: cl_command_queue, buffer: cl_mem, pattern: *const c_void, pattern_bytes: usize, offset: usize, bytes: usize, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event) -> cl_int;
        fn clEnqueueMapBuffer(queue: cl_command_queue, buffer: cl_mem, blocking: cl_bool, flags: cl_map_flags, offset: usize, bytes: usize, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event, status: *mut cl_int) -> *mut c_void;
        fn clEnqueueUnmapMemObject(queue: cl_command_queue, memory: cl_mem, address: *mut c_void, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event) -> cl_int;
        fn clEnqueueNDRangeKernel(queue: cl_command_queue, kernel: cl_kernel, dimensions: cl_uint, offset: *const usize, global: *const usize, local: *const usize, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event) -> cl_int;
        fn clEnqueueMarkerWithWaitList(queue: cl_command_queue, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event) -> cl_int;
        fn clEnqueueBarrierWithWaitList(queue: cl_command_queue, waits: cl_uint, wait_list: *const cl_event, event: *mut cl_event) -> cl_int;
        fn clWaitForEvents(count: cl_uint, events: *const cl_event) -> cl_int;
        fn clGetEventInfo(event: cl_event, name: cl_event_info, size: usize, value: *mut c_void, written: *mut usize) -> cl_int;
        fn clReleaseEvent(event: cl_event) -> cl_int;
        fn clSetEventCallback(event: cl_event, status: cl_int, notify: Option<EventCallback>, data: *mut c_void) -> cl_int;
        fn clCreateProgramWithSource(context: cl_context, count: cl_uint, sources: *const *const c_char, lengths: *const usize, status: *mut cl_int) -> cl_program;
        fn clCreateProgramWithBinary(context: cl_context, count: cl_uint, devices: *const cl_device_id, lengths: *const usize, binaries: *const *const u8, binary_status: *mut cl_int, status: *mut cl_int) -> cl_program;
        fn clBuildProgram(
            program: cl_program,
            count: cl_uint,
            devices: *const cl_device_id,
            options: *const c_char,
            notify: Option<unsafe extern "C" fn(cl_program, *mut c_void)>,
            data: *mut c_void,
        ) -> cl_int;
        fn clGetProgramInfo(program: cl_program, name: cl_program_info, size: usize, value: *mut c_void, written: *mut usize) -> cl_int;
        fn clGetProgramBuildInfo(program: cl_program, device: cl_device_id, name: cl_program_build_info, size: usize, value: *mut c_void, written: *mut usize) -> cl_int;
        fn clReleaseProgram(program: cl_program) -> cl_int;
        fn clCreateKernel(program: cl_program, name: *const c_char, status: *mut cl_int) -> cl_kernel;
        fn clReleaseKernel(kernel: cl_kernel) -> cl_int;
        fn clSetKernelArg(kernel: cl_kernel, index: cl_uint, size: usize, value: *const c_void) -> cl_int;
    }
    optional {
        fn clGetExtensionFunctionAddressForPlatform(platform: cl_platform_id, name: *const c_char) -> *mut c_void;
        fn clSVMAlloc(context: cl_context, flags: cl_svm_mem_flags, bytes: usize, alignment: cl_uint) -> *mut c_void;
        fn clSVMFree(context: cl_context, address: *mut c_void);
        fn clSetKernelArgSVMPointer(kernel: cl_kernel, index: cl_uint, address: *const c_void) -> cl_int;
    }
}

/// Returns the table of OpenCL functions, loaded at the first call.
///
/// Tries the paths of `OPENCL_DYLIB_PATH`, separated by `;`, then the usual name. On Windows that is the
/// library in the system's folder: a file of that name next to the program, in its current folder, or in
/// `PATH` is ignored.
///
/// # Errors
/// The code for "no library" or "a function is missing".
pub(crate) fn sys() -> Result<&'static Sys, cl_int> {
    loaded().sys.as_ref().map_err(|&code| code)
}

/// The problems of the libraries that were tried.
pub(crate) fn absences() -> &'static [Absence] {
    &loaded().absences
}

struct Loaded {
    sys: Result<Sys, cl_int>,
    absences: Vec<Absence>,
}

fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    const NAME: &str = if cfg!(target_os = "windows") {
        "OpenCL.dll"
    } else if cfg!(target_os = "macos") {
        "/System/Library/Frameworks/OpenCL.framework/OpenCL"
    } else {
        "libOpenCL.so.1"
    };
    let load = || {
        let named = named_libraries(std::env::var_os("OPENCL_DYLIB_PATH").unwrap_or_default());
        let named = named.iter().map(|path| (&**path, false));
        let mut absences = Vec::new();
        let mut absent = |kind, reason: String| absences.push(Absence::new("opencl", kind, reason));
        for (path, is_installed) in named.chain([(OsStr::new(NAME), true)]) {
            let shown = path.to_string_lossy();
            // SAFETY: loading a library runs its initialisers; the user is responsible for libraries of
            // the variable, the system's administrator for the installed OpenCL library.
            let library = unsafe { if is_installed { installed(path) } else { Library::new(path) } };
            match library.map_err(|error| refused_library(&shown, &error)) {
                Ok(library) => {
                    let sys = Sys::from_library(library).map_err(|name| {
                        let reason = format!(
                            "{shown} has no function {name}; install a loader of OpenCL 1.2 or later"
                        );
                        absent(AbsenceKind::Unusable, reason);
                        DLOPEN_FUNCTION_NOT_AVAILABLE
                    });
                    return Loaded { sys, absences };
                }
                Err((_, true)) if is_installed => absent(
                    AbsenceKind::NotInstalled,
                    format!(
                        "there is no {NAME}; install an OpenCL loader, such as ocl-icd, and the driver of the device"
                    ),
                ),
                Err((text, _)) => absent(
                    AbsenceKind::Unusable,
                    format!("{shown} cannot be loaded ({text}); reinstall it, or correct OPENCL_DYLIB_PATH"),
                ),
            }
        }
        Loaded { sys: Err(DLOPEN_RUNTIME_LOAD_FAILED), absences }
    };
    LOADED.get_or_init(load)
}

/// Returns the paths in a list, which may contain any bytes.
fn named_libraries(list: OsString) -> Vec<OsString> {
    let paths = list.as_encoded_bytes().split(|&byte| byte == b';').filter(|path| !path.is_empty());
    // SAFETY: the bytes come from such a string, which was split at ASCII characters.
    paths.map(|path| unsafe { OsStr::from_encoded_bytes_unchecked(path) }.to_owned()).collect()
}

/// Loads a library of the system.
///
/// # Safety
/// The requirements of [`Library::new`].
unsafe fn installed(name: &OsStr) -> Result<Library, libloading::Error> {
    #[cfg(target_os = "windows")]
    {
        use libloading::os::windows;
        // SAFETY: guaranteed by the caller.
        unsafe { windows::Library::load_with_flags(name, windows::LOAD_LIBRARY_SEARCH_SYSTEM32) }
            .map(Library::from)
    }
    #[cfg(not(target_os = "windows"))]
    // SAFETY: guaranteed by the caller.
    unsafe {
        Library::new(name)
    }
}
