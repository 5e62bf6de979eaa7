//! Plan of a launch: the arguments for each run of elements, and the evaluation of the reports.

use std::sync::Arc;

use backend_api::kernel::KernelFacts;
use parking_lot::{Mutex, RwLock};
use vmarray_kernel::launch::{DomainAxis, LaunchVariant, Mode, SHORT_MAX, VALUES_MAX};
use vmarray_kernel::{ParameterInfo, ParameterKind, ScalarSource};

use super::arguments::{Bound, Placed};
use super::broadcast::{BroadcastArgument, DeviceCopies, FromZero, Inside, Modes, Room, StripedArgument};
use super::groups::LinearGroups;
use super::index_domain::{IndexDomain, IndexDomainStore};
use super::kernel::{Kernels, PreparedKernel};
use super::launching::{AppendArgument, Launching, RangeArgument, ViewPlace};
use super::options::Options;
use super::reduce::Reduction;
use super::reordered::Reordered;
use super::tiles::{TiledGroups, TiledResult};
use crate::base::error::{ErrorKind, Result, expect_len};
use crate::base::stats::Counters;
use crate::ops::executor::{Operand, OperandStore};
use crate::ops::view::StoredBox;

/// Initial memory for appended elements, plus one for each 16 items. It is small, because few kernels need
/// much.
const APPENDED_AT_FIRST: usize = 1 << 16;

/// Purpose of a launch besides the kernel's results.
pub(super) enum Wanted<'r> {
    Nothing,
    /// Reduction of the return values.
    Reduced(&'r mut Reduction),
    /// Properties of the kernel on the device of the first element, without a run.
    Facts(&'r mut Option<KernelFacts>),
}

/// Runs a kernel for each element of its results. Arguments are in the order of its parameters, without
/// positions.
pub(super) fn run(
    kernels: &Kernels,
    arguments: Vec<Bound<'_>>,
    options: &Options,
    over: Option<&IndexDomain>,
    wanted: Wanted<'_>,
) -> Result<()> {
    let counters = Counters::default();
    let parameters = &kernels.usual.lowered.parameters;
    let mut values = vec![Vec::new(); parameters.len()];
    // Arguments with an element for each item, arguments that all items may read, and their ranges of stores.
    let (mut own, mut spread, mut elsewhere) = (Vec::new(), Vec::<BroadcastArgument<'_>>::new(), Vec::new());
    let (mut appended, mut around) = (Vec::new(), Vec::new());
    let is_given = |of: &ParameterInfo| !matches!(of.kind, ParameterKind::At(_) | ParameterKind::Group(..));
    let numbered = parameters.iter().enumerate().filter(|(_, parameter)| is_given(parameter));
    for ((number, ParameterInfo { name, .. }), argument) in numbered.zip(arguments) {
        match argument {
            Bound::Values(of) => values[number] = of,
            Bound::Own(placed) => own.push((number, *name, placed)),
            Bound::All(placed, axes) => {
                let range = placed.range();
                let operand = placed.operand;
                elsewhere.push(RangeArgument { number, name, operand, range });
                around.push(StencilArgument { number, placed, axes, halo: None, modes: None });
            }
            Bound::Shared(operand, len) => {
                let range = operand.start..operand.start + len;
                elsewhere.push(RangeArgument { number, name, operand, range });
                let (of, extents) = (Box::new(Inside { operand, len }), vec![len]);
                spread.push(BroadcastArgument { number, of, halo: None, extents });
            }
            Bound::Append(to, most, stride, is_ordered) => {
                let of = Box::new(FromZero);
                spread.push(BroadcastArgument { number, of, halo: None, extents: vec![1] });
                appended.push(AppendArgument { elements: spread.len(), number, name, to, most, is_ordered });
                let of = Box::new(Room(stride));
                spread.push(BroadcastArgument { number, of, halo: None, extents: vec![most] });
            }
            Bound::Around(placed, halo, modes) => {
                let (range, axes) = (placed.range(), halo.len());
                let operand = placed.operand;
                elsewhere.push(RangeArgument { number, name, operand, range });
                around.push(StencilArgument { number, placed, axes, halo: Some(halo), modes });
            }
        }
    }
    let refused = |reason: &str| kernels.usual.refused(reason);
    // The first result, or else the first argument, determines the devices: move it to the front.
    let first = own.iter().position(|(_, _, placed)| placed.operand.target.is_some());
    let has_result = elsewhere.iter().any(|argument| argument.operand.target.is_some());
    if first.is_none() && !has_result && appended.is_empty() && matches!(wanted, Wanted::Nothing) {
        return Err(refused(
            "it has no result: use a `&mut Own<T>`, `&Shared<T>` or `&Append<T>`, or reduce the values that \
             items return",
        ));
    }
    if let Some(first) = first {
        own[..=first].rotate_right(1);
    }
    let given = elsewhere.first().map(|argument: &RangeArgument<'_>| argument.operand.store);
    let group_len = kernels.group_len.unwrap_or(1);
    let numbers = over.and_then(|over| IndexDomainStore::new(over, &counters, given, group_len));
    if over.is_some() && (!own.is_empty() || around.iter().any(|argument| argument.halo.is_some())) {
        return Err(refused("`over` does not apply to kernels with `Own` or `Window`: leave it out"));
    }
    let (domain, extents) = match (own.first(), over) {
        (Some((_, name, Placed { extents, stored, .. })), _) => {
            let Some(domain) = stored.clone() else {
                let reason = format!(
                    "`{name}` has fewer axes than its array: give the array, or a section with all its axes"
                );
                return Err(refused(&reason));
            };
            (domain, extents.clone())
        }
        (None, Some(over)) if numbers.is_some() => {
            (StoredBox::range_of(0, over.range.len()), vec![over.range.len()])
        }
        (None, Some(_)) => {
            return Err(refused(
                "none of its arguments is stored on a device: choose a device \
                    by `launch().on(device)`",
            ));
        }
        (None, None) => {
            return Err(refused(
                "nothing sets the number of items: use an `Own<T>` parameter, or \
                                `launch().over(range)`",
            ));
        }
    };
    for (_, name, placed) in own.iter().skip(1) {
        expect_shape(&kernels.usual, name, &extents, &placed.extents)?;
    }
    let count = own.iter().filter(|(_, _, placed)| placed.operand.target.is_some()).count();
    let windows = around.iter().filter(|argument| argument.halo.is_some()).map(|argument| argument.axes);
    let mut form = form(kernels, &domain, count, windows).map_err(|reason| refused(&reason))?;
    form.ordered =
        appended.iter().filter(|argument| argument.is_ordered).map(|argument| argument.number).collect();
    if !form.ordered.is_empty() && (kernels.code.is_some() || !kernels.tile.is_empty()) {
        let reason = "`Appended::in_order` supports neither native code nor groups that are tiles of a \
                      result: use `Appended::to`";
        return Err(refused(reason));
    }
    let (mut columns, mut reordered, mut results) = (Vec::new(), Vec::new(), Vec::new());
    let tiles = (!kernels.tile.is_empty()).then(|| TiledGroups::new(&domain, &kernels.tile));
    let numbers = match &tiles {
        Some(_) if !matches!(wanted, Wanted::Nothing | Wanted::Facts(_)) => {
            return Err(refused(
                "returned values cannot be reduced if groups are tiles of a result: write them to an \
                 `Own<T>`, and sum it",
            ));
        }
        Some(tiles) => Some(IndexDomainStore::colocated(own[0].2.operand.store, tiles.len())),
        None => numbers,
    };
    let mut is_kept = kernels.code.is_some() || options.budget.is_some();
    if tiles.is_some() {
        let usual = kernels.prepared(form.clone())?;
        let is_overwritten = |(number, _, placed): &(usize, _, Placed<'_>)| {
            let view = usual.lowered.views.iter().position(|parameter| parameter == number);
            view.is_some_and(|view| usual.overwrites(view, placed.operand.stride()))
        };
        let mut changed = own.iter().filter(|(_, _, placed)| placed.operand.target.is_some());
        is_kept |= !changed.all(is_overwritten);
        form.keeps = is_kept;
    }
    for (number, name, placed) in own {
        let range = placed.range();
        if tiles.is_some() {
            let operand = placed.operand;
            columns.push(RangeArgument { number, name, operand, range });
            if let Some(target) = operand.target {
                let stored = placed.stored.clone().filter(|stored| stored.axes.len() == domain.axes.len());
                let Some(stored) = stored else {
                    return Err(refused(&format!(
                        "`{name}` has fewer axes than its array: give the whole array"
                    )));
                };
                let of = Box::new(Room(operand.stride()));
                let memory = spread.len();
                spread.push(BroadcastArgument { number: usize::MAX, of, halo: None, extents: Vec::new() });
                let ParameterKind::OwnMut(layout) = &parameters[number].kind else { continue };
                let here = columns[0].operand.store.devices();
                let is_here =
                    |(device, _): &(&_, _)| here.iter().any(|(other, _)| Arc::ptr_eq(device, other));
                if !target.devices().iter().all(is_here) {
                    return Err(refused(&format!(
                        "the result `{name}` is on other devices than the first result: build both on the same devices"
                    )));
                }
                results.push(TiledResult { number, target, stored, layout: layout.clone(), memory });
            }
            if operand.target.is_none() || is_kept {
                let (axes, halo) = (domain.axes.len(), Some(vec![0; domain.axes.len()]));
                let modes = Some(vec![(Mode::Checked, Vec::new()); axes]);
                around.push(StencilArgument { number, placed, axes, halo, modes });
            }
            continue;
        }
        let Placed { operand, stored, of, .. } = placed;
        let is_alike = stored.is_some_and(|stored| stored.axes.len() == 1 || stored == domain);
        if !is_alike && operand.target.is_some() {
            return Err(refused(&format!(
                "the result `{name}` is not stored like the first result: build both with the same tiles and pages"
            )));
        }
        reordered.push((!is_alike).then(|| Reordered { of, like: domain.clone() }));
        columns.push(RangeArgument { number, name, operand, range });
    }
    apart(&kernels.usual, &columns, &elsewhere)?;
    if tiles.is_some() {
        if results.is_empty() {
            return Err(refused(
                "its groups are tiles of a result, but it has no result: use a `&mut Own<T>`",
            ));
        }
        columns.clear();
    }
    if let Some(numbers) = &numbers {
        let operand = Operand::new(numbers, 0);
        columns.push(RangeArgument { number: usize::MAX, name: "", operand, range: domain.range() });
        reordered.push(None);
    }
    form.returns = matches!(wanted, Wanted::Reduced(_));
    if form.returns && (form.is_part || form.is_tiled) {
        return Err(refused(
            "returned values can be reduced over ranges and over whole arrays that are stored row by row: \
             copy the elements to such an array",
        ));
    }
    let (range, Operand { store, target, .. }) = (domain.range(), columns[0].operand);
    if range.is_empty() {
        return Ok(());
    }
    if let Some(tiles) = &tiles {
        for result in &results {
            spread[result.memory].extents = vec![tiles.most_items(&results)];
        }
    } else if target.is_none() {
        // The launch changes nothing before its end, so it can be repeated with more memory.
        for AppendArgument { elements, most, .. } in &appended {
            spread[*elements].extents = vec![(*most).min(APPENDED_AT_FIRST.max(range.len() / 16))];
        }
    }
    let mut striped = Vec::new();
    let start = over.map_or(range.start, |over| over.range.start);
    let groups = kernels.group_len.map(|len| LinearGroups { len, start, items: range.len() });
    let is_in_place = store.has_whole_groups(group_len, &range);
    form.is_striped = groups.is_some() && is_in_place && store.channel_count() > 1;
    // Read elements in place only if the launch is ordered with other accesses. A launch without results over
    // staged elements is not ordered.
    let is_settled = is_in_place && (target.is_some() || columns.len() == 1);
    for argument in around {
        match argument.in_place(&columns, store).filter(|_| is_settled) {
            Some(argument) => {
                form.modes.extend(argument.modes());
                striped.push(argument);
            }
            None => {
                let StencilArgument { number, placed: Placed { of, extents, .. }, halo, .. } = argument;
                spread.push(BroadcastArgument { number, of, halo, extents });
            }
        }
    }
    let items = domain.around(&range);
    // Kernels without positions have one variant.
    form.is_short = parameters.iter().any(is_placed)
        && over.map_or(range.end, |over| over.range.end) < SHORT_MAX as usize
        && tiles.as_ref().is_none_or(|tiles| tiles.all_items() < SHORT_MAX as usize)
        && std::iter::once(&domain).chain(results.iter().map(|result| &result.stored)).all(is_short)
        && spread.iter().all(|argument| argument.count_around(&items) < SHORT_MAX as usize)
        && striped.iter().all(|argument| argument.len() < SHORT_MAX as usize);
    let kernel = kernels.prepared(form.clone())?;
    let view = |(number, parameter): (usize, &usize)| {
        let result = results.iter().find(|result| result.number == *parameter);
        if let Some(result) = result.filter(|_| !kernel.lowered.views[..number].contains(parameter)) {
            return Some(ViewPlace::Tiles(result.memory));
        }
        if let Some(at) = striped.iter().position(|argument| argument.number == *parameter) {
            return Some(ViewPlace::Striped(at));
        }
        let column = columns.iter().position(|column| column.number == *parameter);
        // An appended argument has two views: the counter and the elements.
        let before = kernel.lowered.views[..number].iter().filter(|other| *other == parameter).count()
            - usize::from(result.is_some());
        if *parameter == parameters.len() {
            return Some(ViewPlace::Returned(before));
        }
        let own = spread.iter().enumerate().filter(|(_, argument)| argument.number == *parameter);
        column.map(ViewPlace::Column).or_else(|| own.map(|own| ViewPlace::Broadcast(own.0)).nth(before))
    };
    let scalar = |source: &ScalarSource| match *source {
        ScalarSource::Value { parameter, position } => values[parameter][position],
        ScalarSource::Origin => range.start as u64,
        ScalarSource::LaunchVariant => form.number(),
        // A later step sets this value for each run, so 0 is a placeholder.
        ScalarSource::Groups(_) => 0,
        ScalarSource::Axis { axis, part } => domain.axes[axis].scalar(part, form.is_short),
        ScalarSource::TileLen(part) => {
            let tile = tiles.as_ref().map_or(domain.tile_len(), TiledGroups::len);
            DomainAxis { tile, ..domain.axes[0] }.scalar(part, form.is_short)
        }
        // For copied elements, a later step sets this value for each part.
        ScalarSource::Stencil { parameter, part } => {
            let own = striped.iter().find(|argument| argument.number == parameter);
            own.map_or(0, |argument| argument.scalar(part))
        }
        ScalarSource::Length { parameter } => {
            let own = spread.iter().find(|argument| argument.number == parameter);
            let striped = striped.iter().find(|argument| argument.number == parameter);
            let own = own.map(BroadcastArgument::len).or(striped.map(StripedArgument::len));
            own.unwrap_or(range.len()) as u64
        }
    };
    let devices = if spread.is_empty() { Vec::new() } else { store.devices() };
    if devices.len() > 1 && has_result {
        return Err(refused(
            "its `Shared` elements would be on several devices: run it over elements of one device",
        ));
    }
    let several = devices.len() > 1;
    let copies = devices
        .into_iter()
        .map(|(device, counters)| DeviceCopies::new(device, counters, &spread, &items, several));
    let found = Mutex::default();
    let (reduction, mut facts) = match wanted {
        Wanted::Nothing => (None, None),
        Wanted::Reduced(reduction) => {
            reduction.start = range.start;
            (Some(&*reduction), None)
        }
        Wanted::Facts(facts) => (None, Some(facts)),
    };
    let mut launching = Launching {
        kernel: &kernel,
        views: kernel.lowered.views.iter().enumerate().filter_map(view).collect(),
        params: kernel.lowered.scalars.iter().map(scalar).collect(),
        table: kernel.lowered.table_bytes(|parameter| &values[parameter]),
        start: range.start,
        groups,
        devices: RwLock::new(copies.collect::<Result<_>>()?),
        domain,
        spread,
        striped,
        options,
        reduction,
        facts: facts.is_some().then_some(&found),
        reported: Mutex::default(),
        band: None,
    };
    if let (Some(tiles), Some(numbers)) = (&tiles, &numbers) {
        launching.run_tiles(tiles, &results, numbers, form.is_short)?;
        if let Some(facts) = facts {
            *facts = *found.lock();
            return Ok(());
        }
        launching.has_more_room(&appended)?;
        return launching.finish(&elsewhere, &mut appended);
    }
    let others = columns[1..].iter().zip(&reordered[1..]).map(|(column, reordered)| match reordered {
        Some(reordered) => Operand::new(reordered, range.start),
        None => column.operand,
    });
    let others: Vec<_> = others.collect();
    if let Some(facts) = &mut facts {
        launching.examine(store, &others, &(range.start..range.start + 1))?;
        **facts = *found.lock();
        return Ok(());
    }
    loop {
        match target {
            Some(target) => target.change(&others, &range, &launching),
            None => launching.examine(store, &others, &range),
        }
        .and_then(|()| launching.reduction_outcome(&range, target.is_some()))
        .map_err(|error| launching.in_time().err().unwrap_or_else(|| error.counted_from(range.start)))?;
        launching.in_time()?;
        if !launching.has_more_room(&appended)? {
            break;
        }
        launching.begin_anew(&appended, &elsewhere);
    }
    launching.finish(&elsewhere, &mut appended)
}

/// An argument that items read by an index for each of its axes.
struct StencilArgument<'a> {
    /// Number of its parameter.
    number: usize,
    placed: Placed<'a>,
    axes: usize,
    /// Halo around items; without it, any element may be read.
    halo: Option<Vec<usize>>,
    modes: Modes,
}

impl<'a> StencilArgument<'a> {
    /// Returns the argument for reads in place, if the items of a store can reach all of it.
    fn in_place(
        &self,
        results: &[RangeArgument<'_>],
        store: &dyn OperandStore,
    ) -> Option<StripedArgument<'a>> {
        let (operand, stored) = (self.placed.operand, self.placed.stored.as_ref()?);
        // If the launch also writes to these elements, items must read a copy instead of the elements in
        // place.
        let is_written = |column: &RangeArgument<'_>| {
            column.operand.target.is_some() && std::ptr::addr_eq(column.operand.store, operand.store)
        };
        let is_row = self.axes == 1 && self.halo.is_none();
        let is_whole = !stored.is_part() && stored.range().start == 0;
        if results.iter().any(is_written) || stored.is_tiled() || is_row && !is_whole {
            return None;
        }
        let modes = match &self.halo {
            Some(_) => self.modes.clone()?,
            None => Vec::new(),
        };
        let is_long = |(mode, value): &(Mode, Vec<u64>)| *mode == Mode::Value && value.len() > VALUES_MAX;
        if modes.iter().any(is_long) {
            return None;
        }
        StripedArgument::new(self.number, &operand, stored, modes, store)
    }
}

/// Returns the variant of a kernel's launches over elements with these places, or the reason for a refusal.
/// `results` is the number of results with an element for each item, and each window has this number of axes.
pub(super) fn form(
    kernels: &Kernels,
    domain: &StoredBox,
    results: usize,
    mut windows: impl Iterator<Item = usize>,
) -> Result<LaunchVariant, String> {
    let axes = domain.axes.len();
    let at = kernels.usual.lowered.parameters.iter().find_map(|parameter| match parameter.kind {
        ParameterKind::At(axes) => Some(axes),
        _ => None,
    });
    if let Some(at) = at.filter(|at| *at != axes) {
        return Err(format!("it has an `At<{at}>`, but its result has {axes} axes: use an `At<{axes}>`"));
    }
    if windows.any(|of| of != axes) {
        return Err(format!(
            "its result has {axes} axes, but a window has another number of axes: use \
                            `Window<T, {axes}>`"
        ));
    }
    if !kernels.tile.is_empty() {
        let mut axes = domain.axes.iter().zip(&kernels.tile);
        let is_part = axes.any(|(axis, tile)| axis.extent % tile != 0);
        return Ok(LaunchVariant { is_tiled: true, is_part, ..LaunchVariant::default() });
    }
    if at.is_none_or(|at| at == 1) && !domain.is_part() {
        return Ok(LaunchVariant::default());
    }
    if axes > 4 {
        return Err("its result has more than 4 axes: use a section of at most 4".into());
    }
    if kernels.group_len.is_some() && domain.is_part() {
        return Err(
            "its result is a section of an array, which groups do not support: give the whole array".into()
        );
    }
    if results > 1 && domain.is_cut() {
        return Err(
            "its results are sections of arrays, which is supported for one result only: give whole \
                    arrays"
                .into(),
        );
    }
    let axes = if at.is_some() { 0 } else { axes };
    Ok(LaunchVariant {
        axes,
        is_tiled: domain.is_tiled(),
        is_part: domain.is_part(),
        ..LaunchVariant::default()
    })
}

/// Returns true if positions are computed for a parameter.
pub(super) fn is_placed(of: &ParameterInfo) -> bool {
    match of.kind {
        ParameterKind::At(axes) | ParameterKind::Anywhere(_, axes) => axes > 1,
        ParameterKind::Window(..) => true,
        _ => false,
    }
}

/// Returns true if 32 bits suffice for the positions of elements.
pub(super) fn is_short(stored: &StoredBox) -> bool {
    let len = |axis: &DomainAxis| axis.tiles.saturating_mul(axis.tile);
    stored.range().end < SHORT_MAX as usize
        && stored.axes.iter().skip(1).all(|axis| len(axis) < SHORT_MAX as usize)
}

/// Refuses an argument with an element for each item, but another shape.
pub(super) fn expect_shape(
    kernel: &PreparedKernel,
    argument: &'static str,
    expected: &[usize],
    got: &[usize],
) -> Result<()> {
    if let ([expected], [got]) = (expected, got) {
        return expect_len(argument, *expected, *got);
    }
    if expected == got {
        return Ok(());
    }
    let ((kernel, place), argument) = (kernel.name_and_place(), argument.into());
    let (expected, got) = (expected.to_vec(), got.to_vec());
    Err(ErrorKind::KernelShape { kernel, place, argument, expected, got }.into())
}

/// Refuses results that are also another argument: items would race on their elements.
fn apart(
    kernel: &PreparedKernel,
    columns: &[RangeArgument<'_>],
    elsewhere: &[RangeArgument<'_>],
) -> Result<()> {
    let is_same = |one: &RangeArgument<'_>, two: &RangeArgument<'_>| {
        std::ptr::addr_eq(one.operand.store, two.operand.store)
            && one.range.start < two.range.end
            && two.range.start < one.range.end
    };
    let all = || columns.iter().chain(elsewhere);
    for one in all().filter(|argument| argument.operand.target.is_some()) {
        let mut others = all().filter(|other| other.number != one.number);
        if let Some(other) = others.find(|other| is_same(one, other)) {
            let ((kernel, place), result) = (kernel.name_and_place(), one.name.into());
            let argument = other.name.into();
            return Err(ErrorKind::KernelOverlap { kernel, place, result, argument }.into());
        }
    }
    Ok(())
}
