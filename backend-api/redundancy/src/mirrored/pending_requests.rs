//! Owned copies of submitted requests, so that the mirror can repeat a failed device's requests on another
//! one.

use std::time::Duration;

use backend_api::expr::{Geometry, OwnedCompute};
use backend_api::kernel::VerifiedKernel;
use backend_api::{
    DeviceSpan, Elements, Fill, Gather, HostSpan, Launch, LaunchView, Request, Route, Scatter, Search,
    Transfer,
};

/// A copy of a request without lifetimes.
#[derive(Debug)]
pub(super) enum OwnedRequest {
    Copies(Vec<Transfer<'static>>, Option<Route>),
    Fill(Fill<'static>, Vec<u8>),
    Search(Search<'static>, Vec<u8>),
    Gather(OwnedList),
    Scatter(OwnedList),
    Compute(OwnedCompute),
    Launch(Box<OwnedLaunch>),
}

/// A launch that owns its lists of views, parameters and tables.
#[derive(Debug)]
pub(super) struct OwnedLaunch {
    kernel: VerifiedKernel,
    items: u64,
    geometry: Geometry,
    views: Vec<OwnedView>,
    params: Vec<u64>,
    table: Vec<u8>,
    budget: Option<u64>,
    time_limit: Option<Duration>,
    private_heap_bytes: u64,
    report: HostSpan<'static>,
}

/// A gather or a scatter that owns its list of positions.
#[derive(Debug)]
pub(super) struct OwnedList {
    elements: OwnedView,
    indices: HostSpan<'static>,
    count: u64,
    values: HostSpan<'static>,
}

#[derive(Debug)]
enum OwnedView {
    Run(Elements<'static>),
    Striped { bases: Vec<DeviceSpan<'static>>, page_len: u64, count: u64, stride: u64 },
}

impl OwnedView {
    fn view(&self) -> LaunchView<'_> {
        match *self {
            Self::Run(elements) => LaunchView::Run(elements),
            Self::Striped { ref bases, page_len, count, stride } => {
                LaunchView::Striped { bases, page_len, count, stride }
            }
        }
    }
}

impl OwnedRequest {
    /// Copies a request.
    ///
    /// # Safety
    /// The requirements of [`HostSpan::detach`], for all memory that the request names.
    pub(super) unsafe fn new(request: &Request<'_>) -> Self {
        // SAFETY: guaranteed by the caller.
        let device = |at: DeviceSpan<'_>| unsafe { at.detach() };
        // SAFETY: as above.
        let host = |at: HostSpan<'_>| unsafe { at.detach() };
        let elements =
            |of: &Elements<'_>| Elements { start: device(of.start), count: of.count, stride: of.stride };
        let view = |view: &LaunchView<'_>| match *view {
            LaunchView::Run(ref of) => OwnedView::Run(elements(of)),
            LaunchView::Striped { bases, page_len, count, stride } => {
                let bases = bases.iter().map(|base| device(*base)).collect();
                OwnedView::Striped { bases, page_len, count, stride }
            }
        };
        match *request {
            Request::Copies(transfers, route) => {
                let copy = |transfer: &Transfer<'_>| match *transfer {
                    Transfer::Upload { from, to, bytes } => {
                        Transfer::Upload { from: host(from), to: device(to), bytes }
                    }
                    Transfer::Download { from, to, bytes } => {
                        Transfer::Download { from: device(from), to: host(to), bytes }
                    }
                    Transfer::Internal { from, to, bytes } => {
                        Transfer::Internal { from: device(from), to: device(to), bytes }
                    }
                };
                Self::Copies(transfers.iter().map(copy).collect(), route)
            }
            Request::Fill(fill) => {
                let kept = Fill { to: device(fill.to), bytes: fill.bytes, pattern: &[] };
                Self::Fill(kept, fill.pattern.to_vec())
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
            Request::Gather(&Gather { elements, indices, count, values }) => {
                let (indices, values) = (host(indices), host(values));
                Self::Gather(OwnedList { elements: view(&elements), indices, count, values })
            }
            Request::Scatter(&Scatter { elements, indices, count, values }) => {
                let (indices, values) = (host(indices), host(values));
                Self::Scatter(OwnedList { elements: view(&elements), indices, count, values })
            }
            // SAFETY: guaranteed by the caller.
            Request::Compute(compute) => Self::Compute(unsafe { OwnedCompute::new(compute) }),
            Request::Launch(launch) => Self::Launch(Box::new(OwnedLaunch {
                kernel: launch.kernel.clone(),
                items: launch.items,
                geometry: launch.geometry,
                views: launch.views.iter().map(view).collect(),
                params: launch.params.to_vec(),
                table: launch.table.to_vec(),
                budget: launch.budget,
                time_limit: launch.time_limit,
                private_heap_bytes: launch.private_heap_bytes,
                report: host(launch.report),
            })),
        }
    }

    /// Calls `run` with the stored request.
    pub(super) fn with<R>(&self, run: impl FnOnce(&Request<'_>) -> R) -> R {
        match self {
            Self::Copies(transfers, route) => run(&Request::Copies(transfers, *route)),
            Self::Fill(fill, pattern) => run(&Request::Fill(&Fill { pattern, ..*fill })),
            Self::Search(search, value) => run(&Request::Search(&Search { value, ..*search })),
            &Self::Gather(OwnedList { ref elements, indices, count, values }) => {
                run(&Request::Gather(&Gather { elements: elements.view(), indices, count, values }))
            }
            &Self::Scatter(OwnedList { ref elements, indices, count, values }) => {
                run(&Request::Scatter(&Scatter { elements: elements.view(), indices, count, values }))
            }
            Self::Compute(compute) => compute.with(|compute| run(&Request::Compute(compute))),
            Self::Launch(launch) => {
                let views: Vec<_> = launch.views.iter().map(OwnedView::view).collect();
                run(&Request::Launch(&Launch {
                    kernel: &launch.kernel,
                    items: launch.items,
                    geometry: launch.geometry,
                    views: &views,
                    params: &launch.params,
                    table: &launch.table,
                    budget: launch.budget,
                    time_limit: launch.time_limit,
                    private_heap_bytes: launch.private_heap_bytes,
                    report: launch.report,
                }))
            }
        }
    }
}
