//! Lower bounds of the time of an operation on a device, from its bytes and the device's measured profile.

use std::fmt;
use std::time::Duration;

use super::Profile;

/// The resource that limits the speed of an operation.
///
/// ```
/// use vmarray::explain::LimitedBy;
/// assert_eq!(LimitedBy::Bus.to_string(), "the bus");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitedBy {
    /// The bus between a device and the host.
    Bus,
    /// The memory of a device.
    DeviceMemory,
    /// Copies in RAM by one thread.
    HostMemory,
    /// The fixed time of a submission to a device and the wait for it.
    Calls,
}

impl fmt::Display for LimitedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bus => "the bus",
            Self::DeviceMemory => "device memory",
            Self::HostMemory => "host memory",
            Self::Calls => "calls of the driver",
        })
    }
}

/// Returns the time for bytes at a speed; `None` if the speed is unknown and there are bytes.
pub(crate) fn time_for(bytes: u64, per_second: u64) -> Option<Duration> {
    match (bytes, per_second) {
        (0, _) => Some(Duration::ZERO),
        (_, 0) => None,
        (bytes, speed) => Some(Duration::from_secs_f64(bytes as f64 / speed as f64)),
    }
}

impl Profile {
    /// Returns the least time of these bytes on the bus.
    pub(crate) fn bus_time(&self, to_device: u64, from_device: u64) -> Option<Duration> {
        let one_way = time_for(to_device, self.write)?.max(time_for(from_device, self.read)?);
        let both = if to_device == 0 || from_device == 0 { 0 } else { to_device + from_device };
        // Copies in both directions overlap, so take the longer of two times: of the longer direction alone,
        // and of all bytes at the combined bandwidth.
        Some(one_way.max(time_for(both, self.both.max(self.read.max(self.write)))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_needs_as_long_as_its_slower_way_or_both_together() {
        let profile = Profile::new(4_000, 2_000, 5_000, 4096);
        let seconds = |to, from| profile.bus_time(to, from).unwrap().as_secs_f64();
        assert_eq!((seconds(0, 0), seconds(0, 4_000), seconds(4_000, 0)), (0.0, 1.0, 2.0));
        assert_eq!(seconds(2_000, 4_000), 1.2);
        assert_eq!(Profile::new(0, 1, 1, 4096).bus_time(0, 1), None);
    }
}
