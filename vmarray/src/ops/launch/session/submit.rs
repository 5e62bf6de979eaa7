//! Launches of sessions: division of items among devices, arguments, and order.

use std::ops::Range;
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::Report;
use backend_api::{Device, DeviceSpan, Elements, Launch, Queue, Reach, Request, Ticket, View};
use vmarray_kernel::launch::{DomainAxis, LaunchVariant, Mode, SHORT_MAX, VALUES_MAX};
use vmarray_kernel::{ParameterInfo, ParameterKind, ScalarSource};

use super::bindings::{Binding, BindingPlaces};
use super::{LAUNCHES, Launched, Session, SessionLane, Stored, StoredPlace, refused};
use crate::base::error::{Error, ErrorKind, Result};
use crate::engine::channel::{Channel, HomeQueues};
use crate::engine::links::reach;
use crate::engine::pager::Pager;
use crate::ops::executor::{WorkQueue, are_groups_within_pages, within_channel};
use crate::ops::launch::broadcast::{READ_IN_PLACE_MAX, of_stored};
use crate::ops::launch::groups::LinearGroups;
use crate::ops::launch::kernel::{Kernels, PreparedKernel};
use crate::ops::launch::options::Options;
use crate::ops::launch::plan::{expect_shape, form, is_placed, is_short};
use crate::ops::view::StoredBox;

/// Properties common to all parts of a launch.
struct PreparedLaunch<'k> {
    kernel: Arc<PreparedKernel>,
    views: Vec<&'k TakenElements<'k>>,
    params: Vec<u64>,
    table: Vec<u8>,
    groups: Option<LinearGroups>,
    options: &'k Options,
}

/// Elements that a launch uses for a parameter.
struct TakenElements<'k> {
    parameter: usize,
    info: &'k ParameterInfo,
    /// Number of their store.
    number: usize,
    extents: Vec<usize>,
    stored: StoredBox,
    modes: Vec<(Mode, Vec<u64>)>,
}

/// Items of a launch on one device.
struct Part {
    lane: usize,
    /// Number of their channel; none for all channels.
    channel: Option<usize>,
    /// Range of that channel's elements.
    within: Range<u64>,
    geometry: Geometry,
}

impl TakenElements<'_> {
    fn is_result(&self) -> bool {
        matches!(self.info.kind, ParameterKind::OwnMut(_) | ParameterKind::Shared(_))
    }

    fn is_own(&self) -> bool {
        matches!(self.info.kind, ParameterKind::Own(_) | ParameterKind::OwnMut(_))
    }

    /// Returns true if any item may read it, and none writes it.
    fn is_around(&self) -> bool {
        !self.is_own() && !self.is_result()
    }

    /// Returns true if it is read by one index, for any number of axes.
    fn is_counted(&self) -> bool {
        matches!(self.info.kind, ParameterKind::Anywhere(_, 1) | ParameterKind::Rows(_))
    }

    /// Number of stored elements before the visible ones, for elements that are read by an index.
    fn skipped(&self) -> usize {
        if self.is_own() || self.is_result() || self.is_counted() { self.stored.range().start } else { 0 }
    }
}

impl Part {
    fn items(&self) -> u64 {
        self.within.end - self.within.start
    }
}

impl Session<'_> {
    /// Launches a kernel after all earlier launches.
    pub(in crate::ops::launch) fn launch(
        &mut self,
        kernels: &Kernels,
        arguments: Vec<Binding>,
        options: &Options,
    ) -> Result<()> {
        let usual = Arc::clone(&kernels.usual);
        let (name, parameters) = (usual.lowered.name, &usual.lowered.parameters);
        if !kernels.tile.is_empty() {
            return Err(refused(
                name,
                "its groups are tiles of a result: launch it by `run`, outside of a session",
            ));
        }
        let (values, taken) = self.taken(name, parameters, arguments)?;
        apart(&usual, &taken)?;
        if !taken.iter().any(TakenElements::is_result) {
            return Err(refused(name, "it has no result: use a `&mut Own<T>` or a `&Shared<T>`"));
        }
        let own = || taken.iter().filter(|taken| taken.is_own());
        let Some(first) = own().find(|taken| taken.is_result()).or_else(|| own().next()) else {
            return Err(refused(
                name,
                "nothing sets the number of items: use an `&Own<T>` or a `&mut Own<T>` \
                                      parameter",
            ));
        };
        let domain = &first.stored;
        for other in own() {
            expect_shape(&usual, other.info.name, &first.extents, &other.extents)?;
            if domain.axes.len() > 1 && other.stored != *domain {
                let reason = format!(
                    "`{}` is not stored like `{}`: build both with the same devices, page length and tiles",
                    other.info.name, first.info.name
                );
                return Err(refused(name, &reason));
            }
        }
        let windows = taken.iter().filter_map(|taken| match taken.info.kind {
            ParameterKind::Window(_, axes) => Some(axes),
            _ => None,
        });
        let results = own().filter(|taken| taken.is_result()).count();
        let mut form = form(kernels, domain, results, windows).map_err(|reason| refused(name, &reason))?;
        for of in &taken {
            let known = of.modes.iter().enumerate().filter(|(_, (mode, _))| *mode != Mode::Checked);
            form.modes.extend(known.map(|(axis, (mode, _))| (of.parameter, axis, *mode)));
        }
        // Kernels without positions have one variant.
        form.is_short = parameters.iter().any(is_placed)
            && is_short(domain)
            && taken.iter().all(|taken| taken.stored.range().end < SHORT_MAX as usize);
        let range = domain.range();
        if range.is_empty() {
            return Ok(());
        }
        let parts = self.parts(name, first, &taken)?;
        form.is_striped = kernels.group_len.is_some() && parts.iter().any(|part| part.channel.is_some());
        if let Some(group_len) = kernels.group_len.filter(|_| form.is_striped) {
            self.expect_whole_groups(name, group_len, first)?;
        }
        let kernel =
            if form == LaunchVariant::default() { usual.clone() } else { kernels.prepared(form.clone())? };
        let scalar = |source: &ScalarSource| match *source {
            ScalarSource::Value { parameter, position } => values[parameter][position],
            ScalarSource::Origin => range.start as u64,
            ScalarSource::LaunchVariant => form.number(),
            // A later step sets this value for each part, so 0 is a placeholder.
            ScalarSource::Groups(_) => 0,
            ScalarSource::Axis { axis, part } => domain.axes[axis].scalar(part, form.is_short),
            ScalarSource::TileLen(part) => {
                DomainAxis { tile: domain.tile_len(), ..domain.axes[0] }.scalar(part, form.is_short)
            }
            ScalarSource::Stencil { parameter, part } => {
                let own = taken.iter().find(|taken| taken.parameter == parameter);
                own.map_or(0, |taken| of_stored(&taken.stored, &taken.modes, part))
            }
            ScalarSource::Length { parameter } => {
                let own = taken.iter().find(|taken| taken.parameter == parameter);
                own.map_or(0, |taken| taken.extents.iter().product::<usize>() as u64)
            }
        };
        let of_view = |parameter: &usize| taken.iter().find(|taken| taken.parameter == *parameter);
        let launch = PreparedLaunch {
            views: kernel.lowered.views.iter().filter_map(of_view).collect(),
            params: kernel.lowered.scalars.iter().map(scalar).collect(),
            table: kernel.lowered.table_bytes(|parameter| &values[parameter]),
            groups: kernels.group_len.map(|len| LinearGroups { len, start: range.start, items: range.len() }),
            kernel,
            options,
        };
        self.find_out(&launch, &parts)?;
        self.order(&parts, &taken)?;
        for (number, part) in parts.iter().enumerate() {
            if self.lanes[part.lane].launched.len() == LAUNCHES {
                self.take(part.lane);
            }
            let report = self.lanes[part.lane].count % LAUNCHES * Report::BYTES as usize;
            let launched = self.with(&launch, part, report, |queue, launch| {
                let submit = |queue: &Queue<dyn Device>| self.work_queue(part, queue).submit(launch);
                match self.beside_others(part, first) {
                    Some((queues, others)) => queues.between_all_writes(&others, &[], submit),
                    None => submit(queue),
                }
            });
            let ticket = launched.map_err(|cause| -> Error {
                if number == 0 {
                    return cause.into();
                }
                let (written, unspecified) = (Vec::new(), std::iter::once(0..range.len()).collect());
                ErrorKind::Interrupted { written, unspecified, cause }.into()
            })?;
            self.note(part.lane, &taken, ticket);
            let lane = &mut self.lanes[part.lane];
            lane.count += 1;
            let (kernel, options, geometry) = (Arc::clone(&launch.kernel), *options, part.geometry);
            let range = range.clone();
            lane.launched.push_back(Launched { kernel, options, geometry, ticket, report, range });
        }
        Ok(())
    }

    /// Returns the arguments: bits of values by parameter, and elements.
    fn taken<'k>(
        &self,
        name: &str,
        parameters: &'k [ParameterInfo],
        arguments: Vec<Binding>,
    ) -> Result<(Vec<Vec<u64>>, Vec<TakenElements<'k>>)> {
        let (mut values, mut all) = (vec![Vec::new(); parameters.len()], Vec::new());
        let is_given =
            |of: &ParameterInfo| !matches!(of.kind, ParameterKind::At(_) | ParameterKind::Group(..));
        let numbered = parameters.iter().enumerate().filter(|(_, parameter)| is_given(parameter));
        for ((parameter, info), argument) in numbered.zip(arguments) {
            let (BindingPlaces { of, extents, stored }, modes) = match argument {
                Binding::Values(of) => {
                    values[parameter] = of;
                    continue;
                }
                Binding::Elements(of) => (of, Some(Vec::new())),
                Binding::Around(of, modes) => (of, modes),
            };
            let is_long = |(mode, value): &(Mode, Vec<u64>)| *mode == Mode::Value && value.len() > VALUES_MAX;
            let Some(modes) = modes.filter(|modes| !modes.iter().any(is_long)) else {
                return Err(refused(
                    name,
                    "devices support only the boundary modes of this library: use one of them",
                ));
            };
            if of.session != self.number {
                return Err(refused(name, "an argument is of another session: hold the array in this one"));
            }
            let Some(stored) = stored else {
                let reason = format!("`{}` has fewer axes than its array: hold the whole array", info.name);
                return Err(refused(name, &reason));
            };
            let mut taken = TakenElements { parameter, info, number: of.number, extents, stored, modes };
            let stored = &taken.stored;
            if taken.is_around() && (stored.is_tiled() || taken.is_counted() && stored.is_part()) {
                let reason = format!(
                    "`{}` is read in place, which needs a whole array that is stored row by row: copy it to one",
                    info.name
                );
                return Err(refused(name, &reason));
            }
            if taken.is_counted() {
                let range = stored.range();
                taken.stored = StoredBox::range_of(range.start, range.len());
            }
            all.push(taken);
        }
        Ok((values, all))
    }

    /// Divides the items among devices, in parts as large as possible. `first` has an element for each item.
    fn parts(
        &mut self,
        name: &str,
        first: &TakenElements<'_>,
        taken: &[TakenElements<'_>],
    ) -> Result<Vec<Part>> {
        let range = first.stored.range();
        // These elements determine the devices: one element for each item, or elements that any item changes.
        let worked_on = || taken.iter().filter(|taken| !taken.is_around());
        let homes: Vec<&Pager> = worked_on().filter_map(|of| self.stores[of.number].pager()).collect();
        let Some(device) = homes.first().map(|pager| Arc::clone(pager.channels()[0].device())) else {
            return Err(refused(
                name,
                "none of its results is on a device: pass `session.hold(&mut array)?` as a result",
            ));
        };
        let mut channels = homes.iter().flat_map(|pager| pager.channels());
        let is_on_one = channels.all(|other| Arc::ptr_eq(other.device(), &device));
        // With several channels a view must have all elements, from the first on.
        let is_whole = |of: &TakenElements<'_>| {
            let count = self.stores[of.number].pager().map_or(1, |pager| pager.channels().len());
            count == 1 || count <= READ_IN_PLACE_MAX && of.skipped() == 0
        };
        let parts = if is_on_one && worked_on().all(is_whole) {
            let (lane, within) = (self.known_lane(&device), 0..range.len() as u64);
            vec![Part { lane, channel: None, within, geometry: Geometry::plain(range.start as u64) }]
        } else {
            self.parts_by_channel(name, first, taken, is_on_one)?
        };
        for of in taken.iter().filter(|of| of.is_around()) {
            let channels = self.stores[of.number].pager().map_or(1, |pager| pager.channels().len());
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

    /// Divides the items by channel, if all arguments with an element for each item have equal places.
    fn parts_by_channel(
        &self,
        name: &str,
        first: &TakenElements<'_>,
        taken: &[TakenElements<'_>],
        is_on_one: bool,
    ) -> Result<Vec<Part>> {
        let (range, of) = (first.stored.range(), &self.stores[first.number]);
        let is_alike = |other: &TakenElements<'_>| {
            let (Some(own), Some(others)) = (of.pager(), self.stores[other.number].pager()) else {
                return false;
            };
            self.stores[other.number].page_len() == of.page_len()
                && other.stored.range().start == range.start
                && own.is_striped_like(others)
        };
        let mut others = taken.iter().filter(|taken| !taken.is_around());
        if let Some(other) = others.find(|other| !other.is_own() || !is_alike(other)) {
            let channels =
                |of: &TakenElements<'_>| self.stores[of.number].pager().map_or(0, |of| of.channels().len());
            let most = channels(other).max(channels(first));
            if is_on_one && most > READ_IN_PLACE_MAX {
                return Err(refused(name, &too_many_channels(other.info.name, most)));
            }
            let reason = match other.info.kind {
                ParameterKind::Shared(_) => format!(
                    "its elements are on several devices, but `{}`, which any item may change, must be on \
                     one device with them",
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

    /// Refuses groups with elements on several channels.
    fn expect_whole_groups(&self, name: &str, group_len: usize, first: &TakenElements<'_>) -> Result<()> {
        let (range, page_len) = (first.stored.range(), self.stores[first.number].page_len() as usize);
        if are_groups_within_pages(group_len, page_len, &range) {
            return Ok(());
        }
        let (kernel, start, fits) = (name.into(), range.start, page_len.next_multiple_of(group_len));
        Err(ErrorKind::KernelGroups { kernel, group_len, page_len, start, fits }.into())
    }

    /// Refuses elements out of reach of the device that reads them.
    fn expect_reach(&mut self, name: &str, lane: usize, of: &TakenElements<'_>) -> Result<()> {
        let device = Arc::clone(self.lanes[lane].queue.device());
        let Stored { place, .. } = &self.stores[of.number];
        let refused_between = |other: &str| {
            let device = &device.info().name;
            let reason = format!(
                "items on {device} read `{}`, and {device} cannot reach the memory of {other}; launch the kernel by `run`, \
                 which copies the elements",
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
                    // Require access in both directions, because later writes by the other device must wait
                    // for the read.
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

    /// Lets all devices check the launch before any of them starts it.
    fn find_out(&mut self, launch: &PreparedLaunch<'_>, parts: &[Part]) -> Result<()> {
        for part in parts {
            let device = Arc::clone(self.lanes[part.lane].queue.device());
            let is_known = |(of, on): &(Arc<PreparedKernel>, _)| {
                Arc::ptr_eq(of, &launch.kernel) && Arc::ptr_eq(on, &device)
            };
            if self.known.iter().any(is_known) {
                continue;
            }
            let none = Part { within: part.within.start..part.within.start, ..*part };
            let report = LAUNCHES * Report::BYTES as usize;
            let asked = self.with(launch, &none, report, |queue, launch| {
                // The submission returns the errors of the preparation again.
                let _ = device.prepare(&[Request::Launch(launch)]);
                // If the launch has a single part, its device reports errors when the part starts.
                let submit = || self.work_queue(part, queue).submit(launch);
                (parts.len() > 1).then(submit).transpose()
            })?;
            asked.map_or(Ok(()), |ticket| device.wait(ticket))?;
            self.known.push((Arc::clone(&launch.kernel), device));
        }
        Ok(())
    }

    /// Orders the parts of a launch after work on other devices that wrote the elements that they read, or
    /// read the elements that they write.
    fn order(&mut self, parts: &[Part], taken: &[TakenElements<'_>]) -> Result<()> {
        for part in parts {
            for of in taken.iter().filter(|of| !of.is_own() || of.is_result()) {
                let stored = &self.stores[of.number];
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

    /// Records the reads and writes of the newest launch on a device.
    fn note(&mut self, lane: usize, taken: &[TakenElements<'_>], ticket: Ticket) {
        for of in taken.iter().filter(|of| !of.is_own() || of.is_result()) {
            let stored = &mut self.stores[of.number];
            let noted = if of.is_result() { &mut stored.written } else { &mut stored.read };
            match noted.iter_mut().find(|(number, _)| *number == lane) {
                Some(newest) => newest.1 = ticket,
                None => noted.push((lane, ticket)),
            }
        }
    }

    /// Returns the queue for the launch of a part. Work of a session is not counted.
    fn work_queue<'q>(&'q self, part: &Part, queue: &'q Queue<dyn Device>) -> WorkQueue<'q> {
        WorkQueue::new(queue, None, Some(&self.lanes[part.lane].reports))
    }

    /// Calls a function with the launch of a part.
    fn with<R>(
        &self,
        launch: &PreparedLaunch<'_>,
        part: &Part,
        report: usize,
        work: impl FnOnce(&Queue<dyn Device>, &Launch<'_>) -> backend_api::Result<R>,
    ) -> backend_api::Result<R> {
        let lane = &self.lanes[part.lane];
        let bases: Vec<_> = launch.views.iter().map(|of| self.bases(of, part)).collect();
        let views = launch.views.iter().zip(&bases);
        let views: Vec<View<'_>> = views.map(|(of, bases)| self.view(of, bases, part)).collect();
        let report = lane.reports.at(report as u64);
        let (options, mut params) = (launch.options, launch.params.clone());
        if let Some(groups) = launch.groups {
            groups.set(&launch.kernel.lowered.scalars, &mut params, part.geometry, part.items());
        }
        let launch = Launch {
            views: &views,
            params: &params,
            table: &launch.table,
            budget: options.budget,
            time_limit: options.time_limit,
            private_heap_bytes: options.private_heap_bytes,
            ..Launch::new(&launch.kernel.kernel, part.items(), part.geometry, report)
        };
        work(&lane.queue, &launch)
    }

    /// Returns the queues of a channel of `first` on the device of a part, and of all channels that other
    /// threads may write to.
    fn beside_others(
        &self,
        part: &Part,
        first: &TakenElements<'_>,
    ) -> Option<(&HomeQueues, Vec<&HomeQueues>)> {
        let others = self.shared.iter().flat_map(|(pager, ..)| pager.channels());
        let others: Vec<_> = others.map(|channel| &channel.queues).collect();
        let device = self.lanes[part.lane].queue.device();
        let mut own = self.stores[first.number].pager()?.channels().iter();
        let own = own.find(|channel| Arc::ptr_eq(channel.device(), device))?;
        (!others.is_empty()).then_some((&own.queues, others))
    }

    /// Start addresses of the pages of elements for the items of a part: of one channel, or of all.
    fn bases(&self, of: &TakenElements<'_>, part: &Part) -> Vec<DeviceSpan<'_>> {
        match (&self.stores[of.number].place, part.channel.filter(|_| of.is_own())) {
            (StoredPlace::Home(pager), Some(channel)) => vec![pager.channels()[channel].slot_memory()],
            (StoredPlace::Home(pager), None) => pager.slot_bases(),
            (StoredPlace::Copies(copies), _) => {
                let device = self.lanes[part.lane].queue.device();
                let own = copies.iter().filter(|(on, _)| Arc::ptr_eq(on, device));
                own.map(|(_, memory)| memory.at(0)).collect()
            }
        }
    }

    /// A view of elements with these start addresses.
    fn view<'v>(&self, of: &TakenElements<'_>, bases: &'v [DeviceSpan<'v>], part: &Part) -> View<'v> {
        let stored = &self.stores[of.number];
        let (stride, end) = (stored.stride as u64, of.stored.range().end as u64);
        let [base] = *bases else {
            return View::Striped { bases, page_len: stored.page_len(), count: end, stride };
        };
        let (first, count) = match part.channel.filter(|_| of.is_own()) {
            Some(_) => (part.within.start, part.items()),
            None => (of.skipped() as u64, end - of.skipped() as u64),
        };
        View::Run(Elements { start: base.plus(first * stride), count, stride })
    }
}

fn too_many_channels(name: &str, channels: usize) -> String {
    format!(
        "`{name}` has {channels} channels, but a kernel reads from at most {READ_IN_PLACE_MAX}: build the \
         array with fewer"
    )
}

/// Refuses results that are also another argument: items would race on their elements.
fn apart(kernel: &PreparedKernel, taken: &[TakenElements<'_>]) -> Result<()> {
    for one in taken.iter().filter(|taken| taken.is_result()) {
        let own = one.stored.range();
        let is_same = |other: &&TakenElements<'_>| {
            let range = other.stored.range();
            other.parameter != one.parameter
                && other.number == one.number
                && own.start < range.end
                && range.start < own.end
        };
        // A parameter of rows has two arguments. Neither of them is a result.
        if let Some(other) = taken.iter().find(is_same) {
            let ((kernel, place), result) = (kernel.name_and_place(), one.info.name.into());
            let argument = other.info.name.into();
            return Err(ErrorKind::KernelOverlap { kernel, place, result, argument }.into());
        }
    }
    Ok(())
}
