//! A five-point image filter with each boundary mode. The image's view defines the values beyond the edges,
//! so one kernel serves all modes.

use crate::setting::Setting;
use vmarray::boundary::{Boundary, BoundaryView, Circular, Clamp, Constant, Mirror, Symmetric, Zero};
use vmarray::kernel::{At, Own, Window};
use vmarray::{Result, prelude::*};

/// Difference of a point from its neighbours.
#[vmarray::kernel]
fn edges(at: At<2>, image: &Window<i32, 2>, out: &mut Own<i32>) {
    let sides = image[at.plus([0, -1])] + image[at.plus([0, 1])];
    out.set(4 * image[at] - sides - image[at.plus([-1, 0])] - image[at.plus([1, 0])]);
}

fn natively(shown: impl Fn([isize; 2]) -> i32, [y, x]: [isize; 2]) -> i32 {
    let sides = shown([y, x - 1]).wrapping_add(shown([y, x + 1]));
    let rest = shown([y, x]).wrapping_mul(4).wrapping_sub(sides);
    rest.wrapping_sub(shown([y - 1, x])).wrapping_sub(shown([y + 1, x]))
}

/// Runs the filter with one mode, and compares each point with the elements of the view.
fn with<R: Boundary<i32, 2> + Copy + Sync>(
    on: &mut Setting,
    image: &NdArray<i32, 2>,
    mode: R,
) -> Result<Vec<i32>> {
    let [rows, columns] = image.shape();
    let mut out = on.image([rows, columns], &vec![0; rows * columns])?;
    let view: BoundaryView<_, 2, R> = image.bounded(mode);
    edges::run((view.window([1, 1]), &mut out))?;
    let found = out.to_vec(..)?;
    let shown = view.to_vec([-1, -1], [rows + 2, columns + 2])?;
    let shown = |[y, x]: [isize; 2]| shown[(y + 1) as usize * (columns + 2) + (x + 1) as usize];
    for (number, found) in found.iter().enumerate() {
        let at = [number / columns, number % columns].map(|at| at as isize);
        assert_eq!(*found, natively(shown, at), "at {at:?}");
    }
    Ok(found)
}

fn with_each(on: &mut Setting, image: &NdArray<i32, 2>) -> Result<[Vec<i32>; 6]> {
    Ok([
        with(on, image, Zero)?,
        with(on, image, Constant(7))?,
        with(on, image, Clamp)?,
        with(on, image, Circular)?,
        with(on, image, Mirror)?,
        with(on, image, Symmetric)?,
    ])
}

pub fn show(on: &mut Setting) -> Result<()> {
    let image = on.image([2, 3], &[1, 2, 3, 4, 5, 6])?;
    for (name, edges) in
        ["zero", "7", "clamp", "circular", "mirror", "symmetric"].iter().zip(with_each(on, &image)?)
    {
        println!("    {name:9} {edges:?}");
    }
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let shape = [1 + on.below(30), 1 + on.below(40)];
    let values: Vec<i32> = (0..shape[0] * shape[1]).map(|_| on.number() as i32).collect();
    let image = on.image(shape, &values)?;
    with_each(on, &image)?;
    Ok(())
}
