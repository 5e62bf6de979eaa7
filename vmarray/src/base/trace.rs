//! Log messages of arrays and of the search for devices, in addition to the engine's messages.

#[cfg(not(feature = "tracing"))]
use vmarray_engine::trace::say_once;
pub(crate) use vmarray_engine::trace::{cache_is_small, pin_refused, read_ahead_failed};

/// A device does not support a request, so an array does the work in RAM.
pub(crate) fn work_in_ram(refusal: &backend_api::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%refusal, "a device refused work, so RAM does it: elements are copied there and back");
    #[cfg(not(feature = "tracing"))]
    say_once("a device refused work, so RAM does it: elements are copied there and back", || {
        format!(": {refusal}")
    });
}

/// A device that was found could not be opened; other devices are used.
pub(crate) fn device_left_out(device: &backend_api::DeviceInfo, error: &backend_api::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%device, %error, "a device cannot be used");
    #[cfg(not(feature = "tracing"))]
    eprintln!("vmarray: {device} cannot be used: {error}");
}

/// A GPU reports faulty memory; it is not used.
pub(crate) fn card_left_out(device: &backend_api::DeviceInfo, reason: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%device, reason, "a GPU is not used");
    #[cfg(not(feature = "tracing"))]
    say_once(&format!("{device} is not used: {reason}"), String::new);
}

/// No device was found for a request; other devices are used.
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

/// Host RAM is used for lack of a GPU, but a driver is broken.
pub(crate) fn host_ram_instead(broken: &backend_api::Absence) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%broken, "host RAM is used, but an installed driver does not work");
    #[cfg(not(feature = "tracing"))]
    say_once(&format!("host RAM is used, but an installed driver does not work: {broken}"), String::new);
}

/// A source was dropped whose devices had newer elements that could not be copied back.
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

/// Statistics could not be published for other processes.
pub(crate) fn not_published(error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "statistics cannot be published");
    #[cfg(not(feature = "tracing"))]
    eprintln!("vmarray: statistics cannot be published: {error}");
}

/// A device's profile or its built kernels could not be read from a file, or cannot be stored for the next
/// process.
///
/// A refusal of the system (no home, a full disk) is harmless. A refusal of this library is not: another
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
