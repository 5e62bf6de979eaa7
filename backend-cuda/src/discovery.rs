//! Discovery of NVIDIA GPUs: lists the GPUs of this machine with their properties.

use std::ffi::{CStr, c_char, c_int};

use backend_api::{
    Absence, AbsenceKind, CardHealth, CodeLanguage, DeviceInfo, DeviceKind, MemoryStatus, Result, numa_node,
};
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use vmarray_support::backends::identity;

use crate::CudaOptions;
use crate::context::CudaContext;
use crate::driver::{Driver, DriverResult, check, driver};
use crate::nvml;

/// Description of a GPU that the driver reports.
///
/// ```
/// // Cards that can spare enough memory, best equipped first.
/// let mut cards = backend_cuda::devices();
/// cards.retain(|card| !card.drives_display && card.info.total_bytes >= 8 << 30);
/// cards.sort_by_key(|card| std::cmp::Reverse(card.multiprocessors));
/// for card in cards {
///     let status = card.memory()?;
///     assert!(card.compute_capability >= (3, 0) && status.usable_bytes <= status.free_bytes);
/// }
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Card {
    /// The GPU's index in the driver, the argument of [`CudaDevice::open`](crate::CudaDevice::open). The
    /// index may change from run to run; [`DeviceInfo::identity`] does not.
    pub index: u32,
    /// Name, identity, memory and features of the GPU.
    pub info: DeviceInfo,
    /// The compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// True if the GPU drives a display; the driver then limits the run time of kernels.
    pub drives_display: bool,
}

/// Returns all GPUs, in the driver's order; empty without a driver or a GPU. Never panics.
///
/// The first call loads the driver, which takes up to some tenths of a second. A GPU that the driver
/// cannot describe is omitted: [`survey`] returns the reason.
///
/// ```
/// for card in backend_cuda::devices() {
///     println!("{}: {}, {} GiB", card.index, card.info, card.info.total_bytes >> 30);
/// }
/// ```
#[must_use]
pub fn devices() -> Vec<Card> {
    survey().0
}

/// Returns all GPUs as [`devices`] does, and the reasons why other GPUs are missing.
///
/// ```
/// let (cards, absences) = backend_cuda::survey();
/// assert!(!cards.is_empty() || !absences.is_empty());
/// for absence in absences {
///     println!("{absence}");
/// }
/// ```
#[must_use]
pub fn survey() -> (Vec<Card>, Vec<Absence>) {
    match driver() {
        Ok(driver) => survey_of(driver),
        Err(missing) => (Vec::new(), vec![missing.absence()]),
    }
}

fn survey_of(driver: &Driver) -> (Vec<Card>, Vec<Absence>) {
    let unusable = |what: &str, code| {
        let reason = format!("the CUDA driver does not {what}: {code:?}; check the output of `nvidia-smi`");
        Absence::new("cuda", AbsenceKind::Unusable, reason)
    };
    let mut count = 0;
    // SAFETY: writes one integer.
    if let Err(code) = check(unsafe { (driver.table.device_get_count)(&raw mut count) }) {
        return (Vec::new(), vec![unusable("count its devices", code)]);
    }
    let (mut cards, mut absences) = (Vec::new(), Vec::new());
    for ordinal in 0..count {
        match Card::describe(driver, ordinal) {
            Ok(card) => cards.push(card),
            Err(code) => absences.push(unusable(&format!("describe device {ordinal}"), code)),
        }
    }
    if cards.is_empty() && absences.is_empty() {
        let reason =
            "the CUDA driver finds no GPU; if there is one, check CUDA_VISIBLE_DEVICES and `nvidia-smi`";
        absences.push(Absence::new("cuda", AbsenceKind::NoDevices, reason));
    }
    (cards, absences)
}

impl Card {
    /// Returns the GPU's memory now: total, free, and usable (free memory less the default head-room).
    ///
    /// The driver reports the memory only in a context. If the process has no context on this GPU yet, the
    /// call creates the primary one temporarily. That takes some tenths of a second and some hundred
    /// megabytes of GPU memory.
    ///
    /// # Errors
    /// The driver's error.
    pub fn memory(&self) -> Result<MemoryStatus> {
        const OPERATION: &str = "memory";
        let driver = driver().map_err(|missing| missing.error(OPERATION))?;
        let (free, total) = CudaContext::primary(driver, self.ordinal())
            .and_then(|context| context.memory())
            .map_err(|code| code.error(OPERATION).on(&self.info))?;
        let headroom = CudaOptions::default_headroom_bytes(total, self.drives_display);
        Ok(MemoryStatus::new(total, free, free.saturating_sub(headroom)))
    }

    /// Returns the GPU's current counters of memory errors, from the driver's library NVML
    /// (`libnvidia-ml.so.1`, `nvml.dll`), which the first call loads. Values that NVML does not report are
    /// unknown. An instance of a partitioned GPU (MIG) reports for the whole GPU.
    ///
    /// ```
    /// for card in backend_cuda::devices() {
    ///     println!("{}: {}", card.info, card.health());
    /// }
    /// ```
    #[must_use]
    pub fn health(&self) -> CardHealth {
        let mut names = std::iter::once(&self.info.identity).chain(&self.info.aliases);
        names.find_map(|name| name.strip_prefix("pci:")).map(nvml::health).unwrap_or_default()
    }

    fn ordinal(&self) -> c_int {
        // The index came from a `c_int`, so the cast is exact.
        self.index as c_int
    }

    /// Queries all properties of a GPU that need no context.
    pub(crate) fn describe(driver: &Driver, ordinal: c_int) -> DriverResult<Self> {
        let mut device = 0;
        // SAFETY: writes one integer; the driver answers a wrong ordinal with an error.
        check(unsafe { (driver.table.device_get)(&raw mut device, ordinal) })?;
        let attribute = |which: Attribute| -> u32 {
            let mut value: c_int = 0;
            // SAFETY: writes one integer; the driver answers an unknown attribute with an error.
            let result =
                unsafe { (driver.table.device_get_attribute)(&raw mut value, which as c_int, device) };
            if result == 0 { value.max(0).unsigned_abs() } else { 0 }
        };
        let name = text::<256>(|buffer, room| {
            // SAFETY: writes at most `room` bytes with a NUL at the end.
            unsafe { (driver.table.device_get_name)(buffer, room, device) }
        })?;
        let pci = text::<64>(|buffer, room| {
            // SAFETY: as above.
            unsafe { (driver.table.device_get_pci_bus_id)(buffer, room, device) }
        })
        .ok()
        .map(|address| address.to_ascii_lowercase());
        let mut bytes = 0_usize;
        // SAFETY: writes one integer.
        check(unsafe { (driver.table.device_total_mem)(&raw mut bytes, device) })?;
        let uuid = uuid(driver, device);

        let (identity, aliases) = identity(pci.as_deref(), uuid.as_ref(), format!("cuda:{ordinal}"));
        let kind = if attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED) != 0 {
            DeviceKind::IntegratedGpu
        } else {
            DeviceKind::DiscreteGpu
        };
        let mut info = DeviceInfo::new("cuda", &name, kind, &identity).with_total_bytes(bytes as u64);
        info.vendor = "NVIDIA".into();
        info.aliases = aliases;
        info.copy_engines = attribute(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT).max(1);
        info.numa_node = pci.as_deref().and_then(numa_node);
        info.driver = driver.version_text();
        info.code_language = Some(CodeLanguage::Ptx);
        info.forward_progress = true;
        Ok(Self {
            index: ordinal.unsigned_abs(),
            info,
            compute_capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).max(1),
            drives_display: attribute(Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT) != 0,
        })
    }
}

fn text<const ROOM: usize>(ask: impl FnOnce(*mut c_char, c_int) -> u32) -> DriverResult<String> {
    let mut buffer = [0_u8; ROOM];
    // Pass one byte less than the buffer's length, so the buffer's last byte stays zero and ends the text.
    check(ask(buffer.as_mut_ptr().cast(), ROOM as c_int - 1))?;
    Ok(CStr::from_bytes_until_nul(&buffer)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default())
}

fn uuid(driver: &Driver, device: c_int) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    // Prefer the newer function, because it distinguishes the instances of a partitioned GPU (MIG).
    let ask = driver.table.device_get_uuid_v2.unwrap_or(driver.table.device_get_uuid);
    // SAFETY: writes 16 bytes.
    check(unsafe { ask(&raw mut bytes, device) }).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_driver_or_no_card_is_an_empty_list_and_an_error_to_open() {
        let cards = devices();
        if driver().is_err() {
            assert!(cards.is_empty());
            assert_eq!(crate::CudaDevice::open(0).unwrap_err().kind(), backend_api::ErrorKind::Driver);
        }
        let missing = u32::try_from(cards.len()).unwrap();
        assert!(crate::CudaDevice::open(missing).is_err());
    }

    /// Creates a driver some of whose functions fail with a code.
    fn failing(change: impl FnOnce(&mut crate::driver::Table)) -> Driver {
        let mut table = crate::driver::Table::inert();
        change(&mut table);
        Driver::with(table)
    }

    /// Returns the absence for a driver whose initialisation fails with `CODE`.
    fn refused<const CODE: u32>() -> Absence {
        unsafe extern "C" fn init<const CODE: u32>(_: u32) -> u32 {
            CODE
        }
        failing(|table| table.init = init::<CODE>).started().unwrap_err().absence()
    }

    #[test]
    fn a_driver_that_does_not_start_is_unusable_for_a_reason() {
        let stub = refused::<34>();
        assert!(stub.kind == AbsenceKind::Unusable && stub.reason.contains("LD_LIBRARY_PATH"), "{stub}");
        let other = refused::<803>();
        assert!(
            other.kind == AbsenceKind::Unusable && other.reason.contains("CUDA_ERROR_803 (803)"),
            "{other}"
        );
        let none = refused::<100>();
        assert!(
            none.kind == AbsenceKind::NoDevices && none.reason.contains("CUDA_VISIBLE_DEVICES"),
            "{none}"
        );
        assert!(failing(|_| ()).started().is_ok());
    }

    #[test]
    fn a_driver_that_lists_no_devices_is_unusable() {
        unsafe extern "C" fn unknown(_: *mut c_int) -> u32 {
            999
        }
        unsafe extern "C" fn two(count: *mut c_int) -> u32 {
            // SAFETY: the caller gives room for an integer.
            unsafe { count.write(2) };
            0
        }
        unsafe extern "C" fn first_alone(device: *mut c_int, ordinal: c_int) -> u32 {
            // SAFETY: as above.
            unsafe { device.write(ordinal) };
            if ordinal == 0 { 0 } else { 999 }
        }
        let (cards, absences) = survey_of(&failing(|table| table.device_get_count = unknown));
        assert!(cards.is_empty() && absences[0].reason.contains("count its devices"), "{absences:?}");
        let (cards, absences) = survey_of(&failing(|_| ()));
        assert!(cards.is_empty() && absences[0].kind == AbsenceKind::NoDevices, "{absences:?}");
        let (cards, absences) = survey_of(&failing(|table| {
            table.device_get_count = two;
            table.device_get = first_alone;
        }));
        assert_eq!((cards.len(), absences.len()), (1, 1), "{absences:?}");
        assert!(absences[0].reason.contains("device 1"), "{absences:?}");
    }
}
