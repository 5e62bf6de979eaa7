//! Conformance checks of kernels whose threads work in groups (barriers, operations across lanes, atomics).
//! The results must equal the kernel interpreter's.

use backend_api::Elements;
use backend_api::kernel::{
    Access, ArrayDecl, Binary, Body, Builtin, Memory, Op, Place, Reg, Rmw, Scope, Space, SubgroupOp,
    TableDecl, Type, ViewDecl,
};

use super::Context;
use super::launches::{accepted, case, launch_of, own, report, run, scene, views_of};
use super::random::{Case, CaseView};
use super::scene::words;

const OF: Memory = Memory::Value(Type::U64);

/// Creates a view of `count` random numbers of 64 bits.
fn numbers(cx: &Context<'_>, count: u64) -> CaseView {
    CaseView { stride: 8, count, bytes: cx.noise(count, count as usize * 8), shift: 0 }
}

/// Returns code that stores the 64-bit register `value` in the item's own element. The code overwrites the
/// register `zero`.
fn stored(value: Reg, zero: Reg) -> [Op; 2] {
    [Op::Literal { to: zero, bits: 0 }, Op::Store { view: 0, at: zero, offset: 0, of: OF, value }]
}

/// Returns a kernel whose groups each reverse their elements twice, by a group array and barriers. Each item
/// also adds its group's number, the number of groups and its own number to the result.
fn turning(group_len: u32) -> Body {
    let [value, own_place, last, other, zero, sum] = [0, 1, 2, 3, 4, 5].map(Reg);
    let sub = |to, left, right| Op::Binary { op: Binary::Sub, to, left, right };
    let mut code = vec![
        Op::Literal { to: zero, bits: 0 },
        Op::Load { to: value, view: 0, at: zero, offset: 0, of: OF },
        Op::Builtin { to: own_place, what: Builtin::InGroup },
        Op::Literal { to: last, bits: u64::from(group_len) - 1 },
        sub(other, last, own_place),
    ];
    // The elements of a group's (thread block's) array are initially zero, so this read adds zero.
    code.push(Op::Get { to: sum, array: 0, at: other });
    code.push(Op::Barrier);
    for _ in 0..2 {
        code.extend([
            Op::Put { array: 0, at: own_place, value },
            Op::Barrier,
            Op::Get { to: value, array: 0, at: other },
            Op::Barrier,
            Op::Binary { op: Binary::Add, to: value, left: value, right: own_place },
        ]);
    }
    for what in [Builtin::Group, Builtin::Groups, Builtin::Item] {
        code.push(Op::Builtin { to: last, what });
        code.push(Op::Binary { op: Binary::Xor, to: value, left: value, right: last });
    }
    code.push(Op::Binary { op: Binary::Add, to: value, left: value, right: sum });
    code.extend(stored(value, zero));
    Body {
        registers: vec![Type::U64; 6],
        views: vec![own()],
        arrays: vec![ArrayDecl { space: Space::Group, of: Type::U64, len: group_len }],
        group_len: Some(group_len),
        code,
        ..Body::default()
    }
}

pub(super) fn groups_share_memory_and_meet(cx: &Context<'_>) {
    let mut scene = scene(cx);
    // The pairs of group length and number of items (threads) give whole groups, a partial last group, a
    // single partial group, and many groups.
    for (group_len, items) in [(32, 96), (64, 100), (128, 7), (1, 5), (50, 4000), (256, 3000)] {
        let name = format!("groups of {group_len} for {items} items");
        if !run(cx, &mut scene, &case(&name, turning(group_len), items, vec![numbers(cx, items)])) {
            return;
        }
    }
}

/// Returns a kernel that sums the elements of a group by a tree reduction. Before, between and after its
/// steps some items run branches and loops that the other items of the group do not enter.
fn halving(group_len: u32) -> Body {
    let [value, own_place, zero, one, half, other, turn] = [0, 1, 2, 3, 4, 5, 6].map(Reg);
    let [is_first, is_low, done, ended] = [7, 8, 9, 10].map(Reg);
    let binary = |op, to, left, right| Op::Binary { op, to, left, right };
    let on = |when, then| Op::If { when, then, otherwise: vec![] };
    let leave = |when| on(when, vec![Op::Break { out: 0 }]);
    let get = |to, at| Op::Get { to, array: 0, at };
    let put = |at, value| Op::Put { array: 0, at, value };
    // This loop adds 1 to the item's (GPU thread's) own element of the group array, `bound` times.
    let counted = |bound| {
        let body = vec![
            binary(Binary::Le, done, bound, turn),
            leave(done),
            binary(Binary::Add, turn, turn, one),
            get(other, own_place),
            binary(Binary::Add, other, other, one),
            put(own_place, other),
        ];
        [Op::Literal { to: turn, bits: 0 }, Op::Loop { body }]
    };
    let halves = vec![
        binary(Binary::Eq, ended, half, zero),
        leave(ended),
        binary(Binary::Lt, is_low, own_place, half),
        on(
            is_low,
            vec![
                binary(Binary::Add, other, own_place, half),
                get(other, other),
                get(value, own_place),
                binary(Binary::Add, value, value, other),
                put(own_place, value),
            ],
        ),
        Op::Barrier,
        binary(Binary::Shr, half, half, one),
        on(is_first, counted(half).to_vec()),
        Op::Barrier,
    ];
    let code = vec![
        Op::Literal { to: zero, bits: 0 },
        Op::Literal { to: one, bits: 1 },
        Op::Literal { to: half, bits: u64::from(group_len) / 2 },
        Op::Builtin { to: own_place, what: Builtin::InGroup },
        binary(Binary::Eq, is_first, own_place, zero),
        Op::Load { to: value, view: 0, at: zero, offset: 0, of: OF },
        put(own_place, value),
        on(is_first, counted(half).to_vec()),
        Op::Barrier,
        Op::Loop { body: halves },
        on(is_first, [counted(own_place).to_vec(), vec![get(value, zero)]].concat()),
        Op::Barrier,
        Op::If {
            when: is_first,
            then: vec![binary(Binary::Add, value, value, one)],
            otherwise: [vec![get(value, own_place)], counted(one).to_vec()].concat(),
        },
        Op::Store { view: 0, at: zero, offset: 0, of: OF, value },
    ];
    Body {
        registers: [vec![Type::U64; 7], vec![Type::Bool; 4]].concat(),
        views: vec![own()],
        arrays: vec![ArrayDecl { space: Space::Group, of: Type::U64, len: group_len }],
        group_len: Some(group_len),
        code,
        ..Body::default()
    }
}

pub(super) fn items_of_a_group_take_different_ways(cx: &Context<'_>) {
    let mut scene = scene(cx);
    for (group_len, items) in [(2, 5), (4, 103), (64, 1000), (256, 700)] {
        for budget in [None, Some(5), Some(1000)] {
            let name = format!("halves of {group_len} for {items} items, budget {budget:?}");
            let case = case(&name, halving(group_len), items, vec![numbers(cx, items)]);
            if !run(cx, &mut scene, &Case { budget, ..case }) {
                return;
            }
        }
    }
}

/// Returns a kernel that stores the result of every subgroup operation on values of a type.
fn every_operation(of: Type) -> Body {
    let memory = Memory::Value(of);
    let mut registers = vec![Type::U64, Type::U64, of, Type::Bool, Type::U32];
    let [item, zero, value, is_odd, lane] = [0, 1, 2, 3, 4].map(Reg);
    let mut code = vec![
        Op::Literal { to: zero, bits: 0 },
        Op::Load { to: value, view: 1, at: zero, offset: 0, of: memory },
        Op::Literal { to: zero, bits: 1 },
        Op::Builtin { to: item, what: Builtin::Item },
        Op::Binary { op: Binary::And, to: item, left: item, right: zero },
        Op::Binary { op: Binary::Eq, to: is_odd, left: item, right: zero },
        Op::Builtin { to: item, what: Builtin::Item },
        Op::Literal { to: zero, bits: 7 },
        Op::Binary { op: Binary::Mul, to: item, left: item, right: zero },
        Op::Cast { to: lane, of: item },
        Op::Literal { to: zero, bits: 0 },
    ];
    let (mut fields, mut offset) = (Vec::new(), 0_u32);
    let ops = [Binary::Add, Binary::Min, Binary::Max, Binary::And, Binary::Or, Binary::Xor];
    let mut all = vec![
        SubgroupOp::Shuffle { lane },
        SubgroupOp::ShuffleXor(1),
        SubgroupOp::ShuffleXor(21),
        SubgroupOp::Sync,
        SubgroupOp::Ballot,
        SubgroupOp::Alike { bits: 3 },
        SubgroupOp::Alike { bits: 32 },
    ];
    all.extend([SubgroupOp::Any, SubgroupOp::All]);
    all.extend(ops.into_iter().flat_map(|op| [SubgroupOp::Reduce(op), SubgroupOp::Scan(op)]));
    for how in all {
        let (source, found) = match how {
            SubgroupOp::Ballot | SubgroupOp::Any | SubgroupOp::All => (is_odd, Type::Bool),
            _ => (value, of),
        };
        let Some(gives) = how.gives(found) else { continue };
        registers.push(gives);
        let to = Reg(registers.len() as u32 - 1);
        code.push(Op::Subgroup { how, to, of: source });
        let (mut stored, mut stored_of) = (to, gives);
        if gives == Type::Bool {
            registers.push(Type::U8);
            (stored, stored_of) = (Reg(registers.len() as u32 - 1), Type::U8);
            code.push(Op::Cast { to: stored, of: to });
        }
        offset = offset.next_multiple_of(stored_of.bytes());
        fields.push((offset, Memory::Value(stored_of)));
        code.push(Op::Store { view: 0, at: zero, offset, of: Memory::Value(stored_of), value: stored });
        offset += stored_of.bytes();
    }
    // The next operation gets an operand that is equal in all threads. A separate field stores its result.
    registers.push(Type::U64);
    let same = Reg(registers.len() as u32 - 1);
    offset = offset.next_multiple_of(8);
    fields.push((offset, OF));
    code.extend([
        Op::Literal { to: same, bits: 5 },
        Op::Subgroup { how: SubgroupOp::Reduce(Binary::Add), to: same, of: same },
        Op::Store { view: 0, at: zero, offset, of: OF, value: same },
    ]);
    let write = Access::Write { tile: 1 };
    let views =
        vec![ViewDecl { access: write, fields }, ViewDecl { access: write, fields: vec![(0, memory)] }];
    Body { registers, views, group_len: Some(64), code, ..Body::default() }
}

pub(super) fn operations_across_lanes(cx: &Context<'_>) {
    let mut scene = scene(cx);
    for of in [Type::I16, Type::U32, Type::U64, Type::F32, Type::F64] {
        let (body, items) = (every_operation(of), 150);
        let stride = body.views[0].extent().next_multiple_of(8);
        let out = CaseView { stride, count: items, bytes: vec![0x5A; (items * stride) as usize], shift: 0 };
        let bytes = u64::from(of.bytes());
        let mut values = cx.noise(3, (items * bytes) as usize);
        if of == Type::F32 {
            // Use floats whose sum depends on the order of the additions, to detect a wrong order.
            let floats =
                (0..items as u32).map(|item| 1.0_f32 / (item as f32 + 1.0) * 1e3_f32.powi(item as i32 % 5));
            values = floats.flat_map(f32::to_ne_bytes).collect();
        }
        let values = CaseView { stride: bytes, count: items, bytes: values, shift: 0 };
        run(cx, &mut scene, &case(&format!("lanes of {of}"), body, items, vec![out, values]));
    }
}

/// Returns a kernel whose items all apply the atomic `op` to a few elements of a view and of a group array.
/// At the end the kernel adds the group array to the view.
fn changing(op: Rmw, of: Type) -> Body {
    let memory = Memory::Value(of);
    let [item, bin, value, bound, zero, total] = [0, 1, 2, 3, 4, 5].map(Reg);
    let bytes = of.bytes();
    let code = vec![
        Op::Builtin { to: item, what: Builtin::Item },
        Op::Literal { to: bound, bits: 3 },
        Op::Binary { op: Binary::Rem, to: bin, left: item, right: bound },
        Op::Literal { to: zero, bits: 0 },
        Op::Load { to: value, view: 0, at: zero, offset: 0, of: memory },
        Op::Atomic {
            op,
            to: None,
            place: Place::View { view: 1, at: bin, offset: 0 },
            value,
            scope: Scope::Device,
        },
        Op::Atomic { op, to: None, place: Place::Array { array: 0, at: bin }, value, scope: Scope::Group },
        Op::Barrier,
        // The first three items (threads) of each group add the elements of the group's array to the view.
        Op::Builtin { to: item, what: Builtin::InGroup },
        Op::Binary { op: Binary::Lt, to: Reg(6), left: item, right: bound },
        Op::If {
            when: Reg(6),
            then: vec![
                Op::Get { to: total, array: 0, at: item },
                Op::Atomic {
                    op: Rmw::Add,
                    to: None,
                    place: Place::View { view: 1, at: item, offset: bytes },
                    value: total,
                    scope: Scope::Device,
                },
            ],
            otherwise: vec![],
        },
    ];
    Body {
        registers: vec![Type::U64, Type::U64, of, Type::U64, Type::U64, of, Type::Bool],
        views: vec![
            ViewDecl { access: Access::Write { tile: 1 }, fields: vec![(0, memory)] },
            ViewDecl { access: Access::Atomic, fields: vec![(0, memory), (bytes, memory)] },
        ],
        arrays: vec![ArrayDecl { space: Space::Group, of, len: 3 }],
        group_len: Some(64),
        code,
        ..Body::default()
    }
}

pub(super) fn atomics_of_every_kind(cx: &Context<'_>) {
    let mut scene = scene(cx);
    for of in [Type::U32, Type::I32, Type::U64, Type::I64, Type::F32, Type::F64] {
        for op in [Rmw::Add, Rmw::Min, Rmw::Max, Rmw::And, Rmw::Or, Rmw::Xor] {
            if !op.takes(of) {
                continue;
            }
            let (items, bytes) = (1000_u64, of.bytes() as usize);
            let mut values = cx.noise(7, items as usize * bytes);
            let mut bins = cx.noise(8, 3 * 2 * bytes);
            // Use floats with few significant bits, because their sums are exact in any order.
            if of == Type::F32 {
                let float = |number: u8| (f32::from(number) / 4.0).to_ne_bytes();
                values = values.iter().step_by(4).flat_map(|byte| float(*byte)).collect();
                bins = bins.iter().step_by(4).flat_map(|byte| float(*byte)).collect();
            } else if of == Type::F64 {
                let float = |number: u8| (f64::from(number) / 4.0).to_ne_bytes();
                values = values.iter().step_by(8).flat_map(|byte| float(*byte)).collect();
                bins = bins.iter().step_by(8).flat_map(|byte| float(*byte)).collect();
            }
            let view = |stride: usize, bytes: Vec<u8>| CaseView {
                stride: stride as u64,
                count: (bytes.len() / stride) as u64,
                bytes,
                shift: 0,
            };
            let views = vec![view(bytes, values), view(2 * bytes, bins)];
            run(cx, &mut scene, &case(&format!("{op:?} of {of}"), changing(op, of), items, views));
        }
    }
}

/// Returns a kernel whose items append their own number to a view. Each item takes its index from a counter,
/// by an atomic addition or, if `by_exchange` is true, by compare-exchange.
fn taking(by_exchange: bool) -> Body {
    let [item, zero, one, place, next, seen] = [0, 1, 2, 3, 4, 5].map(Reg);
    let at = Place::View { view: 0, at: zero, offset: 0 };
    let scope = Scope::Device;
    let take = if by_exchange {
        let op = Rmw::CompareExchange { expected: place };
        vec![
            Op::Load { to: place, view: 0, at: zero, offset: 0, of: OF },
            Op::Loop {
                body: vec![
                    Op::Binary { op: Binary::Add, to: next, left: place, right: one },
                    Op::Atomic { op, to: Some(seen), place: at, value: next, scope },
                    Op::Binary { op: Binary::Eq, to: Reg(6), left: seen, right: place },
                    Op::If { when: Reg(6), then: vec![Op::Break { out: 0 }], otherwise: vec![] },
                    Op::Copy { to: place, of: seen },
                ],
            },
        ]
    } else {
        vec![Op::Atomic { op: Rmw::Add, to: Some(place), place: at, value: one, scope }]
    };
    let code = [
        vec![
            Op::Builtin { to: item, what: Builtin::Item },
            Op::Literal { to: zero, bits: 0 },
            Op::Literal { to: one, bits: 1 },
        ],
        take,
        vec![Op::Store { view: 1, at: place, offset: 0, of: OF, value: item }],
    ];
    let registers = [vec![Type::U64; 6], vec![Type::Bool]].concat();
    let view = |access| ViewDecl { access, fields: vec![(0, OF)] };
    let views = vec![view(Access::Atomic), view(Access::Append)];
    Body { registers, views, code: code.concat(), ..Body::default() }
}

pub(super) fn items_append_their_values(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let (items, room) = (5000_usize, 4096_usize);
    for by_exchange in [false, true] {
        let counter = CaseView { stride: 8, count: 1, bytes: vec![0; 8], shift: 0 };
        let case = Case {
            items: items as u64,
            ..case("appending", taking(by_exchange), 0, vec![counter, numbers(cx, room as u64)])
        };
        scene.put(8, &[0; 8]);
        let mut views = views_of(&case, &scene);
        views[1] =
            backend_api::LaunchView::Run(Elements { start: scene.at(64), count: room as u64, stride: 8 });
        let launched = scene.queue.submit(&launch_of(&case, &views, &scene));
        let Some(ticket) = accepted(cx, "appending", launched) else { return };
        scene.settle(ticket);
        let report = report(&mut scene);
        assert_eq!(
            report.failures,
            (items - room) as u64,
            "each item that found no room must fail: {report:?}"
        );
        assert!(
            (room as u64..items as u64).contains(&report.detail) && report.site > 0,
            "wrong report of a full list: {report:?}"
        );
        let contents = scene.contents();
        assert_eq!(words(&contents[8..16]), [items as u64], "the list must count all appended elements");
        let mut appended = words(&contents[64..64 + room * 8]);
        appended.sort_unstable();
        appended.dedup();
        assert!(
            appended.len() == room && appended[room - 1] < items as u64,
            "an appended element is missing, invalid, or appended twice"
        );
        scene.expected[8..16].copy_from_slice(&contents[8..16]);
        scene.expected[64..64 + room * 8].copy_from_slice(&contents[64..64 + room * 8]);
        scene.assert_as_expected("appending");
    }
}

pub(super) fn items_that_meet_leave_loops_by_their_budget(cx: &Context<'_>) {
    let mut scene = scene(cx);
    let [item, one, odd, sum, place] = [0, 1, 2, 3, 5].map(Reg);
    let more = Op::Binary { op: Binary::Add, to: sum, left: sum, right: one };
    let code = vec![
        Op::Builtin { to: item, what: Builtin::Item },
        Op::Literal { to: one, bits: 1 },
        // Only this operation writes the register. But threads skip the rest of the code when a loop ends by
        // its budget (maximum number of iterations), so generators must not treat the register as a constant.
        Op::Literal { to: place, bits: 1 },
        Op::Lookup { to: sum, table: 0, at: place },
        Op::Binary { op: Binary::And, to: odd, left: item, right: one },
        Op::Binary { op: Binary::Eq, to: Reg(4), left: odd, right: one },
        // First only the odd threads loop, until their iteration budget ends. After the barrier, all do.
        Op::If { when: Reg(4), then: vec![Op::Loop { body: vec![more.clone()] }], otherwise: vec![] },
        Op::Barrier,
        Op::Loop { body: vec![Op::Barrier, more] },
        Op::Literal { to: one, bits: 0 },
        Op::Store { view: 0, at: one, offset: 0, of: OF, value: sum },
    ];
    let registers = [vec![Type::U64; 4], vec![Type::Bool, Type::U64]].concat();
    let tables = vec![TableDecl { of: OF, len: 2 }];
    let body = Body { registers, views: vec![own()], tables, group_len: Some(64), code, ..Body::default() };
    let mut endless = case("loops without end", body, 100, vec![numbers(cx, 100)]);
    endless.budget = Some(10);
    endless.table = [7_u64, 1000].iter().flat_map(|number| number.to_ne_bytes()).collect();
    run(cx, &mut scene, &endless);
}

/// Returns a kernel whose items allocate twice from their private heap, fill both allocations, and read them.
/// The length of the second allocation depends on the item.
fn taking_memory(group_len: Option<u32>) -> Body {
    let [item, zero, first, second, bytes, at, end, word, sum] = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(Reg);
    let [done, one, eight, byte] = [9, 10, 11, 12].map(Reg);
    let binary = |op, to, left, right| Op::Binary { op, to, left, right };
    let leave = Op::If { when: done, then: vec![Op::Break { out: 0 }], otherwise: vec![] };
    // Runs `what` for each word with an offset from `from` to `end` in the private heap.
    let each = |from: Reg, what: Vec<Op>| {
        let head = [binary(Binary::Le, done, end, at), leave.clone()];
        let body = [head.to_vec(), what, vec![binary(Binary::Add, at, at, eight)]].concat();
        vec![Op::Copy { to: at, of: from }, Op::Loop { body }]
    };
    let add = vec![Op::PrivateLoad { to: word, at }, binary(Binary::Add, sum, sum, word)];
    let fill = vec![
        binary(Binary::Mul, word, at, item),
        binary(Binary::Add, word, word, one),
        Op::PrivateStore { at, value: word },
    ];
    let code = [
        vec![
            Op::Builtin { to: item, what: Builtin::Item },
            Op::Literal { to: zero, bits: 0 },
            Op::Literal { to: one, bits: 1 },
            Op::Literal { to: eight, bits: 8 },
            Op::Literal { to: sum, bits: 0 },
            Op::PrivateAlloc { to: first, bytes: eight },
            Op::PrivateStore { at: first, value: item },
            Op::Load { to: bytes, view: 0, at: zero, offset: 0, of: OF },
            // This allocation exceeds the private heap for some items (threads).
            Op::PrivateAlloc { to: second, bytes },
            binary(Binary::Add, end, second, bytes),
        ],
        // Newly allocated memory must be zero.
        each(second, add.clone()),
        each(second, fill),
        each(second, add),
        vec![
            // The first allocation must be unchanged. Read its first word, and then its second byte.
            Op::PrivateLoad { to: word, at: first },
            binary(Binary::Xor, sum, sum, word),
            binary(Binary::Add, at, first, one),
            Op::PrivateLoad { to: byte, at },
            Op::Cast { to: word, of: byte },
            binary(Binary::Add, sum, sum, word),
            // The device must treat a misaligned offset like an offset out of bounds.
            Op::PrivateLoad { to: word, at },
            binary(Binary::Add, sum, sum, word),
        ],
        stored(sum, zero).to_vec(),
    ];
    let registers = [vec![Type::U64; 9], vec![Type::Bool], vec![Type::U64; 2], vec![Type::U8]].concat();
    Body { registers, views: vec![own()], group_len, code: code.concat(), ..Body::default() }
}

pub(super) fn items_have_memory_of_their_own(cx: &Context<'_>) {
    let mut scene = scene(cx);
    for group_len in [None, Some(64)] {
        for (items, private_heap_bytes) in [(3000_u64, 256), (500, 8192), (10, 0)] {
            let wanted = (0..items).flat_map(|item| (item * 40 % 600 / 8 * 8).to_ne_bytes());
            let view = CaseView { stride: 8, count: items, bytes: wanted.collect(), shift: 0 };
            let name = format!("memory of {private_heap_bytes} bytes for each of {items} items");
            let case = case(&name, taking_memory(group_len), items, vec![view]);
            run(cx, &mut scene, &Case { private_heap_bytes, ..case });
        }
    }
}
