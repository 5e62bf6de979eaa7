//! Pages held for the time of a copy, and fetched ahead of it.

use std::iter::Peekable;
use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::pager::{ExclusiveHold, Fetch, SharedHold, Stream};

/// How far ahead of a copy its pages are fetched, in pages a channel.
const LOOKAHEAD: usize = 8;

/// What becomes of a page that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PinFor {
    /// It stays as it is meanwhile.
    Read,
    /// It is this thread's alone, and written to.
    Change,
    /// As `Change`; it may hold anything at first, since all of it is overwritten.
    Overwrite,
}

/// A page in its frame, held by code of this library alone, for a short time.
pub(super) struct Pinned<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    hold: PageHold<'a, D>,
}

enum PageHold<'a, D: Device> {
    Shared(SharedHold<'a, D>),
    Exclusive(ExclusiveHold<'a, D>),
}

impl<'a, T: Element, D: Device> Pinned<'a, T, D> {
    pub(super) fn new(
        array: &'a VirtualArray<T, D>,
        page: usize,
        hold: PinFor,
        stream: Stream,
    ) -> Result<Self> {
        let exclusive =
            |fetch| array.pager().hold_exclusive(page as u64, fetch, stream).map(PageHold::Exclusive);
        let hold = match hold {
            PinFor::Read => PageHold::Shared(array.pager().hold_shared(page as u64, stream)?),
            PinFor::Change => exclusive(Fetch::Contents)?,
            PinFor::Overwrite => exclusive(Fetch::Overwrite)?,
        };
        Ok(Self { array, hold })
    }

    pub(super) fn page(&self) -> usize {
        match &self.hold {
            PageHold::Shared(hold) => hold.page() as usize,
            PageHold::Exclusive(hold) => hold.page() as usize,
        }
    }

    /// The page's first element. Others only read it, or nobody else touches it, as the hold says, until this
    /// is dropped.
    pub(super) fn address(&self) -> *mut T {
        match &self.hold {
            PageHold::Shared(hold) => hold.address().cast(),
            PageHold::Exclusive(hold) => hold.address().cast(),
        }
    }

    /// How many elements the page has.
    pub(super) fn len(&self) -> usize {
        self.array.page_range(self.page()).len()
    }
}

/// Fetches pages that are about to be used, in order, in batches.
pub(super) struct BoxAhead<'a, T: Element, D: Device, I: Iterator<Item = Range<usize>>> {
    array: &'a VirtualArray<T, D>,
    /// What is not on its way yet.
    rest: Peekable<I>,
    /// Pages on their way that were not used yet.
    pending: usize,
    /// How many there may be; below two, none is fetched ahead.
    window: usize,
}

impl<'a, T: Element, D: Device, I: Iterator<Item = Range<usize>>> BoxAhead<'a, T, D, I> {
    pub(super) fn new(array: &'a VirtualArray<T, D>, pages: I) -> Self {
        let pager = array.pager();
        let quarter = usize::try_from(pager.frames() / 4).unwrap_or(usize::MAX);
        let window = (LOOKAHEAD * pager.channels().len()).min(quarter);
        Self { array, rest: pages.peekable(), pending: 0, window }
    }

    /// To be called before each page is used.
    pub(super) fn step(&mut self) {
        if self.window < 2 {
            return;
        }
        if self.pending <= self.window / 2 {
            self.fetch();
        }
        self.pending = self.pending.saturating_sub(1);
    }

    fn fetch(&mut self) {
        while self.pending < self.window
            && let Some(pages) = self.rest.peek_mut()
        {
            let now = pages.start..pages.end.min(pages.start + self.window - self.pending);
            pages.start = now.end;
            if pages.start == pages.end {
                self.rest.next();
            }
            self.pending += now.len();
            if let Err(error) = self.array.pager().prefetch(now.start as u64..now.end as u64) {
                crate::base::trace::read_ahead_failed(&error);
            }
        }
    }
}
