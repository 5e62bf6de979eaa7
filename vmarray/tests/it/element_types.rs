//! Tests of 16-bit floats and complex numbers as elements, in expressions and in kernels, compared with their
//! crates.

use std::fmt::Debug;

use vmarray::expr::{ComplexExpr, FieldType, IntoComplex, index};
use vmarray::half::{bf16, f16};
use vmarray::kernel::{Anywhere, At, Half, KernelType, Own};
use vmarray::num_complex::Complex;
use vmarray::prelude::*;

use crate::common::{Numbers, Shape};

/// A float of 16 bits, as its crate defines it.
trait Short: Element + Half + FieldType<Value = f32> + Debug {
    fn of(number: f32) -> Self;
    fn of_bits(bits: u16) -> Self;
    fn float(self) -> f32;
    fn is_same(self, other: Self) -> bool;
    fn product(a: Self, b: Self) -> Self;
}

macro_rules! short {
    ($($T:ident)*) => { $(
        impl Short for $T {
            fn of(number: f32) -> Self {
                $T::from_f32(number)
            }

            fn of_bits(bits: u16) -> Self {
                $T::from_bits(bits)
            }

            fn float(self) -> f32 {
                self.to_f32()
            }

            fn is_same(self, other: Self) -> bool {
                self.to_bits() == other.to_bits() || self.is_nan() && other.is_nan()
            }

            fn product(a: Self, b: Self) -> Self {
                -(a * b)
            }
        }
    )* };
}
short!(f16 bf16);

/// Computes with halves: once in `f32`, and once by operators that round each result.
#[vmarray::kernel]
fn combined<T: Half>(a: T, b: T, by: f32) -> (T, T) {
    let mut operated = -(a * b);
    if a < b || a == T::from_f32(1.0) {
        operated += a;
        operated = operated / b;
    }
    (T::from_f32(a.to_f32() * by + b.to_f32()), operated)
}

#[vmarray::kernel]
fn halves<T: Half + bytemuck::Pod>(
    at: At<1>,
    a: &Own<T>,
    all: &Anywhere<T>,
    table: &[T; 3],
    by: T,
    rounded: &mut Own<T>,
    operated: &mut Own<[T; 2]>,
) {
    let other = all[(at.index() * 7 + 3) % all.len()];
    let (first, second) = combined(a.get(), other, by.to_f32());
    rounded.set(first);
    let mut kept = [second; 2];
    kept[1] = table[at.index() % 3] - operated.get()[0];
    operated.set(kept);
}

fn short_floats<T: Short>() {
    let mut numbers = Numbers::new(91);
    for _ in 0..6 {
        let len = 1 + numbers.below(300);
        let shape = Shape::any(&mut numbers, 40, 4);
        let (x, all) = (Field::<T, T>::whole(), shape.build::<T>(len));
        // Test numbers with exact sums, then arbitrary bits.
        let small: Vec<T> = (0..len).map(|_| T::of((numbers.below(2001) as f32 - 1000.0) / 64.0)).collect();
        all.write(0, &small).unwrap();
        let bound = (numbers.below(2001) as f32 - 1000.0) / 64.0;
        let floats = || small.iter().map(|x| x.float());
        assert_eq!(all.count_where(.., x.lt(bound)).unwrap(), floats().filter(|x| *x < bound).count());
        assert_eq!(all.sum(.., x).unwrap(), floats().map(f64::from).sum::<f64>());
        assert_eq!(all.max(.., x).unwrap(), floats().reduce(f32::max));
        let least = floats().reduce(f32::min).map(|x| x + 0.0);
        assert_eq!(all.min(.., x).unwrap(), least);
        let found = all.find_where(.., (x + 1.0).ge(bound), len).unwrap().indices;
        assert_eq!(found, (0..len).filter(|i| small[*i].float() + 1.0 >= bound).collect::<Vec<_>>());

        let mut wild: Vec<T> = (0..len).map(|_| T::of_bits(numbers.next() as u16)).collect();
        all.write(0, &wild).unwrap();
        let odd = index().cast::<u8>() & 1;
        all.assign_where(.., odd.eq(1), x.set(x * 1.5 + bound)).unwrap();
        for wild in wild.iter_mut().skip(1).step_by(2) {
            *wild = T::of(wild.float() * 1.5 + bound);
        }
        let changed = all.to_vec(..).unwrap();
        for (changed, wild) in changed.iter().zip(&wild) {
            assert!(changed.is_same(*wild), "{changed:?}, natively {wild:?}");
        }

        let (mut rounded, mut operated) = (shape.build::<T>(len), shape.build::<[T; 2]>(len));
        let (by, table) = (T::of(bound), [T::of(0.1), T::of(-7.5), T::of(3e4)]);
        let old: Vec<[T; 2]> = (0..len).map(|_| [T::of_bits(numbers.next() as u16); 2]).collect();
        operated.write(0, &old).unwrap();
        halves::<T>::run((&all, &all, &table, by, &mut rounded, &mut operated)).unwrap();
        let (rounded, operated) = (rounded.to_vec(..).unwrap(), operated.to_vec(..).unwrap());
        for i in 0..len {
            let (a, b) = (wild[i], wild[(i * 7 + 3) % len]);
            let (first, second) = combined(a, b, by.float());
            assert!(rounded[i].is_same(first), "{a:?}, {b:?}: {:?}, natively {first:?}", rounded[i]);
            assert!(operated[i][0].is_same(second), "{a:?}, {b:?}: {:?}, natively {second:?}", operated[i]);
            let third = T::of(table[i % 3].float() - old[i][0].float());
            assert!(operated[i][1].is_same(third), "{:?}, natively {third:?}", operated[i][1]);
            assert!(a.float() < b.float() || a.float() == 1.0 || second.is_same(T::product(a, b)));
        }
    }
}

#[test]
fn halves_match_their_crate_in_expressions_and_kernels() {
    short_floats::<f16>();
}

#[test]
fn bfloats_match_their_crate_in_expressions_and_kernels() {
    short_floats::<bf16>();
}

/// A struct with fields of all these types.
#[derive(Clone, Copy, Debug, PartialEq, vmarray::bytemuck::Pod, vmarray::bytemuck::Zeroable, KernelType)]
#[bytemuck(crate = "vmarray::bytemuck")]
#[repr(C)]
struct Sample {
    z: Complex<f32>,
    weight: f16,
    bias: bf16,
}

#[vmarray::kernel]
fn weighted(sample: &mut Own<Sample>) {
    let old = sample.get();
    let z = old.z.scale(old.weight.to_f32()) + Complex::new(old.bias.to_f32(), 0.0);
    sample.set(Sample { z, weight: bf16_to_f16(old.bias), ..old });
}

#[vmarray::kernel]
fn bf16_to_f16(x: bf16) -> f16 {
    f16::from_f32(x.to_f32())
}

#[test]
fn structs_hold_halves_and_complex_numbers() {
    let sample = |i: usize| Sample {
        z: Complex::new(i as f32, -1.0),
        weight: f16::from_f32(i as f32 / 8.0),
        bias: bf16::from_f32(1.0 + i as f32),
    };
    let mut samples = Shape::default().build::<Sample>(100);
    samples.write(0, &(0..100).map(sample).collect::<Vec<_>>()).unwrap();
    weighted::run((&mut samples,)).unwrap();
    let weight = vmarray::field!(Sample, weight);
    samples.assign_where(50.., vmarray::field!(Sample, z).re().gt(0.0), weight.set(weight + 0.5)).unwrap();
    for (i, found) in samples.to_vec(..).unwrap().into_iter().enumerate() {
        let old = sample(i);
        let z = old.z.scale(old.weight.to_f32()) + Complex::new(old.bias.to_f32(), 0.0);
        let weight = old.bias.to_f32() + if i < 50 { 0.0 } else { 0.5 };
        assert_eq!(found, Sample { z, weight: f16::from_f32(weight), ..old });
    }
}

macro_rules! complex_numbers {
    ($test:ident $kernel:ident $T:ident) => {
        #[vmarray::kernel]
        fn $kernel(a: &Own<Complex<$T>>, b: &Own<Complex<$T>>, out: &mut Own<[Complex<$T>; 3]>) {
            let (a, b) = (a.get(), b.get());
            let mut z = a * b - a.conj();
            let mut turns = 0;
            while turns < 3 && z.norm_sqr() < 4.0 {
                z = z * z + Complex { re: a.re, im: -0.5 };
                turns += 1;
            }
            let mut sum = -z;
            sum += b;
            let last = if a == b || z != z { a.scale(2.0) } else { Complex::new(b.norm(), z.im) };
            out.set([z, sum / b, last]);
        }

        #[test]
        fn $test() {
            type C = Complex<$T>;
            let is_close = |a: $T, b: $T| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            let is_same = |a: C, b: C| is_close(a.re, b.re) && is_close(a.im, b.im);
            let mut numbers = Numbers::new(17);
            for _ in 0..6 {
                let len = 1 + numbers.below(200);
                let mut part = |wild: bool| match numbers.below(4) {
                    0 if wild => [0.0, -0.0, $T::MAX, $T::INFINITY, $T::NAN][numbers.below(5)],
                    _ => (numbers.below(2001) as $T - 1000.0) / 64.0,
                };
                let a: Vec<C> = (0..len).map(|_| C::new(part(false), part(false))).collect();
                let b: Vec<C> = (0..len).map(|_| C::new(part(true), part(true))).collect();
                let shape = Shape::any(&mut numbers, 40, 4);
                let rows = shape.build::<[C; 7]>(len);
                let all: Vec<[C; 7]> =
                    (0..len).map(|i| [a[i], b[i], C::ZERO, C::ZERO, C::ZERO, C::ZERO, C::ZERO]).collect();
                rows.write(0, &all).unwrap();
                let row = Field::<[C; 7], [C; 7]>::whole();
                let (x, y) = (row.nth::<0>().into_complex(), row.nth::<1>().into_complex());
                let two = C::new(2.0, -1.0);
                let quotient: ComplexExpr<_, $T> = &x / &y;
                let im = x.im.clone();
                for assignments in [
                    row.nth::<2>().set_complex(&x + &y - two),
                    row.nth::<3>().set_complex(&x * &y),
                    row.nth::<4>().set_complex(quotient),
                    row.nth::<5>().set_complex(-x.conj().scale(3.0)),
                    row.nth::<6>().set_complex(ComplexExpr { re: y.norm_sqr(), im }),
                ] {
                    rows.transform(.., assignments).unwrap();
                }
                for (i, found) in rows.to_vec(..).unwrap().into_iter().enumerate() {
                    let (x, y) = (a[i], b[i]);
                    let scaled = -x.conj().scale(3.0);
                    let expected = [x + y - two, x * y, x / y, scaled, C::new(y.norm_sqr(), x.im)];
                    for (found, expected) in found[2..].iter().zip(expected) {
                        assert!(is_same(*found, expected), "{x}, {y}: {found}, natively {expected}");
                    }
                }
                let sum: Complex<f64> =
                    a.iter().map(|z| Complex::new(f64::from(z.re), f64::from(z.im))).sum();
                assert_eq!(x.clone().sum(&rows, ..).unwrap(), sum);
                let equal = |i: &usize| a[*i] == b[*i];
                assert_eq!(rows.count_where(.., x.eq(&y)).unwrap(), (0..len).filter(equal).count());
                let differing = |i: &usize| b[*i] != b[*i];
                assert_eq!(rows.count_where(.., y.ne(&y)).unwrap(), (0..len).filter(differing).count());
                // Compare with the `hypot` of the library, because the system's may differ.
                let (longest, native) =
                    (rows.max(.., x.norm()).unwrap(), a.iter().map(|z| z.re.hypot(z.im)).reduce($T::max));
                assert!((longest.unwrap() - native.unwrap()).abs() < 1e-4);

                let (left, right, mut out) =
                    (shape.build::<C>(len), shape.build::<C>(len), shape.build::<[C; 3]>(len));
                left.write(0, &a).unwrap();
                right.write(0, &b).unwrap();
                $kernel::run((&left, &right, &mut out)).unwrap();
                let mut expected = vec![[C::ZERO; 3]; len];
                vmarray::kernel::run_on_host::<$kernel>(0..len, (&a[..], &b[..], &mut expected[..])).unwrap();
                for (i, found) in out.to_vec(..).unwrap().into_iter().enumerate() {
                    for (found, expected) in found.into_iter().zip(expected[i]) {
                        assert!(
                            is_same(found, expected),
                            "{}, {}: {found}, on the host {expected}",
                            a[i],
                            b[i]
                        );
                    }
                }
            }
        }
    };
}
complex_numbers!(complex_numbers_of_f32_are_those_of_their_crate complex_kernel_of_f32 f32);
complex_numbers!(complex_numbers_of_f64_are_those_of_their_crate complex_kernel_of_f64 f64);
