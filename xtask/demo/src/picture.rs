//! The Mandelbrot picture: the program computes it into an array with a word for each pixel, writes it as
//! PNG, and verifies it.

use crate::mandelbrot::{self, Picture};
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use rayon::prelude::*;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use vmarray::VirtualArray;
use vmarray::prelude::*;

/// Computes the steps of every pixel, tile by tile, on all threads of the pool. The progress bar counts
/// tiles.
///
/// Neighbouring tiles share pages, so threads share frames although they share no pixel.
pub fn compute(picture: &Picture, words: &VirtualArray<u32>, progress: &ProgressBar) -> Result<()> {
    (0..picture.tiles()).into_par_iter().try_for_each_init(Vec::new, |row, number| {
        let (columns, rows) = picture.tile(number);
        for y in rows {
            row.clear();
            row.extend(columns.clone().map(|x| picture.steps(x, y)));
            words.write((y * picture.side + columns.start) as usize, row)?;
        }
        progress.inc(1);
        Ok(())
    })
}

/// Writes the picture as PNG, row by row. Needs RAM for only one row, in addition to the array. The progress
/// bar counts rows.
pub fn write_png(
    picture: &Picture,
    words: &VirtualArray<u32>,
    path: &Path,
    progress: &ProgressBar,
) -> Result<()> {
    let cannot = || format!("{} cannot be written", path.display());
    let file = File::create(path).with_context(cannot)?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), picture.side, picture.side);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut png = encoder.write_header()?;
    let mut stream = png.stream_writer()?;
    let side = picture.side as usize;
    let mut steps = vec![0; side];
    for y in 0..side {
        words.read(y * side, &mut steps)?;
        let row: Vec<u8> = steps.iter().flat_map(|steps| mandelbrot::colour(*steps)).collect();
        stream.write_all(&row).with_context(cannot)?;
        progress.inc(1);
    }
    stream.finish()?;
    png.finish()?;
    Ok(())
}

/// Compares the array and the file with the formula, pixel by pixel, on all threads. The progress bar counts
/// rows.
pub fn verify(
    picture: &Picture,
    words: &VirtualArray<u32>,
    path: &Path,
    progress: &ProgressBar,
) -> Result<()> {
    let side = picture.side as usize;
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut reader = png::Decoder::new(BufReader::new(file)).read_info()?;
    let size = (reader.info().width, reader.info().height);
    ensure!(size == (picture.side, picture.side), "{} is not {side} pixels a side", path.display());
    // The file can only be decoded in order, so read some rows at a time, which the threads then share.
    let rows_at_a_time = 64 * rayon::current_num_threads();
    for first in (0..side).step_by(rows_at_a_time) {
        let mut rows = Vec::with_capacity(rows_at_a_time);
        for y in first..(first + rows_at_a_time).min(side) {
            let row = reader.next_row()?;
            let row = row.with_context(|| format!("{} has {y} rows, not {side}", path.display()))?;
            rows.push((y, row.data().to_vec()));
        }
        rows.par_iter().try_for_each_init(Vec::new, |steps, (y, row)| {
            steps.resize(side, 0);
            words.read(y * side, steps)?;
            compare_row(picture, *y as u32, steps, row)?;
            progress.inc(1);
            anyhow::Ok(())
        })?;
    }
    Ok(())
}

fn compare_row(picture: &Picture, y: u32, steps: &[u32], colours: &[u8]) -> Result<()> {
    for (x, (found, colour)) in (0..).zip(steps.iter().zip(colours.chunks_exact(3))) {
        let wanted = picture.steps(x, y);
        ensure!(*found == wanted, "the array has {found} for pixel ({x}, {y}), not {wanted}");
        let wanted = mandelbrot::colour(wanted);
        ensure!(*colour == wanted, "the file has colour {colour:?} for pixel ({x}, {y}), not {wanted:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_right_until_one_pixel_is_changed() {
        let picture = Picture::whole(150);
        let devices = crate::devices::choose(Some("host")).unwrap();
        let words = VirtualArray::builder(picture.pixels()).devices(devices).build().unwrap();
        let bar = ProgressBar::hidden();
        let path = std::env::temp_dir().join(format!("vmarray-picture-{}.png", std::process::id()));
        compute(&picture, &words, &bar).unwrap();
        write_png(&picture, &words, &path, &bar).unwrap();
        verify(&picture, &words, &path, &bar).unwrap();
        assert_eq!(bar.position(), 9 + 150 + 150);

        // Test a wrong pixel in the file, and then one in the array only.
        let pixel = words.get(777).unwrap();
        words.set(777, pixel ^ 1).unwrap();
        let error = verify(&picture, &words, &path, &bar).unwrap_err().to_string();
        assert!(error.contains("the array") && error.contains("(27, 5)"), "{error}");
        write_png(&picture, &words, &path, &bar).unwrap();
        words.set(777, pixel).unwrap();
        let error = verify(&picture, &words, &path, &bar).unwrap_err().to_string();
        assert!(error.contains("the file") && error.contains("(27, 5)"), "{error}");

        assert!(verify(&Picture::whole(151), &words, &path, &bar).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(verify(&picture, &words, &path, &bar).is_err());
        assert!(write_png(&picture, &words, &std::env::temp_dir(), &bar).is_err());
    }
}
