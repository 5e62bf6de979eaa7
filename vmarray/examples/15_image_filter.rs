//! A two-dimensional kernel: a bilateral filter, which smooths noise and keeps edges, with mirrored borders.
//! Each work-item (GPU thread) reads its neighbours directly from the image.
//!
//!     cargo run -p vmarray --example 15_image_filter

use vmarray::boundary::Mirror;
use vmarray::kernel::{At, Own, Window};
use vmarray::prelude::*;

const SHAPE: [usize; 2] = [24, 72];
/// Radius of the filter in pixels, and the scales of distance and brightness.
const RADIUS: isize = 2;
const NEAR: [f32; 2] = [1.5, 0.15];

/// Weight of a neighbour. The kernel and the host call the function.
#[vmarray::kernel]
fn weight(place: f32, brightness: f32) -> f32 {
    let (a, b) = (place / NEAR[0], brightness / NEAR[1]);
    (-0.5 * (a * a + b * b)).exp()
}

#[vmarray::kernel]
fn bilateral(at: At<2>, image: &Window<f32, 2>, smooth: &mut Own<f32>) {
    let (mut sum, mut all, own) = (0.0, 0.0, image[at]);
    for y in -RADIUS..RADIUS + 1 {
        for x in -RADIUS..RADIUS + 1 {
            let other = image[at.plus([y, x])];
            let distance = ((y * y + x * x) as f32).sqrt();
            let counts = weight(distance, other - own);
            sum += counts * other;
            all += counts;
        }
    }
    smooth.set(sum / all);
}

/// Draws the input: a disc in front of a dark wall, with noise.
#[vmarray::kernel]
fn scene(at: At<2>, image: &mut Own<f32>) {
    let (y, x) = (at[0] as f32 - 12.0, at[1] as f32 / 2.0 - 18.0);
    let noise = ((at[0] * 7919 + at[1] * 104729) % 1009) as f32 / 1009.0 - 0.5;
    let light = if y * y + x * x < 81.0 { 0.8 } else { 0.2 };
    image.set(light + 0.2 * noise);
}

fn main() -> vmarray::Result<()> {
    let (mut image, mut smooth) = (NdArray::<f32, 2>::new(SHAPE)?, NdArray::<f32, 2>::new(SHAPE)?);
    scene::run((&mut image,))?;
    let halo = [RADIUS as usize; 2];
    bilateral::run((image.bounded(Mirror).window(halo), &mut smooth))?;

    let values = smooth.to_vec(..)?;
    for row in values.chunks(SHAPE[1]).step_by(2) {
        let ink = |value: &f32| b" .:-=+*#%@"[(value * 10.0) as usize] as char;
        println!("{}", row.iter().map(ink).collect::<String>());
    }

    // The wall is now smooth, and the edge of the disc as sharp as before.
    let spread = |of: &NdArray<f32, 2>| -> vmarray::Result<f32> {
        let wall = of.section(..[4, 72])?.to_vec([0, 0]..[3, 40])?;
        Ok(wall.iter().fold(0.0, |most: f32, value| most.max((value - 0.2).abs())))
    };
    println!("noise {:.3} before, {:.3} after", spread(&image)?, spread(&smooth)?);
    assert!(spread(&smooth)? < spread(&image)? / 3.0);
    assert!(smooth.get([12, 36])? > 0.7 && smooth.get([12, 15])? < 0.3);

    // A loop on the host computes the same bits, here at a corner.
    let view = image.bounded(Mirror);
    let (mut sum, mut all) = (0.0, 0.0);
    for (y, x) in (-RADIUS..=RADIUS).flat_map(|y| (-RADIUS..=RADIUS).map(move |x| (y, x))) {
        let other = view.get([y, x])?;
        let counts = weight(((y * y + x * x) as f32).sqrt(), other - image.get([0, 0])?);
        (sum, all) = (sum + counts * other, all + counts);
    }
    assert_eq!(smooth.get([0, 0])?, sum / all);
    Ok(())
}
