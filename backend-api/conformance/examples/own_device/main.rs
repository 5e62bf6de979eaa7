//! Runs the conformance suite on a minimal backend of about 200 lines (`device.rs`): `cargo run -p
//! vmarray-conformance --example own_device`.
//!
//! The suite skips checks of requests that the device does not support, and reports the skipped checks.

mod device;

use std::sync::Arc;

use vmarray_conformance::{Limits, run_all};

fn main() {
    // The memory is within the limits, so the suite also tests the device when its memory is full.
    let device = Arc::new(device::PageDevice::new(Limits::default().bytes));
    let report = run_all(&device, &Limits::default());
    println!("{report}");
    report.assert_passed();
}
