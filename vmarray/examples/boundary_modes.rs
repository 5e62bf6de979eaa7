//! Draws a small image with its surroundings in each boundary mode: `cargo run -p vmarray --example
//! boundary_modes`.
//!
//! The example writes each drawing as an SVG file, and all of them into `pictures.md`, which the
//! documentation of `vmarray::boundary` includes. The first argument is the output folder (by default the
//! crate's).

use std::fmt::Write;
use std::path::PathBuf;
use vmarray::prelude::*;

use vmarray::boundary::{Boundary, Checked, Circular, Clamp, Constant, Ignored, Mirror, Symmetric, Zero};
use vmarray::{NdArray, Result};

/// The image, by the names of its colours: a letter without symmetry, on stripes.
const PICTURE: [&str; 6] = ["aaaaaaaa", "aaFFFFaa", "bbFbbbbb", "bbFFFbbb", "ccFccccc", "ccFccccc"];
/// Colours by name; any other letter is drawn blank.
const COLOURS: [(u8, &str); 6] = [
    (b'a', "#9ecae9"),
    (b'b', "#ffe08a"),
    (b'c', "#a5d6a7"),
    (b'F', "#b5342d"),
    (0, "#000000"),
    (b'x', "#8e6bb0"),
];
/// The drawn box, which contains the image and its surroundings.
const ORIGIN: [isize; 2] = [-9, -12];
const EXTENT: [usize; 2] = [24, 32];
/// The side of an image pixel in the drawing, in pixels.
const SCALE: usize = 8;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = match std::env::args_os().nth(1) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/boundary"),
    };
    std::fs::create_dir_all(&folder)?;
    for (name, contents) in files()? {
        let path = folder.join(name);
        // Write the file only if its contents changed: it is part of the crate's documentation, so a write
        // makes cargo compile the crate anew.
        if std::fs::read_to_string(&path).ok().as_deref() != Some(&*contents) {
            std::fs::write(path, contents)?;
        }
    }
    Ok(())
}

/// Draws one image for each boundary mode. Returns the names and contents of the files.
pub fn files() -> Result<Vec<(String, String)>> {
    let shape = [PICTURE.len(), PICTURE[0].len()];
    let image = NdArray::<u8, 2>::new(shape)?;
    image.write_box(.., PICTURE.concat().as_bytes())?;
    let modes: [(&str, &dyn Boundary<u8, 2>); 7] = [
        ("Checked", &Checked),
        ("Zero", &Zero),
        ("Constant", &Constant(b'x')),
        ("Clamp", &Clamp),
        ("Circular", &Circular),
        ("Mirror", &Mirror),
        ("Symmetric", &Symmetric),
    ];
    let mut drawings = Vec::new();
    for (name, mode) in modes {
        let view = image.bounded(mode);
        let pixels = (0..EXTENT[0] * EXTENT[1]).map(|number| {
            let at = [number / EXTENT[1], number % EXTENT[1]];
            // Draw a position that gives an error as a blank.
            view.get([ORIGIN[0] + at[0] as isize, ORIGIN[1] + at[1] as isize]).unwrap_or(b' ')
        });
        drawings.push((name, drawing(&pixels.collect::<Vec<_>>(), shape)));
    }
    // Write a square that extends beyond the corner.
    let view = image.bounded(Checked).with_writes(Ignored);
    view.write_window([3, 5], [6, 6], &[b'x'; 36])?;
    let pixels = (0..EXTENT[0] * EXTENT[1]).map(|number| {
        let at = [number / EXTENT[1], number % EXTENT[1]];
        view.get([ORIGIN[0] + at[0] as isize, ORIGIN[1] + at[1] as isize]).unwrap_or(b' ')
    });
    drawings.push(("Ignored", drawing(&pixels.collect::<Vec<_>>(), shape)));

    let mut page = String::from(
        "A picture of 8 by 6 elements, outlined, and what the modes show around it. Drawn by the example `boundary_modes`.\n",
    );
    for (name, drawing) in &drawings {
        let what = match *name {
            "Checked" => "[`Checked`]: beyond the edges, reads and writes are errors.",
            "Zero" => "[`Zero`]: all bytes are zero.",
            "Constant" => "[`Constant`]: one value, here a violet.",
            "Clamp" => "[`Clamp`]: the elements at the edges go on.",
            "Circular" => "[`Circular`]: the other end follows.",
            "Mirror" => "[`Mirror`]: the rows and columns at the edges are not repeated.",
            "Symmetric" => "[`Symmetric`]: the rows and columns at the edges are repeated.",
            _ => {
                "[`Ignored`]: a violet square was written over the lower right corner; its part outside was skipped."
            }
        };
        let _ = write!(page, "\n{what}\n\n{drawing}");
    }
    let mut files: Vec<_> =
        drawings.into_iter().map(|(name, text)| (format!("{}.svg", name.to_lowercase()), text)).collect();
    files.push(("pictures.md".to_string(), page));
    Ok(files)
}

/// Draws pixels as SVG, with an outline of the image.
fn drawing(pixels: &[u8], shape: [usize; 2]) -> String {
    let (width, height) = (EXTENT[1] * SCALE, EXTENT[0] * SCALE);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {} {}\" shape-rendering=\"crispEdges\">\n",
        EXTENT[1], EXTENT[0]
    );
    let _ = writeln!(svg, "<path fill=\"#f2f2f2\" d=\"M0 0h{}v{}H0z\"/>", EXTENT[1], EXTENT[0]);
    for (colour, fill) in COLOURS {
        let mut path = String::new();
        for (y, row) in pixels.chunks_exact(EXTENT[1]).enumerate() {
            let mut x = 0;
            for run in row.chunk_by(|a, b| a == b) {
                if run[0] == colour {
                    let _ = write!(path, "M{x} {y}h{}v1h-{}z", run.len(), run.len());
                }
                x += run.len();
            }
        }
        if !path.is_empty() {
            let _ = writeln!(svg, "<path fill=\"{fill}\" d=\"{path}\"/>");
        }
    }
    let _ = writeln!(
        svg,
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#222\" stroke-width=\"0.3\"/>",
        -ORIGIN[1], -ORIGIN[0], shape[1], shape[0]
    );
    svg.push_str("</svg>\n");
    svg
}
