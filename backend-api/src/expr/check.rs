//! Validation of compute requests: everything except the bounds of the memory that they access.

use super::{Action, Compute, Type, Value};
use crate::kernel::Op;
use crate::{Error, ErrorKind, Result};

const OPERATION: &str = "compute";

/// Checks a request after the bounds of its sources have been checked.
pub(crate) fn check(compute: &Compute<'_>) -> Result<()> {
    check_sources(compute)?;
    check_fields(compute)?;
    check_action(compute)?;
    let geometry = compute.geometry;
    if geometry.page_len == 0 || geometry.channels == 0 {
        return Err(invalid(
            "the geometry has pages of 0 elements, or 0 channels; both must be at least 1".into(),
        ));
    }
    Ok(())
}

fn check_sources(compute: &Compute<'_>) -> Result<()> {
    let number = compute.sources.len();
    if !(1..=Compute::SOURCES_MAX).contains(&number) {
        let most = Compute::SOURCES_MAX;
        return Err(invalid(format!("{number} sources, but 1 to {most} are supported")));
    }
    for source in compute.sources {
        if source.count != compute.count() {
            let (one, other) = (compute.count(), source.count);
            return Err(invalid(format!("the sources have different lengths: {one} and {other} elements")));
        }
    }
    for (_, written) in compute.sources.iter().enumerate().filter(|(at, _)| compute.writes(*at)) {
        for other in compute.sources {
            let same = written.start == other.start && written.stride == other.stride;
            let (a, b) = (written.start.offset(), other.start.offset());
            // The sources (arrays) are inside of their buffers, so these sums cannot overflow.
            let apart = written.start.buffer() != other.start.buffer()
                || a + written.count * written.stride <= b
                || b + other.count * other.stride <= a;
            if !same && !apart {
                return Err(invalid("a written source overlaps with another source".into())
                    .with_offset(a)
                    .with_bytes(written.count * written.stride));
            }
        }
    }
    Ok(())
}

/// Checks that a field of `bytes` bytes at `offset` is inside of an element of the source.
fn check_inside(compute: &Compute<'_>, source: u16, offset: u32, bytes: u64) -> Result<()> {
    let Some(elements) = compute.sources.get(usize::from(source)) else {
        return Err(invalid(format!("source {source} does not exist")));
    };
    if u64::from(offset) + bytes > elements.stride {
        let detail = format!("the field ends outside of its element of {} bytes", elements.stride);
        return Err(invalid(detail).with_offset(offset.into()).with_bytes(bytes));
    }
    Ok(())
}

fn check_fields(compute: &Compute<'_>) -> Result<()> {
    compute.program.ops().iter().try_for_each(|op| match *op {
        Op::Load { view, offset, of, .. } => check_inside(compute, view, offset, of.value().bytes().into()),
        Op::FieldEquals { view, offset, ref bytes, .. } => {
            check_inside(compute, view, offset, bytes.len() as u64)
        }
        _ => Ok(()),
    })
}

fn check_action(compute: &Compute<'_>) -> Result<()> {
    let type_of = |value: Value| {
        let found = compute.program.type_of(value);
        found.ok_or_else(|| invalid(format!("the program has no value {}", value.0)))
    };
    let wanted = |value: Value, fits: &dyn Fn(Type) -> bool, what: &str| {
        let found = type_of(value)?;
        let refused =
            || invalid(format!("value {} has the type {found}, but the operation needs {what}", value.0));
        fits(found).then_some(()).ok_or_else(refused)
    };
    let truth = |value: Value| wanted(value, &|of| of == Type::Bool, "a bool");
    let number = |value: Value| wanted(value, &|of| of != Type::Bool, "a number");
    let filter = match compute.action {
        Action::Find { predicate, .. } => Some(predicate),
        Action::Sum { value, filter, .. } | Action::Extremes { value, filter, .. } => {
            number(value)?;
            filter
        }
        Action::Histogram { value, filter, bins, .. } => {
            wanted(value, &|of| of == Type::U32, "a u32")?;
            if !(1..=Compute::BINS_MAX).contains(&bins) {
                return Err(invalid(format!("{bins} bins, but 1 to {} are supported", Compute::BINS_MAX)));
            }
            filter
        }
        Action::Store { stores, filter } => {
            if !(1..=Compute::STORES_MAX).contains(&stores.len()) {
                let most = Compute::STORES_MAX;
                return Err(invalid(format!("{} stores, but 1 to {most} are supported", stores.len())));
            }
            for (at, store) in stores.iter().enumerate() {
                number(store.value)?;
                let of = type_of(store.value)?;
                check_inside(compute, store.source.into(), store.offset, of.bytes().into())?;
                for other in &stores[..at] {
                    let one = &compute.sources[usize::from(store.source)];
                    let two = &compute.sources[usize::from(other.source)];
                    let (a, b) = (u64::from(store.offset), u64::from(other.offset));
                    let bytes = u64::from(type_of(other.value)?.bytes());
                    if one.start == two.start && a < b + bytes && b < a + u64::from(of.bytes()) {
                        return Err(invalid("two stores write the same bytes".into()).with_offset(a));
                    }
                }
            }
            filter
        }
    };
    filter.map_or(Ok(()), truth)
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, OPERATION).with_detail(detail)
}
