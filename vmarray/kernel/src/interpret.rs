//! Kernels by the interpreter of their lowered form.

use crate::KernelType;
use crate::error::Error;
use crate::host::{ARENA_BYTES, Kernel};
use crate::lower::{AroundPart, ScalarSource, lower};
use crate::place::DomainAxis;
use backend_api::expr::Geometry;
use backend_api::kernel::{Interpreter, Report, Slices};
use std::ops::Range;

/// What a launch is given for a parameter.
#[derive(Debug)]
pub enum Argument<'s> {
    /// Nothing: the item's place.
    Place,
    /// The bits of the scalars of a value, or of a table.
    Values(Vec<u64>),
    /// Elements that are read: their bytes, and the bytes of one.
    Read(&'s [u8], usize),
    /// The shape of the result.
    Shape(Vec<usize>),
    /// Elements that are read by places: the first, and how many along each axis.
    Around(Vec<isize>, Vec<usize>, &'s [u8], usize),
    /// Elements that are read and written.
    Write(&'s mut [u8], usize),
    /// How many were appended, 8 bytes, and elements with the bytes of one.
    Append(&'s mut [u8], &'s mut [u8], usize),
}

impl Argument<'_> {
    /// The values of a value.
    pub(crate) fn values_of(value: impl KernelType) -> Self {
        let mut values = Vec::new();
        value.values(&mut values);
        Argument::Values(values)
    }
}

/// Runs the lowered form of a kernel by the interpreter, one item after the other: what
/// [`run_on_host`](crate::run_on_host) does by the function itself, with the same results. For tests; devices
/// run the same form.
///
/// # Errors
/// What lowering says.
///
/// # Panics
/// If a slice has too few elements.
///
/// ```
/// use vmarray_kernel::{At, Own, interpret, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn collatz(at: At<1>, steps: &mut Own<u32>) {
///     let (mut n, mut count) = (at.index(), 0);
///     while n > 1 {
///         n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
///         count += 1;
///     }
///     steps.set(count);
/// }
/// let (mut steps, mut others) = ([0; 100], [0; 100]);
/// run_on_host::<collatz>(0..100, ((), &mut steps))?;
/// let report = interpret::<collatz>(0..100, ((), &mut others))?;
/// assert_eq!((report.failures, steps[27]), (0, 111));
/// assert_eq!(steps, others);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn interpret<K: Kernel>(items: Range<usize>, sources: K::Sources<'_>) -> Result<Report, Error> {
    let lowered = lower::<K>()?;
    // Lowering has verified it, and slices are never out of order.
    let refused = |error: backend_api::Error| Error::refused(lowered.name, error.detail());
    let mut arguments = K::arguments(sources);
    let params: Vec<u64> = lowered.scalars.iter().map(|source| scalar(&arguments, *source)).collect();
    let table = lowered.table_bytes(|parameter| match &arguments[parameter] {
        Argument::Values(values) => values,
        _ => &[],
    });
    let kernel = backend_api::kernel::Kernel::new(lowered.body.clone()).map_err(refused)?.named(lowered.name);
    let mut copies: Vec<Vec<u8>> = Vec::new();
    for view in &lowered.views {
        if let Argument::Read(bytes, _) | Argument::Around(_, _, bytes, _) = &arguments[*view] {
            copies.push(bytes.to_vec());
        }
    }
    let (mut copies, mut views) = (copies.iter_mut(), Vec::new());
    for (number, argument) in arguments.iter_mut().enumerate() {
        match argument {
            Argument::Read(_, stride) | Argument::Around(_, _, _, stride)
                if lowered.views.contains(&number) =>
            {
                views.extend(copies.next().map(|copy| (copy.as_mut_slice(), *stride)));
            }
            Argument::Write(bytes, stride) => views.push((&mut **bytes, *stride)),
            Argument::Append(count, bytes, stride) => {
                views.extend([(&mut **count, 8), (&mut **bytes, *stride)]);
            }
            _ => {}
        }
    }
    let geometry = Geometry::plain(items.start as u64);
    let interpreter = Interpreter {
        params: &params,
        table: &table,
        arena_bytes: ARENA_BYTES,
        ..Interpreter::new(&kernel, items.len() as u64, geometry)
    };
    let report = interpreter.run(&mut Slices::new(views)).map_err(refused)?;
    Ok(Report { detail: lowered.index_of(&report) as u64, ..report })
}

/// A scalar that the body takes.
fn scalar(arguments: &[Argument<'_>], source: ScalarSource) -> u64 {
    match source {
        ScalarSource::Origin => 0,
        ScalarSource::Value { parameter, position } => match &arguments[parameter] {
            Argument::Values(values) => values[position],
            _ => 0,
        },
        ScalarSource::Form => 0,
        ScalarSource::Axis { axis, part } => {
            let shape = arguments.iter().find_map(|argument| match argument {
                Argument::Shape(shape) => Some(shape),
                _ => None,
            });
            let extent = shape.map_or(1, |shape| shape[axis]);
            DomainAxis::whole(extent).scalar(part, false)
        }
        ScalarSource::TileLen(part) => DomainAxis::whole(1).scalar(part, false),
        ScalarSource::Around { parameter, part } => match &arguments[parameter] {
            Argument::Around(first, extents, ..) => match part {
                AroundPart::First(axis) => first[axis] as u64,
                AroundPart::Extent(axis) => extents[axis] as u64,
                AroundPart::Stride(axis) => extents[axis + 1..].iter().product::<usize>() as u64,
                AroundPart::Mode(_) | AroundPart::Base | AroundPart::Value(..) => 0,
            },
            _ => 0,
        },
        ScalarSource::Length { parameter } => match &arguments[parameter] {
            Argument::Read(bytes, stride) => (bytes.len() / stride) as u64,
            Argument::Write(bytes, stride) => (bytes.len() / *stride) as u64,
            _ => 0,
        },
    }
}
