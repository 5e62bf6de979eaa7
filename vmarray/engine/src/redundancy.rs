//! Redundancy of an array's pages: rebuilds the data of a lost device on a spare device, and moves pages from
//! one device to another.

use std::sync::Arc;

use backend_api::Device;
use parking_lot::Mutex;
use vmarray_redundancy::{Mirrored, Replica};
use vmarray_support::links::is_same;

use crate::error::{ErrorKind, Result};

/// The layer between an array and its devices that mirrors or moves pages, if the builder requested this.
#[derive(Debug, Default)]
pub struct Redundancy {
    keeper: Keeper,
    /// The lock of the thread that replaces devices.
    replacing: Mutex<()>,
}

#[derive(Debug, Default)]
pub enum Keeper {
    /// Neither mirrors nor movable pages.
    #[default]
    None,
    /// No mirrors, but pages can move to other devices; indexed by channel.
    Movable(Vec<Arc<Mirrored>>),
    /// Mirrors: two devices have the same pages; indexed by channel.
    Mirrors(Vec<Arc<Mirrored>>),
}

impl From<Keeper> for Redundancy {
    fn from(keeper: Keeper) -> Self {
        Self { keeper, replacing: Mutex::new(()) }
    }
}

impl Redundancy {
    /// Returns true if the array has neither mirrors nor movable pages.
    #[inline]
    pub fn is_none(&self) -> bool {
        matches!(self.keeper, Keeper::None)
    }

    /// Returns the device that wraps the program's devices of a channel (share of a device); `None` if the
    /// channel uses the program's device directly.
    pub fn device(&self, channel: usize) -> Option<Arc<dyn Device>> {
        match &self.keeper {
            Keeper::None => None,
            Keeper::Movable(mirrors) | Keeper::Mirrors(mirrors) => {
                mirrors.get(channel).map(|one| Arc::<Mirrored>::clone(one) as _)
            }
        }
    }

    /// Makes the devices that wrap the program's devices overwrite memory with zeroes before its release.
    pub fn wipe_on_release(&self) -> Result<()> {
        let mut devices = (0..).map_while(|channel| self.device(channel));
        devices.try_for_each(|device| Ok(device.wipe_on_release()?))
    }

    /// Returns the replicas of a channel's pages (part of an array), by device; `device` is the channel's.
    pub fn replicas(&self, channel: usize, device: &Arc<dyn Device>) -> Vec<Replica> {
        match &self.keeper {
            Keeper::None => vec![Replica::of(&**device)],
            // Query the device's memory, so that the device notices if it is lost.
            Keeper::Movable(mirrors) | Keeper::Mirrors(mirrors) => {
                let _ = device.memory();
                mirrors.get(channel).map(|mirror| mirror.replicas()).unwrap_or_default()
            }
        }
    }

    /// Replaces the first lost device by `spare`, and copies the lost pages from their mirrors to `spare`.
    pub fn rebuild(&self, spare: &Arc<dyn Device>) -> Result<()> {
        let _only = self.replacing.lock();
        let refused = |reason| ErrorKind::MirrorRefused { reason };
        let Keeper::Mirrors(mirrors) = &self.keeper else {
            return Err(refused("the array has no mirrors; build it with `Placement::Mirrored`").into());
        };
        let lost = mirrors.iter().find_map(|mirror| mirror.first_lost());
        let lost =
            lost.ok_or_else(|| refused("no device of the array is lost; there is nothing to rebuild"))?;
        let mut with_it = mirrors.iter().filter(|mirror| mirror.has_lost(&lost));
        with_it.try_for_each(|mirror| Ok(mirror.rebuild(&lost, Arc::clone(spare))?))
    }

    /// Moves pages so that each channel (share of a device) is on one of `devices` (on two if mirrored), with
    /// about the same number of channels on each device.
    pub fn rebalance(&self, devices: &[Arc<dyn Device>]) -> Result<()> {
        let refused = |reason| Err(ErrorKind::MoveRefused { reason }.into());
        let _only = self.replacing.lock();
        let mirrors = match &self.keeper {
            _ if devices.is_empty() => {
                return refused(
                    "the list of devices to move to is empty; name at \
                        least one",
                );
            }
            Keeper::Mirrors(_) if devices.iter().all(|one| is_same(one, &devices[0])) => {
                return refused("a mirror needs two devices; name two different devices");
            }
            Keeper::None => {
                return refused("the array was not built as movable; build it with `Builder::movable`");
            }
            Keeper::Movable(mirrors) | Keeper::Mirrors(mirrors) => mirrors,
        };
        let replicas = if matches!(self.keeper, Keeper::Movable(_)) { 1 } else { 2 };
        // Query the devices' memory, so that each device notices if it is lost.
        let held = mirrors.iter().map(|mirror| mirror.memory().map(|_| mirror.devices()));
        let held = held.collect::<Result<Vec<_>, _>>()?;
        if held.iter().any(|held| held.len() < replicas) {
            return refused("a device of the array is lost; replace it first by `rebuild`");
        }
        for ((mirror, held), wanted) in mirrors.iter().zip(&held).zip(shared_out(&held, devices, is_same)) {
            let is_in = |list: &[Arc<dyn Device>], one| list.iter().any(|other| is_same(other, one));
            let new = wanted.iter().filter(|one| !is_in(held, one));
            let old = held.iter().filter(|one| !is_in(&wanted, one));
            for (old, new) in old.zip(new) {
                mirror.replace(old, Arc::clone(new))?;
            }
        }
        Ok(())
    }
}

/// Assigns new devices to each channel, as many as it has now (`held`). Each device gets about the same
/// number of channels, and keeps channels that it already has. No channel gets a device twice if enough
/// different ones exist.
fn shared_out<T: Clone>(held: &[Vec<T>], devices: &[T], is_same: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let places: usize = held.iter().map(Vec::len).sum();
    let mut left = vec![places / devices.len(); devices.len()];
    // If the division leaves a rest, the devices with the most channels (shares of the array) get one more.
    let held_by = |at: usize| held.iter().flatten().filter(|one| is_same(&devices[at], one)).count();
    let mut most: Vec<usize> = (0..devices.len()).collect();
    most.sort_by_key(|at| std::cmp::Reverse(held_by(*at)));
    most.iter().take(places % devices.len()).for_each(|at| left[*at] += 1);
    let mut wanted: Vec<Vec<T>> = held.iter().map(|_| Vec::new()).collect();
    for (held, wanted) in held.iter().zip(&mut wanted) {
        for one in held {
            let stays = (0..devices.len()).find(|at| left[*at] > 0 && is_same(&devices[*at], one));
            if let Some(at) = stays {
                left[at] -= 1;
                wanted.push(one.clone());
            }
        }
    }
    for (held, wanted) in held.iter().zip(&mut wanted) {
        while wanted.len() < held.len() {
            let is_new = |at: &usize| wanted.iter().all(|one| !is_same(one, &devices[*at]));
            // If all devices with room store the channel (array share) already, a full device must store it.
            let Some(at) = (0..devices.len()).filter(is_new).max_by_key(|at| (left[*at], devices.len() - at))
            else {
                break;
            };
            left[at] = left[at].saturating_sub(1);
            wanted.push(devices[at].clone());
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(held: &[&[u32]], devices: &[u32]) -> Vec<Vec<u32>> {
        let held: Vec<_> = held.iter().map(|held| held.to_vec()).collect();
        shared_out(&held, devices, u32::eq)
    }

    #[test]
    fn as_little_as_possible_is_moved() {
        let four: [&[u32]; 4] = [&[1], &[1], &[1], &[1]];
        assert_eq!(shared(&four, &[1, 2]), [[1], [1], [2], [2]]);
        assert_eq!(shared(&[&[1], &[1], &[2], &[2]], &[1, 2, 3]), [[1], [1], [2], [3]]);
        assert_eq!(shared(&[&[1], &[2], &[3]], &[2]), [[2], [2], [2]]);
        assert_eq!(shared(&[&[1], &[2]], &[3, 4]), [[3], [4]]);
        assert_eq!(shared(&[&[3]], &[1, 2, 3]), [[3]]);
        assert_eq!(shared(&[&[1], &[2], &[2]], &[1, 2]), [[1], [2], [2]]);
        // One device gets twice its fair share.
        assert_eq!(shared(&four, &[2, 1, 2, 2]), [[1], [2], [2], [2]]);
    }

    #[test]
    fn pairs_have_two_devices() {
        assert_eq!(shared(&[&[1, 2]], &[2, 3]), [[2, 3]]);
        assert_eq!(shared(&[&[1, 2], &[2, 3], &[3, 1]], &[1, 2, 4]), [[1, 2], [2, 4], [1, 4]]);
        assert_eq!(shared(&[&[1, 2], &[2, 3], &[3, 1]], &[1, 2]), [[1, 2], [2, 1], [1, 2]]);
    }
}
