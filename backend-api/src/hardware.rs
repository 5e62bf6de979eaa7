//! Names of GPUs that identify the hardware. All backends use the same text for the same GPU.

/// Formats a UUID as an entry of [`DeviceInfo::aliases`](crate::DeviceInfo::aliases).
#[doc(hidden)]
#[must_use]
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex =
        |range: std::ops::Range<usize>| bytes[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("uuid:{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
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
