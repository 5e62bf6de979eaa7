//! Tests of errors in kernels that only lowering detects.

use vmarray_kernel::{At, ErrorKind, Own, kernel, lower};

#[kernel(crate = vmarray_kernel)]
fn down(n: u32) -> u32 {
    if n == 0 { 0 } else { down(n - 1) + 1 }
}

#[kernel(crate = vmarray_kernel)]
fn recursive(at: At<1>, out: &mut Own<u32>) {
    out.set(down(at.index() as u32));
}

#[test]
fn recursion_is_reported_with_its_line() {
    let error = lower::<recursive>().unwrap_err();
    assert_eq!((error.kind(), error.function()), (ErrorKind::TooDeep, "down"));
    assert_eq!(error.line(), line!() - 13);
    assert!(error.to_string().contains("errors.rs"), "{error}");
}

#[kernel(crate = vmarray_kernel)]
fn large<const N: usize>(at: At<1>, out: &mut Own<u8>) {
    let mut a = [0; N];
    a[at.index()] = 1;
    out.set(a[5]);
}

#[test]
fn arrays_have_a_limit() {
    assert!(lower::<large<8000>>().is_ok());
    assert_eq!(lower::<large<9000>>().unwrap_err().kind(), ErrorKind::TooLarge);
    let error = lower::<large<100_000>>().unwrap_err();
    assert!(error.to_string().contains("100000 elements"), "{error}");
}

#[kernel(crate = vmarray_kernel)]
fn nested(out: &mut Own<u32>) {
    let mut sum = 0;
    for a in 0..32 {
        for b in 0..32 {
            for c in 0..32 {
                for d in 0..32 {
                    sum += a * b + c * d;
                }
            }
        }
    }
    out.set(sum);
}

#[test]
fn nested_loops_are_not_unrolled_without_end() {
    let lowered = lower::<nested>().unwrap();
    let mut count = 0;
    lowered.body.operations(|_, _| count += 1);
    assert!(count < 30_000, "{count}");
}

#[kernel(crate = vmarray_kernel)]
fn endless(_: &mut Own<u32>) {
    loop {}
}

#[test]
fn a_kernel_that_never_returns_is_an_error() {
    let error = lower::<endless>().unwrap_err();
    assert_eq!((error.kind(), error.function()), (ErrorKind::Unsupported, "endless"));
    assert!(error.to_string().contains("never returns"), "{error}");
}
