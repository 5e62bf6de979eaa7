//! `homes`, `rebuild` and `rebalance`: the devices that store the pages of each channel (share of a device),
//! recovery after the loss of a device, and migration to other devices.

use std::sync::Arc;

use backend_api::Device;
use vmarray_redundancy::{Replica, ReplicaState};

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::profile;

/// The devices that store the pages of one channel (share of an array), at the time of the call.
///
/// ```
/// use std::sync::Arc;
/// use vmarray::{home::ReplicaState, host::SimulatedDevice, prelude::*};
/// let cards = [1, 2].map(|seed| Arc::new(SimulatedDevice::builder(seed).build()));
/// let array = VirtualArray::<u32>::builder(4000)
///     .devices(cards.clone())
///     .page_len(1000)
///     .frames_per_channel(1)
///     .build()?;
/// array.fill(.., 7)?;
/// array.evict(..)?;
/// cards[1].lose();
/// // Pages 1 and 3 are lost. The others stay; page 2 was read and is in a frame.
/// assert!(array.get(1000).is_err());
/// assert_eq!(array.get(2000)?, 7);
/// let homes = array.homes();
/// assert_eq!((homes[0].pages, homes[0].lost_pages), (2, 0));
/// assert_eq!((homes[1].pages, homes[1].lost_pages), (2, 2));
/// assert_eq!(homes[1].replicas[0].state, ReplicaState::Lost);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelHome {
    /// Number of pages of the channel (share of an array).
    pub pages: u64,
    /// Number of lost pages: their contents were only on a lost device, and not in the cache.
    pub lost_pages: u64,
    /// The devices that store the pages of the channel (share of an array): one, or two in a mirrored array.
    pub replicas: Vec<Replica>,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Returns the devices and the number of lost pages of each channel (share of the array's pages).
    ///
    /// The call queries each device. If a device without redundancy is lost, the call examines the state of
    /// all pages of its channels; other threads may change the pages meanwhile.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(4000).page_len(1000).build()?;
    /// let homes = array.homes();
    /// assert_eq!(homes.iter().map(|home| home.pages).sum::<u64>(), 4);
    /// assert!(homes.iter().all(|home| home.lost_pages == 0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn homes(&self) -> Vec<ChannelHome> {
        let pager = self.pager();
        let home = |(index, channel): (usize, &Arc<crate::engine::channel::Channel>)| {
            let replicas = pager.redundancy().replicas(index, channel.device());
            let is_lost = replicas.iter().all(|replica| replica.state != ReplicaState::Current);
            ChannelHome {
                pages: channel.slot_bytes() / pager.page_bytes() as u64,
                lost_pages: if is_lost { pager.lost_pages(index as u64) } else { 0 },
                replicas,
            }
        };
        pager.channels().iter().enumerate().map(home).collect()
    }

    /// Replaces a lost device by the device `spare`, in an array with
    /// [`Placement::Mirrored`](crate::Placement::Mirrored), and restores the lost pages from a replica. Other
    /// threads can use the array meanwhile. The call returns when all pages are restored. If several devices
    /// are lost, the call replaces one of them.
    ///
    /// The call copies pages in pieces; new work on the device waits for the present piece, about a
    /// millisecond. If another device with copies of these pages is lost before the call returns, pages are
    /// lost.
    ///
    /// # Errors
    /// [`MirrorRefused`](crate::ErrorKind::MirrorRefused) if the array has no mirrors, or no device is lost;
    /// [`Device`](crate::ErrorKind::Device) if the spare refuses memory, is lost itself, or is a device of
    /// the array already; the call can then be repeated with another spare.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray::{Placement, host::SimulatedDevice, prelude::*};
    /// let cards = [1, 2, 3].map(|seed| Arc::new(SimulatedDevice::builder(seed).build()));
    /// let builder = VirtualArray::<u32>::builder(100_000).devices(cards.clone());
    /// let array = builder.placement(Placement::Mirrored).build()?;
    /// array.fill(.., 7)?;
    /// array.set(5, 8)?;
    /// array.flush(..)?;
    /// cards[0].lose();
    /// assert_eq!((array.count(.., Field::whole(), &7)?, array.get(5)?), (99_999, 8));
    /// array.rebuild(Arc::new(SimulatedDevice::builder(4).build()))?;
    /// cards[1].lose();
    /// assert_eq!(array.count(.., Field::whole(), &7)?, 99_999);
    /// assert!(array.homes().iter().all(|home| home.lost_pages == 0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn rebuild(&self, spare: Arc<D>) -> Result<()> {
        // Call `homes`, which queries the devices, so that they notice losses.
        let _ = self.homes();
        profile::apply_known(std::slice::from_ref(&spare));
        let spare = spare as Arc<dyn Device>;
        self.pager().redundancy().rebuild(&spare)?;
        self.recipe().replace_lost(&spare);
        Ok(())
    }

    /// Moves the pages to other devices while threads use the array: to an added GPU, or away from a GPU that
    /// will be removed or reports memory errors. The array must be [movable](crate::Builder::movable) or have
    /// [`Placement::Mirrored`](crate::Placement::Mirrored).
    ///
    /// Each device gets about the same number of channels (shares of the array); a device named twice gets
    /// twice as many. A channel whose pages are already on one of `devices` stays there, unless that device
    /// has more than its share. The number of channels does not change; build the array with several channels
    /// for each device if you plan to add devices.
    ///
    /// The call moves one channel after the other, and returns when the old devices are unused. A channel's
    /// pages are copied over a direct link if the devices [reach each other](backend_api::Device::reaches),
    /// otherwise through host memory. New work on the channel waits for the piece that the call is copying,
    /// about a millisecond; hits do not wait. Meanwhile both devices need memory for the channel.
    ///
    /// # Errors
    /// [`MoveRefused`](crate::ErrorKind::MoveRefused) if the array is not movable, if `devices` is empty (or
    /// has only one device for a mirrored array), or if the array has lost a device;
    /// [`Device`](crate::ErrorKind::Device) if a device refuses memory or is lost. After such an error the
    /// failed channel is on its old device (one replica of a mirror may have moved), and earlier channels
    /// have moved; the call can be repeated.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray::{host::HostDevice, prelude::*};
    /// let cards = [(); 3].map(|()| Arc::new(HostDevice::new(4 << 20).unwrap()));
    /// let on_one = [cards[0].clone(), cards[0].clone()];
    /// let array = VirtualArray::<u32>::builder(100_000).devices(on_one).movable(true).build()?;
    /// array.fill(.., 7)?;
    /// // Add a device, then remove the first one.
    /// array.rebalance([cards[0].clone(), cards[1].clone()])?;
    /// array.rebalance([cards[1].clone(), cards[2].clone()])?;
    /// assert_eq!(array.count(.., Field::whole(), &7)?, 100_000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn rebalance(&self, devices: impl IntoIterator<Item = Arc<D>>) -> Result<()> {
        let devices: Vec<_> = devices.into_iter().collect();
        profile::apply_known(&devices);
        let devices: Vec<_> = devices.into_iter().map(|device| device as Arc<dyn Device>).collect();
        self.pager().redundancy().rebalance(&devices)?;
        self.recipe().move_to(&devices);
        Ok(())
    }
}
