//! Tests of kernels without a GPU: the fake driver runs the generated PTX, and the tests compare the results
//! with the interpreter's. If `VMARRAY_PTXAS` names NVIDIA's assembler, it must accept the PTX.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend_api::expr::Geometry;
use backend_api::kernel::{Access, Body, Builtin, Memory, Op, Reg, Report, Type, VerifiedKernel, ViewDecl};
use backend_api::wrap::{has_all_cases, random_cases};
use backend_api::{BufferHandle, Device, Elements, ErrorKind, Fill, HostAllocation, HostMemory, Transfer};
use vmarray_conformance::random::{self, Case, CaseView};
use vmarray_conformance::{Limits, Outcome, checks};

use super::cache::TranslatedKernelCache;
use super::*;
use crate::CudaDevice;
use crate::fake::{self, driven};
use crate::options::{CudaOptions, Route};

/// Without copy kernels, which the fake driver does not support.
fn device() -> Arc<CudaDevice> {
    fake::device(&CudaOptions::new().with_route(Route::Single))
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn random_kernels_match_the_interpreter() {
    let number = random_cases(200).into();
    // Include old GPUs, which have fewer instructions.
    for (capability, first) in [(9, 5000), (5, 7000)] {
        fake::CAPABILITY.set(capability);
        assert_eq!(random::launch_all(&device(), first..first + number), number);
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn votes_query_values_unknown_to_the_assembler() {
    let (text, mut votes) = (texts(5000..5400, 400, (9, 0)).concat(), 0);
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("\tvote.sync.")) {
        let predicate = line.split(", ").nth(1).expect("an operand");
        // The last line that makes a register, and its last operand.
        let last_operand = |start: &str| {
            let made = lines[..at].iter().rfind(|line| line.starts_with(start))?;
            made.strip_suffix(';')?.rsplit(", ").next()
        };
        let of_bits = || {
            let bit = lines[at - 2].strip_prefix("\tand.b32 ")?;
            let zero = last_operand(&format!("\tor.b32 {}, ", bit.split(", ").nth(1)?))?;
            lines[..at].contains(&format!("\tsub.u32 {zero}, {zero}, 1;").as_str()).then_some(zero)
        };
        let one = last_operand(&format!("\tsetp.eq.u32 {predicate}, ")).or_else(of_bits).expect("a value");
        assert!(lines[..at].contains(&format!("\tmov.u32 {one}, %nctaid.y;").as_str()), "{line}");
        votes += 1;
    }
    assert!(votes > 3, "{votes}");
}

#[test]
fn reciprocals_divide_numbers_of_31_bits() {
    let edges = |number: u64| [number.saturating_sub(1), number, number + 1];
    let numbers: Vec<u64> = (0..31).flat_map(|bit| edges(1 << bit)).chain(edges(1_000_003)).collect();
    for divisor in numbers.iter().filter(|divisor| **divisor > 0 && **divisor >> 31 == 0) {
        let word = reciprocal(*divisor);
        let divided = |number: u64| (2 * number * (word & 0xFFFF_FFFF)) >> 32 >> (word >> 32);
        let multiples = numbers.iter().flat_map(|by| edges(divisor * by));
        for number in numbers.iter().copied().chain(multiples).filter(|number| number >> 31 == 0) {
            assert_eq!(divided(number), number / divisor, "{number} by {divisor}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn random_items_in_vectors_match_the_interpreter() {
    fake::CAPABILITY.set(9);
    let device = device();
    for seed in (0..random_cases(1600).into()).filter(|seed| Case::is_plain(*seed)) {
        assert_eq!(random::launch_all(&device, seed..seed + 1), 1);
    }
    // At least half of the kernels use the variant under test.
    let text = texts(0..1600, 1600, (9, 0)).concat();
    let side_by_side = text.matches("\nsingle:\n").count();
    assert!((100..=200).contains(&side_by_side), "{side_by_side} of 200");
}

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn launches_conform() {
    // The check of order fills memory with a kernel of another kind.
    let of_launches = [
        "launches_of_nothing",
        "launches_with_every_operation",
        "random_launches",
        "launches_with_half_precision",
        "launches_on_striped_pages",
        "items_that_fail_go_on",
        "groups_share_memory_and_meet",
        "items_of_a_group_take_different_ways",
        "operations_across_lanes",
        "atomics_of_every_kind",
        "elements_of_several_fields_are_moved",
        "values_are_released_and_acquired",
        "groups_wait_for_earlier_groups",
        "items_append_their_values",
        "items_that_meet_leave_loops_by_their_budget",
        "items_have_memory_of_their_own",
        "malformed_launches_are_refused",
        "preparing_launches_changes_nothing",
    ];
    for capability in [9, 5] {
        fake::CAPABILITY.set(capability);
        let device = device();
        for name in of_launches {
            let check = checks().iter().find(|check| check.name == name).expect("a check");
            let outcome = check.run(&device, &Limits::default());
            assert!(matches!(outcome, Outcome::Passed), "{name} on a card of {capability}: {outcome:?}");
        }
    }
}

#[test]
fn items_take_memory_on_a_card_that_is_almost_full() {
    let scene = fake::FakeScene::on(device(), 4096);
    let (of, [place, bytes, item]) = (Memory::Value(Type::U64), [0, 1, 2].map(Reg));
    let kernel = VerifiedKernel::new(Body {
        registers: vec![Type::U64; 3],
        params: vec![Type::U64],
        views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, of)] }],
        code: vec![
            Op::Param { to: bytes, number: 0 },
            Op::PrivateAlloc { to: place, bytes },
            Op::Builtin { to: item, what: Builtin::Item },
            Op::PrivateStore { at: place, value: item },
            Op::PrivateLoad { to: item, at: place },
            Op::Literal { to: place, bits: 0 },
            Op::Store { view: 0, at: place, offset: 0, of, value: item },
        ],
        ..Body::default()
    })
    .unwrap();
    let launch = |bytes: u64, no_bytes_above: Option<usize>| {
        driven(|driven| driven.no_bytes_above = no_bytes_above);
        let views = [LaunchView::Run(Elements { start: scene.memory.at(0), count: 512, stride: 8 })];
        let launched = scene.queue.submit(&Launch {
            views: &views,
            params: &[bytes],
            private_heap_bytes: 1 << 40,
            ..Launch::new(&kernel, 512, Geometry::plain(0), scene.host.at(0))
        });
        driven(|driven| driven.no_bytes_above = None);
        scene.device.wait(launched?)?;
        let transfer = Transfer::Download { from: scene.memory.at(0), to: scene.host.at(0), bytes: 4096 };
        scene.device.wait(scene.queue.submit(&[transfer])?)?;
        let mut found = [[0; 8]; 512];
        scene.host.read(0, found.as_flattened_mut());
        assert!((0..).zip(found).all(|(item, found)| u64::from_ne_bytes(found) == item));
        scene.device.wait(scene.queue.submit(&Fill { to: scene.memory.at(0), bytes: 4096, pattern: &[7] })?)
    };
    // In turn, two blocks run at the same time, or one after the other.
    launch(64, None).unwrap();
    launch(1024, Some(256 * 1024)).unwrap();
    launch(1024, Some(0)).unwrap();
    assert_eq!(launch(2048, Some(256 * 1024)).unwrap_err().kind(), ErrorKind::OutOfMemory);
    launch(2048, None).unwrap();
    // This is more than any GPU has.
    assert_eq!(launch(1 << 32, None).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

#[test]
fn fields_of_an_element_are_loaded_and_stored_at_once() {
    let of = Memory::Value(Type::U32);
    let fields: Vec<(u32, Memory)> = (0..4).map(|field| (4 * field, of)).collect();
    let values = || (2..).map(Reg).zip([0, 4, 8, 12]);
    let mut code = vec![Op::Param { to: Reg(1), number: 0 }, Op::Literal { to: Reg(0), bits: 0 }];
    code.extend(values().map(|(to, offset)| Op::Load { to, view: 1, at: Reg(1), offset, of }));
    code.extend(values().map(|(value, offset)| Op::Store { view: 0, at: Reg(0), offset, of, value }));
    let kernel = VerifiedKernel::new(Body {
        registers: [vec![Type::U64; 2], vec![Type::U32; 4]].concat(),
        params: vec![Type::U64],
        views: [Access::Write { tile: 1 }, Access::Read]
            .map(|access| ViewDecl { access, fields: fields.clone() })
            .into(),
        code,
        ..Body::default()
    })
    .unwrap();
    for (align, expected) in
        [(16, ["ld.global.nc.v4.u32", "st.global.v4.u32"]), (8, ["ld.global.nc.v2.u32"; 2])]
    {
        let view =
            codegen::ViewLayout { stride: 16, align, page_len: 1, bases: 1, is_inside: false, ahead: 0 };
        let shape = KernelKey::plain(kernel.clone(), vec![view.clone(), view]);
        let (text, _) = codegen::module(&[shape], (9, 0));
        assert!(expected.iter().all(|instruction| text.contains(instruction)), "{text}");
    }
}

#[test]
fn arrays_of_groups_are_cleared_unless_all_elements_are_written_first() {
    use vmarray_kernel::{At, Group, Own, kernel, lower};

    #[kernel(crate = vmarray_kernel, group = 64)]
    fn turned<const N: usize>(at: At<1>, part: &Group<u32, N>, x: &mut Own<u32>) {
        part.set(at.in_group(), x.get());
        part.set(at.in_group() + 64, 1);
        barrier();
        x.set(part[N - 1 - at.in_group()]);
    }

    #[kernel(crate = vmarray_kernel, group = 64)]
    fn read_before(at: At<1>, part: &Group<u32, 64>, x: &mut Own<u32>) {
        let before = part[63 - at.in_group()];
        part.set(at.in_group(), x.get());
        barrier();
        x.set(before + part[63 - at.in_group()]);
    }

    #[kernel(crate = vmarray_kernel, group = 64)]
    fn written_by_some(at: At<1>, part: &Group<u32, 64>, x: &mut Own<u32>) {
        if x.get() > 7 {
            part.set(at.in_group(), x.get());
        }
        barrier();
        x.set(part[63 - at.in_group()]);
    }

    let clears = |lowered: vmarray_kernel::LoweredKernel| {
        let view =
            codegen::ViewLayout { stride: 4, align: 4, page_len: 1, bases: 1, is_inside: false, ahead: 0 };
        let shape = KernelKey::plain(VerifiedKernel::new(lowered.body).unwrap(), vec![view]);
        let (text, _) = codegen::module(&[shape], (9, 0));
        text.lines().any(|line| line.contains("st.shared.u64 [") && line.ends_with("], 0;"))
    };
    assert!(!clears(lower::<turned<128>>().unwrap()));
    assert!(!clears(lower::<turned<100>>().unwrap()));
    assert!(clears(lower::<turned<129>>().unwrap()));
    assert!(clears(lower::<read_before>().unwrap()) && clears(lower::<written_by_some>().unwrap()));
}

#[test]
fn a_panic_in_a_submission_leaves_nothing_in_flight() {
    let scene = fake::FakeScene::new(4096);
    let (core, id) = (&scene.device.core, scene.queue.id());
    let submit = || {
        core.enqueue("launch", id, |work| {
            work.report("launch", 0)?;
            panic!("in code of the program")
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(submit)).is_err());
    // No report is pending, and the queue continues.
    assert_eq!(core.queue("launch", id).unwrap().attention.load(Ordering::Acquire), 0);
    scene.device.wait(scene.submit()).unwrap();
}

/// The shape of a launch.
fn shape(case: &Case, capability: (u32, u32)) -> KernelKey {
    let memory = BufferHandle::unique();
    // SAFETY: the allocation has no bytes.
    let host = unsafe { HostAllocation::new(std::ptr::NonNull::dangling(), 0, HostMemory::Pageable) };
    let elements =
        |view: &CaseView| Elements { start: memory.at(view.shift), count: view.count, stride: view.stride };
    let views: Vec<LaunchView<'_>> = case.views.iter().map(|view| LaunchView::Run(elements(view))).collect();
    let bases = case.views.iter().map(|view| view.shift).collect();
    let launch = Launch {
        views: &views,
        params: &case.params,
        table: &case.table,
        budget: case.budget,
        ..Launch::new(&case.kernel, case.items, case.geometry, host.at(0))
    };
    TranslatedKernelCache::new(capability).plan("launch", &launch, bases).expect("a plan").shape
}

/// Texts of random kernels, `each` in one module.
fn texts(seeds: std::ops::Range<u64>, each: usize, capability: (u32, u32)) -> Vec<String> {
    let shapes = seeds.map(|seed| shape(&Case::new(seed, seed.is_multiple_of(3)), capability));
    shapes.collect::<Vec<_>>().chunks(each).map(|shapes| codegen::module(shapes, capability).0).collect()
}

#[test]
#[ignore = "needs NVIDIA's ptxas, named by VMARRAY_PTXAS"]
fn the_assembler_takes_random_kernels() {
    for (target, capability) in [("sm_50", (5, 0)), ("sm_70", (7, 0)), ("sm_90", (9, 0))] {
        for text in texts(0..random_cases(200).into(), 50, capability) {
            crate::kernel::assemble(target, &text);
        }
    }
}

/// Runs a case on a GPU, with the bytes of each view `shift` bytes behind a multiple of 256.
fn check(scene: &fake::FakeScene, case: &Case, shift: u64) {
    let (mut at, mut places) = (256, Vec::new());
    let transfer = |place: u64, bytes: &[u8]| {
        scene.host.write(0, bytes);
        let (from, to) = (scene.host.at(0), scene.memory.at(place));
        let upload = Transfer::Upload { from, to, bytes: bytes.len() as u64 };
        scene.device.wait(scene.queue.submit(&[upload]).unwrap()).unwrap();
    };
    for view in &case.views {
        transfer(at + shift, &view.bytes);
        places.push(at + shift);
        at += (view.bytes.len() as u64 + 512).next_multiple_of(256);
    }
    let views: Vec<LaunchView<'_>> = case
        .views
        .iter()
        .zip(&places)
        .map(|(view, place)| {
            LaunchView::Run(Elements {
                start: scene.memory.at(*place),
                count: view.count,
                stride: view.stride,
            })
        })
        .collect();
    let launch = Launch {
        views: &views,
        params: &case.params,
        table: &case.table,
        ..Launch::new(&case.kernel, case.items, case.geometry, scene.host.at(0))
    };
    scene.device.wait(scene.queue.submit(&launch).unwrap()).unwrap();
    let mut report = [0_u64; Report::BYTES as usize / 8];
    let mut raw = [0_u8; Report::BYTES as usize];
    scene.host.read(0, &mut raw);
    for (word, bytes) in report.iter_mut().zip(raw.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let found: Vec<Vec<u8>> = case
        .views
        .iter()
        .zip(&places)
        .map(|(view, place)| {
            let mut bytes = vec![0; view.bytes.len()];
            let (from, to) = (scene.memory.at(*place), scene.host.at(0));
            let download = Transfer::Download { from, to, bytes: bytes.len() as u64 };
            scene.device.wait(scene.queue.submit(&[download]).unwrap()).unwrap();
            scene.host.read(0, &mut bytes);
            bytes
        })
        .collect();
    case.check(&found, Report::from_words(report)).unwrap();
}

mod windows {
    use super::*;
    use vmarray_kernel::launch::{DomainAxis, LaunchVariant, Mode, lower_for};
    use vmarray_kernel::{Anywhere, At, Own, ScalarSource, StencilPart, Window, kernel};

    #[kernel(crate = vmarray_kernel)]
    fn five(at: At<2>, x: &Window<f32, 2>, out: &mut Own<f32>) {
        let sides = x[at.plus([0, -1])] + x[at.plus([0, 1])];
        let sum = sides + (x[at.plus([-1, 0])] + x[at.plus([1, 0])]);
        out.set(0.5 * x[at] + 0.125 * sum);
    }

    #[kernel(crate = vmarray_kernel)]
    fn bytes(at: At<2>, x: &Window<u8, 2>, out: &mut Own<u16>) {
        out.set(x[at.plus([1, -3])] as u16 * 3 + x[at.plus([-1, 2])] as u16 + x[at] as u16);
    }

    #[kernel(crate = vmarray_kernel)]
    fn taps(at: At<1>, x: &Window<f32, 1>, weights: &[f32; 17], out: &mut Own<f32>) {
        let mut sum = 0.0;
        for k in 0..17 {
            sum = weights[k].mul_add(x[at.plus(k as isize - 8)], sum);
        }
        out.set(sum);
    }

    /// A launch of a kernel from a window of this shape to a result of the same shape.
    fn case<K: vmarray_kernel::Kernel>(
        mode: Mode,
        is_short: bool,
        shape: &[usize],
        widths: [u64; 2],
    ) -> Case {
        let axes = 0..shape.len();
        let modes = axes.filter(|_| mode != Mode::Checked).map(|axis| (1, axis, mode)).collect();
        let lowered = lower_for::<K>(&LaunchVariant { modes, is_short, ..LaunchVariant::default() }).unwrap();
        let items: usize = shape.iter().product();
        let scalar = |source: &ScalarSource| match *source {
            ScalarSource::Axis { axis, part } => DomainAxis::whole(shape[axis]).scalar(part, is_short),
            ScalarSource::Stencil { part: StencilPart::Extent(axis), .. } => shape[axis] as u64,
            ScalarSource::Stencil { part: StencilPart::Stride(0), .. } => {
                shape.get(1).map_or(1, |len| *len as u64)
            }
            _ => 0,
        };
        let bytes: Vec<u8> =
            (0..items as u32 * 4).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 25) as u8).collect();
        let view = |stride: u64| CaseView {
            stride,
            count: items as u64,
            bytes: bytes[..items * stride as usize].to_vec(),
            shift: 0,
        };
        Case {
            kernel: VerifiedKernel::new(lowered.body.clone()).unwrap(),
            items: items as u64,
            geometry: Geometry::plain(0),
            params: lowered.scalars.iter().map(scalar).collect(),
            table: (0..lowered.body.table_bytes()).map(|at| (at * 37 % 64) as u8).collect(),
            views: widths.map(view).to_vec(),
            budget: None,
            private_heap_bytes: 0,
        }
    }

    /// Stores inside conditions that are uniform in a warp.
    #[kernel(crate = vmarray_kernel)]
    fn some_rows(at: At<2>, x: &Window<f32, 2>, none: bool, out: &mut Own<f32>) {
        let both = x[at] + x[at.plus([0, 1])];
        if at[0] > 2 {
            if at[0] != 5 {
                out.set(both);
            }
        }
        if none {
            if at[0] < 9 {
                out.set(0.0);
            }
        }
    }

    /// Bytes as unsigned numbers, and the same bytes as signed numbers.
    #[kernel(crate = vmarray_kernel)]
    fn extended(at: At<1>, x: &Anywhere<f32>, by: u8, out: &mut Own<f32>) {
        let i = at.index();
        out.set(x[i + by as usize] - x[i + by as i8 as usize]);
    }

    #[test]
    fn a_sign_extended_value_is_another_number() {
        let lowered = lower_for::<extended>(&LaunchVariant::default()).unwrap();
        assert_eq!(codegen::affine::lanes(&lowered.body).expect("items side by side").runs.len(), 2);
    }

    #[kernel(crate = vmarray_kernel)]
    fn star<const R: usize>(at: At<2>, of: &Window<i32, 2>, out: &mut Own<i32>) {
        let mut sum = of[at];
        for k in 0..2 * R + 1 {
            let by = k as isize - R as isize;
            sum = sum * 3 + of[at.plus([by, 0])];
            sum = sum * 5 + of[at.plus([0, by])];
            sum = sum * 7 + of[at.plus([by, -by])];
        }
        out.set(sum);
    }

    #[test]
    #[ignore = "needs NVIDIA's ptxas, named by VMARRAY_PTXAS"]
    fn the_assembler_takes_windows_of_all_modes() {
        let modes = [Mode::Checked, Mode::Value, Mode::Clamp, Mode::Circular, Mode::Mirror, Mode::Symmetric];
        let view = CaseView { stride: 4, count: 1 << 20, bytes: Vec::new(), shift: 0 };
        let mut shapes = Vec::new();
        for (rows, columns) in modes.iter().flat_map(|rows| modes.iter().map(move |columns| (rows, columns)))
        {
            for number in 0..8 {
                let [is_tiled, is_part, is_short] = [1, 2, 4].map(|bit| number & bit != 0);
                let modes = vec![(1, 0, *rows), (1, 1, *columns)];
                let form = LaunchVariant { is_tiled, is_part, is_short, modes, ..LaunchVariant::default() };
                for lowered in [lower_for::<star<1>>(&form).unwrap(), lower_for::<star<4>>(&form).unwrap()] {
                    let case = Case {
                        kernel: VerifiedKernel::new(lowered.body.clone()).unwrap(),
                        items: 1 << 20,
                        geometry: Geometry::plain(0),
                        params: vec![1024; lowered.scalars.len()],
                        table: Vec::new(),
                        views: vec![view.clone(); lowered.body.views.len()],
                        budget: None,
                        private_heap_bytes: 0,
                    };
                    shapes.push(shape(&case, (9, 0)));
                }
            }
        }
        for shapes in shapes.chunks(16) {
            crate::kernel::assemble("sm_90", &codegen::module(shapes, (9, 0)).0);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too long for an interpreter")]
    fn windows_show_the_same_however_many_items_a_thread_takes() {
        fake::CAPABILITY.set(9);
        let scene = fake::FakeScene::on(device(), 1 << 20);
        let modes = [Mode::Mirror, Mode::Checked, Mode::Clamp, Mode::Circular, Mode::Symmetric, Mode::Value];
        for mode in modes.into_iter().take(if has_all_cases() { 6 } else { 2 }) {
            for is_short in [true, false] {
                // Test rows of whole warps, rows of whole pieces, and other rows; also blocks of rows with a
                // remainder.
                for shape in [[10, 768], [3, 300], [2, 131]] {
                    for shift in [0, 4] {
                        check(&scene, &case::<five>(mode, is_short, &shape, [4, 4]), shift);
                        check(&scene, &case::<bytes>(mode, is_short, &shape, [1, 2]), shift);
                    }
                }
                let some_rows = case::<some_rows>(mode, is_short, &[10, 768], [4, 4]);
                assert!(codegen::module(&[shape(&some_rows, (9, 0))], (9, 0)).0.contains("\napart:"));
                check(&scene, &some_rows, 0);
                for len in [1, 100, 1000] {
                    check(&scene, &case::<taps>(mode, is_short, &[len], [4, 4]), 0);
                }
            }
        }
    }
}

mod loops {
    use super::*;
    use vmarray_kernel::launch::{LaunchVariant, lower_for};
    use vmarray_kernel::{At, Group, Own, kernel};

    /// Reads the values of all items of a group, and changes some of them.
    #[kernel(crate = vmarray_kernel, group = 64)]
    fn turns<const FIRST: usize, const END: usize>(
        at: At<1>,
        a: &Group<f32, 64>,
        odd: &Group<u8, 3>,
        b: &Group<u32, 64>,
        own: &mut Own<u32>,
    ) {
        let i = at.in_group();
        a.set(i, own.get() as f32);
        odd.set(i % 3, i as u8);
        b.set(i, own.get() ^ 7);
        barrier();
        let (mut sum, mut product) = (0.0, 1);
        for k in FIRST..END {
            sum += a[k] * (k as f32 + 1.0);
            product = product * 3 + b[k];
        }
        barrier();
        for k in FIRST..END {
            b.add(k, 1);
            a.add(k, 1.0);
        }
        barrier();
        own.set(product + sum as u32 + b[i] + a[i] as u32);
    }

    fn check<const FIRST: usize, const END: usize>(scene: &fake::FakeScene, reads: usize) {
        let lowered =
            lower_for::<turns<FIRST, END>>(&LaunchVariant { is_short: true, ..LaunchVariant::default() })
                .unwrap();
        let bytes: Vec<u8> = (0..400_u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 29) as u8).collect();
        let case = Case {
            kernel: VerifiedKernel::new(lowered.body.clone()).unwrap(),
            items: 100,
            geometry: Geometry::plain(0),
            params: vec![100; lowered.scalars.len()],
            table: vec![0; lowered.body.table_bytes() as usize],
            views: vec![CaseView { stride: 4, count: 100, bytes, shift: 0 }],
            budget: None,
            private_heap_bytes: 0,
        };
        super::check(scene, &case, 0);
        let text = codegen::module(&[shape(&case, (9, 0))], (9, 0)).0;
        assert_eq!(text.matches("ld.shared.v4").count(), reads, "{FIRST}..{END}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "too long for an interpreter")]
    fn unrolled_turns_match_single_turns() {
        fake::CAPABILITY.set(9);
        let scene = fake::FakeScene::on(device(), 1 << 20);
        // The pieces of `b` are not aligned. Shorter loops are unrolled earlier.
        check::<0, 64>(&scene, 1);
        check::<4, 48>(&scene, 1);
        // Test unaligned starts, and iteration counts that are not multiples of the unroll factor.
        check::<1, 41>(&scene, 0);
        check::<0, 62>(&scene, 0);
    }
}
