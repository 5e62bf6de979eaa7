//! Sorting of an N-dimensional array along one axis: sorts each line of elements by itself.

use std::array::from_fn;
use std::ops::Range;

use vmarray_kernel::{Anywhere, At, ElementMemory, KernelNumber, Own, kernel};

use super::region::NdShape;
use super::shape::{check_axis, strides};
use crate::array::VirtualArray;
use crate::base::element::Field;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::base::scoped_threads::CORES;
use crate::engine::shared_work::for_each;
use crate::ops::expr::index;
use crate::ops::launch::KernelArguments;
use crate::ops::order::OrderMut as _;
use crate::ops::query::QueryMut as _;
use crate::ops::scan::PIECE_BYTES;
use crate::ops::sort::{KeyOrder, SortKey, is_unsupported, sort};
use crate::ops::view::{INTERNAL, Linear, Section, SectionMut, Shape as _, StoreMut, ViewMut as _};

/// Exchanges the two inner axes of an array with three axes of the given extents.
#[kernel(crate = vmarray_kernel)]
fn transposed<T: KernelNumber + ElementMemory>(
    at: At<1>,
    last: u64,
    middle: u64,
    of: &Anywhere<T>,
    out: &mut Own<T>,
) {
    let (line, place) = (at.index() as u64 / last, at.index() as u64 % last);
    out.set(of[(line / middle * middle * last + place * middle + line % middle) as usize]);
}

pub(super) fn sort_axis<S: StoreMut<Element: SortKey>, const N: usize, const M: usize>(
    (store, region): (&S, NdShape<N, M>),
    axis: usize,
) -> Result<()> {
    check_axis(axis, M)?;
    let extents = region.extents;
    if extents.iter().product::<usize>() == 0 {
        return Ok(());
    }
    let in_rows = region.stored().filter(|stored| !stored.is_tiled() && !stored.is_part());
    if let Some(range) = in_rows.map(|stored| stored.range()) {
        if M == 1 {
            return sort(store, &range, None, false);
        }
        if matches!(size_of::<S::Element>(), 4 | 8) {
            let inner = extents[axis + 1..].iter().product();
            match on_devices(store, &range, extents[axis], inner) {
                Err(error) if error.device_error().is_some_and(is_unsupported) => {}
                Ok(false) => {}
                done => return done.map(drop),
            }
        }
    }
    by_pieces(store, &region, axis)
}

/// Sorts lines on the devices that store them, if these are GPUs. Sorts all elements by value, and then by
/// the number of their line.
fn on_devices<S: StoreMut<Element: SortKey>>(
    store: &S,
    range: &Range<usize>,
    len: usize,
    inner: usize,
) -> Result<bool> {
    let devices = store.as_operand(INTERNAL).devices();
    if devices.is_empty() || !devices.iter().all(|(device, _)| device.info().kind.is_gpu()) {
        return Ok(false);
    }
    let elements: VirtualArray<S::Element, S::Device> = store.array_like(range.len(), INTERNAL)?;
    let lines: VirtualArray<u64, S::Device> = store.array_like(range.len(), INTERNAL)?;
    let shape = Linear { start: range.start, len: range.len() };
    let (from, to) = (Section::<S>::new(store, shape), SectionMut::new(store, shape));
    let axes =
        |last: usize, middle: usize| KernelArguments::default().value(last as u64).value(middle as u64);
    if inner == 1 {
        elements.copy_from(0, from)?;
    } else {
        axes(len, inner).all(from).result(&elements).run::<transposed<S::Element>>()?;
    }
    lines.transform(.., Field::<u64, u64>::whole().set(index() / len as u64))?;
    elements.sort_with(.., &lines)?;
    lines.sort_with(.., &elements)?;
    if inner == 1 {
        to.copy_from(0, &elements)?;
    } else {
        drop(lines);
        let back: VirtualArray<S::Element, S::Device> = store.array_like(range.len(), INTERNAL)?;
        axes(inner, len).all(&elements).result(&back).run::<transposed<S::Element>>()?;
        to.copy_from(0, &back)?;
    }
    Ok(true)
}

/// Sorts lines in RAM, some MiB at a time.
fn by_pieces<S: StoreMut<Element: SortKey>, const N: usize, const M: usize>(
    store: &S,
    region: &NdShape<N, M>,
    axis: usize,
) -> Result<()> {
    let (extents, order) = (region.extents, KeyOrder::of::<S::Element>(false));
    // Divide the box along another axis than the sorted one, so that each piece has whole lines.
    let cut = usize::from(axis == 0).min(M - 1);
    let all: usize = extents.iter().product();
    let at_once = match M {
        1 => extents[0],
        _ => (PIECE_BYTES / size_of::<S::Element>() / (all / extents[cut])).clamp(1, extents[cut]),
    };
    let mut elements = zeroed_vec::<S::Element>(all / extents[cut] * at_once)?;
    let mut sorted = zeroed_vec::<S::Element>(elements.len())?;
    for first in (0..extents[cut]).step_by(at_once) {
        let here = at_once.min(extents[cut] - first);
        let start: [usize; M] = from_fn(|at| if at == cut { first } else { 0 });
        let end: [usize; M] = from_fn(|at| if at == cut { first + here } else { extents[at] });
        let of_piece: [usize; M] = from_fn(|at| end[at] - start[at]);
        let count: usize = of_piece.iter().product();
        let (elements, sorted) = (&mut elements[..count], &mut sorted[..count]);
        let of = start..end;
        region.copy_out(store, &of, elements, INTERNAL)?;
        let (len, inner) = (extents[axis], of_piece[axis + 1..].iter().product::<usize>());
        let read = &*elements;
        for_each(*CORES, sorted.chunks_exact_mut(len).enumerate(), |(line, sorted)| {
            let begin = line / inner * len * inner + line % inner;
            let of_line = read[begin..].iter().step_by(inner);
            sorted.iter_mut().zip(of_line).for_each(|(to, from)| *to = *from);
            sorted.sort_unstable_by_key(|element| {
                order.key::<<S::Element as SortKey>::KeyBits>(bytemuck::cast(*element))
            });
            Ok(())
        })?;
        let sorted = &*sorted;
        for_each(*CORES, elements.chunks_exact_mut(inner).enumerate(), |(row, elements)| {
            let begin = row / len * len * inner + row % len;
            let across = sorted[begin..].iter().step_by(len);
            elements.iter_mut().zip(across).for_each(|(to, from)| *to = *from);
            Ok(())
        })?;
        // The buffer may contain the only copy of some elements, so try a failed write once more.
        let write = || region.write(store, &of, strides(&of_piece), elements);
        if let Err(error) = write() {
            write()?;
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_api::DeviceKind;
    use backend_api::wrap::SplitMix64;

    use super::*;
    use crate::ops::sort::InterpretedGpu;
    use crate::prelude::*;

    /// Sorts a box of an array along each axis, and compares with the expected result.
    fn check<T: SortKey>(
        random: &mut SplitMix64,
        array: &NdArray<T, 3, InterpretedGpu>,
        bounds: Option<[Range<usize>; 3]>,
        number: impl Fn(u64) -> T,
    ) {
        let extents = array.shape();
        let of = bounds.unwrap_or_else(|| extents.map(|extent| 0..extent));
        let (start, end): ([usize; 3], [usize; 3]) = (from_fn(|at| of[at].start), from_fn(|at| of[at].end));
        let order = KeyOrder::of::<T>(false);
        for axis in 0..3 {
            let len: usize = extents.iter().product();
            let mut all: Vec<T> = (0..len).map(|_| number(random.next())).collect();
            array.write_box(.., &all).unwrap();
            array.section_mut(start..end).unwrap().sort_axis(axis).unwrap();
            let place = |at: [usize; 3]| (at[0] * extents[1] + at[1]) * extents[2] + at[2];
            let [one, two] = [[1, 2], [0, 2], [0, 1]][axis];
            for i in of[one].clone() {
                for j in of[two].clone() {
                    let line = of[axis].clone().map(|k| {
                        let mut at = [k; 3];
                        (at[one], at[two]) = (i, j);
                        place(at)
                    });
                    let places: Vec<usize> = line.collect();
                    let mut sorted: Vec<T> = places.iter().map(|place| all[*place]).collect();
                    sorted.sort_by_key(|element| order.key::<T::KeyBits>(bytemuck::cast(*element)));
                    places.iter().zip(sorted).for_each(|(place, element)| all[*place] = element);
                }
            }
            let bits = |of: Vec<T>| -> Vec<T::KeyBits> { of.into_iter().map(bytemuck::cast).collect() };
            assert!(bits(array.to_vec(..).unwrap()) == bits(all), "{extents:?}, {start:?}..{end:?}, {axis}");
        }
    }

    #[test]
    fn lines_along_each_axis_are_sorted_on_cards_and_in_ram() {
        let mut random = SplitMix64::new(15);
        for round in 0..24 {
            let kind = [DeviceKind::DiscreteGpu, DeviceKind::Cpu][round % 2];
            let extents: [usize; 3] = from_fn(|_| 1 + random.index(15));
            let devices = (0..1 + round % 3).map(|_| Arc::new(InterpretedGpu::of(kind))).collect::<Vec<_>>();
            let bounds = (round % 4 == 3).then(|| {
                from_fn(|at| {
                    let start = random.index(extents[at]);
                    start..start + 1 + random.index(extents[at] - start)
                })
            });
            macro_rules! checked {
                ($T:ty, $number:expr) => {{
                    let mut builder = NdArray::<$T, 3>::builder(extents).devices(devices.clone());
                    builder = builder.elements(|elements| elements.page_len(50));
                    if round % 6 == 5 {
                        builder = builder.tile([2, 3, 4]);
                    }
                    check(&mut random, &builder.build().unwrap(), bounds.clone(), $number);
                }};
            }
            checked!(u8, |bits| bits as u8);
            checked!(f32, |bits| f32::from_bits(bits as u32));
            checked!(i64, |bits| bits as i64 >> (bits % 64));
        }
        let table = NdArray::<u32, 2>::new([0, 3]).unwrap();
        table.sort_axis(0).unwrap();
        assert!(table.sort_axis(2).is_err());
    }
}
