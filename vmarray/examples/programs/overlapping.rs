//! Two overlapping views of one vector. Kernels change the views alternately, on the devices that store the
//! elements, and the program reads the elements in between. Every kernel and every read sees all earlier
//! changes. The library copies only outdated parts.

use crate::setting::Setting;
use vmarray::kernel::Own;
use vmarray::{Result, prelude::*};

#[vmarray::kernel]
fn scaled(by: i32, add: i32, x: &mut Own<i32>) {
    x.set(x.get() * by + add);
}

pub fn show(on: &mut Setting) -> Result<()> {
    let numbers = on.source((0..1000).collect::<Vec<i32>>())?;
    let (left, right) = (0..600, 400..1000);
    scaled::run((2, 0, numbers.section_mut(left)?))?;
    scaled::run((1, 1, numbers.section_mut(right)?))?;
    println!("    left, both, right: {:?}", [numbers.get(399)?, numbers.get(500)?, numbers.get(600)?]);
    assert_eq!([numbers.get(399)?, numbers.get(500)?, numbers.get(600)?], [798, 1001, 601]);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let len = 1 + on.below(3000);
    let mut truth: Vec<i32> = (0..len).map(|_| on.number() as i32).collect();
    let numbers = on.source(truth.clone())?;
    for _ in 0..10 {
        let start = on.below(len);
        let range = start..start + on.below(len - start + 1);
        let (by, add) = (on.number() as i32, on.number() as i32);
        if on.below(4) == 0 {
            // In this step the program writes the view itself, without a kernel.
            numbers.fill(range.clone(), add)?;
            truth[range].fill(add);
        } else {
            scaled::run((by, add, numbers.section_mut(range.clone())?))?;
            truth[range].iter_mut().for_each(|x| *x = x.wrapping_mul(by).wrapping_add(add));
        }
        let some = on.below(len);
        assert_eq!(numbers.get(some)?, truth[some]);
    }
    assert_eq!(numbers.to_vec(..)?, truth);
    Ok(())
}
