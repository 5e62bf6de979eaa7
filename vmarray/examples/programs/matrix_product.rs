//! The product of two matrices, as in the samples of C++ AMP: one work-item (GPU thread) for each element of
//! the result, first without tiles in work-group memory, then with them.

use crate::setting::Setting;
use vmarray::kernel::{Anywhere, At, Group, Own};
use vmarray::{Result, prelude::*};

#[vmarray::kernel]
fn product(at: At<2>, a: &Anywhere<f32, 2>, b: &Anywhere<f32, 2>, out: &mut Own<f32>) {
    let mut sum = 0.0;
    for k in 0..a.shape()[1] {
        sum += a[[at[0], k]] * b[[k, at[1]]];
    }
    out.set(sum);
}

const TILE: usize = 16;

/// Multiplies with tiles: each work-item of a group loads one element of a tile for the whole group.
#[vmarray::kernel(group = [TILE, TILE])]
fn tiled_product(
    at: At<2>,
    a: &Anywhere<f32, 2>,
    b: &Anywhere<f32, 2>,
    of_a: &Group<f32, TILE, TILE>,
    of_b: &Group<f32, TILE, TILE>,
    out: &mut Own<f32>,
) {
    let (i, len, mut sum) = (at.in_group(), a.shape()[1], 0.0);
    for tile in 0..(len + TILE - 1) / TILE {
        let (row, column) = (tile * TILE + i[0], tile * TILE + i[1]);
        of_a.set(i, if column < len { a[[at[0], column]] } else { 0.0 });
        of_b.set(i, if row < len { b[[row, at[1]]] } else { 0.0 });
        barrier();
        for k in 0..TILE {
            sum += of_a[[i[0], k]] * of_b[[k, i[1]]];
        }
        barrier();
    }
    out.set(sum);
}

fn run(on: &mut Setting, [n, k, m]: [usize; 3], a: &[f32], b: &[f32]) -> Result<Vec<f32>> {
    let (a, b) = (on.image([n, k], a)?, on.image([k, m], b)?);
    let mut out = on.image([n, m], &vec![0.0; n * m])?;
    product::run((&a, &b, &mut out))?;
    let plain = out.to_vec(..)?;
    tiled_product::run((&a, &b, &mut out))?;
    assert_eq!(plain, out.to_vec(..)?);
    Ok(plain)
}

pub fn show(on: &mut Setting) -> Result<()> {
    // Multiply the matrix of a quarter turn by itself; the product is a half turn.
    let quarter = [0.0, -1.0, 1.0, 0.0];
    let half = run(on, [2, 2, 2], &quarter, &quarter)?;
    println!("    {half:?}");
    assert_eq!(half, [-1.0, 0.0, 0.0, -1.0]);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let [n, k, m] = [(); 3].map(|()| 1 + on.below(40));
    let a: Vec<f32> = (0..n * k).map(|_| on.real()).collect();
    let b: Vec<f32> = (0..k * m).map(|_| on.real()).collect();
    let element = |i: usize| (0..k).fold(0.0, |sum, l| sum + a[i / m * k + l] * b[l * m + i % m]);
    let truth: Vec<f32> = (0..n * m).map(element).collect();
    assert_eq!(run(on, [n, k, m], &a, &b)?, truth);
    Ok(())
}
