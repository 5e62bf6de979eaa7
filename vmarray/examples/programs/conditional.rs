//! Conditional assignment: elements that meet a condition change, all others stay. The program does a short
//! rule by an expression, and a longer one by a kernel.

use crate::setting::Setting;
use vmarray::kernel::Own;
use vmarray::{Result, prelude::*};

/// Compresses samples above a limit; louder samples are compressed more.
#[vmarray::kernel]
fn limited(limit: f32, x: &mut Own<f32>) {
    if x.get().abs() > limit {
        let mut over = x.get().abs() - limit;
        let mut level = limit;
        while over > limit {
            level += limit / 2.0;
            over -= limit;
        }
        x.set((level + over / 2.0).copysign(x.get()));
    }
}

/// The same function on the host, for one number.
fn natively(limit: f32, x: f32) -> f32 {
    if x.abs() <= limit {
        return x;
    }
    let (mut over, mut level) = (x.abs() - limit, limit);
    while over > limit {
        level += limit / 2.0;
        over -= limit;
    }
    (level + over / 2.0).copysign(x)
}

pub fn show(on: &mut Setting) -> Result<()> {
    let mut samples = on.array(&[0.5, -1.5, 3.0, -0.25, 8.0])?;
    limited::run((1.0, &mut samples))?;
    println!("    limited: {:?}", samples.to_vec(..)?);
    assert_eq!(samples.to_vec(..)?, [0.5, -1.25, 2.0, -0.25, 4.5]);
    // An expression can do the same: negative samples become zero.
    let x = Field::whole();
    samples.assign_where(.., x.lt(0.0), x.set(0.0))?;
    assert_eq!(samples.to_vec(..)?, [0.5, 0.0, 2.0, 0.0, 4.5]);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let values: Vec<f32> = (0..on.below(3000) + 1).map(|_| 10.0 * on.real()).collect();
    let (mut samples, limit) = (on.array(&values)?, 0.5 + on.real().abs());
    limited::run((limit, &mut samples))?;
    let truth: Vec<f32> = values.iter().map(|x| natively(limit, *x)).collect();
    assert_eq!(samples.to_vec(..)?, truth);
    Ok(())
}
