//! The demo's third job: kernels on the devices draw an image with specks, and remove them by a median
//! filter.

use crate::image::Image;
use anyhow::Result;
use rayon::prelude::*;
use std::ops::Range;
use vmarray::boundary::Mirror;
use vmarray::kernel::random::philox;
use vmarray::kernel::{At, Own, Window};
use vmarray::prelude::*;

/// Distance from the centre to each side of the square over which the filter takes the median, in pixels.
pub const RADIUS: usize = 6;
const SQUARE: usize = (2 * RADIUS + 1) * (2 * RADIUS + 1);
/// The maximum number of iterations of a pixel.
const STEPS_MAX: u32 = 48;

/// The brightness of a pixel of the Mandelbrot set; every twelfth pixel is a speck instead.
#[vmarray::kernel]
fn pixel(row: u32, column: u32, side: u32) -> u8 {
    let random = philox([row, column, 0, 0], [2026, 0]);
    if random[0] % 12 == 0 {
        return (255 * (random[1] % 2)) as u8;
    }
    let unit = 2.5 / side as f32;
    let (x, y) = (column as f32 * unit - 1.9, row as f32 * unit - 1.25);
    let (mut a, mut b, mut steps) = (0.0, 0.0, 0);
    while steps < STEPS_MAX && a * a + b * b <= 4.0 {
        (a, b) = (a * a - b * b + x, 2.0 * a * b + y);
        steps += 1;
    }
    (5 * steps) as u8
}

#[vmarray::kernel]
fn draw(at: At<2>, side: u32, image: &mut Own<u8>) {
    image.set(pixel(at[0] as u32, at[1] as u32, side));
}

/// Median filter: each work-item copies the points around its own, and selects the median (Hoare).
#[vmarray::kernel]
fn median(at: At<2>, image: &Window<u8, 2>, clean: &mut Own<u8>) {
    let points = alloc::<u8>(SQUARE);
    for k in 0..SQUARE {
        let (y, x) = (k / (2 * RADIUS + 1), k % (2 * RADIUS + 1));
        points.set(k, image[at.plus([y as isize - RADIUS as isize, x as isize - RADIUS as isize])]);
    }
    let (mut first, mut last, middle) = (0, SQUARE, SQUARE / 2);
    while first + 1 < last {
        let (pivot, mut i, mut end) = (points[middle], first, last);
        while i < end {
            while points[i] < pivot {
                i += 1;
            }
            while points[end - 1] > pivot {
                end -= 1;
            }
            if i < end {
                let other = points[i];
                points.set(i, points[end - 1]);
                points.set(end - 1, other);
                i += 1;
                end -= 1;
            }
        }
        if end <= middle {
            first = i;
        }
        if middle < i {
            last = end;
        }
    }
    clean.set(points[middle]);
}

/// Fills `image` with a picture that has noise, by a kernel.
pub fn draw_on(image: &mut NdArray<u8, 2>) -> Result<()> {
    let side = u32::try_from(image.shape()[0])?;
    Ok(draw::run((side, image))?)
}

/// Writes `image` without its noise to `clean`, by a median filter in a kernel.
pub fn clean_on(image: &NdArray<u8, 2>, clean: &mut NdArray<u8, 2>) -> Result<()> {
    Ok(median::run((image.bounded(Mirror).window([RADIUS; 2]), clean))?)
}

impl Image for NdArray<u8, 2> {
    type Pixel = u8;
    const COLOURS: png::ColorType = png::ColorType::Grayscale;

    fn side(&self) -> usize {
        self.shape()[0]
    }

    fn row(&self, y: usize) -> Result<Vec<u8>> {
        let mut row = vec![0; self.side()];
        self.read_box([y, 0]..[y + 1, self.side()], &mut row)?;
        Ok(row)
    }

    fn truth(&self, rows: Range<usize>) -> Vec<Vec<u8>> {
        let side = self.side();
        // Recompute the input rows from which the filter computes `rows`.
        let drawn: Vec<Vec<u8>> = (rows.start..rows.end + 2 * RADIUS)
            .into_par_iter()
            .map(|y| {
                let row = mirrored(y as isize - RADIUS as isize, side) as u32;
                let column = |x: isize| pixel(row, mirrored(x, side) as u32, side as u32);
                (-(RADIUS as isize)..(side + RADIUS) as isize).map(column).collect()
            })
            .collect();
        drawn.par_windows(2 * RADIUS + 1).map(medians).collect()
    }

    fn colours(row: &[u8]) -> Vec<u8> {
        row.to_vec()
    }
}

/// Mirrors a row or column number beyond the border.
fn mirrored(at: isize, len: usize) -> usize {
    let (at, last) = (at.unsigned_abs(), len - 1);
    if at > last { 2 * last - at } else { at }
}

/// Computes the medians of a row from the rows around it, by a sliding histogram (Huang). The rows are
/// already extended on both sides.
fn medians(rows: &[Vec<u8>]) -> Vec<u8> {
    let mut counts = [0_usize; 256];
    let columns = rows[0].len();
    let mut medians = Vec::with_capacity(columns);
    for x in 0..columns {
        rows.iter().for_each(|row| counts[usize::from(row[x])] += 1);
        if let Some(before) = x.checked_sub(2 * RADIUS + 1) {
            rows.iter().for_each(|row| counts[usize::from(row[before])] -= 1);
        }
        if x >= 2 * RADIUS {
            let mut below = 0;
            let median = counts.iter().position(|count| {
                below += count;
                below > SQUARE / 2
            });
            medians.push(median.unwrap_or_default() as u8);
        }
    }
    medians
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{verify, write_png};
    use indicatif::ProgressBar;

    #[test]
    fn an_image_is_right_until_one_pixel_is_changed() {
        let devices = crate::devices::choose(Some("host")).unwrap();
        let new = || NdArray::builder([50, 50]).tile([16, 16]).devices(devices.clone()).build().unwrap();
        let (mut image, mut clean) = (new(), new());
        let path = std::env::temp_dir().join(format!("vmarray-filter-{}.png", std::process::id()));
        let bar = ProgressBar::hidden();
        draw_on(&mut image).unwrap();
        clean_on(&image, &mut clean).unwrap();
        write_png(&clean, &path, &bar).unwrap();
        verify(&clean, &path, &bar).unwrap();
        assert_eq!(bar.position(), 100);

        let value = clean.get([20, 33]).unwrap();
        clean.set([20, 33], value ^ 1).unwrap();
        let error = verify(&clean, &path, &bar).unwrap_err().to_string();
        assert!(error.contains("the array") && error.contains("(33, 20)"), "{error}");
        write_png(&clean, &path, &bar).unwrap();
        clean.set([20, 33], value).unwrap();
        let error = verify(&clean, &path, &bar).unwrap_err().to_string();
        assert!(error.contains("the file") && error.contains("(33, 20)"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(verify(&clean, &path, &bar).is_err());
    }
}
