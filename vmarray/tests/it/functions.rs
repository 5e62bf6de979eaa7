//! Tests of functions in expressions, compared with native calls of the same functions.

use vmarray::expr::{Expr, index};
use vmarray::kernel::Float;
use vmarray::prelude::*;
use vmarray::{ErrorKind, Field};

use crate::common::{Numbers, Shape};

/// Rust's functions under the names of kernels.
mod native {
    use super::Float;

    macro_rules! functions {
        ($($name:ident)*; $($pair:ident)*) => {
            $(
                #[vmarray::kernel]
                pub fn $name<T: Float>(x: T) -> T {
                    x.$name()
                }
            )*
            $(
                #[vmarray::kernel]
                pub fn $pair<T: Float>(x: T, y: T) -> T {
                    x.$pair(y)
                }
            )*
        };
    }
    functions! {
        sqrt floor ceil trunc round_ties_even fract recip round signum rsqrt cbrt exp exp2 exp_m1 ln ln_1p log2
        log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh;
        powf atan2 hypot copysign
    }

    #[vmarray::kernel]
    pub fn mul_add<T: Float>(x: T, y: T) -> T {
        x.mul_add(y, x)
    }

    #[vmarray::kernel]
    pub fn powi<T: Float>(x: T, y: T) -> T {
        x.powi(y as i32)
    }
}

/// Tests all functions on a type of floats.
macro_rules! all_functions {
    ($test:ident $T:ident) => {
        #[test]
        fn $test() {
            const LEN: usize = 800;
            // Each row has two arguments, then the results.
            type Row = [$T; 8];
            type Function = (&'static str, Expr<Row, $T>, fn($T, $T) -> $T);
            let row = Field::<Row, Row>::whole();
            let (x, y) = (row.nth::<0>(), row.nth::<1>());
            macro_rules! one {
                ($name:ident) => {
                    (stringify!($name), x.$name(), (|x, _| native::$name::<$T>(x)) as fn($T, $T) -> $T)
                };
            }
            macro_rules! two {
                ($name:ident) => {
                    (stringify!($name), x.$name(y), native::$name::<$T> as fn($T, $T) -> $T)
                };
            }
            let functions: Vec<Function> = vec![
                one!(sqrt),
                one!(floor),
                one!(ceil),
                one!(trunc),
                one!(round_ties_even),
                one!(fract),
                one!(recip),
                one!(round),
                one!(signum),
                one!(rsqrt),
                one!(cbrt),
                one!(exp),
                one!(exp2),
                one!(exp_m1),
                one!(ln),
                one!(ln_1p),
                one!(log2),
                one!(log10),
                one!(sin),
                one!(cos),
                one!(tan),
                one!(asin),
                one!(acos),
                one!(atan),
                one!(sinh),
                one!(cosh),
                one!(tanh),
                one!(asinh),
                one!(acosh),
                one!(atanh),
                two!(powf),
                two!(atan2),
                two!(hypot),
                two!(copysign),
                ("mul_add", x.mul_add(y, x), native::mul_add::<$T>),
                ("powi", x.powi(y.cast::<i32>()), native::powi::<$T>),
            ];
            let mut numbers = Numbers::new(7);
            let edges =
                [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 1e-30, -1e30, $T::MAX, $T::MIN_POSITIVE / 4.0, $T::INFINITY];
            let mut number = |at: usize| match at % 4 {
                0 => edges[numbers.below(edges.len())],
                1 => $T::from_bits((numbers.next() << 17 ^ numbers.next()) as _),
                2 => (numbers.below(20_000) as $T - 1e4) / 1e4,
                _ => (numbers.below(20_000) as $T - 1e4) / 64.0,
            };
            let rows: Vec<Row> =
                (0..LEN).map(|at| [number(at), number(at / 4), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).collect();
            let array =
                Shape { page_len: 33, channels: vec![2, 1], frames: 4, ..Shape::default() }.build::<Row>(LEN);
            array.write(0, &rows).unwrap();
            for some in functions.chunks(6) {
                let results = [
                    row.nth::<2>(),
                    row.nth::<3>(),
                    row.nth::<4>(),
                    row.nth::<5>(),
                    row.nth::<6>(),
                    row.nth::<7>(),
                ];
                let assignments: Vec<_> =
                    results.iter().zip(some).map(|(result, (_, expr, _))| result.set(expr)).collect();
                array.transform(.., assignments).unwrap();
                for (found, [x, y, ..]) in array.to_vec(..).unwrap().into_iter().zip(&rows) {
                    for (found, (name, _, native)) in found[2..].iter().zip(some) {
                        let expected = native(*x, *y);
                        let same =
                            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                        assert!(same, "{name} of {x:e}, {y:e}: {found:e}, natively {expected:e}");
                    }
                }
            }
        }
    };
}
all_functions!(functions_of_f32_are_those_of_the_host f32);
all_functions!(functions_of_f64_are_those_of_the_host f64);

#[vmarray::kernel]
fn approximate(x: f32, which: u32) -> f32 {
    match which {
        0 => x.approx_exp2(),
        1 => x.approx_log2(),
        2 => x.approx_sin(),
        3 => x.approx_cos(),
        _ => x.approx_rsqrt(),
    }
}

#[test]
fn approximate_functions_are_as_close_as_they_say() {
    const LEN: usize = 2000;
    // Each row has an argument, then the results of the expressions and of a function.
    type Row = [f32; 11];
    let row = Field::<Row, Row>::whole();
    let x = row.nth::<0>();
    let of = |which| approximate::of((x, which));
    let mut numbers = Numbers::new(9);
    let mut rows: Vec<Row> = vec![[0.0; 11]; LEN];
    rows.iter_mut().for_each(|row| row[0] = (numbers.below(1 << 20) as f32 + 1.0) / (1 << 20) as f32 * 3.1);
    let array = Shape::one(333, 3).build::<Row>(LEN);
    array.write(0, &rows).unwrap();
    let expressions = [
        row.nth::<1>().set(x.approx_exp2()),
        row.nth::<2>().set(x.approx_log2()),
        row.nth::<3>().set(x.approx_sin()),
        row.nth::<4>().set(x.approx_cos()),
        row.nth::<5>().set(x.approx_rsqrt()),
    ];
    array.transform(.., expressions).unwrap();
    let functions = [
        row.nth::<6>().set(of(0)),
        row.nth::<7>().set(of(1)),
        row.nth::<8>().set(of(2)),
        row.nth::<9>().set(of(3)),
        row.nth::<10>().set(of(4)),
    ];
    array.transform(.., functions).unwrap();
    for [x, results @ ..] in array.to_vec(..).unwrap() {
        let exact = f64::from(x);
        let exact = [exact.exp2(), exact.log2(), exact.sin(), exact.cos(), exact.sqrt().recip()];
        // Units in the last place are relative errors of at most 2^-23; the bound also has an absolute part.
        let near =
            [0.0, -21.0, -20.0, -20.0, 0.0].map(|power: f64| if power == 0.0 { 0.0 } else { power.exp2() });
        let ulps = [3.0, 3.0, 0.0, 0.0, 2.0];
        for (number, found) in results.into_iter().enumerate() {
            let exact = exact[number % 5];
            let most = exact.abs() * ulps[number % 5] * (-23_f64).exp2() + near[number % 5];
            let error = (f64::from(found) - exact).abs();
            assert!(error <= most, "function {} of {x}: {found}, {exact} less or more {most}", number % 5);
        }
    }
}

const WEIGHTS: [i64; 5] = [3, -1, 4, -1, 5];

/// Arguments of several types, a table, an array, a loop with two ends, and an early return.
#[vmarray::kernel]
fn score(small: u8, wide: i64, factor: f32, flag: bool) -> i64 {
    if flag && small > 200 {
        return -7;
    }
    let mut seen = [0_i64; 4];
    let mut sum = wide;
    for k in 0..small as usize {
        if sum > 1_000_000 {
            break;
        }
        // The index is sometimes out of bounds; such a store writes nothing.
        seen[k % 5] = sum;
        sum += WEIGHTS[k % 6] * seen[(k + 3) % 4] + (factor * k as f32) as i64;
    }
    sum
}

#[vmarray::kernel]
fn is_odd(x: i64) -> bool {
    x % 2 != 0
}

#[vmarray::kernel]
fn scaled<const BY: i64>(x: i64) -> i64 {
    x * BY
}

/// A number, and its [`score`] at an index.
fn natively(numbers: &[i64], first: usize) -> Vec<i64> {
    let of = |(at, wide): (usize, &i64)| score(*wide as u8, *wide, at as f32 / 4.0, at % 3 == 0);
    numbers.iter().enumerate().map(|(at, wide)| of((at - first.min(at), wide))).collect()
}

fn scored() -> Expr<i64, i64> {
    let wide = Field::<i64, i64>::whole();
    score::of((wide.cast::<u8>(), wide, index().cast::<f32>() / 4.0, (index() % 3).eq(0)))
}

#[test]
fn every_operation_takes_functions_of_the_program() {
    const LEN: usize = 700;
    let mut random = Numbers::new(3);
    let numbers: Vec<i64> = (0..LEN).map(|_| random.next() as i64 >> random.below(60)).collect();
    let array = Shape { page_len: 32, channels: vec![1, 2], ..Shape::default() }.build::<i64>(LEN);
    array.write(0, &numbers).unwrap();
    let truth = natively(&numbers, 0);
    let odd: Vec<usize> = (0..LEN).filter(|at| is_odd(truth[*at])).collect();
    assert!(odd.len() > 50 && odd.len() < LEN - 50);

    assert_eq!(array.find_where(.., is_odd::of(scored()), LEN).unwrap().indices, odd);
    assert_eq!(array.count_where(.., is_odd::of(scored())).unwrap(), odd.len());
    assert_eq!(array.sum(.., scored()).unwrap(), truth.iter().map(|one| i128::from(*one)).sum::<i128>());
    let odd_ones = odd.iter().map(|at| truth[*at]);
    let filtered = scored().only_where(is_odd::of(scored()));
    assert_eq!(array.min_max(.., filtered).unwrap(), odd_ones.clone().min().zip(odd_ones.max()));
    let bins = array.histogram(.., scored().cast::<u32>() % 16, 16).unwrap();
    assert!(
        (0..16)
            .all(|bin| bins[bin]
                == truth.iter().filter(|one| **one as u32 as usize % 16 == bin).count() as u64)
    );
    let selected = array.select_where(.., is_odd::of(scored())).unwrap().map(|found| found.unwrap());
    assert!(selected.eq(odd.iter().map(|at| (*at, numbers[*at]))));
    // Test programs that differ only in a constant of a function.
    let whole = Field::<i64, i64>::whole();
    let [twice, thrice] = [scaled::<2>::of(whole), scaled::<3>::of(whole)];
    assert_eq!(array.count_where(.., (thrice - twice).ne(whole)).unwrap(), 0);

    // Sections count from their own first element.
    let rest = natively(&numbers[100..], 0);
    let section = array.section(100..).unwrap();
    assert_eq!(section.max(.., scored()).unwrap(), rest.iter().copied().max());
    array.assign_where(.., is_odd::of(whole), whole.set(scored())).unwrap();
    let expected: Vec<i64> =
        numbers.iter().zip(&truth).map(|(old, new)| if is_odd(*old) { *new } else { *old }).collect();
    assert_eq!(array.to_vec(..).unwrap(), expected);
    let source = Source::builder(numbers.clone()).devices(crate::common::devices(1)).build().unwrap();
    assert_eq!(source.find_where(.., is_odd::of(scored()), LEN).unwrap().indices, odd);
    // Test the same with elements of two arrays.
    let joined = array.join((&source,)).unwrap();
    let (x, y) = joined.rows();
    let both = score::of((3, x.get(whole), 0.5, is_odd::of(y.get(whole))));
    let natively = expected.iter().zip(&numbers).map(|(x, y)| i128::from(score(3, *x, 0.5, is_odd(*y))));
    assert_eq!(joined.sum(.., both).unwrap(), natively.sum());
}

#[vmarray::kernel]
fn recursive(x: i64) -> i64 {
    if x == 0 { 0 } else { recursive(x - 1) }
}

#[vmarray::kernel]
fn taking(x: i64) -> i64 {
    let memory = alloc::<i64>(4);
    memory.set(1, x);
    memory[1]
}

#[test]
fn functions_that_cannot_be_lowered_are_named_by_the_operation() {
    let array = Shape::default().build::<i64>(10);
    let whole = Field::<i64, i64>::whole();
    for (name, expr) in [("recursive", recursive::of(whole)), ("taking", taking::of(whole))] {
        let refused = |result: vmarray::Result<()>| match result.unwrap_err().kind() {
            ErrorKind::KernelRefused { kernel, .. } => assert_eq!(kernel, name),
            other => panic!("{other:?}"),
        };
        let larger = (whole + expr.clone() * 2).gt(1);
        refused(array.count_where(.., larger.clone()).map(drop));
        refused(array.section(2..).unwrap().sum(.., expr.clone() + index().cast::<i64>()).map(drop));
        refused(array.transform(.., whole.set(larger.select(expr.clone(), 5))));
    }
}
