//! k-means (Lloyd's algorithm): points in the plane are sorted to the nearest of some centres, which then move to
//! the mean of their points. Sums of integers do not depend on the order in which items add.

use crate::setting::Setting;
use vmarray::kernel::{Own, Shared};
use vmarray::{Result, prelude::*};

const CENTRES: usize = 8;

/// The nearest centre of each point, and what the points of each centre are together: x, y, and how many.
#[vmarray::kernel]
fn assign(point: &Own<[i32; 2]>, centres: &[[i32; 2]; CENTRES], nearest: &mut Own<u8>, sums: &Shared<i64>) {
    let p = point.get();
    let (mut best, mut least) = (0, i64::MAX);
    for c in 0..CENTRES {
        let (dx, dy) = ((p[0] - centres[c][0]) as i64, (p[1] - centres[c][1]) as i64);
        let distance = dx * dx + dy * dy;
        if distance < least {
            (best, least) = (c, distance);
        }
    }
    nearest.set(best as u8);
    sums.add(3 * best, p[0] as i64);
    sums.add(3 * best + 1, p[1] as i64);
    sums.add(3 * best + 2, 1);
}

/// Where centres move to; those without points stay.
fn moved(centres: [[i32; 2]; CENTRES], sums: &[i64]) -> [[i32; 2]; CENTRES] {
    std::array::from_fn(|c| match sums[3 * c + 2] {
        0 => centres[c],
        count => [0, 1].map(|axis| sums[3 * c + axis].div_euclid(count) as i32),
    })
}

type Clusters = ([[i32; 2]; CENTRES], Vec<u8>);

fn run(
    on: &mut Setting,
    points: &[[i32; 2]],
    mut centres: [[i32; 2]; CENTRES],
    rounds: usize,
) -> Result<Clusters> {
    let (mut nearest, points) = (on.array_on_one(&vec![0_u8; points.len()])?, on.array_on_one(points)?);
    for _ in 0..rounds {
        let mut sums = on.array_on_one(&[0_i64; 3 * CENTRES])?;
        assign::run((&points, &centres, &mut nearest, &mut sums))?;
        centres = moved(centres, &sums.to_vec(..)?);
    }
    Ok((centres, nearest.to_vec(..)?))
}

fn natively(points: &[[i32; 2]], mut centres: [[i32; 2]; CENTRES], rounds: usize) -> Clusters {
    let mut nearest = vec![0; points.len()];
    for _ in 0..rounds {
        let mut sums = [0; 3 * CENTRES];
        for (point, nearest) in points.iter().zip(&mut nearest) {
            let far = |c: &[i32; 2]| [0, 1].map(|i| i64::from(point[i] - c[i]).pow(2)).iter().sum::<i64>();
            *nearest = (0..CENTRES).min_by_key(|c| far(&centres[*c])).expect("there are some") as u8;
            let of = &mut sums[3 * usize::from(*nearest)..][..3];
            of.iter_mut().zip([point[0].into(), point[1].into(), 1]).for_each(|(sum, term)| *sum += term);
        }
        centres = moved(centres, &sums);
    }
    (centres, nearest)
}

pub fn show(on: &mut Setting) -> Result<()> {
    // Eight clouds around the points of a circle, and centres that begin elsewhere.
    let places =
        std::array::from_fn(|c| [45_f32 * c as f32].map(f32::to_radians)).map(|[a]| [a.cos(), a.sin()]);
    let cloud =
        |on: &mut Setting, i: usize| places[i % CENTRES].map(|x| (1000.0 * x + 100.0 * on.real()) as i32);
    let points: Vec<_> = (0..4000).map(|i| cloud(on, i)).collect();
    let (centres, nearest) = run(on, &points, places.map(|p| p.map(|x| (400.0 * x) as i32)), 10)?;
    println!("    centres of eight clouds: {centres:?}");
    assert!(nearest.iter().enumerate().all(|(i, c)| usize::from(*c) == i % CENTRES));
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let mut point = |_: usize| [on.below(2000) as i32 - 1000, on.below(2000) as i32 - 1000];
    let (centres, points) = (std::array::from_fn(&mut point), (0..1500).map(&mut point).collect::<Vec<_>>());
    let points = &points[..1 + on.below(1500)];
    assert_eq!(run(on, points, centres, 3)?, natively(points, centres, 3));
    Ok(())
}
