//! The [`Profile`]s (speeds of devices) known in this process: measured, read from a file, or declared.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use backend_api::{Device, DeviceInfo, Routing};

use super::{Profile, probe, store};
use crate::base::error::Result;

#[derive(Debug, Default)]
struct Known {
    /// Profiles that the program has declared, by the device's identity.
    declared: HashMap<String, Profile>,
    /// Measured profiles, by [`key`].
    measured: HashMap<String, Profile>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, Known> {
    // Ignore that the mutex is poisoned: no code panics between changes of the value, so it is consistent.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns all properties of a device that affect a measurement, in one line.
fn key(info: &DeviceInfo) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let text =
        [&info.identity, &info.backend, &info.driver, &info.name].map(|part| part.replace(['\n', '\r'], " "));
    format!("{} / vmarray {version}", text.join(" / "))
}

impl Profile {
    /// Returns the profile of a device. If neither this process nor a file has the profile, the call measures
    /// the device for less than a second. From then on the device uses the copy routes of the profile.
    ///
    /// # Errors
    /// [`Device`](crate::ErrorKind::Device) if the device cannot allocate memory, or if a copy fails.
    pub fn of<D: Device>(device: &Arc<D>) -> Result<Self> {
        Self::of_device(&(Arc::clone(device) as Arc<dyn Device>))
    }

    pub(crate) fn of_device(device: &Arc<dyn Device>) -> Result<Self> {
        let info = device.info();
        if let Some(profile) = Self::known(info) {
            profile.apply(&**device);
            return Ok(profile);
        }
        let (key, kept) = (key(info), store::open(info));
        let profile = match kept.as_ref().and_then(|kept| kept.load(&key)) {
            Some(profile) => profile,
            None => {
                let start = Instant::now();
                let profile = probe::measure(device, &|| start.elapsed())?;
                if let Some(kept) = kept {
                    kept.keep(&key, &profile);
                }
                profile
            }
        };
        // If two threads measured the same device, use the result of the first.
        let profile = *known().measured.entry(key).or_insert(profile);
        profile.apply(&**device);
        Ok(profile)
    }

    /// Returns the profile of a device if this process knows it, without a measurement.
    #[must_use]
    pub fn known(info: &DeviceInfo) -> Option<Self> {
        let known = known();
        known.declared.get(&info.identity).or_else(|| known.measured.get(&key(info))).copied()
    }

    /// Declares this profile of the device with this identity, instead of a measurement. Arrays that the
    /// program builds later use this profile.
    pub fn remember(self, identity: &str) {
        known().declared.insert(identity.into(), self);
    }

    /// Removes the profile of a device from this process, and deletes its file. The device then uses the
    /// backend's default routes again.
    pub fn forget<D: Device>(device: &D) {
        let info = device.info();
        let key = key(info);
        let mut known = known();
        known.declared.remove(&info.identity);
        known.measured.remove(&key);
        drop(known);
        if let Some(kept) = store::open(info) {
            kept.delete(&key);
        }
        device.set_routing(Routing::new());
    }
}

/// Sets the copy routes of devices, if their profiles are known.
pub(crate) fn apply_known<D: Device + ?Sized>(devices: &[Arc<D>]) {
    for device in devices {
        if let Some(profile) = Profile::known(device.info()) {
            profile.apply(&**device);
        }
    }
}

/// Returns one page length in bytes for all devices: the longest of their best lengths. `otherwise` counts
/// for devices without a profile.
pub(crate) fn suited_page_bytes(devices: &[Arc<dyn Device>], otherwise: usize) -> usize {
    let suits = |device: &Arc<dyn Device>| {
        Profile::known(device.info()).map_or(otherwise, |profile| profile.page_bytes)
    };
    devices.iter().map(suits).max().unwrap_or(otherwise).max(1)
}
