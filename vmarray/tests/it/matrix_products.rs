//! Products of `f32` and `f64` that a GPU may compute by cuBLAS, compared with sums in `f64`.
//!
//! On a GPU: `VMARRAY_TEST_DEVICES=cuda VMARRAY_REQUIRE_CUBLAS=1 cargo nextest run -p vmarray-tests
//! --all-features matrix_products`; the products by kernels with `VMARRAY_CUBLAS=off` as the second variable.

use vmarray::matrix::{MatMul, MatMulElement, MatMulRoute, Matrix};
use vmarray::prelude::*;
use vmarray::{ErrorKind, Result};

use crate::common::{Numbers, devices};

/// Rows, columns and depth. A product with fewer multiplications is not computed by cuBLAS.
const EXTENTS: [usize; 3] = [160, 96, 144];

/// An array on the first device, with pages that do not end with rows.
fn array<T: Element>(shape: [usize; 2]) -> NdArray<T, 2> {
    let builder = NdArray::<T, 2>::builder(shape).devices(devices(1));
    builder.elements(|elements| elements.page_len(1 << 12)).build().expect("the device has room")
}

/// An array with random numbers of full precision between -1 and 1.
fn random<T: Element>(random: &mut Numbers, shape: [usize; 2], of: fn(f64) -> T) -> (NdArray<T, 2>, Vec<T>) {
    let number = |_| of(random.below(1 << 30) as f64 / f64::from(1 << 29) - 1.0);
    let items: Vec<T> = (0..shape[0] * shape[1]).map(number).collect();
    let array = array(shape);
    array.write_box(.., &items).unwrap();
    (array, items)
}

/// Checks a product against sums in `f64`. The function returns elements of the factors.
fn check<'a, T: MatMulElement + Into<f64>>(
    product: impl MatMul<'a, Element = T>,
    (a, b): (Matrix<'_, T>, Matrix<'_, T>),
    element: impl Fn(usize, [usize; 2]) -> T,
    found: impl Fn() -> Vec<T>,
) -> MatMulRoute {
    let ([rows, depth], columns) = (a.extents(), b.extents()[1]);
    let route = product.explain_matmul(a.clone(), b.clone()).unwrap();
    product.assign_matmul(a, b).unwrap();
    // Sums in TF32, with 10 bits of precision, differ by more.
    let most = if size_of::<T>() == 4 { 1e-4 } else { 1e-12 };
    for (at, found) in found().into_iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let sum = |k: usize| -> f64 { element(0, [row, k]).into() * element(1, [k, column]).into() };
        let (expected, found): (f64, f64) = ((0..depth).map(sum).sum(), found.into());
        assert!((found - expected).abs() < most, "{row}, {column} of {rows} rows: {found}, not {expected}");
    }
    route
}

fn view<T: Element>(matrix: Matrix<'_, T>, is_turned: bool) -> Matrix<'_, T> {
    if is_turned { matrix.transposed() } else { matrix }
}

fn check_all<T: MatMulElement + Into<f64> + Copy>(of: fn(f64) -> T) -> Vec<MatMulRoute> {
    let (mut numbers, [rows, columns, depth]) = (Numbers::new(of(1.0).into() as u64), EXTENTS);
    let mut routes = Vec::new();
    // Plain factors, transposed factors, and boxes, whose lines are not neighbours.
    for [a_is_turned, b_is_turned] in [[false, false], [true, false], [false, true], [true, true]] {
        let turned = |[rows, columns]: [usize; 2], is_turned| {
            if is_turned { [columns, rows] } else { [rows, columns] }
        };
        let of_a = turned([rows, depth], a_is_turned);
        let of_b = turned([depth, columns], b_is_turned);
        let (a, a_items) = random(&mut numbers, [of_a[0] + 2, of_a[1] + 3], of);
        let (b, b_items) = random(&mut numbers, of_b, of);
        let boxed = a.section([1, 2]..[of_a[0] + 1, of_a[1] + 2]).unwrap();
        let factors = (view(Matrix::from(boxed), a_is_turned), view(Matrix::from(&b), b_is_turned));
        let element = |factor: usize, at: [usize; 2]| {
            let at = turned(at, [a_is_turned, b_is_turned][factor]);
            if factor == 0 {
                a_items[(at[0] + 1) * (of_a[1] + 3) + at[1] + 2]
            } else {
                b_items[at[0] * of_b[1] + at[1]]
            }
        };
        let product = array::<T>([rows, columns]);
        routes.push(check(&product, factors.clone(), element, || product.to_vec(..).unwrap()));
        // Some rows of a larger array.
        let larger = array::<T>([rows + 7, columns]);
        let within = || [3, 0]..[rows + 3, columns];
        let section = larger.section_mut(within()).unwrap();
        routes.push(check(section, factors, element, || larger.to_vec(within()).unwrap()));
        assert!(larger.to_vec([0, 0]..[3, columns]).unwrap().iter().all(|element| (*element).into() == 0.0));
    }
    routes
}

#[test]
fn products_equal_sums_in_f64() {
    let routes = [check_all::<f32>(|number| number as f32), check_all::<f64>(|number| number)].concat();
    println!("routes: {routes:?}");
    assert!(routes.iter().all(|route| *route == routes[0]), "{routes:?}");
    if std::env::var_os("VMARRAY_REQUIRE_CUBLAS").is_some() {
        assert_eq!(routes[0], MatMulRoute::Library("cuBLAS"));
    }
}

#[test]
fn a_route_is_explained_for_matching_extents() -> Result<()> {
    let (a, product) = (array::<f32>([4, 5]), array::<f32>([4, 4]));
    let error = product.explain_matmul(&a, &a).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelShape { .. }), "{error}");
    // No library multiplies matrices without regular lines, or integers.
    let (of, product) = (array::<i64>([4, 4]), array::<i64>([4, 4]));
    assert_eq!(product.explain_matmul(&of, &of)?, MatMulRoute::Ram);
    Ok(())
}
