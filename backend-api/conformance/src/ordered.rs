//! Conformance checks of kernels with stores to any element, elements with several fields, and
//! release/acquire between items (GPU threads). The results must equal the kernel interpreter's.

use backend_api::kernel::{
    Access, ArrayDecl, Binary, Body, Builtin, Memory, Op, Place, Reg, Rmw, Scope, Space, Type, ViewDecl,
};

use super::Context;
use super::launches::{case, run, scene};
use super::random::CaseView;

const OF: Memory = Memory::Value(Type::U64);
const GROUP_LEN: u32 = 64;

fn literal(to: Reg, bits: u64) -> Op {
    Op::Literal { to, bits }
}

fn binary(op: Binary, to: Reg, left: Reg, right: Reg) -> Op {
    Op::Binary { op, to, left, right }
}

fn atomic(op: Rmw, to: Option<Reg>, place: Place, value: Reg) -> Op {
    let scope = if matches!(place, Place::View { .. }) { Scope::Device } else { Scope::Group };
    Op::Atomic { op, to, place, value, scope }
}

/// Creates a view of random bytes.
fn noise(cx: &Context<'_>, seed: u64, count: u64, stride: u64) -> CaseView {
    CaseView { stride, count, bytes: cx.noise(seed, (count * stride) as usize), shift: 0 }
}

/// Returns a kernel for release and acquire. Each item releases and acquires its own value in a view and in a
/// group array, and exchanges it. It also stores a byte in the element with the opposite index.
fn handing_on(of: Type, items: u64) -> Body {
    let memory = Memory::Value(of);
    let [item, within, last, value, unused, found, byte] = [0, 1, 2, 3, 4, 5, 6].map(Reg);
    let bytes = of.bytes();
    let at = |offset| Place::View { view: 1, at: item, offset };
    let here = Place::Array { array: 0, at: within };
    let code = vec![
        Op::Builtin { to: item, what: Builtin::Item },
        Op::Builtin { to: within, what: Builtin::InGroup },
        literal(last, items - 1),
        literal(unused, 0),
        Op::Load { to: value, view: 0, at: item, offset: 0, of: memory },
        atomic(Rmw::Release, None, here, value),
        atomic(Rmw::Acquire, Some(found), here, unused),
        atomic(Rmw::Release, None, at(0), found),
        atomic(Rmw::Acquire, Some(found), at(0), unused),
        atomic(Rmw::Exchange, Some(value), at(bytes), found),
        Op::Store { view: 1, at: item, offset: 2 * bytes, of: memory, value },
        binary(Binary::Sub, last, last, item),
        Op::Cast { to: byte, of: last },
        Op::Store { view: 2, at: last, offset: 0, of: Memory::Value(Type::U8), value: byte },
    ];
    let fields = (0..3).map(|field| (field * bytes, memory)).collect();
    Body {
        registers: vec![Type::U64, Type::U64, Type::U64, of, of, of, Type::U8],
        views: vec![
            ViewDecl { access: Access::Read, fields: vec![(0, memory)] },
            ViewDecl { access: Access::Atomic, fields },
            ViewDecl { access: Access::Atomic, fields: vec![(0, Memory::Value(Type::U8))] },
        ],
        arrays: vec![ArrayDecl { space: Space::Group, of, len: GROUP_LEN }],
        group_len: Some(GROUP_LEN),
        code,
        ..Body::default()
    }
}

pub(super) fn values_are_released_and_acquired(cx: &Context<'_>) {
    let mut scene = scene(cx);
    for of in [Type::U32, Type::I32, Type::U64, Type::I64, Type::F32, Type::F64] {
        let (items, bytes) = (1000, u64::from(of.bytes()));
        // The view of single bytes has one element too few, so the last thread's store is out of bounds.
        let views =
            vec![noise(cx, 1, items, bytes), noise(cx, 2, items, 4 * bytes), noise(cx, 3, items - 1, 1)];
        run(cx, &mut scene, &case(&format!("handed on by {of}"), handing_on(of, items), items, views));
    }
}

/// Returns a kernel that copies elements of six fields: each item reads the element of the opposite index.
fn moving(of: Type, items: u64) -> Body {
    let memory = Memory::Value(of);
    let [item, last, zero] = [0, 1, 2].map(Reg);
    let fields: Vec<(u32, Memory)> = (0..6).map(|field| (field * of.bytes(), memory)).collect();
    let values = || (3..).map(Reg).zip(&fields);
    let mut code = vec![
        Op::Builtin { to: item, what: Builtin::Item },
        literal(last, items),
        literal(zero, 0),
        binary(Binary::Sub, last, last, item),
    ];
    code.extend(values().map(|(to, (offset, of))| Op::Load {
        to,
        view: 1,
        at: last,
        offset: *offset,
        of: *of,
    }));
    code.extend(values().map(|(value, (offset, of))| Op::Store {
        view: 0,
        at: zero,
        offset: *offset,
        of: *of,
        value,
    }));
    Body {
        registers: [vec![Type::U64; 3], vec![of; 6]].concat(),
        views: vec![
            ViewDecl { access: Access::Write { tile: 1 }, fields: fields.clone() },
            ViewDecl { access: Access::Read, fields },
        ],
        code,
        ..Body::default()
    }
}

pub(super) fn elements_of_several_fields_are_moved(cx: &Context<'_>) {
    let mut scene = scene(cx);
    for (of, stride, shift) in [
        (Type::U32, 24, 0),
        (Type::U32, 32, 0),
        (Type::I32, 32, 4),
        (Type::F32, 28, 0),
        (Type::U64, 48, 0),
        (Type::U64, 64, 3),
        (Type::F64, 56, 0),
    ] {
        // Element 0 reads an index beyond the end of the view.
        let views = [1, 2].map(|seed| CaseView { shift, ..noise(cx, seed, 300, stride) });
        let name = format!("fields of {of} in {stride} bytes from {shift}");
        run(cx, &mut scene, &case(&name, moving(of, 300), 300, views.into()));
    }
}

/// Returns a kernel whose groups wait for one another in the order of their numbers, which they take from a
/// counter in view 0. Group `n` acquires element `n` of view 1. It releases element `n + 1`: the acquired
/// number plus an element that group `n - 1` has stored in view 2.
fn waiting() -> Body {
    let [item, zero, one, tile, sum, other, number, place] = [0, 1, 2, 3, 4, 5, 6, 7].map(Reg);
    let [is_first, done] = [8, 9].map(Reg);
    let here = Place::Array { array: 0, at: zero };
    let counter = Place::View { view: 0, at: zero, offset: 0 };
    let state = Place::View { view: 1, at: tile, offset: 0 };
    let on = |when, then| Op::If { when, then, otherwise: vec![] };
    let wait = vec![
        atomic(Rmw::Acquire, Some(sum), state, zero),
        binary(Binary::Ne, done, sum, zero),
        on(done, vec![Op::Break { out: 0 }]),
    ];
    let look = vec![
        Op::Loop { body: wait },
        binary(Binary::Ne, done, tile, zero),
        on(
            done,
            vec![
                binary(Binary::Sub, other, place, number),
                Op::Load { to: other, view: 2, at: other, offset: 0, of: OF },
                binary(Binary::Add, sum, sum, other),
            ],
        ),
        binary(Binary::Add, tile, tile, one),
        atomic(Rmw::Release, None, state, sum),
    ];
    let code = vec![
        Op::Builtin { to: item, what: Builtin::InGroup },
        literal(zero, 0),
        literal(one, 1),
        literal(number, u64::from(GROUP_LEN) - 5),
        binary(Binary::Eq, is_first, item, zero),
        on(
            is_first,
            vec![atomic(Rmw::Add, Some(tile), counter, one), Op::Put { array: 0, at: zero, value: tile }],
        ),
        Op::Barrier,
        Op::Get { to: tile, array: 0, at: zero },
        literal(place, u64::from(GROUP_LEN)),
        binary(Binary::Mul, place, place, tile),
        binary(Binary::Add, other, place, item),
        binary(Binary::Mul, sum, other, number),
        Op::Store { view: 2, at: other, offset: 0, of: OF, value: sum },
        Op::Barrier,
        on(is_first, look),
        // Acquire an element of the group's array. The element holds the number of the thread's group.
        atomic(Rmw::Acquire, Some(tile), here, zero),
    ];
    let view = || ViewDecl { access: Access::Atomic, fields: vec![(0, OF)] };
    Body {
        registers: [vec![Type::U64; 8], vec![Type::Bool; 2]].concat(),
        views: vec![view(), view(), view()],
        arrays: vec![ArrayDecl { space: Space::Group, of: Type::U64, len: 1 }],
        group_len: Some(GROUP_LEN),
        code,
        ..Body::default()
    }
}

pub(super) fn groups_wait_for_earlier_groups(cx: &Context<'_>) {
    let mut scene = scene(cx);
    for groups in [1_u64, 7, 300] {
        let items = groups * u64::from(GROUP_LEN);
        let filled = |count: u64, first: u64| {
            let mut bytes = vec![0; count as usize * 8];
            bytes[..8].copy_from_slice(&first.to_ne_bytes());
            CaseView { stride: 8, count, bytes, shift: 0 }
        };
        let views = vec![filled(1, 0), filled(groups + 1, 1), filled(items, 0)];
        if !run(cx, &mut scene, &case(&format!("{groups} groups that wait"), waiting(), items, views)) {
            return;
        }
    }
}
