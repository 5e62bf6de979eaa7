//! Division of the list of a gather or scatter into segments (parts of the list), which threads process in
//! parallel.

use std::ops::Range;

/// The ratio of the longest to the shortest segments.
const SHORT: usize = 4;

/// Segments of a list that threads share. The first segments of each thread are short, because kernels should
/// start early. Later segments are long, because fewer kernels cost less. The last segments are shorter
/// again, so that all threads end at the same time.
#[derive(Debug)]
pub(super) struct Segments {
    ends: Vec<usize>,
}

impl Segments {
    /// Divides a list of `len` elements into segments of at most `longest` elements.
    pub(super) fn new(len: usize, longest: usize, workers: usize) -> Self {
        let shortest = (longest / SHORT).max(1);
        let mut ends = Vec::new();
        let mut end = 0;
        while end < len {
            let grown = shortest << (ends.len() / workers.max(1)).min(SHORT.ilog2() as usize);
            let share = (len - end) / workers.max(1);
            let count = if workers == 1 { longest } else { grown.min(share).clamp(shortest, longest) };
            end += count.min(len - end);
            ends.push(end);
        }
        Self { ends }
    }

    /// Returns the range of the list that a segment covers; `None` behind the last segment.
    pub(super) fn get(&self, number: usize) -> Option<Range<usize>> {
        let end = *self.ends.get(number)?;
        Some(number.checked_sub(1).map_or(0, |before| self.ends[before])..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn segments_cover_the_list_once(len in 0_usize..100_000, longest in 1_usize..5000, workers in 1_usize..20) {
            let segments = Segments::new(len, longest, workers);
            let mut end = 0;
            for number in 0.. {
                let Some(places) = segments.get(number) else { break };
                prop_assert_eq!(places.start, end);
                prop_assert!(!places.is_empty() && places.len() <= longest);
                end = places.end;
            }
            prop_assert_eq!(end, len);
        }
    }

    #[test]
    fn segments_grow_and_shrink() {
        let segments = Segments::new(1000, 40, 4);
        let lengths: Vec<usize> =
            (0..).map_while(|number| segments.get(number)).map(|places| places.len()).collect();
        assert_eq!(lengths[..10], [10, 10, 10, 10, 20, 20, 20, 20, 40, 40]);
        assert_eq!(lengths[lengths.len() - 4..], [10, 10, 10, 9]);
        assert_eq!(Segments::new(100, 40, 1).ends, [40, 80, 100]);
    }
}
