//! Log messages of the engine. Without the feature `tracing`, important messages go to standard error.

/// The cache cannot get more memory and stays shorter than requested.
pub fn cache_is_small(bytes: u64, error: &crate::error::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(bytes, %error, "the cache cannot get more memory and keeps its size");
    #[cfg(not(feature = "tracing"))]
    say_once("a cache cannot get more memory", || {
        format!(" and stays at {}: {error}", backend_api::readable_bytes(bytes))
    });
}

/// Page-locked memory was refused; the cache uses pageable memory.
pub fn pin_refused(error: &backend_api::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%error, "page-locking was refused: copies go through pageable memory and are slower");
    #[cfg(not(feature = "tracing"))]
    say_once("page-locking was refused, so copies go through pageable memory and are slower", || {
        format!(": {error}")
    });
}

/// A read-ahead failed.
pub fn read_ahead_failed(error: &crate::error::Error) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%error, "read-ahead failed; the access itself reports the error");
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// The program's executor has a waker that panics.
pub fn waker_panicked() {
    #[cfg(feature = "tracing")]
    tracing::error!("a waker panicked, so its task may never be polled again");
}

/// A link between devices delivered wrong bytes.
pub fn link_broken(from: &backend_api::DeviceInfo, to: &backend_api::DeviceInfo) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%from, %to, "a link between devices corrupts data: copies go through the host");
    #[cfg(not(feature = "tracing"))]
    eprintln!("vmarray: the link from {from} to {to} corrupts data: copies go through the host");
}

/// A link between devices could not be tested, so it is not used for now.
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

/// Reports a text to the operator once, even if it recurs with other details. A crate without its own feature
/// `tracing` calls this, whether this crate has the feature or not.
pub fn say_once(what: &str, details: impl FnOnce() -> String) {
    static SAID: parking_lot::Mutex<Vec<String>> = parking_lot::Mutex::new(Vec::new());
    let mut said = SAID.lock();
    if !said.iter().any(|known| known == what) {
        eprintln!("vmarray: {what}{}", details());
        said.push(what.to_owned());
    }
}
