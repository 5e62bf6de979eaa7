//! Reference implementation of [`Compute`] requests: the interpreter evaluates the program for each element
//! in turn, and the request's action combines the values.

use std::cmp::Reverse;

use backend_api::expr::{Action, Number, Partial, Type, Value};
use backend_api::kernel::{Slices, Views};
use backend_api::{Compute, by_type};

/// Executes a compute request on the bytes of its sources (arrays), and returns the answer as 64-bit words. A
/// reduction has one partial result, for all elements. The action `Store` has no answer, but changes the
/// bytes. Sources with one address are one array, so a store to one of them changes all of them.
///
/// ```
/// use backend_api::{BufferHandle, Compute, Elements, HostBuffer, HostMemory};
/// use backend_api::expr::{Action, Geometry, Instruction, Program, Type, Value};
/// use vmarray_conformance::reference;
///
/// let program = Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::U8 }])?;
/// let memory = BufferHandle::unique();
/// let device = std::sync::Arc::new(reference::ReferenceDevice::new(100));
/// let host = HostBuffer::new(&device, 64, HostMemory::Pageable)?;
/// let compute = Compute {
///     program: &program,
///     sources: &[Elements { start: memory.at(0), count: 3, stride: 1 }],
///     geometry: Geometry::plain(0),
///     action: Action::Sum { value: Value(0), filter: None, answer: host.at(0) },
/// };
/// assert_eq!(reference::compute(&compute, &mut [vec![3, 4, 5]]), [1, 3, 12, 0, 0, 0]);
/// # Ok::<_, backend_api::Error>(())
/// ```
///
/// # Panics
/// Panics if a source is shorter than in the request.
#[must_use]
pub fn compute(compute: &Compute<'_>, sources: &mut [Vec<u8>]) -> Vec<u64> {
    let (value, filter) = match compute.action {
        Action::Find { predicate, .. } => (Some(predicate), Some(predicate)),
        Action::Sum { value, filter, .. }
        | Action::Extremes { value, filter, .. }
        | Action::Histogram { value, filter, .. } => (Some(value), filter),
        Action::Store { filter, .. } => (None, filter),
    };
    let type_of = |value: Value| compute.program.types()[value.at()];
    let mut counted = Vec::new();
    // A source (array) of 0 elements may have any stride, even 0, which `Slices` refuses. So use at least 1.
    let strides = compute.sources.iter().map(|source| source.stride.max(1) as usize);
    let slices = sources.iter_mut().map(|bytes| &mut bytes[..]).zip(strides).collect();
    let (count, mut views) = (compute.count(), Slices::new(slices));
    let evaluated = compute.program.evaluate(count, compute.geometry, &mut views, |number, values, views| {
        if filter.is_some_and(|filter| values[filter.at()] == 0) {
            return Ok(());
        }
        counted.extend(value.map(|value| (number, values[value.at()])));
        let Action::Store { stores, .. } = compute.action else { return Ok(()) };
        for store in stores {
            let bytes = values[store.value.at()].to_ne_bytes();
            let width = type_of(store.value).bytes() as usize;
            let bytes = if cfg!(target_endian = "little") { &bytes[..width] } else { &bytes[8 - width..] };
            let same = compute.sources[usize::from(store.source)].start;
            for view in (0..compute.sources.len()).filter(|view| compute.sources[*view].start == same) {
                views.write(view, number, store.offset, bytes)?;
            }
        }
        Ok(())
    });
    evaluated.expect("accesses to slices never fail");
    value.map_or(Vec::new(), |value| answer(compute.action, type_of(value), &counted))
}

/// Returns the answer of a compute request as 64-bit words. `counted` has the index and the value's bits of
/// each element that passed the filter.
fn answer(action: Action<'_>, of: Type, counted: &[(u64, u64)]) -> Vec<u64> {
    let count = counted.len() as u64;
    match action {
        Action::Find { limit, .. } => {
            let listed = &counted[..limit.min(count) as usize];
            [count, listed.len() as u64].into_iter().chain(listed.iter().map(|(number, _)| *number)).collect()
        }
        Action::Sum { .. } if of.is_float() => {
            let floats = counted.iter().map(|(_, bits)| by_type!(of, T => T::from_value(*bits).to_f64()));
            Partial::answer(&[Partial::of_floats(count, floats.fold(0.0, |sum, float| sum + float))])
        }
        Action::Sum { .. } => {
            let integers = counted.iter().map(|(_, bits)| by_type!(of, T => T::from_value(*bits).to_i128()));
            Partial::answer(&[Partial::of_integers(count, integers.sum())])
        }
        Action::Extremes { .. } => {
            let is_number = |bits: u64| by_type!(of, T => !Number::is_nan(T::from_value(bits)));
            let numbers = counted.iter().filter(|(_, bits)| is_number(*bits));
            let keys: Vec<_> = numbers.map(|(number, bits)| (of.key(*bits), *number)).collect();
            let least = keys.iter().min().copied().unwrap_or_default();
            let greatest = keys.iter().max_by_key(|(key, number)| (*key, Reverse(*number)));
            let greatest = greatest.copied().unwrap_or_default();
            Partial::answer(&[Partial::of_extremes(keys.len() as u64, least, greatest)])
        }
        Action::Histogram { bins, .. } => {
            let mut numbers = vec![0; bins as usize];
            for (_, bits) in counted {
                numbers.get_mut(*bits as usize).into_iter().for_each(|number| *number += 1);
            }
            numbers
        }
        Action::Store { .. } => Vec::new(),
    }
}
