//! Which share of an array each device gets.

use crate::error::{ErrorKind, Result};

/// How the pages of an array are distributed over its devices.
///
/// A device's share is a number of *channels*. Page `p` lives on channel `p % K` of the `K` channels of all devices,
/// which take turns, so that a device with twice the channels has twice the pages, and any run of pages is spread
/// evenly.
///
/// An array with fewer pages than channels has a channel for each page, the first of the turns: then shares are as near
/// as that allows, and a device whose turn does not come gets nothing.
///
/// ```
/// use vmarray::{Placement, VirtualArray};
/// let array = VirtualArray::<u32>::builder(1 << 20).placement(Placement::Ratios(vec![3])).build()?;
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
    /// As many channels as stated, by device. Zero switches a device off.
    ///
    /// An array can have 65536 channels, and a few for each device are enough. Numbers that come to more, such as sizes
    /// in bytes, are brought to lowest terms; [`TooManyChannels`](crate::ErrorKind::TooManyChannels) if they are still
    /// too many.
    Ratios(Vec<u32>),
    /// Channels in proportion to the memory that each device can give, for the longest arrays.
    ///
    /// Shares are rounded down to whole channels, of which there are about 32, or 8 for each device if that is more. A
    /// device with less memory than one channel's part gets nothing: with a whole channel it would be full first, and
    /// the array the shorter for it.
    Capacity,
}

/// Channels of a device that gets an equal share: enough that threads rarely meet in one shard of the cache.
const EQUAL_CHANNELS: u32 = 4;
/// Channels of all devices together when shares follow their memory, and for each device if that is more.
const CAPACITY_CHANNELS: usize = 32;
const CAPACITY_CHANNELS_EACH: usize = 8;
/// Channel numbers stay below this.
const CHANNELS_MAX: u64 = 1 << 16;

impl Placement {
    /// Channels by device, given what each can hold, in bytes.
    pub(crate) fn channels(&self, usable_bytes: &[u64]) -> Result<Vec<u32>> {
        let devices = usable_bytes.len();
        if devices == 0 {
            return Err(ErrorKind::NoDevices.into());
        }
        let channels = match self {
            Self::Equal => vec![EQUAL_CHANNELS; devices],
            Self::Ratios(ratios) if ratios.len() != devices => {
                return Err(ErrorKind::SharesMismatch { shares: ratios.len(), devices }.into());
            }
            Self::Ratios(ratios) => in_lowest_terms(ratios.clone()),
            Self::Capacity => by_capacity(usable_bytes),
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

/// Divides all by their greatest common divisor if there are too many.
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

/// Rounds down, so that no device gets more than its part; the largest gets one at least.
fn by_capacity(usable_bytes: &[u64]) -> Vec<u32> {
    let all: u128 = usable_bytes.iter().map(|&b| u128::from(b)).sum();
    let largest = usable_bytes.iter().copied().max().unwrap_or(0);
    let channels = CAPACITY_CHANNELS.max(CAPACITY_CHANNELS_EACH * usable_bytes.len()) as u128;
    let share = |bytes: u64| (u128::from(bytes) * channels).checked_div(all).unwrap_or(0) as u32;
    usable_bytes.iter().map(|&bytes| share(bytes).max(u32::from(bytes == largest))).collect()
}

/// The devices of the channels in turn: a device with twice the channels comes twice as often, at even distances.
///
/// Source: the smooth weighted round robin of nginx's balancer.
pub(crate) fn take_turns(channels: &[u32]) -> Vec<usize> {
    let total: i64 = channels.iter().map(|&n| i64::from(n)).sum();
    let mut credit = vec![0_i64; channels.len()];
    (0..total)
        .map(|_| {
            for (credit, &n) in credit.iter_mut().zip(channels) {
                *credit += i64::from(n);
            }
            // The first of the largest.
            let next = (0..credit.len()).rev().max_by_key(|&i| credit[i]).unwrap_or(0);
            credit[next] -= total;
            next
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_follow_the_ratios_evenly() {
        assert_eq!(take_turns(&[2, 2]), [0, 1, 0, 1]);
        assert_eq!(take_turns(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(take_turns(&[0, 2]), [1, 1]);
        for ratios in [vec![5, 1, 1], vec![1, 2, 3, 4], vec![7], vec![0, 9, 1]] {
            let turns = take_turns(&ratios);
            for (device, &n) in ratios.iter().enumerate() {
                assert_eq!(turns.iter().filter(|&&d| d == device).count(), n as usize);
            }
        }
    }

    #[test]
    fn capacity_gives_nobody_more_than_its_part() {
        assert_eq!(by_capacity(&[8 << 30, 8 << 30]), [16, 16]);
        assert_eq!(by_capacity(&[11 << 30, 8 << 30, 2 << 30]), [16, 12, 3]);
        assert_eq!(by_capacity(&[1 << 40, 1]), [31, 0]);
        assert_eq!(by_capacity(&[0, 0]), [1, 1]);
        let mut many = vec![8 << 30; 40];
        many[7] += 1 << 20;
        assert!(by_capacity(&many).iter().all(|&n| n == 7 || n == 8), "many devices all have their part");
    }

    #[test]
    fn large_ratios_are_reduced_or_refused() {
        let channels = |ratios: &[u32]| {
            Placement::Ratios(ratios.to_vec())
                .channels(&vec![1; ratios.len()])
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
        let kind =
            |placement: Placement, usable: &[u64]| placement.channels(usable).unwrap_err().kind().clone();
        assert_eq!(kind(Placement::Equal, &[]), ErrorKind::NoDevices);
        assert_eq!(kind(Placement::Ratios(vec![0, 0]), &[1, 1]), ErrorKind::NoChannels { devices: 2 });
        assert_eq!(
            kind(Placement::Ratios(vec![1]), &[1, 1]),
            ErrorKind::SharesMismatch { shares: 1, devices: 2 }
        );
    }
}
