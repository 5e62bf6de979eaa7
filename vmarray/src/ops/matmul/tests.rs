//! Products compared with plain loops, in RAM and by the kernel.

use std::sync::Arc;

use backend_api::kernel::Space;
use backend_api::wrap::{Fault, Operation, SplitMix64};
use backend_api::{BufferHandle, DeviceKind, Elements, ErrorKind as DeviceErrorKind, LaunchView};
use vmarray_conformance::wrap::Faulty;

use super::tiles::TileSizes;
use super::{MatMul as _, MatMulElement, MatMulRoute, Matrix};
use crate::base::error::ErrorKind;
use crate::ops::sort::InterpretedGpu;
use crate::prelude::*;

/// Multiplies by the definition.
fn expected<T: Copy>([m, k, n]: [usize; 3], a: &[T], b: &[T], zero: T, add: impl Fn(T, T, T) -> T) -> Vec<T> {
    let sum = |at: usize| {
        let (row, column) = (at / n, at % n);
        (0..k).fold(zero, |sum, step| add(sum, a[row * k + step], b[step * n + column]))
    };
    (0..m * n).map(sum).collect()
}

fn transposed<T: Copy>(of: &[T], rows: usize, columns: usize) -> Vec<T> {
    (0..rows * columns).map(|at| of[at % rows * columns + at / rows]).collect()
}

/// Compares products of random extents, layouts and orders with the definition.
fn check<T: MatMulElement + PartialEq + std::fmt::Debug>(
    random: &mut SplitMix64,
    number: impl Fn(u64) -> T,
    add: impl Fn(T, T, T) -> T,
) {
    let zero: T = bytemuck::Zeroable::zeroed();
    for round in 0..12 {
        let [m, k, n] = [0; 3].map(|_| [1, 2, 1 + random.index(90), random.index(40)][random.index(4)]);
        let (a, b): (Vec<T>, Vec<T>) = (
            (0..m * k).map(|_| number(random.next())).collect(),
            (0..k * n).map(|_| number(random.next())).collect(),
        );
        let expected = expected([m, k, n], &a, &b, zero, &add);
        // A box of a larger array, in rows or in tiles, larger than its cache; a matrix stored by columns.
        let large =
            NdArray::<T, 2>::builder([m + 2, k + 3]).elements(|elements| elements.cache_bytes(1 << 10));
        let large = if round % 2 == 0 { large.tile([4, 7]) } else { large }.build().unwrap();
        large.write_box([1, 2]..[m + 1, k + 2], &a).unwrap();
        let by_columns = VirtualArray::<T>::new((k * n).max(1)).unwrap();
        by_columns.write(0, &transposed(&b, k, n)).unwrap();
        let product = NdArray::<T, 2>::builder([m, n]);
        let product = if round % 3 == 0 { product.tile([5, 3]) } else { product }.build().unwrap();
        let b = Matrix::strided(&by_columns, [n, k], 0, [k as isize, 1]).unwrap().transposed();
        product.assign_matmul(large.section([1, 2]..[m + 1, k + 2]).unwrap(), b).unwrap();
        assert_eq!(product.to_vec(..).unwrap(), expected, "{m} x {k} x {n}");
    }
}

#[test]
fn products_in_ram_equal_the_definition() {
    let mut random = SplitMix64::new(41);
    check(&mut random, |bits| bits as u8, |sum: u8, x, y| sum.wrapping_add(x.wrapping_mul(y)));
    check(&mut random, |bits| bits as i16, |sum: i16, x, y| sum.wrapping_add(x.wrapping_mul(y)));
    check(&mut random, |bits| bits, |sum: u64, x, y| sum.wrapping_add(x.wrapping_mul(y)));
    check(&mut random, |bits| (bits % 9) as f32 - 4.0, |sum, x, y| sum + x * y);
    check(&mut random, |bits| (bits % 9) as f64 - 4.0, |sum, x, y| sum + x * y);
    #[cfg(feature = "num-complex")]
    check(
        &mut random,
        |bits| num_complex::Complex::new((bits % 9) as f64 - 4.0, (bits >> 32) as u8 as f64),
        |sum, x, y| sum + x * y,
    );
    #[cfg(feature = "half")]
    check(
        &mut random,
        |bits| half::f16::from_f32((bits % 3) as f32 - 1.0),
        |sum, x, y| half::f16::from_f32(sum.to_f32() + x.to_f32() * y.to_f32()),
    );
}

#[test]
fn empty_products_are_zero() {
    for [m, k, n] in [[0, 3, 2], [3, 0, 2], [3, 2, 0], [0, 0, 0]] {
        let new = |rows, columns| NdArray::<f32, 2>::new([rows, columns]).unwrap();
        let product = new(m, n);
        product.fill(.., 7.0).unwrap();
        product.assign_matmul(&new(m, k), &new(k, n)).unwrap();
        assert!(product.to_vec(..).unwrap().iter().all(|sum| *sum == 0.0));
    }
}

#[test]
fn strided_matrices_have_any_strides() {
    let array = VirtualArray::<i32>::new(100).unwrap();
    array.write(0, &(0..100).collect::<Vec<_>>()).unwrap();
    let product = NdArray::<i32, 2>::new([3, 2]).unwrap();
    let at = |start: isize, strides: [isize; 2], row: usize, column: usize| {
        (start + row as isize * strides[0] + column as isize * strides[1]) as i32
    };
    for (first, a) in [(50, [-7, 3]), (0, [0, 0]), (99, [-1, -20]), (4, [1, 30]), (9, [30, 1])] {
        for (second, b) in [(10, [2, 3]), (0, [1, 5]), (20, [5, 1]), (99, [-1, -3])] {
            let (x, y) = (
                Matrix::strided(&array, [3, 4], first, a).unwrap(),
                Matrix::strided(array.section(..).unwrap(), [4, 2], second, b).unwrap(),
            );
            product.assign_matmul(x, y).unwrap();
            for row in 0..3 {
                for column in 0..2 {
                    let products =
                        (0..4).map(|k| at(first as isize, a, row, k) * at(second as isize, b, k, column));
                    assert_eq!(product.get([row, column]).unwrap(), products.sum(), "{a:?} {b:?}");
                }
            }
        }
    }
    assert!(Matrix::strided(&array, [3, 4], 0, [-1, 1]).is_err());
    assert!(Matrix::strided(&array, [3, 4], 97, [1, 1]).is_err());
    assert!(Matrix::strided(&array, [0, 4], 500, [-1, 1]).is_ok());
}

#[test]
fn nans_and_infinities_stay_in_their_rows_and_columns() {
    let (a, b) = (NdArray::<f64, 2>::new([70, 50]).unwrap(), NdArray::<f64, 2>::new([50, 60]).unwrap());
    a.fill(.., 1.0).unwrap();
    b.fill(.., 2.0).unwrap();
    a.set([3, 40], f64::INFINITY).unwrap();
    b.set([7, 59], f64::NAN).unwrap();
    let product = NdArray::<f64, 2>::new([70, 60]).unwrap();
    product.assign_matmul(&a, &b).unwrap();
    for (at, found) in product.to_vec(..).unwrap().into_iter().enumerate() {
        match (at / 60, at % 60) {
            (_, 59) => assert!(found.is_nan()),
            (3, _) => assert_eq!(found, f64::INFINITY),
            _ => assert_eq!(found, 100.0),
        }
    }
}

#[test]
fn invalid_products_are_refused() {
    let (a, b) = (NdArray::<f32, 2>::new([4, 5]).unwrap(), NdArray::<f32, 2>::new([5, 4]).unwrap());
    let error = a.assign_matmul(&a, &b).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelShape { .. }), "{error}");
    let square = NdArray::<f32, 2>::new([5, 5]).unwrap();
    let error = square.assign_matmul(&square, &square).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelOverlap { .. }), "{error}");
    // Other rows of the same array.
    let rows = |range: std::ops::Range<usize>| [range.start, 0]..[range.end, 5];
    square.fill(rows(0..2), 1.0).unwrap();
    b.fill(.., 1.0).unwrap();
    let other = NdArray::<f32, 2>::new([5, 5]).unwrap();
    other.fill(.., 2.0).unwrap();
    let target = square.section_mut(rows(3..5)).unwrap();
    target.assign_matmul(square.section(rows(0..2)).unwrap(), &other).unwrap();
    assert_eq!(target.to_vec(..).unwrap(), [10.0; 10]);
}

#[test]
fn tiles_fit_and_read_the_fewest_elements() {
    for extents in
        [[1, 1, 1], [7, 9000, 3], [9000, 7, 4000], [300, 300, 300], [100_000, 1, 5], [1, 100_000, 70]]
    {
        let [m, n, k] = extents;
        let TileSizes { rows, columns, depth } = TileSizes::of(extents, 8);
        assert!(rows * columns <= 512 && rows.max(columns) * depth <= 256, "{extents:?}");
        let read = |rows: usize, columns: usize| m * k * n.div_ceil(columns) + n * k * m.div_ceil(rows);
        let side = 256 / k.min(8);
        let least =
            (1..=n.min(side)).map(|columns| read((512 / columns).min(side).clamp(1, m), columns)).min();
        assert!(Some(read(rows, columns)) <= least.map(|least| least + least / 20), "{extents:?}");
    }
}

#[test]
fn a_gpu_multiplies_in_place() {
    let mut random = SplitMix64::new(42);
    let device = Arc::new(InterpretedGpu::of(DeviceKind::DiscreteGpu));
    for (number, [m, k, n]) in [[3, 5, 4], [130, 9, 140], [1, 17, 1], [129, 1, 3]].into_iter().enumerate() {
        let new = |shape: [usize; 2]| {
            let builder = NdArray::<f64, 2>::builder(shape).devices([Arc::clone(&device)]);
            builder.elements(|elements| elements.page_len(64)).build().unwrap()
        };
        let mut items = |count: usize| (0..count).map(|_| random.index(9) as f64 - 4.0).collect::<Vec<_>>();
        let (of_a, of_b) = (items(m * k), items(k * n));
        let product = new([m, n]);
        let found = if number % 2 == 0 {
            let (a, b) = (new([m, k]), new([k, n]));
            a.write_box(.., &of_a).unwrap();
            b.write_box(.., &of_b).unwrap();
            super::on_device::multiply(&product, &Matrix::from(&a), &Matrix::from(&b)).unwrap()
        } else {
            let (a, b) = (new([k, m]), new([n, k]));
            a.write_box(.., &transposed(&of_a, m, k)).unwrap();
            b.write_box(.., &transposed(&of_b, k, n)).unwrap();
            let [a, b] = [Matrix::from(&a), Matrix::from(&b)].map(Matrix::transposed);
            super::on_device::multiply(&product, &a, &b).unwrap()
        };
        assert!(found, "the kernel runs");
        assert_eq!(product.explain_matmul(&new([m, k]), &new([k, n])).unwrap(), MatMulRoute::Kernel);
        let expected = expected([m, k, n], &of_a, &of_b, 0.0, |sum, x, y| sum + x * y);
        assert_eq!(product.to_vec(..).unwrap(), expected, "{m} x {k} x {n}");
    }
}

#[test]
fn a_library_finds_the_numbers_of_a_product() {
    for (bytes, along) in [4, 8].iter().flat_map(|bytes| (0..4).map(move |along| (*bytes, along))) {
        let kernel = super::on_device::kernel_of(bytes, [along & 1 != 0, along & 2 != 0]);
        let values: Vec<u64> = (100..109).collect();
        let memory = BufferHandle::unique();
        let none = Elements { start: memory.at(0), count: 0, stride: 4 };
        let params = kernel.params(&values, &[LaunchView::Run(none); 3], 256);
        let product = kernel.kernel().code().and_then(|code| code.product()).expect("a product");
        let values = |numbers: [u16; 3]| numbers.map(|number| params[usize::from(number)]);
        assert_eq!(values(product.extents), [100, 101, 102]);
        assert_eq!(product.factors.map(values), [[103, 104, 105], [106, 107, 108]]);
    }
}

#[test]
fn the_sums_of_an_item_are_in_registers() {
    for bytes in [4, 8] {
        let body = super::on_device::kernel_of(bytes, [true, false]).kernel().body();
        assert!(body.arrays.iter().all(|array| array.space == Space::Group), "{:?}", body.arrays);
    }
}

#[test]
fn a_lost_device_is_reported() {
    let device = Arc::new(Faulty::new(InterpretedGpu::of(DeviceKind::Cpu)));
    let new = || {
        let builder = NdArray::<f32, 2>::builder([64, 64]).devices([Arc::clone(&device)]);
        builder.elements(|elements| elements.page_len(64).cache_bytes(1024)).build().unwrap()
    };
    let (a, b, product) = (new(), new(), new());
    a.fill(.., 1.0).unwrap();
    b.fill(.., 1.0).unwrap();
    a.flush(..).unwrap();
    b.flush(..).unwrap();
    device.inject(Fault::new(Operation::Submit, DeviceErrorKind::CopyFailed).on_call(3));
    let error = product.assign_matmul(&a, &b).unwrap_err();
    assert!(error.device_error().is_some_and(|error| error.kind() == DeviceErrorKind::CopyFailed), "{error}");
}
