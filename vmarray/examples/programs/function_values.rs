//! Functions passed to a kernel: they are type parameters, so the compiler inlines the chosen function.

use crate::setting::Setting;
use vmarray::kernel::{At, Function, Own};
use vmarray::{Result, prelude::*};

#[vmarray::kernel]
fn square(x: f64) -> f64 {
    x * x
}

#[vmarray::kernel]
fn reciprocal(x: f64) -> f64 {
    1.0 / x
}

/// Integrates a function by Simpson's rule; each work-item computes one slice.
#[vmarray::kernel]
fn slices<F: Function<(f64,), f64>>(at: At<1>, start: f64, width: f64, area: &mut Own<f64>) {
    let left = start + width * at.index() as f64;
    let middle = F::call((left + width / 2.0,));
    area.set((F::call((left,)) + 4.0 * middle + F::call((left + width,))) * (width / 6.0));
}

fn integral<F: Function<(f64,), f64>>(
    on: &mut Setting,
    start: f64,
    end: f64,
    count: usize,
) -> Result<Vec<f64>> {
    let mut areas = on.array(&vec![0.0; count])?;
    slices::<F>::run((start, (end - start) / count as f64, &mut areas))?;
    areas.to_vec(..)
}

fn natively(f: fn(f64) -> f64, start: f64, end: f64, count: usize) -> Vec<f64> {
    let width = (end - start) / count as f64;
    let slice = |i: usize| {
        let left = start + width * i as f64;
        (f(left) + 4.0 * f(left + width / 2.0) + f(left + width)) * (width / 6.0)
    };
    (0..count).map(slice).collect()
}

pub fn show(on: &mut Setting) -> Result<()> {
    let third: f64 = integral::<square>(on, 0.0, 1.0, 100)?.iter().sum();
    let ln_2: f64 = integral::<reciprocal>(on, 1.0, 2.0, 1000)?.iter().sum();
    println!("    x² from 0 to 1: {third:.9}; 1/x from 1 to 2: {ln_2:.9}");
    assert!((third - 1.0 / 3.0).abs() < 1e-12 && (ln_2 - std::f64::consts::LN_2).abs() < 1e-12);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let (start, count) = (1.5 + f64::from(on.real()), 1 + on.below(2000));
    let end = start + 2.0;
    assert_eq!(integral::<square>(on, start, end, count)?, natively(square, start, end, count));
    assert_eq!(integral::<reciprocal>(on, start, end, count)?, natively(reciprocal, start, end, count));
    Ok(())
}
