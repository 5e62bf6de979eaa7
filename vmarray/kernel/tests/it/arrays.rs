//! Tests of local arrays, tuples and tables in kernels.

use crate::harness::{ITEMS, both, random, same};
use vmarray_kernel::{At, Own, interpret, kernel, run_on_host};

const PRIMES: [u32; 6] = [2, 3, 5, 7, 11, 13];
const PAIRS: [(u8, f32); 3] = [(1, 0.5), (2, 0.25), (3, 0.125)];

#[test]
fn arrays_are_indexed_by_constants_and_values() {
    both!(|x: u32| -> [u32; 4] {
        let mut a = [0; 10];
        for i in 0..10 {
            a[i] = x + i as u32;
        }
        let i = x as usize % 12;
        a[i] += 5;
        let b = a;
        a[3] = 1;
        let mut c = [[0_u32; 3]; 4];
        c[i % 4][i % 3] = 7;
        c[1] = [1, 2, x];
        let row = c[i % 5];
        [a[i], b[3], row[2], c[i][i % 3] + c[i % 4][i]]
    });
}

#[test]
fn only_constant_indices_leave_no_array() {
    both!(|x: u16| -> [u16; 3] {
        let mut a = [x, 1, 2];
        for i in 0..3 {
            a[i] = a[(i + 1) % 3] * 2;
        }
        let t = (a, a[0]);
        a = [t.1, a[1], t.0[2]];
        let first = a[0];
        a[0] = a[1];
        a[1] = first;
        let (mut b, mut c) = (a[2], a[0]);
        (b, c) = (c, b);
        a[2] = b - c;
        a
    });
}

#[test]
fn long_arrays_are_filled_and_copied_by_loops() {
    both!(|x: u64| -> u64 {
        let mut a = [x; 100];
        a[(x % 100) as usize] = 1;
        let b = a;
        a = [3; 100];
        let c = if x % 2 == 0 { a } else { b };
        let mut sum = 0;
        for i in 0..100 {
            sum += c[i] ^ a[i] ^ i as u64;
        }
        sum
    });
}

#[test]
fn tuples_are_taken_apart() {
    both!(|x: i32| -> i32 {
        let ((mut a, b), c) = ((x, x + 1), (x * 2, true));
        a += b;
        let mut t = (a, (b, 3_u8));
        t.1.1 += 1;
        t.0 = t.1.0;
        (t.0, a) = (a, t.0);
        let (d, _) = c;
        t.0 + a + d + t.1.1 as i32 + c.1 as i32
    });
}

#[test]
fn constant_arrays_are_tables() {
    both!(|x: usize| -> [u32; 3] {
        let p = PAIRS[x % 4];
        [PRIMES[x % 7], PRIMES[2], p.0 as u32 + (p.1 * 8.0) as u32]
    });
}

#[kernel(crate = vmarray_kernel)]
fn median(at: At<1>, x: &Own<[f32; 9]>, order: &[u16; 9], out: &mut Own<f32>) {
    let mut window = [0.0; 9];
    let values = x.get();
    for i in 0..9 {
        window[order[i] as usize] = values[(i + at.index()) % 9];
    }
    sort(&mut window);
    out.set(window[4]);
}

#[kernel(crate = vmarray_kernel)]
fn sort(values: &mut [f32; 9]) {
    for i in 1..9 {
        let value = values[i];
        let mut j = i;
        while j > 0 && values[j - 1] > value {
            values[j] = values[j - 1];
            j -= 1;
        }
        values[j] = value;
    }
}

#[test]
fn arrays_are_sorted_in_place_by_a_function() {
    let input: Vec<[f32; 9]> = random(1, ITEMS);
    let order = [3, 1, 4, 0, 5, 2, 6, 8, 7];
    let (mut host, mut lowered) = (vec![0.0; ITEMS], vec![0.0; ITEMS]);
    run_on_host::<median>(0..ITEMS, ((), &input, &order, &mut host)).unwrap();
    assert_eq!(interpret::<median>(0..ITEMS, ((), &input, &order, &mut lowered)).unwrap().failures, 0);
    same(&host, &lowered);
}
