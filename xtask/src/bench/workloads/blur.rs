//! A Mandelbrot image, blurred tile by tile: each tile is read with a margin, blurred, and written to a
//! second array. The baseline is the same over `Vec`s; the images must be equal.

use super::Bench;
use crate::bench::measure::{Sample, Unit, on_threads};
use crate::bench::results::Role;
use anyhow::{Result, ensure};
use demo::mandelbrot::Picture;
use rayon::prelude::*;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use vmarray::prelude::*;

/// Pixels a side of a tile.
const TILE: usize = 256;
/// The distance that a pixel's average reaches in each direction.
const RADIUS: usize = 8;
/// Room for a tile and its margin.
const WIDE: usize = TILE + 2 * RADIUS;

pub fn run(bench: &mut Bench) -> Result<()> {
    let setup = bench.setup.clone();
    let threads = setup.threads;
    let side: usize = if setup.quick { 1024 } else { 8192 };
    bench.row(format!("blur/{side}x{side}/t{threads}"), Unit::MegaPerSecond, |_, row| {
        let picture = Picture::whole(side as u32);
        let pixel = |at: usize| picture.steps((at % side) as u32, (at / side) as u32) as f32;
        let image: Vec<f32> = (0..side * side).into_par_iter().map(pixel).collect();
        let build = || setup.array::<f32>(side * side, None, side * side * 4 / 4);
        let (from, to) = (build()?, build()?);
        from.write(0, &image)?;
        from.evict(..)?;
        let read = |at: usize, row: &mut [f32]| Ok(from.read(at, row)?);
        let write = |at: usize, row: &[f32]| Ok(to.write(at, row)?);
        row.ours(&from, || tiles(side, threads, |x, y| blur(side, x, y, read, write)))?;
        let blurred: Vec<AtomicU32> = std::iter::repeat_with(Default::default).take(side * side).collect();
        let read = |at: usize, row: &mut [f32]| {
            row.copy_from_slice(&image[at..at + row.len()]);
            Ok(())
        };
        let write = |at: usize, row: &[f32]| {
            let pixels = blurred[at..].iter().zip(row);
            pixels.for_each(|(to, value)| to.store(value.to_bits(), Ordering::Relaxed));
            Ok(())
        };
        row.measure("vec", Role::Limit, || tiles(side, threads, |x, y| blur(side, x, y, read, write)))?;
        for at in (0..side).map(|row| row * side) {
            let ours = to.to_vec(at..at + side)?;
            let same = ours.iter().zip(&blurred[at..]).all(|(a, b)| a.to_bits() == b.load(Ordering::Relaxed));
            ensure!(same, "row {} of the array's image differs from the vector's", at / side);
        }
        Ok(())
    })
}

/// Threads take tiles, named by their first column and row, until none is left. Counts pixels.
fn tiles(side: usize, threads: usize, run: impl Fn(usize, usize) -> Result<()> + Sync) -> Result<Sample> {
    let columns = side.div_ceil(TILE);
    let next = AtomicUsize::new(0);
    on_threads(threads, |_| {
        let mut pixels = 0.0;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= columns * columns {
                return Ok(pixels);
            }
            let (x, y) = (number % columns * TILE, number / columns * TILE);
            pixels += ((side - x).min(TILE) * (side - y).min(TILE)) as f64;
            run(x, y)?;
        }
    })
}

/// A bell curve that sums to 1.
fn weights() -> [f32; 2 * RADIUS + 1] {
    let sigma = RADIUS as f32 / 2.5;
    let bell = |at: usize| (-(at as f32 - RADIUS as f32).powi(2) / (2.0 * sigma * sigma)).exp();
    let sum: f32 = (0..=2 * RADIUS).map(bell).sum();
    std::array::from_fn(|at| bell(at) / sum)
}

/// Blurs a tile: along rows, then along columns. Beyond the edges of the image the edge pixels repeat.
fn blur(
    side: usize,
    x: usize,
    y: usize,
    read: impl Fn(usize, &mut [f32]) -> Result<()>,
    write: impl Fn(usize, &[f32]) -> Result<()>,
) -> Result<()> {
    let weights = weights();
    let (width, height) = ((side - x).min(TILE), (side - y).min(TILE));
    let mut wide = [0.0_f32; WIDE];
    let mut along_rows = vec![0.0_f32; WIDE * TILE];
    for (at, narrow) in along_rows.chunks_exact_mut(TILE).take(height + 2 * RADIUS).enumerate() {
        let row = (y + at).saturating_sub(RADIUS).min(side - 1);
        let (first, end) = (x.saturating_sub(RADIUS), (x + width + RADIUS).min(side));
        let left = RADIUS - (x - first);
        let right = left + (end - first);
        read(row * side + first, &mut wide[left..right])?;
        let (before, after) = (wide[left], wide[right - 1]);
        wide[..left].fill(before);
        wide[right..].fill(after);
        for (column, to) in narrow[..width].iter_mut().enumerate() {
            *to = weights.iter().zip(&wide[column..]).map(|(weight, value)| weight * value).sum();
        }
    }
    let mut done = [0.0_f32; TILE];
    for row in 0..height {
        done.fill(0.0);
        for (weight, from) in weights.iter().zip(along_rows[row * TILE..].chunks_exact(TILE)) {
            for (to, value) in done[..width].iter_mut().zip(from) {
                *to += weight * value;
            }
        }
        write((y + row) * side + x, &done[..width])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn blurred(side: usize, image: &[f32]) -> Vec<f32> {
        let result = Mutex::new(vec![0.0; side * side]);
        tiles(side, 1, |x, y| {
            let read = |at: usize, row: &mut [f32]| {
                row.copy_from_slice(&image[at..at + row.len()]);
                Ok(())
            };
            let write = |at: usize, row: &[f32]| {
                result.lock().unwrap()[at..at + row.len()].copy_from_slice(row);
                Ok(())
            };
            blur(side, x, y, read, write)
        })
        .unwrap();
        result.into_inner().unwrap()
    }

    #[test]
    fn an_even_image_stays_as_it_is() {
        for side in [1, 5, TILE, TILE + 3] {
            assert!(blurred(side, &vec![3.0; side * side]).iter().all(|value| (value - 3.0).abs() < 1e-5));
        }
    }

    #[test]
    fn a_point_becomes_a_bell_across_tiles() {
        let side = TILE + 40;
        let mut image = vec![0.0; side * side];
        image[TILE * side + TILE] = 1.0;
        let result = blurred(side, &image);
        let weights = weights();
        for (dx, dy) in [(0, 0), (3, 0), (0, 5), (2, 7)] {
            let expected = weights[RADIUS + dx] * weights[RADIUS + dy];
            for at in [(TILE + dy) * side + TILE + dx, (TILE - dy) * side + TILE - dx] {
                assert!((result[at] - expected).abs() < 1e-6);
            }
        }
        assert!((result.iter().sum::<f32>() - 1.0).abs() < 1e-4);
    }
}
