//! Gravity between all pairs of bodies: each thread maps the bodies that it moves, and all others tile by
//! tile. The baseline is the same loop over slices of a `Vec`; the results must be equal.

use super::Bench;
use crate::bench::measure::{Sample, Unit, on_threads};
use crate::bench::results::Role;
use crate::bench::setup::{Setup, pieces};
use anyhow::{Result, anyhow, ensure};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use vmarray::VirtualArray;
use vmarray::access::{MapBuffer, MapMode};
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;

/// Bodies of a tile.
const TILE: usize = 4096;
/// The number of bodies that a thread moves at a time.
const BLOCK: usize = 512;
/// Coordinates and mass, each an array of its own, so that vector instructions can be used.
const FIELDS: usize = 4;

pub fn run(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("nbody/") {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let threads = setup.threads;
    let bodies = bodies_for(if setup.quick { 0.25 } else { 3.0 }, threads)?;
    bench.row(format!("nbody/{bodies}-bodies/t{threads}"), Unit::GigaPerSecond, |_, row| {
        row.effort.runs = 3;
        let plain = fields(bodies);
        let arrays = stored(&setup, &plain)?;
        let pulls: VirtualArray<f32> = setup_array(&setup, bodies * 3)?;
        row.measure("ours", Role::Ours, || {
            step(bodies, threads, |targets, scratch| {
                let Scratch { own, tile, sums } = scratch;
                for (field, own) in arrays[..3].iter().zip(own.iter_mut()) {
                    field.read(targets.start, &mut own[..targets.len()])?;
                }
                sums.fill(0.0);
                for piece in pieces(0..bodies, TILE) {
                    let [x, y, z, m] = tile;
                    let buffer = MapBuffer::Borrowed;
                    arrays[0].map_in(piece.clone(), MapMode::Read, buffer(x), |x| {
                        arrays[1].map_in(piece.clone(), MapMode::Read, buffer(y), |y| {
                            arrays[2].map_in(piece.clone(), MapMode::Read, buffer(z), |z| {
                                arrays[3].map_in(piece.clone(), MapMode::Read, buffer(m), |m| {
                                    pull(own, targets.len(), [x, y, z, m].map(|s| &*s), sums);
                                })
                            })
                        })
                    })????;
                }
                Ok(pulls.write(targets.start * 3, &sums[..targets.len() * 3])?)
            })
        })?;
        let expected = Mutex::new(vec![0.0_f32; bodies * 3]);
        row.measure("vec", Role::Limit, || {
            step(bodies, threads, |targets, scratch| {
                let Scratch { own, sums, .. } = scratch;
                for (field, own) in plain[..3].iter().zip(own.iter_mut()) {
                    own[..targets.len()].copy_from_slice(&field[targets.clone()]);
                }
                sums.fill(0.0);
                for piece in pieces(0..bodies, TILE) {
                    pull(own, targets.len(), std::array::from_fn(|at| &plain[at][piece.clone()]), sums);
                }
                let mut expected = expected.lock().map_err(|_| anyhow!("a thread panicked"))?;
                expected[targets.start * 3..targets.end * 3].copy_from_slice(&sums[..targets.len() * 3]);
                Ok(())
            })
        })?;
        let expected = expected.into_inner().map_err(|_| anyhow!("a thread panicked"))?;
        ensure!(pulls.to_vec(..)? == expected, "the array's pulls differ from the vector's");
        Ok(())
    })
}

/// Random bodies.
fn fields(count: usize) -> [Vec<f32>; FIELDS] {
    let mut random = SplitMix64::new(9);
    std::array::from_fn(|_| (0..count).map(|_| (random.next() >> 40) as f32 / (1 << 24) as f32).collect())
}

/// Stores the same in arrays, with empty caches.
fn stored(setup: &Setup, fields: &[Vec<f32>; FIELDS]) -> Result<Vec<VirtualArray<f32>>> {
    let store = |values: &Vec<f32>| -> Result<VirtualArray<f32>> {
        let array = setup_array(setup, values.len())?;
        array.write(0, values)?;
        array.evict(..)?;
        Ok(array)
    };
    fields.iter().map(store).collect()
}

/// Creates an array with a cache of a quarter of its size.
fn setup_array(setup: &Setup, len: usize) -> Result<VirtualArray<f32>> {
    setup.array(len, Some(TILE), (len * 4 / 4).max(TILE * 4 * 16))
}

/// The buffers of a thread.
struct Scratch {
    own: [Vec<f32>; 3],
    tile: [Vec<f32>; FIELDS],
    /// x, y and z of each moved body.
    sums: Vec<f32>,
}

/// Threads take blocks of bodies until none is left. Counts pairs.
fn step(
    bodies: usize,
    threads: usize,
    run: impl Fn(Range<usize>, &mut Scratch) -> Result<()> + Sync,
) -> Result<Sample> {
    let next = AtomicUsize::new(0);
    on_threads(threads, |_| {
        let mut scratch = Scratch {
            own: std::array::from_fn(|_| vec![0.0; BLOCK]),
            tile: std::array::from_fn(|_| vec![0.0; TILE]),
            sums: vec![0.0; BLOCK * 3],
        };
        let mut pairs = 0.0;
        loop {
            let start = next.fetch_add(BLOCK, Ordering::Relaxed);
            if start >= bodies {
                return Ok(pairs);
            }
            let targets = start..(start + BLOCK).min(bodies);
            pairs += targets.len() as f64 * bodies as f64;
            run(targets, &mut scratch)?;
        }
    })
}

/// Adds the pull of a tile's bodies on the bodies of a block.
fn pull(own: &[Vec<f32>; 3], count: usize, tile: [&[f32]; FIELDS], sums: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn wide(own: &[Vec<f32>; 3], count: usize, tile: [&[f32]; FIELDS], sums: &mut [f32]) {
            pull_all(own, count, tile, sums, |a, b, c| a.mul_add(b, c));
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features that the function is compiled for.
            return unsafe { wide(own, count, tile, sums) };
        }
    }
    pull_all(own, count, tile, sums, |a, b, c| a * b + c);
}

#[inline(always)]
fn pull_all(
    own: &[Vec<f32>; 3],
    count: usize,
    [x, y, z, m]: [&[f32]; FIELDS],
    sums: &mut [f32],
    mul_add: impl Fn(f32, f32, f32) -> f32 + Copy,
) {
    const LANES: usize = 16;
    let lanes = x.as_chunks::<LANES>().0.iter().zip(y.as_chunks::<LANES>().0);
    let lanes = lanes.zip(z.as_chunks::<LANES>().0.iter().zip(m.as_chunks::<LANES>().0));
    let rest = x.len() / LANES * LANES..x.len();
    for body in 0..count {
        let (px, py, pz) = (own[0][body], own[1][body], own[2][body]);
        let (mut ax, mut ay, mut az) = ([0.0_f32; LANES], [0.0_f32; LANES], [0.0_f32; LANES]);
        let one = |x: f32, y: f32, z: f32, m: f32| {
            let (dx, dy, dz) = (x - px, y - py, z - pz);
            // Add a small constant to the squared distance, so that a body's pull on itself is zero.
            let square = mul_add(dx, dx, mul_add(dy, dy, mul_add(dz, dz, 1e-6)));
            let inverse = 1.0 / square.sqrt();
            let weight = m * inverse * inverse * inverse;
            (weight * dx, weight * dy, weight * dz)
        };
        for ((x, y), (z, m)) in lanes.clone() {
            for lane in 0..LANES {
                let (fx, fy, fz) = one(x[lane], y[lane], z[lane], m[lane]);
                ax[lane] += fx;
                ay[lane] += fy;
                az[lane] += fz;
            }
        }
        for at in rest.clone() {
            let (fx, fy, fz) = one(x[at], y[at], z[at], m[at]);
            ax[0] += fx;
            ay[0] += fy;
            az[0] += fz;
        }
        sums[body * 3] += ax.iter().sum::<f32>();
        sums[body * 3 + 1] += ay.iter().sum::<f32>();
        sums[body * 3 + 2] += az.iter().sum::<f32>();
    }
}

/// Returns the number of bodies for which one step takes about `seconds` seconds, at most 320 000.
fn bodies_for(seconds: f64, threads: usize) -> Result<usize> {
    let sample = 8 * TILE;
    let plain = fields(sample);
    let blocks = threads.min(sample / BLOCK);
    let measured = on_threads(threads, |thread| {
        if thread >= blocks {
            return Ok(0.0);
        }
        let own = std::array::from_fn(|field| plain[field][thread * BLOCK..(thread + 1) * BLOCK].to_vec());
        let mut sums = vec![0.0; BLOCK * 3];
        pull(&own, BLOCK, std::array::from_fn(|field| &plain[field][..]), &mut sums);
        std::hint::black_box(sums);
        Ok(BLOCK as f64 * sample as f64)
    })?;
    let pairs = measured.amount / measured.wall * seconds;
    Ok(((pairs.sqrt() as usize).min(320_000) / TILE * TILE).max(2 * TILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_bodies_pull_each_other() {
        let own = [vec![0.0, 1.0], vec![0.0; 2], vec![0.0; 2]];
        let (x, zero, m) = ([0.0, 1.0], [0.0; 2], [1.0, 4.0]);
        let mut sums = vec![0.0; 6];
        pull(&own, 2, [&x, &zero, &zero, &m], &mut sums);
        assert!((sums[0] - 4.0).abs() < 1e-3 && (sums[3] + 1.0).abs() < 1e-3, "{sums:?}");
        assert!(sums[1] == 0.0 && sums[5] == 0.0);
    }

    #[test]
    fn lanes_and_the_rest_agree() {
        let bodies = fields(37);
        let own = std::array::from_fn(|field| bodies[field].clone());
        let (mut whole, mut parts) = (vec![0.0; 37 * 3], vec![0.0; 37 * 3]);
        pull(&own, 37, std::array::from_fn(|field| &bodies[field][..]), &mut whole);
        for piece in pieces(0..37, 5) {
            pull(&own, 37, std::array::from_fn(|field| &bodies[field][piece.clone()]), &mut parts);
        }
        assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() <= 1e-3 * a.abs().max(1.0)));
    }
}
