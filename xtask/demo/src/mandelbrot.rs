//! The demo's second job: threads compute a Mandelbrot image in tiles, in an array of one word per pixel.
//!
//! The computation uses only unfused additions and multiplications of `f64`, so every machine computes the
//! same numbers.

use crate::image::Image;
use anyhow::Result;
use indicatif::ProgressBar;
use rayon::prelude::*;
use std::ops::Range;
use vmarray::VirtualArray;
use vmarray::prelude::*;

/// Number of steps after which a pixel counts as inside the set.
pub const STEPS_MAX: u32 = 1000;
/// The number of pixels along a side of a tile.
const TILE: usize = 64;
/// The middle of the image in the complex plane, and the length of a side.
const MIDDLE: (f64, f64) = (-0.65, 0.0);
const EXTENT: f64 = 2.6;

/// An image of the whole set: an array with the number of steps of each pixel.
pub struct Picture<'a> {
    /// The number of pixels along a side.
    pub side: usize,
    /// The number of steps of each pixel, row by row.
    pub words: &'a VirtualArray<u32>,
}

impl Picture<'_> {
    /// Number of tiles.
    pub fn tiles(&self) -> usize {
        self.side.div_ceil(TILE).pow(2)
    }

    /// Computes the steps of every pixel, tile by tile, on all rayon threads. The progress bar counts tiles.
    ///
    /// Neighbouring tiles share pages, so threads access the same pages although they share no pixel.
    pub fn compute(&self, progress: &ProgressBar) -> Result<()> {
        (0..self.tiles()).into_par_iter().try_for_each(|number| {
            let across = self.side.div_ceil(TILE);
            let part = |at: usize| at * TILE..((at + 1) * TILE).min(self.side);
            let (columns, rows) = (part(number % across), part(number / across));
            for y in rows {
                let row: Vec<u32> = columns.clone().map(|x| self.steps(x, y)).collect();
                self.words.write(y * self.side + columns.start, &row)?;
            }
            progress.inc(1);
            Ok(())
        })
    }

    /// Returns the number of steps until the point of the pixel in column `x` and row `y` escapes;
    /// `STEPS_MAX` if it does not.
    fn steps(&self, x: usize, y: usize) -> u32 {
        let (pixel, half) = (EXTENT / self.side as f64, self.side as f64 * 0.5 - 0.5);
        steps(MIDDLE.0 + (x as f64 - half) * pixel, MIDDLE.1 - (y as f64 - half) * pixel)
    }
}

impl Image for Picture<'_> {
    type Pixel = u32;
    const COLOURS: png::ColorType = png::ColorType::Rgb;

    fn side(&self) -> usize {
        self.side
    }

    fn row(&self, y: usize) -> Result<Vec<u32>> {
        Ok(self.words.to_vec(y * self.side..(y + 1) * self.side)?)
    }

    fn truth(&self, rows: Range<usize>) -> Vec<Vec<u32>> {
        let row = |y| (0..self.side).map(|x| self.steps(x, y)).collect();
        rows.into_par_iter().map(row).collect()
    }

    fn colours(row: &[u32]) -> Vec<u8> {
        row.iter().flat_map(|steps| colour(*steps)).collect()
    }
}

/// Returns the number of steps of z → z² + c until z leaves the circle of radius 2; `STEPS_MAX` if it does
/// not. c is `re` + `im` i.
fn steps(re: f64, im: f64) -> u32 {
    // Test the set's two largest parts by formulas, because their points would take the most steps.
    let square = im * im;
    let shifted = re - 0.25;
    let q = shifted * shifted + square;
    if q * (q + shifted) <= 0.25 * square || (re + 1.0) * (re + 1.0) + square <= 0.0625 {
        return STEPS_MAX;
    }
    let (mut a, mut b) = (0.0, 0.0);
    for step in 0..STEPS_MAX {
        let (aa, bb) = (a * a, b * b);
        if aa + bb > 4.0 {
            return step;
        }
        b = 2.0 * a * b + im;
        a = aa - bb + re;
    }
    STEPS_MAX
}

/// Red, green and blue for a number of steps: black inside the set, else a colour of a cycle from blue over
/// white to brown.
fn colour(steps: u32) -> [u8; 3] {
    const STOPS: [[u32; 3]; 5] = [[0, 7, 100], [32, 107, 203], [237, 255, 255], [255, 170, 0], [60, 20, 0]];
    const SPAN: u32 = 24;
    if steps >= STEPS_MAX {
        return [0, 0, 0];
    }
    let cycle = STOPS.len() as u32;
    let (stop, part) = (steps / SPAN % cycle, steps % SPAN);
    let (from, to) = (STOPS[stop as usize], STOPS[((stop + 1) % cycle) as usize]);
    std::array::from_fn(|i| ((from[i] * (SPAN - part) + to[i] * part) / SPAN) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{verify, write_png};

    #[test]
    fn closed_forms_agree_with_iteration() {
        let slow = |re: f64, im: f64| {
            let (mut a, mut b) = (0.0_f64, 0.0_f64);
            (0..STEPS_MAX)
                .find(|_| {
                    let escaped = a * a + b * b > 4.0;
                    (a, b) = (a * a - b * b + re, 2.0 * a * b + im);
                    escaped
                })
                .unwrap_or(STEPS_MAX)
        };
        for i in 0..200 {
            for j in 0..200 {
                let (re, im) = (-2.2 + 0.016 * f64::from(i), -1.6 + 0.016 * f64::from(j));
                assert_eq!(steps(re, im), slow(re, im), "{re} {im}");
            }
        }
        // The orbit is 0, 1, 2, 5: the third value is the first above 2.
        assert_eq!((steps(1.0, 0.0), steps(0.25, 0.0)), (3, STEPS_MAX));
    }

    #[test]
    fn a_picture_is_right_until_one_pixel_is_changed() {
        let devices = crate::devices::choose(Some("host")).unwrap();
        let words = VirtualArray::builder(150 * 150).devices(devices).build().unwrap();
        let picture = Picture { side: 150, words: &words };
        let bar = ProgressBar::hidden();
        let path = std::env::temp_dir().join(format!("vmarray-picture-{}.png", std::process::id()));
        picture.compute(&bar).unwrap();
        write_png(&picture, &path, &bar).unwrap();
        verify(&picture, &path, &bar).unwrap();
        assert_eq!(bar.position(), 9 + 150 + 150);

        // Test a wrong pixel in the file, and then one in the array only.
        let pixel = words.get(777).unwrap();
        words.set(777, pixel ^ 1).unwrap();
        let error = verify(&picture, &path, &bar).unwrap_err().to_string();
        assert!(error.contains("the array") && error.contains("(27, 5)"), "{error}");
        write_png(&picture, &path, &bar).unwrap();
        words.set(777, pixel).unwrap();
        let error = verify(&picture, &path, &bar).unwrap_err().to_string();
        assert!(error.contains("the file") && error.contains("(27, 5)"), "{error}");

        assert!(verify(&Picture { side: 149, words: &words }, &path, &bar).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(verify(&picture, &path, &bar).is_err());
        assert!(write_png(&picture, &std::env::temp_dir(), &bar).is_err());
    }
}
