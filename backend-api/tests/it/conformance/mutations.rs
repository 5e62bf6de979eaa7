//! Every flaw is found by the check that is there for it.

use std::sync::Arc;
use std::time::Duration;

use backend_api::Device;
use backend_api::conformance::{Limits, Outcome, checks};

use super::flawed::{Flaw, Flawed};
use crate::support::deferred::{Deferred, Flaw as Late};

/// Flaws that show at every run.
const FLAWS: &[(Flaw, &str)] = &[
    (Flaw::UploadsMissTheirLastByte, "copies_of_every_small_size_and_alignment"),
    (Flaw::DownloadsMissTheirLastByte, "copies_of_every_small_size_and_alignment"),
    (Flaw::UploadsGoOneTooFar, "copies_of_every_small_size_and_alignment"),
    (Flaw::InternalCopiesMoveWords, "copies_between_every_pair_of_alignments"),
    (Flaw::InternalCopiesMoveWords, "copies_within_and_between_buffers"),
    (Flaw::UploadsAreAlignedDown, "copies_between_every_pair_of_alignments"),
    (Flaw::UploadsAreAlignedDown, "copies_with_every_kind_of_host_memory"),
    (Flaw::CopiesEndAt64KiB, "copies_of_large_and_odd_sizes"),
    (Flaw::CopiesEndAt64KiB, "batches_of_unequal_pieces"),
    (Flaw::DownloadsMissTheirLastByte, "copies_by_every_route"),
    (Flaw::CopiesOfNothingAreRefused, "copies_of_nothing"),
    (Flaw::EmptyBatchesAreRefused, "an_empty_batch_gives_a_ticket"),
    (Flaw::UploadsMissTheirLastByte, "batches_that_read_one_place_many_times"),
    (Flaw::InternalCopiesMoveWords, "batches_of_mixed_directions"),
    (Flaw::BatchesEndAtAThousand, "batches_of_thousands_of_pieces"),
    (Flaw::RefusedBatchesAreHalfDone, "a_refused_batch_changes_nothing"),
    (Flaw::RefusedCallsTakeTickets, "refused_calls_take_no_ticket"),
    (Flaw::TicketsSkip, "tickets_rise_by_one"),
    (Flaw::OverlapIsAccepted, "internal_copies_that_overlap_are_refused"),
    (Flaw::RangesOutsideAreIgnored, "ranges_outside_are_refused"),
    (Flaw::RangesOutsideAreIgnored, "kernels_on_ranges_outside_are_refused"),
    (Flaw::RangesOutsideAreIgnored, "malformed_requests_are_refused"),
    (Flaw::UnknownNamesAreInvalid, "unknown_names_are_refused"),
    (Flaw::UnknownReleasesPanic, "unknown_names_are_refused"),
    (Flaw::FillsAreWholePatterns, "fills_with_patterns_of_every_length"),
    (Flaw::FillsAreWholePatterns, "fills_of_large_and_odd_sizes"),
    (Flaw::FillsAreAlignedDown, "fills_of_every_small_size_and_alignment"),
    (Flaw::NothingIsRefused, "fills_of_nothing"),
    (Flaw::NothingIsRefused, "gathers_and_scatters_of_nothing"),
    (Flaw::NothingIsRefused, "allocations_of_nothing_are_valid"),
    (Flaw::HostPiecesOverlap, "pieces_of_host_memory_do_not_overlap"),
    (Flaw::DevicePiecesOverlap, "pieces_of_device_memory_do_not_overlap"),
    (Flaw::LongPatternsAreCut, "malformed_requests_are_refused"),
    (Flaw::StrideZeroIsAccepted, "malformed_requests_are_refused"),
    (Flaw::SearchesMissTheLast, "searches_of_every_stride"),
    (Flaw::SearchesGoOneTooFar, "searches_of_every_stride"),
    (Flaw::SearchesIgnoreTheField, "searches_of_every_stride"),
    (Flaw::SearchesCompareAPrefix, "searches_for_values_of_every_size"),
    (Flaw::SearchesListOneTooMany, "searches_list_no_more_than_the_limit"),
    (Flaw::SearchesStopCounting, "searches_list_no_more_than_the_limit"),
    (Flaw::SearchesDescend, "searches_that_match_all_or_none_or_the_ends"),
    (Flaw::SearchesMissTheLast, "searches_that_match_all_or_none_or_the_ends"),
    (Flaw::SearchesEndAt64Ki, "searches_of_many_elements"),
    (Flaw::SearchesOfNothingAreRefused, "searches_of_nothing"),
    (Flaw::NothingIsRefused, "computations_of_nothing"),
    (Flaw::ComputationsMissTheLast, "computations_with_every_operation"),
    (Flaw::ComputationsIgnoreTheFilter, "computations_of_many_elements"),
    (Flaw::ComputationsCountFromZero, "random_computations"),
    (Flaw::ComputationsForgetAStore, "computations_that_store_in_several_fields"),
    (Flaw::ComputationsMissTheLast, "computations_of_many_elements"),
    (Flaw::AnyComputationIsAccepted, "malformed_computations_are_refused"),
    (Flaw::ComputationsShareTheirAnswer, "computations_in_flight_at_once_do_not_mix"),
    (Flaw::ComputationsMissTheLast, "computations_of_short_elements"),
    (Flaw::PreparationsCompute, "preparing_changes_nothing"),
    (Flaw::GathersMissTheLast, "gathers_of_every_stride"),
    (Flaw::GathersMissTheLast, "gathers_and_scatters_of_large_elements"),
    (Flaw::GathersCutIndices, "a_gather_with_an_index_outside_fails"),
    (Flaw::GathersClampIndices, "a_gather_with_an_index_outside_fails"),
    (Flaw::GathersClampIndices, "gathers_in_flight_at_once_do_not_mix"),
    (Flaw::ScattersMissTheLast, "scatters_of_every_stride"),
    (Flaw::ScattersMissTheLast, "gathers_and_scatters_of_many_elements"),
    (Flaw::ScattersClampIndices, "a_scatter_with_an_index_outside_fails"),
    (Flaw::ScattersMissTheLast, "kernels_and_copies_keep_their_order"),
    (Flaw::FailuresAreForgotten, "work_goes_on_after_a_failure"),
    (Flaw::FailuresAreToldOnce, "work_goes_on_after_a_failure"),
    (Flaw::FailuresStick, "work_goes_on_after_a_failure"),
    (Flaw::FailuresAreForgotten, "many_threads_wait_for_one_ticket"),
    (Flaw::WakersAreLost, "wakers_for_what_is_done_are_woken_at_once"),
    (Flaw::WakersAreLost, "wakers_are_woken_once_when_work_is_done"),
    (Flaw::WakersAreLost, "wakers_from_many_threads_are_all_woken"),
    (Flaw::WakersComeTwice, "wakers_for_what_is_done_are_woken_at_once"),
    (Flaw::WakersComeTwice, "wakers_are_woken_once_when_work_is_done"),
    (Flaw::UnknownTicketsAreDone, "tickets_that_were_never_given_are_unknown"),
    (Flaw::EndedQueuesAreUnknown, "tickets_of_an_ended_queue_stay_askable"),
    (Flaw::OrdersTakeTickets, "order_after_takes_any_ticket_of_the_device"),
    (Flaw::OrdersTakeAnything, "order_after_refuses_what_it_does_not_know"),
    (Flaw::HostMemoryIsNotZeroed, "new_host_memory_is_zeroed_and_aligned"),
    (Flaw::HostMemoryIsMisaligned, "new_host_memory_is_zeroed_and_aligned"),
    (Flaw::FullIsADriverError, "more_memory_than_there_is_is_refused"),
    (Flaw::FullHasNoFigures, "more_memory_than_there_is_is_refused"),
    (Flaw::MemoryLeaks, "memory_that_was_given_back_can_be_had_again"),
    (Flaw::MemoryIsOversold, "a_full_device_says_so_and_goes_on"),
    (Flaw::MoreIsFreeThanThereIs, "the_memory_status_is_plausible"),
    (Flaw::IdentityIsEmpty, "the_information_is_plausible"),
    (Flaw::ImportsAreCopies, "imported_memory_is_copied_from_and_to"),
    (Flaw::ImportsAreWiped, "wiping_spares_what_is_in_use_or_the_programs"),
    (Flaw::SeamsCutCopies, "buffers_larger_than_one_piece_are_one"),
    (Flaw::CopiesEndAt64KiB, "proven_memory_is_memory"),
    (Flaw::UploadsMissTheirLastByte, "random_programs_in_one_queue"),
    (Flaw::UploadsMissTheirLastByte, "random_programs_that_move_between_queues"),
    (Flaw::DownloadsMissTheirLastByte, "threads_with_queues_of_their_own"),
    (Flaw::DownloadsMissTheirLastByte, "threads_that_share_a_queue"),
    (Flaw::UploadsMissTheirLastByte, "queues_come_and_go"),
];

/// Flaws that show when the work of queues and threads happens to meet.
const LATE_FLAWS: &[(Late, &str)] = &[
    (Late::OrderAfterIsIgnored, "order_after_carries_effects_between_queues"),
    (Late::OrderAfterIsIgnored, "order_after_several_tickets_waits_for_all"),
    (Late::OrderAfterIsIgnored, "order_after_in_both_directions_does_not_block"),
    (Late::OrderAfterIsIgnored, "random_programs_that_move_between_queues"),
    (Late::WorkOvertakesWork, "work_in_a_queue_sees_what_came_before"),
    (Late::WorkOvertakesWork, "the_last_of_many_writes_stays"),
    (Late::WorkOvertakesWork, "kernels_and_copies_keep_their_order"),
    (Late::BatchesOverlap, "batches_of_mixed_directions"),
    (Late::DeviceMemoryDoesNotWait, "giving_device_memory_back_waits_for_work"),
    (Late::HostMemoryDoesNotWait, "giving_host_memory_back_waits_for_work"),
    (Late::QueuesDoNotWait, "ending_a_queue_waits_for_its_work"),
    (Late::DeviceMemoryDoesNotWait, "things_can_be_given_back_in_any_order"),
    (Late::QueuesDoNotWait, "memory_in_use_by_others_can_be_given_back_meanwhile"),
    (Late::EndsOfQueuesTakeOthersAlong, "work_of_one_queue_does_not_hold_what_another_needs"),
    (Late::DoneTooEarly, "done_means_all_work_before_is_done"),
    (Late::WakersComeTooEarly, "wakers_are_woken_once_when_work_is_done"),
    (Late::WorkNeedsSomebodyWhoWaits, "done_stays_done"),
    (Late::WorkNeedsSomebodyWhoWaits, "wakers_are_woken_once_when_work_is_done"),
    (Late::WakersOfFailuresAreLost, "wakers_for_work_that_fails_are_woken"),
    (Late::SearchesShareTheirAnswer, "searches_in_flight_at_once_do_not_mix"),
];

fn outcome<D: Device>(device: D, name: &str) -> Outcome {
    // A lost waker is waited for in vain, so not for long.
    let limits = Limits::default().with_bytes(16 << 20).with_patience(Duration::from_millis(100));
    let check = checks::<D>().iter().find(|check| check.name == name).expect("a check of the suite");
    check.run(&Arc::new(device), &limits)
}

#[test]
fn every_flaw_fails_its_check() {
    for (flaw, name) in FLAWS {
        let outcome = outcome(Flawed::new(*flaw), name);
        assert!(matches!(outcome, Outcome::Failed(_)), "{flaw:?}: {name}: {outcome:?}");
    }
}

#[test]
fn every_flaw_of_work_in_flight_fails_its_check() {
    for (flaw, name) in LATE_FLAWS {
        // Chance decides whether one run shows it.
        let found = (0..50)
            .any(|_| matches!(outcome(Deferred::with_flaw(64 << 20, *flaw), name), Outcome::Failed(_)));
        assert!(found, "{flaw:?}: {name}: passed fifty times");
    }
}

#[test]
fn the_device_without_a_flaw_passes_all_checks_that_find_flaws() {
    for (_, name) in FLAWS {
        let small_pieces = *name == "buffers_larger_than_one_piece_are_one";
        let outcome = outcome(Flawed::with_pieces(Flaw::None, small_pieces), name);
        assert!(!matches!(outcome, Outcome::Failed(_)), "{name}: {outcome:?}");
        assert!(!small_pieces || outcome == Outcome::Passed, "{name}: {outcome:?}");
    }
}

/// A device with these flaws would read memory that its caller has freed, which no test may do.
const BEYOND_TESTS: [&str; 2] =
    ["fill_patterns_are_copied_before_the_call_returns", "search_values_are_copied_before_the_call_returns"];

#[test]
fn every_check_is_known_to_find_something() {
    let found: Vec<_> =
        FLAWS.iter().map(|(_, name)| name).chain(LATE_FLAWS.iter().map(|(_, name)| name)).collect();
    for check in checks::<Flawed>() {
        assert!(
            found.contains(&&check.name) || BEYOND_TESTS.contains(&check.name),
            "{} finds no flaw",
            check.name
        );
    }
}
