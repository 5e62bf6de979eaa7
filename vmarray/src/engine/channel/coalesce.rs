//! Merging of adjacent page copies between home slots (in device memory) and frames (in RAM).

use backend_api::{DeviceSpan, HostSpan, Transfer};

/// Direction of a page copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyWay {
    /// Copies a page from its home slot to a frame.
    Fetch,
    /// Copies a page from its frame to its home slot.
    WriteBack,
}

/// Returns copies of pages in ascending order of their slots, merged if contiguous in both memories.
///
/// The driver takes microseconds for each copy, so one long copy is far cheaper than several short ones.
pub(super) fn coalesce<'a>(
    pages: impl Iterator<Item = (DeviceSpan<'a>, HostSpan<'a>)>,
    bytes: u64,
    way: CopyWay,
) -> Vec<Transfer<'a>> {
    let transfer = |(slot, frame, bytes)| match way {
        CopyWay::Fetch => Transfer::Download { from: slot, to: frame, bytes },
        CopyWay::WriteBack => Transfer::Upload { from: frame, to: slot, bytes },
    };
    let mut pieces = Vec::with_capacity(pages.size_hint().0);
    let mut last: Option<(DeviceSpan<'a>, HostSpan<'a>, u64)> = None;
    for (slot, frame) in pages {
        if let Some((first_slot, first_frame, length)) = &mut last
            && first_slot.plus(*length) == slot
            && first_frame.plus(*length) == frame
        {
            *length += bytes;
            continue;
        }
        pieces.extend(last.replace((slot, frame, bytes)).map(transfer));
    }
    pieces.extend(last.map(transfer));
    pieces
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use backend_api::{BufferHandle, HostAllocation, HostMemory};

    use super::*;

    #[test]
    fn neighbours_on_both_sides_are_one_copy() {
        // SAFETY: no bytes are anywhere.
        let host = || unsafe { HostAllocation::new(NonNull::dangling(), 0, HostMemory::Pageable) };
        let (buffer, hosts) = (BufferHandle::unique(), [host(), host()]);
        let page = |slot: u64, host: usize, frame: u64| (buffer.at(slot * 10), hosts[host].at(frame * 10));
        // Slots 0 to 2 are in frames 4 to 6. Then follow a gap in the slots, a gap in the frames, and another
        // piece of host memory.
        let pages =
            [page(0, 0, 4), page(1, 0, 5), page(2, 0, 6), page(4, 0, 7), page(5, 0, 9), page(6, 1, 10)];
        let copies = coalesce(pages.into_iter(), 10, CopyWay::Fetch);
        assert_eq!(copies.iter().map(Transfer::bytes).collect::<Vec<_>>(), [30, 10, 10, 10]);
        assert_eq!(copies[0], Transfer::Download { from: pages[0].0, to: pages[0].1, bytes: 30 });
        let up = coalesce(pages[..2].iter().copied(), 10, CopyWay::WriteBack);
        assert_eq!(up, [Transfer::Upload { from: pages[0].1, to: pages[0].0, bytes: 20 }]);
        assert!(coalesce(std::iter::empty(), 10, CopyWay::Fetch).is_empty());
    }
}
