//! Tests of the arguments of launches.

use crate::harness::{ITEMS, random, same};
use vmarray_kernel::{
    Anywhere, At, Kernel, KernelType, Own, ParameterKind, Rows, interpret, kernel, lower, run_on_host,
};

#[kernel(crate = vmarray_kernel)]
fn blur<const R: usize>(at: At<1>, image: &Anywhere<f32>, weights: &[f32; 9], gain: f32, out: &mut Own<f32>) {
    let mut sum = 0.0;
    for k in 0..2 * R + 1 {
        let i = at.index() + k;
        if i < R || i - R >= image.len() {
            continue;
        }
        sum += weights[k] * image[at.plus(k as isize - R as isize).index()];
    }
    out.set(sum * gain);
}

#[test]
fn stencils_with_tables_and_scalars() {
    let image: Vec<f32> = (0..ITEMS).map(|i| ((i * 37) % 101) as f32).collect();
    let weights = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
    let (mut host, mut lowered) = (vec![0.0; ITEMS], vec![0.0; ITEMS]);
    run_on_host::<blur<4>>(0..ITEMS, ((), &image, &weights, 0.5, &mut host)).unwrap();
    let report = interpret::<blur<4>>(0..ITEMS, ((), &image, &weights, 0.5, &mut lowered)).unwrap();
    same(&host, &lowered);
    assert_eq!(report.failures, 0);
    let kinds: Vec<ParameterKind> = blur::<4>::parameters().into_iter().map(|info| info.kind).collect();
    assert!(matches!(kinds[0], ParameterKind::At(1)) && matches!(kinds[2], ParameterKind::Table(_)));
}

#[kernel(crate = vmarray_kernel)]
fn tap(image: &Anywhere<i32>, at: At<1>, by: isize) -> i32 {
    image[at.plus(by).index().min(image.len() - 1)]
}

#[kernel(crate = vmarray_kernel)]
fn add_to(out: &mut Own<i32>, value: i32) {
    out.set(out.get() + value);
}

#[kernel(crate = vmarray_kernel)]
fn difference(at: At<1>, image: &Anywhere<i32>, out: &mut Own<i32>) {
    add_to(out, tap(image, at, 1));
    add_to(out, -tap(image, at, -1));
}

#[test]
fn views_are_passed_to_functions() {
    let image: Vec<i32> = random(9, ITEMS);
    let (mut host, mut lowered) = (vec![1; ITEMS], vec![1; ITEMS]);
    run_on_host::<difference>(0..ITEMS, ((), &image, &mut host)).unwrap();
    assert_eq!(interpret::<difference>(0..ITEMS, ((), &image, &mut lowered)).unwrap().failures, 0);
    same(&host, &lowered);
    assert_eq!(host[5], 1_i32.wrapping_add(image[6]).wrapping_sub(image[4]));
}

#[kernel(crate = vmarray_kernel)]
fn mixed(limits: (u32, [i16; 3]), which: bool, a: &Own<u32>, out: &mut Own<u32>) {
    let (limit, steps) = limits;
    let mut x = a.get().min(limit);
    if which {
        x += steps[x as usize % 3] as u32;
    }
    out.set(x + out.get());
}

#[test]
fn values_of_all_kinds_are_given() {
    let input: Vec<u32> = random(2, ITEMS);
    for which in [false, true] {
        let (mut host, mut lowered) = (vec![5; ITEMS], vec![5; ITEMS]);
        let limits = (1000, [-3, 0, 7]);
        run_on_host::<mixed>(0..ITEMS, (limits, which, &input, &mut host)).unwrap();
        interpret::<mixed>(0..ITEMS, (limits, which, &input, &mut lowered)).unwrap();
        same(&host, &lowered);
    }
}

#[kernel(crate = vmarray_kernel)]
fn numbered(at: At<1>, out: &mut Own<u64>) {
    out.set(at.index() as u64 * 2);
}

#[test]
fn items_know_their_index_within_the_array() {
    let (mut host, mut lowered) = ([0; 3], [0; 3]);
    run_on_host::<numbered>(10..13, ((), &mut host)).unwrap();
    interpret::<numbered>(10..13, ((), &mut lowered)).unwrap();
    assert_eq!((host, lowered), ([20, 22, 24], [20, 22, 24]));
}

#[kernel(crate = vmarray_kernel)]
fn flags(at: At<1>, table: &[bool; 4], pairs: &[(u8, bool); 2], out: &mut Own<u8>) {
    let i = at.index();
    out.set(table[i % 5] as u8 + 2 * (pairs[i % 2].1 as u8) + 4 * pairs[i % 2].0);
}

#[test]
fn tables_of_bools_and_tuples() {
    let sources = ([true, false, true, true], [(3, true), (9, false)]);
    let (mut host, mut lowered) = ([0; 20], [0; 20]);
    let outside = run_on_host::<flags>(0..20, ((), &sources.0, &sources.1, &mut host)).unwrap_err();
    let report = interpret::<flags>(0..20, ((), &sources.0, &sources.1, &mut lowered)).unwrap();
    assert_eq!((host, outside.count), (lowered, report.failures));
    assert_eq!(lower::<flags>().unwrap().tables.len(), 3);
}

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
#[repr(C)]
struct Entry {
    value: i64,
    column: u64,
}

#[kernel(crate = vmarray_kernel)]
fn product(at: At<1>, by: i64, matrix: &Rows<Entry>, x: &Anywhere<i64>, out: &mut Own<i64>) {
    let row = at.index();
    let mut sum = matrix.len() as i64;
    for k in 0..matrix.row_len(row) {
        let entry = matrix[[row, k]];
        sum += by * entry.value * x[entry.column as usize];
    }
    out.set(sum);
}

#[test]
fn rows_are_read_by_number_and_index() {
    let (mut starts, mut entries) = (vec![0], Vec::new());
    let numbers: Vec<u64> = random(3, 4 * ITEMS);
    let (mut numbers, x) = (numbers.into_iter().cycle(), random::<i64>(4, 50));
    for row in 0..ITEMS {
        let len = if row % 7 == 0 { 0 } else { numbers.next().unwrap() % 9 };
        for _ in 0..len {
            let value = numbers.next().unwrap() as i64;
            entries.push(Entry { value, column: numbers.next().unwrap() % 50 });
        }
        starts.push(entries.len() as u64);
    }
    let natively = |row: usize| {
        let terms = entries[starts[row] as usize..starts[row + 1] as usize].iter();
        let product = |entry: &Entry| entry.value.wrapping_mul(3).wrapping_mul(x[entry.column as usize]);
        terms.map(product).fold(ITEMS as i64, i64::wrapping_add)
    };
    let truth: Vec<i64> = (0..ITEMS).map(natively).collect();
    let (mut host, mut lowered) = (vec![1; ITEMS], vec![1; ITEMS]);
    run_on_host::<product>(0..ITEMS, ((), 3, (&starts, &entries), &x, &mut host)).unwrap();
    let report = interpret::<product>(0..ITEMS, ((), 3, (&starts, &entries), &x, &mut lowered)).unwrap();
    assert_eq!(report.failures, 0);
    same(&host, &truth);
    same(&lowered, &truth);
    let kinds: Vec<ParameterKind> = product::parameters().into_iter().map(|info| info.kind).collect();
    assert!(matches!(kinds[2..4], [ParameterKind::Anywhere(_, 1), ParameterKind::Rows(_)]));
}

#[kernel(crate = vmarray_kernel)]
fn picked(row: usize, index: usize, rows: &Rows<u16>, out: &mut Own<u16>) {
    out.set(rows[[row, index]] + rows.row_len(row) as u16);
}

#[test]
fn rows_have_no_more_than_their_own_elements() {
    let starts = [0, 2, 2, 5, 4, 9];
    let elements = [1, 2, 3, 4, 5];
    // Each case has the row, the index, and the reported element of an access out of bounds. Row 3 ends
    // before its start. Row 4 extends beyond the last element.
    let outside = [
        (0, 2, 2),
        (1, 0, 0),
        (1, usize::MAX, usize::MAX),
        (3, 0, 0),
        (4, 1, 5),
        (4, 4, 8),
        (5, 0, 5),
        (7, 1, 7),
        (usize::MAX, 0, usize::MAX),
    ];
    for (row, index, expected) in outside {
        let (mut host, mut lowered) = ([9], [9]);
        let error = run_on_host::<picked>(0..1, (row, index, (&starts, &elements), &mut host)).unwrap_err();
        let report = interpret::<picked>(0..1, (row, index, (&starts, &elements), &mut lowered)).unwrap();
        assert_eq!((error.index, report.detail), (expected as u64, expected as u64), "[{row}, {index}]");
        assert_eq!((report.failures, host), (1, lowered), "[{row}, {index}]");
    }
    for (row, index, expected) in [(0, 1, 2 + 2), (2, 2, 5 + 3), (4, 0, 5 + 5)] {
        let mut out = [0];
        run_on_host::<picked>(0..1, (row, index, (&starts, &elements), &mut out)).unwrap();
        assert_eq!(out, [expected]);
    }
}
