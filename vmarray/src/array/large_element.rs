//! Reads and writes of single elements that are too large to move by value, such as structs of kilobytes.
//!
//! An unoptimized build copies each moved value to the stack of each function, and could overflow the stack.
//! Here elements are on the heap, and functions pass references. Only functions that do nothing else handle
//! the value, so few copies are on the stack at any time.

use std::mem::MaybeUninit;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::engine::page::state::DIRTY;

impl<T: Element, D: Device> VirtualArray<T, D> {
    #[inline(never)]
    pub(crate) fn get_large(&self, index: usize) -> Result<T> {
        let mut value = MaybeUninit::<T>::uninit();
        Ok(*self.read_huge(index, &mut value)?)
    }

    #[inline(never)]
    pub(crate) fn set_large(&self, index: usize, value: &T) -> Result<()> {
        let (page, at) = self.checked(index)?;
        self.latched(page, |held| {
            held.element(at).store(value);
            DIRTY
        })
    }

    #[inline(never)]
    pub(crate) fn replace_large(&self, index: usize, value: &T) -> Result<T> {
        let mut old = zeroed::<T>()?;
        self.exchange(self.checked(index)?, None, value, &mut old)?;
        Ok(*old)
    }

    #[inline(never)]
    pub(crate) fn compare_exchange_large(&self, index: usize, current: &T, new: &T) -> Result<Result<T, T>> {
        let mut old = zeroed::<T>()?;
        let is_written = self.exchange(self.checked(index)?, Some(current), new, &mut old)?;
        if is_written { written(&old) } else { refused(&old) }
    }

    #[inline(never)]
    pub(crate) fn update_large(&self, index: usize, mut change: impl FnMut(T) -> T) -> Result<T> {
        let place = self.checked(index)?;
        let (mut current, mut new, mut seen) = (zeroed::<T>()?, zeroed()?, zeroed()?);
        self.read_huge_over(index, &mut current)?;
        loop {
            apply(&mut change, &current, &mut new);
            if self.exchange(place, Some(&current), &new, &mut seen)? {
                return unboxed(&current);
            }
            std::mem::swap(&mut current, &mut seen);
        }
    }

    #[inline(never)]
    pub(crate) fn swap_large(&self, a: usize, b: usize) -> Result<()> {
        let (mut first, mut second) = (zeroed::<T>()?, zeroed()?);
        self.read_huge_over(b, &mut second)?;
        self.exchange(self.checked(a)?, None, &second, &mut first)?;
        self.set_large(b, &first).inspect_err(|_| {
            // The second write failed, so restore the first element if possible.
            let _ = self.set_large(a, &first);
        })
    }

    #[inline(never)]
    pub(crate) fn get_large_uncached(&self, index: usize) -> Result<T> {
        let mut value = zeroed::<T>()?;
        self.read_uncached(self.checked(index)?, &mut value)?;
        Ok(*value)
    }
}

#[inline(never)]
fn apply<T: Element>(change: &mut impl FnMut(T) -> T, from: &T, to: &mut T) {
    *to = change(*from);
}

#[inline(never)]
fn unboxed<T: Element>(value: &T) -> Result<T> {
    Ok(*value)
}

#[inline(never)]
fn written<T: Element>(old: &T) -> Result<Result<T, T>> {
    Ok(Ok(*old))
}

#[inline(never)]
fn refused<T: Element>(old: &T) -> Result<Result<T, T>> {
    Ok(Err(*old))
}

/// Returns memory on the heap for one element, zeroed.
fn zeroed<T: Element>() -> Result<Box<T>> {
    bytemuck::allocation::try_zeroed_box().map_err(|()| ErrorKind::NoMemory { bytes: size_of::<T>() }.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend_host::HostDevice;

    use super::*;
    use crate::array::testing::{host, one_channel};

    /// 256 KiB, with marks at both ends to detect partial copies.
    type Huge = [[u64; 4096]; 8];

    fn is_all(value: &Huge, number: u64) -> bool {
        value.iter().flatten().all(|word| *word == number)
    }

    fn array() -> VirtualArray<Huge, HostDevice> {
        one_channel(&Arc::new(host()), (4, 2), 2).with_len(9).build().unwrap()
    }

    /// The default size of a thread's stack. Code that the compiler has not optimised copies each element to
    /// more places of the stack.
    const STACK_BYTES: usize =
        if option_env!("CARGO_PROFILE_TEST_OPT_LEVEL").is_some() { 2 << 20 } else { 16 << 20 };

    fn on_a_common_stack(run: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run);
            thread.unwrap().join().unwrap();
        });
    }

    #[test]
    fn huge_elements_fit_on_a_common_stack() {
        let array = array();
        on_a_common_stack(|| array.set(5, [[7; 4096]; 8]).unwrap());
        // The second access opens the page, and the third access reads it without a lock.
        for _ in 0..3 {
            on_a_common_stack(|| assert!(is_all(&array.get(5).unwrap(), 7)));
        }
        on_a_common_stack(|| assert!(is_all(&array.replace(5, [[8; 4096]; 8]).unwrap(), 7)));
        on_a_common_stack(|| {
            let old = array.update(5, |mut value| {
                value[7][4095] += 1;
                value
            });
            assert!(is_all(&old.unwrap(), 8));
        });
        on_a_common_stack(|| array.swap(5, 0).unwrap());
        on_a_common_stack(|| assert_eq!(array.get(0).unwrap()[7][4094..], [8, 9]));
        on_a_common_stack(|| {
            let refused = array.compare_exchange(0, [[1; 4096]; 8], [[2; 4096]; 8]).unwrap();
            assert_eq!(refused.unwrap_err()[7][4095], 9);
        });
        on_a_common_stack(|| array.set_uncached(8, [[3; 4096]; 8]).unwrap());
        on_a_common_stack(|| assert!(is_all(&array.get_uncached(8).unwrap(), 3)));
    }

    #[test]
    fn updates_of_huge_elements_are_atomic() {
        let array = array();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                let work = || {
                    for i in 0..30 {
                        let next = |value: Huge| value.map(|part| part.map(|word| word + 1));
                        let old = array.update(i % 3 * 4, next).unwrap();
                        assert!(is_all(&old, old[0][0]));
                    }
                };
                thread.spawn_scoped(threads, work).unwrap();
            }
        });
        (0..9).step_by(4).for_each(|i| assert!(is_all(&array.get(i).unwrap(), 40)));
    }
}
