//! Tables of transitions: the word before, and the word after, for the relevant states.

use super::super::state::{COUNT_MAX, VERSION};
use super::*;

const ALL_HOLDERS: [Holder; 2] = [Holder::Pin, Holder::Guard];

fn page(state: u64) -> Entry {
    Entry { state: AtomicU64::new(state), ..Entry::absent() }
}

fn word(entry: &Entry) -> u64 {
    entry.state(Ordering::Relaxed).0
}

fn refused<T>(result: &Result<T, Refusal>) -> Option<bool> {
    match result {
        Ok(_) => None,
        Err(Refusal::Absent) => Some(true),
        Err(Refusal::Busy(_)) => Some(false),
    }
}

const ABSENT: Option<bool> = Some(true);
const BUSY: Option<bool> = Some(false);
const TAKEN: Option<bool> = None;

/// The most holders of one kind that can be counted.
const FULL_OF_PINS: u64 = COUNT_MAX * PIN;
const FULL_OF_GUARDS: u64 = COUNT_MAX * GUARD;

#[test]
fn pages_are_shared_unless_held_or_awaited_exclusively() {
    for holder in ALL_HOLDERS {
        let cases = [
            (RESIDENT, false, TAKEN),
            (RESIDENT | GUARD | PIN, false, TAKEN),
            (RESIDENT | IN_FLIGHT | PIN, false, TAKEN),
            (RESIDENT | EXCLUSIVE, true, BUSY),
            (EXCLUSIVE, true, BUSY),
            (HOME, false, ABSENT),
            (0, false, ABSENT),
            (RESIDENT | WRITER_PENDING | PIN, false, BUSY),
            (RESIDENT | WRITER_PENDING | PIN, true, TAKEN),
            (RESIDENT | FULL_OF_PINS, true, BUSY),
            (RESIDENT | FULL_OF_GUARDS, true, BUSY),
            (RESIDENT | (FULL_OF_PINS - PIN), false, TAKEN),
            (RESIDENT | (FULL_OF_GUARDS - GUARD), false, TAKEN),
        ];
        for (before, barging, expected) in cases {
            let entry = page(before | AHEAD | WAITED);
            let result = entry.try_share(holder, barging);
            assert_eq!(refused(&result), expected, "{:?}", State(before));
            match result {
                // Threads may not wait for a guard, so waiting threads are woken to check again.
                Ok(seen) => {
                    let waited = if holder == Holder::Pin { WAITED } else { 0 };
                    assert_eq!(seen.0, before | AHEAD | WAITED);
                    assert_eq!(word(&entry), (before | USED | waited) + holder.unit());
                }
                Err(_) => assert_eq!(word(&entry), before | AHEAD | WAITED),
            }
        }
    }
}

#[test]
fn home_slots_are_shared_while_the_page_is_absent() {
    let cases = [
        (0, false, Ok(false)),
        (HOME, false, Ok(true)),
        (HOME | PIN, false, Ok(true)),
        (RESIDENT | HOME, true, Err(())),
        (EXCLUSIVE | HOME, true, Err(())),
        (HOME | WRITER_PENDING, false, Err(())),
        (HOME | WRITER_PENDING, true, Ok(true)),
        (HOME | FULL_OF_PINS, true, Err(())),
    ];
    for (before, barging, expected) in cases {
        let entry = page(before);
        assert_eq!(entry.try_share_home(barging).map_err(drop), expected, "{:?}", State(before));
        assert_eq!(word(&entry), if expected.is_ok() { before + PIN } else { before });
    }
}

#[test]
fn the_last_sharer_and_an_eviction_wake_waiting_threads() {
    let cases = [
        (Holder::Pin, PIN, 0, true),
        (Holder::Guard, GUARD, 0, true),
        (Holder::Pin, 2 * PIN, PIN, false),
        (Holder::Pin, PIN | GUARD, GUARD, false),
        (Holder::Guard, PIN | GUARD, PIN, false),
        (Holder::Pin, FULL_OF_PINS, FULL_OF_PINS - PIN, true),
        (Holder::Guard, FULL_OF_GUARDS | PIN, (FULL_OF_GUARDS | PIN) - GUARD, true),
    ];
    for (holder, before, after, wakes) in cases {
        let entry = page(RESIDENT | USED | before | WAITED);
        assert_eq!(entry.unshare(holder), wakes, "{:?}", State(before));
        assert_eq!(word(&entry), RESIDENT | USED | after | if wakes { 0 } else { WAITED });
        assert!(!page(RESIDENT | before).unshare(holder), "no thread waits");
    }
}

#[test]
fn pages_are_taken_when_no_other_thread_holds_them() {
    for holder in ALL_HOLDERS {
        let cases = [
            (RESIDENT, TAKEN),
            (RESIDENT | DIRTY | HOME, TAKEN),
            (RESIDENT | PIN, BUSY),
            (RESIDENT | GUARD, BUSY),
            (RESIDENT | EXCLUSIVE, BUSY),
            (HOME, ABSENT),
        ];
        for (before, expected) in cases {
            let before = before | AHEAD | WRITER_PENDING | WAITED;
            let entry = page(before);
            let result = entry.try_exclusive(holder);
            assert_eq!(refused(&result), expected, "{:?}", State(before));
            let held = match holder {
                Holder::Pin => before | USED | EXCLUSIVE,
                Holder::Guard => (before | USED | EXCLUSIVE | GUARD) & !WAITED,
            };
            let after = if expected == TAKEN { held & !(AHEAD | WRITER_PENDING) } else { before };
            assert_eq!(word(&entry), after, "{:?}", State(before));
        }
    }
}

#[test]
fn absent_pages_are_claimed_with_or_without_readers_of_their_homes() {
    // Each case has a state and two answers: do readers stay, and can the page be claimed?
    let cases = [
        (HOME, false, true),
        (HOME | PIN, false, false),
        (HOME | PIN, true, true),
        (HOME | FULL_OF_PINS, true, false),
        (HOME | RESIDENT, true, false),
        (HOME | EXCLUSIVE, true, false),
        (0, false, true),
    ];
    for (before, readers_stay, is_taken) in cases {
        let before = before | WAITED;
        let entry = page(before);
        let claimed = entry.try_claim_absent(readers_stay);
        assert_eq!(claimed.is_ok(), is_taken, "{:?}", State(before));
        assert_eq!(word(&entry), if is_taken { before | EXCLUSIVE } else { before });

        let entry = page(before);
        let claimed = entry.claim_to_load(readers_stay);
        assert_eq!(claimed.is_ok(), is_taken, "{:?}", State(before));
        let transfer = if before & HOME == 0 { before } else { (before | IN_FLIGHT) & !WAITED };
        assert_eq!(word(&entry), if is_taken { transfer | EXCLUSIVE } else { before });
    }
}

#[test]
fn transfers_are_marked_once_and_wake_waiting_threads() {
    let entry = page(EXCLUSIVE | WAITED);
    assert!(entry.mark_in_flight());
    assert_eq!(word(&entry), EXCLUSIVE | IN_FLIGHT);
    assert!(!entry.mark_in_flight());
    let entry = page(EXCLUSIVE | IN_FLIGHT | WAITED);
    assert!(entry.mark_in_flight(), "a thread may have slept since");
    assert_eq!(word(&entry), EXCLUSIVE | IN_FLIGHT);
}

#[test]
fn frames_come_and_go() {
    let mut frame = [0_u8; 8];
    let address = frame.as_mut_ptr();
    let entry = page(EXCLUSIVE | IN_FLIGHT | WRITER_PENDING | HOME);
    entry.install(address);
    assert_eq!((word(&entry), entry.address()), (EXCLUSIVE | HOME | RESIDENT, address));

    for waited in [0, WAITED] {
        let entry = page(EXCLUSIVE | IN_FLIGHT | WRITER_PENDING | HOME | waited);
        assert_eq!(entry.install_and_release(address, AHEAD), waited != 0);
        assert_eq!((word(&entry), entry.address()), (HOME | RESIDENT | AHEAD | VERSION, address));

        let held = RESIDENT | USED | DIRTY | EXCLUSIVE | HOME | waited;
        let entry = page(held);
        assert_eq!(entry.unmap(false), waited != 0);
        assert_eq!(word(&entry), HOME | VERSION);
        let entry = page(held);
        assert_eq!(entry.unmap(true), waited != 0);
        assert_eq!(word(&entry), VERSION, "its home slot counts as empty");
        let entry = page(held);
        assert_eq!(entry.unmap_and_keep(), waited != 0);
        assert_eq!(word(&entry), HOME | EXCLUSIVE | VERSION);
    }
}

#[test]
fn exclusive_holds_end_with_another_version() {
    for waited in [0, WAITED] {
        let held = RESIDENT | EXCLUSIVE | IN_FLIGHT | waited;
        let entry = page(held);
        assert_eq!(entry.release_exclusive(Holder::Pin, DIRTY), waited != 0);
        assert_eq!(word(&entry), RESIDENT | DIRTY | VERSION);
        let entry = page(held | GUARD);
        assert_eq!(entry.release_exclusive(Holder::Guard, 0), waited != 0);
        assert_eq!(word(&entry), RESIDENT | VERSION);
        let entry = page(EXCLUSIVE | IN_FLIGHT | ZEROED | waited);
        assert_eq!(entry.release_written(), waited != 0);
        assert_eq!(word(&entry), HOME | VERSION);
        for holder in ALL_HOLDERS {
            let entry = page(held);
            assert_eq!(entry.downgrade(holder), waited != 0);
            assert_eq!(word(&entry), (RESIDENT | USED | VERSION) + holder.unit());
        }
    }
    let entry = page(RESIDENT | EXCLUSIVE | WAITED);
    assert!(!entry.hold_exclusive(Holder::Pin));
    assert!(entry.hold_exclusive(Holder::Guard));
    assert_eq!(word(&entry), RESIDENT | EXCLUSIVE | GUARD);
    assert!(!page(RESIDENT | EXCLUSIVE).hold_exclusive(Holder::Guard), "no thread waits");
}

#[test]
fn writers_ask_sharers_to_wait_and_let_them_in_again() {
    let entry = page(RESIDENT | PIN);
    entry.set_writer_pending();
    assert_eq!(word(&entry), RESIDENT | PIN | WRITER_PENDING);
    assert!(!entry.give_up());
    assert_eq!(word(&entry), RESIDENT | PIN);
    let entry = page(RESIDENT | PIN | WRITER_PENDING | WAITED);
    assert!(entry.give_up());
    assert_eq!(word(&entry), RESIDENT | PIN);
}

#[test]
fn threads_ask_to_be_woken_while_there_is_something_to_wait_for() {
    let entry = page(RESIDENT | EXCLUSIVE);
    assert!(entry.ask_to_wake(|state| state.any(EXCLUSIVE)));
    assert_eq!(word(&entry), RESIDENT | EXCLUSIVE | WAITED);
    let entry = page(RESIDENT);
    assert!(!entry.ask_to_wake(|state| state.any(EXCLUSIVE)));
    assert_eq!(word(&entry), RESIDENT);
}

#[test]
fn gates_open_with_the_frame_and_shut_before_it_goes() {
    let mut frame = [0_u8; 8];
    let entry = page(EXCLUSIVE);
    entry.install(frame.as_mut_ptr());
    entry.open_reads();
    assert_eq!((entry.read_gate(), entry.write_gate().is_null()), (frame.as_mut_ptr(), true));
    assert_eq!(word(&entry), RESIDENT | EXCLUSIVE | READERS);
    entry.open_writes();
    assert_eq!((entry.read_gate(), entry.write_gate()), (frame.as_mut_ptr(), frame.as_mut_ptr()));
    assert_eq!(word(&entry), RESIDENT | EXCLUSIVE | READERS | WRITERS | DIRTY);
    entry.shut_writes();
    assert!(entry.write_gate().is_null() && !entry.read_gate().is_null());
    entry.quiet(WRITERS);
    assert_eq!(word(&entry), RESIDENT | EXCLUSIVE | READERS | DIRTY);
    entry.shut();
    assert!(entry.read_gate().is_null());
    entry.quiet(READERS | WRITERS);
    assert_eq!(word(&entry), RESIDENT | EXCLUSIVE | DIRTY);
}

#[test]
fn sweeps_evict_idle_pages_and_spare_used_ones() {
    // Each case has a state and two settings (does use count, are dirty pages wanted), the outcome, and the
    // state after the sweep.
    let claimed = |state| (Sweep::Claimed(State(state)), state | EXCLUSIVE);
    let write_back = |state: u64| (Sweep::WriteBack(State(state)), (state | IN_FLIGHT) + PIN);
    let busy = |state| (Sweep::Busy, state);
    let dirty = RESIDENT | DIRTY;
    let cases = [
        (RESIDENT, true, true, claimed(RESIDENT)),
        (RESIDENT | USED, true, true, (Sweep::SecondChance, RESIDENT)),
        (RESIDENT | USED, false, true, claimed(RESIDENT | USED)),
        (dirty, true, true, write_back(dirty)),
        (dirty, true, false, busy(dirty)),
        (0, true, true, busy(0)),
        (RESIDENT | PIN, true, true, busy(RESIDENT | PIN)),
        (RESIDENT | GUARD, true, true, busy(RESIDENT | GUARD)),
        (RESIDENT | EXCLUSIVE, true, true, busy(RESIDENT | EXCLUSIVE)),
        (RESIDENT | EXCLUSIVE | IN_FLIGHT, true, true, busy(RESIDENT | EXCLUSIVE | IN_FLIGHT)),
    ];
    for (before, recency, wants_dirty, (found, after)) in cases {
        let entry = page(before);
        assert_eq!((entry.sweep(recency, wants_dirty), word(&entry)), (found, after), "{:?}", State(before));
    }
    // A page with an open read gate counts as used, until the gate is shut.
    let mut frame = [0_u8; 8];
    let entry = page(EXCLUSIVE);
    entry.install(frame.as_mut_ptr());
    entry.open_reads();
    let _ = entry.release_exclusive(Holder::Pin, 0);
    assert!(entry.is_used());
    assert_eq!(entry.sweep(true, true), Sweep::SecondChance);
    assert!(entry.read_gate().is_null() && !entry.is_used());
    let entry = page(RESIDENT | USED);
    assert!(entry.is_used());
    entry.forget_use();
    assert!(!entry.is_used());
    // After a write-back the home slot no longer contains zeroes.
    let entry = page(RESIDENT | DIRTY | ZEROED);
    assert!(matches!(entry.sweep(true, true), Sweep::WriteBack(_)));
    assert_eq!(word(&entry), (RESIDENT | DIRTY | IN_FLIGHT) + PIN);
}

#[test]
fn write_backs_begin_and_end() {
    let cases = [
        (RESIDENT | DIRTY, TAKEN),
        (RESIDENT | DIRTY | PIN | GUARD, TAKEN),
        (RESIDENT, ABSENT),
        (RESIDENT | DIRTY | EXCLUSIVE, BUSY),
        (RESIDENT | EXCLUSIVE, BUSY),
        (RESIDENT | DIRTY | IN_FLIGHT | PIN, BUSY),
        (RESIDENT | DIRTY | FULL_OF_PINS, BUSY),
    ];
    for (before, expected) in cases {
        let entry = page(before);
        let result = entry.try_write_back();
        assert_eq!(refused(&result), expected, "{:?}", State(before));
        let after = if expected == TAKEN { (before | IN_FLIGHT) + PIN } else { before };
        assert_eq!(word(&entry), after);
    }
    let entry = page(RESIDENT | DIRTY | EXCLUSIVE | ZEROED);
    assert_eq!(entry.write_back_held().0, RESIDENT | DIRTY | EXCLUSIVE | ZEROED);
    assert_eq!(word(&entry), (RESIDENT | DIRTY | EXCLUSIVE | IN_FLIGHT) + PIN);
    for waited in [0, WAITED] {
        let under_way = RESIDENT | DIRTY | IN_FLIGHT | PIN | waited;
        let entry = page(under_way);
        assert_eq!(entry.end_write_back(true), waited != 0);
        assert_eq!(word(&entry), RESIDENT | HOME);
        let entry = page(under_way);
        assert_eq!(entry.end_write_back(false), waited != 0);
        assert_eq!(word(&entry), RESIDENT | DIRTY);
    }
}

#[test]
fn homes_are_known_to_be_zeroed_until_they_are_written() {
    let entry = page(EXCLUSIVE);
    entry.home_is_zeroed();
    assert_eq!(word(&entry), EXCLUSIVE | ZEROED);
    entry.home_is_unknown();
    assert_eq!(word(&entry), EXCLUSIVE);
    entry.install(std::ptr::without_provenance_mut(64));
    entry.mark_dirty();
    assert_eq!(word(&entry), EXCLUSIVE | RESIDENT | DIRTY);
}

#[test]
fn states_validate_reads_and_contradict_themselves() {
    let state = State(RESIDENT | PIN);
    assert!(state.validates(State(RESIDENT | DIRTY | WAITED)));
    assert!(!state.validates(State(RESIDENT | VERSION)) && !state.validates(State(RESIDENT | EXCLUSIVE)));
    assert!(!State(RESIDENT | EXCLUSIVE).validates(State(RESIDENT | EXCLUSIVE)));
    let incoherent = [DIRTY, RESIDENT | WRITERS, RESIDENT | IN_FLIGHT, HOME | ZEROED];
    assert!(incoherent.iter().all(|&state| !State(state).is_coherent()));
    let coherent = [
        0,
        RESIDENT | DIRTY,
        RESIDENT | DIRTY | WRITERS,
        EXCLUSIVE | IN_FLIGHT,
        IN_FLIGHT | PIN,
        HOME,
        ZEROED,
    ];
    assert!(coherent.iter().all(|&state| State(state).is_coherent()));
    assert_eq!((State((3 * PIN) | (5 * GUARD) | (7 * VERSION)).pins(), State(5 * GUARD).guards()), (3, 5));
    assert_eq!(State((7 * VERSION) | RESIDENT).version(), 7);
}
