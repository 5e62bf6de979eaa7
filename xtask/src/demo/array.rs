//! The jobs' array: a [`VirtualArray`] of words on the devices asked for.

use super::report::{bytes, line, plural};
use super::words::{Traffic, Words};
use crate::arrays::DevicesArgs;
use anyhow::{Context, Result};
use std::sync::Arc;
use vmarray::device::DeviceKind;
use vmarray::prelude::*;
use vmarray::{AnyDevice, Device, Discovery, Field, Items, VirtualArray};

/// Words on devices of any kind.
pub struct DeviceWords {
    array: VirtualArray<u32>,
    devices: String,
}

impl DeviceWords {
    /// An array of `len` words with a cache of at most `cache_bytes`.
    pub fn build(devices: &[Arc<AnyDevice>], len: u64, cache_bytes: u64) -> Result<Self> {
        let words = usize::try_from(len).context("the array is too long for this machine")?;
        let array = VirtualArray::<u32>::builder(words)
            .devices(devices.iter().cloned())
            .cache_bytes(usize::try_from(cache_bytes)?)
            .build()?;
        let devices = devices.iter().map(|device| device.info().to_string()).collect::<Vec<_>>().join(" + ");
        Ok(Self { array, devices })
    }
}

impl Items for DeviceWords {
    fn item_count(&self) -> usize {
        self.array.len()
    }
}

impl Words for DeviceWords {
    fn len(&self) -> u64 {
        self.array.len() as u64
    }

    fn read(&self, start: u64, words: &mut [u32]) -> Result<()> {
        Ok(self.array.read(usize::try_from(start)?, words)?)
    }

    fn read_uncached(&self, index: u64) -> Result<u32> {
        Ok(self.array.get_uncached(usize::try_from(index)?)?)
    }

    fn write(&self, start: u64, words: &[u32]) -> Result<()> {
        Ok(self.array.write(usize::try_from(start)?, words)?)
    }

    fn find(&self, value: u32) -> Result<Vec<u64>> {
        let found = self.array.find(Field::whole(), &value)?;
        Ok(found.into_iter().map(|index| index as u64).collect())
    }

    fn flush(&self) -> Result<()> {
        Ok(self.array.flush(..)?)
    }

    fn take_traffic(&self) -> Traffic {
        let stats = self.array.stats();
        let total = stats.total();
        self.array.reset_stats();
        Traffic {
            hits: stats.hits,
            misses: total.misses,
            to_devices: total.bytes_to_device,
            from_devices: total.bytes_from_device,
        }
    }

    fn describe(&self) -> String {
        let page = bytes(self.array.page_len() as u64 * size_of::<u32>() as u64);
        let channels = plural(self.array.stats().channels.len() as u64, "channel");
        let footprint = self.array.footprint();
        let (cache, table) = (bytes(footprint.cache_max_bytes as u64), bytes(footprint.table_bytes as u64));
        let kind = if footprint.is_pinned { "page-locked" } else { "pageable" };
        let devices = &self.devices;
        format!("{devices}; {channels}, pages of {page}; in RAM: cache {cache} ({kind}), page table {table}")
    }
}

/// What to look for: the list given, else what the environment says, else the default.
fn discovery(devices: Option<&str>) -> Result<Discovery> {
    Ok(match devices {
        Some(list) => Discovery::new().select(list)?,
        None => Discovery::from_env()?,
    })
}

/// Opens the devices of a list; without one, those that an array uses if none are named.
pub fn choose(devices: Option<&str>) -> Result<Vec<Arc<AnyDevice>>> {
    discovery(devices)?.open().with_context(|| match devices {
        Some(list) => format!("no devices for `{list}` (`cargo xtask devices` lists all)"),
        None => "no devices".to_string(),
    })
}

/// Whether the device's memory is the host's own.
pub fn is_host(device: &AnyDevice) -> bool {
    matches!(device.info().kind, DeviceKind::HostMemory | DeviceKind::Cpu | DeviceKind::IntegratedGpu)
}

/// Prints all devices, which of them are used, and what those that are used have free.
pub fn list(args: DevicesArgs) -> Result<()> {
    let discovery = discovery(args.devices.as_deref())?;
    println!("{}", discovery.report());
    for device in discovery.open()? {
        let (info, memory) = (device.info(), device.memory()?);
        println!("{info}");
        line("memory", format!("{} of {} usable", bytes(memory.usable_bytes), bytes(memory.total_bytes)));
        line("", format!("at most {} in one piece", bytes(info.largest_allocation_bytes)));
        line("copies", format!("{} at once", info.copy_engines));
        let node = info.numa_node.map(|node| node.to_string()).unwrap_or_default();
        let aliases = info.aliases.join(", ");
        for (what, text) in
            [("NUMA node", &node), ("vendor", &info.vendor), ("driver", &info.driver), ("also", &aliases)]
        {
            if !text.is_empty() {
                line(what, text);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_chosen_by_name() {
        let chosen = choose(Some("host")).unwrap();
        assert_eq!(chosen.len(), 1);
        assert!(is_host(&chosen[0]));
        for wrong in ["abacus", "host:9999", ""] {
            assert!(choose(Some(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_array_of_words_does_what_a_vector_does() {
        let devices = choose(Some("host")).unwrap();
        let words = DeviceWords::build(&devices, 100_000, 50_000).unwrap();
        words.write(99_990, &[7, 8, 9]).unwrap();
        words.flush().unwrap();
        let mut read = [1; 5];
        words.read(99_989, &mut read).unwrap();
        assert_eq!(read, [0, 7, 8, 9, 0]);
        assert_eq!(words.find(8).unwrap(), [99_991]);
        assert_eq!(words.len(), 100_000);
        let traffic = words.take_traffic();
        assert!(traffic.to_devices > 0 && traffic.misses > 0);
        assert_eq!(words.take_traffic(), Traffic::default());
        assert!(words.read(99_999, &mut read).is_err());
    }
}
