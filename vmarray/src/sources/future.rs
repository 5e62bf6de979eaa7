//! [`SourceFlushAsync`]: a future that writes a source's changed pages back to the program's memory.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use backend_api::{QueueProgress, Ticket};

use super::channel::PageBlocks;
use super::core::SourceCore;
use crate::array::asynchronous::Asked;
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::engine::channel::PinnedPiece;
use crate::ops::executor::Lane as _;

/// Maximum number of pages in transfer at a time.
const PAGES: usize = 16;

/// The future of [`View::flush_async`](crate::views::View::flush_async) for a source. It copies newer
/// elements from the devices to the program's memory (the home).
///
/// The future holds no lock of a page between two polls. If a page changes during its copy, the future copies
/// it again. The program may drop the future at any time; the drop blocks until running copies end. Copied
/// pages are then valid in the home, and the other pages are still newer on the devices.
///
/// ```
/// use vmarray::prelude::*;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// let source = vmarray::Source::new(vec![0_u32; 100])?;
/// source.fill(.., 7)?;
/// let mut done = pin!(source.flush_async(..));
/// let mut context = Context::from_waker(Waker::noop());
/// while done.as_mut().poll(&mut context)?.is_pending() {}
/// use std::future::Future;
/// assert_eq!(source.page_state(0)?.newer, 0);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "does nothing unless polled"]
pub struct SourceFlushAsync<'a, T: Element> {
    core: &'a SourceCore<T>,
    range: Range<usize>,
    /// The pages that the future has not examined yet.
    pages: Range<usize>,
    /// Pages to copy again, because they changed during their copy.
    again: Vec<usize>,
    under_way: Vec<Copy>,
    error: Option<Error>,
}

struct Copy {
    ticket: Ticket,
    buffer: PinnedPiece,
    page: PageBlocks,
    version: u64,
    asked: Asked,
}

impl<T: Element> SourceCore<T> {
    pub(super) fn flush_async(&self, range: Result<Range<usize>>) -> SourceFlushAsync<'_, T> {
        let (range, error) = match range {
            Ok(range) => (range, None),
            Err(error) => (0..0, Some(error)),
        };
        let pages = self.cuts.touched_pages(&range);
        SourceFlushAsync { core: self, range, pages, again: Vec::new(), under_way: Vec::new(), error }
    }
}

impl<T: Element> SourceFlushAsync<'_, T> {
    fn next_page(&mut self) -> Option<usize> {
        let entries = &self.core.entries;
        self.again.pop().or_else(|| self.pages.find(|&page| entries[page].dirty() != 0))
    }

    /// Starts the copy of a page if it has newer blocks.
    fn start(&mut self, page: usize) -> Result<()> {
        let core = self.core;
        let entry = &core.entries[page];
        let guard = entry.share();
        let blocks = entry.dirty() & core.cuts.touched(&core.cuts.within(page, &self.range));
        let (slot, version) = (entry.slot(), entry.version());
        drop(guard);
        let Some(slot) = slot.filter(|_| blocks != 0) else { return Ok(()) };
        let page = PageBlocks { page, slot, blocks };
        // Another page may get the slot (in device memory) before the copy ends. The page's version detects
        // this.
        let (buffer, ticket) = core.channel(page.page).start_to_read(page)?;
        self.under_way.push(Copy { ticket, buffer, page, version, asked: Asked::default() });
        Ok(())
    }

    /// Processes a completed copy: writes the blocks to the home, unless the page has changed meanwhile.
    fn land(&mut self, copy: Copy) {
        let entry = &self.core.entries[copy.page.page];
        let channel = self.core.channel(copy.page.page);
        let mut held = entry.take();
        if entry.version() == copy.version {
            self.core.land(&mut held, &copy.buffer, copy.page);
            entry.flushed(copy.page.blocks);
            channel.counters.write_backs.add(1);
        } else {
            self.again.push(copy.page.page);
        }
        drop(held);
        channel.keep(copy.buffer);
    }

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }
}

impl<T: Element> Future for SourceFlushAsync<'_, T> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        loop {
            let mut landed = false;
            for copy in std::mem::take(&mut this.under_way) {
                let channel = this.core.channel(copy.page.page);
                match channel.device().poll(copy.ticket) {
                    Ok(QueueProgress::Pending) => this.under_way.push(copy),
                    Ok(QueueProgress::Done) => {
                        landed = true;
                        this.land(copy);
                    }
                    Err(error) => {
                        channel.counters.failed_write_backs.add(1);
                        this.fail(error.into());
                    }
                }
            }
            while this.under_way.len() < PAGES
                && let Some(page) = this.next_page()
            {
                landed = true;
                if let Err(error) = this.start(page) {
                    this.fail(error);
                }
            }
            if this.under_way.is_empty() && this.again.is_empty() {
                return Poll::Ready(this.error.take().map_or(Ok(()), Err));
            }
            if !landed {
                // Register the waker with all copies, because each completed copy allows progress.
                for copy in &mut this.under_way {
                    let channel = this.core.channel(copy.page.page);
                    copy.asked.wake(&**channel.device(), copy.ticket, context.waker());
                }
                return Poll::Pending;
            }
        }
    }
}

impl<T: Element> fmt::Debug for SourceFlushAsync<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceFlushAsync")
            .field("range", &self.range)
            .field("pages_left", &(self.pages.len() + self.again.len() + self.under_way.len()))
            .finish_non_exhaustive()
    }
}
