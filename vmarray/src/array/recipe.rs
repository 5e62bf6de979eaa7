//! The settings and devices of an array, to make another one like it.

use std::sync::Arc;

use backend_api::{Device, ErrorKind};
use parking_lot::Mutex;

use crate::array::settings::{Homes, OpenDevices, Settings};
use crate::base::error::Result;
use crate::setup::open_devices::in_ram;
use crate::setup::placement::Placement;

/// Settings and devices of an array, to make another one like it.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(super) settings: Settings,
    /// None for an array whose devices can hold no other one.
    devices: Mutex<Option<Vec<Arc<dyn Device>>>>,
    /// The device of each channel, also of channels that the array is too short for.
    stripe_pattern: Vec<usize>,
    /// Maximal length of a growing array, and true if only its devices limit it.
    growth: Option<(usize, bool)>,
}

impl Recipe {
    pub(crate) fn of(settings: &Settings, homes: &Homes) -> Self {
        let devices = (!homes.is_exclusive).then(|| homes.open.devices.clone());
        let grows = devices.is_some() && homes.max_len > homes.len;
        let mut settings = settings.clone();
        settings.published = None;
        if homes.is_exclusive {
            settings.common.placement = Placement::Equal;
        }
        #[cfg(feature = "host")]
        {
            settings.tier = None;
        }
        Self {
            settings,
            devices: Mutex::new(devices),
            stripe_pattern: homes.stripe_pattern.clone(),
            growth: grows.then_some((homes.max_len, homes.is_open)),
        }
    }

    /// Notes that the channels are on these devices now.
    pub(crate) fn move_to(&self, devices: &[Arc<dyn Device>]) {
        *self.devices.lock() = Some(devices.to_vec());
    }

    /// Notes that a spare has taken the place of a lost device.
    pub(crate) fn replace_lost(&self, spare: &Arc<dyn Device>) {
        let is_lost =
            |device: &Arc<dyn Device>| device.memory().is_err_and(|error| error.kind() == ErrorKind::Lost);
        let mut devices = self.devices.lock();
        if let Some(lost) = devices.as_mut().and_then(|list| list.iter_mut().find(|one| is_lost(one))) {
            *lost = Arc::clone(spare);
        }
    }

    pub(super) fn homes(&self, page_len: usize, page_bytes: usize, len: usize) -> Result<Homes> {
        let devices = self.devices.lock().clone();
        let devices = match devices {
            Some(devices) => devices,
            None => vec![in_ram()?],
        };
        let pairs = self.settings.common.placement.mirrored_pairs(devices.len())?;
        let stripe_pattern = match &pairs {
            Some(pairs) => (0..pairs.len()).collect(),
            // After a move, the channels may be on fewer devices.
            None => self.stripe_pattern.iter().map(|turn| turn % devices.len()).collect(),
        };
        let (max_len, is_open) = self.growth.unwrap_or_default();
        let open = OpenDevices::of(devices, &self.settings.common)?;
        let pages = |len: usize| len.div_ceil(page_len) as u64;
        Ok(Homes {
            pages_most: open.pages_most(pages(max_len), page_bytes as u64).max(pages(len)),
            open,
            len,
            max_len: max_len.max(len),
            is_open,
            page_len,
            stripe_pattern,
            pairs,
            is_exclusive: false,
        })
    }
}
