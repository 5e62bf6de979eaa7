//! Where the pages of an array live, which devices of those are lost, what takes their place, and moving.

use std::sync::Arc;

use backend_api::Device;
use backend_api::wrap::Replica;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::setup::profile;

/// Where the pages of one channel live, at the moment of asking.
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
/// // Pages 1 and 3 are gone. The others stay, and so does page 2, which is read and lies in a frame.
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
    /// How many pages live there.
    pub pages: u64,
    /// How many of them are lost: they had contents there, no device has them any more, and no frame.
    /// Everything else of the array goes on.
    pub lost_pages: u64,
    /// The devices that each have all of these pages: one, or two of a mirrored array. Of an array with
    /// parity the other channels' devices together make up for the one.
    pub replicas: Vec<Replica>,
}

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Where the pages live, channel by channel, and what is lost of them.
    ///
    /// Asks each device for its memory. Where one is lost that nothing takes the place of, looks at all pages
    /// of its channels; they may change meanwhile.
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
            let is_lost = pager.redundancy().is_lost(index, &replicas);
            ChannelHome {
                pages: channel.slot_bytes() / pager.page_bytes() as u64,
                lost_pages: if is_lost { pager.lost_pages(index as u64) } else { 0 },
                replicas,
            }
        };
        pager.channels().iter().enumerate().map(home).collect()
    }

    /// Puts a spare device in the place of one that is lost, in an array of
    /// [`Placement::Mirrored`](crate::Placement::Mirrored) or [`Parity`](crate::Placement::Parity), and gives
    /// it what that had: a copy, or what the other devices and their parity make of it. The array is used
    /// meanwhile. Returns when the array is whole again; of several lost devices one is replaced.
    ///
    /// Submissions wait for pieces that are being copied, for about a millisecond, or changes for pieces of 2
    /// MiB that are being rebuilt, one at a time. Until it returns, the loss of the other devices that
    /// have those pages is a loss of pages.
    ///
    /// # Errors
    /// [`MirrorRefused`](crate::ErrorKind::MirrorRefused) if the array has neither mirrors nor parity, or no
    /// device is lost; [`ParityRefused`](crate::ErrorKind::ParityRefused) if no device of one with parity is;
    /// [`Device`](crate::ErrorKind::Device) if the spare refuses memory, is lost itself, or is a device that
    /// the array has already: then another one can be given.
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
        // It learns of losses by asking.
        let _ = self.homes();
        profile::apply_known(std::slice::from_ref(&spare));
        self.pager().redundancy().rebuild(&(spare as Arc<dyn Device>))
    }

    /// Moves the pages to other devices while the array is used: to a card that was added, away from one that
    /// is to be removed or asks for its replacement, to as many others as there are. For arrays that were
    /// built [movable](crate::Builder::movable) and for those of
    /// [`Placement::Mirrored`](crate::Placement::Mirrored).
    ///
    /// Channels are shared out: each device gets about as many of them, one that is named twice twice as
    /// many, and what is on one of the devices already stays there as far as its share allows. The number of
    /// channels stays as it was built; build with several for each device if others are to be added.
    ///
    /// Returns when all is moved and the devices that are left are used no more; channels go one after the
    /// other. A channel's pages are copied by the link of two devices where they [reach each
    /// other](backend_api::Device::reaches), else through host memory; submissions to it wait for one piece
    /// at a time, about a millisecond, and hits for nothing. Both devices need room for the channel
    /// meanwhile.
    ///
    /// # Errors
    /// [`MoveRefused`](crate::ErrorKind::MoveRefused) if the array is not movable, no device is given, or one
    /// alone for a mirror, or if the array has lost a device; [`Device`](crate::ErrorKind::Device) if a
    /// device refuses memory or is lost. The channel it was about stays where it was then (of a mirror's
    /// devices one may have moved), those before it are moved, and the call can be repeated.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use vmarray::{host::HostDevice, prelude::*};
    /// let cards = [(); 3].map(|()| Arc::new(HostDevice::new(4 << 20).unwrap()));
    /// let on_one = [cards[0].clone(), cards[0].clone()];
    /// let array = VirtualArray::<u32>::builder(100_000).devices(on_one).movable(true).build()?;
    /// array.fill(.., 7)?;
    /// // A card is added, and then the first one taken away.
    /// array.rebalance([cards[0].clone(), cards[1].clone()])?;
    /// array.rebalance([cards[1].clone(), cards[2].clone()])?;
    /// assert_eq!(array.count(.., Field::whole(), &7)?, 100_000);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn rebalance(&self, devices: impl IntoIterator<Item = Arc<D>>) -> Result<()> {
        let devices: Vec<_> = devices.into_iter().collect();
        profile::apply_known(&devices);
        let devices: Vec<_> = devices.into_iter().map(|device| device as Arc<dyn Device>).collect();
        self.pager().redundancy().rebalance(&devices)
    }
}
