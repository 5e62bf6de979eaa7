//! NVML, the NVIDIA library behind `nvidia-smi`: reads the error counters of a GPU's memory.
//!
//! The first query loads NVML from the folder of the driver's own library; it stays loaded. NVML can be
//! missing, refuse to start (as the stub of a toolkit does) or lack a function. The properties that need NVML
//! are then unknown, and GPUs still work.

use std::ffi::{CString, c_char, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use backend_api::CardHealth;
use libloading::Library;

use crate::driver;

#[cfg(windows)]
const NAMES: &[&str] = &["nvml.dll"];
#[cfg(not(windows))]
const NAMES: &[&str] = &["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// `NVML_MEMORY_ERROR_TYPE_UNCORRECTED`.
const UNCORRECTED: c_uint = 1;
/// `NVML_VOLATILE_ECC`: since the driver was loaded.
const LATELY: c_uint = 0;
/// `NVML_AGGREGATE_ECC`: since the card was made.
const EVER: c_uint = 1;

/// An `nvmlDevice_t`: NVML's handle of a GPU.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct CardHandle(*mut c_void);

driver::table! {
    required {
        init = "nvmlInit_v2" ();
        card_by_address = "nvmlDeviceGetHandleByPciBusId_v2" (*const c_char, *mut CardHandle);
    }
    optional {
        ecc_mode = "nvmlDeviceGetEccMode" (CardHandle, *mut c_uint, *mut c_uint);
        ecc_errors = "nvmlDeviceGetTotalEccErrors" (CardHandle, c_uint, c_uint, *mut u64);
        remapped_rows = "nvmlDeviceGetRemappedRows" (
            CardHandle, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint
        );
        retirement_pending = "nvmlDeviceGetRetiredPagesPendingStatus" (CardHandle, *mut c_uint);
    }
}

/// Returns the memory errors of the GPU at a PCI address; unknown values are `None`.
pub(crate) fn health(address: &str) -> CardHealth {
    static STARTED: OnceLock<Option<Table>> = OnceLock::new();
    STARTED.get_or_init(load).as_ref().map(|table| table.health(address)).unwrap_or_default()
}

fn load() -> Option<Table> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| driver::first_of(NAMES, driver::open).ok()).as_ref()?;
    Table::find(library).ok()?.started()
}

impl Table {
    /// Initialises the library.
    fn started(self) -> Option<Self> {
        // SAFETY: any thread may call it at any time.
        (unsafe { (self.init)() } == 0).then_some(self)
    }

    fn health(&self, address: &str) -> CardHealth {
        let mut health = CardHealth::default();
        let Ok(address) = CString::new(address) else { return health };
        let mut card = CardHandle(null_mut());
        // SAFETY: reads a string that ends with a zero, and writes one handle.
        if unsafe { (self.card_by_address)(address.as_ptr(), &raw mut card) } != 0 {
            return health;
        }
        if let Some(ask) = self.ecc_mode {
            let [mut now, mut later] = [0; 2];
            // SAFETY: the handle is the library's own; writes two integers.
            let code = unsafe { ask(card, &raw mut now, &raw mut later) };
            health.ecc = (code == 0).then_some(now != 0);
        }
        if let Some(ask) = self.ecc_errors {
            let errors = |since| {
                let mut errors = 0;
                // SAFETY: as above; writes one integer of 64 bits.
                let code = unsafe { ask(card, UNCORRECTED, since, &raw mut errors) };
                (code == 0).then_some(errors)
            };
            (health.uncorrected_errors, health.uncorrected_errors_lately) = (errors(EVER), errors(LATELY));
        }
        if let Some(ask) = self.remapped_rows {
            let [mut corrected, mut uncorrected, mut pending, mut failed] = [0; 4];
            // SAFETY: as above; writes four integers.
            let code = unsafe {
                ask(card, &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed)
            };
            if code == 0 {
                health.remapped_rows = Some(u64::from(corrected) + u64::from(uncorrected));
                (health.remap_pending, health.remap_failed) = (Some(pending != 0), Some(failed != 0));
            }
        }
        if let Some(ask) = self.retirement_pending {
            let mut pending = 0;
            // SAFETY: as above; writes one integer.
            let code = unsafe { ask(card, &raw mut pending) };
            health.retirement_pending = (code == 0).then_some(pending != 0);
        }
        health
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    const NOT_SUPPORTED: u32 = 3;
    const NO_LIBRARY: u32 = 12;
    const NOT_FOUND: u32 = 6;

    /// Knows one GPU.
    unsafe extern "C" fn card_by_address(address: *const c_char, card: *mut CardHandle) -> u32 {
        // SAFETY: the caller passes a string and room for a handle.
        unsafe {
            card.write(CardHandle(null_mut()));
            if CStr::from_ptr(address) == c"0000:81:00.0" { 0 } else { NOT_FOUND }
        }
    }

    unsafe extern "C" fn ecc_mode(_: CardHandle, now: *mut c_uint, later: *mut c_uint) -> u32 {
        // SAFETY: the caller provides room for two integers.
        unsafe {
            now.write(1);
            later.write(0);
        }
        0
    }

    unsafe extern "C" fn ecc_errors(_: CardHandle, kind: c_uint, since: c_uint, errors: *mut u64) -> u32 {
        assert_eq!(kind, UNCORRECTED);
        // SAFETY: the caller provides room for an integer.
        unsafe { errors.write(if since == EVER { 5 << 32 } else { 2 }) };
        0
    }

    unsafe extern "C" fn remapped_rows(
        _: CardHandle,
        corrected: *mut c_uint,
        uncorrected: *mut c_uint,
        pending: *mut c_uint,
        failed: *mut c_uint,
    ) -> u32 {
        // SAFETY: the caller provides room for four integers.
        unsafe {
            corrected.write(3);
            uncorrected.write(4);
            pending.write(1);
            failed.write(1);
        }
        0
    }

    unsafe extern "C" fn not_supported(_: CardHandle, pending: *mut c_uint) -> u32 {
        // SAFETY: the caller provides room for an integer.
        unsafe { pending.write(1) };
        NOT_SUPPORTED
    }

    fn table() -> Table {
        Table { card_by_address, ..Table::inert() }
    }

    #[test]
    fn nvml_answers_the_librarys_queries() {
        let table = Table {
            ecc_mode: Some(ecc_mode),
            ecc_errors: Some(ecc_errors),
            remapped_rows: Some(remapped_rows),
            retirement_pending: Some(not_supported),
            ..table()
        };
        let health = table.started().unwrap().health("0000:81:00.0");
        let mut expected = CardHealth::default();
        expected.ecc = Some(true);
        (expected.uncorrected_errors, expected.uncorrected_errors_lately) = (Some(5 << 32), Some(2));
        (expected.remapped_rows, expected.remap_pending, expected.remap_failed) =
            (Some(7), Some(true), Some(true));
        assert_eq!(health, expected, "what a card does not support is unknown");
        assert_eq!(table.health("0000:82:00.0"), CardHealth::default(), "another card");
        assert_eq!(table.health("0000\0"), CardHealth::default());
    }

    #[test]
    fn a_library_that_is_old_missing_or_a_stub_leaves_all_unknown() {
        let old = table().started().unwrap();
        assert_eq!(old.health("0000:81:00.0"), CardHealth::default());
        unsafe extern "C" fn stub() -> u32 {
            NO_LIBRARY
        }
        assert!(Table { init: stub, ..table() }.started().is_none());
        assert!(driver::first_of(&["libnvidia-ml.so.1-none"], driver::open).is_err());
    }

    #[test]
    fn the_library_of_this_machine_does_no_harm() {
        assert_eq!(health("no card"), CardHealth::default());
    }
}
