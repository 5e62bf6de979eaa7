//! Requests in the form in which they wait for their turn: checked, with names resolved and memory kept
//! alive.

use backend_api::{Compute, Elements, Extents, Fill, Gather, HostSpan, Result, Scatter, Search, Transfer};

use crate::host_memory::Piece;
use crate::kernel::compute::ComputeJob;
use crate::kernel::copy::{Copies, Move};
use crate::kernel::fill::FillJob;
use crate::kernel::indexed::{Direction, Indexed};
use crate::kernel::search::SearchJob;
use crate::medium::Medium;
use crate::queue::Job;
use crate::registry::{Entries, Place};
use crate::worker::{Crew, Urgency};

/// Work from this many bytes on takes longer than waking a thread (some microseconds, at 10 GB/s).
const LONG_BYTES: u64 = 128 << 10;

/// One submission.
#[derive(Debug)]
pub(crate) enum Work<M> {
    /// `submit`.
    Copies(Copies<M>),
    /// `fill`.
    Fill(FillJob<M>),
    /// `search`.
    Search(SearchJob<M>),
    /// `gather` and `scatter`.
    Indexed(Indexed<M>),
    /// `compute`.
    Compute(ComputeJob<M>),
}

impl<M: Medium> Work<M> {
    /// Checks and resolves copies.
    pub fn copies<Q>(entries: &Entries<M, Q>, transfers: &[Transfer<'_>]) -> Result<Self> {
        const OPERATION: &str = "submit";
        let resolve = |transfer: &Transfer<'_>| -> Result<Move<M>> {
            entries.check_transfer(transfer)?;
            let bytes = transfer.bytes();
            Ok(match *transfer {
                Transfer::Upload { from, to, .. } => Move::Upload {
                    from: entries.host(OPERATION, from)?,
                    to: entries.device(OPERATION, to)?,
                    bytes,
                },
                Transfer::Download { from, to, .. } => Move::Download {
                    from: entries.device(OPERATION, from)?,
                    to: entries.host(OPERATION, to)?,
                    bytes,
                },
                Transfer::Internal { from, to, .. } => Move::Internal {
                    from: entries.device(OPERATION, from)?,
                    to: entries.device(OPERATION, to)?,
                    bytes,
                },
            })
        };
        Ok(Self::Copies(match transfers {
            [one] => Copies::One(resolve(one)?),
            many => Copies::Many(many.iter().map(resolve).collect::<Result<_>>()?),
        }))
    }

    /// Checks and resolves a fill.
    pub fn fill<Q>(entries: &Entries<M, Q>, fill: &Fill<'_>) -> Result<Self> {
        entries.check_fill(fill)?;
        let to = entries.device("fill", fill.to)?;
        Ok(Self::Fill(FillJob { to, bytes: fill.bytes, pattern: fill.pattern.into() }))
    }

    /// Checks and resolves a search.
    pub fn search<Q>(entries: &Entries<M, Q>, search: &Search<'_>) -> Result<Self> {
        entries.check_search(search)?;
        let from = entries.device("search", search.elements.start)?;
        let answer = entries.host("search", search.answer)?;
        Ok(Self::Search(SearchJob::new(search, from, answer)))
    }

    /// Checks and resolves a gather.
    pub fn gather<Q>(entries: &Entries<M, Q>, gather: &Gather<'_>) -> Result<Self> {
        entries.check_gather(gather)?;
        let Gather { elements, indices, count, values } = *gather;
        let from = entries.device("gather", elements.start)?;
        Self::indexed(entries, "gather", (Direction::Gather, from, elements), (indices, count, values))
    }

    /// Checks and resolves a scatter.
    pub fn scatter<Q>(entries: &Entries<M, Q>, scatter: &Scatter<'_>) -> Result<Self> {
        entries.check_scatter(scatter)?;
        let Scatter { elements, indices, count, values } = *scatter;
        let to = entries.device("scatter", elements.start)?;
        Self::indexed(entries, "scatter", (Direction::Scatter, to, elements), (indices, count, values))
    }

    /// Checks and resolves a computation.
    pub fn compute<Q>(entries: &Entries<M, Q>, compute: &Compute<'_>) -> Result<Self> {
        const OPERATION: &str = "compute";
        entries.check_compute(compute)?;
        let resolve = |source: &Elements<'_>| entries.device(OPERATION, source.start);
        let sources = compute.sources.iter().map(resolve).collect::<Result<_>>()?;
        let answer = compute.answer().map(|answer| entries.host(OPERATION, answer)).transpose()?;
        Ok(Self::Compute(ComputeJob::new(compute, sources, answer)))
    }

    fn indexed<Q>(
        entries: &Entries<M, Q>,
        operation: &'static str,
        (direction, start, elements): (Direction, Place<M>, Elements<'_>),
        (indices, count, values): (HostSpan<'_>, u64, HostSpan<'_>),
    ) -> Result<Self> {
        Ok(Self::Indexed(Indexed {
            direction,
            elements: start,
            element_count: elements.count,
            stride: elements.stride,
            indices: entries.host(operation, indices)?,
            count,
            values: entries.host(operation, values)?,
        }))
    }

    /// How many bytes it moves or reads through.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Copies(copies) => copies.bytes(),
            Self::Fill(fill) => fill.bytes,
            Self::Search(search) => search.bytes(),
            Self::Indexed(indexed) => indexed.bytes(),
            Self::Compute(compute) => compute.bytes(),
        }
    }

    /// Calls `visit` for every place in memory that it touches.
    fn any_place(&self, device: impl Fn(&Place<M>) -> bool, host: impl Fn(&Place<Piece>) -> bool) -> bool {
        match self {
            Self::Copies(copies) => copies.as_slice().iter().any(|one| match one {
                Move::Upload { from, to, .. } => host(from) || device(to),
                Move::Download { from, to, .. } => device(from) || host(to),
                Move::Internal { from, to, .. } => device(from) || device(to),
            }),
            Self::Fill(fill) => device(&fill.to),
            Self::Search(search) => device(&search.from) || host(&search.answer),
            Self::Indexed(indexed) => {
                device(&indexed.elements) || host(&indexed.indices) || host(&indexed.values)
            }
            Self::Compute(compute) => {
                compute.sources.iter().any(device) || compute.answer.as_ref().is_some_and(host)
            }
        }
    }
}

impl<M: Medium> Job for Work<M> {
    fn run(&self, crew: Crew<'_>) -> Result<()> {
        match self {
            Self::Copies(copies) => copies.run(crew),
            Self::Fill(fill) => fill.run(crew),
            Self::Search(search) => search.run(crew),
            Self::Indexed(indexed) => indexed.run(crew),
            Self::Compute(compute) => compute.run(crew),
        }
    }

    fn urgency(&self) -> Urgency {
        if self.bytes() >= LONG_BYTES { Urgency::Long } else { Urgency::Short }
    }

    fn touches(&self, memory: *const ()) -> bool {
        self.any_place(|place| place.is_in(memory), |place| place.is_in(memory))
    }
}
