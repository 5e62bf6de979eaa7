//! k-means clustering (Lloyd): each point in the plane joins the nearest centre, and each centre moves to the
//! mean of its points. The sums are integers, so results do not depend on the order of additions.

use crate::setting::Setting;
use vmarray::kernel::{Own, Shared};
use vmarray::{Result, prelude::*};

const CENTRES: usize = 8;
type Centres = [[i32; 2]; CENTRES];

/// Finds the nearest centre of each point, and adds x, y and 1 of the point to the sums of this centre.
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

/// New positions of the centres; a centre without points stays.
fn moved(centres: Centres, sums: &[i64]) -> Centres {
    std::array::from_fn(|c| match sums[3 * c + 2] {
        0 => centres[c],
        count => [0, 1].map(|axis| sums[3 * c + axis].div_euclid(count) as i32),
    })
}

fn run(on: &mut Setting, points: &[[i32; 2]], mut centres: Centres) -> Result<(Centres, Vec<u8>)> {
    let (mut nearest, points) = (on.array_on_one(&vec![0_u8; points.len()])?, on.array_on_one(points)?);
    for _ in 0..10 {
        let mut sums = on.array_on_one(&[0_i64; 3 * CENTRES])?;
        assign::run((&points, &centres, &mut nearest, &mut sums))?;
        centres = moved(centres, &sums.to_vec(..)?);
    }
    Ok((centres, nearest.to_vec(..)?))
}

fn natively(points: &[[i32; 2]], mut centres: Centres) -> (Centres, Vec<u8>) {
    let mut nearest = vec![0; points.len()];
    for _ in 0..10 {
        let mut sums = [0; 3 * CENTRES];
        for (point, nearest) in points.iter().zip(&mut nearest) {
            let far = |c: &[i32; 2]| [0, 1].map(|i| i64::from(point[i] - c[i]).pow(2)).iter().sum::<i64>();
            *nearest = (0..CENTRES).min_by_key(|c| far(&centres[*c])).expect("`CENTRES` is not 0") as u8;
            let of = &mut sums[3 * usize::from(*nearest)..][..3];
            of.iter_mut().zip([point[0].into(), point[1].into(), 1]).for_each(|(sum, term)| *sum += term);
        }
        centres = moved(centres, &sums);
    }
    (centres, nearest)
}

pub fn show(on: &mut Setting) -> Result<()> {
    // The data are eight clouds around points of a circle; the centres begin at other places.
    let angles: [f32; CENTRES] = std::array::from_fn(|c| (45 * c) as f32).map(f32::to_radians);
    let place = |c: usize, far: f32| [angles[c].cos(), angles[c].sin()].map(|x| x * far);
    let mut point = |i| place(i % CENTRES, 1000.0).map(|x| (x + 100.0 * on.real()) as i32);
    let points: Vec<_> = (0..4000).map(&mut point).collect();
    let (centres, nearest) = run(on, &points, std::array::from_fn(|c| place(c, 400.0).map(|x| x as i32)))?;
    println!("    centres of eight clouds: {centres:?}");
    assert!(nearest.iter().enumerate().all(|(i, c)| usize::from(*c) == i % CENTRES));
    Ok(())
}

pub fn check(on: &mut Setting) -> Result<()> {
    let len = 1 + on.below(1500);
    let mut point = |_: usize| [on.below(2000) as i32 - 1000, on.below(2000) as i32 - 1000];
    let (centres, points) = (std::array::from_fn(&mut point), (0..len).map(&mut point).collect::<Vec<_>>());
    assert_eq!(run(on, &points, centres)?, natively(&points, centres));
    Ok(())
}
