//! Prefix sums by kernels: each element becomes the sum of all elements up to it. Each work-group scans its
//! own part. A second kernel scans the sums of the work-groups. A third adds to each element the sum of all
//! earlier work-groups. The result is compared with the library's `prefix_sum`.

use crate::setting::Setting;
use vmarray::kernel::{Anywhere, At, Group, Own, Shared};
use vmarray::{Result, prelude::*};

/// Work-items of a group: eight times 32.
const GROUP: usize = 256;

#[vmarray::kernel(group = GROUP)]
fn within_groups(at: At<1>, of_lanes: &Group<u64, 8>, x: &mut Own<u64>, of_groups: &Shared<u64>) {
    let i = at.in_group();
    let sum = lanes::scan_sum(x.get());
    if i % 32 == 31 {
        of_lanes.set(i / 32, sum);
    }
    barrier();
    let mut before = 0;
    for lanes in 0..i / 32 {
        before += of_lanes[lanes];
    }
    x.set(before + sum);
    if i == GROUP - 1 {
        of_groups.exchange(at.group(), before + sum);
    }
}

#[vmarray::kernel]
fn add_groups_before(at: At<1>, of_groups: &Anywhere<u64>, x: &mut Own<u64>) {
    let group = at.index() / GROUP;
    if group > 0 {
        x.set(x.get() + of_groups[group - 1]);
    }
}

fn accumulate(on: &mut Setting, x: &mut VirtualArray<u64>) -> Result<()> {
    let groups = x.len().div_ceil(GROUP);
    let mut of_groups = on.array_on_one(&vec![0; groups])?;
    within_groups::run((&mut *x, &mut of_groups))?;
    if groups > 1 {
        accumulate(on, &mut of_groups)?;
        add_groups_before::run((&of_groups, x))?;
    }
    Ok(())
}

pub fn show(on: &mut Setting) -> Result<()> {
    let mut odd = on.array_on_one(&(0..100_000).map(|i| 2 * i + 1).collect::<Vec<u64>>())?;
    accumulate(on, &mut odd)?;
    println!("    sums of odd numbers: {:?} …", odd.to_vec(..5)?);
    assert!(odd.to_vec(..)?.into_iter().eq((1..=100_000).map(|i| i * i)));
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let values: Vec<u64> = (0..1 + on.below(100_000)).map(|_| on.number()).collect();
    let mut x = on.array_on_one(&values)?;
    let of_library = on.array(&values)?;
    let sum = of_library.prefix_sum(..)?;
    accumulate(on, &mut x)?;
    assert_eq!((x.get(values.len() - 1)?, x.to_vec(..)?), (sum, of_library.to_vec(..)?));
    let truth = values.iter().scan(0_u64, |sum, x| {
        *sum = sum.wrapping_add(*x);
        Some(*sum)
    });
    assert!(x.to_vec(..)?.into_iter().eq(truth));
    Ok(())
}
