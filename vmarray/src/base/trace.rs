//! Log messages of arrays and of the search for devices, in addition to the engine's messages.

#[cfg(not(feature = "tracing"))]
use vmarray_engine::trace::say_once;
pub(crate) use vmarray_engine::trace::{cache_is_small, pin_refused, read_ahead_failed};

/// Logs that a device does not support a request, so an array does the work in RAM.
pub(crate) fn work_in_ram(refusal: &backend_api::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%refusal, "a device refused work, so RAM does it: elements are copied there and back");
    #[cfg(not(feature = "tracing"))]
    say_once("a device refused work, so RAM does it: elements are copied there and back", || {
        format!(": {refusal}")
    });
}

/// Logs that a device could not be opened, so arrays use other devices.
pub(crate) fn device_left_out(device: &backend_api::DeviceInfo, error: &backend_api::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%device, %error, "a device cannot be used");
    #[cfg(not(feature = "tracing"))]
    eprintln!("vmarray: {device} cannot be used: {error}");
}

/// Logs that a GPU reports faulty memory, so arrays do not use it.
pub(crate) fn card_left_out(device: &backend_api::DeviceInfo, reason: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%device, reason, "a GPU is not used");
    #[cfg(not(feature = "tracing"))]
    say_once(&format!("{device} is not used: {reason}"), String::new);
}

/// Logs that a filter of the program selects no device, so arrays use other devices.
pub(crate) fn filter_unmet(unmet: &crate::discovery::Unmet) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        filter = unmet.filter,
        reason = unmet.reason,
        "no device matches an entry of the device filter"
    );
    #[cfg(not(feature = "tracing"))]
    say_once(&unmet.to_string(), String::new);
}

/// Logs that arrays use host RAM for lack of a GPU, although a driver is installed, which does not work.
pub(crate) fn host_ram_instead(broken: &backend_api::Absence) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%broken, "host RAM is used, but an installed driver does not work");
    #[cfg(not(feature = "tracing"))]
    say_once(&format!("host RAM is used, but an installed driver does not work: {broken}"), String::new);
}

/// Logs that newer elements of a dropped source could not be copied from its devices to the program's memory.
pub(crate) fn not_brought_home(error: &crate::Error) {
    #[cfg(feature = "tracing")]
    tracing::error!(%error, "a source was dropped before its changed elements were copied back, so these \
                             changes are lost");
    #[cfg(not(feature = "tracing"))]
    eprintln!(
        "vmarray: a source was dropped before its changed elements were copied back, so these changes \
               are lost: {error}"
    );
}

/// Logs that statistics could not be published for other processes.
pub(crate) fn not_published(error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "statistics cannot be published");
    #[cfg(not(feature = "tracing"))]
    eprintln!("vmarray: statistics cannot be published: {error}");
}

/// Logs that a device's profile or compiled kernels could not be read from a file, or stored.
///
/// The error of a full disk or a missing home folder is harmless. If the library refuses the folder, another
/// user can write to files that the program would trust.
pub(crate) fn not_kept(what: &str, device: &backend_api::DeviceInfo, error: &std::io::Error) {
    let is_ours = error.raw_os_error().is_none();
    #[cfg(feature = "tracing")]
    if is_ours {
        tracing::warn!(%device, %error, "{what} of a device cannot be kept on disk");
    } else {
        tracing::debug!(%device, %error, "{what} of a device cannot be kept on disk");
    }
    #[cfg(not(feature = "tracing"))]
    if is_ours {
        eprintln!("vmarray: {what} of {device} cannot be kept on disk: {error}");
    }
}
