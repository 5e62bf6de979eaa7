//! What can be said of kernels without a card: the texts are carried out by the fake driver and compared with
//! the interpreter; with `VMARRAY_PTXAS` naming NVIDIA's assembler, it takes them.

use backend_api::conformance::random::{self, Case};
use backend_api::conformance::{Limits, Outcome, checks};
use backend_api::{BufferHandle, Elements, HostAllocation, HostMemory};

use super::*;
use crate::CudaDevice;
use crate::fake;
use crate::options::{Options, Route};

/// Copies that are no kernels, which the fake driver does not know.
fn device() -> Arc<CudaDevice> {
    fake::device(&Options::new().with_route(Route::Single))
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn random_kernels_do_what_the_interpreter_does() {
    let number = std::env::var("VMARRAY_TEST_KERNELS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    // Of old cards, too, which have fewer instructions.
    for (capability, first) in [(9, 5000), (5, 7000)] {
        fake::CAPABILITY.set(capability);
        let possible = (first..first + number).filter(|seed| is_possible(*seed)).count() as u64;
        assert_eq!(random::launch_all(&device(), first..first + number), possible);
    }
}

#[test]
fn tables_are_read_where_loops_end_by_their_budget() {
    fake::CAPABILITY.set(9);
    // There no register is known for certain, not even the index of a table among the parameters.
    for seed in [1_005_827, 1_018_897] {
        assert_eq!(random::launch_all(&device(), seed..seed + 1), 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn votes_ask_what_the_assembler_cannot_know() {
    let (text, mut votes) = (texts(5000..5400, 400, (9, 0)).concat(), 0);
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("\tvote.sync.")) {
        let predicate = line.split(", ").nth(1).expect("an operand");
        let made = lines[..at].iter().rfind(|line| line.starts_with(&format!("\tsetp.eq.u32 {predicate}, ")));
        let one = made.and_then(|line| line.strip_suffix(';')?.rsplit(", ").next()).expect("a comparison");
        assert!(lines[..at].contains(&format!("\tmov.u32 {one}, %nctaid.y;").as_str()), "{line}");
        votes += 1;
    }
    assert!(votes > 3, "{votes}");
}

/// Whether the case of a seed is carried out: without memory of the items' own.
fn is_possible(seed: u64) -> bool {
    !Case::new(seed, seed.is_multiple_of(3)).kernel.needs().arena
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn random_items_side_by_side_do_what_the_interpreter_does() {
    fake::CAPABILITY.set(9);
    let device = device();
    for seed in (0..1600).filter(|seed| Case::is_plain(*seed)) {
        assert_eq!(random::launch_all(&device, seed..seed + 1), 1);
    }
    // Most of them take the way that they are for.
    let text = texts(0..1600, 1600, (9, 0)).concat();
    let side_by_side = text.matches("\nsingle:\n").count();
    assert!((100..=200).contains(&side_by_side), "{side_by_side} of 200");
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn launches_conform() {
    // That of order fills memory by a kernel of another kind.
    let of_launches = [
        "launches_of_nothing",
        "launches_with_every_operation",
        "random_launches",
        "launches_with_half_precision",
        "launches_on_pages_that_were_dealt_out",
        "items_that_fail_go_on",
        "groups_share_memory_and_meet",
        "operations_across_lanes",
        "atomics_of_every_kind",
        "items_append_what_they_have",
        "items_that_meet_leave_loops_by_their_budget",
        "malformed_launches_are_refused",
        "preparing_launches_changes_nothing",
    ];
    for capability in [9, 5] {
        fake::CAPABILITY.set(capability);
        let device = device();
        for name in of_launches {
            let check = checks::<CudaDevice>().iter().find(|check| check.name == name).expect("a check");
            let outcome = check.run(&device, &Limits::default());
            // Some random kernels give items memory of their own, which is refused here.
            let fine = match &outcome {
                Outcome::Passed => true,
                Outcome::Skipped(why) => why.ends_with("needs an arena"),
                Outcome::Failed(_) => false,
            };
            assert!(fine, "{name} on a card of {capability}: {outcome:?}");
        }
    }
}

/// The texts of random kernels, so many in each.
fn texts(seeds: std::ops::Range<u64>, each: usize, capability: (u32, u32)) -> Vec<String> {
    let (memory, seeds) = (BufferHandle::unique(), seeds.filter(|seed| is_possible(*seed)));
    let seeds: Vec<u64> = seeds.collect();
    // SAFETY: no bytes are anywhere.
    let host = unsafe { HostAllocation::new(std::ptr::NonNull::dangling(), 0, HostMemory::Pageable) };
    let shape = |seed: &u64| {
        let case = Case::new(*seed, seed.is_multiple_of(3));
        let elements = |view: &random::CaseView| Elements {
            start: memory.at(view.shift),
            count: view.count,
            stride: view.stride,
        };
        let views: Vec<View<'_>> = case.views.iter().map(|view| View::Run(elements(view))).collect();
        let bases = case.views.iter().map(|view| view.shift).collect();
        let launch = Launch {
            views: &views,
            params: &case.params,
            table: &case.table,
            budget: case.budget,
            ..Launch::new(&case.kernel, case.items, case.geometry, host.at(0))
        };
        Launches::new(capability).plan("launch", &launch, bases).expect("a plan").shape
    };
    let text = |seeds: &[u64]| codegen::module(&seeds.iter().map(shape).collect::<Vec<_>>(), capability).0;
    seeds.chunks(each).map(text).collect()
}

#[test]
#[ignore = "needs NVIDIA's ptxas, named by VMARRAY_PTXAS"]
fn the_assembler_takes_random_kernels() {
    let number = std::env::var("VMARRAY_TEST_KERNELS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    for (target, capability) in [("sm_50", (5, 0)), ("sm_70", (7, 0)), ("sm_90", (9, 0))] {
        for text in texts(0..number, 50, capability) {
            crate::kernel::assemble(target, &text);
        }
    }
}
