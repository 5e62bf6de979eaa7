//! Submission of a [`Session`]'s launches: divides the work-items (GPU threads) among devices, converts
//! arguments, and orders each launch after the launches that it depends on.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{Device, DeviceSpan, Elements, Launch, LaunchView, Queue, Reach, Request, Ticket};
use vmarray_kernel::ParameterKind;
use vmarray_kernel::launch::{LaunchVariant, Mode, SHORT_MAX};

use super::bindings::{Binding, BindingPlaces};
use super::{LAUNCHES, Launched, Session, SessionLane, Stored, StoredPlace, refused};
use crate::base::error::{Error, ErrorKind, Result};
use crate::engine::channel::{Channel, HomeQueues};
use crate::engine::links::reach;
use crate::engine::pager::Pager;
use crate::ops::executor::{WorkQueue, are_groups_within_pages, within_channel};
use crate::ops::launch::bound_arguments::{ArgumentPlaces, BoundArgument, BoundArguments, BoundElements};
use crate::ops::launch::broadcast::{READ_IN_PLACE_MAX, device_modes, of_stored, unchecked_modes};
use crate::ops::launch::checks::{has_positions, is_short};
use crate::ops::launch::groups::LinearGroups;
use crate::ops::launch::kernel::{KernelVariants, PreparedKernel};
use crate::ops::launch::options::LaunchOptions;
use crate::ops::launch::plan::{LaunchPlan, PlannedItems};
use crate::ops::view::StoredBox;

/// Location of an argument's elements in a session.
struct SessionPlaces {
    /// Index of the array in the session.
    store: usize,
    extents: Vec<usize>,
    stored: StoredBox,
    modes: Vec<(Mode, Vec<u64>)>,
}

type SessionElements<'k> = BoundElements<'k, SessionPlaces>;

impl ArgumentPlaces for SessionPlaces {
    fn extents(&self) -> &[usize] {
        &self.extents
    }

    fn range(&self) -> Range<usize> {
        self.stored.range()
    }

    fn is_in_store_of(&self, other: &Self) -> bool {
        self.store == other.store
    }
}

impl SessionElements<'_> {
    /// Number of stored elements before the view's first element, for arguments read by one index.
    fn skipped(&self) -> usize {
        if self.is_around() && !self.is_counted() { 0 } else { self.places.range().start }
    }
}

/// A plan of a launch, and the elements of each of its kernel's views.
struct PlannedLaunch<'k> {
    plan: LaunchPlan<'k>,
    views: Vec<&'k SessionElements<'k>>,
}

/// The work-items of a launch that one device runs.
struct Part {
    lane: usize,
    /// Index of the channel that stores the elements; `None` for all channels.
    channel: Option<usize>,
    /// Range of the elements, counted from the channel's first slot.
    within: Range<u64>,
    geometry: Geometry,
}

impl Part {
    fn items(&self) -> u64 {
        self.within.end - self.within.start
    }
}

/// Checks the arguments of a launch, and returns the argument whose elements are the work-items.
fn checked<'b, 'k>(
    kernel: &PreparedKernel,
    bound: &'b BoundArguments<'k, SessionPlaces>,
) -> Result<&'b SessionElements<'k>> {
    let name = kernel.lowered.name;
    bound.expect_apart(kernel)?;
    if !bound.has_result() {
        return Err(refused(name, "it has no result: use a `&mut Own<T>` or a `&Shared<T>`"));
    }
    let Some(first) = bound.own().next() else {
        let reason =
            "no argument sets the number of work-items: use an `&Own<T>` or a `&mut Own<T>` parameter";
        return Err(refused(name, reason));
    };
    bound.expect_one_shape(kernel)?;
    let stored = &first.places.stored;
    if let Some(other) = bound.own().find(|of| stored.axes.len() > 1 && of.places.stored != *stored) {
        let reason = format!(
            "`{}` is not stored like `{}`: build both with the same devices, page length and tiles",
            other.info.name, first.info.name
        );
        return Err(refused(name, &reason));
    }
    Ok(first)
}

impl Session<'_> {
    /// Submits a kernel after all earlier launches of the session.
    pub(in crate::ops::launch) fn launch(
        &mut self,
        kernels: &KernelVariants,
        arguments: Vec<Binding>,
        options: &LaunchOptions,
    ) -> Result<()> {
        let usual = Arc::clone(&kernels.usual);
        let name = usual.lowered.name;
        if !kernels.tile.is_empty() {
            let reason = "its groups are tiles of a result: launch it by `run`, outside of a session";
            return Err(refused(name, reason));
        }
        let bound = self.bind(&usual, arguments)?;
        let first = checked(&usual, &bound)?;
        let domain = &first.places.stored;
        let mut form = bound.variant(kernels, domain).map_err(|reason| refused(name, &reason))?;
        let all = &bound.elements;
        form.modes.extend(all.iter().flat_map(|of| unchecked_modes(of.number, &of.places.modes)));
        form.is_short = has_positions(&usual.lowered.parameters)
            && is_short(domain)
            && all.iter().all(|of| of.places.range().end < SHORT_MAX as usize);
        let range = domain.range();
        if range.is_empty() {
            return Ok(());
        }
        let parts = self.parts(name, first, all)?;
        form.is_striped = kernels.group_len.is_some() && parts.iter().any(|part| part.channel.is_some());
        if let Some(group_len) = kernels.group_len.filter(|_| form.is_striped) {
            self.expect_whole_groups(name, group_len, first)?;
        }
        let kernel =
            if form == LaunchVariant::default() { usual.clone() } else { kernels.prepared(form.clone())? };
        let (start, items) = (range.start, range.len());
        let groups = kernels.group_len.map(|len| LinearGroups { len, start, items });
        let (form, tile_len, values) = (&form, domain.tile_len(), &bound.values);
        let items = PlannedItems { form, domain, tile_len, values, groups };
        let stencil = |parameter, part| {
            bound.of(parameter).map_or(0, |of| of_stored(&of.places.stored, &of.places.modes, part))
        };
        let len = |parameter| bound.of(parameter).map_or(0, |of| of.places.extents.iter().product());
        let plan = LaunchPlan::new(kernel, options, &items, stencil, len);
        let views = plan.kernel.lowered.views.iter().filter_map(|parameter| bound.of(*parameter)).collect();
        let launch = PlannedLaunch { plan, views };
        self.find_out(&launch, &parts)?;
        self.order(&parts, all)?;
        for (number, part) in parts.iter().enumerate() {
            let ticket = self.launch_part(&launch, part, first, number > 0)?;
            self.note(part.lane, all, ticket);
        }
        Ok(())
    }

    /// Submits the work-items of one part. `is_begun` is true if an earlier part was submitted.
    fn launch_part(
        &mut self,
        launch: &PlannedLaunch<'_>,
        part: &Part,
        first: &SessionElements<'_>,
        is_begun: bool,
    ) -> Result<Ticket> {
        if self.lanes[part.lane].launched.len() == LAUNCHES {
            self.take(part.lane);
        }
        let (plan, range) = (&launch.plan, first.places.range());
        let report = self.lanes[part.lane].count % LAUNCHES * Report::BYTES as usize;
        let launched = self.with(launch, part, report, |queue, launch| {
            let mut submit = |queue: &Queue<dyn Device>| self.work_queue(part, queue).submit(launch);
            match self.beside_others(part, first) {
                Some((queues, others)) => queues.between_all_writes(&others, &[], &mut submit),
                None => submit(queue),
            }
        });
        let ticket = launched.map_err(|cause| -> Error {
            if !is_begun {
                return cause.into();
            }
            let (written, unspecified) = (Vec::new(), std::iter::once(0..range.len()).collect());
            ErrorKind::Interrupted { written, unspecified, cause }.into()
        })?;
        let lane = &mut self.lanes[part.lane];
        lane.count += 1;
        let (kernel, options, geometry) = (Arc::clone(&plan.kernel), *plan.options, part.geometry);
        lane.launched.push_back(Launched { kernel, options, geometry, ticket, report, range });
        Ok(ticket)
    }

    fn bind<'k>(
        &self,
        kernel: &'k PreparedKernel,
        arguments: Vec<Binding>,
    ) -> Result<BoundArguments<'k, SessionPlaces>> {
        let name = kernel.lowered.name;
        let mut bound = BoundArguments::new(&kernel.lowered.parameters, arguments, |_, info, argument| {
            let (BindingPlaces { of, extents, stored }, modes) = match argument {
                Binding::Values(values) => return Ok(BoundArgument::Values(values)),
                Binding::Elements(of) => (of, Some(Vec::new())),
                Binding::Around(of, modes) => (of, modes),
            };
            let Some(modes) = device_modes(modes) else {
                let reason = "devices support only the boundary modes of this library: use one of them";
                return Err(refused(name, reason));
            };
            if of.session != self.number {
                return Err(refused(
                    name,
                    "an argument belongs to another session: hold the array in this session",
                ));
            }
            let Some(stored) = stored else {
                let reason = format!("`{}` has fewer axes than its array: hold the whole array", info.name);
                return Err(refused(name, &reason));
            };
            Ok(BoundArgument::Elements(SessionPlaces { store: of.number, extents, stored, modes }))
        })?;
        for of in &mut bound.elements {
            let (is_counted, stored) = (of.is_counted(), &of.places.stored);
            if of.is_around() && (stored.is_tiled() || is_counted && stored.is_part()) {
                let reason = format!(
                    "`{}` is read in place, which needs a whole array that is stored row by row: copy it to \
                     one",
                    of.info.name
                );
                return Err(refused(name, &reason));
            }
            if is_counted {
                let range = stored.range();
                of.places.stored = StoredBox::range_of(range.start, range.len());
            }
        }
        Ok(bound)
    }

    /// Divides the work-items among devices, in parts as large as possible. `first` determines the
    /// work-items.
    fn parts(
        &mut self,
        name: &str,
        first: &SessionElements<'_>,
        taken: &[SessionElements<'_>],
    ) -> Result<Vec<Part>> {
        let range = first.places.range();
        // The kernel runs on the devices of these arguments: shared results, and arguments with one element
        // for each work-item (GPU thread).
        let worked_on = || taken.iter().filter(|taken| !taken.is_around());
        let homes: Vec<&Pager> = worked_on().filter_map(|of| self.stores[of.places.store].pager()).collect();
        let Some(device) = homes.first().map(|pager| Arc::clone(pager.channels()[0].device())) else {
            return Err(refused(
                name,
                "none of its results is on a device: pass `session.hold(&mut array)?` as a result",
            ));
        };
        let mut channels = homes.iter().flat_map(|pager| pager.channels());
        let is_on_one = channels.all(|other| Arc::ptr_eq(other.device(), &device));
        // One launch can cover several channels (shares of the device) of an array only if there are few of
        // them, and the argument begins at the first element of the array.
        let is_whole = |of: &SessionElements<'_>| {
            let count = self.stores[of.places.store].pager().map_or(1, |pager| pager.channels().len());
            count == 1 || count <= READ_IN_PLACE_MAX && of.skipped() == 0
        };
        let parts = if is_on_one && worked_on().all(is_whole) {
            let (lane, within) = (self.known_lane(&device), 0..range.len() as u64);
            vec![Part { lane, channel: None, within, geometry: Geometry::plain(range.start as u64) }]
        } else {
            self.parts_by_channel(name, first, taken, is_on_one)?
        };
        for of in taken.iter().filter(|of| of.is_around()) {
            let channels = self.stores[of.places.store].pager().map_or(1, |pager| pager.channels().len());
            if channels > READ_IN_PLACE_MAX {
                return Err(refused(name, &too_many_channels(of.info.name, channels)));
            }
            if channels > 1 && of.skipped() > 0 {
                let reason = format!(
                    "`{}` is a section of an array with several channels: hold the whole array",
                    of.info.name
                );
                return Err(refused(name, &reason));
            }
            parts.iter().try_for_each(|part| self.expect_reach(name, part.lane, of))?;
        }
        Ok(parts)
    }

    /// Divides the work-items by channel. The arguments with one element for each must have one location.
    fn parts_by_channel(
        &self,
        name: &str,
        first: &SessionElements<'_>,
        taken: &[SessionElements<'_>],
        is_on_one: bool,
    ) -> Result<Vec<Part>> {
        let (range, of) = (first.places.range(), &self.stores[first.places.store]);
        let is_alike = |other: &SessionElements<'_>| {
            let (Some(own), Some(others)) = (of.pager(), self.stores[other.places.store].pager()) else {
                return false;
            };
            self.stores[other.places.store].page_len() == of.page_len()
                && other.places.range().start == range.start
                && own.is_striped_like(others)
        };
        let mut others = taken.iter().filter(|taken| !taken.is_around());
        if let Some(other) = others.find(|other| !other.is_own() || !is_alike(other)) {
            let channels = |of: &SessionElements<'_>| {
                self.stores[of.places.store].pager().map_or(0, |of| of.channels().len())
            };
            let most = channels(other).max(channels(first));
            if is_on_one && most > READ_IN_PLACE_MAX {
                return Err(refused(name, &too_many_channels(other.info.name, most)));
            }
            let reason = match other.info.kind {
                ParameterKind::Shared(_) => format!(
                    "its elements are on several devices: hold arrays on one device, because any work-item \
                     may change any element of `{}`",
                    other.info.name
                ),
                _ => format!(
                    "its elements are on several devices or channels, so `{}` must be stored like `{}`: \
                     hold an array with the same devices, channels and page length, such as `empty_like` \
                     makes, and begin both at the same index",
                    other.info.name, first.info.name
                ),
            };
            return Err(refused(name, &reason));
        }
        let Some(pager) = of.pager() else { return Ok(Vec::new()) };
        let (count, page_len) = (pager.channels().len(), of.page_len());
        let part = |(channel, of): (usize, &Arc<Channel>)| {
            let within = within_channel((channel, count), page_len as usize, &range);
            let (channel, channels) = (channel as u64, count as u64);
            let geometry = Geometry { first: within.start, page_len, channel, channels };
            Part { lane: self.known_lane(of.device()), channel: Some(channel as usize), within, geometry }
        };
        Ok(pager.channels().iter().enumerate().map(part).filter(|part| part.items() > 0).collect())
    }

    /// Returns an error if a group has elements on several channels.
    fn expect_whole_groups(&self, name: &str, group_len: usize, first: &SessionElements<'_>) -> Result<()> {
        let (range, page_len) = (first.places.range(), self.stores[first.places.store].page_len() as usize);
        if are_groups_within_pages(group_len, page_len, &range) {
            return Ok(());
        }
        let (kernel, start, fits) = (name.into(), range.start, page_len.next_multiple_of(group_len));
        Err(ErrorKind::KernelGroups { kernel, group_len, page_len, start, fits }.into())
    }

    /// Returns an error if the device that reads elements cannot access the device that stores them.
    fn expect_reach(&mut self, name: &str, lane: usize, of: &SessionElements<'_>) -> Result<()> {
        let device = Arc::clone(self.lanes[lane].queue.device());
        let Stored { place, .. } = &self.stores[of.places.store];
        let refused_between = |other: &str| {
            let device = &device.info().name;
            let reason = format!(
                "work-items on {device} read `{}`, and {device} cannot reach the memory of {other}; \
                 launch the kernel by `run`, which copies the elements",
                of.info.name
            );
            Err(refused(name, &reason))
        };
        match place {
            StoredPlace::Home(pager) => {
                for channel in pager.channels() {
                    let other = channel.device();
                    let number = self.known_lane(other);
                    let known = &mut self.lanes[lane].reached;
                    known.resize(known.len().max(number + 1), None);
                    // This device must reach the other one to read its elements. The other device must reach
                    // this one, so that its later writes wait for this read.
                    let maps =
                        || reach(&device, other) == Reach::Maps && reach(other, &device) == Reach::Maps;
                    if !*known[number].get_or_insert_with(maps) {
                        if other.info().identity == device.info().identity {
                            let reason = format!(
                                "`{}` is on {} as well, but through another device object: build all arrays \
                                 without a list of devices or with the same `Arc`, and without checksums \
                                 and `movable`",
                                of.info.name,
                                device.info().name
                            );
                            return Err(refused(name, &reason));
                        }
                        return refused_between(&other.info().name);
                    }
                }
                Ok(())
            }
            StoredPlace::Copies(copies) if copies.iter().any(|(on, _)| Arc::ptr_eq(on, &device)) => Ok(()),
            StoredPlace::Copies(_) => refused_between("the copy"),
        }
    }

    /// Makes all devices check the launch before any device begins.
    fn find_out(&mut self, launch: &PlannedLaunch<'_>, parts: &[Part]) -> Result<()> {
        for part in parts {
            let device = Arc::clone(self.lanes[part.lane].queue.device());
            let is_known = |(of, on): &(Arc<PreparedKernel>, _)| {
                Arc::ptr_eq(of, &launch.plan.kernel) && Arc::ptr_eq(on, &device)
            };
            if self.known.iter().any(is_known) {
                continue;
            }
            let none = Part { within: part.within.start..part.within.start, ..*part };
            let report = LAUNCHES * Report::BYTES as usize;
            let asked = self.with(launch, &none, report, |queue, launch| {
                // Ignore an error of the preparation, because the submission returns the same error.
                let _ = device.prepare(&[Request::Launch(launch)]);
                // With several parts, first submit a launch without elements to each device, so that no part
                // runs if any device refuses the kernel. A single part needs no such check.
                let submit = || self.work_queue(part, queue).submit(launch);
                (parts.len() > 1).then(submit).transpose()
            })?;
            asked.map_or(Ok(()), |ticket| device.wait(ticket))?;
            self.known.push((Arc::clone(&launch.plan.kernel), device));
        }
        Ok(())
    }

    /// Orders the launch after earlier launches on other devices that wrote elements it reads, or that read
    /// elements it writes.
    fn order(&mut self, parts: &[Part], taken: &[SessionElements<'_>]) -> Result<()> {
        for part in parts {
            for of in taken.iter().filter(|of| !of.is_own() || of.is_result()) {
                let stored = &self.stores[of.places.store];
                let earlier = if of.is_result() { &stored.read } else { &stored.written };
                for &(number, ticket) in earlier.iter().filter(|(number, _)| *number != part.lane) {
                    let SessionLane { queue, after, .. } = &mut self.lanes[part.lane];
                    after.resize(after.len().max(number + 1), 0);
                    if ticket.value > after[number] {
                        queue.order_after(ticket)?;
                        after[number] = ticket.value;
                    }
                }
            }
        }
        Ok(())
    }

    /// Records the elements that the newest launch on a device reads and writes.
    fn note(&mut self, lane: usize, taken: &[SessionElements<'_>], ticket: Ticket) {
        for of in taken.iter().filter(|of| !of.is_own() || of.is_result()) {
            let stored = &mut self.stores[of.places.store];
            let noted = if of.is_result() { &mut stored.written } else { &mut stored.read };
            match noted.iter_mut().find(|(number, _)| *number == lane) {
                Some(newest) => newest.1 = ticket,
                None => noted.push((lane, ticket)),
            }
        }
    }

    /// Returns the queue for a part of a launch. Sessions do not count copied bytes.
    fn work_queue<'q>(&'q self, part: &Part, queue: &'q Queue<dyn Device>) -> WorkQueue<'q> {
        WorkQueue::new(queue, None, Some(&self.lanes[part.lane].reports))
    }

    /// Calls a function with the device request for a part of a launch.
    fn with<R>(
        &self,
        launch: &PlannedLaunch<'_>,
        part: &Part,
        report: usize,
        work: impl FnOnce(&Queue<dyn Device>, &Launch<'_>) -> backend_api::Result<R>,
    ) -> backend_api::Result<R> {
        let lane = &self.lanes[part.lane];
        let bases: Vec<_> = launch.views.iter().map(|of| self.bases(of, part)).collect();
        let views = launch.views.iter().zip(&bases);
        let views: Vec<LaunchView<'_>> = views.map(|(of, bases)| self.view(of, bases, part)).collect();
        let (run, report) = ((part.geometry, part.items()), lane.reports.at(report as u64));
        let params = launch.plan.params_of(run.0, run.1);
        let launch = launch.plan.launch(&views, &params, run, report);
        work(&lane.queue, &launch)
    }

    /// Returns the queues of a channel of `first` on the device of a part, and of all channels that other
    /// threads may write to.
    fn beside_others(
        &self,
        part: &Part,
        first: &SessionElements<'_>,
    ) -> Option<(&HomeQueues, Vec<&HomeQueues>)> {
        let others = self.shared.iter().flat_map(|(pager, ..)| pager.channels());
        let others: Vec<_> = others.map(|channel| &channel.queues).collect();
        let device = self.lanes[part.lane].queue.device();
        let mut own = self.stores[first.places.store].pager()?.channels().iter();
        let own = own.find(|channel| Arc::ptr_eq(channel.device(), device))?;
        (!others.is_empty()).then_some((&own.queues, others))
    }

    /// Returns the start addresses of an argument's elements for a part: of one channel, or of all channels.
    fn bases(&self, of: &SessionElements<'_>, part: &Part) -> Vec<DeviceSpan<'_>> {
        match (&self.stores[of.places.store].place, part.channel.filter(|_| of.is_own())) {
            (StoredPlace::Home(pager), Some(channel)) => vec![pager.channels()[channel].slot_memory()],
            (StoredPlace::Home(pager), None) => pager.slot_bases(),
            (StoredPlace::Copies(copies), _) => {
                let device = self.lanes[part.lane].queue.device();
                let own = copies.iter().filter(|(on, _)| Arc::ptr_eq(on, device));
                own.map(|(_, memory)| memory.at(0)).collect()
            }
        }
    }

    fn view<'v>(&self, of: &SessionElements<'_>, bases: &'v [DeviceSpan<'v>], part: &Part) -> LaunchView<'v> {
        let stored = &self.stores[of.places.store];
        let (stride, end) = (stored.stride as u64, of.places.range().end as u64);
        let [base] = *bases else {
            return LaunchView::Striped { bases, page_len: stored.page_len(), count: end, stride };
        };
        let (first, count) = match part.channel.filter(|_| of.is_own()) {
            Some(_) => (part.within.start, part.items()),
            None => (of.skipped() as u64, end - of.skipped() as u64),
        };
        LaunchView::Run(Elements { start: base.plus(first * stride), count, stride })
    }
}

fn too_many_channels(name: &str, channels: usize) -> String {
    format!(
        "`{name}` has {channels} channels, but a kernel reads from at most {READ_IN_PLACE_MAX}: build the \
         array with fewer"
    )
}
