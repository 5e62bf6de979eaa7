//! Elements in device memory, as operands of requests: contiguous, or stored in pages.

use crate::DeviceSpan;

/// Contiguous elements in device memory.
///
/// Element `i` begins `i * stride` bytes after [`start`](Self::start).
///
/// ```
/// use backend_api::{BufferHandle, Elements};
/// let memory = BufferHandle::unique();
/// // Eight structures of twelve bytes, after a header of four bytes.
/// let elements = Elements { start: memory.at(4), count: 8, stride: 12 };
/// assert_eq!(elements.count * elements.stride, 96);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elements<'a> {
    /// The position of element 0.
    pub start: DeviceSpan<'a>,
    /// The number of elements.
    pub count: u64,
    /// Bytes from one element to the next; at least 1.
    pub stride: u64,
}

/// The elements of a view (an array argument of a kernel), contiguous or in pages.
///
/// ```
/// use backend_api::{BufferHandle, Elements, LaunchView};
/// let memory = BufferHandle::unique();
/// let row = LaunchView::Run(Elements { start: memory.at(0), count: 5, stride: 4 });
/// assert_eq!((row.count(), row.stride(), row.place(3)), (5, 4, Some((memory.at(0), 12))));
/// // Pages of two elements, striped over two positions.
/// let bases = [memory.at(100), memory.at(200)];
/// let striped = LaunchView::Striped { bases: &bases, page_len: 2, count: 7, stride: 4 };
/// assert_eq!(striped.place(3), Some((memory.at(200), 4)));
/// assert_eq!((striped.place(5), striped.place(7)), (Some((memory.at(100), 12)), None));
/// assert_eq!(striped.ranges().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [16, 12]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchView<'a> {
    /// Contiguous elements.
    Run(Elements<'a>),
    /// Elements in pages, which are striped over several ranges of memory. With `n = bases.len()`, page `p`
    /// is page number `p / n` of the contiguous pages that begin at `bases[p % n]`.
    Striped {
        /// The starts of the `n` ranges, 1 to [`LaunchView::BASES_MAX`]: range `i` has the pages `i`, `i +
        /// n`, `i + 2n` and so on.
        bases: &'a [DeviceSpan<'a>],
        /// Number of elements of a page; at least 1.
        page_len: u64,
        /// The number of elements.
        count: u64,
        /// Bytes from one element to the next; at least 1.
        stride: u64,
    },
}

impl<'a> From<Elements<'a>> for LaunchView<'a> {
    fn from(elements: Elements<'a>) -> Self {
        Self::Run(elements)
    }
}

impl<'a> LaunchView<'a> {
    /// Maximum number of positions in device memory over which a view's pages are striped.
    pub const BASES_MAX: usize = 64;

    /// Returns the number of elements of the view.
    #[must_use]
    pub const fn count(&self) -> u64 {
        match self {
            Self::Run(elements) => elements.count,
            Self::Striped { count, .. } => *count,
        }
    }

    /// Bytes from one element to the next.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        match self {
            Self::Run(elements) => elements.stride,
            Self::Striped { stride, .. } => *stride,
        }
    }

    /// Returns the start of each contiguous sequence of the view's pages. If the elements are contiguous,
    /// returns only their start.
    #[must_use]
    pub const fn bases(&self) -> &[DeviceSpan<'a>] {
        match self {
            Self::Run(elements) => std::slice::from_ref(&elements.start),
            Self::Striped { bases, .. } => bases,
        }
    }

    /// Number of elements of a page; 2^63 if all elements are contiguous.
    #[must_use]
    pub const fn page_len(&self) -> u64 {
        match self {
            Self::Run(_) => 1 << 63,
            Self::Striped { page_len, .. } => *page_len,
        }
    }

    /// Returns the position of an element, as one of the [`bases`](Self::bases) and an offset from it in
    /// bytes; `None` if the element does not exist.
    ///
    /// # Panics
    /// May panic for a view that the [check](crate::Request::check) of a request would refuse, such as one
    /// with empty pages.
    #[must_use]
    pub fn place(&self, element: u64) -> Option<(DeviceSpan<'a>, u64)> {
        if element >= self.count() {
            return None;
        }
        let (bases, page_len) = (self.bases().len() as u64, self.page_len());
        let page = element / page_len;
        let before = page / bases * page_len + element % page_len;
        Some((self.bases()[(page % bases) as usize], before * self.stride()))
    }

    /// Returns the [`bases`](Self::bases), each with the number of the view's bytes from there on.
    ///
    /// # Panics
    /// The panics of [`place`](Self::place).
    pub fn ranges(&self) -> impl Iterator<Item = (DeviceSpan<'a>, u64)> {
        let (bases, page_len, count) = (self.bases().len() as u64, self.page_len(), self.count());
        let (stride, pages) = (self.stride(), count.div_ceil(page_len));
        // Every page is whole except perhaps the view's last page.
        let elements = move |base: u64| {
            let here = (pages + bases - 1 - base) / bases;
            let missing = pages * page_len.min(count) - count;
            let has_last = pages > 0 && (pages - 1) % bases == base;
            here * page_len.min(count) - if has_last { missing } else { 0 }
        };
        let places: Vec<_> = self.bases().to_vec();
        places.into_iter().zip(0..).map(move |(place, base)| (place, elements(base) * stride))
    }
}
