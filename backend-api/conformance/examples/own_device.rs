//! A new backend in one file, and the conformance suite on it: `cargo run -p vmarray-conformance --example
//! own_device`.
//!
//! The file is that of the suite's reference device, compiled here as part of another crate: a device needs
//! only public items of the contract's crate and of `vmarray-support`. Its kernels are the models of the
//! suite; a device of more use has kernels of its own, which it can compare with them.

#[path = "../src/reference/device.rs"]
mod device;

use std::sync::Arc;

use vmarray_conformance::{Limits, run_all};

fn main() {
    // The suite fills up a device that has no more memory than the limits allow it to use.
    let device = Arc::new(device::ReferenceDevice::new(Limits::default().bytes));
    let report = run_all(&device, &Limits::default());
    println!("{report}");
    report.assert_passed();
}
