//! How hardware is named, so that one card has one name in all backends.

/// The text of a UUID, as [`DeviceInfo::aliases`](crate::DeviceInfo::aliases) has it.
#[doc(hidden)]
#[must_use]
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex =
        |range: std::ops::Range<usize>| bytes[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("uuid:{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

/// The NUMA node that the system gives for a PCI address in lower case; `None` where it does not know.
#[doc(hidden)]
#[must_use]
pub fn numa_node(address: &str) -> Option<u32> {
    // The kernel says -1 where it does not know. Other systems have no such file.
    std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_everywhere() {
        let bytes = std::array::from_fn(|i| i as u8 * 0x11);
        assert_eq!(uuid_text(&bytes), "uuid:00112233-4455-6677-8899-aabbccddeeff");
    }
}
