//! Conformance checks of kernel launches: the results must equal the results of the kernel interpreter.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use backend_api::expr::Geometry;
use backend_api::kernel::{
    Access, Binary, Body, Builtin, Launch, LaunchView, Memory, Op, Reg, Report, TableDecl, Type, Unary,
    VerifiedKernel, ViewDecl, f16_to_f32,
};
use backend_api::wrap::SplitMix64;
use backend_api::{BufferHandle, Device, DeviceSpan, Elements, ErrorKind, Request, Result, Ticket};

use super::context::{Context, assert_refused};
use super::erased;
use super::limits::Limits;
use super::random::{Case, CaseView};
use super::scene::{Scene, words};

/// Lengths in bytes of a scene's device and host memory, and the launch report's offset in host memory.
const MEMORY_BYTES: usize = 512 << 10;
const HOST_BYTES: usize = 4096;
pub(super) const REPORT: usize = 1032;
/// Default number of random kernels. It is small, because the device must compile each kernel.
const RANDOM_CASES: u64 = 12;
/// Number of kernels with wrong results after which the check ends early.
const DIFFERENCES_MOST: usize = 20;

pub(super) fn scene<'a>(cx: &'a Context<'_>) -> Scene<'a> {
    Scene::new(cx, MEMORY_BYTES, HOST_BYTES)
}

/// Returns the ticket of a launch. If the device does not support it, returns `None` and skips the check.
pub(super) fn accepted(cx: &Context<'_>, what: &str, launched: Result<Ticket>) -> Option<Ticket> {
    match launched {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            cx.skip(format!("{what}: {}", error.detail()));
            None
        }
        launched => Some(launched.unwrap_or_else(|error| panic!("{what}: {error}"))),
    }
}

pub(super) fn launch_of<'a>(case: &'a Case, views: &'a [LaunchView<'a>], scene: &Scene<'_>) -> Launch<'a> {
    Launch {
        views,
        params: &case.params,
        table: &case.table,
        budget: case.budget,
        private_heap_bytes: case.private_heap_bytes,
        ..Launch::new(&case.kernel, case.items, case.geometry, scene.host_at(REPORT as u64))
    }
}

/// Returns the offset of each view of a case in device memory, in bytes. The views follow one another.
fn places(case: &Case) -> Vec<usize> {
    let mut next = 8;
    let place = |view: &CaseView| {
        let at = next + view.shift as usize;
        next = (at + view.bytes.len() + 16).next_multiple_of(8);
        at
    };
    let places = case.views.iter().map(place).collect();
    assert!(
        next <= MEMORY_BYTES,
        "the views of kernel {} need {next} bytes, more than the memory of the check",
        case.kernel.name()
    );
    places
}

pub(super) fn views_of(case: &Case, scene: &Scene<'_>) -> Vec<LaunchView<'static>> {
    let view = |(at, view): (usize, &CaseView)| {
        let (start, count, stride) = (scene.at(at as u64), view.count, view.stride);
        LaunchView::Run(Elements { start, count, stride })
    };
    places(case).into_iter().zip(&case.views).map(view).collect()
}

/// Reads the launch report from the scene's host memory, and adds it to the expected contents.
pub(super) fn report(scene: &mut Scene<'_>) -> Report {
    let mut bytes = [0; Report::BYTES as usize];
    scene.host.read(REPORT, &mut bytes);
    scene.write_host_expected(REPORT, &bytes);
    words(&bytes).try_into().map(Report::from_words).expect("a report has four words of 8 bytes")
}

/// Launches a case, waits for it, and compares all memory. Returns false if the device does not support it.
pub(super) fn run(cx: &Context<'_>, scene: &mut Scene<'_>, case: &Case) -> bool {
    let what = case.kernel.name().to_owned();
    let places = places(case);
    for (at, view) in places.iter().zip(&case.views) {
        scene.put(*at, &view.bytes);
    }
    let views = views_of(case, scene);
    let launched = scene.queue.submit(&launch_of(case, &views, scene));
    let Some(ticket) = accepted(cx, &what, launched) else { return false };
    scene.settle(ticket);
    let report = report(scene);
    let contents = scene.contents();
    let ranges = places.iter().zip(&case.views).map(|(at, view)| *at..at + view.bytes.len());
    let found: Vec<Vec<u8>> = ranges.clone().map(|range| contents[range].to_vec()).collect();
    if let Err(why) = case.check(&found, report) {
        panic!("{what}: {why}\n{:#?}", case.kernel.body());
    }
    for range in ranges {
        scene.expected[range.clone()].copy_from_slice(&contents[range]);
    }
    scene.assert_as_expected(&what);
    true
}

/// Creates a case without parameters and tables, with the given body and views.
pub(super) fn case(name: &str, body: Body, items: u64, views: Vec<CaseView>) -> Case {
    Case {
        kernel: VerifiedKernel::new(body).expect("the kernel's body must be valid").named(name),
        items,
        geometry: Geometry::plain(0),
        params: Vec::new(),
        table: Vec::new(),
        views,
        budget: None,
        private_heap_bytes: 0,
    }
}

/// Declares a view of 64-bit numbers, of which each item may write its own.
pub(super) fn own() -> ViewDecl {
    ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, Memory::Value(Type::U64))] }
}

/// Creates the kernel `x[i] = x[i] * factor + i` on 64-bit numbers.
fn recurrence() -> VerifiedKernel {
    let (of, [at, value, more]) = (Memory::Value(Type::U64), [0, 1, 2].map(Reg));
    let body = Body {
        registers: vec![Type::U64; 3],
        params: vec![Type::U64],
        views: vec![own()],
        code: vec![
            Op::Literal { to: at, bits: 0 },
            Op::Load { to: value, view: 0, at, offset: 0, of },
            Op::Param { to: more, number: 0 },
            Op::Binary { op: Binary::Mul, to: value, left: value, right: more },
            Op::Builtin { to: more, what: Builtin::Index },
            Op::Binary { op: Binary::Add, to: value, left: value, right: more },
            Op::Store { view: 0, at, offset: 0, of, value },
        ],
        ..Body::default()
    };
    VerifiedKernel::new(body).expect("the kernel's body must be valid")
}

pub(super) fn launches_of_nothing(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let nothing = VerifiedKernel::new(Body::default()).expect("the kernel's body must be valid");
    let recurrence = recurrence();
    for items in [0, 1, 1000] {
        let at = scene.host_at(REPORT as u64);
        let views = [LaunchView::Run(scene.elements(MEMORY_BYTES, 0, 8))];
        let of_nothing = Launch::new(&nothing, items, Geometry::plain(0), at);
        let on_nothing =
            Launch { views: &views, params: &[1], ..Launch::new(&recurrence, 0, Geometry::plain(0), at) };
        for launch in [of_nothing, on_nothing] {
            let Some(ticket) = accepted(cx, "a launch of nothing", scene.queue.submit(&launch)) else {
                return;
            };
            scene.settle(ticket);
            assert_eq!(report(&mut scene), Report::default(), "{items} items");
            scene.assert_as_expected("launches of nothing");
        }
    }
}

/// Returns the bits of edge cases of a type, and of some other numbers.
fn numbers(of: Type) -> Vec<u64> {
    let top = 1_u64 << (8 * of.bytes() - 1);
    let mut random = SplitMix64::new(3);
    let mut all = vec![0, 1, 2, 7, top, top - 1, top + 1, u64::MAX];
    if of == Type::F32 {
        let turns = [0.5_f32, -0.5, 1.5, 2.5, -3.5, 1e-40, 3e38, f32::INFINITY, -0.0, 16_777_217.0, f32::NAN];
        all.extend(turns.map(|float| u64::from(float.to_bits())));
    } else if of == Type::F64 {
        let turns = [0.5_f64, -0.5, 1.5, 2.5, -3.5, 1e-310, 1e308, f64::INFINITY, -0.0, 9e15, f64::NAN];
        all.extend(turns.map(f64::to_bits));
    }
    all.extend((0..8).map(|_| random.next()));
    all.into_iter().map(|bits| bits & of.mask()).collect()
}

/// Returns the input of a kernel: for each pair of numbers, the low bytes of the pair and of a third number.
fn operands(numbers: &[u64], bytes: usize) -> Vec<u8> {
    let mut input = Vec::new();
    for (i, a) in numbers.iter().enumerate() {
        for (j, b) in numbers.iter().enumerate() {
            for number in [*a, *b, numbers[(i * 5 + j) % numbers.len()]] {
                let number = number.to_le_bytes();
                let mut low = number[..bytes].to_vec();
                if cfg!(target_endian = "big") {
                    low.reverse();
                }
                input.extend(low);
            }
        }
    }
    input
}

/// Creates a kernel that stores the results of every operation on values of a type.
fn every_operation(of: Type) -> Case {
    let (memory, bytes) = (Memory::Value(of), of.bytes());
    let mut registers = vec![Type::U64, Type::U64, of, of, of, Type::Bool];
    let [item, zero, a, b, c, less] = [0, 1, 2, 3, 4, 5].map(Reg);
    let mut code = vec![
        Op::Builtin { to: item, what: Builtin::Item },
        Op::Literal { to: zero, bits: 0 },
        Op::Load { to: a, view: 0, at: item, offset: 0, of: memory },
        Op::Load { to: b, view: 0, at: item, offset: bytes, of: memory },
        Op::Load { to: c, view: 0, at: item, offset: 2 * bytes, of: memory },
        Op::Binary { op: Binary::Lt, to: less, left: a, right: c },
    ];
    let mut fields = Vec::new();
    let mut offset = 0;
    let mut result = |gives: Type, op: &dyn Fn(Reg) -> Op| {
        registers.push(gives);
        let to = Reg(registers.len() as u32 - 1);
        code.push(op(to));
        let (mut value, mut stored) = (to, gives);
        if gives == Type::Bool {
            registers.push(Type::U8);
            (value, stored) = (Reg(registers.len() as u32 - 1), Type::U8);
            code.push(Op::Cast { to: value, of: to });
        }
        offset = u32::next_multiple_of(offset, stored.bytes());
        let of = Memory::Value(stored);
        fields.push((offset, of));
        code.push(Op::Store { view: 1, at: zero, offset, of, value });
        offset += stored.bytes();
    };
    for op in Unary::ALL.into_iter().filter(|op| op.takes(of)) {
        result(of, &|to| Op::Unary { op, to, of: a });
    }
    for op in Binary::ALL.into_iter().filter(|op| op.takes(of)) {
        let gives = if op.is_comparison() { Type::Bool } else { of };
        result(gives, &|to| Op::Binary { op, to, left: a, right: b });
    }
    if of.is_float() {
        result(of, &|to| Op::Fma { to, a, b, c });
    } else {
        result(of, &|to| Op::MulHigh { to, left: a, right: b });
    }
    result(of, &|to| Op::Select { to, when: less, yes: a, no: b });
    result(Type::Bool, &|to| Op::Unary { op: Unary::Not, to, of: less });
    // Only the case of `F64` casts to `F64`, because a device may lack this type.
    for to_type in Type::NUMBERS.into_iter().filter(|to| *to != Type::F64 || of == Type::F64) {
        result(to_type, &|to| Op::Cast { to, of: a });
        // Skip floats, because the bits of a NaN are unspecified.
        if to_type.bytes() == bytes && !of.is_float() {
            result(to_type, &|to| Op::Bits { to, of: a });
        }
    }
    let views = vec![
        ViewDecl { access: Access::Read, fields: (0..3).map(|k| (k * bytes, memory)).collect() },
        ViewDecl { access: Access::Write { tile: 1 }, fields },
    ];
    let numbers = numbers(of);
    let input = operands(&numbers, bytes as usize);
    let items = (numbers.len() * numbers.len()) as u64;
    let stride = u64::from(offset.next_multiple_of(8));
    let views_of_case = vec![
        CaseView { stride: u64::from(3 * bytes), count: items, bytes: input, shift: 0 },
        CaseView { stride, count: items, bytes: vec![0x5A; (items * stride) as usize], shift: 0 },
    ];
    let body = Body { registers, views, code, ..Body::default() };
    case(&format!("operations on {of}"), body, items, views_of_case)
}

pub(super) fn launches_with_every_operation(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let cases: Vec<Case> = Type::NUMBERS.into_iter().map(every_operation).collect();
    prepare(cx, &scene, &cases);
    for case in &cases {
        run(cx, &mut scene, case);
    }
}

/// Calls `prepare` for the launches of all cases, in two calls. Ignores unsupported cases, because the device
/// also refuses their launches.
fn prepare(cx: &Context<'_>, scene: &Scene<'_>, cases: &[Case]) {
    let views: Vec<Vec<LaunchView<'_>>> = cases.iter().map(|case| views_of(case, scene)).collect();
    let launches: Vec<Launch<'_>> =
        cases.iter().zip(&views).map(|(case, views)| launch_of(case, views, scene)).collect();
    // A device without `f64` must still prepare the cases that do not use it.
    let (doubles, others): (Vec<_>, Vec<_>) =
        launches.into_iter().partition(|launch| launch.kernel.needs().f64);
    for launches in [doubles, others] {
        let requests: Vec<_> = launches.iter().map(Request::from).collect();
        match cx.device().prepare(&requests) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            prepared => prepared.unwrap_or_else(|error| panic!("the preparation of kernels failed: {error}")),
        }
    }
}

/// Launches random kernels. The environment variable `VMARRAY_TEST_KERNELS` sets their number, and
/// `VMARRAY_TEST_SEED` the first seed.
pub(super) fn random_launches(cx: &Context<'_>) {
    let named = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = named("VMARRAY_TEST_KERNELS").unwrap_or(RANDOM_CASES);
    let first = named("VMARRAY_TEST_SEED").unwrap_or_else(|| cx.limits().seed.wrapping_mul(RANDOM_CASES));
    launch_seeds(cx, first..first.saturating_add(count));
}

/// Generates a random kernel from each seed, and launches it on a device. Compares all memory and the
/// launch's report with the results of the interpreter. Returns the number of cases that the device supports.
///
/// ```
/// # use std::sync::Arc;
/// use vmarray_conformance::{random, reference::ReferenceDevice};
/// assert_eq!(random::launch_all(&Arc::new(ReferenceDevice::new(8 << 20)), 100..110), 10);
/// ```
///
/// # Panics
/// Panics if a result differs: after the last kernel, or after twenty differing kernels. The message has one
/// line for each differing kernel.
pub fn launch_all<D: Device>(device: &Arc<D>, seeds: Range<u64>) -> u64 {
    launch_seeds(&Context::new(&erased(device), Limits::default()), seeds)
}

/// Launches the random cases of the seeds, several at the same time, and compares their results. Returns the
/// number of cases that the device supports.
fn launch_seeds(cx: &Context<'_>, seeds: Range<u64>) -> u64 {
    let mut scene = scene(cx);
    let (mut carried_out, mut differences) = (0, Vec::new());
    let seeds: Vec<u64> = seeds.collect();
    'all: for seeds in seeds.chunks(256) {
        // A third of the cases may use `f64`.
        let cases: Vec<Case> = seeds.iter().map(|seed| Case::new(*seed, seed % 3 == 0)).collect();
        prepare(cx, &scene, &cases);
        for (case, seed) in cases.iter().zip(seeds) {
            match catch_unwind(AssertUnwindSafe(|| run(cx, &mut scene, case))) {
                Ok(is_supported) => carried_out += u64::from(is_supported),
                Err(panic) => {
                    let message = panic.downcast_ref::<String>().and_then(|text| text.lines().next());
                    differences.push(format!("seed {seed}: {}", message.unwrap_or_default()));
                }
            }
            if differences.len() == DIFFERENCES_MOST {
                break 'all;
            }
        }
    }
    assert!(differences.is_empty(), "random kernels: {}", differences.join("\n"));
    carried_out
}

pub(super) fn launches_with_half_precision(cx: &Context<'_>) {
    let mut scene = scene(cx);
    // The kernel converts every half-precision number to a float and back, and rounds floats between adjacent
    // half-precision numbers. It tests conversions by loads and stores, and by operations, for binary16 and
    // `bfloat16`.
    let [item, zero, half, float, bits, same, none, third] = [0, 1, 2, 3, 4, 5, 6, 7].map(Reg);
    let (of, single, word) = (Memory::F16, Memory::Value(Type::F32), Memory::Value(Type::U16));
    let (a, b) = (Type::U16, Type::F32);
    let [wide, narrow, bwide, bnarrow] = [8, 9, 10, 11].map(Reg);
    let mut code = vec![
        Op::Builtin { to: item, what: Builtin::Item },
        Op::Literal { to: zero, bits: 0 },
        Op::Literal { to: none, bits: 0 },
        Op::Load { to: half, view: 0, at: item, offset: 0, of },
        Op::Load { to: float, view: 0, at: item, offset: 2, of: single },
        Op::Load { to: bits, view: 0, at: item, offset: 0, of: word },
        Op::Load { to: third, view: 0, at: item, offset: 6, of: single },
        Op::Store { view: 1, at: zero, offset: 0, of: single, value: half },
        Op::Store { view: 1, at: zero, offset: 4, of, value: half },
        Op::Store { view: 1, at: zero, offset: 6, of, value: float },
        Op::Unary { op: Unary::FromF16, to: wide, of: bits },
        Op::Store { view: 1, at: zero, offset: 8, of: single, value: wide },
        Op::Unary { op: Unary::FromBf16, to: bwide, of: bits },
        Op::Store { view: 1, at: zero, offset: 12, of: single, value: bwide },
    ];
    for (op, to, of, offset) in [(Unary::ToF16, narrow, float, 16), (Unary::ToBf16, bnarrow, third, 18)] {
        code.extend([
            Op::Binary { op: Binary::Eq, to: same, left: of, right: of },
            Op::Unary { op, to, of },
            // Replace NaNs by a constant, because their bits are unspecified.
            Op::Select { to, when: same, yes: to, no: none },
            Op::Store { view: 1, at: zero, offset, of: word, value: to },
        ]);
    }
    let stored = vec![(0, single), (4, of), (6, of), (8, single), (12, single), (16, word), (18, word)];
    let body = Body {
        registers: vec![Type::U64, Type::U64, b, b, a, Type::Bool, a, b, b, a, b, a],
        views: vec![
            ViewDecl { access: Access::Read, fields: vec![(0, of), (0, word), (2, single), (6, single)] },
            ViewDecl { access: Access::Write { tile: 1 }, fields: stored },
        ],
        code,
        ..Body::default()
    };
    let kernel = case("halves", body, 0, Vec::new()).kernel;
    for from in (0..=u16::MAX).step_by(1 << 13) {
        let halves = from..=from | 0x1FFF;
        let mut input = Vec::new();
        for half in halves {
            let third = usize::from(half) % 3;
            let middle = (f16_to_f32(half) + f16_to_f32(half.wrapping_add(1))) / 2.0;
            let float = [middle.next_down(), middle, middle.next_up()][third];
            input.extend(half.to_ne_bytes());
            input.extend(float.to_ne_bytes());
            input.extend((u32::from(half) << 16 | [0x7FFF, 0x8000, 0x8001][third]).to_ne_bytes());
        }
        let items = 1 << 13;
        let views = vec![
            CaseView { stride: 10, count: items, bytes: input, shift: 0 },
            CaseView { stride: 20, count: items, bytes: vec![0; 20 << 13], shift: 0 },
        ];
        let case =
            Case { kernel: kernel.clone(), items, views, ..case("halves", Body::default(), 0, vec![]) };
        run(cx, &mut scene, &case);
    }
}

pub(super) fn launches_on_striped_pages(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let kernel = recurrence();
    let (count, page_len) = (101_u64, 8_u64);
    for bases in [1, 2, 3] {
        let places: Vec<DeviceSpan<'_>> = (0..bases).map(|base| scene.at(40_000 * base)).collect();
        let view = LaunchView::Striped { bases: &places, page_len, count, stride: 12 };
        let geometry = Geometry { first: 5, page_len: 7, channel: 1, channels: 2 };
        let launch = Launch {
            views: &[view],
            params: &[3],
            ..Launch::new(&kernel, count - 1, geometry, scene.host_at(REPORT as u64))
        };
        let Some(ticket) = accepted(cx, "a view of pages", scene.queue.submit(&launch)) else { return };
        scene.settle(ticket);
        for element in 0..count - 1 {
            let (base, page) = (element / page_len % bases, element / page_len / bases);
            let at = (40_000 * base + (page * page_len + element % page_len) * 12) as usize;
            let old = words(&scene.expected[at..at + 8])[0];
            let new = old.wrapping_mul(3).wrapping_add(geometry.index(element));
            scene.expected[at..at + 8].copy_from_slice(&new.to_ne_bytes());
        }
        assert_eq!(report(&mut scene), Report::default());
        scene.assert_as_expected(&format!("memory after a launch on pages striped over {bases} places"));
    }
}

pub(super) fn launches_keep_their_order(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let kernel = recurrence();
    let elements = scene.elements(16, 1000, 8);
    for round in 0..10_u64 {
        scene.fill(16, 4000, &round.to_ne_bytes());
        let mut params = [round + 1];
        let views = [LaunchView::Run(elements)];
        let launched = scene.queue.submit(&Launch {
            views: &views,
            params: &params,
            ..Launch::new(&kernel, 1000, Geometry::plain(round), scene.host_at(REPORT as u64))
        });
        // The device has copied the parameters during the submission, so this change must have no effect.
        params[0] = 77;
        assert_eq!(params, [77]);
        if accepted(cx, "a launch", launched).is_none() {
            return;
        }
        for (element, bytes) in scene.expected[16..8016].as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let new = u64::from_ne_bytes(*bytes).wrapping_mul(round + 1).wrapping_add(element as u64 + round);
            *bytes = new.to_ne_bytes();
        }
        scene.submit(&[scene.internal(16, 20_000 + round as usize * 8000, 8000)]);
    }
    scene.finish();
    let ticket = scene.submit(&[]);
    scene.settle(ticket);
    assert_eq!(report(&mut scene), Report::default());
    scene.assert_as_expected("memory after launches, fills and copies in turn");
}

pub(super) fn items_that_fail_go_on(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let (of, [at, value, item, one]) = (Memory::Value(Type::U64), [0, 1, 2, 3].map(Reg));
    let table = TableDecl { of: Memory::Value(Type::U16), len: 3 };
    let body = Body {
        registers: vec![Type::U64, Type::U64, Type::U64, Type::U64, Type::U16],
        views: vec![own(), ViewDecl { access: Access::Read, fields: vec![(0, of)] }],
        tables: vec![table],
        code: vec![
            Op::Literal { to: at, bits: 0 },
            Op::Literal { to: one, bits: 1 },
            Op::Builtin { to: item, what: Builtin::Item },
            // The index is out of bounds from item (thread) 5 on, so the load must return 0.
            Op::Load { to: value, view: 1, at: item, offset: 0, of },
            // The tile (the elements that the thread may write) has one element, so the store must write
            // nothing.
            Op::Store { view: 0, at: one, offset: 0, of, value },
            Op::Lookup { to: Reg(4), table: 0, at: item },
            Op::Cast { to: item, of: Reg(4) },
            Op::Binary { op: Binary::Add, to: value, left: value, right: item },
            Op::Store { view: 0, at, offset: 0, of, value },
            Op::Loop { body: vec![] },
            // The loop before this store never ends, so no item (thread) reaches the store.
            Op::Store { view: 0, at, offset: 0, of, value: one },
        ],
        ..Body::default()
    };
    let view =
        |count: u64| CaseView { stride: 8, count, bytes: cx.noise(count, count as usize * 8), shift: 0 };
    let mut failing = case("items that fail", body, 100, vec![view(100), view(5)]);
    failing.table = [7_u16, 8, 9, 0].iter().flat_map(|number| number.to_ne_bytes()).collect();
    failing.budget = Some(10);
    run(cx, &mut scene, &failing);
}

pub(super) fn malformed_launches_are_refused(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let kernel = recurrence();
    let copying = copying_kernel();
    let nothing = VerifiedKernel::new(Body::default()).expect("the kernel's body must be valid");
    let end = MEMORY_BYTES;
    let (report_at, invalid) = (scene.host_at(REPORT as u64), ErrorKind::InvalidArgument);
    let run = |at: usize, count: usize, stride: usize| LaunchView::Run(scene.elements(at, count, stride));
    let start = |views: &[LaunchView<'_>]| {
        let launch =
            Launch { views, params: &[1], ..Launch::new(&kernel, 10, Geometry::plain(0), report_at) };
        scene.queue.submit(&launch)
    };
    if accepted(cx, "a launch", start(&[run(0, 10, 8)])).is_none() {
        return;
    }
    let bases = [scene.at(0), scene.at(72)];
    let striped = |bases, page_len, count| LaunchView::Striped { bases, page_len, count, stride: 8 };
    let mut refused: Vec<(&str, Result<Ticket>)> = vec![
        ("no view", start(&[])),
        ("two views", start(&[run(0, 10, 8), run(1000, 10, 8)])),
        ("fewer elements than items", start(&[run(0, 9, 8)])),
        ("a stride of 0", start(&[run(0, 10, 0)])),
        ("a stride that is less than the field", start(&[run(0, 10, 7)])),
        ("elements behind the end", start(&[run(end - 79, 10, 8)])),
        ("a place behind the end", start(&[run(end + 8, 10, 8)])),
        ("more elements than bytes", start(&[run(0, usize::MAX, 8)])),
        ("pages without a place", start(&[striped(&[], 1, 10)])),
        ("pages without elements", start(&[striped(&bases, 0, 10)])),
        ("pages that overlap", start(&[striped(&bases, 10, 20)])),
        ("too many pages", start(&[striped(&bases, 1, u64::MAX / 8)])),
        ("pages behind the end", start(&[striped(&bases, 9, end as u64 / 4)])),
    ];
    let start = |views: &[LaunchView<'_>], params: &[u64], table: &[u8]| {
        let launch =
            Launch { views, params, table, ..Launch::new(&copying, 10, Geometry::plain(0), report_at) };
        scene.queue.submit(&launch)
    };
    let views = [run(0, 10, 8), run(80, 1, 8)];
    refused.extend([
        ("a written view that overlaps another", start(&[run(0, 10, 8), run(79, 1, 8)], &[1], &[0; 8])),
        ("a view that overlaps a written one", start(&[run(16, 10, 8), run(8, 2, 8)], &[1], &[0; 8])),
        ("no parameter", start(&views, &[], &[0; 8])),
        ("a parameter with too many bits", start(&views, &[256], &[0; 8])),
        ("a table that is too short", start(&views, &[1], &[0; 6])),
    ]);
    for (at, what) in
        [(REPORT + 4, "a report that is not aligned"), (HOST_BYTES - 24, "a report without room")]
    {
        let report = scene.host_at(at as u64);
        refused.push((what, scene.queue.submit(&Launch::new(&nothing, 1, Geometry::plain(0), report))));
    }
    let geometry = Geometry { channels: 0, ..Geometry::plain(0) };
    let views = [run(0, 10, 8)];
    let no_channel = Launch { views: &views, params: &[1], ..Launch::new(&kernel, 10, geometry, report_at) };
    refused.push(("no channel", scene.queue.submit(&no_channel)));
    for (what, result) in refused {
        assert_refused(what, result, invalid);
    }
    let stranger = BufferHandle::unique();
    let views = [LaunchView::Run(Elements { start: stranger.at(0), count: 10, stride: 8 })];
    let unknown =
        Launch { views: &views, params: &[1], ..Launch::new(&kernel, 10, Geometry::plain(0), report_at) };
    assert_refused("unknown memory", scene.queue.submit(&unknown), ErrorKind::UnknownHandle);
    expect_first_launch(&mut scene);
}

/// A kernel with a written and a read view, a table and a parameter.
fn copying_kernel() -> VerifiedKernel {
    let copying = VerifiedKernel::new(Body {
        views: vec![own(), ViewDecl { access: Access::Read, fields: vec![(4, Memory::Value(Type::U32))] }],
        tables: vec![TableDecl { of: Memory::F16, len: 3 }],
        params: vec![Type::U8],
        ..Body::default()
    });
    copying.expect("the kernel's body must be valid")
}

/// Waits for all submitted work, because only then an effect of a refused launch would be visible. Checks
/// that only the accepted launch had an effect.
fn expect_first_launch(scene: &mut Scene<'_>) {
    let ticket = scene.submit(&[]);
    scene.settle(ticket);
    assert_eq!(report(scene), Report::default());
    for (element, bytes) in scene.expected[..80].as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = u64::from_ne_bytes(*bytes).wrapping_add(element as u64).to_ne_bytes();
    }
    scene.assert_as_expected("refused launches");
}

pub(super) fn preparing_launches_changes_nothing(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let cases = [Case::new(3, false), Case::new(4, false), Case::new(3, false)];
    prepare(cx, &scene, &cases);
    let kernel =
        VerifiedKernel::new(cases[0].kernel.body().clone()).expect("the kernel's body must be valid");
    assert_eq!(kernel, cases[0].kernel);
    scene.assert_as_expected("memory after the preparation of launches");
    run(cx, &mut scene, &cases[0]);
    assert!(cx.device().prepare(&[]).is_ok(), "a preparation of no requests must succeed");
}
