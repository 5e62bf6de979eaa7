//! The Mandelbrot set in tiles: the number of steps until a pixel escapes, and the colour of that number.
//!
//! Only additions and multiplications of `f64`, none fused: every machine computes the same numbers.

use std::ops::Range;

/// Number of steps after which a pixel counts as inside the set.
pub const STEPS_MAX: u32 = 1000;
/// The number of pixels along a side of a tile.
pub const TILE: u32 = 64;

/// A picture of a square part of the plane.
#[derive(Clone, Copy, Debug)]
pub struct Picture {
    /// The number of pixels along a side.
    pub side: u32,
    /// The middle, as real and imaginary part.
    pub centre: (f64, f64),
    /// The length in the plane of a side of the picture.
    pub extent: f64,
}

impl Picture {
    /// Returns the picture of the whole set.
    pub fn whole(side: u32) -> Self {
        Self { side, centre: (-0.65, 0.0), extent: 2.6 }
    }

    /// Number of pixels.
    pub fn pixels(&self) -> usize {
        (self.side as usize).pow(2)
    }

    /// Number of tiles.
    pub fn tiles(&self) -> usize {
        (self.side.div_ceil(TILE) as usize).pow(2)
    }

    /// Returns the columns and rows of the tile with index `number`. Tiles are counted row by row; `number`
    /// is below `tiles()`.
    pub fn tile(&self, number: usize) -> (Range<u32>, Range<u32>) {
        let columns = self.side.div_ceil(TILE) as usize;
        let part = |at: usize| at as u32 * TILE..((at as u32 + 1) * TILE).min(self.side);
        (part(number % columns), part(number / columns))
    }

    /// Returns the number of steps until the point of the pixel in column `x` and row `y` escapes;
    /// `STEPS_MAX` if it does not.
    pub fn steps(&self, x: u32, y: u32) -> u32 {
        let pixel = self.extent / f64::from(self.side);
        let middle = f64::from(self.side) * 0.5 - 0.5;
        let re = self.centre.0 + (f64::from(x) - middle) * pixel;
        let im = self.centre.1 - (f64::from(y) - middle) * pixel;
        steps(re, im)
    }
}

/// Returns the number of steps of z → z² + c until z leaves the circle of radius 2; `STEPS_MAX` if it does
/// not. `re` and `im` are the parts of c.
pub fn steps(re: f64, im: f64) -> u32 {
    // The two largest parts of the set have closed forms; points in them would take the most steps.
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
pub fn colour(steps: u32) -> [u8; 3] {
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
    fn tiles_cover_every_pixel_once() {
        for side in [1, 63, 64, 65, 200] {
            let picture = Picture::whole(side);
            let mut seen = vec![0; picture.pixels()];
            for number in 0..picture.tiles() {
                let (columns, rows) = picture.tile(number);
                for y in rows {
                    columns.clone().for_each(|x| seen[(y * side + x) as usize] += 1);
                }
            }
            assert!(seen.iter().all(|times| *times == 1), "side {side}");
        }
    }
}
