//! Execution of launches over stores (arrays or program memory). An argument becomes an operand of the runs
//! (contiguous elements on a device), a copy on the device, or a read in place. Then the plan is launched
//! over the work-items (GPU threads).

use std::ops::Range;
use std::sync::Arc;

use backend_api::kernel::KernelFacts;
use parking_lot::{Mutex, RwLock};
use vmarray_kernel::launch::{LaunchVariant, Mode, SHORT_MAX};
use vmarray_kernel::{ParameterInfo, ParameterKind};

use super::arguments::{Bound, PlacedElements};
use super::bound_arguments::{ArgumentPlaces, BoundArgument, BoundArguments, BoundElements};
use super::broadcast::{
    Broadcast, BroadcastArgument, DeviceCopies, FromZero, Modes, Room, StripedArgument, device_modes,
};
use super::checks::{has_positions, is_short};
use super::groups::LinearGroups;
use super::index_domain::{IndexDomain, IndexDomainStore};
use super::kernel::{KernelVariants, PreparedKernel};
use super::launching::{AppendArgument, CopiedResults, LaunchColumn, Launching, SharedResult, ViewPlace};
use super::options::LaunchOptions;
use super::plan::{LaunchPlan, PlannedItems};
use super::reduce::Reduction;
use super::reordered::Reordered;
use super::tiles::{TiledGroups, TiledResult};
use crate::base::error::{Error, Result};
use crate::base::stats::Counters;
use crate::ops::executor::Operand;
use crate::ops::view::{SignedBox, StoredBox};

/// Initial number of appended elements for which memory is allocated; 1/16 of the number of work-items is
/// added. It is small because few kernels append much.
const APPENDED_AT_FIRST: usize = 1 << 16;

/// Purpose of a launch, in addition to its results.
pub(super) enum LaunchPurpose<'r> {
    Nothing,
    Reduced(&'r mut Reduction),
    /// Properties of the compiled kernel on the device of the first element. The kernel does not run.
    Facts(&'r mut Option<KernelFacts>),
}

/// Runs a kernel for each element of its results. Arguments are in the order of the parameters, without
/// parameters for positions.
pub(super) fn run(
    kernels: &KernelVariants,
    arguments: Vec<Bound<'_>>,
    options: &LaunchOptions,
    over: Option<&IndexDomain>,
    wanted: LaunchPurpose<'_>,
) -> Result<()> {
    let counters = Counters::default();
    let arguments = StoreArguments::new(&kernels.usual.lowered.parameters, arguments)?;
    if !arguments.bound.has_result()
        && arguments.appended.is_empty()
        && matches!(wanted, LaunchPurpose::Nothing)
    {
        return Err(kernels.usual.refused(
            "it has no result: use a `&mut Own<T>`, `&Shared<T>` or `&Append<T>`, or reduce the values that \
             work-items return",
        ));
    }
    let given = arguments.bound.elements.iter().find(|of| !of.is_own());
    let (given, group_len) = (given.map(|of| of.places.placed.operand.store), kernels.group_len.unwrap_or(1));
    let numbers = over.and_then(|over| IndexDomainStore::new(over, &counters, given, group_len));
    let domain = arguments.domain(kernels, over, numbers.is_some())?;
    let form = arguments.variant(kernels, &domain, &wanted)?;
    let tiles = (!kernels.tile.is_empty()).then(|| TiledGroups::new(&domain, &kernels.tile));
    let numbers = match (&tiles, arguments.bound.own().next()) {
        (Some(tiles), Some(of)) => {
            Some(IndexDomainStore::colocated(of.places.placed.operand.store, tiles.len()))
        }
        _ => numbers,
    };
    arguments.bound.expect_apart(&kernels.usual)?;
    let StoreArguments { bound: BoundArguments { values, elements }, copied, appended } = arguments;
    let results = CopiedResults { shared: Vec::new(), appended };
    let mut columns = Vec::with_capacity(elements.len() + 1);
    if let Some(numbers) = &numbers {
        columns.push(LaunchColumn { number: usize::MAX, operand: Operand::new(numbers, 0), reordered: None });
    }
    let (tiled, around, striped) = (Vec::new(), Vec::new(), Vec::new());
    let (start, len) = (over.map_or(domain.range().start, |over| over.range.start), domain.range().len());
    let groups = kernels.group_len.map(|group_len| LinearGroups { len: group_len, start, items: len });
    let mut draft = LaunchDraft {
        kernels,
        options,
        values,
        domain,
        form,
        groups,
        tiles,
        columns,
        tiled,
        around,
        copied,
        striped,
        results,
    };
    draft.place(elements)?;
    if len == 0 {
        return Ok(());
    }
    draft.set_room();
    draft.place_around();
    draft.run(wanted, numbers.as_ref(), start + len)
}

/// Location of an argument's elements in its store.
struct StorePlaces<'a> {
    placed: PlacedElements<'a>,
    /// Number of neighbours along each axis that a work-item reads; `None` if it may read any element.
    halo: Option<Vec<usize>>,
    modes: Modes,
}

type StoreElements<'a> = BoundElements<'a, StorePlaces<'a>>;

impl ArgumentPlaces for StorePlaces<'_> {
    fn extents(&self) -> &[usize] {
        &self.placed.extents
    }

    fn range(&self) -> Range<usize> {
        self.placed.range()
    }

    fn is_in_store_of(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self.placed.operand.store, other.placed.operand.store)
    }
}

impl<'a> StoreElements<'a> {
    /// Returns an argument that the kernel reads in place. `None` unless one device of the first column can
    /// access all its elements.
    fn in_place(&self, columns: &[LaunchColumn<'_>]) -> Option<StripedArgument<'a>> {
        let StorePlaces { placed: PlacedElements { operand, stored, .. }, halo, modes } = &self.places;
        let stored = stored.as_ref()?;
        // If the launch also writes to these elements, work-items (GPU threads) must read a copy: in place
        // they would read new values.
        let is_written = |column: &LaunchColumn<'_>| {
            column.operand.target.is_some() && std::ptr::addr_eq(column.operand.store, operand.store)
        };
        let is_whole = !stored.is_part() && stored.range().start == 0;
        let is_row = self.is_counted() && halo.is_none();
        if columns.iter().any(is_written) || stored.is_tiled() || is_row && !is_whole {
            return None;
        }
        let modes = device_modes(modes.clone())?;
        StripedArgument::new(self.number, operand, stored, modes, columns[0].operand.store)
    }
}

/// The arguments of a launch over stores, before they become operands of runs, or copies.
struct StoreArguments<'a> {
    bound: BoundArguments<'a, StorePlaces<'a>>,
    /// Memory for appended elements, one for each such argument.
    copied: Vec<BroadcastArgument<'a>>,
    appended: Vec<AppendArgument<'a>>,
}

impl<'a> StoreArguments<'a> {
    fn new(parameters: &'a [ParameterInfo], arguments: Vec<Bound<'a>>) -> Result<Self> {
        let (mut copied, mut appended) = (Vec::new(), Vec::new());
        let bound = BoundArguments::new(parameters, arguments, |number, info, argument| {
            let (placed, halo, modes) = match argument {
                Bound::Values(values) => return Ok(BoundArgument::Values(values)),
                Bound::Append(to, most, stride, is_ordered) => {
                    let mut add = |of: Box<dyn Broadcast>, count: usize| {
                        copied.push(BroadcastArgument { number, of, halo: None, extents: vec![count] });
                    };
                    add(Box::new(FromZero), 1);
                    add(Box::new(Room(stride)), most);
                    let (elements, name) = (copied.len() - 1, info.name);
                    appended.push(AppendArgument { elements, number, name, to, most, is_ordered });
                    return Ok(BoundArgument::Appended);
                }
                Bound::Elements(placed) => (placed, None, Some(Vec::new())),
                Bound::Around(placed, halo, modes) => (placed, Some(halo), modes),
            };
            Ok(BoundArgument::Elements(StorePlaces { placed, halo, modes }))
        })?;
        Ok(Self { bound, copied, appended })
    }

    /// Returns the storage positions of the work-items' elements: of the first result, or a range of numbers.
    fn domain(
        &self,
        kernels: &KernelVariants,
        over: Option<&IndexDomain>,
        has_numbers: bool,
    ) -> Result<StoredBox> {
        let refused = |reason: &str| Err(kernels.usual.refused(reason));
        let has_places =
            |of: &StoreElements<'_>| of.is_own() || matches!(of.info.kind, ParameterKind::Window(..));
        if over.is_some() && self.bound.elements.iter().any(has_places) {
            return refused("`over` does not apply to kernels with `Own` or `Window`: leave it out");
        }
        match (self.bound.own().next(), over) {
            (Some(BoundElements { info, places, .. }), _) => match &places.placed.stored {
                Some(stored) => Ok(stored.clone()),
                None => refused(&format!(
                    "`{}` has fewer axes than its array: give the array, or a section with all its axes",
                    info.name
                )),
            },
            (None, Some(over)) if has_numbers => Ok(StoredBox::range_of(0, over.range.len())),
            (None, Some(_)) => refused(
                "none of its arguments is stored on a device: choose a device by `launch().on(device)`",
            ),
            (None, None) => refused(
                "no argument sets the number of work-items: use an `Own<T>` parameter, or \
                 `launch().over(range)`",
            ),
        }
    }

    /// Checks the shapes of the arguments, and returns the kernel's variant for them.
    fn variant(
        &self,
        kernels: &KernelVariants,
        domain: &StoredBox,
        wanted: &LaunchPurpose<'_>,
    ) -> Result<LaunchVariant> {
        let refused = |reason: &str| Err(kernels.usual.refused(reason));
        self.bound.expect_one_shape(&kernels.usual)?;
        let form = self.bound.variant(kernels, domain);
        let mut form = form.map_err(|reason| kernels.usual.refused(&reason))?;
        let ordered = self.appended.iter().filter(|argument| argument.is_ordered);
        form.ordered = ordered.map(|argument| argument.number).collect();
        if !form.ordered.is_empty() && (kernels.code.is_some() || !kernels.tile.is_empty()) {
            return refused(
                "`Appended::in_order` supports neither native code nor groups that are tiles of a result: \
                 use `Appended::to`",
            );
        }
        form.returns = matches!(wanted, LaunchPurpose::Reduced(_));
        if form.returns && !kernels.tile.is_empty() {
            return refused(
                "returned values cannot be reduced if groups are tiles of a result: write them to an \
                 `Own<T>`, and sum it",
            );
        }
        if form.returns && (form.is_part || form.is_tiled) {
            return refused(
                "returned values can be reduced over ranges and over whole arrays that are stored row by \
                 row: copy the elements to such an array",
            );
        }
        Ok(form)
    }
}

/// A launch in preparation: each of its arguments becomes a column, a copy, or a read in place.
struct LaunchDraft<'a> {
    kernels: &'a KernelVariants,
    options: &'a LaunchOptions,
    /// Scalars of the arguments passed by value, for each parameter.
    values: Vec<Vec<u64>>,
    /// The storage positions of the work-items' elements.
    domain: StoredBox,
    form: LaunchVariant,
    groups: Option<LinearGroups>,
    tiles: Option<TiledGroups>,
    /// Arguments with one element for each work-item. The first one's place determines the devices.
    columns: Vec<LaunchColumn<'a>>,
    /// Results of kernels whose groups are tiles.
    tiled: Vec<TiledResult<'a>>,
    /// Arguments that work-items read by position.
    around: Vec<StoreElements<'a>>,
    copied: Vec<BroadcastArgument<'a>>,
    /// Arguments that are read in place.
    striped: Vec<StripedArgument<'a>>,
    results: CopiedResults<'a>,
}

impl<'a> LaunchDraft<'a> {
    fn refused(&self, reason: &str) -> Error {
        self.kernels.usual.refused(reason)
    }

    /// Assigns the arguments with one element for each work-item, and the shared arguments.
    fn place(&mut self, elements: Vec<StoreElements<'a>>) -> Result<()> {
        if self.tiles.is_some() {
            self.form.keeps = self.keeps_results(&elements)?;
        }
        for of in elements {
            if of.is_around() {
                self.around.push(of);
            } else if !of.is_own() {
                self.place_shared(of);
            } else if self.tiles.is_some() {
                self.place_by_tile(of)?;
            } else {
                self.place_in_column(of)?;
            }
        }
        if self.tiles.is_some() && self.tiled.is_empty() {
            let reason = "its groups are tiles of a result, but it has no result: use a `&mut Own<T>`";
            return Err(self.refused(reason));
        }
        Ok(())
    }

    /// Returns true if work-items may leave elements of a result unwritten, so that old ones must be kept.
    fn keeps_results(&self, elements: &[StoreElements<'_>]) -> Result<bool> {
        let usual = self.kernels.prepared(self.form.clone())?;
        let is_overwritten = |of: &StoreElements<'_>| {
            let view = usual.lowered.views.iter().position(|parameter| *parameter == of.number);
            view.is_some_and(|view| usual.overwrites(view, of.places.placed.operand.stride()))
        };
        let mut changed = elements.iter().filter(|of| of.is_own() && of.is_result());
        let can_end_early = self.kernels.code.is_some() || self.options.budget.is_some();
        Ok(can_end_early || !changed.all(is_overwritten))
    }

    fn place_shared(&mut self, BoundElements { number, places, .. }: StoreElements<'a>) {
        let range = places.range();
        let PlacedElements { operand, extents, of, .. } = places.placed;
        if let Some(target) = operand.target {
            self.results.shared.push(SharedResult { elements: self.copied.len(), target, range });
        }
        self.copied.push(BroadcastArgument { number, of, halo: None, extents });
    }

    fn place_in_column(&mut self, BoundElements { number, info, places }: StoreElements<'a>) -> Result<()> {
        let PlacedElements { operand, stored, of, .. } = places.placed;
        let is_alike = stored.is_some_and(|stored| stored.axes.len() == 1 || stored == self.domain);
        if !is_alike && operand.target.is_some() {
            return Err(self.refused(&format!(
                "the result `{}` is not stored like the first result: build both with the same tiles and \
                 pages",
                info.name
            )));
        }
        let reordered = (!is_alike).then(|| Reordered { of, like: self.domain.clone() });
        self.columns.push(LaunchColumn { number, operand, reordered });
        Ok(())
    }

    /// Assigns an argument whose elements work-items access by their position in a tile.
    fn place_by_tile(&mut self, mut argument: StoreElements<'a>) -> Result<()> {
        let (number, name, axes) = (argument.number, argument.info.name, self.domain.axes.len());
        let PlacedElements { operand, stored, .. } = &argument.places.placed;
        if let (Some(target), ParameterKind::OwnMut(layout)) = (operand.target, &argument.info.kind) {
            let Some(stored) = stored.clone().filter(|stored| stored.axes.len() == axes) else {
                let reason = format!("`{name}` has fewer axes than its array: give the whole array");
                return Err(self.refused(&reason));
            };
            let here = self.columns[0].operand.store.devices();
            let is_here = |(device, _): &(&_, _)| here.iter().any(|(other, _)| Arc::ptr_eq(device, other));
            if !target.devices().iter().all(is_here) {
                let reason = format!(
                    "the result `{name}` is on other devices than the first result: build both on the same \
                     devices"
                );
                return Err(self.refused(&reason));
            }
            let (of, memory) = (Box::new(Room(operand.stride())), self.copied.len());
            let room = BroadcastArgument { number: usize::MAX, of, halo: None, extents: Vec::new() };
            self.copied.push(room);
            self.tiled.push(TiledResult { number, target, stored, layout: layout.clone(), memory });
            if !self.form.keeps {
                return Ok(());
            }
        }
        argument.places.halo = Some(vec![0; axes]);
        argument.places.modes = Some(vec![(Mode::Checked, Vec::new()); axes]);
        self.around.push(argument);
        Ok(())
    }

    /// Sets the size of the scratch memory that work-items write to.
    fn set_room(&mut self) {
        if let Some(tiles) = &self.tiles {
            for result in &self.tiled {
                self.copied[result.memory].extents = vec![tiles.most_items(&self.tiled)];
            }
        } else if self.columns[0].operand.target.is_none() {
            // Start with little memory for appended elements. If it is too small, the launch can run again
            // with more memory, because it changes no elements before its end.
            let room = APPENDED_AT_FIRST.max(self.domain.range().len() / 16);
            for AppendArgument { elements, most, .. } in &self.results.appended {
                self.copied[*elements].extents = vec![(*most).min(room)];
            }
        }
    }

    /// Assigns the arguments that work-items read by position: in place if possible, otherwise as copies.
    fn place_around(&mut self) {
        let Operand { store, target, .. } = self.columns[0].operand;
        let group_len = self.groups.map_or(1, |groups| groups.len);
        let is_in_place = store.has_whole_groups(group_len, &self.domain.range());
        self.form.is_striped = self.groups.is_some() && is_in_place && store.channel_count() > 1;
        // Read an argument in place only if the launch is ordered with other accesses to its device memory.
        // This is so for a launch that writes to the first column, or has no other column.
        let is_settled = is_in_place && (target.is_some() || self.columns.len() == 1);
        for argument in std::mem::take(&mut self.around) {
            match argument.in_place(&self.columns).filter(|_| is_settled) {
                Some(argument) => {
                    self.form.modes.extend(argument.modes());
                    self.striped.push(argument);
                }
                None => {
                    let (number, StorePlaces { placed, halo, .. }) = (argument.number, argument.places);
                    let PlacedElements { of, extents, .. } = placed;
                    self.copied.push(BroadcastArgument { number, of, halo, extents });
                }
            }
        }
    }

    /// Returns true if 32 bits suffice for all positions. Work-items have numbers below `end`.
    fn is_short(&self, items: &SignedBox, end: usize) -> bool {
        let (most, tiles) = (SHORT_MAX as usize, self.tiles.as_ref());
        let mut stored = std::iter::once(&self.domain).chain(self.tiled.iter().map(|of| &of.stored));
        has_positions(&self.kernels.usual.lowered.parameters)
            && end < most
            && tiles.is_none_or(|tiles| tiles.all_items() < most)
            && stored.all(is_short)
            && self.copied.iter().all(|argument| argument.count_around(items) < most)
            && self.striped.iter().all(|argument| argument.len() < most)
    }

    /// Returns the location of the elements of one of the kernel's views.
    fn view_place(&self, kernel: &PreparedKernel, (number, parameter): (usize, &usize)) -> Option<ViewPlace> {
        let earlier = &kernel.lowered.views[..number];
        let result = self.tiled.iter().find(|result| result.number == *parameter);
        if let Some(result) = result.filter(|_| !earlier.contains(parameter)) {
            return Some(ViewPlace::Tiles(result.memory));
        }
        if let Some(at) = self.striped.iter().position(|argument| argument.number == *parameter) {
            return Some(ViewPlace::Striped(at));
        }
        // An argument for appended elements has two views: first the counter, then the elements.
        let before =
            earlier.iter().filter(|other| *other == parameter).count() - usize::from(result.is_some());
        if *parameter == kernel.lowered.parameters.len() {
            return Some(ViewPlace::Returned(before));
        }
        let column = self.columns.iter().position(|column| column.number == *parameter);
        let copied = self.copied.iter().enumerate();
        let mut own = copied.filter(|(_, argument)| argument.number == *parameter);
        column.map(ViewPlace::Column).or_else(|| own.nth(before).map(|own| ViewPlace::Broadcast(own.0)))
    }

    fn plan(&self) -> Result<LaunchPlan<'a>> {
        let (form, domain) = (&self.form, &self.domain);
        let tile_len = self.tiles.as_ref().map_or(domain.tile_len(), TiledGroups::len);
        let items = PlannedItems { form, domain, tile_len, values: &self.values, groups: self.groups };
        let striped = |of: usize| self.striped.iter().find(move |argument| argument.number == of);
        let len = |parameter: usize| {
            let copied = self.copied.iter().find(|argument| argument.number == parameter);
            let len = copied.map(BroadcastArgument::len).or(striped(parameter).map(StripedArgument::len));
            len.unwrap_or(domain.range().len())
        };
        // For copied arguments, use 0 for this scalar here, because each part of the launch sets its own
        // value.
        let stencil = |of, part| striped(of).map_or(0, |argument| argument.scalar(part));
        Ok(LaunchPlan::new(self.kernels.prepared(form.clone())?, self.options, &items, stencil, len))
    }

    /// Allocates copies of arguments on the devices that run work-items.
    fn copies(&self, items: &SignedBox) -> Result<Vec<DeviceCopies<'a>>> {
        let Operand { store, .. } = self.columns[0].operand;
        let devices = if self.copied.is_empty() { Vec::new() } else { store.devices() };
        let several = devices.len() > 1;
        if several && !self.results.shared.is_empty() {
            return Err(self.refused(
                "its `Shared` elements would be on several devices: run it over elements of one device",
            ));
        }
        let copies = |(device, counters)| DeviceCopies::new(device, counters, &self.copied, items, several);
        devices.into_iter().map(copies).collect()
    }

    /// Runs the kernel over all work-items, whose numbers are below `end`.
    fn run(
        mut self,
        wanted: LaunchPurpose<'_>,
        numbers: Option<&IndexDomainStore<'_>>,
        end: usize,
    ) -> Result<()> {
        let items = self.domain.around(&self.domain.range());
        self.form.is_short = self.is_short(&items, end);
        let plan = self.plan()?;
        let views = plan.kernel.lowered.views.iter().enumerate();
        let views = views.filter_map(|view| self.view_place(&plan.kernel, view)).collect();
        let copies = self.copies(&items)?;
        let (reduction, facts) = match wanted {
            LaunchPurpose::Nothing => (None, None),
            LaunchPurpose::Reduced(reduction) => {
                reduction.start = self.domain.range().start;
                (Some(&*reduction), None)
            }
            LaunchPurpose::Facts(facts) => (None, Some(facts)),
        };
        let mut launching = Launching {
            plan,
            views,
            devices: RwLock::new(copies),
            domain: self.domain,
            spread: self.copied,
            striped: self.striped,
            reduction,
            facts: facts.is_some().then(Mutex::default),
            reported: Mutex::default(),
            band: None,
        };
        match (&self.tiles, numbers) {
            (Some(tiles), Some(numbers)) => {
                launching.run_tiles(tiles, &self.tiled, numbers, self.form.is_short)?;
                if launching.facts.is_none() {
                    launching.has_more_room(&self.results.appended)?;
                }
            }
            _ => launching.run(&self.columns, &self.results)?,
        }
        if let (Some(facts), Some(found)) = (facts, &launching.facts) {
            *facts = *found.lock();
            return Ok(());
        }
        launching.finish(&mut self.results)
    }
}
