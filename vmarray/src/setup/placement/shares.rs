//! Placement by bandwidth: computes the number of channels (equal shares of an array) of each device, within
//! the capacity of the device.

/// Total number of channels for proportional shares, or number per device if this gives more.
const SHARED_CHANNELS: usize = 32;
const SHARED_CHANNELS_EACH: usize = 8;
/// Channel numbers must be below this.
pub(super) const CHANNELS_MAX: u64 = 1 << 16;
/// Least factor of speed by which more channels must be faster.
const BETTER: f64 = 1.05;

/// The input of the distribution of channels to devices.
pub(super) struct Demand<'a> {
    /// Number of pages of the array.
    pub(super) pages: u64,
    /// Capacity of each device in pages.
    pub(super) room: &'a [u64],
    /// Bandwidth of each device in bytes per second; one entry for each capacity.
    pub(super) bandwidths: &'a [u64],
}

impl Demand<'_> {
    /// Returns the number of channels of each device, at most `most` in all, with the highest common speed
    /// within the capacities. If the array does not fit at all, shares follow the capacities, and the caller
    /// returns an error.
    ///
    /// Consecutive pages complete with the slowest device, so the common speed is the least ratio of
    /// bandwidth to share. For each number of channels, the greedy distribution is optimal: it gives each
    /// channel to the device that is the fastest with one more, and no later choice makes an earlier one
    /// worse.
    pub(super) fn best_shares(&self, most: u32) -> Vec<u32> {
        let mut best: Option<(f64, Vec<u32>)> = None;
        for channels in 1..=most {
            let Some(shares) = self.shares(channels) else { continue };
            let speed = self.speed(&shares);
            // Accept more channels (shares of devices) only if they are faster by the factor `BETTER`:
            // measured speeds vary by some percent, and each channel costs a submission.
            if best.as_ref().is_none_or(|(known, _)| speed > known * BETTER) {
                best = Some((speed, shares));
            }
        }
        best.map_or_else(|| by_capacity(self.room), |(_, shares)| shares)
    }

    fn shares(&self, channels: u32) -> Option<Vec<u32>> {
        let each = self.pages.div_ceil(u64::from(channels));
        let mut shares = vec![0_u32; self.room.len()];
        for _ in 0..channels {
            let speed = |device: usize| self.bandwidths[device] as f64 / f64::from(shares[device] + 1);
            let next = (0..shares.len())
                .filter(|&device| (u64::from(shares[device]) + 1).saturating_mul(each) <= self.room[device])
                // Iterate in reverse, so that `max_by` takes the first of equal devices.
                .rev()
                .max_by(|&a, &b| speed(a).total_cmp(&speed(b)))?;
            shares[next] += 1;
        }
        Some(shares)
    }

    #[cfg(test)]
    fn fits(&self, shares: &[u32]) -> bool {
        let each = self.pages.div_ceil(u64::from(shares.iter().sum::<u32>()).max(1));
        shares.iter().zip(self.room).all(|(&n, &room)| u64::from(n).saturating_mul(each) <= room)
    }

    /// Returns the common speed of all devices, in bytes per second.
    fn speed(&self, shares: &[u32]) -> f64 {
        let all: u32 = shares.iter().sum();
        let used = shares.iter().zip(self.bandwidths).filter(|(n, _)| **n > 0);
        used.map(|(&n, &bandwidth)| bandwidth as f64 * f64::from(all) / f64::from(n)).fold(f64::MAX, f64::min)
    }
}

/// Maximum number of channels for proportional shares.
pub(super) fn channels_shared(devices: usize) -> u32 {
    SHARED_CHANNELS.max(SHARED_CHANNELS_EACH * devices).min(CHANNELS_MAX as usize) as u32
}

/// Returns channels in proportion to the capacity of each device, in bytes or in pages. Rounds down, so that
/// no device exceeds its part; the largest device gets at least one channel.
pub(super) fn by_capacity(room: &[u64]) -> Vec<u32> {
    let all: u128 = room.iter().map(|&each| u128::from(each)).sum();
    let largest = room.iter().copied().max().unwrap_or(0);
    let channels = u128::from(channels_shared(room.len()));
    let share = |each: u64| (u128::from(each) * channels).checked_div(all).unwrap_or(0) as u32;
    room.iter().map(|&each| share(each).max(u32::from(each == largest))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// No other distribution of the same number of channels is faster, and no device exceeds its
        /// capacity.
        #[test]
        fn shares_fit_and_are_the_best(
            pages in 1_u64..200,
            devices in proptest::collection::vec((0_u64..150, 1_u64..20), 1..4),
        ) {
            let (room, bandwidths): (Vec<u64>, Vec<u64>) = devices.into_iter().unzip();
            let demand = Demand { pages, room: &room, bandwidths: &bandwidths };
            for channels in 1..=6_u32 {
                let mut best = None::<f64>;
                let mut all = vec![vec![]];
                for _ in &room {
                    all = all.into_iter()
                        .flat_map(|shares: Vec<u32>| (0..=channels).map(move |n| [&shares[..], &[n]].concat()))
                        .collect();
                }
                for shares in all.iter().filter(|s| s.iter().sum::<u32>() == channels && demand.fits(s)) {
                    best = Some(best.unwrap_or(0.0).max(demand.speed(shares)));
                }
                let found = demand.shares(channels);
                prop_assert_eq!(found.is_some(), best.is_some());
                if let (Some(found), Some(best)) = (found, best) {
                    prop_assert!(demand.fits(&found));
                    prop_assert!(demand.speed(&found) >= best * 0.999_999, "{:?} has {}, not {}", found, demand.speed(&found), best);
                }
            }
        }
    }
}
