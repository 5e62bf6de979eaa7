//! Log messages of the engine. Without the feature `tracing`, important messages go to standard error.

/// Logs that the cache cannot get `bytes` more bytes of memory, and stays shorter than requested.
pub fn cache_is_small(bytes: u64, error: &crate::error::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(bytes, %error, "the cache cannot get more memory and keeps its size");
    #[cfg(not(feature = "tracing"))]
    say_once("a cache cannot get more memory", || {
        format!(" and stays at {}: {error}", backend_api::readable_bytes(bytes))
    });
}

/// Logs that the system refused page-locked memory, so the cache uses pageable memory.
pub fn pin_refused(error: &backend_api::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "page-locking was refused: copies go through pageable memory and are slower");
    #[cfg(not(feature = "tracing"))]
    say_once("page-locking was refused, so copies go through pageable memory and are slower", || {
        format!(": {error}")
    });
}

/// Logs that a read-ahead failed. The program gets no error, because it has not requested these pages.
pub fn read_ahead_failed(error: &crate::error::Error) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%error, "read-ahead failed; the access itself reports the error");
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// Logs that a waker of the program's executor panicked.
pub fn waker_panicked() {
    #[cfg(feature = "tracing")]
    tracing::error!("a waker panicked, so its task may never be polled again");
}

/// Logs that copies between two devices delivered wrong bytes, so arrays do not use this link.
pub fn link_broken(from: &backend_api::DeviceInfo, to: &backend_api::DeviceInfo) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%from, %to, "a link between devices corrupts data: copies go through the host");
    #[cfg(not(feature = "tracing"))]
    eprintln!("vmarray: the link from {from} to {to} corrupts data: copies go through the host");
}

/// Logs that the link between two devices could not be tested, so arrays do not use it for now.
pub fn link_untried(
    from: &backend_api::DeviceInfo,
    to: &backend_api::DeviceInfo,
    error: &backend_api::Error,
) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%from, %to, %error, "a link between devices could not be tested");
    #[cfg(not(feature = "tracing"))]
    let _ = (from, to, error);
}

/// Logs a message once in the process, even if it recurs with other `details`. Crates without a feature
/// `tracing` of their own also call this function.
pub fn say_once(what: &str, details: impl FnOnce() -> String) {
    static SAID: parking_lot::Mutex<Vec<String>> = parking_lot::Mutex::new(Vec::new());
    let mut said = SAID.lock();
    if !said.iter().any(|known| known == what) {
        eprintln!("vmarray: {what}{}", details());
        said.push(what.to_owned());
    }
}
