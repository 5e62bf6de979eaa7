//! Conformance tests for backends: they check that a [`Device`] follows the rules of its trait's methods.
//!
//! The crate also has devices for tests: a [reference device](reference::ReferenceDevice), and
//! [wrappers](wrap) that count calls or inject failures.
//!
//! A backend lists this crate as a dev-dependency, and runs the suite in its own tests:
//!
//! ```
//! use std::sync::Arc;
//! use vmarray_conformance::reference::ReferenceDevice;
//!
//! // One #[test] for each check. Each test evaluates the expression; `None` skips the test.
//! mod on_the_reference_device {
//!     # use super::*;
//!     vmarray_conformance::conformance_tests!(Arc::new(ReferenceDevice::new(64 << 20)));
//! }
//! # fn main() {}
//! ```
//!
//! A program can also run all checks in one call, for example to check the GPUs of a machine:
//!
//! ```
//! # use std::sync::Arc;
//! # use vmarray_conformance::{Limits, checks, reference::ReferenceDevice, run_each};
//! let device = Arc::new(ReferenceDevice::new(64 << 20));
//! // Or `run_all`, which prints each name.
//! let mut names = Vec::new();
//! let report = run_each(&device, &Limits::default().with_bytes(4 << 20), |name| names.push(name));
//! report.assert_passed();
//! assert_eq!(names.len(), checks().len());
//! ```
//!
//! A device needs at least [`Limits::LEAST_BYTES`] bytes of memory. If it has at most [`Limits::bytes`], one
//! check allocates all of its memory, and no other check may run on the device at that time. Checks can run
//! at the same time on a device with more memory.
//!
//! The checks compare every byte that the device could have changed with a naive model in RAM. A device may
//! be synchronous, and may run queues in any order. Other programs may use the device at the same time. If a
//! device never finishes its work, the check hangs. The suite prints each check's name before the check
//! starts, so the last name shows the check that hangs.

#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate self as vmarray_conformance;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use backend_api::Device;

mod batches;
mod computes;
mod context;
mod copies;
mod fills;
mod foreign;
mod groups;
mod indexed;
mod launches;
mod lifetimes;
mod limits;
mod memory;
mod ordered;
mod ordering;
mod peers;
pub mod random;
pub mod reference;
mod refusals;
mod scene;
mod searches;
mod stress;
mod tickets;
pub mod wrap;

pub use context::Context;
pub use lifetimes::check_drop;
pub use limits::Limits;
pub use peers::run_peers;

/// One check of the conformance suite.
///
/// ```
/// # use std::sync::Arc;
/// use vmarray_conformance::{Limits, Outcome, checks, reference::ReferenceDevice, wrap::Faulty};
/// let device = Arc::new(Faulty::new(ReferenceDevice::new(64 << 20)));
/// let check = checks().iter().find(|check| check.name == "copies_of_nothing").unwrap();
/// assert_eq!(check.run(&device, &Limits::default()), Outcome::Passed);
/// device.lose();
/// assert!(matches!(check.run(&device, &Limits::default()), Outcome::Failed(_)));
/// ```
#[derive(Debug)]
pub struct Check {
    /// Unique name of the check. The name states the behaviour of a correct device.
    pub name: &'static str,
    /// Names of the [kinds of request](backend_api::Request::operation) that the check submits. The suite
    /// skips the check on a device that does not support all of them.
    pub needs: &'static [&'static str],
    /// The check's function. If the device behaves incorrectly, it panics and states the expected behaviour.
    pub run: fn(&Context<'_>),
}

impl Check {
    /// Runs the check on a device.
    ///
    /// The check releases all of its queues and memory before this method returns, also after a failure. The
    /// method catches the check's panics, so the program must be compiled with `panic = "unwind"`.
    #[must_use]
    pub fn run<D: Device>(&self, device: &Arc<D>, limits: &Limits) -> Outcome {
        self.outcome(&erased(device), limits)
    }

    fn outcome(&self, device: &Arc<dyn Device>, limits: &Limits) -> Outcome {
        let context = Context::new(device, *limits);
        let check = || {
            if context.knows(self.needs) {
                (self.run)(&context);
            }
        };
        outcome(check, &context)
    }
}

/// Converts the device to a trait object, because the checks are then compiled only once.
fn erased<D: Device>(device: &Arc<D>) -> Arc<dyn Device> {
    Arc::<D>::clone(device)
}

fn outcome(check: impl FnOnce(), context: &Context<'_>) -> Outcome {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(()) => context.skipped().map_or(Outcome::Passed, Outcome::Skipped),
        Err(panic) => Outcome::Failed(message(&*panic)),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").into()
}

/// The outcome of one check.
///
/// ```
/// use vmarray_conformance::Outcome;
/// assert_ne!(Outcome::Passed, Outcome::Skipped("the system refuses pinned memory".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device behaves as the check's name states.
    Passed,
    /// The check skipped a part, and the device passed the rest. The text is the reason: the device does not
    /// support an optional request, such as pinned memory or wiping, or the [`Limits`] are too low.
    Skipped(String),
    /// The device behaves incorrectly; the text is the message of the failed assertion.
    Failed(String),
}

/// The outcomes of all checks in one run of the suite.
///
/// ```
/// # use std::sync::Arc;
/// use vmarray_conformance::{Limits, run_all, wrap::Faulty};
/// # use vmarray_conformance::reference::ReferenceDevice;
/// let device = Arc::new(Faulty::new(ReferenceDevice::new(64 << 20)));
/// device.lose();
/// let report = run_all(&device, &Limits::default());
/// // One line for each check that did not pass, and a summary.
/// assert!(report.to_string().contains("FAILED copies_of_nothing: "));
/// assert!(!report.passed() && report.failures().any(|(name, why)| name == "copies_of_nothing" && !why.is_empty()));
/// assert_eq!(report.outcomes().next().unwrap().0, "copies_of_nothing");
/// assert!(std::panic::catch_unwind(|| report.assert_passed()).is_err());
/// ```
#[derive(Clone, Debug, Default)]
pub struct SuiteReport {
    outcomes: Vec<(&'static str, Outcome)>,
}

impl SuiteReport {
    /// Returns the name and the outcome of every check, in the order of the suite.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, &Outcome)> {
        self.outcomes.iter().map(|(name, outcome)| (*name, outcome))
    }

    /// Returns the name and the message of each failed check.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.outcomes().filter_map(|(name, outcome)| match outcome {
            Outcome::Failed(why) => Some((name, why.as_str())),
            _ => None,
        })
    }

    /// Returns true if no check failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Asserts that no check failed.
    ///
    /// # Panics
    /// Panics with the whole report if a check failed.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.passed(), "the device breaks the contract\n{self}");
    }
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for (name, outcome) in self.outcomes() {
            match outcome {
                Outcome::Passed => passed += 1,
                Outcome::Skipped(why) => {
                    skipped += 1;
                    writeln!(f, "skipped {name}: {why}")?;
                }
                Outcome::Failed(why) => {
                    failed += 1;
                    writeln!(f, "FAILED {name}: {why}")?;
                }
            }
        }
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Runs all checks, one after the other. Prints the name of each check on standard output before it starts.
pub fn run_all<D: Device>(device: &Arc<D>, limits: &Limits) -> SuiteReport {
    run_each(device, limits, |_| {})
}

/// Runs all checks like [`run_all`], but does not print. Before each check, calls `before` with its name.
pub fn run_each<D: Device>(
    device: &Arc<D>,
    limits: &Limits,
    mut before: impl FnMut(&'static str),
) -> SuiteReport {
    let device = erased(device);
    let mut report = SuiteReport::default();
    for check in checks() {
        println!("{}: {}", device.info(), check.name);
        before(check.name);
        let outcome = check.outcome(&device, limits);
        report.outcomes.push((check.name, outcome));
    }
    report
}

/// Runs the check `name` on a device, as the body of a `#[test]`.
/// [`conformance_tests!`](crate::conformance_tests) generates the calls of this function. If `device` is
/// `None`, the test is skipped.
///
/// # Panics
/// Panics if the check fails, or if the suite has no check `name`.
#[doc(hidden)]
#[track_caller]
pub fn run_as_test<D: Device>(name: &str, device: impl Into<Option<Arc<D>>>, limits: &Limits) {
    run_check(name, device.into().map(|device| device as Arc<dyn Device>), limits);
}

#[track_caller]
fn run_check(name: &str, device: Option<Arc<dyn Device>>, limits: &Limits) {
    let check =
        checks().iter().find(|check| check.name == name).expect("the list must contain a check of this name");
    let Some(device) = device else {
        println!("skipped {name}: this machine has no device of the backend");
        return;
    };
    match check.outcome(&device, limits) {
        Outcome::Passed => {}
        Outcome::Skipped(why) => println!("skipped {name}: {why}"),
        Outcome::Failed(why) => panic!("{}: {why}", device.info()),
    }
}

/// Defines one `#[test]` for each check of the [suite](crate), with the check's name.
///
/// The first argument is the device: an expression of type `Arc<D>` or `Option<Arc<D>>`. `None` skips the
/// test with a line on standard output. The optional second argument is the
/// [`Limits`](crate::Limits). Each test evaluates both expressions once. If a device is slow to
/// create, store it in a `static OnceLock`, so that all tests use the same device.
///
/// With `#[ignore = "reason"]` before the device, `cargo test` runs the tests only with `--ignored`. This
/// form takes no limits.
///
/// ```
/// use std::sync::{Arc, OnceLock};
/// use vmarray_conformance::{Limits, reference::ReferenceDevice};
///
/// /// Returns the GPU, if this machine has one.
/// fn card() -> Option<Arc<ReferenceDevice>> {
///     static CARD: OnceLock<Option<Arc<ReferenceDevice>>> = OnceLock::new();
///     CARD.get_or_init(|| Some(Arc::new(ReferenceDevice::new(64 << 20)))).clone()
/// }
///
/// vmarray_conformance::conformance_tests!(card(), Limits::default().with_bytes(8 << 20));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance_tests {
    (#[ignore = $reason:literal] $subject:expr $(,)?) => {
        $crate::__conformance_list! {
            { $crate::__conformance_define_tests }
            [#[ignore = $reason] $subject] [$crate::Limits::default()]
        }
    };
    ($subject:expr $(,)?) => {
        $crate::conformance_tests!($subject, $crate::Limits::default());
    };
    ($subject:expr, $limits:expr $(,)?) => {
        $crate::__conformance_list! { { $crate::__conformance_define_tests } [$subject] [$limits] }
    };
}

/// Expands the list of checks to `#[test]` functions.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_define_tests {
    ([#[ignore = $reason:literal] $subject:expr] [$limits:expr] $($module:ident { $($name:ident)* })*) => {
        $($(
            #[test]
            #[ignore = $reason]
            fn $name() {
                $crate::run_as_test(stringify!($name), $subject, &$limits);
            }
        )*)*
    };
    ([$subject:expr] [$limits:expr] $($module:ident { $($name:ident)* })*) => {
        $($(
            #[test]
            fn $name() {
                $crate::run_as_test(stringify!($name), $subject, &$limits);
            }
        )*)*
    };
}

/// Returns the kinds of requests that all checks of a module submit, in addition to copies and fills.
const fn needs(module: &str) -> &'static [&'static str] {
    match module.as_bytes() {
        b"searches" => &["search"],
        b"indexed" => &["gather", "scatter"],
        b"computes" => &["compute"],
        b"launches" | b"groups" | b"ordered" | b"foreign" => &["launch"],
        b"copies" | b"batches" | b"fills" | b"tickets" | b"ordering" | b"refusals" | b"memory"
        | b"lifetimes" | b"stress" => &[],
        _ => panic!("unknown module of checks; add it to the function `needs`"),
    }
}

/// Expands the list of checks to the function [`checks`].
macro_rules! define_checks {
    ([] [] $($module:ident { $($name:ident)* })*) => {
        /// Returns all checks of the suite in their order. Fix the first failure first, because the same
        /// defect may cause later failures, too.
        #[must_use]
        pub fn checks() -> &'static [Check] {
            const { &[$($(Check {
                name: stringify!($name),
                needs: needs(stringify!($module)),
                run: $module::$name,
            },)*)*] }
        }
    };
}

/// The list of all checks by module. The macro passes the list to the macro in its first argument.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_list {
    ({ $($macro:tt)* } [$($first:tt)*] [$($second:tt)*]) => {
        $($macro)*! { [$($first)*] [$($second)*]
            copies {
                copies_of_nothing
                copies_of_every_small_size_and_alignment
                copies_between_every_pair_of_alignments
                copies_of_large_and_odd_sizes
                copies_within_and_between_buffers
                copies_with_every_kind_of_host_memory
            }
            batches {
                an_empty_batch_gives_a_ticket
                batches_of_mixed_directions
                batches_of_thousands_of_pieces
                batches_that_read_one_place_many_times
                batches_of_unequal_pieces
                copies_by_every_route
            }
            fills {
                fills_of_nothing
                fills_with_patterns_of_every_length
                fills_of_every_small_size_and_alignment
                fills_of_large_and_odd_sizes
                fill_patterns_are_copied_before_the_call_returns
            }
            searches {
                searches_of_nothing
                searches_of_every_stride
                searches_for_values_of_every_size
                searches_list_no_more_than_the_limit
                searches_that_match_all_or_none_or_the_ends
                searches_of_many_elements
                search_values_are_copied_before_the_call_returns
                searches_in_flight_at_once_do_not_mix
            }
            indexed {
                gathers_and_scatters_of_nothing
                gathers_of_every_stride
                scatters_of_every_stride
                gathers_and_scatters_of_many_elements
                gathers_and_scatters_of_large_elements
                entries_left_out_move_nothing
                gathers_and_scatters_of_elements_in_pages
                a_gather_with_an_index_outside_fails
                a_scatter_with_an_index_outside_fails
                gathers_in_flight_at_once_do_not_mix
            }
            computes {
                computations_of_nothing
                computations_with_every_operation
                random_computations
                computations_that_store_in_several_fields
                computations_of_many_elements
                computations_of_short_elements
                malformed_computations_are_refused
                computations_in_flight_at_once_do_not_mix
                preparing_changes_nothing
            }
            launches {
                launches_of_nothing
                launches_with_every_operation
                random_launches
                launches_with_half_precision
                launches_on_striped_pages
                launches_keep_their_order
                items_that_fail_go_on
                malformed_launches_are_refused
                preparing_launches_changes_nothing
            }
            foreign {
                code_from_elsewhere_is_run
                a_foreign_submission_may_refuse_a_launch
            }
            groups {
                groups_share_memory_and_meet
                items_of_a_group_take_different_ways
                operations_across_lanes
                atomics_of_every_kind
                items_append_their_values
                items_that_meet_leave_loops_by_their_budget
                items_have_memory_of_their_own
            }
            ordered {
                elements_of_several_fields_are_moved
                values_are_released_and_acquired
                groups_wait_for_earlier_groups
            }
            tickets {
                tickets_rise_by_one
                tickets_that_were_never_given_are_unknown
                done_stays_done
                refused_calls_take_no_ticket
                tickets_of_an_ended_queue_stay_askable
                many_threads_wait_for_one_ticket
                wakers_are_woken_once_when_work_is_done
                wakers_for_done_work_run_at_once
                wakers_for_work_that_fails_are_woken
                wakers_from_many_threads_are_all_woken
            }
            ordering {
                work_in_a_queue_sees_earlier_work
                the_last_of_many_writes_stays
                kernels_and_copies_keep_their_order
                done_means_all_work_before_is_done
                order_after_carries_effects_between_queues
                order_after_several_tickets_waits_for_all
                order_after_in_both_directions_does_not_block
                order_after_takes_any_ticket_of_the_device
                order_after_refuses_unknown_tickets
                work_goes_on_after_a_failure
            }
            refusals {
                unknown_names_are_refused
                ranges_outside_are_refused
                kernels_on_ranges_outside_are_refused
                malformed_requests_are_refused
                internal_copies_that_overlap_are_refused
                a_refused_batch_changes_nothing
            }
            memory {
                the_information_is_plausible
                the_memory_status_is_plausible
                allocations_of_nothing_are_valid
                new_host_memory_is_zeroed_and_aligned
                pieces_of_host_memory_do_not_overlap
                pieces_of_device_memory_do_not_overlap
                more_memory_than_there_is_is_refused
                memory_grows_in_its_place
                memory_that_cannot_grow_stays_as_it_is
                memory_that_was_given_back_can_be_had_again
                a_full_device_says_so_and_goes_on
                buffers_larger_than_one_piece_are_one
                proven_memory_is_memory
                imported_memory_is_copied_from_and_to
                wiping_spares_used_and_imported_memory
            }
            lifetimes {
                giving_device_memory_back_waits_for_work
                giving_host_memory_back_waits_for_work
                ending_a_queue_waits_for_its_work
                things_can_be_given_back_in_any_order
                queues_do_not_block_each_others_memory
                memory_in_use_by_others_can_be_given_back_meanwhile
            }
            stress {
                random_programs_in_one_queue
                random_programs_that_move_between_queues
                threads_with_queues_of_their_own
                threads_that_share_a_queue
                queues_come_and_go
            }
        }
    };
}

__conformance_list! { { define_checks } [] [] }
