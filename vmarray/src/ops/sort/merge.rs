//! Partition of a merge between devices: finds the ranges of both inputs from which each part of the result
//! is merged.

use std::ops::Range;

use vmarray_kernel::KernelType;

use crate::ops::executor::{ChannelShare, Striping, within_channel};

/// Number of elements in a tile of a merge. It is odd for each work-item, because the work-items then read
/// different banks of group memory.
pub(super) const MERGE_TILE: u64 = 17 * MERGING_BLOCK;
/// Number of work-items in a group that merges.
pub(super) const MERGING_BLOCK: u64 = 256;

/// Elements of one channel that are striped over several channels, counted from the channel's first slot.
#[derive(Clone, Copy, Debug, PartialEq, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
pub(super) struct StripedRange {
    pub first: u64,
    pub count: u64,
    pub page_len: u64,
    /// The number of channels (shares of devices): page `p` belongs to channel `p % channels`.
    pub channels: u64,
    pub channel: u64,
    /// Index of the element to which kernels give the number 0.
    pub base: u64,
}

impl StripedRange {
    /// Returns the part of the elements `numbers` that `share` stores: the elements of one channel (share of
    /// a device). `numbers` counts from the first element to sort.
    pub fn of_share(striping: Striping, share: &ChannelShare<'_>, numbers: &Range<u64>) -> Self {
        let (Striping { page_len, channels, start }, ChannelShare { channel, first, keys, .. }) =
            (striping, share);
        let indices = start + numbers.start as usize..start + numbers.end as usize;
        let own = within_channel((*channel as usize, channels), page_len, &indices);
        let [start, end] = [own.start, own.end].map(|own| own.clamp(*first, first + keys.count));
        Self {
            first: start,
            count: end - start,
            page_len: page_len as u64,
            channels: channels as u64,
            channel: *channel,
            base: indices.start as u64,
        }
    }

    /// Returns `count` contiguous (unstriped) elements from `first` on. Kernels number element `base` as 0.
    pub fn side_by_side(first: u64, count: u64, base: u64) -> Self {
        Self { first, count, page_len: 1 << 62, channels: 1, channel: 0, base }
    }

    /// The number of tiles (the elements of one work-group) by which a merge writes these elements. A tile
    /// The number of tiles (the elements of one work-group) in which a merge writes the range. No tile
    /// crosses a page boundary.
    pub fn tiles(&self) -> u64 {
        let tile = |own: u64| {
            own / self.page_len * self.page_len.div_ceil(MERGE_TILE) + own % self.page_len / MERGE_TILE
        };
        if self.count == 0 { 0 } else { tile(self.first + self.count - 1) - tile(self.first) + 1 }
    }

    /// Returns the six parameters that describe this range to kernels.
    pub fn params(&self) -> [u64; 6] {
        [self.first, self.count, self.page_len, self.channels, self.channel, self.base]
    }
}

/// A part of a merge between channels: elements of one piece of the first run and of one of the second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MergePart {
    /// The range that this part merges from each of the two inputs: the index of a piece of the sorted input,
    /// and a range within this piece.
    pub from: [(usize, Range<u64>); 2],
    /// The position in the result of this part's first key.
    pub base: u64,
}

impl MergePart {
    pub fn len(&self) -> u64 {
        self.from.iter().map(|(_, range)| range.end - range.start).sum()
    }
}

/// Returns the parts of a merge of two runs, given the lengths of their pieces. `key` reads by run, piece and
/// number.
///
/// # Errors
/// Errors of `key`.
pub(super) fn parts_of<E>(
    runs: [&[u64]; 2],
    mut key: impl FnMut(usize, usize, u64) -> Result<u64, E>,
) -> Result<Vec<MergePart>, E> {
    // Finds the piece of a sorted run that contains element `number`, and the element's offset in the piece.
    // If `number` is the length of the run, finds the end of the last piece.
    let find = |run: usize, mut number: u64| {
        let last = runs[run].len() - 1;
        let mut piece = 0;
        while piece < last && number >= runs[run][piece] {
            number -= runs[run][piece];
            piece += 1;
        }
        (piece, number)
    };
    let lengths: [u64; 2] = runs.map(|pieces| pieces.iter().sum());
    let mut cuts = vec![[0, 0], lengths];
    for run in 0..2 {
        let mut place = 0;
        for len in &runs[run][..runs[run].len() - 1] {
            place += len;
            let (piece, number) = find(run, place);
            let own = key(run, piece, number)?;
            // Among equal keys, the keys of input 0 come first. A key of input 0 therefore follows only
            // smaller keys of input 1. A key of input 1 follows smaller and equal keys of input 0.
            let (mut low, mut high) = (0, lengths[1 - run]);
            while low < high {
                let middle = low.midpoint(high);
                let (piece, number) = find(1 - run, middle);
                let other = key(1 - run, piece, number)?;
                if other < own || run == 1 && other == own { low = middle + 1 } else { high = middle }
            }
            cuts.push(if run == 0 { [place, low] } else { [low, place] });
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    let part = |ends: &[[u64; 2]]| {
        let [start, end] = [ends[0], ends[1]];
        let from = [0, 1].map(|run| {
            let (piece, number) = find(run, start[run]);
            (piece, number..number + end[run] - start[run])
        });
        MergePart { from, base: start[0] + start[1] }
    };
    Ok(cuts.windows(2).map(part).collect())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use backend_api::wrap::SplitMix64;

    use super::*;

    #[test]
    fn parts_make_up_the_merge_and_each_is_of_one_piece_of_either_run() {
        let mut random = SplitMix64::new(5);
        for round in 0..2000 {
            let most = [2, 10, 1000][round % 3];
            let runs: [Vec<Vec<u64>>; 2] = [0, 1].map(|_| {
                let mut keys: Vec<u64> = (0..1 + random.index(30)).map(|_| random.next() % most).collect();
                keys.sort_unstable();
                let mut pieces = Vec::new();
                while !keys.is_empty() {
                    let rest = keys.split_off(1 + random.index(keys.len()));
                    pieces.push(std::mem::replace(&mut keys, rest));
                }
                pieces
            });
            let lengths =
                runs.each_ref().map(|run| run.iter().map(|piece| piece.len() as u64).collect::<Vec<_>>());
            let key = |run: usize, piece: usize, number: u64| {
                Ok::<_, Infallible>(runs[run][piece][number as usize])
            };
            let parts = parts_of([&lengths[0], &lengths[1]], key).unwrap();
            // Collect the found keys, each with its run.
            let mut found = Vec::new();
            for part in &parts {
                assert_eq!(part.base, found.len() as u64);
                let mut here = Vec::new();
                for (run, (piece, range)) in part.from.iter().enumerate() {
                    let keys = &runs[run][*piece][range.start as usize..range.end as usize];
                    here.extend(keys.iter().map(|key| (*key, run)));
                }
                here.sort_unstable();
                assert_eq!(part.len(), here.len() as u64);
                found.extend(here);
            }
            let mut expected: Vec<(u64, usize)> = [0, 1]
                .iter()
                .flat_map(|&run| runs[run].concat().into_iter().map(move |key| (key, run)))
                .collect();
            expected.sort_unstable();
            assert_eq!(found, expected, "{runs:?}");
        }
    }

    #[test]
    fn tiles_do_not_go_across_pages() {
        let dealt =
            |first, count, page_len| StripedRange { page_len, ..StripedRange::side_by_side(first, count, 0) };
        assert_eq!(dealt(0, 1, 1000).tiles(), 1);
        assert_eq!(dealt(999, 2, 1000).tiles(), 2);
        assert_eq!(dealt(0, MERGE_TILE + 1, 1 << 62).tiles(), 2);
        assert_eq!(dealt(MERGE_TILE - 1, 2, 1 << 62).tiles(), 2);
        // The range begins at the last tile of a page of two tiles: one tile, two tiles of the next page, one
        // more.
        assert_eq!(dealt(MERGE_TILE, 2 * MERGE_TILE + 1, MERGE_TILE + 1).tiles(), 4);
        assert_eq!(dealt(5, 0, 7).tiles(), 0);
    }
}
