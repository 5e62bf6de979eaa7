//! Requests that are kept until they are done, to be asked of another device if theirs is lost.

use crate::expr::OwnedCompute;
use crate::{DeviceSpan, Elements, Gather, HostSpan, Request, Route, Search, Transfer, View};

use super::member::moved;

/// A request that changes no device memory, tied to nothing.
#[derive(Debug)]
pub(super) enum Kept {
    Copies(Vec<Transfer<'static>>, Option<Route>),
    Search(Search<'static>, Vec<u8>),
    /// And the places of its elements.
    Gather(Gather<'static>, Vec<DeviceSpan<'static>>),
    Compute(OwnedCompute),
}

impl Kept {
    /// A copy of a request; `None` of one that may change device memory.
    ///
    /// # Safety
    /// As [`HostSpan::detach`], for all of its places.
    pub(super) unsafe fn new(request: &Request<'_>) -> Option<Self> {
        // SAFETY: the caller's promise.
        let device = |at: DeviceSpan<'_>| unsafe { at.detach() };
        // SAFETY: as above.
        let host = |at: HostSpan<'_>| unsafe { at.detach() };
        let elements =
            |of: &Elements<'_>| Elements { start: device(of.start), count: of.count, stride: of.stride };
        Some(match *request {
            Request::Copies(transfers, route) => {
                let download = |transfer: &Transfer<'_>| match *transfer {
                    Transfer::Download { from, to, bytes } => {
                        Some(Transfer::Download { from: device(from), to: host(to), bytes })
                    }
                    _ => None,
                };
                Self::Copies(transfers.iter().map(download).collect::<Option<_>>()?, route)
            }
            Request::Search(search) => {
                let kept = Search {
                    elements: elements(&search.elements),
                    field_offset: search.field_offset,
                    value: &[],
                    limit: search.limit,
                    count_all: search.count_all,
                    answer: host(search.answer),
                };
                Self::Search(kept, search.value.to_vec())
            }
            Request::Gather(gather) => {
                let places = gather.elements.bases().iter().map(|place| device(*place)).collect();
                let kept = Gather {
                    elements: match gather.elements {
                        View::Run(of) => View::Run(elements(&of)),
                        View::Dealt { page_len, count, stride, .. } => {
                            View::Dealt { bases: &[], page_len, count, stride }
                        }
                    },
                    indices: host(gather.indices),
                    count: gather.count,
                    values: host(gather.values),
                };
                Self::Gather(kept, places)
            }
            // SAFETY: the caller's promise.
            Request::Compute(compute) => Self::Compute(unsafe { OwnedCompute::new(compute) }),
            Request::Fill(_) | Request::Scatter(_) | Request::Launch(_) => return None,
        })
    }

    /// Calls `run` with the request.
    pub(super) fn with<R>(&self, run: impl FnOnce(&Request<'_>) -> R) -> R {
        match self {
            Self::Copies(transfers, route) => run(&Request::Copies(transfers, *route)),
            Self::Search(search, value) => run(&Request::Search(&Search { value, ..*search })),
            Self::Gather(gather, places) => {
                run(&Request::Gather(&Gather { elements: moved(&gather.elements, places), ..*gather }))
            }
            Self::Compute(compute) => compute.with(|compute| run(&Request::Compute(compute))),
        }
    }
}
