//! Discovery of OpenCL devices: lists the devices of all drivers, with their properties.

mod vendors;

use std::ffi::c_void;
use std::ptr::null_mut;

use backend_api::{Absence, AbsenceKind, CodeLanguage, DeviceInfo, DeviceKind, numa_node};
use opencl3::device::{
    CL_DEVICE_AVAILABLE, CL_DEVICE_COMPILER_AVAILABLE, CL_DEVICE_EXTENSIONS,
    CL_DEVICE_GLOBAL_FREE_MEMORY_AMD, CL_DEVICE_GLOBAL_MEM_SIZE, CL_DEVICE_HOST_UNIFIED_MEMORY,
    CL_DEVICE_INTEGRATED_MEMORY_NV, CL_DEVICE_LOCAL_MEM_SIZE, CL_DEVICE_MAX_COMPUTE_UNITS,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE, CL_DEVICE_MAX_WORK_GROUP_SIZE, CL_DEVICE_NAME, CL_DEVICE_PCI_BUS_ID_NV,
    CL_DEVICE_PCI_BUS_INFO_KHR, CL_DEVICE_PCI_SLOT_ID_NV, CL_DEVICE_SINGLE_FP_CONFIG,
    CL_DEVICE_SVM_CAPABILITIES, CL_DEVICE_SVM_FINE_GRAIN_BUFFER, CL_DEVICE_TOPOLOGY_AMD, CL_DEVICE_TYPE,
    CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_CUSTOM, CL_DEVICE_UUID_KHR, CL_DEVICE_VENDOR,
    CL_DRIVER_VERSION, CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, CL_FP_DENORM,
};
use opencl3::error_codes::{CL_DEVICE_NOT_FOUND, CL_INVALID_VALUE, CL_PLATFORM_NOT_FOUND_KHR};
use opencl3::types::{cl_device_id, cl_int, cl_platform_id, cl_uint};
use parking_lot::Mutex;
use vmarray_support::backends::identity;

use crate::error::name;

use crate::driver::objects::{Status, check, text};
use crate::driver::{self, Sys, sys};

/// Constant that `opencl3` lacks: the name of a platform.
const CL_PLATFORM_NAME: u32 = 0x0902;
/// Constant that some headers lack: the number of copies that NVIDIA's GPUs execute at once.
const CL_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT_NV: u32 = 0x4007;
/// Constant that some headers lack: the domain of `CL_DEVICE_PCI_BUS_ID_NV`.
const CL_DEVICE_PCI_DOMAIN_ID_NV: u32 = 0x400A;

/// An OpenCL device that a driver reports, not yet opened.
///
/// ```
/// use backend_opencl::{devices, devices_matching};
/// for found in devices() {
///     println!("{} on {}: {} MiB", found.info(), found.platform(), found.info().total_bytes >> 20);
///     let of_the_same_driver = devices_matching(found.platform());
///     assert!(of_the_same_driver.iter().any(|other| other.info() == found.info()));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Discovered {
    info: DeviceInfo,
    platform: String,
    pub(crate) handles: Handles,
    pub(crate) traits: DeviceTraits,
}

/// The driver's handles of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handles {
    pub platform: cl_platform_id,
    pub device: cl_device_id,
}

// SAFETY: platforms and root devices live as long as the process, and any thread may use them.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

/// The device's support of 64-bit atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WideAtomics {
    None,
    /// `cl_khr_int64_base_atomics`: additions and exchanges.
    Base,
    /// `cl_khr_int64_extended_atomics` as well: all other operations.
    All,
}

/// Properties of a device that decide how its kernels are built and run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceTraits {
    pub compute_units: u32,
    pub max_group: usize,
    /// Maximum local memory of a work-group, in bytes.
    pub local_bytes: u64,
    pub wide_atomics: WideAtomics,
    /// True if kernels can access host memory while the program accesses it (fine-grained shared memory).
    pub shares_fine_grained: bool,
    /// True if the driver has NVIDIA's extension `cl_nv_create_buffer`.
    pub has_host_buffers_nv: bool,
    /// True if the OpenCL compiler has the option that rounds quotients of `f32` correctly.
    pub rounds_quotients: bool,
    /// True if arithmetic keeps subnormal `f32` numbers instead of flushing them to zero.
    pub keeps_subnormals: bool,
    /// True if the device reports its free memory.
    pub reports_free_memory: bool,
}

impl Discovered {
    /// Name, identity, memory and features of the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The name of the platform (the driver) that reports the device.
    #[must_use]
    pub fn platform(&self) -> &str {
        &self.platform
    }
}

/// Returns all OpenCL devices of all platforms, in the order of the drivers' reports.
///
/// The list is empty without an OpenCL loader, a driver or a device. If a device's driver returns errors, the
/// list omits the device ([`survey`] returns the reason). One GPU may appear several times, through several
/// platforms or also in another backend: compare [`identity`](DeviceInfo::identity) and
/// [`aliases`](DeviceInfo::aliases).
///
/// The first call loads the drivers, which may take a second.
///
/// ```
/// for found in backend_opencl::devices() {
///     assert!(found.info().total_bytes > 0);
/// }
/// ```
#[must_use]
pub fn devices() -> Vec<Discovered> {
    survey().0
}

/// Returns all devices as [`devices`] does, and the reasons why other devices are missing. The reasons
/// include installed drivers (in `/etc/OpenCL/vendors`, or in `OCL_ICD_VENDORS`) that the loader omits
/// because they fail to load.
///
/// ```
/// let (devices, absences) = backend_opencl::survey();
/// assert!(!devices.is_empty() || !absences.is_empty());
/// for absence in absences {
///     println!("{absence}");
/// }
/// ```
#[must_use]
pub fn survey() -> (Vec<Discovered>, Vec<Absence>) {
    // In PoCL 3.1, a query during another thread's first query returns no devices, so serialise queries.
    static ASKING: Mutex<()> = Mutex::new(());
    let _asking = ASKING.lock();
    let (mut found, mut absences) = (Vec::new(), driver::absences().to_vec());
    let Ok(sys) = sys() else { return (found, absences) };
    let mut absent = |kind, reason: String| absences.push(Absence::new("opencl", kind, reason));
    // SAFETY: the driver writes at most as many platforms as the list has room for, and one number.
    let platforms = match ids(|room, list, count| unsafe { (sys.clGetPlatformIDs)(room, list, count) }) {
        Ok(platforms) => platforms,
        Err(CL_PLATFORM_NOT_FOUND_KHR) => Vec::new(),
        Err(code) => {
            let reason = format!("the OpenCL loader cannot list its drivers: {}; reinstall it", name(code));
            absent(AbsenceKind::Unusable, reason);
            return (found, absences);
        }
    };
    // If platforms are missing, look for drivers that failed to load, because the loader omits them silently.
    let listed = vendors::drivers();
    let broken = if platforms.len() < listed.len() { vendors::broken(&listed) } else { Vec::new() };
    if platforms.is_empty() && broken.is_empty() {
        let (kind, reason) = no_platform(&listed);
        absent(kind, reason);
    }
    for reason in broken {
        absent(AbsenceKind::Unusable, reason);
    }
    for platform in platforms {
        let platform_name = platform_name(sys, platform);
        // SAFETY: as above, with devices of a platform that the driver has reported.
        let devices = ids(|room, list, count| unsafe {
            (sys.clGetDeviceIDs)(platform, CL_DEVICE_TYPE_ALL, room, list, count)
        });
        let devices = devices.unwrap_or_else(|code| {
            let (kind, said) = match code {
                CL_DEVICE_NOT_FOUND => (AbsenceKind::NoDevices, "knows no device".to_owned()),
                code => (AbsenceKind::Unusable, format!("does not name its devices: {}", name(code))),
            };
            let advice = "check the device's driver, and whether this user may use it";
            absent(kind, format!("the driver {platform_name} {said}; {advice}"));
            Vec::new()
        });
        for device in devices {
            let asked = Asked { sys, device };
            // Skip custom devices, because they have fixed functions only.
            if asked.query::<u64>(CL_DEVICE_TYPE).is_some_and(|sort| sort & CL_DEVICE_TYPE_CUSTOM != 0) {
                continue;
            }
            match describe(platform, &platform_name, asked, found.len()) {
                Ok(discovered) => found.push(discovered),
                Err(lacks) => absent(
                    AbsenceKind::Unusable,
                    format!("a device of the driver {platform_name} {lacks}; check its driver"),
                ),
            }
        }
    }
    (found, absences)
}

/// Returns the reason why the loader has no platform, given the drivers in its list.
fn no_platform(listed: &[vendors::ListedDriver]) -> (AbsenceKind, String) {
    if listed.is_empty() {
        let reason = "the OpenCL loader finds no driver; install that of the device";
        return (AbsenceKind::NoDevices, reason.to_owned());
    }
    let names = listed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let advice = "check the device's driver, and whether this user may use it";
    (AbsenceKind::Unusable, format!("the loader lists drivers without a platform ({names}); {advice}"))
}

/// Returns a driver's objects of one kind. Calls `ask` twice: for their number, and for the list.
fn ids<T>(ask: impl Fn(cl_uint, *mut *mut T, *mut cl_uint) -> cl_int) -> Status<Vec<*mut T>> {
    let mut count = 0;
    check(ask(0, null_mut(), &mut count))?;
    let mut list = vec![null_mut(); count as usize];
    if count > 0 {
        let mut now = 0;
        check(ask(count, list.as_mut_ptr(), &mut now))?;
        // The driver may return fewer entries than at the first call, which returned their number.
        list.truncate(now as usize);
    }
    list.retain(|id| !id.is_null());
    Ok(list)
}

/// Returns the platform's name, or an empty text if the driver does not report it.
fn platform_name(sys: &Sys, platform: cl_platform_id) -> String {
    // SAFETY: the driver writes at most as many bytes as the buffer has room for, and one number.
    text(|room, value, written| unsafe {
        (sys.clGetPlatformInfo)(platform, CL_PLATFORM_NAME, room, value, written)
    })
    .unwrap_or_default()
}

/// Returns the devices that `filter` selects. The filter is an index in [`devices`], or a part of the name,
/// identity or platform, in any letter case. An empty filter selects all devices.
///
/// ```
/// assert!(backend_opencl::devices_matching("no such device").is_empty());
/// ```
#[must_use]
pub fn devices_matching(filter: &str) -> Vec<Discovered> {
    let wanted = filter.trim().to_lowercase();
    let index = wanted.parse::<usize>().ok();
    let matches = |at: usize, found: &Discovered| match index {
        Some(index) => at == index,
        None => [&found.info.name, &found.info.identity, &found.platform]
            .iter()
            .any(|text| text.to_lowercase().contains(&wanted)),
    };
    devices()
        .into_iter()
        .enumerate()
        .filter(|(at, found)| matches(*at, found))
        .map(|(_, found)| found)
        .collect()
}

/// A device whose properties are queried.
#[derive(Clone, Copy)]
struct Asked {
    sys: &'static Sys,
    device: cl_device_id,
}

impl Asked {
    /// Queries a property that is a number or a structure.
    fn ask<T: Copy + Default>(self, name: u32) -> Status<T> {
        let (mut value, mut written) = (T::default(), 0);
        let place = (&raw mut value).cast::<c_void>();
        // SAFETY: the driver writes at most `size_of::<T>()` bytes to `value`; all `T` in use are plain
        // integers.
        check(unsafe { (self.sys.clGetDeviceInfo)(self.device, name, size_of::<T>(), place, &mut written) })?;
        // If the driver wrote another length, the value has another type.
        if written == size_of::<T>() { Ok(value) } else { Err(CL_INVALID_VALUE) }
    }

    /// Queries like `ask`; returns `None` if the driver does not know the property or returns another length.
    fn query<T: Copy + Default>(self, name: u32) -> Option<T> {
        self.ask(name).ok()
    }

    fn text(self, name: u32) -> Status<String> {
        // SAFETY: the driver writes at most as many bytes as the buffer has room for, and one number.
        text(|room, value, written| unsafe {
            (self.sys.clGetDeviceInfo)(self.device, name, room, value, written)
        })
    }
}

/// Returns the properties of a device.
///
/// # Errors
/// A text about a missing property.
fn describe(
    platform: cl_platform_id,
    platform_name: &str,
    device: Asked,
    index: usize,
) -> Result<Discovered, String> {
    let unanswered = |code: cl_int| format!("does not answer: {}", name(code));
    if device.ask::<u32>(CL_DEVICE_AVAILABLE).map_err(unanswered)? == 0 {
        return Err("is not available".into());
    }
    if device.ask::<u32>(CL_DEVICE_COMPILER_AVAILABLE).map_err(unanswered)? == 0 {
        return Err("has no compiler".into());
    }
    let sort = device.ask::<u64>(CL_DEVICE_TYPE).map_err(unanswered)?;
    let extensions = device.text(CL_DEVICE_EXTENSIONS).unwrap_or_default();
    let has = |name: &str| extensions.split_whitespace().any(|known| known == name);
    let nvidia = has("cl_nv_device_attribute_query");
    let amd = has("cl_amd_device_attribute_query");
    let is_set = |name: u32| device.query::<u32>(name).unwrap_or(0) != 0;
    let shares_memory =
        is_set(CL_DEVICE_HOST_UNIFIED_MEMORY) || (nvidia && is_set(CL_DEVICE_INTEGRATED_MEMORY_NV));
    let kind = if sort & CL_DEVICE_TYPE_CPU != 0 {
        DeviceKind::Cpu
    } else if shares_memory {
        DeviceKind::IntegratedGpu
    } else {
        DeviceKind::DiscreteGpu
    };

    let pci = pci_address(device, has("cl_khr_pci_bus_info"), nvidia, amd);
    let uuid = if has("cl_khr_device_uuid") { device.query::<[u8; 16]>(CL_DEVICE_UUID_KHR) } else { None };
    let (identity, aliases) = identity(pci.as_deref(), uuid.as_ref(), format!("opencl:{index}"));

    let total = device.ask::<u64>(CL_DEVICE_GLOBAL_MEM_SIZE).map_err(unanswered)?;
    let largest = device.ask::<u64>(CL_DEVICE_MAX_MEM_ALLOC_SIZE).map_err(unanswered)?.min(total);
    if largest == 0 {
        return Err("has no memory".into());
    }
    let device_name = device.text(CL_DEVICE_NAME).map_err(unanswered)?;
    let mut info = DeviceInfo::new("opencl", &device_name, kind, &identity).with_total_bytes(total);
    info.aliases = aliases;
    info.vendor = device.text(CL_DEVICE_VENDOR).unwrap_or_default();
    info.largest_allocation_bytes = largest;
    info.memory_piece_bytes = Some(piece_bytes(largest));
    info.code_language = Some(CodeLanguage::OpenClC);
    info.driver = device.text(CL_DRIVER_VERSION).unwrap_or_default();
    info.numa_node = pci.as_deref().and_then(numa_node);
    if nvidia && let Some(engines) = device.query::<u32>(CL_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT_NV) {
        info.copy_engines = engines.max(1);
    }

    let shared = device.query::<u64>(CL_DEVICE_SVM_CAPABILITIES).unwrap_or(0);
    let single = device.query::<u64>(CL_DEVICE_SINGLE_FP_CONFIG).unwrap_or(0);
    Ok(Discovered {
        info,
        platform: platform_name.to_owned(),
        handles: Handles { platform, device: device.device },
        traits: DeviceTraits {
            compute_units: device.query::<u32>(CL_DEVICE_MAX_COMPUTE_UNITS).unwrap_or(1).max(1),
            max_group: device.query::<usize>(CL_DEVICE_MAX_WORK_GROUP_SIZE).unwrap_or(1).max(1),
            local_bytes: device.query::<u64>(CL_DEVICE_LOCAL_MEM_SIZE).unwrap_or(0),
            wide_atomics: wide_atomics(&has),
            shares_fine_grained: shares_memory && shared & CL_DEVICE_SVM_FINE_GRAIN_BUFFER != 0,
            has_host_buffers_nv: has("cl_nv_create_buffer"),
            rounds_quotients: single & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0,
            keeps_subnormals: single & CL_FP_DENORM != 0,
            reports_free_memory: amd,
        },
    })
}

/// Returns the support of 64-bit atomics, given the extensions of a device.
fn wide_atomics(has: &dyn Fn(&str) -> bool) -> WideAtomics {
    match (has("cl_khr_int64_base_atomics"), has("cl_khr_int64_extended_atomics")) {
        (true, true) => WideAtomics::All,
        (true, false) => WideAtomics::Base,
        (false, _) => WideAtomics::None,
    }
}

/// Shift for memory in one piece: it maps every offset to piece 0.
pub(crate) const ONE_PIECE: u32 = 63;

/// Returns the length in bytes of the pieces of memory above the largest allocation. It is a power of two,
/// because kernels find a byte's piece by a shift.
pub(crate) fn piece_bytes(largest_allocation_bytes: u64) -> u64 {
    1 << largest_allocation_bytes.ilog2()
}

/// Returns the free bytes that AMD's driver reports; other drivers report none.
pub(crate) fn free_bytes(handles: Handles, traits: DeviceTraits) -> Option<u64> {
    if !traits.reports_free_memory {
        return None;
    }
    let device = Asked { sys: sys().ok()?, device: handles.device };
    // The query returns two sizes in KiB: all free memory, and the largest free block.
    let [free, _] = device.query::<[usize; 2]>(CL_DEVICE_GLOBAL_FREE_MEMORY_AMD)?;
    Some(free as u64 * 1024)
}

/// Returns the PCI address of a device as `dddd:bb:dd.f`.
fn pci_address(device: Asked, khronos: bool, nvidia: bool, amd: bool) -> Option<String> {
    let text = |domain: u32, bus: u32, slot: u32, function: u32| {
        format!("{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
    };
    if khronos
        && let Some([domain, bus, slot, function]) = device.query::<[u32; 4]>(CL_DEVICE_PCI_BUS_INFO_KHR)
    {
        return Some(text(domain, bus, slot, function));
    }
    if nvidia && let Some(bus) = device.query::<u32>(CL_DEVICE_PCI_BUS_ID_NV) {
        // The number encodes PCI slot and function, like `devfn` in the Linux kernel.
        let slot = device.query::<u32>(CL_DEVICE_PCI_SLOT_ID_NV).unwrap_or(0);
        let domain = device.query::<u32>(CL_DEVICE_PCI_DOMAIN_ID_NV).unwrap_or(0);
        return Some(text(domain, bus, slot >> 3, slot & 7));
    }
    // The value is a tagged union of 24 bytes. Its last three bytes are bus, device and function.
    if amd && let Some(topology) = device.query::<[u8; 24]>(CL_DEVICE_TOPOLOGY_AMD) {
        return Some(text(0, topology[21].into(), topology[22].into(), topology[23].into()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_unique_or_name_the_same_hardware() {
        let found = devices();
        for (index, device) in found.iter().enumerate() {
            assert!(!device.info.identity.is_empty());
            assert!(device.info.largest_allocation_bytes <= device.info.total_bytes);
            assert_eq!(devices_matching(&index.to_string()).len(), 1);
        }
        assert_eq!(devices_matching("").len(), found.len());
    }
}
