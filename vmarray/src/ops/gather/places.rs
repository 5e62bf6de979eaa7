//! Locations of elements: converts an index to a page, a channel (share of a device), and an offset within
//! the channel. The divisions are done by shifts or multiplications if possible.

/// A divisor for repeated divisions, as a shift, a multiplication or a division.
#[derive(Clone, Copy, Debug)]
enum Divisor {
    Shift(u32),
    /// The quotient is the upper 64 bits of the product with this number.
    Multiply(u64),
    Divide(u64),
}

impl Divisor {
    /// Creates a divisor for dividends below `end`.
    fn new(divisor: u64, end: u64) -> Self {
        if divisor.is_power_of_two() {
            return Self::Shift(divisor.trailing_zeros());
        }
        // The factor is 2^64 / divisor, rounded up. The upper 64 bits of the product are the exact quotient
        // if the dividend is less than 2^64 / divisor (T. Granlund and P. Montgomery, "Division by invariant
        // integers using multiplication", 1994).
        if end.checked_mul(divisor).is_some() {
            return Self::Multiply(u64::MAX / divisor + 1);
        }
        Self::Divide(divisor)
    }

    #[inline(always)]
    fn divide(self, number: u64) -> u64 {
        match self {
            Self::Shift(bits) => number >> bits,
            Self::Multiply(factor) => ((u128::from(number) * u128::from(factor)) >> 64) as u64,
            Self::Divide(divisor) => number / divisor,
        }
    }
}

/// The distribution of an array's elements over its channels, for the conversion of indices to locations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    page_len: u64,
    channels: u64,
    by_page_len: Divisor,
    by_channels: Divisor,
    /// The channel whose device moves all elements, if the device can access the elements of all channels.
    lane: Option<usize>,
}

/// The location of an element, as gathers and scatters use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedPlace {
    pub(crate) page: u64,
    /// The offset of the element in its page, in elements.
    pub(crate) at: usize,
    /// The channel whose device moves the element.
    pub(crate) channel: usize,
    /// The element's number, counted from the channel's first slot; or its index in the array, if the
    /// channel's device can access all elements.
    pub(crate) element: u64,
}

impl Places {
    pub(crate) fn new(len: usize, page_len: usize, channels: usize) -> Self {
        let (end, page_len, channels) = (len as u64, page_len as u64, channels as u64);
        Self {
            page_len,
            channels,
            by_page_len: Divisor::new(page_len, end),
            by_channels: Divisor::new(channels, end / page_len + 1),
            lane: (channels == 1).then_some(0),
        }
    }

    /// Returns locations for which the device of one channel moves all elements.
    pub(crate) fn moved_by(self, lane: usize) -> Self {
        Self { lane: Some(lane), ..self }
    }

    /// Returns the channel that moves all elements, if there is one. Element numbers are then indices.
    #[inline]
    pub(crate) fn lane(&self) -> Option<usize> {
        self.lane
    }

    /// Returns the page of an element; the index must be in bounds.
    #[inline(always)]
    pub(crate) fn page(&self, index: usize) -> u64 {
        self.by_page_len.divide(index as u64)
    }

    /// Returns the location of an element; the index must be in bounds.
    #[inline(always)]
    pub(crate) fn of(&self, index: usize) -> ListedPlace {
        let index = index as u64;
        let page = self.by_page_len.divide(index);
        let at = index - page * self.page_len;
        if let Some(channel) = self.lane {
            return ListedPlace { page, at: at as usize, channel, element: index };
        }
        let slot = self.by_channels.divide(page);
        ListedPlace {
            page,
            at: at as usize,
            channel: (page - slot * self.channels) as usize,
            element: slot * self.page_len + at,
        }
    }

    /// Returns the page of an element, given its [number](ListedPlace) and its channel.
    #[inline]
    pub(crate) fn page_of(&self, channel: usize, element: u64) -> u64 {
        if self.lane.is_some() {
            return self.by_page_len.divide(element);
        }
        self.by_page_len.divide(element) * self.channels + channel as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(index: usize, page_len: usize, channels: usize, len: usize) {
        let places = Places::new(len, page_len, channels);
        let (page, at) = (index / page_len, index % page_len);
        let element = (page / channels * page_len + at) as u64;
        let place = ListedPlace { page: page as u64, at, channel: page % channels, element };
        assert_eq!((places.page(index), places.lane()), (place.page, (channels == 1).then_some(0)));
        let moved = places.moved_by(7);
        assert_eq!(moved.of(index), ListedPlace { channel: 7, element: index as u64, ..place });
        assert_eq!((moved.lane(), moved.page_of(7, index as u64)), (Some(7), page as u64));
        assert_eq!(places.of(index), place, "{index} {page_len} {channels} {len}");
        assert_eq!(places.page_of(place.channel, element), page as u64);
    }

    #[test]
    fn places_equal_plain_divisions() {
        for page_len in [1, 2, 3, 7, 64, 93, 1000, 1489] {
            for channels in [1, 2, 3, 5, 8] {
                (0..5000).for_each(|index| check(index, page_len, channels, 5000));
            }
        }
    }

    #[test]
    fn large_numbers_are_divided_exactly() {
        for len in [1_usize << 32, (1 << 40) + 7, usize::MAX / 4096] {
            for page_len in [1, 3, 1489, 65_535, 1_000_003] {
                for channels in [1, 3, 7, 64] {
                    for index in [0, 1, len / 3, len / page_len * page_len - 1, len - 2, len - 1] {
                        check(index, page_len, channels, len);
                    }
                }
            }
        }
    }
}
