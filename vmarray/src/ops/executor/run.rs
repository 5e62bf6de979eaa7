//! [`Run`]: contiguous elements on a device. [`Lane`]: the channel (share of a device) that processes a run.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::{Device, Elements, Queue, Ticket};

use crate::base::error::Result;
use crate::base::stats::Counters;
use crate::engine::channel::PinnedPiece;

/// The kind of access to the elements of a run, which determines the order of submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunAccess {
    /// Reads. All elements must be on the device.
    Read,
    /// Writes, possibly after reads of the same elements.
    Change,
    /// Overwrites all elements without reading them.
    Overwrite,
}

/// The channel that processes runs: a channel of an array or a source, or the device of staged rows.
pub(crate) trait Lane: Sync {
    fn device(&self) -> &Arc<dyn Device>;

    fn counters(&self) -> &Counters;

    /// Returns page-locked host memory of at least `bytes` bytes, for results, lists and copies.
    fn buffer(&self, bytes: usize) -> Result<PinnedPiece>;

    /// Takes host memory back for reuse. All device work on it must have ended.
    fn keep(&self, memory: PinnedPiece);

    /// Submits work to a queue of the device, ordered after all earlier work that conflicts with `access`.
    fn submit(
        &self,
        access: RunAccess,
        work: &mut dyn FnMut(&Queue<dyn Device>) -> backend_api::Result<Ticket>,
    ) -> backend_api::Result<Ticket>;

    fn wait(&self, ticket: Ticket) -> backend_api::Result<()> {
        self.device().wait(ticket)
    }
}

/// Contiguous elements on a device, and the corresponding elements of other columns (operands).
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub(crate) columns: &'a [Elements<'a>],
    /// The mapping from an element's number in the run to its index.
    pub(crate) geometry: Geometry,
}

impl<'a> Run<'a> {
    pub(crate) fn count(&self) -> usize {
        self.columns[0].count as usize
    }

    /// Returns the operands and the geometry of a part of the run; `of` counts elements of the run.
    pub(crate) fn part(&self, of: Range<u64>) -> (Vec<Elements<'a>>, Geometry) {
        let columns = self.columns.iter().map(|column| {
            let start = column.start.plus(of.start * column.stride);
            Elements { start, count: of.end - of.start, ..*column }
        });
        let first = self.geometry.first.wrapping_add(of.start);
        (columns.collect(), Geometry { first, ..self.geometry })
    }

    /// Divides the run at page boundaries. Returns for each part the number of its first element in the run,
    /// the index of this element, and the number of elements.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (geometry, count) = (self.geometry, self.count());
        let (page_len, first) = (geometry.page_len as usize, geometry.first as usize);
        let mut number = 0;
        std::iter::from_fn(move || {
            let len = (page_len - (first + number) % page_len).min(count - number);
            let part = (number, geometry.index(number as u64) as usize, len);
            number += len;
            (len > 0).then_some(part)
        })
    }
}
