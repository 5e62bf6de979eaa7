//! What takes the place of a device that is lost.

use std::sync::Arc;

use backend_api::Device;
use backend_api::wrap::{Mirrored, ParityGroup, Replica, ReplicaState};

use crate::base::error::{ErrorKind, Result};

/// What keeps the pages of channels whose device is lost.
#[derive(Debug, Default)]
pub(crate) enum Redundancy {
    /// Nothing.
    #[default]
    None,
    /// Another device, which has the same pages: by channel.
    Mirrors(Vec<Arc<Mirrored>>),
    /// The other devices together, of which each channel has one.
    Parity(ParityGroup),
}

impl Redundancy {
    /// The device of a channel, unless it is one of the program's own.
    pub(crate) fn device(&self, channel: usize) -> Option<Arc<dyn Device>> {
        match self {
            Self::None => None,
            Self::Mirrors(mirrors) => mirrors.get(channel).map(|one| Arc::<Mirrored>::clone(one) as _),
            Self::Parity(group) => group.members().get(channel).map(|one| Arc::clone(one) as _),
        }
    }

    /// Has what passes through memory of its own wiped, too.
    pub(crate) fn wipe_on_release(&self) -> Result<()> {
        let mut devices = (0..).map_while(|channel| self.device(channel));
        devices.try_for_each(|device| Ok(device.wipe_on_release()?))
    }

    /// The devices that have the pages of a channel, whose device this is.
    pub(crate) fn replicas(&self, channel: usize, device: &Arc<dyn Device>) -> Vec<Replica> {
        match self {
            Self::None => vec![Replica::of(&**device)],
            // They learn of a loss by being asked.
            Self::Mirrors(mirrors) => {
                let _ = device.memory();
                mirrors.get(channel).map(|mirror| mirror.replicas()).unwrap_or_default()
            }
            Self::Parity(group) => {
                group.members().iter().for_each(|member| drop(member.memory()));
                group.replicas().into_iter().skip(channel).take(1).collect()
            }
        }
    }

    /// Whether the pages of a channel with these replicas are nowhere but in frames.
    pub(crate) fn is_lost(&self, channel: usize, replicas: &[Replica]) -> bool {
        let is_lost = replicas.iter().all(|replica| replica.state != ReplicaState::Current);
        is_lost && !matches!(self, Self::Parity(group) if group.has_contents(channel))
    }

    /// Puts a spare in the place of the first device that is lost.
    pub(crate) fn rebuild(&self, spare: &Arc<dyn Device>) -> Result<()> {
        const NOTHING_LOST: &str = "no device of the array is lost";
        let spare = || Arc::clone(spare);
        match self {
            Self::None => Err(ErrorKind::MirrorRefused { reason: "the array is not mirrored" }.into()),
            Self::Mirrors(mirrors) => {
                let lost = mirrors.iter().find_map(|mirror| mirror.first_lost());
                let lost = lost.ok_or(ErrorKind::MirrorRefused { reason: NOTHING_LOST })?;
                let with_it = mirrors.iter().filter(|mirror| mirror.has_lost(&lost));
                with_it.into_iter().try_for_each(|mirror| Ok(mirror.rebuild(&lost, spare())?))
            }
            Self::Parity(group) => {
                let lost = group.first_lost().ok_or(ErrorKind::ParityRefused { reason: NOTHING_LOST })?;
                Ok(group.rebuild(&lost, spare())?)
            }
        }
    }
}
