//! One device of a mirror, and the translation of memory ids: from ids of the mirror to ids of the device.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Action;
use backend_api::{
    BufferHandle, BufferId, Compute, Device, DeviceSpan, Elements, Error, ErrorKind, Fill, Gather,
    HostAllocation, HostId, HostSpan, Launch, LaunchView, QueueHandle, QueueId, Request, Result, Scatter,
    Search, Ticket, Transfer,
};
use vmarray_support::IdMap;

/// The state of one device of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberStatus {
    /// The device has all data.
    Current,
    /// The device receives all writes, but still lacks the ranges in `missing`.
    Rebuilding,
    /// The device receives no more requests; the mirror removes it when its work is done.
    Leaving,
    Lost,
}

/// One device of a mirror, with its handles for the mirror's queues and memory.
#[derive(Debug)]
pub(super) struct Member {
    /// Id of the device, unique within the mirror.
    pub(super) id: u64,
    pub(super) device: Arc<dyn Device>,
    pub(super) status: MemberStatus,
    pub(super) queues: IdMap<QueueId, QueueHandle>,
    pub(super) buffers: IdMap<BufferId, BufferHandle>,
    pub(super) hosts: IdMap<HostId, HostAllocation>,
    /// The device's queue for copies from one device to another.
    pub(super) copies: Option<QueueHandle>,
    /// Estimate of the work in flight on the device, in bytes.
    pub(super) busy_bytes: u64,
    /// The ranges that the device lacks during a rebuild.
    pub(super) missing: Vec<(BufferId, Range<u64>)>,
    /// Ids of the devices that can copy to this device without the host.
    pub(super) links: Vec<u64>,
}

/// Changes to a request if another device than the first executes it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adapted<'a> {
    /// True if this is not the first device. The device then omits downloads; the first device makes them.
    pub(super) is_repeated: bool,
    /// Host memory for the report of a launch, instead of the memory that the program named.
    pub(super) report: Option<HostSpan<'a>>,
}

impl Member {
    pub(super) fn new(id: u64, device: Arc<dyn Device>, status: MemberStatus) -> Result<Self> {
        let copies = Some(device.create_queue()?);
        let (queues, buffers, hosts) = Default::default();
        let (missing, links) = Default::default();
        Ok(Self { id, device, status, queues, buffers, hosts, copies, busy_bytes: 0, missing, links })
    }

    pub(super) fn is_current(&self) -> bool {
        self.status == MemberStatus::Current
    }

    pub(super) fn is_there(&self) -> bool {
        matches!(self.status, MemberStatus::Current | MemberStatus::Rebuilding)
    }

    /// Submits a request to this device, with the device's own handles.
    pub(super) fn start(
        &self,
        queue: QueueId,
        request: &Request<'_>,
        adapted: Adapted<'_>,
    ) -> Result<Ticket> {
        let unknown = || {
            Error::new(ErrorKind::UnknownHandle, request.operation())
                .with_detail("the queue is released, or belongs to another device")
        };
        let queue = self.queues.get(&queue).ok_or_else(unknown)?;
        self.with_request(request, adapted, |request| self.device.submit(queue, request))
    }

    /// Compiles the program or kernel of a request on this device.
    pub(super) fn prepare(&self, request: &Request<'_>) -> Result<()> {
        match request {
            Request::Compute(_) | Request::Launch(_) => {
                self.with_request(request, Adapted::default(), |request| self.device.prepare(&[*request]))
            }
            _ => Ok(()),
        }
    }

    fn device_place(&self, at: DeviceSpan<'_>) -> Result<DeviceSpan<'_>> {
        let unknown = || {
            Error::new(ErrorKind::UnknownHandle, "submit")
                .with_detail("the buffer is released, or belongs to another device")
        };
        Ok(self.buffers.get(&at.buffer()).ok_or_else(unknown)?.at(at.offset()))
    }

    fn host_place(&self, at: HostSpan<'_>) -> Result<HostSpan<'_>> {
        let unknown = || {
            Error::new(ErrorKind::UnknownHandle, "submit")
                .with_detail("the host memory is released, or belongs to another device")
        };
        Ok(self.hosts.get(&at.host()).ok_or_else(unknown)?.at(at.offset()))
    }

    fn elements(&self, elements: &Elements<'_>) -> Result<Elements<'_>> {
        Ok(Elements { start: self.device_place(elements.start)?, ..*elements })
    }

    /// Returns the starts of a view's pages in this device's memory.
    fn places(&self, view: &LaunchView<'_>) -> Result<Vec<DeviceSpan<'_>>> {
        view.bases().iter().map(|base| self.device_place(*base)).collect()
    }

    fn transfer(&self, transfer: &Transfer<'_>) -> Result<Transfer<'_>> {
        Ok(match *transfer {
            Transfer::Upload { from, to, bytes } => {
                Transfer::Upload { from: self.host_place(from)?, to: self.device_place(to)?, bytes }
            }
            Transfer::Download { from, to, bytes } => {
                Transfer::Download { from: self.device_place(from)?, to: self.host_place(to)?, bytes }
            }
            Transfer::Internal { from, to, bytes } => {
                Transfer::Internal { from: self.device_place(from)?, to: self.device_place(to)?, bytes }
            }
        })
    }

    /// Calls `run` with a compute request that names this device's memory.
    fn with_compute<R>(
        &self,
        compute: &Compute<'_>,
        run: impl FnOnce(&Compute<'_>) -> Result<R>,
    ) -> Result<R> {
        let sources = compute.sources.iter().map(|source| self.elements(source));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let action = match compute.action {
            Action::Find { predicate, limit, count_all, answer } => {
                Action::Find { predicate, limit, count_all, answer: self.host_place(answer)? }
            }
            Action::Sum { value, filter, answer } => {
                Action::Sum { value, filter, answer: self.host_place(answer)? }
            }
            Action::Extremes { value, filter, least, greatest, answer } => {
                Action::Extremes { value, filter, least, greatest, answer: self.host_place(answer)? }
            }
            Action::Histogram { value, filter, bins, answer } => {
                Action::Histogram { value, filter, bins, answer: self.host_place(answer)? }
            }
            Action::Store { stores, filter } => Action::Store { stores, filter },
        };
        run(&Compute { program: compute.program, sources: &sources, geometry: compute.geometry, action })
    }

    /// Calls `run` with a launch that names this device's memory, and writes its report to `report` if set.
    pub(super) fn with_launch<R>(
        &self,
        launch: &Launch<'_>,
        report: Option<HostSpan<'_>>,
        run: impl FnOnce(&Launch<'_>) -> Result<R>,
    ) -> Result<R> {
        let places = launch.views.iter().map(|view| self.places(view)).collect::<Result<Vec<_>>>()?;
        let views: Vec<LaunchView<'_>> =
            launch.views.iter().zip(&places).map(|(view, bases)| moved(view, bases)).collect();
        let report = self.host_place(report.unwrap_or(launch.report))?;
        run(&Launch {
            kernel: launch.kernel,
            items: launch.items,
            geometry: launch.geometry,
            views: &views,
            params: launch.params,
            table: launch.table,
            budget: launch.budget,
            time_limit: launch.time_limit,
            private_heap_bytes: launch.private_heap_bytes,
            report,
        })
    }

    /// Calls `run` with a request that names this device's memory.
    fn with_request<R>(
        &self,
        request: &Request<'_>,
        adapted: Adapted<'_>,
        run: impl FnOnce(&Request<'_>) -> Result<R>,
    ) -> Result<R> {
        match *request {
            Request::Copies(transfers, route) => {
                let is_wanted = |transfer: &&Transfer<'_>| {
                    !(adapted.is_repeated && matches!(transfer, Transfer::Download { .. }))
                };
                let transfers = transfers.iter().filter(is_wanted).map(|transfer| self.transfer(transfer));
                run(&Request::Copies(&transfers.collect::<Result<Vec<_>>>()?, route))
            }
            Request::Fill(fill) => run(&Request::Fill(&Fill { to: self.device_place(fill.to)?, ..*fill })),
            Request::Search(search) => {
                let (elements, answer) = (self.elements(&search.elements)?, self.host_place(search.answer)?);
                run(&Request::Search(&Search { elements, answer, ..*search }))
            }
            Request::Gather(&Gather { elements, indices, count, values }) => {
                let (indices, values, places) =
                    (self.host_place(indices)?, self.host_place(values)?, self.places(&elements)?);
                let elements = moved(&elements, &places);
                run(&Request::Gather(&Gather { elements, indices, count, values }))
            }
            Request::Scatter(&Scatter { elements, indices, count, values }) => {
                let (indices, values, places) =
                    (self.host_place(indices)?, self.host_place(values)?, self.places(&elements)?);
                let elements = moved(&elements, &places);
                run(&Request::Scatter(&Scatter { elements, indices, count, values }))
            }
            Request::Compute(compute) => {
                self.with_compute(compute, |compute| run(&Request::Compute(compute)))
            }
            Request::Launch(launch) => {
                self.with_launch(launch, adapted.report, |launch| run(&Request::Launch(launch)))
            }
        }
    }
}

/// Returns the same view with its pages at other positions, one for each of its bases.
fn moved<'a>(view: &LaunchView<'_>, places: &'a [DeviceSpan<'a>]) -> LaunchView<'a> {
    match *view {
        LaunchView::Run(elements) => LaunchView::Run(Elements { start: places[0], ..elements }),
        LaunchView::Striped { page_len, count, stride, .. } => {
            LaunchView::Striped { bases: places, page_len, count, stride }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // No wait is needed here: each release waits for the work that uses the released object.
        let queues = self.queues.drain().map(|(_, queue)| queue).chain(self.copies.take());
        queues.for_each(|queue| self.device.release_queue(queue));
        self.buffers.drain().for_each(|(_, buffer)| self.device.release(buffer));
        self.hosts.drain().for_each(|(_, host)| self.device.release_host(host));
    }
}
