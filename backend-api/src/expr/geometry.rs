//! The mapping from an element's number in a request to its index in the program's array.

/// The mapping from an element's number in a request to its index in the program's array. The array consists
/// of pages of `page_len` elements, striped over `channels` channels, such as devices: page `p` is in channel
/// `p % channels`. A request covers elements of one channel: its element 0 is element `first` of channel
/// `channel`.
///
/// ```
/// use backend_api::expr::Geometry;
/// let second_of_three = Geometry { first: 0, page_len: 10, channel: 1, channels: 3 };
/// assert_eq!((second_of_three.index(9), second_of_three.index(10)), (19, 40));
/// assert_eq!(Geometry::plain(5).index(7), 12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Number of elements in the channel (share of the array's pages) before element 0 of the request.
    pub first: u64,
    /// Number of elements of a page; at least 1.
    pub page_len: u64,
    /// Index of the channel (share of the array's pages) whose elements the request covers.
    pub channel: u64,
    /// The number of channels (shares of the array's pages); at least 1.
    pub channels: u64,
}

impl Geometry {
    /// Creates the geometry of elements with consecutive indices, from `first` on.
    #[must_use]
    pub const fn plain(first: u64) -> Self {
        Self { first, page_len: 1 << 63, channel: 0, channels: 1 }
    }

    /// Returns the index of element `number` of the request. The arithmetic wraps.
    #[must_use]
    pub const fn index(&self, number: u64) -> u64 {
        let at = self.first.wrapping_add(number);
        let page = (at / self.page_len).wrapping_mul(self.channels).wrapping_add(self.channel);
        page.wrapping_mul(self.page_len).wrapping_add(at % self.page_len)
    }
}
