//! Runs the conformance suite on a minimal backend of about 200 lines (`device.rs`): `cargo run -p
//! vmarray-conformance --example own_device`.
//!
//! The suite skips checks of requests that the device does not support, and reports the skipped checks.

mod device;

use std::sync::Arc;

use vmarray_conformance::{Limits, run_all};

fn main() {
    // The device's memory is as small as a check's limit, so the suite can also test full memory.
    let device = Arc::new(device::PageDevice::new(Limits::default().bytes));
    let report = run_all(&device, &Limits::default());
    println!("{report}");
    report.assert_passed();
}
