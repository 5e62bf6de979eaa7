//! Mutation tests of the conformance suite: each flawed device fails the check that is meant for its flaw.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use backend_api::Device;
use backend_api::wrap::has_all_cases;
use vmarray_conformance::{Limits, Outcome, checks};

use super::flawed::{Flaw, Flawed};
use super::late::{Flaw as LateFlaw, Late};

fn outcome<D: Device>(device: D, name: &str, patience: Duration) -> Outcome {
    let limits = Limits::default().with_bytes(16 << 20).with_patience(patience);
    let check =
        checks().iter().find(|check| check.name == name).expect("the suite must have a check of this name");
    check.run(&Arc::new(device), &limits)
}

/// The patience for wakers that are lost, and for work that never ends: short, because the wait always
/// fails.
const BRIEF: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(60);

#[test]
fn every_flaw_fails_its_check() {
    for (flaw, name) in Flaw::FOUND_BY {
        let outcome = outcome(Flawed::new(*flaw), name, BRIEF);
        assert!(matches!(outcome, Outcome::Failed(_)), "{flaw:?}: {name}: {outcome:?}");
    }
}

#[test]
fn every_flaw_of_work_in_flight_fails_its_check() {
    for (flaw, name) in LateFlaw::FOUND_BY {
        // A single run finds the flaw only by chance.
        let found = (0..50).any(|_| matches!(outcome(Late::new(*flaw), name, BRIEF), Outcome::Failed(_)));
        assert!(found, "{flaw:?}: {name}: passed fifty times");
    }
}

/// Without [`has_all_cases`], the test of reports runs the other checks: on this device with a flaw that one
/// check finds.
#[test]
fn the_device_without_a_flaw_passes_all_checks_that_find_flaws() {
    let names: BTreeSet<_> = Flaw::FOUND_BY.iter().map(|(_, name)| *name).collect();
    let only_here = ["the_information_is_plausible", "buffers_larger_than_one_piece_are_one"];
    for name in names.into_iter().filter(|name| has_all_cases() || only_here.contains(name)) {
        let small_pieces = name == "buffers_larger_than_one_piece_are_one";
        let outcome = outcome(Flawed::with_pieces(Flaw::None, small_pieces), name, LONG);
        assert!(!matches!(outcome, Outcome::Failed(_)), "{name}: {outcome:?}");
        assert!(!small_pieces || outcome == Outcome::Passed, "{name}: {outcome:?}");
    }
    for (_, name) in LateFlaw::FOUND_BY {
        assert_eq!(outcome(Late::new(LateFlaw::None), name, LONG), Outcome::Passed, "{name}");
    }
}

/// Checks that no test can violate: a device with such a flaw would read memory that its caller has freed.
const BEYOND_TESTS: [&str; 2] =
    ["fill_patterns_are_copied_before_the_call_returns", "search_values_are_copied_before_the_call_returns"];

#[test]
fn every_check_is_known_to_find_something() {
    let mut found = BEYOND_TESTS.to_vec();
    found.extend(Flaw::FOUND_BY.iter().map(|(_, name)| name));
    found.extend(LateFlaw::FOUND_BY.iter().map(|(_, name)| name));
    for check in checks() {
        assert!(found.contains(&check.name), "{} finds no flaw", check.name);
    }
}
