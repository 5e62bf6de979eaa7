//! Writes the images that the demo computes as PNG files, and verifies them row by row.

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use rayon::prelude::*;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

/// An image of `side` by `side` pixels in an array.
pub trait Image: Sync {
    /// The elements of the array.
    type Pixel: Copy + Debug + PartialEq + Send + Sync;
    /// The colour type of the PNG file.
    const COLOURS: png::ColorType;

    /// The number of pixels along a side.
    fn side(&self) -> usize;

    /// Reads a row from the array.
    fn row(&self, y: usize) -> Result<Vec<Self::Pixel>>;

    /// Computes rows again without the array, to verify it.
    fn truth(&self, rows: Range<usize>) -> Vec<Vec<Self::Pixel>>;

    /// Converts a row to the colours in the file.
    fn colours(row: &[Self::Pixel]) -> Vec<u8>;
}

/// Writes an image as PNG, row by row. Needs RAM for only one row, in addition to the array. The progress
/// bar counts rows.
pub fn write_png<I: Image>(image: &I, path: &Path, progress: &ProgressBar) -> Result<()> {
    let cannot = || format!("{} cannot be written", path.display());
    let (file, side) = (File::create(path).with_context(cannot)?, u32::try_from(image.side())?);
    let mut encoder = png::Encoder::new(BufWriter::new(file), side, side);
    encoder.set_color(I::COLOURS);
    encoder.set_depth(png::BitDepth::Eight);
    let mut png = encoder.write_header()?;
    let mut stream = png.stream_writer()?;
    for y in 0..image.side() {
        stream.write_all(&I::colours(&image.row(y)?)).with_context(cannot)?;
        progress.inc(1);
    }
    stream.finish()?;
    png.finish()?;
    Ok(())
}

/// Compares the array and the file with a computation without the array, pixel by pixel, on all threads. The
/// progress bar counts rows.
pub fn verify<I: Image>(image: &I, path: &Path, progress: &ProgressBar) -> Result<()> {
    let side = image.side();
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut reader = png::Decoder::new(BufReader::new(file)).read_info()?;
    let size = (reader.info().width as usize, reader.info().height as usize);
    ensure!(size == (side, side), "{} is not {side} pixels a side", path.display());
    // The file can only be decoded in order, so read some rows at a time, which the threads then share.
    let rows_at_a_time = 64 * rayon::current_num_threads();
    for first in (0..side).step_by(rows_at_a_time) {
        let rows = first..(first + rows_at_a_time).min(side);
        let mut written = Vec::with_capacity(rows.len());
        for y in rows.clone() {
            let row = reader.next_row()?;
            let row = row.with_context(|| format!("{} has {y} rows, not {side}", path.display()))?;
            written.push(row.data().to_vec());
        }
        let truth = image.truth(rows.clone());
        rows.into_par_iter().zip(written.par_iter().zip(&truth)).try_for_each(|(y, (written, truth))| {
            compare("array", y, 1, &image.row(y)?, truth)?;
            compare("file", y, I::COLOURS.samples(), written, &I::colours(truth))?;
            progress.inc(1);
            anyhow::Ok(())
        })?;
    }
    Ok(())
}

/// Compares two rows of values; each pixel has `samples` values.
fn compare<T: Debug + PartialEq>(what: &str, y: usize, samples: usize, row: &[T], truth: &[T]) -> Result<()> {
    let pixels = row.chunks(samples).zip(truth.chunks(samples)).enumerate();
    for (x, (found, truth)) in pixels {
        ensure!(found == truth, "the {what} has {found:?} for pixel ({x}, {y}), not {truth:?}");
    }
    Ok(())
}
