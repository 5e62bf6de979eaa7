//! Work-groups along one axis of a view. A work-group starts at a multiple of its length, counted from the
//! start of the view. The members of a work-group therefore do not depend on the distribution of elements
//! over devices.

use backend_api::expr::Geometry;
use vmarray_kernel::{GroupPart, ScalarSource};

/// The groups of work-items of a launch along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinearGroups {
    /// The number of work-items (GPU threads) in a work-group.
    pub len: usize,
    /// The index of the launch's first work-item (GPU thread).
    pub start: usize,
    /// The number of work-items (GPU threads) of the launch.
    pub items: usize,
}

impl LinearGroups {
    /// Sets the scalars in `params` that describe the work-groups of one run (contiguous elements).
    pub fn set(&self, scalars: &[ScalarSource], params: &mut [u64], geometry: Geometry, count: u64) {
        for (source, param) in scalars.iter().zip(params) {
            if let ScalarSource::Groups(part) = *source {
                *param = self.scalar(part, geometry, count);
            }
        }
    }

    /// Returns a scalar for a run of `count` work-items, which begins at a multiple of the group length.
    fn scalar(&self, part: GroupPart, geometry: Geometry, count: u64) -> u64 {
        let Geometry { first, page_len, channel, channels } = geometry;
        let len = self.len as u64;
        let is_in_a_row = channels == 1 || first % page_len + count <= page_len;
        let of_page = if is_in_a_row { 1 } else { page_len / len };
        match part {
            GroupPart::Count => self.items.div_ceil(self.len) as u64,
            GroupPart::First if is_in_a_row => geometry.index(0).wrapping_sub(self.start as u64) / len,
            GroupPart::First => first / len,
            GroupPart::PerPage => of_page,
            GroupPart::Skip | GroupPart::Offset if is_in_a_row => 0,
            GroupPart::Skip => (channels - 1) * of_page,
            GroupPart::Offset => (channel * of_page).wrapping_sub(self.start as u64 / len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::executor::{are_groups_within_pages, within_channel};

    /// The index of a group, as a kernel computes it.
    fn number(groups: &LinearGroups, geometry: Geometry, count: u64, own: u64) -> u64 {
        let scalar = |part| groups.scalar(part, geometry, count);
        let number = own + scalar(GroupPart::First);
        let skipped = number / scalar(GroupPart::PerPage) * scalar(GroupPart::Skip);
        (number + skipped).wrapping_add(scalar(GroupPart::Offset))
    }

    #[test]
    fn groups_of_each_channel_are_numbered_over_the_view() {
        for (page_len, len) in [(64, 64), (64, 16), (96, 32), (5, 5), (12, 4), (64, 96), (7, 3)] {
            for channels in 1..5 {
                for start in [0, len, 3 * len, 1] {
                    let items = 5 * page_len + 3;
                    let (groups, range) = (LinearGroups { len, start, items }, start..start + items);
                    if channels > 1 && !are_groups_within_pages(len, page_len, &range) {
                        continue;
                    }
                    let mut seen = Vec::new();
                    for channel in 0..channels {
                        let within = within_channel((channel, channels), page_len, &range);
                        let count = within.end - within.start;
                        let geometry = Geometry {
                            first: within.start,
                            page_len: page_len as u64,
                            channel: channel as u64,
                            channels: channels as u64,
                        };
                        for own in 0..count.div_ceil(len as u64) {
                            let found = number(&groups, geometry, count, own);
                            let index = geometry.index(own * len as u64) as usize;
                            assert_eq!(found as usize, (index - start) / len, "{page_len} {groups:?}");
                            seen.push(found);
                        }
                    }
                    seen.sort_unstable();
                    let all = groups.scalar(GroupPart::Count, Geometry::plain(0), 0);
                    assert!(seen.into_iter().eq(0..all), "{page_len} {channels} {groups:?}");
                }
            }
        }
    }
}
