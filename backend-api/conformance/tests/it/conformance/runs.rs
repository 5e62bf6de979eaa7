//! Tests of runs of the whole suite, and of their reports.

use std::sync::Arc;

use backend_api::wrap::has_all_cases;
use vmarray_conformance::{self as conformance, Limits, Outcome, checks, reference::ReferenceDevice};

use super::flawed::{Flaw, Flawed};

#[path = "../../../examples/own_device/device.rs"]
mod own_device;

#[test]
fn checks_of_requests_that_a_device_does_not_know_are_skipped() {
    let device = Arc::new(own_device::PageDevice::new(64 << 20));
    let report = conformance::run_all(&device, &Limits::default().with_bytes(8 << 20));
    report.assert_passed();
    for check in checks() {
        let (_, outcome) = report.outcomes().find(|(name, _)| *name == check.name).unwrap();
        match outcome {
            Outcome::Skipped(why) if why.starts_with("the device does not support the request") => {}
            _ => assert!(check.needs.is_empty(), "{}: {outcome:?}", check.name),
        }
    }
    let passed = report.outcomes().filter(|(_, outcome)| **outcome == Outcome::Passed).count();
    assert!(passed >= 45, "{report}");
}

#[test]
fn a_small_device_is_filled_and_a_large_one_is_not() {
    for (total, filled) in [(16_u64 << 20, true), (64 << 20, false)] {
        let device = Arc::new(ReferenceDevice::new(total));
        let limits = Limits::default().with_bytes(16 << 20);
        let name = "a_full_device_says_so_and_goes_on";
        let check = checks().iter().find(|check| check.name == name).unwrap();
        let outcome = check.run(&device, &limits);
        assert_eq!(outcome == Outcome::Passed, filled, "{outcome:?}");
        if has_all_cases() {
            let report = conformance::run_all(&device, &limits);
            report.assert_passed();
            assert_eq!(report.outcomes().count(), checks().len());
            let full = report.outcomes().find(|(full, _)| *full == name);
            assert_eq!(full, Some((name, &outcome)), "{report}");
        }
    }
}

#[test]
fn a_failure_is_reported_with_its_reason_and_the_rest_goes_on() {
    let device = Arc::new(Flawed::new(Flaw::IdentityIsEmpty));
    let mut names = Vec::new();
    let report =
        conformance::run_each(&device, &Limits::default().with_bytes(8 << 20), |name| names.push(name));
    assert_eq!(names.len(), checks().len());
    let failures: Vec<_> = report.failures().collect();
    assert_eq!(failures.len(), 1, "{report}");
    assert_eq!(failures[0].0, "the_information_is_plausible");
    assert!(failures[0].1.contains("identity"), "{report}");
    assert!(!report.passed());
    let text = report.to_string();
    assert!(text.contains("FAILED the_information_is_plausible") && text.contains("1 failed"), "{text}");
}

#[test]
fn no_device_is_no_failure() {
    conformance::run_as_test("copies_of_nothing", None::<Arc<ReferenceDevice>>, &Limits::default());
}

#[test]
#[should_panic(expected = "identity")]
fn a_check_that_fails_is_a_test_that_fails() {
    let device = Arc::new(Flawed::new(Flaw::IdentityIsEmpty));
    conformance::run_as_test("the_information_is_plausible", device, &Limits::default());
}
