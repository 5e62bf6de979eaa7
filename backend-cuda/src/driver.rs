//! The CUDA driver library: loads it at run time, and looks up the functions that this crate calls.
//!
//! The constants come from `cudarc`. This module declares the functions itself, with a plain integer as
//! result, because `cudarc` declares an enum. If a newer driver returned a code that the enum lacks, the
//! behaviour would be undefined. If a function is missing, loading reports a driver that is too old; nothing
//! panics later. This module also loads the library itself, and reports the reason if that fails. `cudarc`
//! would try many names, and on Windows could load a file of such a name from the program's folder or its
//! current folder.

pub(crate) mod objects;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::num::NonZeroU32;
use std::ptr::null_mut;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

/// An error code of the driver: a `CUresult` other than 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StatusCode(NonZeroU32);

pub(crate) type DriverResult<T = ()> = Result<T, StatusCode>;

macro_rules! codes {
    (
        of_a_call { $($(#[$attribute:meta])* $name:ident = $code:literal;)* }
        fatal { $($fatal:ident = $fatal_code:literal;)* }
    ) => {
        impl StatusCode {
            $($(#[$attribute])* pub(crate) const $name: Self = Self(NonZeroU32::new($code).unwrap());)*
            $(pub(crate) const $fatal: Self = Self(NonZeroU32::new($fatal_code).unwrap());)*

            /// Returns true if the device is lost with this code: every later call in the context fails.
            ///
            /// The driver receives only valid handles. So if it does not know a handle any more, the
            /// context is gone: an application destroyed it, or the GPU was reset.
            pub(crate) fn is_fatal(self) -> bool {
                [$(Self::$fatal),*].contains(&self)
            }
        }
    };
}
codes! {
    of_a_call {
        INVALID_VALUE = 1;
        OUT_OF_MEMORY = 2;
        STUB_LIBRARY = 34;
        NO_DEVICE = 100;
        NO_BINARY_FOR_GPU = 209;
        INVALID_PTX = 218;
        UNSUPPORTED_PTX_VERSION = 222;
        NOT_READY = 600;
        PEER_ACCESS_ALREADY_ENABLED = 704;
        NOT_PERMITTED = 800;
        NOT_SUPPORTED = 801;
    }
    fatal {
        DEINITIALIZED = 4;
        DEVICE_UNAVAILABLE = 46;
        INVALID_DEVICE = 101;
        INVALID_CONTEXT = 201;
        ECC_UNCORRECTABLE = 214;
        NVLINK_UNCORRECTABLE = 220;
        CONTAINED = 226;
        INVALID_HANDLE = 400;
        ILLEGAL_ADDRESS = 700;
        LAUNCH_TIMEOUT = 702;
        CONTEXT_IS_DESTROYED = 709;
        ASSERT = 710;
        HARDWARE_STACK_ERROR = 714;
        ILLEGAL_INSTRUCTION = 715;
        MISALIGNED_ADDRESS = 716;
        INVALID_ADDRESS_SPACE = 717;
        INVALID_PC = 718;
        LAUNCH_FAILED = 719;
        TENSOR_MEMORY_LEAK = 721;
        MPS_CLIENT_TERMINATED = 809;
        EXTERNAL_DEVICE = 911;
        UNKNOWN = 999;
    }
}

impl StatusCode {
    pub(crate) fn get(self) -> u32 {
        self.0.get()
    }

    /// The driver's name for the code, such as `CUDA_ERROR_OUT_OF_MEMORY`, else `CUDA_ERROR_<number>`.
    pub(crate) fn name(self) -> String {
        driver()
            .ok()
            .and_then(|driver| driver.text(driver.table.get_error_name, self))
            .unwrap_or_else(|| self.numbered())
    }

    fn numbered(self) -> String {
        format!("CUDA_ERROR_{}", self.get())
    }

    /// The driver's description of the code; empty if it has none.
    pub(crate) fn sentence(self) -> String {
        driver().ok().and_then(|driver| driver.text(driver.table.get_error_string, self)).unwrap_or_default()
    }
}

impl fmt::Debug for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.get())
    }
}

/// Returns the contents of `cell`; if it is empty, initialises it by `load`. If two threads load at once,
/// one result is dropped.
pub(crate) fn once<T>(cell: &OnceLock<T>, load: impl FnOnce() -> DriverResult<T>) -> DriverResult<&T> {
    if let Some(found) = cell.get() {
        return Ok(found);
    }
    let loaded = load()?;
    Ok(cell.get_or_init(|| loaded))
}

/// Converts a `CUresult` to a result.
pub(crate) fn check(result: u32) -> DriverResult {
    NonZeroU32::new(result).map_or(Ok(()), |code| Err(StatusCode(code)))
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) *mut c_void);

        // SAFETY: a handle is a name that the driver looks up; any thread may call the driver.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            pub(crate) const NULL: Self = Self(null_mut());
        }
    )*};
}
handles! {
    ContextHandle;
    StreamHandle;
    EventHandle;
    ModuleHandle;
    Function;
}

/// Attributes of a batch of copies: when their sources are read, and where they are. A `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchAttributes {
    source_access_order: c_uint,
    source_location: [c_int; 2],
    target_location: [c_int; 2],
    flags: c_uint,
}
const _: () = assert!(size_of::<BatchAttributes>() == size_of::<sys::CUmemcpyAttributes>());

impl BatchAttributes {
    /// The driver reads the sources in stream order, and finds their locations from the addresses.
    pub(crate) const STREAM_ORDER: Self = Self {
        source_access_order: sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM as c_uint,
        source_location: [0; 2],
        target_location: [0; 2],
        flags: 0,
    };
}

/// The properties of a GPU's memory: a `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProperties {
    kind: c_uint,
    handle_types: c_uint,
    location: [c_int; 2],
    handle_metadata: *mut c_void,
    flags: [u8; 8],
}
const _: () = assert!(size_of::<AllocationProperties>() == size_of::<sys::CUmemAllocationProp>());

impl AllocationProperties {
    /// Memory on the GPU with this number, for this process alone.
    pub(crate) fn on(ordinal: c_int) -> Self {
        Self {
            kind: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint,
            handle_types: 0,
            location: [DEVICE_LOCATION, ordinal],
            handle_metadata: null_mut(),
            flags: [0; 8],
        }
    }
}

/// The access of a GPU to memory: a `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDescription {
    location: [c_int; 2],
    flags: c_uint,
}
const _: () = assert!(size_of::<AccessDescription>() == size_of::<sys::CUmemAccessDesc>());

impl AccessDescription {
    /// Read and write access for the GPU with this number.
    pub(crate) fn of(ordinal: c_int) -> Self {
        let flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_uint;
        Self { location: [DEVICE_LOCATION, ordinal], flags }
    }
}

const DEVICE_LOCATION: c_int = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE as c_int;

macro_rules! table {
    (
        required { $($(#[$attribute:meta])* $name:ident = $symbol:literal ($($argument:ty),*);)* }
        optional { $($maybe:ident = $maybe_symbol:literal ($($maybe_argument:ty),*);)* }
    ) => {
        /// The driver's functions, as the library exports them.
        #[derive(Clone, Copy)]
        pub(crate) struct Table {
            $($(#[$attribute])* pub(crate) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
            $(pub(crate) $maybe: Option<unsafe extern "C" fn($($maybe_argument),*) -> u32>,)*
        }

        impl Table {
            /// Finds all functions, or returns the name of the first missing one.
            fn find(library: &'static Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($(#[$attribute])* $name: {
                        // SAFETY: the type is that of the function in the driver's header, with the result
                        // as the integer that the C enum is. The library is never unloaded, so the pointer
                        // stays valid.
                        *unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> u32>($symbol.as_bytes()) }
                            .map_err(|_| $symbol)?
                    },)*
                    $($maybe: {
                        // SAFETY: as above.
                        unsafe {
                            library.get::<unsafe extern "C" fn($($maybe_argument),*) -> u32>($maybe_symbol.as_bytes())
                        }
                        .ok()
                        .map(|symbol| *symbol)
                    },)*
                })
            }

            /// Functions that do nothing and succeed; all optional functions are absent.
            #[cfg(test)]
            #[allow(dead_code, reason = "some tests replace all functions")]
            pub(crate) fn inert() -> Self {
                Self {
                    $($(#[$attribute])* $name: {
                        unsafe extern "C" fn inert($(_: $argument),*) -> u32 {
                            0
                        }
                        inert
                    },)*
                    $($maybe: None,)*
                }
            }
        }
    };
}
pub(crate) use table;

/// A function of the host that the driver calls.
pub(crate) type HostCallback = unsafe extern "C" fn(*mut c_void);

table! {
    required {
        init = "cuInit" (c_uint);
        driver_get_version = "cuDriverGetVersion" (*mut c_int);
        get_error_name = "cuGetErrorName" (u32, *mut *const c_char);
        get_error_string = "cuGetErrorString" (u32, *mut *const c_char);
        device_get_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut c_int, c_int);
        device_get_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
        device_get_uuid = "cuDeviceGetUuid" (*mut [u8; 16], c_int);
        device_get_pci_bus_id = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
        device_get_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        device_total_mem = "cuDeviceTotalMem_v2" (*mut usize, c_int);
        primary_get_state = "cuDevicePrimaryCtxGetState" (c_int, *mut c_uint, *mut c_int);
        primary_retain = "cuDevicePrimaryCtxRetain" (*mut ContextHandle, c_int);
        primary_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
        context_get_current = "cuCtxGetCurrent" (*mut ContextHandle);
        context_set_current = "cuCtxSetCurrent" (ContextHandle);
        context_synchronize = "cuCtxSynchronize" ();
        context_get_device = "cuCtxGetDevice" (*mut c_int);
        context_enable_peer_access = "cuCtxEnablePeerAccess" (ContextHandle, c_uint);
        device_can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, c_int, c_int);
        #[cfg(feature = "cust")]
        pointer_get_attribute = "cuPointerGetAttribute" (*mut c_void, c_int, u64);
        mem_get_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        mem_alloc = "cuMemAlloc_v2" (*mut u64, usize);
        mem_free = "cuMemFree_v2" (u64);
        mem_host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        mem_free_host = "cuMemFreeHost" (*mut c_void);
        mem_host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        mem_host_unregister = "cuMemHostUnregister" (*mut c_void);
        mem_host_get_device_pointer = "cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
        memcpy_htod_async = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, StreamHandle);
        memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, StreamHandle);
        memcpy_dtod_async = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, StreamHandle);
        memcpy_peer_async = "cuMemcpyPeerAsync" (u64, ContextHandle, u64, ContextHandle, usize, StreamHandle);
        memset_d8_async = "cuMemsetD8Async" (u64, u8, usize, StreamHandle);
        memset_d16_async = "cuMemsetD16Async" (u64, u16, usize, StreamHandle);
        memset_d32_async = "cuMemsetD32Async" (u64, c_uint, usize, StreamHandle);
        stream_create = "cuStreamCreate" (*mut StreamHandle, c_uint);
        stream_destroy = "cuStreamDestroy_v2" (StreamHandle);
        stream_query = "cuStreamQuery" (StreamHandle);
        stream_synchronize = "cuStreamSynchronize" (StreamHandle);
        stream_wait_event = "cuStreamWaitEvent" (StreamHandle, EventHandle, c_uint);
        stream_is_capturing = "cuStreamIsCapturing" (StreamHandle, *mut c_int);
        launch_host_func = "cuLaunchHostFunc" (StreamHandle, HostCallback, *mut c_void);
        event_create = "cuEventCreate" (*mut EventHandle, c_uint);
        event_destroy = "cuEventDestroy_v2" (EventHandle);
        event_record = "cuEventRecord" (EventHandle, StreamHandle);
        event_query = "cuEventQuery" (EventHandle);
        event_synchronize = "cuEventSynchronize" (EventHandle);
        module_load_data = "cuModuleLoadData" (*mut ModuleHandle, *const c_void);
        module_unload = "cuModuleUnload" (ModuleHandle);
        module_get_function = "cuModuleGetFunction" (*mut Function, ModuleHandle, *const c_char);
        function_get_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, Function);
        function_set_attribute = "cuFuncSetAttribute" (Function, c_int, c_int);
        launch_kernel = "cuLaunchKernel" (
            Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, StreamHandle, *mut *mut c_void, *mut *mut c_void
        );
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, Function, c_int, usize);
    }
    optional {
        device_get_uuid_v2 = "cuDeviceGetUuid_v2" (*mut [u8; 16], c_int);
        mem_address_reserve = "cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
        mem_address_free = "cuMemAddressFree" (u64, usize);
        mem_create = "cuMemCreate" (*mut u64, usize, *const AllocationProperties, u64);
        mem_release = "cuMemRelease" (u64);
        mem_map = "cuMemMap" (u64, usize, usize, u64, u64);
        mem_unmap = "cuMemUnmap" (u64, usize);
        mem_set_access = "cuMemSetAccess" (u64, usize, *const AccessDescription, usize);
        mem_get_allocation_granularity = "cuMemGetAllocationGranularity" (
            *mut usize, *const AllocationProperties, c_uint
        );
        memcpy_batch_async = "cuMemcpyBatchAsync" (
            *mut u64, *mut u64, *mut usize, usize, *mut BatchAttributes, *mut usize, usize, *mut usize, StreamHandle
        );
        memcpy_batch_async_v2 = "cuMemcpyBatchAsync_v2" (
            *mut u64, *mut u64, *mut usize, usize, *mut BatchAttributes, *mut usize, usize, StreamHandle
        );
    }
}

impl Table {
    pub(crate) fn has_batch_copies(&self) -> bool {
        self.memcpy_batch_async_v2.is_some() || self.memcpy_batch_async.is_some()
    }
}

/// Returns the driver's installed library, loaded at the first call and never unloaded. On Windows it is the
/// file in the system's folder, even if other folders have a file of that name. The function tries no other
/// names, because any file that a search finds would run in this process.
pub(crate) fn library() -> Result<&'static Library, &'static Missing> {
    static LIBRARY: OnceLock<Result<Library, Missing>> = OnceLock::new();
    LIBRARY.get_or_init(|| first_of(NAMES, open)).as_ref()
}

#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

pub(crate) fn open(name: &str) -> Result<Library, libloading::Error> {
    #[cfg(windows)]
    {
        use libloading::os::windows;
        // SAFETY: loading a library runs its initialisers; the system's administrator is responsible for
        // the installed library.
        unsafe { windows::Library::load_with_flags(name, windows::LOAD_LIBRARY_SEARCH_SYSTEM32) }
            .map(Library::from)
    }
    #[cfg(not(windows))]
    // SAFETY: as above.
    unsafe {
        Library::new(name)
    }
}

/// Returns the first of these libraries that loads, and tries each name once. If none loads, returns the
/// system's error for the first one that exists.
pub(crate) fn first_of<L>(
    names: &[&str],
    mut open: impl FnMut(&str) -> Result<L, libloading::Error>,
) -> Result<L, Missing> {
    let mut missing = Missing::Library;
    for name in names {
        match open(name) {
            Ok(library) => return Ok(library),
            Err(error) => {
                let (text, is_absent) = backend_api::refused_library(name, &error);
                if !is_absent && matches!(missing, Missing::Library) {
                    missing = Missing::Broken(text);
                }
            }
        }
    }
    Err(missing)
}

/// The loaded and initialised driver.
pub(crate) struct Driver {
    pub(crate) table: Table,
    /// Newest CUDA version that the driver supports: 1000 × major + 10 × minor.
    version: u32,
}

/// The reason why the driver cannot be used.
#[derive(Clone, Debug)]
pub(crate) enum Missing {
    Library,
    /// The system cannot load the library, for this reason.
    Broken(String),
    /// The library lacks this function: it is too old.
    Symbol(&'static str),
    /// The driver fails to start, for example without a GPU. Has the name and the description of the error
    /// code, because they cannot be queried later.
    Refused {
        code: StatusCode,
        name: String,
        sentence: String,
    },
}

/// Returns the driver of this process, loaded at the first call. Never panics.
pub(crate) fn driver() -> Result<&'static Driver, &'static Missing> {
    static DRIVER: OnceLock<Result<Driver, Missing>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref()
}

impl Driver {
    fn load() -> Result<Self, Missing> {
        let library = library().map_err(Clone::clone)?;
        Self { table: Table::find(library).map_err(Missing::Symbol)?, version: 0 }.started()
    }

    /// Initialises the driver.
    pub(crate) fn started(mut self) -> Result<Self, Missing> {
        let mut version = 0;
        // SAFETY: may be called at any time; 0 is the only defined value of its argument.
        let init = check(unsafe { (self.table.init)(0) });
        // SAFETY: writes one integer.
        let asked = init.and_then(|()| check(unsafe { (self.table.driver_get_version)(&raw mut version) }));
        if let Err(code) = asked {
            let name = self.text(self.table.get_error_name, code).unwrap_or_else(|| code.numbered());
            let sentence = self.text(self.table.get_error_string, code).unwrap_or_default();
            return Err(Missing::Refused { code, name, sentence });
        }
        self.version = version.unsigned_abs();
        Ok(self)
    }

    /// Creates a driver with the functions of `table`.
    #[cfg(test)]
    pub(crate) fn with(table: Table) -> Self {
        Self { table, version: 13_000 }
    }

    /// The driver's version for `DeviceInfo`.
    pub(crate) fn version_text(&self) -> String {
        format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    fn text(
        &self,
        ask: unsafe extern "C" fn(u32, *mut *const c_char) -> u32,
        code: StatusCode,
    ) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: writes one pointer, to a string that lives as long as the library, or null.
        let result = unsafe { ask(code.get(), &raw mut text) };
        if result != 0 || text.is_null() {
            return None;
        }
        // SAFETY: not null, so a string as stated above.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.version_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_name_is_tried_once_and_its_error_reported() {
        let tried = |texts: &[Option<&'static str>]| {
            let (mut names, mut texts) = (Vec::new(), texts.iter());
            let opened = first_of(&["libcuda.so.1", "libcuda.so"], |name| {
                names.push(name.to_owned());
                // Test a library that does not exist, and a file that is not a library.
                texts.next().unwrap().map_or(Ok(()), |path| open(path).map(drop))
            });
            (opened.map_err(|missing| missing.absence()), names)
        };
        let broken = std::env::temp_dir().join(vmarray_support::private_dir::random_name());
        std::fs::write(&broken, "no library").unwrap();
        let (broken, absent) =
            (Some(&*broken.to_str().unwrap().to_owned().leak()), Some("libcuda.so.1-none"));
        assert_eq!(tried(&[None]), (Ok(()), vec!["libcuda.so.1".to_owned()]));
        assert!(tried(&[broken, None]).0.is_ok());
        for (answers, kind) in [
            ([absent, absent], backend_api::AbsenceKind::NotInstalled),
            ([broken, absent], backend_api::AbsenceKind::Unusable),
            ([absent, broken], backend_api::AbsenceKind::Unusable),
        ] {
            let (opened, names) = tried(&answers);
            let absence = opened.unwrap_err();
            assert_eq!((absence.kind, names.len()), (kind, 2), "{absence}");
            let names_it = absence.reason.contains(broken.unwrap());
            assert_eq!(names_it, answers.contains(&broken), "{absence}");
        }
        std::fs::remove_file(broken.unwrap()).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_is_asked_for_no_other_library() {
        let test = "discovery::tests::no_driver_or_no_card_is_an_empty_list_and_an_error_to_open";
        // The loader of glibc lists its searches; other loaders print nothing.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env("LD_DEBUG", "libs")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let found = |name: &str| said.lines().any(|line| line.contains(&format!("find library={name}")));
        assert!(!found("libnvcuda") && !found("nvcuda") && !found("cuda"), "{said}");
    }

    #[test]
    #[cfg(windows)]
    fn a_library_beside_the_program_is_not_taken() {
        // Plant a library in the program's own folder, which Windows searches first by default.
        let name = "vmarray-planted.dll";
        let system = std::path::PathBuf::from(std::env::var_os("SystemRoot").unwrap());
        let planted = std::env::current_exe().unwrap().with_file_name(name);
        std::fs::copy(system.join("System32").join("version.dll"), &planted).unwrap();
        assert!(open(name).is_err());
        std::fs::remove_file(planted).unwrap();
    }
}
