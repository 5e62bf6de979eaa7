//! The histogram kernel of the radix sort: counts the digits of all keys.

use backend_api::kernel::Type;
use vmarray_kernel::{Anywhere, At, ElementMemory, Group, KernelInteger, Shared, kernel};

use super::keys::{by_key, in_order};
use crate::ops::executor::LibraryKernel;

const BLOCK: usize = 256;
const DIGITS: usize = 256;
/// Number of copies of the counts in a group. Lanes with equal digits then seldom change the same word.
const COPIES: usize = 4;
/// Number of keys that a work-item reads before it counts them.
const AT_ONCE: usize = 8;

pub(super) fn of(key: Type) -> LibraryKernel {
    by_key!(key, K => count_digits<K, { size_of::<K>() * DIGITS * COPIES }>)
}

/// Kernel function: counts each digit of a key.
#[kernel(crate = vmarray_kernel)]
fn count_key<K: KernelInteger, const N: usize>(key: K, copy: u32, here: &Group<u32, N>) {
    for place in 0..K::BITS / 8 {
        let digit = (key >> (8 * place)) as u32 % DIGITS as u32;
        here.add(((place * DIGITS as u32 + digit) * COPIES as u32 | copy) as usize, 1);
    }
}

/// Kernel: counts the keys with each value of each digit. Adds to the words `2 * (place * 256 + digit)`. The
/// next words extend the counts to 64 bits, because some devices have no 64-bit atomics.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn count_digits<K: KernelInteger + ElementMemory, const N: usize>(
    at: At<1>,
    count: usize,
    order: (K, K),
    keys: &Anywhere<K>,
    here: &Group<u32, N>,
    counts: &Shared<u32>,
) {
    let t = at.in_group();
    let mut from = at.group() * (AT_ONCE * BLOCK);
    while from < count {
        if from + AT_ONCE * BLOCK <= count {
            let mut read = [K::ZERO; AT_ONCE];
            for i in 0..AT_ONCE {
                read[i] = keys[from + t + i * BLOCK];
            }
            for i in 0..AT_ONCE {
                count_key(in_order(read[i], order), t as u32 % COPIES as u32, here);
            }
        } else {
            let mut j = from + t;
            while j < count {
                count_key(in_order(keys[j], order), t as u32 % COPIES as u32, here);
                j += BLOCK;
            }
        }
        from += at.groups() * (AT_ONCE * BLOCK);
    }
    barrier();
    for place in 0..K::BITS / 8 {
        let number = place as usize * DIGITS + t;
        let mut sum = 0;
        for copy in 0..COPIES {
            sum += here[number * COPIES + copy];
        }
        if sum > 0 {
            let before = counts.add(2 * number, sum);
            if before + sum < sum {
                counts.add(2 * number + 1, 1);
            }
        }
    }
}
