//! Benchmark of expressions and a blur on the host, compared with rayon over slices and, if Python has them,
//! NumPy, Polars, numba and OpenCV. All competitors process the same numbers alternately, with equal results.
//!
//!     cargo bench -p vmarray --profile release --features host,rayon --bench peers [-- ROW ...]
//!
//! `PYTHON` names a Python interpreter; `ROUNDS` is the number of measurements of each competitor. The
//! benchmark prints the least time of each competitor. In brackets follows the median, over all rounds, of
//! vmarray's time divided by the competitor's time. On Linux the same ratio of processor times follows after
//! a slash; it is meaningful also on a busy machine.

mod in_turns;

use std::sync::Arc;

use in_turns::{Python, Work, compare};
use rayon::prelude::*;
use vmarray::boundary::Symmetric;
use vmarray::host::HostDevice;
use vmarray::prelude::*;
use vmarray::{Field, NdArray, VirtualArray};

const THREADS: usize = 2;
/// The number of elements in the arrays, which take 256 MiB.
const COUNT: usize = 64 << 20;
/// The side of the image, in elements.
const SIDE: usize = 4096;
const RADIUS: usize = 8;
/// The number of elements that a thread of rayon processes at a time.
const PART: usize = 1 << 18;

fn main() {
    let words: Vec<u32> = (0..COUNT as u32).map(hashed).collect();
    let floats: Vec<f32> = words.iter().map(|word| (word >> 8) as f32 / (1 << 24) as f32).collect();
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    rayon::ThreadPoolBuilder::new().num_threads(THREADS).build_global().expect("the thread pool starts");
    let (u32s, f32s) = (array(&words), array(&floats));
    let (image, blurred) = (picture(), picture());
    image.write_box(.., &floats[..SIDE * SIDE]).expect("the write must succeed");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers.py");
    let mut python = Python::start(script, &[&THREADS, &COUNT, &SIDE]);
    for row in ROWS {
        if !wanted.is_empty() && !wanted.iter().any(|part| row.contains(part.as_str())) {
            continue;
        }
        let ours = ours(row, &u32s, &f32s, (&image, &blurred));
        let mut works = vec![("vmarray".to_owned(), ours)];
        if let Some(plain) = plain(row, &words, &floats) {
            works.push(("rayon".to_owned(), plain));
        }
        compare(row, works, python.as_mut());
    }
}

const ROWS: [&str; 10] = [
    "u32/count",
    "u32/sum",
    "u32/min_max",
    "f32/histogram-256",
    "f32/find-1%",
    "f32/find-half",
    "f32/two-terms",
    "f32/sum",
    "f32/min_max",
    "f32/blur",
];

fn hashed(i: u32) -> u32 {
    let word = i.wrapping_mul(2_654_435_761);
    word ^ (word >> 15)
}

fn device(bytes: usize) -> Arc<HostDevice> {
    Arc::new(HostDevice::builder().bytes(bytes as u64).threads(THREADS).build().expect("RAM suffices"))
}

fn array<T: Element>(values: &[T]) -> VirtualArray<T, HostDevice> {
    let builder = VirtualArray::<T>::builder(values.len()).devices([device(2 * size_of_val(values))]);
    let array = builder.build().expect("RAM suffices for the array");
    array.write(0, values).expect("the write must succeed");
    array.flush(..).expect("the flush must succeed");
    array
}

fn picture() -> NdArray<f32, 2, HostDevice> {
    let builder =
        NdArray::<f32, 2>::builder([SIDE, SIDE]).devices([device(SIDE * SIDE * 8)]).tile([128, 128]);
    builder.elements(|elements| elements.cache_bytes(2 * SIDE * SIDE * 4)).build().expect("RAM suffices")
}

type Image = NdArray<f32, 2, HostDevice>;

/// Returns a function that does the work of a row with this library.
fn ours<'a>(
    row: &str,
    words: &'a VirtualArray<u32, HostDevice>,
    floats: &'a VirtualArray<f32, HostDevice>,
    (image, blurred): (&'a Image, &'a Image),
) -> Work<'a> {
    let word = Field::<u32, u32>::whole;
    let float = Field::<f32, f32>::whole;
    let find = move |end: f32| {
        let found = floats.find_where(.., float().lt(end), usize::MAX).expect("the search succeeds");
        (found.indices.len() + found.indices[found.indices.len() - 1]) as f64
    };
    match row {
        "u32/count" => {
            Box::new(move || words.count_where(.., word().ge(1 << 31)).expect("the count succeeds") as f64)
        }
        "u32/sum" => Box::new(move || words.sum(.., word()).expect("the sum succeeds") as f64),
        "u32/min_max" => Box::new(move || {
            let (least, greatest) =
                words.min_max(.., word()).expect("the search succeeds").expect("there are elements");
            f64::from(least) + f64::from(greatest)
        }),
        "f32/histogram-256" => Box::new(move || {
            floats.histogram(.., (float() * 256.0).cast::<u32>(), 256).expect("the histogram succeeds")[7]
                as f64
        }),
        "f32/find-1%" => Box::new(move || find(0.01)),
        "f32/find-half" => Box::new(move || find(0.5)),
        "f32/two-terms" => Box::new(move || {
            floats.count_where(.., float().ge(0.25) & float().lt(0.5)).expect("the count succeeds") as f64
        }),
        "f32/sum" => Box::new(move || floats.sum(.., float()).expect("the sum succeeds")),
        "f32/min_max" => Box::new(move || {
            let (least, greatest) =
                floats.min_max(.., float()).expect("the search succeeds").expect("there are elements");
            f64::from(least + greatest)
        }),
        _ => Box::new(move || {
            let weights = weights();
            let view = image.bounded(Symmetric);
            view.par_for_each_window(image.tiles(), [RADIUS; 2], |of, window| {
                let extent = [of.end[0] - of.start[0], of.end[1] - of.start[1]];
                let mut tile = vec![0.0; extent[0] * extent[1]];
                blur(&weights, window, extent[1], &mut tile);
                blurred.write_box(of, &tile)
            })
            .expect("the blur succeeds");
            f64::from(blurred.get([5, 5]).expect("the pixel is in the image"))
        }),
    }
}

/// Returns a function that does the same work with rayon over slices.
fn plain<'a>(row: &str, words: &'a [u32], floats: &'a [f32]) -> Option<Work<'a>> {
    let count = |words: &[u32]| words.iter().filter(|word| **word >= 1 << 31).count();
    let two = |floats: &[f32]| floats.iter().filter(|float| **float >= 0.25 && **float < 0.5).count();
    let find = move |end: f32| {
        let parts = floats.par_chunks(PART).enumerate().map(|(part, floats)| {
            let mut found = vec![0_usize; floats.len() + 1];
            let mut next = 0;
            for (index, float) in (part * PART..).zip(floats) {
                found[next] = index;
                next += usize::from(*float < end);
            }
            found.truncate(next);
            found
        });
        let all: Vec<usize> = parts.collect::<Vec<_>>().concat();
        (all.len() + all[all.len() - 1]) as f64
    };
    Some(match row {
        "u32/count" => Box::new(move || words.par_chunks(PART).map(count).sum::<usize>() as f64),
        "u32/sum" => Box::new(move || {
            words
                .par_chunks(PART)
                .map(|part| part.iter().map(|word| u64::from(*word)).sum::<u64>())
                .sum::<u64>() as f64
        }),
        "u32/min_max" => Box::new(move || {
            let ends = words.par_chunks(PART).map(|part| {
                part.iter().fold((u32::MAX, 0), |(least, most), word| (least.min(*word), most.max(*word)))
            });
            let (least, most) = ends.reduce(|| (u32::MAX, 0), |a, b| (a.0.min(b.0), a.1.max(b.1)));
            f64::from(least) + f64::from(most)
        }),
        "f32/histogram-256" => Box::new(move || {
            let parts = floats.par_chunks(PART).map(|part| {
                let mut bins = [[0_u32; 256]; 4];
                for floats in part.as_chunks::<4>().0 {
                    for (float, bins) in floats.iter().zip(&mut bins) {
                        bins[(float * 256.0) as usize & 255] += 1;
                    }
                }
                std::array::from_fn::<u64, 256, _>(|bin| bins.iter().map(|bins| u64::from(bins[bin])).sum())
            });
            parts.reduce(|| [0; 256], |a, b| std::array::from_fn(|bin| a[bin] + b[bin]))[7] as f64
        }),
        "f32/find-1%" => Box::new(move || find(0.01)),
        "f32/find-half" => Box::new(move || find(0.5)),
        "f32/two-terms" => Box::new(move || floats.par_chunks(PART).map(two).sum::<usize>() as f64),
        "f32/sum" => Box::new(move || {
            let parts = floats.par_chunks(PART).map(|part| {
                let mut sums = [0.0_f64; 16];
                for row in part.as_chunks::<16>().0 {
                    sums.iter_mut().zip(row).for_each(|(sum, float)| *sum += f64::from(*float));
                }
                sums.iter().sum::<f64>()
            });
            parts.sum()
        }),
        "f32/min_max" => Box::new(move || {
            let ends = floats.par_chunks(PART).map(|part| {
                let mut ends = [(f32::INFINITY, f32::NEG_INFINITY); 16];
                for row in part.as_chunks::<16>().0 {
                    for (end, float) in ends.iter_mut().zip(row) {
                        end.0 = if *float < end.0 { *float } else { end.0 };
                        end.1 = if *float > end.1 { *float } else { end.1 };
                    }
                }
                ends.into_iter().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).expect("there are 16 lanes")
            });
            let (least, most) =
                ends.reduce(|| (f32::INFINITY, f32::NEG_INFINITY), |a, b| (a.0.min(b.0), a.1.max(b.1)));
            f64::from(least + most)
        }),
        _ => return None,
    })
}

/// The weights of a Gaussian blur, from the middle outwards; all weights of both sides sum to 1.
fn weights() -> [f32; RADIUS + 1] {
    let sigma = RADIUS as f32 / 2.5;
    let bell = |at: usize| (-(at as f32).powi(2) / (2.0 * sigma * sigma)).exp();
    let sum = bell(0) + 2.0 * (1..=RADIUS).map(bell).sum::<f32>();
    std::array::from_fn(|at| bell(at) / sum)
}

/// Blurs a window, and stores the result in the tile in its middle. Uses the widest vectors of the processor.
fn blur(weights: &[f32; RADIUS + 1], window: &[f32], columns: usize, tile: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn wide(weights: &[f32; RADIUS + 1], window: &[f32], columns: usize, tile: &mut [f32]) {
            blur_here(weights, window, columns, tile, f32::mul_add);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has these.
            return unsafe { wide(weights, window, columns, tile) };
        }
    }
    blur_here(weights, window, columns, tile, |a, b, c| a * b + c);
}

/// Implements [`blur`]: blurs along columns, then along rows, one row of the tile at a time.
#[inline(always)]
fn blur_here(
    weights: &[f32; RADIUS + 1],
    window: &[f32],
    columns: usize,
    tile: &mut [f32],
    fma: impl Fn(f32, f32, f32) -> f32,
) {
    let wide = columns + 2 * RADIUS;
    let mut along = vec![0.0_f32; wide];
    for (row, to) in tile.chunks_exact_mut(columns).enumerate() {
        weigh(weights, |tap| &window[(row + tap) * wide..][..wide], &mut along, &fma);
        weigh(weights, |tap| &along[tap..][..columns], to, &fma);
    }
}

/// Adds rows, each multiplied by the weight of its distance from the middle row.
#[inline(always)]
fn weigh<'a>(
    weights: &[f32; RADIUS + 1],
    tap: impl Fn(usize) -> &'a [f32],
    to: &mut [f32],
    fma: &impl Fn(f32, f32, f32) -> f32,
) {
    const LANES: usize = 32;
    let taps: [&[f32]; 2 * RADIUS + 1] = std::array::from_fn(tap);
    let weigh = |at: usize| {
        let mut sum = weights[0] * taps[RADIUS][at];
        for far in 1..=RADIUS {
            sum = fma(weights[far], taps[RADIUS - far][at] + taps[RADIUS + far][at], sum);
        }
        sum
    };
    let (blocks, rest) = to.as_chunks_mut::<LANES>();
    let first = blocks.len() * LANES;
    for (block, to) in blocks.iter_mut().enumerate() {
        let lanes = |tap: usize| {
            taps[tap][block * LANES..].first_chunk::<LANES>().expect("taps have the length of `to`")
        };
        let middle = lanes(RADIUS);
        let mut sums = [0.0; LANES];
        sums.iter_mut().zip(middle).for_each(|(sum, value)| *sum = weights[0] * value);
        for (far, weight) in weights.iter().enumerate().skip(1) {
            let (before, after) = (lanes(RADIUS - far), lanes(RADIUS + far));
            for lane in 0..LANES {
                sums[lane] = fma(*weight, before[lane] + after[lane], sums[lane]);
            }
        }
        *to = sums;
    }
    rest.iter_mut().enumerate().for_each(|(at, to)| *to = weigh(first + at));
}
