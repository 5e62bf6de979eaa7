//! What can be said of kernels without a card: the texts are carried out by the fake driver and compared with
//! the interpreter; with `VMARRAY_PTXAS` naming NVIDIA's assembler, it takes them.

use std::sync::atomic::Ordering;

use backend_api::conformance::random::{self, Case};
use backend_api::conformance::{Limits, Outcome, checks};
use backend_api::expr::Geometry;
use backend_api::kernel::{Access, Body, Memory, Op, Reg, Type, ViewDecl, Where};
use backend_api::{BufferHandle, Device, Elements, Fill, HostAllocation, HostMemory, Transfer};

use super::*;
use crate::CudaDevice;
use crate::fake::{self, driven};
use crate::options::{Options, Route};

/// Copies that are no kernels, which the fake driver does not know.
fn device() -> Arc<CudaDevice> {
    fake::device(&Options::new().with_route(Route::Single))
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn random_kernels_do_what_the_interpreter_does() {
    let named = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (number, seed) = (named("VMARRAY_TEST_KERNELS").unwrap_or(200), named("VMARRAY_TEST_SEED"));
    // Of old cards, too, which have fewer instructions.
    for (capability, first) in [(9, 5000), (5, 7000)] {
        fake::CAPABILITY.set(capability);
        let first = seed.unwrap_or(first);
        assert_eq!(random::launch_all(&device(), first..first + number), number);
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
        "items_of_a_group_take_different_ways",
        "operations_across_lanes",
        "atomics_of_every_kind",
        "items_append_what_they_have",
        "items_that_meet_leave_loops_by_their_budget",
        "items_have_memory_of_their_own",
        "malformed_launches_are_refused",
        "preparing_launches_changes_nothing",
    ];
    for capability in [9, 5] {
        fake::CAPABILITY.set(capability);
        let device = device();
        for name in of_launches {
            let check = checks::<CudaDevice>().iter().find(|check| check.name == name).expect("a check");
            let outcome = check.run(&device, &Limits::default());
            assert!(matches!(outcome, Outcome::Passed), "{name} on a card of {capability}: {outcome:?}");
        }
    }
}

#[test]
fn items_take_memory_on_a_card_that_is_almost_full() {
    let scene = fake::Scene::on(device(), 4096);
    let (of, [place, bytes, item]) = (Memory::Value(Type::U64), [0, 1, 2].map(Reg));
    let kernel = Kernel::new(Body {
        registers: vec![Type::U64; 3],
        params: vec![Type::U64],
        views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, of)] }],
        code: vec![
            Op::Param { to: bytes, number: 0 },
            Op::Arena { to: place, bytes },
            Op::Where { to: item, what: Where::Item },
            Op::ArenaStore { at: place, value: item },
            Op::ArenaLoad { to: item, at: place },
            Op::Literal { to: place, bits: 0 },
            Op::Store { view: 0, at: place, offset: 0, of, value: item },
        ],
        ..Body::default()
    })
    .unwrap();
    let launch = |bytes: u64, no_bytes_above: Option<usize>| {
        driven(|driven| driven.no_bytes_above = no_bytes_above);
        let views = [View::Run(Elements { start: scene.memory.at(0), count: 512, stride: 8 })];
        let launched = scene.queue.launch(&Launch {
            views: &views,
            params: &[bytes],
            arena_bytes: 1 << 40,
            ..Launch::new(&kernel, 512, Geometry::plain(0), scene.host.at(0))
        });
        driven(|driven| driven.no_bytes_above = None);
        scene.device.wait(launched?)?;
        let transfer = Transfer::Download { from: scene.memory.at(0), to: scene.host.at(0), bytes: 4096 };
        scene.device.wait(scene.queue.submit(&[transfer])?)?;
        let mut found = [[0; 8]; 512];
        scene.host.read(0, found.as_flattened_mut());
        assert!((0..).zip(found).all(|(item, found)| u64::from_ne_bytes(found) == item));
        scene.device.wait(scene.queue.fill(&Fill { to: scene.memory.at(0), bytes: 4096, pattern: &[7] })?)
    };
    // Two blocks at once, or one of them after the other.
    launch(64, None).unwrap();
    launch(1024, Some(256 * 1024)).unwrap();
    launch(1024, Some(0)).unwrap();
    assert_eq!(launch(2048, Some(256 * 1024)).unwrap_err().kind(), ErrorKind::OutOfMemory);
    launch(2048, None).unwrap();
    // More than any card has.
    assert_eq!(launch(1 << 32, None).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

#[test]
fn a_panic_of_who_submits_leaves_nothing_in_flight() {
    let scene = fake::Scene::new(4096);
    let (core, id) = (&scene.device.core, scene.queue.id());
    let submit = || {
        core.enqueue("launch", id, |work| {
            work.report("launch", 0)?;
            panic!("in code of the program")
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit)).is_err());
    // No report is waited for, and the queue goes on.
    assert_eq!(core.queue("launch", id).unwrap().attention.load(Ordering::Acquire), 0);
    scene.device.wait(scene.submit()).unwrap();
}

/// The texts of random kernels, so many in each.
fn texts(seeds: std::ops::Range<u64>, each: usize, capability: (u32, u32)) -> Vec<String> {
    let (memory, seeds): (_, Vec<u64>) = (BufferHandle::unique(), seeds.collect());
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
