//! `take`: gathers of elements by devices, with indices that are in another array.

use bytemuck::{Pod, Zeroable};
use vmarray_kernel::{
    Anywhere, ElementMemory, KernelNumber, KernelScalar as _, KernelType, Layout, LayoutField, Own, kernel,
};

use crate::array::VirtualArray;
use crate::base::element::{self, Element};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::ops::launch::KernelArguments;
use crate::ops::sealed::Sealed;
use crate::ops::sort::{bytes_in_ram, is_unsupported};
use crate::ops::view::{INTERNAL, Section, Store, View as _};

/// The greatest size of an element that kernels copy; longer elements are gathered by lists of indices.
const BYTES_MAX: usize = 128;
/// The number of indices that the host reads at once, if it gathers by lists.
const LISTED_AT_ONCE: usize = 1 << 18;
/// The bytes of the elements that the host gathers at once, if the elements are long.
const BYTES_AT_ONCE: usize = 16 << 20;

/// Types of the indices for [`take`](super::Order::take): `u32` and `u64`.
///
/// ```
/// use vmarray::order::TakeIndex;
/// use vmarray::prelude::*;
///
/// fn last<I: TakeIndex>(order: &VirtualArray<I>, of: &VirtualArray<f32>) -> vmarray::Result<f32> {
///     of.take(order)?.get(order.len() - 1)
/// }
/// let (of, order) = (VirtualArray::<f32>::new(3)?, VirtualArray::<u32>::new(2)?);
/// of.set(2, 0.5)?;
/// order.write(0, &[1, 2])?;
/// assert_eq!(last(&order, &of)?, 0.5);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait TakeIndex: Element + KernelNumber + ElementMemory + Sealed {}
impl TakeIndex for u32 {}
impl TakeIndex for u64 {}

/// An element as words without meaning, which kernels copy.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
struct Plain<T>(T)
where
    T: Element;

impl<T: Element> Plain<T> {
    /// The size of a word in bytes. All words of an element have this size, and are aligned to it.
    const WORD: usize = match size_of::<T>() % 8 {
        0 => 8,
        4 => 4,
        2 | 6 => 2,
        _ => 1,
    };
}

fn words(bytes: &[u8], word: usize) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(word).map(|word| {
        let mut wide = [0; 8];
        wide[..word.len()].copy_from_slice(word);
        u64::from_le_bytes(wide)
    })
}

impl<T: Element> KernelType for Plain<T> {
    const ZERO: Self = Self(element::ElementLayout::<T>::ZERO);

    fn layout() -> Layout {
        let word = match Self::WORD {
            8 => u64::layout(),
            4 => u32::layout(),
            2 => u16::layout(),
            _ => u8::layout(),
        };
        let bytes = size_of::<T>();
        let layout = Layout::Array(Box::new(word), bytes / Self::WORD);
        let field = LayoutField { name: "words", offset: 0, layout };
        Layout::Struct { name: "Plain", fields: vec![field], bytes }
    }

    fn values(self, into: &mut Vec<u64>) {
        into.extend(words(bytemuck::bytes_of(&self), Self::WORD));
    }

    fn of_values(next: &mut impl FnMut() -> u64) -> Self {
        let mut value = Self::ZERO;
        for word in bytemuck::bytes_of_mut(&mut value).chunks_exact_mut(Self::WORD) {
            word.copy_from_slice(&next().to_le_bytes()[..Self::WORD]);
        }
        value
    }
}

#[kernel(crate = vmarray_kernel)]
fn taken<T: ElementMemory, I: KernelNumber + ElementMemory>(
    of: &Anywhere<T>,
    indices: &Own<I>,
    out: &mut Own<T>,
) {
    out.set(of[indices.get() as usize]);
}

/// Returns the elements with these indices, in an array on the devices of the indices.
pub(super) fn take<S: Store, J: Store<Element: TakeIndex>>(
    of: Section<'_, S>,
    indices: Section<'_, J>,
) -> Result<VirtualArray<S::Element, J::Device>> {
    let out = indices.store().array_like::<S::Element>(indices.len(), INTERNAL)?;
    if indices.is_empty() {
        return Ok(out);
    }
    let store = of.store().as_operand(INTERNAL);
    // A kernel would copy all elements of files to RAM.
    let is_copied = store.is_in_files() && size_of::<S::Element>() * of.len() > bytes_in_ram(store) / 4;
    if size_of::<S::Element>() <= BYTES_MAX && !is_copied {
        let given = KernelArguments::default().all(of).own(indices).result(&out);
        match given.run::<taken<Plain<S::Element>, J::Element>>() {
            Err(error) if error.device_error().is_some_and(is_unsupported) => {}
            done => return done.map(|()| out).map_err(|error| listed(error, of.len())),
        }
    }
    by_lists(of, indices, &out)?;
    Ok(out)
}

/// Converts a kernel's error for an invalid index to the error for an invalid list.
fn listed(error: Error, len: usize) -> Error {
    match *error.kind() {
        ErrorKind::KernelOutside { index, item, .. } => {
            ErrorKind::ListedIndexOutside { position: item, index: index as usize, len }.into()
        }
        _ => error,
    }
}

fn by_lists<S: Store, J: Store<Element: TakeIndex>>(
    of: Section<'_, S>,
    indices: Section<'_, J>,
    out: &VirtualArray<S::Element, J::Device>,
) -> Result<()> {
    let at_once = LISTED_AT_ONCE.min(indices.len()).min(BYTES_AT_ONCE / size_of::<S::Element>() + 1);
    let (mut numbers, mut values) = (zeroed_vec(at_once)?, zeroed_vec(at_once)?);
    for start in (0..indices.len()).step_by(at_once) {
        let here = at_once.min(indices.len() - start);
        indices.read(start, &mut numbers[..here])?;
        let list: Vec<usize> = numbers[..here].iter().map(|number| number.to_value() as usize).collect();
        if let Some(at) = list.iter().position(|index| *index >= of.len()) {
            let (position, index) = (start + at, list[at]);
            return Err(ErrorKind::ListedIndexOutside { position, index, len: of.len() }.into());
        }
        of.gather_into(&list, &mut values[..here])?;
        out.write_range(start, &values[..here])?;
    }
    Ok(())
}
