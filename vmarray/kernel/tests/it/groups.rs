//! Tests of operations that several items execute together: groups, subgroup operations, atomics, appends.

use crate::harness::{ITEMS, random};
use vmarray_kernel::{
    Anywhere, Append, At, ErrorKind, Group, KernelType, Own, Shared, group, interpret, kernel, lower,
    run_on_host,
};

/// Sums a group's elements by repeated halving, into the first of them.
#[kernel(crate = vmarray_kernel)]
fn sum_of_group<const N: usize>(at: At<1>, part: &Group<u64, N>) -> u64 {
    let i = at.in_group();
    let mut half = N / 2;
    while half > 0 {
        barrier();
        if i < half {
            part.set(i, part[i] + part[i + half]);
        }
        half /= 2;
    }
    barrier();
    part[0]
}

#[kernel(crate = vmarray_kernel, group = 64)]
fn sums(at: At<1>, x: &Own<u64>, part: &Group<u64, 64>, total: &Shared<u64>, out: &mut Own<u64>) {
    part.set(at.in_group(), x.get());
    let sum = sum_of_group(at, part);
    if at.in_group() == 0 {
        total.add(at.group() % 2, sum);
    }
    out.set(sum - x.get());
}

#[test]
fn groups_sum_their_elements() {
    let x: Vec<u64> = random(3, ITEMS);
    let (mut total, mut out) = ([0; 2], vec![0; ITEMS]);
    run_on_host::<sums>(0..ITEMS, ((), &x, (), &mut total, &mut out)).unwrap();
    let wrapping = |group: &[u64]| group.iter().fold(0_u64, |sum, x| sum.wrapping_add(*x));
    let mut expected = [0_u64; 2];
    for (number, group) in x.chunks(64).enumerate() {
        let sum = wrapping(group);
        expected[number % 2] = expected[number % 2].wrapping_add(sum);
        for (x, out) in group.iter().zip(&out[number * 64..]) {
            assert_eq!(*out, sum.wrapping_sub(*x));
        }
    }
    assert_eq!(total, expected);
    let body = lower::<sums>().unwrap().body;
    assert_eq!((body.group_len, body.arrays.len(), body.views.len()), (Some(64), 1, 3));
}

#[kernel(crate = vmarray_kernel, group = [T, T])]
fn product<const T: usize>(
    at: At<2>,
    a: &Anywhere<f32, 2>,
    b: &Anywhere<f32, 2>,
    part_a: &Group<f32, T, T>,
    part_b: &Group<f32, T, T>,
    out: &mut Own<f32>,
) {
    let (i, mut sum) = (at.in_group(), 0.0);
    for tile in 0..(a.shape()[1] + T - 1) / T {
        let (row, column) = (tile * T + i[0], tile * T + i[1]);
        part_a.set(i, if column < a.shape()[1] { a[[at[0], column]] } else { 0.0 });
        part_b.set(i, if row < b.shape()[0] { b[[row, at[1]]] } else { 0.0 });
        barrier();
        for k in 0..T {
            sum += part_a[[i[0], k]] * part_b[[k, i[1]]];
        }
        barrier();
    }
    out.set(out.get() + sum);
}

#[test]
fn tiles_of_any_extents_carry_elements_for_one_another() {
    for [n, k, m] in [[8, 8, 8], [5, 9, 3], [1, 1, 1], [13, 4, 17], [3, 0, 2]] {
        let (a, b): (Vec<f32>, Vec<f32>) =
            ((0..n * k).map(|i| i as f32).collect(), (0..k * m).map(|i| 1.5 * i as f32).collect());
        let mut out = vec![7.0; n * m];
        run_on_host::<product<4>>(0..n * m, ([n, m], ([n, k], &a), ([k, m], &b), (), (), &mut out)).unwrap();
        let element = |i: usize| (0..k).fold(0.0, |sum, l| sum + a[i / m * k + l] * b[l * m + i % m]);
        let truth: Vec<f32> = (0..n * m).map(|i| 7.0 + element(i)).collect();
        assert_eq!(out, truth, "{n} {k} {m}");
    }
    // A kernel that writes its whole element does not load it.
    let body = lower::<product<16>>().unwrap().body;
    assert_eq!((body.group_len, body.views.len()), (Some(256), 3));
}

/// Arguments of items, and accesses out of bounds.
#[kernel(crate = vmarray_kernel, group = [2, 3, 2])]
fn reported(at: At<3>, x: &Own<u32>, line: &Anywhere<u32>, inside: &Shared<u32>, out: &mut Own<[usize; 4]>) {
    let (i, group, groups) = (at.in_group(), at.group(), at.groups());
    // Items beyond the result read nothing and never fail.
    let beyond = if at.is_inside() { 0 } else { x.get() + line[1000] };
    if at.is_inside() {
        inside.add(0, x.get());
    }
    out.set([
        i[0] * 100 + i[1] * 10 + i[2],
        group[0] * 100 + group[1] * 10 + group[2],
        groups[1],
        beyond as usize,
    ]);
}

#[test]
fn items_of_tiles_know_their_places() {
    let shape = [3, 4, 5];
    let x: Vec<u32> = (0..60).collect();
    let (mut inside, mut out) = ([0], vec![[9; 4]; 60]);
    run_on_host::<reported>(0..60, (shape, &x, &[1; 3], &mut inside, &mut out)).unwrap();
    assert_eq!(inside, [59 * 60 / 2]);
    for (number, found) in out.into_iter().enumerate() {
        let [z, y, x] = [number / 20, number / 5 % 4, number % 5];
        let within = z % 2 * 100 + y % 3 * 10 + x % 2;
        assert_eq!(found, [within, z / 2 * 100 + y / 3 * 10 + x / 2, 2, 0], "{z} {y} {x}");
    }
}

/// Each element comes from the opposite end of its tile, along all axes.
#[kernel(crate = vmarray_kernel, group = [1, 2, 3, 2])]
fn reversed(at: At<4>, part: &Group<u32, 1, 2, 3, 2>, x: &mut Own<u32>) {
    let i = at.in_group();
    part.set([0, 1 - i[1], 2 - i[2], 1 - i[3]], x.get());
    part.add(i, 0);
    barrier();
    x.set(part[i] + 100 * part.len() as u32);
}

#[test]
fn memory_of_groups_has_four_axes() {
    let mut x: Vec<u32> = (0..2 * 2 * 3 * 4).collect();
    run_on_host::<reversed>(0..48, ([2, 2, 3, 4], (), &mut x)).unwrap();
    for (number, found) in (0..).zip(x) {
        let [a, b, c, d] = [number / 24, number / 12 % 2, number / 4 % 3, number % 4];
        let from = a * 24 + (1 - b) * 12 + (2 - c) * 4 + d / 2 * 2 + (1 - d % 2);
        assert_eq!(found, from + 1200, "{a} {b} {c} {d}");
    }
}

#[kernel(crate = vmarray_kernel, group = [4, 4])]
fn of_one_axis(at: At<1>, x: &mut Own<u32>) {
    x.set(at.index() as u32);
}

#[test]
fn groups_have_as_many_axes_as_places() {
    let error = lower::<of_one_axis>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the kernel's groups have 2 axes"), "{error}");
}

#[kernel(crate = vmarray_kernel, group = G)]
fn across<const G: usize>(at: At<1>, x: &Own<i32>, out: &mut Own<[i32; 12]>) {
    let (x, lane) = (x.get(), at.in_group() as u32 % 32);
    let is_odd = x % 2 != 0;
    out.set([
        lanes::sum(x),
        lanes::max(x),
        lanes::scan_sum(x),
        lanes::scan_min(x),
        lanes::ballot(is_odd) as i32,
        lanes::any(x == 7) as i32 + 2 * (lanes::all(x < 100) as i32),
        lanes::shuffle(x, 31 - lane),
        lanes::shuffle_xor(x, 5),
        lanes::xor(x),
        lanes::scan_or(x),
        lanes::alike(x as u32, 3) as i32,
        lanes::sync(x),
    ]);
}

#[test]
fn lanes_know_of_one_another() {
    let x: Vec<i32> = random::<i32>(4, 160).into_iter().map(|x| x % 150).collect();
    let mut out = vec![[0; 12]; 160];
    run_on_host::<across<32>>(0..160, ((), &x, &mut out)).unwrap();
    let mut others = vec![[0; 12]; 160];
    run_on_host::<across<160>>(0..160, ((), &x, &mut others)).unwrap();
    assert_eq!(out, others, "the length of groups makes no difference");
    for (warp, results) in x.chunks(32).zip(out.chunks(32)) {
        for (lane, found) in results.iter().enumerate() {
            let before = &warp[..=lane];
            let ballot = warp.iter().rev().fold(0, |bits, x| bits << 1 | u32::from(x % 2 != 0));
            let own = warp[lane] % 8;
            let alike = warp.iter().rev().fold(0, |bits, x| bits << 1 | u32::from((x ^ own) & 7 == 0));
            let votes = i32::from(warp.contains(&7)) + 2 * i32::from(warp.iter().all(|x| *x < 100));
            let expected = [
                warp.iter().sum(),
                *warp.iter().max().unwrap(),
                before.iter().sum(),
                *before.iter().min().unwrap(),
                ballot as i32,
                votes,
                warp[31 - lane],
                warp[lane ^ 5],
                warp.iter().fold(0, |bits, x| bits ^ x),
                before.iter().fold(0, |bits, x| bits | x),
                alike as i32,
                warp[lane],
            ];
            assert_eq!(*found, expected, "lane {lane}");
        }
    }
}

#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct Cell {
    place: [u16; 2],
    is_set: bool,
}

#[kernel(crate = vmarray_kernel, group = 8)]
fn cells(at: At<1>, cells: &Group<Cell, 8>, counts: &Group<u32, 2>, out: &mut Own<u32>) {
    let i = at.in_group();
    cells.set(i, Cell { place: [i as u16, 10 * i as u16], is_set: i % 3 == 0 });
    counts.add(i % 2, i as u32);
    counts.max(1, 13);
    barrier();
    let other = cells[(i + 1) % 8];
    let sum = other.place[0] as u32 + other.place[1] as u32;
    out.set(if other.is_set { sum + 1000 * counts[0] } else { sum + 1000 * counts[1] });
}

#[test]
fn groups_share_structs_and_change_elements() {
    let mut out = [0; 16];
    run_on_host::<cells>(0..16, ((), (), (), &mut out)).unwrap();
    for (item, out) in out.into_iter().enumerate() {
        let other = (item + 1) % 8;
        // The maximum of a partial sum and 13 gives at least 16.
        let counts = if other % 3 == 0 { 12 } else { out / 1000 };
        assert!(counts == 12 || (16..=29).contains(&counts), "{counts}");
        assert_eq!(out, 11 * other as u32 + 1000 * counts);
    }
}

#[kernel(crate = vmarray_kernel)]
fn change(at: At<1>, x: &Own<i64>, all: &Anywhere<u8>, of: &Shared<i64>, old: &mut Own<i64>) {
    let (i, x) = (at.index() % of.len(), x.get());
    let before = match all[at.index() % all.len()] % 8 {
        0 => of.add(i, x),
        1 => of.min(i, x),
        2 => of.max(i, x),
        3 => of.and(i, x),
        4 => of.or(i, x),
        5 => of.xor(i, x),
        6 => of.exchange(i, x),
        _ => of.compare_exchange(i, of[i], x),
    };
    of.add(i + of.len(), 1);
    old.set(before);
}

#[test]
fn shared_elements_change_in_both_forms() {
    let (x, which): (Vec<i64>, Vec<u8>) = (random(1, ITEMS), random(2, ITEMS));
    let (mut host, mut lowered) = (vec![5; 7], vec![5; 7]);
    let (mut host_old, mut lowered_old) = (vec![0; ITEMS], vec![0; ITEMS]);
    let outside = run_on_host::<change>(0..ITEMS, ((), &x, &which, &mut host, &mut host_old)).unwrap_err();
    let report = interpret::<change>(0..ITEMS, ((), &x, &which, &mut lowered, &mut lowered_old)).unwrap();
    assert_eq!((host, host_old), (lowered, lowered_old));
    assert_eq!((outside.count, report.failures), (ITEMS as u64, ITEMS as u64), "each was outside once");
}

#[kernel(crate = vmarray_kernel)]
fn append(at: At<1>, x: &Own<u32>, found: &Append<[u32; 2]>) {
    if x.get() % 3 == 0 {
        found.push([at.index() as u32, x.get()]);
    }
}

#[test]
fn elements_are_appended_up_to_a_limit() {
    let x: Vec<u32> = random(6, ITEMS);
    let expected: Vec<[u32; 2]> =
        (0..).zip(&x).filter(|(_, x)| *x % 3 == 0).map(|(item, x)| [item, *x]).collect();
    let limit = expected.len() - 5;
    let mut found = vec![[0; 2]; limit];
    let mut count = 0;
    let outside = run_on_host::<append>(0..ITEMS, ((), &x, (&mut found, &mut count))).unwrap_err();
    assert_eq!((outside.count, outside.index, count), (5, limit as u64, expected.len() as u64));
    assert_eq!(found, expected[..limit]);
    let (mut others, mut count) = (vec![[0; 2]; limit], 0);
    let report = interpret::<append>(0..ITEMS, ((), &x, (&mut others, &mut count))).unwrap();
    assert_eq!((report.failures, report.detail, count), (5, limit as u64, expected.len() as u64));
    assert_eq!(others, found);
}

#[kernel(crate = vmarray_kernel, group = 32)]
fn some_wait(at: At<1>, out: &mut Own<u32>) {
    if at.in_group() < 5 {
        barrier();
    }
    out.set(1);
}

#[kernel(crate = vmarray_kernel, group = 32)]
fn some_vote(x: &Own<u32>, out: &mut Own<u32>) {
    let mut n = x.get();
    while n > 0 {
        n /= 2;
        out.set(lanes::sum(n));
    }
}

#[kernel(crate = vmarray_kernel)]
fn met() {
    barrier();
}

#[kernel(crate = vmarray_kernel)]
fn without_group(out: &mut Own<u32>) {
    met();
    out.set(1);
}

#[kernel(crate = vmarray_kernel, group = 32)]
fn any_mask(x: &Own<u32>, out: &mut Own<u32>) {
    out.set(lanes::shuffle_xor(x.get(), x.get()));
}

#[test]
fn items_that_miss_a_barrier_are_reported_with_its_line() {
    let error = lower::<some_wait>().unwrap_err();
    assert_eq!((error.kind(), error.line()), (ErrorKind::Divergent, line!() - 33), "{error}");
    assert!(error.to_string().contains("groups.rs"), "{error}");
    let error = lower::<some_vote>().unwrap_err();
    assert_eq!((error.kind(), error.line()), (ErrorKind::Divergent, line!() - 26), "{error}");
    let error = lower::<without_group>().unwrap_err();
    assert!(error.to_string().contains("`#[kernel(group = 64)]`"), "{error}");
    assert!(error.to_string().contains("groups.rs:") && error.line() > 0, "{error}");
    let error = lower::<any_mask>().unwrap_err();
    assert!(error.to_string().contains("constant below 32"), "{error}");
}

#[kernel(crate = vmarray_kernel, group = 96)]
fn combined(at: At<1>, parts: &Group<f32, 3>, x: &mut Own<[f32; 4]>) {
    let own = x.get()[0];
    let (least, most) = (group::min(at, parts, own), group::max(at, parts, own));
    x.set([least, most, group::sum(at, parts, own), group::scan_sum(at, parts, own)]);
}

#[test]
fn groups_combine_values_of_all_items() {
    let value = |item: usize| (item * 37 % 101) as f32 - 50.0;
    let mut x: Vec<[f32; 4]> = (0..192).map(|item| [value(item), 0.0, 0.0, 0.0]).collect();
    run_on_host::<combined>(0..192, ((), (), &mut x)).unwrap();
    for (item, found) in x.into_iter().enumerate() {
        let first = item / 96 * 96;
        let of_group = || (first..first + 96).map(value);
        let [least, most] = [f32::min, f32::max].map(|both| of_group().reduce(both).unwrap());
        // These sums are exact.
        assert_eq!(found, [least, most, of_group().sum(), (first..=item).map(value).sum()], "item {item}");
    }
}
