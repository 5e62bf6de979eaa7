//! Selects the devices on which a command runs. Also implements `cargo xtask devices`, which lists them.

use crate::DevicesArgs;
use crate::report::line;
use anyhow::{Context, Result};
use indicatif::HumanBytes;
use std::sync::Arc;
use vmarray::device::DeviceKind;
use vmarray::{AnyDevice, Discovery, device::Device};

/// Returns the discovery of the devices in a list; without a list, of the environment's or default devices.
fn discovery(devices: Option<&str>) -> Result<Discovery> {
    Ok(match devices {
        Some(list) => Discovery::new().select(list)?,
        None => Discovery::from_env()?,
    })
}

/// Opens the devices in the list `devices`, as in `demo --devices`; for `None`, an array's default devices.
pub fn choose(devices: Option<&str>) -> Result<Vec<Arc<AnyDevice>>> {
    discovery(devices)?.open().with_context(|| match devices {
        Some(list) => format!("cannot open the devices `{list}` (`cargo xtask devices` lists all)"),
        None => "cannot open the default devices".to_string(),
    })
}

/// Returns true if the device's memory is the host's own.
pub fn is_host(device: &AnyDevice) -> bool {
    matches!(device.info().kind, DeviceKind::HostMemory | DeviceKind::Cpu | DeviceKind::IntegratedGpu)
}

/// Prints all devices, marks the devices that an array uses, and prints their free memory.
pub fn list(args: DevicesArgs) -> Result<()> {
    let discovery = discovery(args.devices.as_deref())?;
    println!("{}", discovery.report());
    for device in discovery.open()? {
        let (info, memory) = (device.info(), device.memory()?);
        println!("{info}");
        let (usable, total) = (HumanBytes(memory.usable_bytes), HumanBytes(memory.total_bytes));
        line("memory", format!("{usable} of {total} usable"));
        line("", format!("at most {} in one piece", HumanBytes(info.largest_allocation_bytes)));
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
}
