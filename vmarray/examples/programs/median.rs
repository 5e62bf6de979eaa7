//! A median filter of 13 by 13 points, with mirrored borders. Each work-item (GPU thread) allocates memory
//! for its 169 points and selects the median there.

use crate::setting::Setting;
use vmarray::boundary::Mirror;
use vmarray::kernel::{At, Own, Window};
use vmarray::{Result, prelude::*};

#[vmarray::kernel]
fn median(at: At<2>, radius: usize, image: &Window<u8, 2>, out: &mut Own<u8>) {
    let side = 2 * radius + 1;
    let points = alloc::<u8>(side * side);
    for k in 0..points.len() {
        let (y, x) = ((k / side) as isize - radius as isize, (k % side) as isize - radius as isize);
        points.set(k, image[at.plus([y, x])]);
    }
    // Quickselect (Hoare): partition the range around the middle element until the range is empty.
    let (mut first, mut last, middle) = (0, points.len(), points.len() / 2);
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
    out.set(points[middle]);
}

fn run(on: &mut Setting, image: &NdArray<u8, 2>, radius: usize) -> Result<Vec<u8>> {
    let mut out = on.image(image.shape(), &vec![0; image.shape()[0] * image.shape()[1]])?;
    median::run((radius, image.bounded(Mirror).window([radius; 2]), &mut out))?;
    out.to_vec(..)
}

pub fn show(on: &mut Setting) -> Result<()> {
    // The picture has two halves with random specks.
    let speck = |i: usize| (i * 7919).is_multiple_of(11);
    let values: Vec<u8> =
        (0..40 * 40).map(|i| if speck(i) { 255 } else { 60 * (i % 40 / 20) as u8 }).collect();
    let image = on.image([40, 40], &values)?;
    let clean = run(on, &image, 6)?;
    let specks = |of: &[u8]| of.iter().filter(|value| **value == 255).count();
    println!("    {} specks before, {} after", specks(&values), specks(&clean));
    assert!(specks(&values) > 100 && specks(&clean) == 0);
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let (shape, radius) = ([1 + on.below(16), 1 + on.below(20)], on.below(7));
    let values: Vec<u8> = (0..shape[0] * shape[1]).map(|_| on.number() as u8).collect();
    let image = on.image(shape, &values)?;
    let (found, view, side) = (run(on, &image, radius)?, image.bounded(Mirror), 2 * radius + 1);
    for (number, found) in found.into_iter().enumerate() {
        let at = [number / shape[1], number % shape[1]].map(|at| at as isize - radius as isize);
        let mut points = view.to_vec(at, [side; 2])?;
        points.sort_unstable();
        assert_eq!(found, points[points.len() / 2], "at {at:?}");
    }
    Ok(())
}
