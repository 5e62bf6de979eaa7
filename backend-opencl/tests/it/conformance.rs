//! The conformance suite on every OpenCL device of the machine.
//!
//! `VMARRAY_TEST_BYTES` sets the memory that a check may use (default 32 MiB).

use std::sync::{Arc, OnceLock};

use backend_api::Device;
use backend_opencl::{OpenClDevice, OpenClOptions};
use vmarray_conformance::{Limits, Outcome, checks, run_all};
use vmarray_redundancy::Checksummed;

use crate::{chosen, open};

fn limits() -> Limits {
    let bytes = std::env::var("VMARRAY_TEST_BYTES").ok().and_then(|text| text.parse().ok());
    bytes.map_or_else(Limits::default, |bytes| Limits::default().with_bytes(bytes))
}

/// The first device, opened once.
fn first() -> Option<Arc<OpenClDevice>> {
    static DEVICE: OnceLock<Option<Arc<OpenClDevice>>> = OnceLock::new();
    DEVICE.get_or_init(|| Some(open(chosen().first()?, &OpenClOptions::new()))).clone()
}

mod the_first_device {
    use super::*;
    vmarray_conformance::conformance_tests!(first(), limits());
}

#[test]
fn every_other_device_passes() {
    for found in chosen().iter().skip(1) {
        run_all(&open(found, &OpenClOptions::new()), &limits()).assert_passed();
    }
}

/// Verifies all reads by checksums while the driver works asynchronously.
#[test]
fn the_first_device_passes_with_checksums() {
    let Some(device) = first() else { return };
    // SAFETY: the checks use this device's objects only with this device.
    let device = Arc::new(unsafe { Checksummed::new(device, 1000) });
    run_all(&device, &limits().with_bytes(Limits::LEAST_BYTES)).assert_passed();
}

/// Memory of many small pieces, so that nearly every access crosses a boundary. Pinned memory that kernels
/// access, and pinned memory that they do not.
mod every_device_passes_with_other_options {
    use super::passes_with;

    #[test]
    fn pieces_of_4096_bytes() {
        passes_with(4096, false);
    }

    #[test]
    fn pieces_of_16_kib_and_zero_copy() {
        passes_with(16_384, true);
    }

    #[test]
    fn uneven_pieces_and_zero_copy() {
        passes_with(50_000, true);
    }

    #[test]
    fn uneven_pieces() {
        passes_with(100_000, false);
    }

    #[test]
    fn memory_in_one_piece() {
        passes_with(1 << 30, false);
    }
}

fn passes_with(largest: u64, zero_copy: bool) {
    let options = OpenClOptions::new().with_largest_allocation_bytes(largest).with_zero_copy(zero_copy);
    for found in chosen() {
        let device = open(&found, &options);
        let least = largest.min(found.info().largest_allocation_bytes);
        assert_eq!(device.info().largest_allocation_bytes, least);
        let limits = limits().with_bytes(Limits::LEAST_BYTES);
        for check in checks() {
            if let Outcome::Failed(why) = check.run(&device, &limits) {
                panic!("{} with {options:?}: {}: {why}", device.info(), check.name);
            }
        }
    }
}

/// Simulates devices whose own division is not rounded correctly.
#[test]
fn computations_pass_with_division_in_integers() {
    for found in chosen() {
        let options = OpenClOptions::new().with_integer_division(true);
        let device = open(&found, &options);
        let of_arithmetic = [
            "computations_with_every_operation",
            "random_computations",
            "launches_with_every_operation",
            "random_launches",
        ];
        let checks = checks();
        let checks: Vec<_> = checks.iter().filter(|check| of_arithmetic.contains(&check.name)).collect();
        assert_eq!(checks.len(), of_arithmetic.len());
        for check in checks {
            if let Outcome::Failed(why) = check.run(&device, &limits()) {
                panic!("{}: {}: {why}", device.info(), check.name);
            }
        }
    }
}
