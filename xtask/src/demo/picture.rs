//! The picture: computed by all threads into an array of words, a pixel each, written as PNG, and verified.

use super::mandelbrot::{self, Picture};
use super::store::on_threads;
use super::words::Words;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

/// Computes every pixel's steps, tile by tile, on all threads. Progress counts tiles.
///
/// Neighbouring tiles share pages, so threads that never share a pixel still share frames.
pub fn compute(picture: &Picture, words: &impl Words, threads: usize, progress: &ProgressBar) -> Result<()> {
    on_threads(threads, picture.tiles(), |numbers, _| {
        let mut row = Vec::new();
        while let Some(number) = numbers.next() {
            let tile = picture.tile(number);
            for y in tile.y..tile.y + tile.height {
                row.clear();
                row.extend((tile.x..tile.x + tile.width).map(|x| picture.steps(x, y)));
                words.write(u64::from(y) * u64::from(picture.side) + u64::from(tile.x), &row)?;
            }
            progress.inc(1);
        }
        Ok(())
    })?;
    Ok(())
}

/// Writes the picture row by row; no more than a row of it is in RAM outside the array. Progress counts rows.
pub fn write_png(picture: &Picture, words: &impl Words, path: &Path, progress: &ProgressBar) -> Result<()> {
    let file = File::create(path).with_context(|| format!("{} cannot be written", path.display()))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), picture.side, picture.side);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut png = encoder.write_header()?;
    let mut stream = png.stream_writer()?;
    let mut steps = vec![0; picture.side as usize];
    let mut row = Vec::with_capacity(steps.len() * 3);
    for y in 0..u64::from(picture.side) {
        words.read(y * u64::from(picture.side), &mut steps)?;
        row.clear();
        row.extend(steps.iter().flat_map(|steps| mandelbrot::colour(*steps)));
        stream.write_all(&row).with_context(|| format!("{} cannot be written", path.display()))?;
        progress.inc(1);
    }
    stream.finish()?;
    png.finish()?;
    Ok(())
}

/// Compares the array and the file with the formula, pixel by pixel, on all threads. Progress counts rows.
pub fn verify(
    picture: &Picture,
    words: &impl Words,
    path: &Path,
    threads: usize,
    progress: &ProgressBar,
) -> Result<()> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut reader = png::Decoder::new(BufReader::new(file)).read_info()?;
    if (reader.info().width, reader.info().height) != (picture.side, picture.side) {
        bail!("{} is not {} pixels a side", path.display(), picture.side);
    }
    // The file can only be decoded in order: some rows at a time, which the threads then share.
    let rows_at_a_time = 64 * threads.max(1);
    let mut y = 0;
    loop {
        let mut rows = Vec::with_capacity(rows_at_a_time);
        while rows.len() < rows_at_a_time
            && let Some(row) = reader.next_row()?
        {
            rows.push(row.data().to_vec());
        }
        if rows.is_empty() {
            break;
        }
        on_threads(threads, rows.len() as u64, |numbers, _| {
            let mut steps = vec![0; picture.side as usize];
            while let Some(number) = numbers.next() {
                let y = y + number as u32;
                words.read(u64::from(y) * u64::from(picture.side), &mut steps)?;
                compare_row(picture, y, &steps, &rows[number as usize])?;
                progress.inc(1);
            }
            Ok(())
        })?;
        y += rows.len() as u32;
    }
    if y != picture.side {
        bail!("{} has {y} rows, not {}", path.display(), picture.side);
    }
    Ok(())
}

fn compare_row(picture: &Picture, y: u32, steps: &[u32], colours: &[u8]) -> Result<()> {
    for (x, (found, colour)) in (0..).zip(steps.iter().zip(colours.chunks_exact(3))) {
        let wanted = picture.steps(x, y);
        if *found != wanted {
            bail!("the array has {found} for pixel ({x}, {y}), not {wanted}");
        }
        if *colour != mandelbrot::colour(wanted) {
            bail!(
                "the file has colour {colour:?} for pixel ({x}, {y}), not {:?}",
                mandelbrot::colour(wanted)
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::words::InRam;

    #[test]
    fn a_picture_is_right_until_one_pixel_is_changed() {
        let picture = Picture::whole(150);
        let words = InRam::new(picture.pixels());
        let bar = ProgressBar::hidden();
        let path = std::env::temp_dir().join(format!("vmarray-picture-{}.png", std::process::id()));
        compute(&picture, &words, 3, &bar).unwrap();
        write_png(&picture, &words, &path, &bar).unwrap();
        verify(&picture, &words, &path, 3, &bar).unwrap();
        assert_eq!(bar.position(), 9 + 150 + 150);

        // A wrong pixel in the file, then one in the array only.
        let mut pixel = [0];
        words.read(777, &mut pixel).unwrap();
        words.write(777, &[pixel[0] ^ 1]).unwrap();
        let error = verify(&picture, &words, &path, 3, &bar).unwrap_err().to_string();
        assert!(error.contains("the array") && error.contains("(27, 5)"), "{error}");
        write_png(&picture, &words, &path, &bar).unwrap();
        words.write(777, &pixel).unwrap();
        let error = verify(&picture, &words, &path, 3, &bar).unwrap_err().to_string();
        assert!(error.contains("the file") && error.contains("(27, 5)"), "{error}");

        let larger = Picture::whole(151);
        assert!(verify(&larger, &words, &path, 3, &bar).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(verify(&picture, &words, &path, 3, &bar).is_err());
        assert!(write_png(&picture, &words, &std::env::temp_dir(), &bar).is_err());
    }
}
