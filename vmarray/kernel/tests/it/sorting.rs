//! A radix sort and a merge in the kernel language, as a library on devices needs them.

use crate::harness::random;
use vmarray_kernel::{Anywhere, At, Group, Shared, group, kernel, lower, run_on_host};

const DIGITS: usize = 256;
const EACH: usize = 4;
const TILE: usize = DIGITS * EACH;
/// Parts of a digit's state: a count of one tile, a count of all tiles up to one, and the number.
const OF_TILE: u32 = 1 << 30;
const OF_ALL: u32 = 2 << 30;
const NUMBER: u32 = OF_TILE - 1;

/// Adds the number of keys with each digit to `counts`.
#[kernel(crate = vmarray_kernel, group = 256)]
fn count_digits(
    at: At<1>,
    shift: u32,
    keys: &Anywhere<u32>,
    here: &Group<u32, DIGITS>,
    counts: &Shared<u32>,
) {
    for i in 0..EACH {
        let j = at.group() * TILE + i * DIGITS + at.in_group();
        if j < keys.len() {
            here.add((keys[j] >> shift) as usize % DIGITS, 1);
        }
    }
    barrier();
    counts.add(at.in_group(), here[at.in_group()]);
}

/// Stores the number of keys of each digit in each tile, for devices whose groups cannot wait.
#[kernel(crate = vmarray_kernel, group = 256)]
fn count_tiles(at: At<1>, shift: u32, keys: &Anywhere<u32>, here: &Group<u32, DIGITS>, counts: &Shared<u32>) {
    for i in 0..EACH {
        let j = at.group() * TILE + i * DIGITS + at.in_group();
        if j < keys.len() {
            here.add((keys[j] >> shift) as usize % DIGITS, 1);
        }
    }
    barrier();
    counts.set(at.group() * DIGITS + at.in_group(), here[at.in_group()]);
}

/// Replaces the counts of tiles by the sums of the tiles before: one group, one item for each digit.
#[kernel(crate = vmarray_kernel, group = 256)]
fn add_tiles(at: At<1>, counts: &Shared<u32>) {
    let mut sum = 0;
    let mut j = at.in_group();
    while j < counts.len() {
        let count = counts[j];
        counts.set(j, sum);
        sum += count;
        j += DIGITS;
    }
}

/// Moves keys to the places of their digits: `starts` has the first place of each digit. With `WAITS`, groups
/// look back at the states of earlier groups; otherwise the states are the counts before each tile.
#[kernel(crate = vmarray_kernel, group = 256)]
fn move_keys<const WAITS: bool>(
    at: At<1>,
    shift: u32,
    keys: &Anywhere<u32>,
    starts: &Anywhere<u32>,
    started: &Shared<u32>,
    states: &Shared<u32>,
    to: &Shared<u32>,
    number: &Group<u32, 1>,
    next: &Group<u32, { 8 * DIGITS }>,
    parts: &Group<u32, 8>,
    sorted: &Group<u32, TILE>,
    first: &Group<u32, DIGITS>,
) {
    let t = at.in_group();
    if t == 0 {
        number.set(0, started.add(0, 1));
    }
    barrier();
    let tile = number[0] as usize;
    let count = (keys.len() - tile * TILE).min(TILE);
    let (of_warp, own) = (t / 32 * DIGITS, t / 32 * 32 * EACH + t % 32);
    let mut read = [0; EACH];
    for i in 0..EACH {
        let j = own + i * 32;
        // Missing keys are the last ones of the last digit.
        read[i] = if j < count { keys[tile * TILE + j] } else { u32::MAX };
        next.add(of_warp + (read[i] >> shift) as usize % DIGITS, 1);
    }
    barrier();
    let mut of_tile = 0;
    for warp in 0..8 {
        of_tile += next[warp * DIGITS + t];
    }
    let real = if t == DIGITS - 1 { of_tile - (TILE - count) as u32 } else { of_tile };
    let state = tile * DIGITS + t;
    if WAITS {
        states.release(state, real | (if tile == 0 { OF_ALL } else { OF_TILE }));
    }
    let start = group::scan_sum(at, parts, of_tile) - of_tile;
    let mut place = start;
    for warp in 0..8 {
        let of_digit = next[warp * DIGITS + t];
        next.set(warp * DIGITS + t, place);
        place += of_digit;
    }
    barrier();
    for i in 0..EACH {
        let digit = (read[i] >> shift) % DIGITS as u32;
        sorted.set(group::take_places(at, next, of_warp, digit, 8) as usize, read[i]);
    }
    let mut before = 0;
    if !WAITS {
        before = states[state];
    } else if tile > 0 {
        let mut look = state - DIGITS;
        loop {
            let found = states.acquire(look);
            if found != 0 {
                before += found & NUMBER;
                if found >= OF_ALL {
                    break;
                }
                look -= DIGITS;
            }
        }
        states.release(state, (before + real) | OF_ALL);
    }
    first.set(t, starts[t] + before - start);
    barrier();
    for i in 0..EACH {
        let j = t + i * DIGITS;
        if j < count {
            let key = sorted[j];
            to.set((first[(key >> shift) as usize % DIGITS] + j as u32) as usize, key);
        }
    }
}

/// The first place of each digit.
fn starts(counts: &[u32]) -> Vec<u32> {
    let before = |sum: &mut u32, count: &u32| Some(std::mem::replace(sum, *sum + count));
    counts.iter().scan(0, before).collect()
}

fn sorted(mut keys: Vec<u32>, waits: bool) -> Vec<u32> {
    let tiles = keys.len().div_ceil(TILE);
    let items = 0..tiles * DIGITS;
    for shift in [0, 8, 16, 24] {
        let (mut counts, mut states) = (vec![0; DIGITS], vec![0; tiles * DIGITS]);
        let (mut started, mut to) = ([0], vec![0; keys.len()]);
        run_on_host::<count_digits>(items.clone(), ((), shift, &keys, (), &mut counts)).unwrap();
        let starts = starts(&counts);
        if waits {
            let arguments =
                ((), shift, &keys[..], &starts[..], &mut started[..], &mut states[..], &mut to[..]);
            let (at, shift, keys, starts, started, states, to) = arguments;
            let all = (at, shift, keys, starts, started, states, to, (), (), (), (), ());
            run_on_host::<move_keys<true>>(items.clone(), all).unwrap();
        } else {
            run_on_host::<count_tiles>(items.clone(), ((), shift, &keys, (), &mut states)).unwrap();
            run_on_host::<add_tiles>(0..DIGITS, ((), &mut states)).unwrap();
            let all = (
                (),
                shift,
                &keys[..],
                &starts[..],
                &mut started[..],
                &mut states[..],
                &mut to[..],
                (),
                (),
                (),
                (),
                (),
            );
            run_on_host::<move_keys<false>>(items.clone(), all).unwrap();
        }
        keys = to;
    }
    keys
}

#[test]
fn a_radix_sort_looks_back_or_counts_tiles() {
    for (seed, count) in [(1, 5000), (2, TILE), (3, 1)] {
        let keys: Vec<u32> = random(seed, count);
        let mut expected = keys.clone();
        expected.sort_unstable();
        assert_eq!(sorted(keys.clone(), true), expected, "{count} keys, groups wait");
        assert_eq!(sorted(keys, false), expected, "{count} keys, tiles are counted");
    }
}

#[test]
fn only_the_kernel_that_waits_needs_forward_progress() {
    let needs = |body| backend_api::kernel::VerifiedKernel::new(body).unwrap().needs().forward_progress;
    assert!(needs(lower::<move_keys<true>>().unwrap().body));
    assert!(!needs(lower::<move_keys<false>>().unwrap().body));
}

/// Returns the number of elements of `a` among the first `number` elements of the result of a merge.
#[kernel(crate = vmarray_kernel)]
fn from_first(number: usize, a: &Anywhere<u32>, b: &Anywhere<u32>) -> usize {
    let mut low = if number > b.len() { number - b.len() } else { 0 };
    let mut high = number.min(a.len());
    while low < high {
        let middle = (low + high) / 2;
        if a[middle] <= b[number - middle - 1] {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Merges two sorted runs: each item writes `EACH` elements of the result.
#[kernel(crate = vmarray_kernel)]
fn merge(at: At<1>, a: &Anywhere<u32>, b: &Anywhere<u32>, to: &Shared<u32>) {
    let first = at.index() * EACH;
    let mut one = from_first(first.min(a.len() + b.len()), a, b);
    let mut two = first - one;
    for i in 0..EACH {
        if first + i < to.len() {
            let is_first = if two >= b.len() {
                true
            } else if one >= a.len() {
                false
            } else {
                a[one] <= b[two]
            };
            if is_first {
                to.set(first + i, a[one]);
                one += 1;
            } else {
                to.set(first + i, b[two]);
                two += 1;
            }
        }
    }
}

#[test]
fn a_merge_takes_each_element_once() {
    let [mut a, mut b]: [Vec<u32>; 2] = [random(5, 333), random(6, 700)];
    a.sort_unstable();
    b.sort_unstable();
    let mut to = vec![0; a.len() + b.len()];
    run_on_host::<merge>(0..to.len().div_ceil(EACH), ((), &a, &b, &mut to)).unwrap();
    let mut expected = [a, b].concat();
    expected.sort_unstable();
    assert_eq!(to, expected);
}
