//! Queued requests: validated, with references to memory instead of ids; a request keeps its memory alive.

use backend_api::{Compute, DeviceSpan, Gather, HostSpan, LaunchView, Request, Result, Scatter, Transfer};
use vmarray_support::backends::IndexedDirection;

use crate::handle_table::MemoryPlace;
use crate::host_memory::HostMemoryPiece;
use crate::kernel::compute::ComputeJob;
use crate::kernel::copy::{CheckedCopy, Copies};
use crate::kernel::fill::FillJob;
use crate::kernel::indexed::IndexedCopy;
use crate::kernel::launch::{LaunchJob, ViewMemory};
use crate::peers::KnownMemory;
use crate::queue::Job;
use crate::storage::Storage;
use crate::worker::{Crew, Urgency};

/// Requests of this many bytes take longer than the wake-up of a thread (some microseconds, at 10 GB/s).
const LONG_BYTES: u64 = 128 << 10;

/// One submitted request, with references to its memory.
#[derive(Debug)]
pub(crate) enum HostSubmission<M> {
    Copies(Copies<M>),
    Fill(FillJob<M>),
    Indexed(IndexedCopy<M>),
    Compute(ComputeJob<M>),
    Launch(LaunchJob<M>),
}

impl<M: Storage> HostSubmission<M> {
    /// Creates a submission: checks `request`, and looks up the request's buffers in the tables of `memory`.
    pub fn new<Q>(memory: &KnownMemory<'_, M, Q>, request: &Request<'_>) -> Result<Self> {
        request.check(memory)?;
        let operation = request.operation();
        let device = |at: DeviceSpan<'_>| -> Result<MemoryPlace<M>> {
            Ok(MemoryPlace {
                memory: memory.own.buffer(operation, at.buffer())?.clone(),
                offset: at.offset(),
            })
        };
        let anywhere = |at: DeviceSpan<'_>| -> Result<MemoryPlace<M>> {
            Ok(MemoryPlace { memory: memory.buffer(operation, at.buffer())?.clone(), offset: at.offset() })
        };
        let host = |at: HostSpan<'_>| -> Result<MemoryPlace<HostMemoryPiece>> {
            Ok(MemoryPlace { memory: memory.own.host(operation, at.host())?.clone(), offset: at.offset() })
        };
        let resolve = |transfer: &Transfer<'_>| -> Result<CheckedCopy<M>> {
            Ok(match *transfer {
                Transfer::Upload { from, to, bytes } => {
                    CheckedCopy::Upload { from: host(from)?, to: device(to)?, bytes }
                }
                Transfer::Download { from, to, bytes } => {
                    CheckedCopy::Download { from: device(from)?, to: host(to)?, bytes }
                }
                Transfer::Internal { from, to, bytes } => {
                    CheckedCopy::Internal { from: anywhere(from)?, to: anywhere(to)?, bytes }
                }
            })
        };
        Ok(match *request {
            Request::Copies([one], _) => Self::Copies(Copies::One(resolve(one)?)),
            Request::Copies(many, _) => {
                Self::Copies(Copies::Many(many.iter().map(resolve).collect::<Result<_>>()?))
            }
            Request::Fill(fill) => {
                Self::Fill(FillJob { to: device(fill.to)?, bytes: fill.bytes, pattern: fill.pattern.into() })
            }
            Request::Search(search) => {
                let (from, answer) = (device(search.elements.start)?, host(search.answer)?);
                let job = |compute: &Compute<'_>| Ok(ComputeJob::new(compute, vec![from], Some(answer)));
                Self::Compute(search.as_compute(job)?)
            }
            Request::Gather(&Gather { elements, indices, count, values })
            | Request::Scatter(&Scatter { elements, indices, count, values }) => Self::Indexed(IndexedCopy {
                direction: IndexedDirection::of(request),
                places: elements.bases().iter().map(|base| anywhere(*base)).collect::<Result<_>>()?,
                page_len: elements.page_len(),
                element_count: elements.count(),
                stride: elements.stride(),
                indices: host(indices)?,
                count,
                values: host(values)?,
            }),
            Request::Compute(compute) => {
                let sources = compute.sources.iter().map(|source| device(source.start));
                let answer = compute.answer().map(host).transpose()?;
                Self::Compute(ComputeJob::new(compute, sources.collect::<Result<_>>()?, answer))
            }
            Request::Launch(launch) => {
                let placed = |(number, view): (usize, &LaunchView<'_>)| -> Result<ViewMemory<M>> {
                    let places = view.bases().iter().map(|base| anywhere(*base)).collect::<Result<_>>()?;
                    Ok(ViewMemory::new(view, launch.kernel.body().views[number].access, places))
                };
                let views = launch.views.iter().enumerate().map(placed).collect::<Result<_>>()?;
                Self::Launch(LaunchJob::new(launch, views, host(launch.report)?))
            }
        })
    }

    /// Number of bytes that the submission moves or reads.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Copies(copies) => copies.bytes(),
            Self::Fill(fill) => fill.bytes,
            Self::Indexed(indexed) => indexed.bytes(),
            Self::Compute(compute) => compute.bytes(),
            Self::Launch(launch) => launch.bytes(),
        }
    }

    /// Returns true if the work uses a location in memory for which a predicate is true.
    fn any_place(
        &self,
        device: impl Fn(&MemoryPlace<M>) -> bool,
        host: impl Fn(&MemoryPlace<HostMemoryPiece>) -> bool,
    ) -> bool {
        match self {
            Self::Copies(copies) => copies.as_slice().iter().any(|one| match one {
                CheckedCopy::Upload { from, to, .. } => host(from) || device(to),
                CheckedCopy::Download { from, to, .. } => device(from) || host(to),
                CheckedCopy::Internal { from, to, .. } => device(from) || device(to),
            }),
            Self::Fill(fill) => device(&fill.to),
            Self::Indexed(indexed) => {
                indexed.places.iter().any(device) || host(&indexed.indices) || host(&indexed.values)
            }
            Self::Compute(compute) => {
                compute.sources.iter().any(device) || compute.answer.as_ref().is_some_and(host)
            }
            Self::Launch(launch) => {
                let mut bases = launch.views.iter().flat_map(|view| &view.bases);
                host(&launch.report) || bases.any(|(base, _)| device(base))
            }
        }
    }
}

impl<M: Storage> Job for HostSubmission<M> {
    fn run(&self, crew: Crew<'_>) -> Result<()> {
        match self {
            Self::Copies(copies) => copies.run(crew),
            Self::Fill(fill) => fill.run(crew),
            Self::Indexed(indexed) => indexed.run(crew),
            Self::Compute(compute) => compute.run(crew),
            Self::Launch(launch) => launch.run(crew),
        }
    }

    fn urgency(&self) -> Urgency {
        let is_long = match self {
            Self::Launch(launch) => launch.is_long(),
            _ => self.bytes() >= LONG_BYTES,
        };
        if is_long { Urgency::Long } else { Urgency::Short }
    }

    fn touches(&self, memory: *const ()) -> bool {
        self.any_place(|place| place.is_in(memory), |place| place.is_in(memory))
    }
}
