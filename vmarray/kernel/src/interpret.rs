//! Interpretation of lowered kernels (translated for devices) on the host. Tests compare its results with
//! devices and with the kernels that rustc compiled.

mod argument;

pub use argument::InterpreterArgument;

use crate::error::{Error, ErrorKind};
use crate::host::{Kernel, PRIVATE_HEAP_BYTES};
use crate::lower::{GroupPart, LaunchVariant, LoweredKernel, ScalarSource, StencilPart, lower_for};
use crate::place::DomainAxis;
use backend_api::expr::Geometry;
use backend_api::kernel::{Access, Interpreter, Report, Slices};
use std::ops::Range;

/// Lowers (translates) a kernel, and interprets the lowered code for `items` (GPU threads) one by one. Tests
/// compare the results with [`run_on_host`](crate::run_on_host), which runs the Rust function.
///
/// # Errors
/// The errors of [`lower`](crate::lower).
///
/// # Panics
/// If a slice has too few elements.
pub fn interpret<K: Kernel>(items: Range<usize>, sources: K::Sources<'_>) -> Result<Report, Error> {
    let tile: Vec<usize> = K::group().iter().map(|extent| *extent as usize).collect();
    let has_tiles = tile.len() > 1;
    let lowered =
        lower_for::<K>(&LaunchVariant { is_part: has_tiles, keeps: has_tiles, ..LaunchVariant::default() })?;
    // Lowering has verified the kernel body, so the interpreter can refuse only arguments that are too large.
    let refused = |error: backend_api::Error| lowered.refused(ErrorKind::TooLarge, error.detail());
    let mut arguments = K::arguments(sources);
    let shape = arguments.iter().find_map(|argument| match argument {
        InterpreterArgument::Shape(shape) => Some(shape.clone()),
        _ => None,
    });
    let shape = shape.unwrap_or_else(|| vec![1]);
    let axes = domain_axes(&shape, if has_tiles { &tile } else { &[] });
    let groups = items.len().div_ceil(K::group_len().unwrap_or(1).max(1) as usize) as u64;
    let of = |source: &ScalarSource| scalar(&arguments, &axes, groups, *source);
    let params: Vec<u64> = lowered.scalars.iter().map(of).collect();
    let table = lowered.table_bytes(|parameter| match &arguments[parameter] {
        InterpreterArgument::Values(values) => values,
        _ => &[],
    });
    let kernel =
        backend_api::kernel::VerifiedKernel::new(lowered.body.clone()).map_err(refused)?.named(lowered.name);
    let order = has_tiles.then(|| numbers_in_tiles(&axes));
    // Copy each view. If groups compute tiles, the view of new elements is in tile order, and initially zero.
    let copy_of = |(number, view): (usize, &usize)| match (&arguments[*view], &order) {
        (InterpreterArgument::Write(_, stride), Some(order)) if is_own(&lowered, number) => {
            (vec![0; order.len() * stride], *stride)
        }
        (InterpreterArgument::Append(count, ..), _) if is_first(&lowered, number) => (count.to_vec(), 8),
        (InterpreterArgument::Append(_, bytes, stride) | InterpreterArgument::Write(bytes, stride), _) => {
            (bytes.to_vec(), *stride)
        }
        (InterpreterArgument::Read(bytes, stride) | InterpreterArgument::Around(_, _, bytes, stride), _) => {
            (bytes.to_vec(), *stride)
        }
        (InterpreterArgument::Place | InterpreterArgument::Values(_) | InterpreterArgument::Shape(_), _) => {
            (Vec::new(), 1)
        }
    };
    let mut copies: Vec<(Vec<u8>, usize)> = lowered.views.iter().enumerate().map(copy_of).collect();
    let (count, geometry) = match &order {
        Some(order) => (order.len(), Geometry::plain(0)),
        None => (items.len(), Geometry::plain(items.start as u64)),
    };
    let interpreter = Interpreter {
        params: &params,
        table: &table,
        private_heap_bytes: PRIVATE_HEAP_BYTES,
        ..Interpreter::new(&kernel, count as u64, geometry)
    };
    let views = copies.iter_mut().map(|(bytes, stride)| (bytes.as_mut_slice(), *stride)).collect();
    let report = interpreter.run(&mut Slices::new(views)).map_err(refused)?;
    copy_back(&lowered, &copies, order.as_deref(), &mut arguments);
    Ok(Report { detail: lowered.index_of(&report) as u64, ..report })
}

/// Returns the axes of a launch's domain. `tile` has the tile lengths of the axes with tiles.
fn domain_axes(shape: &[usize], tile: &[usize]) -> Vec<DomainAxis> {
    let axis = |(axis, extent): (usize, &usize)| match tile.get(axis) {
        Some(tile) => DomainAxis { tiles: extent.div_ceil(*tile), tile: *tile, ..DomainAxis::whole(*extent) },
        None => DomainAxis::whole(*extent),
    };
    shape.iter().enumerate().map(axis).collect()
}

/// Returns true if no earlier view belongs to the same argument.
fn is_first(lowered: &LoweredKernel, number: usize) -> bool {
    !lowered.views[..number].contains(&lowered.views[number])
}

/// Returns true if each item writes its own element of the view. Only these views are stored in tiles;
/// elements that items share keep their order in memory.
fn is_own(lowered: &LoweredKernel, number: usize) -> bool {
    is_first(lowered, number) && lowered.body.views[number].access != Access::Atomic
}

/// Copies the elements of written views, each with its stride, back to the arguments of the program.
fn copy_back(
    lowered: &LoweredKernel,
    copies: &[(Vec<u8>, usize)],
    order: Option<&[Option<usize>]>,
    arguments: &mut [InterpreterArgument<'_>],
) {
    for (number, (bytes, stride)) in copies.iter().enumerate() {
        match (&mut arguments[lowered.views[number]], order) {
            (InterpreterArgument::Write(to, _), Some(order)) if is_own(lowered, number) => {
                let elements = order.iter().zip(bytes.chunks_exact(*stride));
                for (to_number, element) in elements.filter_map(|(to, element)| Some(((*to)?, element))) {
                    to[to_number * stride..][..*stride].copy_from_slice(element);
                }
            }
            (InterpreterArgument::Write(to, _), order) if order.is_none() || is_first(lowered, number) => {
                to.copy_from_slice(bytes)
            }
            (InterpreterArgument::Append(count, ..), _) if is_first(lowered, number) => {
                count.copy_from_slice(bytes);
            }
            (InterpreterArgument::Append(_, to, _), _) => to.copy_from_slice(bytes),
            _ => {}
        }
    }
}

/// Returns, for each item in tile order, the row-major number of its element; `None` for padding.
fn numbers_in_tiles(axes: &[DomainAxis]) -> Vec<Option<usize>> {
    let tile_len: usize = axes.iter().map(|axis| axis.tile).product();
    let tiles: usize = axes.iter().map(|axis| axis.tiles).product();
    let number = |item: usize| {
        let (mut tile, mut within, mut stride) = (item / tile_len, item % tile_len, 1);
        let mut number = 0;
        for axis in axes.iter().rev() {
            let at = tile % axis.tiles * axis.tile + within % axis.tile;
            (tile, within) = (tile / axis.tiles, within / axis.tile);
            number += (at < axis.extent).then_some(at)? * stride;
            stride *= axis.extent;
        }
        Some(number)
    };
    (0..tiles * tile_len).map(number).collect()
}

/// Returns the value of a scalar parameter of the body.
fn scalar(
    arguments: &[InterpreterArgument<'_>],
    axes: &[DomainAxis],
    groups: u64,
    source: ScalarSource,
) -> u64 {
    match source {
        ScalarSource::Origin => 0,
        ScalarSource::Value { parameter, position } => match &arguments[parameter] {
            InterpreterArgument::Values(values) => values[position],
            _ => 0,
        },
        ScalarSource::LaunchVariant => 0,
        ScalarSource::Axis { axis, part } => axes[axis].scalar(part, false),
        ScalarSource::TileLen(part) => {
            let tile = axes.iter().map(|axis| axis.tile).product();
            DomainAxis { tile, ..axes[0] }.scalar(part, false)
        }
        ScalarSource::Stencil { parameter, part } => match &arguments[parameter] {
            InterpreterArgument::Around(first, extents, ..) => match part {
                StencilPart::First(axis) => first[axis] as u64,
                StencilPart::Extent(axis) => extents[axis] as u64,
                StencilPart::Stride(axis) => extents[axis + 1..].iter().product::<usize>() as u64,
                StencilPart::Mode(_) | StencilPart::Base | StencilPart::Value(..) => 0,
            },
            // Arguments other than windows have the extents of the launch's result.
            _ => match part {
                StencilPart::Extent(axis) => axes[axis].extent as u64,
                StencilPart::Stride(axis) => axes[axis + 1..].iter().map(|axis| axis.extent as u64).product(),
                _ => 0,
            },
        },
        ScalarSource::Length { parameter } => match &arguments[parameter] {
            InterpreterArgument::Read(bytes, stride) => (bytes.len() / stride) as u64,
            InterpreterArgument::Write(bytes, stride) => (bytes.len() / *stride) as u64,
            _ => 0,
        },
        ScalarSource::Groups(GroupPart::Count) => groups,
        ScalarSource::Groups(_) => 0,
    }
}
