//! Which OpenCL devices there are.

use std::ffi::c_void;

use backend_api::{Absence, AbsenceKind, DeviceInfo, DeviceKind};
use opencl3::device::{
    CL_DEVICE_GLOBAL_FREE_MEMORY_AMD, CL_DEVICE_INTEGRATED_MEMORY_NV, CL_DEVICE_PCI_BUS_ID_NV,
    CL_DEVICE_PCI_BUS_INFO_KHR, CL_DEVICE_PCI_SLOT_ID_NV, CL_DEVICE_SVM_CAPABILITIES,
    CL_DEVICE_SVM_FINE_GRAIN_BUFFER, CL_DEVICE_TOPOLOGY_AMD, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU,
    CL_DEVICE_TYPE_CUSTOM, CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, CL_FP_DENORM, Device as ClDevice,
};
use opencl3::error_codes::{CL_DEVICE_NOT_FOUND, CL_PLATFORM_NOT_FOUND_KHR, ClError};
use opencl3::platform::{Platform, get_platforms};
use opencl3::types::{cl_device_id, cl_platform_id};
use parking_lot::Mutex;

use crate::error::name;
use crate::sys::{self, sys};

/// Not in every header: how many copies NVIDIA's cards carry out at once.
const CL_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT_NV: u32 = 0x4007;
/// Not in every header: the domain that belongs to `CL_DEVICE_PCI_BUS_ID_NV`.
const CL_DEVICE_PCI_DOMAIN_ID_NV: u32 = 0x400A;

/// A device that a driver reports, not yet opened.
///
/// ```
/// for found in backend_opencl::devices() {
///     assert!(!found.info().identity.is_empty());
///     println!("{} on {}", found.info(), found.platform());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Discovered {
    info: DeviceInfo,
    platform: String,
    pub(crate) handles: Handles,
    pub(crate) traits: Traits,
}

/// The driver's names for a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handles {
    pub platform: cl_platform_id,
    pub device: cl_device_id,
}

// SAFETY: platforms and root devices live as long as the process and can be used from any thread.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

/// What decides how kernels are built and run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    pub compute_units: u32,
    pub max_group: usize,
    /// Kernels can work on host memory that the program reads at the same time.
    pub shares_fine_grained: bool,
    /// Whether the driver has NVIDIA's `cl_nv_create_buffer`.
    pub has_host_buffers_nv: bool,
    /// Whether quotients of `f32` are rounded correctly if the compiler is told to.
    pub rounds_quotients: bool,
    /// Whether subnormal `f32` are not taken for zeroes.
    pub keeps_subnormals: bool,
    /// Whether the device says how much memory is free.
    pub tells_free_memory: bool,
}

impl Discovered {
    /// What is known of the device.
    ///
    /// ```
    /// for found in backend_opencl::devices() {
    ///     assert_eq!(found.info().backend, "opencl");
    ///     println!("{}: {} MiB", found.info().name, found.info().total_bytes >> 20);
    /// }
    /// ```
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The name of the platform (the driver) that reports it.
    ///
    /// ```
    /// use backend_opencl::{devices, devices_matching};
    /// for found in devices() {
    ///     let of_the_same_driver = devices_matching(found.platform());
    ///     assert!(of_the_same_driver.iter().any(|other| other.info() == found.info()));
    /// }
    /// ```
    #[must_use]
    pub fn platform(&self) -> &str {
        &self.platform
    }
}

/// All devices of all platforms, in the order in which the drivers report them.
///
/// Empty where there is no OpenCL loader, no driver or no device; one that answers with errors is left out ([`survey`]
/// says why). One
/// card may show up several times, through several platforms or also in another backend: compare
/// [`identity`](DeviceInfo::identity) and [`aliases`](DeviceInfo::aliases).
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

/// As [`devices`], and why there are none, or not all.
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
    // Seen with PoCL 3.1: a thread that asks while another one's first question is being answered is told that there
    // are no devices.
    static ASKING: Mutex<()> = Mutex::new(());
    let _asking = ASKING.lock();
    let (mut found, mut absences) = (Vec::new(), sys::absences().to_vec());
    if sys().is_err() {
        return (found, absences);
    }
    let mut absent = |kind, reason: String| absences.push(Absence::new("opencl", kind, reason));
    let platforms = match get_platforms().map_err(|error| error.0) {
        Ok(platforms) if !platforms.is_empty() => platforms,
        Ok(_) | Err(CL_PLATFORM_NOT_FOUND_KHR) => {
            let listed = listed_drivers().join(", ");
            if listed.is_empty() {
                let reason = "the OpenCL loader finds no driver; install that of the device".into();
                absent(AbsenceKind::NoDevices, reason);
            } else {
                let reason = format!("drivers are listed that do not load ({listed}); install them anew");
                absent(AbsenceKind::Unusable, reason);
            }
            Vec::new()
        }
        Err(code) => {
            let reason = format!("the OpenCL loader names no drivers: {}; install it anew", name(code));
            absent(AbsenceKind::Unusable, reason);
            Vec::new()
        }
    };
    for platform in platforms {
        let platform_name = platform.name().unwrap_or_default();
        let devices = platform.get_devices(CL_DEVICE_TYPE_ALL).unwrap_or_else(|error| {
            let (kind, said) = match error.0 {
                CL_DEVICE_NOT_FOUND => (AbsenceKind::NoDevices, "knows no device".to_owned()),
                code => (AbsenceKind::Unusable, format!("does not name its devices: {}", name(code))),
            };
            let advice = "look at the device's driver and at the rights of this user to use it";
            absent(kind, format!("the driver {platform_name} {said}; {advice}"));
            Vec::new()
        });
        // Those have fixed functions only.
        let is_custom = |device: &cl_device_id| {
            ClDevice::new(*device).dev_type().is_ok_and(|sort| sort & CL_DEVICE_TYPE_CUSTOM != 0)
        };
        for device in devices.into_iter().filter(|device| !is_custom(device)) {
            match describe(&platform, device, found.len()) {
                Ok(discovered) => found.push(discovered),
                Err(lacks) => absent(
                    AbsenceKind::Unusable,
                    format!("a device of the driver {platform_name} {lacks}; look at its driver"),
                ),
            }
        }
    }
    (found, absences)
}

/// The files in which drivers make themselves known to the loader.
fn listed_drivers() -> Vec<String> {
    let folder = std::env::var_os("OCL_ICD_VENDORS").unwrap_or_else(|| "/etc/OpenCL/vendors".into());
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let drivers = files.filter(|file| file.extension().is_some_and(|extension| extension == "icd"));
    drivers.map(|file| file.display().to_string()).collect()
}

/// The devices that `filter` names: by index in [`devices`], or by a part of their name, identity or platform, in any
/// case. An empty filter names all.
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

/// # Errors
/// What the device lacks.
fn describe(platform: &Platform, id: cl_device_id, index: usize) -> Result<Discovered, String> {
    let device = ClDevice::new(id);
    let unanswered = |error: ClError| format!("does not answer: {}", name(error.0));
    if !device.available().map_err(unanswered)? {
        return Err("is not available".into());
    }
    if !device.compiler_available().map_err(unanswered)? {
        return Err("has no compiler".into());
    }
    let sort = device.dev_type().map_err(unanswered)?;
    let extensions = device.extensions().unwrap_or_default();
    let has = |name: &str| extensions.split_whitespace().any(|known| known == name);
    let nvidia = has("cl_nv_device_attribute_query");
    let amd = has("cl_amd_device_attribute_query");
    let shares_memory = device.host_unified_memory().unwrap_or(false)
        || (nvidia && query::<u32>(id, CL_DEVICE_INTEGRATED_MEMORY_NV).unwrap_or(0) != 0);
    let kind = if sort & CL_DEVICE_TYPE_CPU != 0 {
        DeviceKind::Cpu
    } else if shares_memory {
        DeviceKind::IntegratedGpu
    } else {
        DeviceKind::DiscreteGpu
    };

    let pci = pci_address(id, has("cl_khr_pci_bus_info"), nvidia, amd);
    let uuid =
        if has("cl_khr_device_uuid") { device.uuid_khr().ok().map(|bytes| uuid_text(&bytes)) } else { None };
    let mut names: Vec<String> = Vec::new();
    names.extend(pci.as_ref().map(|address| format!("pci:{address}")));
    names.extend(uuid);
    if names.is_empty() {
        names.push(format!("opencl:{index}"));
    }
    let identity = names.remove(0);

    let total = device.global_mem_size().map_err(unanswered)?;
    let largest = device.max_mem_alloc_size().map_err(unanswered)?.min(total);
    if largest == 0 {
        return Err("has no memory".into());
    }
    let device_name = device.name().map_err(unanswered)?;
    let mut info = DeviceInfo::new("opencl", device_name.trim(), kind, &identity).with_total_bytes(total);
    info.aliases = names;
    info.vendor = device.vendor().unwrap_or_default().trim().to_owned();
    info.largest_allocation_bytes = largest;
    info.driver = device.driver_version().unwrap_or_default().trim().to_owned();
    info.numa_node = pci.as_deref().and_then(numa_node);
    if nvidia && let Some(engines) = query::<u32>(id, CL_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT_NV) {
        info.copy_engines = engines.max(1);
    }

    let shared = query::<u64>(id, CL_DEVICE_SVM_CAPABILITIES).unwrap_or(0);
    let single = device.single_fp_config().unwrap_or(0);
    Ok(Discovered {
        info,
        platform: platform.name().unwrap_or_default().trim().to_owned(),
        handles: Handles { platform: platform.id(), device: id },
        traits: Traits {
            compute_units: device.max_compute_units().unwrap_or(1).max(1),
            max_group: device.max_work_group_size().unwrap_or(1).max(1),
            shares_fine_grained: shares_memory && shared & CL_DEVICE_SVM_FINE_GRAIN_BUFFER != 0,
            has_host_buffers_nv: has("cl_nv_create_buffer"),
            rounds_quotients: single & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0,
            keeps_subnormals: single & CL_FP_DENORM != 0,
            tells_free_memory: amd,
        },
    })
}

/// One plain number or structure; `None` if the driver does not know it or gives another length.
fn query<T: Copy + Default>(device: cl_device_id, name: u32) -> Option<T> {
    let mut value = T::default();
    let mut written = 0;
    let function = sys().ok()?.clGetDeviceInfo;
    // SAFETY: the driver writes at most `size_of::<T>()` bytes to `value`; all our `T` are plain integers.
    let status =
        unsafe { function(device, name, size_of::<T>(), (&raw mut value).cast::<c_void>(), &mut written) };
    (status == 0 && written == size_of::<T>()).then_some(value)
}

/// What AMD's driver, the only one that tells, reports as free, in bytes.
pub(crate) fn free_bytes(handles: Handles, traits: Traits) -> Option<u64> {
    if !traits.tells_free_memory {
        return None;
    }
    // All free memory, and the largest free block.
    let [free, _] = query::<[usize; 2]>(handles.device, CL_DEVICE_GLOBAL_FREE_MEMORY_AMD)?;
    Some(free as u64 * 1024)
}

/// The address as `dddd:bb:dd.f`.
fn pci_address(device: cl_device_id, khronos: bool, nvidia: bool, amd: bool) -> Option<String> {
    let text = |domain: u32, bus: u32, slot: u32, function: u32| {
        format!("{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
    };
    if khronos
        && let Some([domain, bus, slot, function]) = query::<[u32; 4]>(device, CL_DEVICE_PCI_BUS_INFO_KHR)
    {
        return Some(text(domain, bus, slot, function));
    }
    if nvidia && let Some(bus) = query::<u32>(device, CL_DEVICE_PCI_BUS_ID_NV) {
        // Slot and function share one number, as in the kernel's `devfn`.
        let slot = query::<u32>(device, CL_DEVICE_PCI_SLOT_ID_NV).unwrap_or(0);
        let domain = query::<u32>(device, CL_DEVICE_PCI_DOMAIN_ID_NV).unwrap_or(0);
        return Some(text(domain, bus, slot >> 3, slot & 7));
    }
    // A tagged union of 24 bytes, whose last three are bus, device and function.
    if amd && let Some(topology) = query::<[u8; 24]>(device, CL_DEVICE_TOPOLOGY_AMD) {
        return Some(text(0, topology[21].into(), topology[22].into(), topology[23].into()));
    }
    None
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex =
        |range: std::ops::Range<usize>| bytes[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("uuid:{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

#[cfg(target_os = "linux")]
fn numa_node(address: &str) -> Option<u32> {
    let node = std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node")).ok()?;
    // The kernel says -1 where it does not know.
    node.trim().parse::<u32>().ok()
}

#[cfg(not(target_os = "linux"))]
fn numa_node(_address: &str) -> Option<u32> {
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

    #[test]
    fn uuids_are_written_as_usual() {
        let bytes = std::array::from_fn(|i| i as u8 * 0x11);
        assert_eq!(uuid_text(&bytes), "uuid:00112233-4455-6677-8899-aabbccddeeff");
    }
}
