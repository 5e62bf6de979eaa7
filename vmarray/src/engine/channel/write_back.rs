//! Write-back: submits copies of dirty pages from cache frames to home slots (in device memory).

use backend_api::Ticket;

use super::Channel;
use super::coalesce::{CopyWay, coalesce};
use super::transfers::{Submission, Wakes, WriteBack};
use super::victims::Victim;
use crate::base::error::Result;
use crate::base::recording;
use crate::engine::page::{HazardAccess, PageTable};

/// Reason of a write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBackFor {
    /// The pages are to be evicted next.
    Evict,
    Flush,
}

impl Channel {
    /// Phases 3 and 4 of an eviction of dirty pages: starts the write-back.
    /// [`Sweep::WriteBack`](crate::engine::page::Sweep::WriteBack) or `try_write_back` has pinned the pages.
    ///
    /// After an error the pages stay dirty, and are released.
    pub(crate) fn write_back(
        &self,
        table: &PageTable,
        dirty: &[Victim],
        purpose: WriteBackFor,
    ) -> Result<Option<Ticket>> {
        if dirty.is_empty() {
            return Ok(None);
        }
        self.quiesce_all(dirty.iter().map(|v| (table.entry(v.page), v.before)), HazardAccess::Writes);
        let bytes = self.layout.page_bytes as u64;
        let mut places: Vec<_> = dirty.iter().map(|v| (self.home(v.page), v.frame.host)).collect();
        places.sort_unstable_by_key(|(home, _)| home.offset());
        let copies = coalesce(places.into_iter(), bytes, CopyWay::WriteBack);
        // Keep the order lock until the write-back is recorded: threads that submit kernels take this lock
        // and must find the write-back.
        let mut order = self.queues.begin_writes();
        let submitted = self.queues.write_beside(&mut order, |queue| queue.submit(&copies));
        let mut wakes = Wakes::default();
        let mut shard = self.lock();
        let result = match submitted {
            Ok(ticket) => {
                self.counters.bytes_to_device.add(bytes * dirty.len() as u64);
                recording::sized(ticket, dirty.len(), || bytes * dirty.len() as u64);
                let pages = dirty.iter().map(|v| v.page).collect();
                let (submission, evicting) = (Submission::new(ticket, false), purpose == WriteBackFor::Evict);
                shard.work.write_backs.push(WriteBack { submission, pages, evicting });
                // Keep the lock, so that no thread finishes the transfer before the pages are marked. A
                // thread that sleeps for one of these pages must now help.
                for victim in dirty {
                    wakes.add(victim.page, table.entry(victim.page).mark_in_flight());
                }
                Ok(Some(ticket))
            }
            Err(error) => {
                self.counters.failed_write_backs.add(dirty.len() as u64);
                shard.work.write_error.get_or_insert_with(|| error.clone());
                for victim in dirty {
                    wakes.add(victim.page, table.entry(victim.page).end_write_back(false));
                }
                Err(error.into())
            }
        };
        drop(shard);
        drop(order);
        self.wake(table, wakes);
        result
    }

    /// Writes back a dirty page and waits. The caller holds it exclusively, with shut gates, meanwhile.
    ///
    /// After an error the page stays dirty.
    pub(crate) fn write_back_held(&self, table: &PageTable, page: u64) -> Result<()> {
        let entry = table.entry(page);
        let before = entry.write_back_held();
        let victim = Victim { page, frame: self.frame_at(entry.address()), before };
        let started = self.write_back(table, &[victim], WriteBackFor::Flush);
        let result = started.and_then(|ticket| ticket.map_or(Ok(()), |ticket| self.finish(table, ticket)));
        if result.is_err() {
            // The caller gets this error, so the next flush must not report it again.
            self.lock().work.write_error = None;
        }
        result
    }

    /// Takes the error of a failed write-back that no thread has received.
    pub(crate) fn take_write_error(&self) -> Option<backend_api::Error> {
        self.lock().work.write_error.take()
    }
}
