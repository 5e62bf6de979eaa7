//! [`Placement`]: decides the share of an array's pages that each device stores.

mod shares;
mod stripe_pattern;

use std::sync::Arc;

use backend_api::{Device, DeviceKind};

use crate::base::error::{ErrorKind, Result};
use crate::setup::profile::{Direction, Profile};
use shares::{CHANNELS_MAX, Demand, by_capacity, channels_shared};
use stripe_pattern::stripe_pattern;

/// The distribution of an array's pages over its devices.
///
/// The part of the pages on a device is measured in *channels*, equal shares of the array. With `K` channels
/// over all devices, page `p` is on channel `p % K`. The channels of different devices alternate. A device
/// with twice the channels therefore has twice the pages, and consecutive pages are spread over the devices
/// in this ratio.
///
/// An array with fewer pages than channels uses only the first channels of the sequence, one for each page.
/// The shares are then approximate, and a device without a channel gets no page.
///
/// # Choosing a placement
///
/// For work on the devices, such as kernels and searches, use
/// [`Bandwidth(Direction::OnDevice)`](Direction::OnDevice): a call over the whole array ends at about the
/// same time on each device. A device that would get less than 1/32 of the work gets no page. For copies to
/// and from the host, which the bus limits, use the other directions.
///
/// A copy of many consecutive pages takes as long as the slowest device needs for its share. An example is an
/// array of 5 GB on three GPUs: one of 11 GB behind a PCIe lane (0.8 GB/s), and two of 8 GB and 2 GB behind
/// four lanes each (3.2 GB/s):
///
/// | placement | channels | bytes on each GPU | all together |
/// |---|---|---|---|
/// | `Equal` | 1, 1, 1 | 1.67, 1.67, 1.67 GB | 2.4 GB/s |
/// | `Capacity` | 16, 12, 3 | 2.58, 1.94, 0.48 GB | 1.55 GB/s |
/// | `Bandwidth(Both)` | 1, 4, 4 | 0.56, 2.22, 2.22 GB | does not fit: 2.22 of 2 GB |
/// | `Balanced(Both)` | 1, 4, 3 | 0.62, 2.50, 1.88 GB | 6.4 GB/s |
///
/// ```
/// use vmarray::{Placement, host::HostDevice, prelude::*};
/// use std::sync::Arc;
/// let device = Arc::new(HostDevice::new(4 << 20)?);
/// let builder = VirtualArray::<u32>::builder(1 << 20).devices([device]);
/// let array = builder.placement(Placement::Ratios(vec![3])).build()?;
/// assert_eq!(array.stats().channels.len(), 3);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Placement {
    /// The same number of channels for every device.
    #[default]
    Equal,
    /// The given number of channels for each device. Zero excludes a device.
    ///
    /// An array can have 65536 channels; a few channels for each device are enough. Larger numbers, such as
    /// sizes in bytes, are reduced to lowest terms; building fails with
    /// [`TooManyChannels`](crate::ErrorKind::TooManyChannels) if the sum is still too large.
    Ratios(Vec<u32>),
    /// Channels in proportion to the available memory of each device, which allows the longest arrays.
    ///
    /// Shares are rounded down to whole channels, about 32 in all, or 8 for each device if that is more. A
    /// device with less memory than one channel needs gets no pages, because it would fill up first and limit
    /// the array.
    Capacity,
    /// Channels in proportion to the [measured](crate::profile::Profile) bandwidth of each device, regardless
    /// of their memory: [`build`](crate::Builder::build) returns [`DoesNotFit`](crate::ErrorKind::DoesNotFit)
    /// if a device has too little.
    Bandwidth(Direction),
    /// Channels that give the highest measured bandwidth of all devices together, among the distributions
    /// that fit the memory of each device.
    Balanced(Direction),
    /// Each page is on two devices, so the loss of one device loses no data.
    ///
    /// Pages are striped over pairs of devices: first and second, second and third, and so on, last and
    /// first. Each device is in two pairs, with equal shares, so the array takes twice its length in device
    /// memory. Write-backs go to both devices of a page and complete when both have the data; reads come from
    /// the less busy device. Device-side work that writes runs on both devices, or its result is copied to
    /// the second.
    ///
    /// After a loss, the other device of each pair continues; the loss of a second device may lose pages.
    /// [`homes`](crate::VirtualArray::homes) reports this, and [`rebuild`](crate::VirtualArray::rebuild)
    /// installs a spare while the array is in use. Not for a [`Source`](crate::Source), whose home is in RAM.
    ///
    /// Each pair is a [`Mirrored`](crate::redundancy::Mirrored) device. Its documentation lists the work that
    /// is repeated or copied, and the results that may differ between devices of different kinds.
    Mirrored,
}

/// Channels of each device with equal shares. The engine batches only copies of one channel, so a small
/// number is best: on an H200 with 16 threads, scans in place ran at 51 GB/s with one channel, 47 with two,
/// and 39 with four.
const EQUAL_CHANNELS: u32 = 1;

/// Checks that each device has the requested bytes of memory.
pub(crate) fn expect_room(devices: &[Arc<dyn Device>], asked: &[u64], usable: &[u64]) -> Result<()> {
    let Some(number) = (0..devices.len()).find(|&number| asked[number] > usable[number]) else {
        return Ok(());
    };
    let info = devices[number].info();
    let kind = ErrorKind::DoesNotFit {
        // For a file, show its path, which is the device's name and identifies it.
        device: if info.kind == DeviceKind::File { info.name.clone() } else { info.to_string() },
        asked_bytes: asked[number],
        usable_bytes: usable[number],
        all_asked_bytes: asked.iter().sum(),
        all_usable_bytes: usable.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
    };
    Err(kind.into())
}

impl Placement {
    /// Measures devices that have no profile, if the placement needs the bandwidth.
    pub(crate) fn measure(&self, devices: &[Arc<dyn Device>]) -> Result<()> {
        if self.direction().is_none() {
            return Ok(());
        }
        devices.iter().try_for_each(|device| Profile::of_device(device).map(drop))
    }

    /// Returns the sequence of devices for the channels, from the number of pages and each device's capacity
    /// in bytes. [Measures](Self::measure) devices if the placement needs it.
    pub(crate) fn stripe_pattern(
        &self,
        devices: &[Arc<dyn Device>],
        pages: u64,
        page_bytes: u64,
        usable_bytes: &[u64],
    ) -> Result<Vec<usize>> {
        let bandwidths = match self.direction() {
            Some(direction) => {
                let profiles: Vec<_> = devices.iter().map(|device| Profile::known(device.info())).collect();
                let of = |direction| {
                    let speed = |profile: &Option<Profile>| {
                        profile.as_ref().map_or(0, |p| p.bytes_per_second(direction))
                    };
                    profiles.iter().map(speed).collect::<Vec<u64>>()
                };
                // A declared profile may lack the bandwidth of this direction. Bandwidths of different
                // directions are not comparable, so then use the total of both directions for all devices.
                let bandwidths = of(direction);
                if bandwidths.contains(&0) { of(Direction::Both) } else { bandwidths }
            }
            None => Vec::new(),
        };
        self.channels(pages, page_bytes, usable_bytes, &bandwidths).map(|channels| stripe_pattern(&channels))
    }

    /// Returns the sequence of files for the channels.
    #[cfg(feature = "host")]
    pub(crate) fn stripe_pattern_of_files(&self, files: usize) -> Result<Vec<usize>> {
        if files == 0 {
            return Err(ErrorKind::FileRefused { reason: "no file is named; name at least one" }.into());
        }
        let reason = match self {
            Self::Equal | Self::Ratios(_) => None,
            Self::Mirrored => Some(
                "mirrors are on devices, not in files; use `Placement::Equal` or \
                 `Placement::Ratios`, and keep copies that `save` writes",
            ),
            _ => Some(
                "this placement measures devices, not files; use `Placement::Equal` or `Placement::Ratios`",
            ),
        };
        if let Some(reason) = reason {
            return Err(ErrorKind::FileRefused { reason }.into());
        }
        self.channels(0, 1, &vec![u64::MAX; files], &[]).map(|shares| stripe_pattern(&shares))
    }

    /// Returns the pair of devices of each channel, if the array is mirrored; both have the channel's pages.
    pub(crate) fn mirrored_pairs(&self, devices: usize) -> Result<Option<Vec<[usize; 2]>>> {
        match (self, devices) {
            (Self::Mirrored, 0) => Err(ErrorKind::NoDevices.into()),
            (Self::Mirrored, 1) => {
                let reason = "there is one device; name two devices or more";
                Err(ErrorKind::MirrorRefused { reason }.into())
            }
            (Self::Mirrored, _) => {
                Ok(Some((0..devices).map(|first| [first, (first + 1) % devices]).collect()))
            }
            _ => Ok(None),
        }
    }

    /// Returns the direction whose bandwidth the placement needs, if any.
    fn direction(&self) -> Option<Direction> {
        match self {
            Self::Bandwidth(direction) | Self::Balanced(direction) => Some(*direction),
            _ => None,
        }
    }

    /// Returns the number of channels of each device, from the number of pages, each device's capacity in
    /// bytes, and its speed in bytes per second if the placement has a [direction](Self::direction).
    fn channels(
        &self,
        pages: u64,
        page_bytes: u64,
        usable_bytes: &[u64],
        bandwidths: &[u64],
    ) -> Result<Vec<u32>> {
        let devices = usable_bytes.len();
        if devices == 0 {
            return Err(ErrorKind::NoDevices.into());
        }
        let channels = match self {
            Self::Equal => vec![EQUAL_CHANNELS; devices],
            // The builder of an array handles this placement itself, so this is the builder of a source.
            Self::Mirrored => {
                let reason =
                    "the home of a source is in RAM, and is not lost with a device; leave the placement out";
                return Err(ErrorKind::MirrorRefused { reason }.into());
            }
            Self::Ratios(ratios) if ratios.len() != devices => {
                return Err(ErrorKind::SharesMismatch { shares: ratios.len(), devices }.into());
            }
            Self::Ratios(ratios) => in_lowest_terms(ratios.clone()),
            Self::Capacity => by_capacity(usable_bytes),
            Self::Bandwidth(_) => {
                let unlimited = vec![u64::MAX; devices];
                Demand { pages, room: &unlimited, bandwidths }.best_shares(channels_shared(devices))
            }
            Self::Balanced(_) => {
                let room: Vec<u64> = usable_bytes.iter().map(|bytes| bytes / page_bytes.max(1)).collect();
                Demand { pages, room: &room, bandwidths }.best_shares(channels_shared(devices))
            }
        };
        if channels.iter().all(|&n| n == 0) {
            return Err(ErrorKind::NoChannels { devices }.into());
        }
        match total(&channels) {
            0..=CHANNELS_MAX => Ok(channels),
            channels => Err(ErrorKind::TooManyChannels { channels, most: CHANNELS_MAX }.into()),
        }
    }
}

fn total(channels: &[u32]) -> u64 {
    channels.iter().map(|&n| u64::from(n)).sum()
}

/// Divides the numbers of channels by their greatest common divisor, if the sum is too large.
fn in_lowest_terms(mut channels: Vec<u32>) -> Vec<u32> {
    if total(&channels) > CHANNELS_MAX {
        let divisor = channels.iter().copied().fold(0, greatest_common_divisor);
        for n in &mut channels {
            *n /= divisor;
        }
    }
    channels
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_gives_no_device_more_than_its_part() {
        assert_eq!(by_capacity(&[8 << 30, 8 << 30]), [16, 16]);
        assert_eq!(by_capacity(&[11 << 30, 8 << 30, 2 << 30]), [16, 12, 3]);
        assert_eq!(by_capacity(&[1 << 40, 1]), [31, 0]);
        assert_eq!(by_capacity(&[0, 0]), [1, 1]);
        let mut many = vec![8 << 30; 40];
        many[7] += 1 << 20;
        assert!(by_capacity(&many).iter().all(|&n| n == 7 || n == 8), "many devices all have their part");
    }

    #[test]
    #[allow(clippy::result_large_err, reason = "the test compares kinds of errors")]
    fn large_ratios_are_reduced_or_refused() {
        let channels = |ratios: &[u32]| {
            Placement::Ratios(ratios.to_vec())
                .channels(1, 1, &vec![1; ratios.len()], &[])
                .map_err(|error| error.kind().clone())
        };
        assert_eq!(channels(&[4, 2]), Ok(vec![4, 2]), "small ones are as stated");
        assert_eq!(channels(&[1 << 16]), Ok(vec![1 << 16]));
        assert_eq!(channels(&[(1 << 16) + 1]), Ok(vec![1]));
        assert_eq!(channels(&[u32::MAX]), Ok(vec![1]));
        assert_eq!(channels(&[3 << 30, 0, 2 << 30]), Ok(vec![3, 0, 2]));
        assert_eq!(
            channels(&[u32::MAX, u32::MAX - 1]),
            Err(ErrorKind::TooManyChannels { channels: 2 * u64::from(u32::MAX) - 1, most: 1 << 16 })
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let kind = |placement: Placement, usable: &[u64]| {
            placement.channels(1, 1, usable, &[]).unwrap_err().kind().clone()
        };
        assert_eq!(kind(Placement::Equal, &[]), ErrorKind::NoDevices);
        assert_eq!(kind(Placement::Ratios(vec![0, 0]), &[1, 1]), ErrorKind::NoChannels { devices: 2 });
        assert_eq!(
            kind(Placement::Ratios(vec![1]), &[1, 1]),
            ErrorKind::SharesMismatch { shares: 1, devices: 2 }
        );
    }

    #[test]
    fn each_device_is_in_two_pairs() {
        let pairs = |devices| Placement::Mirrored.mirrored_pairs(devices);
        assert_eq!(pairs(2), Ok(Some(vec![[0, 1], [1, 0]])));
        assert_eq!(pairs(4), Ok(Some(vec![[0, 1], [1, 2], [2, 3], [3, 0]])));
        assert!(pairs(0).is_err() && pairs(1).is_err() && Placement::Equal.mirrored_pairs(1) == Ok(None));
    }

    #[test]
    fn the_table_of_choices_is_right() {
        const GB: u64 = 1_000_000_000;
        let page_bytes = 65_536;
        let pages = 5 * GB / page_bytes;
        let usable = [11 * GB, 8 * GB, 2 * GB];
        let bandwidths = [800_000_000, 3_200_000_000, 3_200_000_000];
        let choice = |placement: Placement| {
            let channels = placement.channels(pages, page_bytes, &usable, &bandwidths).unwrap();
            let all: u32 = channels.iter().sum();
            let bytes: Vec<u64> = channels
                .iter()
                .map(|&n| (5 * GB * u64::from(n) / u64::from(all)).div_ceil(GB / 100))
                .collect();
            let speed = channels.iter().zip(bandwidths).filter(|(n, _)| **n > 0);
            let speed = speed.map(|(&n, b)| b * u64::from(all) / u64::from(n)).min().unwrap() / (GB / 100);
            (channels, bytes, speed)
        };
        assert_eq!(choice(Placement::Equal), (vec![1, 1, 1], vec![167, 167, 167], 240));
        assert_eq!(choice(Placement::Capacity), (vec![16, 12, 3], vec![259, 194, 49], 155));
        assert_eq!(choice(Placement::Bandwidth(Direction::Both)), (vec![1, 4, 4], vec![56, 223, 223], 720));
        assert_eq!(choice(Placement::Balanced(Direction::Both)), (vec![1, 4, 3], vec![63, 250, 188], 640));
    }
}
