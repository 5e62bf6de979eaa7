//! Two kernels of a program: each is an ordinary Rust function with loops and branches. Devices run it for
//! each element of the result that they store. One kernel computes the Mandelbrot set, the other draws it.
//!
//!     cargo run -p vmarray --example 13_kernels

use vmarray::kernel::{At, Own};
use vmarray::prelude::*;

const WIDTH: usize = 72;
const HEIGHT: usize = 28;

/// Number of steps until a point leaves the circle of radius 2. The kernel and the host call the function.
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

/// Computes the number of steps for the point of each element.
#[vmarray::kernel]
fn mandelbrot(at: At<1>, corner: [f32; 2], pixel: [f32; 2], most: u32, steps: &mut Own<u32>) {
    let (row, column) = (at.index() / WIDTH, at.index() % WIDTH);
    steps.set(escape(corner[0] + pixel[0] * column as f32, corner[1] + pixel[1] * row as f32, most));
}

/// Draws a character for each number of steps.
#[vmarray::kernel]
fn drawn<const N: usize>(steps: &Own<u32>, inks: &[u8; N], out: &mut Own<u8>) {
    let mut ink = 0;
    let mut limit = 3;
    while ink < N - 1 && steps.get() >= limit {
        ink += 1;
        limit *= 2;
    }
    out.set(inks[ink]);
}

fn main() -> vmarray::Result<()> {
    let (corner, pixel, most) = ([-2.2, -1.2], [3.2 / WIDTH as f32, 2.4 / HEIGHT as f32], 500);
    let mut steps = VirtualArray::<u32>::new(WIDTH * HEIGHT)?;
    mandelbrot::run((corner, pixel, most, &mut steps))?;

    // The numbers of steps stay on the devices; the characters are in the program's memory.
    let mut text = vec![0_u8; WIDTH * HEIGHT];
    let mut picture = Source::new(&mut text[..])?;
    drawn::<7>::run((&steps, b" .:-+*@", &mut picture))?;
    picture.flush(..)?;
    drop(picture);
    for row in text.chunks(WIDTH) {
        println!("{}", String::from_utf8_lossy(row));
    }

    // The same function, called on the host, returns the same bits.
    let middle = HEIGHT / 2 * WIDTH + WIDTH / 2;
    let (x, y) = (corner[0] + pixel[0] * (WIDTH / 2) as f32, corner[1] + pixel[1] * (HEIGHT / 2) as f32);
    assert_eq!((steps.get(middle)?, text[middle]), (escape(x, y, most), b'@'));
    let inside = steps.count_where(.., Field::whole().eq(most))?;
    println!("{inside} of {} points stay", steps.len());
    assert!((300..500).contains(&inside));
    Ok(())
}
