//! The Mandelbrot set, an example from the article on the C++ predecessor of this library.

use crate::setting::Setting;
use vmarray::kernel::{At, Own};
use vmarray::{Result, prelude::*};

/// Number of steps until a point leaves the circle of radius 2.
#[vmarray::kernel]
fn escape(x: f32, y: f32, most: u32) -> u32 {
    let (mut a, mut b) = (0.0, 0.0);
    for step in 0..most {
        if a * a + b * b > 4.0 {
            return step;
        }
        (a, b) = (a * a - b * b + x, 2.0 * a * b + y);
    }
    most
}

/// Computes the number of steps for each element of an image with `columns` columns.
#[vmarray::kernel]
fn image(at: At<1>, columns: usize, corner: [f32; 2], pixel: [f32; 2], steps: &mut Own<u32>) {
    let (row, column) = (at.index() / columns, at.index() % columns);
    steps.set(escape(corner[0] + pixel[0] * column as f32, corner[1] + pixel[1] * row as f32, 200));
}

fn run(on: &mut Setting, size: [usize; 2], corner: [f32; 2], pixel: [f32; 2]) -> Result<Vec<u32>> {
    let [rows, columns] = size;
    let mut steps = on.array(&vec![0; rows * columns])?;
    image::run((columns, corner, pixel, &mut steps))?;
    steps.to_vec(..)
}

pub fn show(on: &mut Setting) -> Result<()> {
    let steps = run(on, [21, 64], [-2.1, -1.2], [0.045, 0.12])?;
    for row in steps.chunks(64) {
        let ink =
            |steps: &u32| [' ', '.', ':', '*', '#', '@'][steps.ilog2().saturating_sub(1).min(5) as usize];
        println!("    {}", row.iter().map(ink).collect::<String>());
    }
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let size = [1 + on.below(40), 1 + on.below(60)];
    let (corner, pixel) = ([on.real() - 1.0, on.real()], [on.real() / 50.0, on.real() / 50.0]);
    let point = |i: usize| {
        let (row, column) = (i / size[1], i % size[1]);
        escape(corner[0] + pixel[0] * column as f32, corner[1] + pixel[1] * row as f32, 200)
    };
    let truth: Vec<u32> = (0..size[0] * size[1]).map(point).collect();
    assert_eq!(run(on, size, corner, pixel)?, truth);
    Ok(())
}
