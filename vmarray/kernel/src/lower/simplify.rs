//! Simplification of lowered code: turns arrays into registers if possible, and removes unused results.

use backend_api::kernel::{Access, ArrayDecl, Body, Memory, Op, Place, Reg, Space, Type};
use std::collections::{BTreeSet, HashMap};

/// Maximum length of an array that becomes registers if only constants index it.
const REGISTERS_MAX: u32 = 256;

/// Simplifies a lowered body: replaces arrays with constant indices by registers, inlines blocks without a
/// break, propagates copies, and drops operations whose results are unused and `removable`.
///
/// A write of a literal to the register `marker` marks a source line. The function removes these writes. For
/// each removed write, it returns the number of the next operation, and the literal.
pub fn simplify(body: &mut Body, mut removable: Vec<bool>, marker: Option<Reg>) -> Vec<(u32, u64)> {
    let literals = literals(&body.code);
    arrays_to_registers(body, &literals, &mut removable);
    body.code = flattened(std::mem::take(&mut body.code));
    replace_copies(body);
    drop_unchanged(body);
    while drop_unread(&mut body.code, body.registers.len(), &removable) {}
    forget_unread(body);
    declare_fields(body);
    let (mut site, mut marks) = (0, Vec::new());
    take_marks(&mut body.code, marker, &mut site, &mut marks);
    number_anew(body);
    marks
}

/// Removes the literals of the register `marker`, and records each with the number of the next operation.
fn take_marks(code: &mut Vec<Op>, marker: Option<Reg>, site: &mut u32, marks: &mut Vec<(u32, u64)>) {
    code.retain_mut(|op| {
        if let Op::Literal { to, bits } = op
            && Some(*to) == marker
        {
            marks.push((*site, *bits));
            return false;
        }
        *site += 1;
        match op {
            Op::If { then, otherwise, .. } => {
                take_marks(then, marker, site, marks);
                take_marks(otherwise, marker, site, marks);
            }
            Op::Block { body } | Op::Loop { body } => take_marks(body, marker, site, marks),
            _ => {}
        }
        true
    });
}

/// Calls `visit` for each operation, including nested ones.
fn each(code: &mut [Op], visit: &mut impl FnMut(&mut Op)) {
    for op in code {
        visit(op);
        match op {
            Op::If { then, otherwise, .. } => {
                each(then, visit);
                each(otherwise, visit);
            }
            Op::Block { body } | Op::Loop { body } => each(body, visit),
            _ => {}
        }
    }
}

/// Calls `visit` for each operation, including nested ones, without changes.
fn each_of(code: &[Op], visit: &mut impl FnMut(&Op)) {
    for op in code {
        visit(op);
        op.within().into_iter().for_each(|code| each_of(code, visit));
    }
}

/// Returns the registers that exactly one operation writes, a literal; and the literal's bits.
fn literals(code: &[Op]) -> HashMap<Reg, u64> {
    let (mut literals, mut written) = (HashMap::new(), BTreeSet::new());
    each_of(code, &mut |op| {
        if let Some(to) = op.written() {
            match op {
                Op::Literal { bits, .. } if written.insert(to) => {
                    literals.insert(to, *bits);
                }
                _ => {
                    written.insert(to);
                    literals.remove(&to);
                }
            }
        }
    });
    literals
}

fn arrays_to_registers(body: &mut Body, literals: &HashMap<Reg, u64>, removable: &mut Vec<bool>) {
    let fits = |array: &ArrayDecl| array.len <= REGISTERS_MAX && array.space == Space::Item;
    let mut fits: Vec<bool> = body.arrays.iter().map(fits).collect();
    each_of(&body.code, &mut |op| {
        if let Op::Get { array, at, .. } | Op::Put { array, at, .. } = op {
            let number = usize::from(*array);
            let is_inside = literals.get(at).is_some_and(|at| *at < u64::from(body.arrays[number].len));
            fits[number] &= is_inside;
        }
    });
    // The first register of each array that registers can replace; `None` for other arrays.
    let mut first = Vec::with_capacity(fits.len());
    for (array, fits) in body.arrays.iter().zip(&fits) {
        first.push(fits.then_some(body.registers.len() as u32));
        if *fits {
            body.registers.extend(std::iter::repeat_n(array.of, array.len as usize));
        }
    }
    removable.resize(body.registers.len(), true);
    let place = |array: &u16, at: &Reg| {
        let first = first[usize::from(*array)]?;
        Some(Reg(first + *literals.get(at)? as u32))
    };
    each(&mut body.code, &mut |op| {
        let copy = match op {
            Op::Get { to, array, at } => place(array, at).map(|of| Op::Copy { to: *to, of }),
            Op::Put { array, at, value } => place(array, at).map(|to| Op::Copy { to, of: *value }),
            _ => None,
        };
        if let Some(copy) = copy {
            *op = copy;
        }
    });
    let mut left = Vec::new();
    let mut numbers = vec![0_u16; fits.len()];
    for (number, array) in body.arrays.iter().enumerate() {
        if !fits[number] {
            numbers[number] = left.len() as u16;
            left.push(*array);
        }
    }
    body.arrays = left;
    each(&mut body.code, &mut |op| {
        if let Op::Get { array, .. }
        | Op::Put { array, .. }
        | Op::Atomic { place: Place::Array { array, .. }, .. } = op
        {
            *array = numbers[usize::from(*array)];
        }
    });
}

/// Removes blocks without a break, and a break at the end of its own block.
fn flattened(code: Vec<Op>) -> Vec<Op> {
    let mut flat = Vec::with_capacity(code.len());
    for op in code {
        match op {
            Op::If { when, then, otherwise } => {
                let (then, otherwise) = (flattened(then), flattened(otherwise));
                if !(then.is_empty() && otherwise.is_empty()) {
                    flat.push(Op::If { when, then, otherwise });
                }
            }
            Op::Loop { body } => flat.push(Op::Loop { body: flattened(body) }),
            Op::Block { body } => {
                let mut body = flattened(body);
                without_last_break(&mut body);
                if is_left(&body, 0) {
                    flat.push(Op::Block { body });
                } else {
                    nearer(&mut body, 0);
                    flat.append(&mut body);
                }
            }
            op => {
                let is_end = matches!(op, Op::Break { .. } | Op::Continue { .. });
                flat.push(op);
                if is_end {
                    break;
                }
            }
        }
    }
    flat
}

/// Removes a break at the end of its own block.
fn without_last_break(code: &mut Vec<Op>) {
    match code.last_mut() {
        Some(Op::Break { out: 0 }) => {
            code.pop();
        }
        Some(Op::If { then, otherwise, .. }) => {
            without_last_break(then);
            without_last_break(otherwise);
            if then.is_empty() && otherwise.is_empty() {
                code.pop();
            }
        }
        _ => {}
    }
}

/// Returns true if code breaks out of the enclosing block number `out`.
fn is_left(code: &[Op], out: u16) -> bool {
    code.iter().any(|op| match op {
        Op::Break { out: of } | Op::Continue { out: of } => *of == out,
        Op::Block { body } | Op::Loop { body } => is_left(body, out + 1),
        Op::If { then, otherwise, .. } => is_left(then, out) || is_left(otherwise, out),
        _ => false,
    })
}

/// Adjusts breaks to the removal of the enclosing block `out`: lowers the level of breaks beyond it by one.
fn nearer(code: &mut [Op], out: u16) {
    for op in code {
        match op {
            Op::Break { out: of } | Op::Continue { out: of } if *of > out => *of -= 1,
            Op::Block { body } | Op::Loop { body } => nearer(body, out + 1),
            Op::If { then, otherwise, .. } => {
                nearer(then, out);
                nearer(otherwise, out);
            }
            _ => {}
        }
    }
}

/// Replaces the result of a copy by its source if exactly one operation writes each of them. Every path to a
/// read of the copy passes the copy operation. A path that wrote the source between the copy and a read
/// would, started at that write, reach the read without passing the copy.
fn replace_copies(body: &mut Body) {
    let mut writes = vec![0_u32; body.registers.len()];
    let mut copies: HashMap<Reg, Reg> = HashMap::new();
    each_of(&body.code, &mut |op| {
        if let Some(to) = op.written() {
            writes[to.at()] += 1;
        }
        if let Op::Copy { to, of } = op {
            copies.insert(*to, *of);
        }
    });
    copies.retain(|to, of| writes[to.at()] == 1 && writes[of.at()] == 1);
    each(&mut body.code, &mut |op| {
        op.each_register_mut(|register, is_written| {
            while let Some(of) = copies.get(register).filter(|_| !is_written) {
                *register = *of;
            }
        });
    });
}

/// Removes a store to a field of the value that was just loaded from it, if the kernel also stores other
/// fields: an assignment of a whole struct often changes only few fields. If all stores to a field are of
/// this kind, the field does not change, and the earlier load has checked the index.
fn drop_unchanged(body: &mut Body) {
    let literals = literals(&body.code);
    let mut writes = vec![0_u32; body.registers.len()];
    // The source of each register's load: view, element, offset and type.
    let mut loads = HashMap::new();
    let mut changed: Vec<Vec<(u32, u32)>> = vec![Vec::new(); body.views.len()];
    each_of(&body.code, &mut |op| {
        if let Some(to) = op.written() {
            writes[to.at()] += 1;
        }
        if let Op::Load { to, view, at, offset, of } = *op {
            loads.insert(to, (view, at, offset, of));
        }
    });
    let is_own = |view: u16| matches!(body.views[usize::from(view)].access, Access::Write { .. });
    let is_same = |op: &Op| {
        let Op::Store { view, at, offset, of: Memory::Value(of), value } = *op else { return false };
        if !is_own(view) {
            return false;
        }
        let Some((loaded, from, from_offset, lies_as)) = loads.get(&value) else { return false };
        let is_there = match (literals.get(from), literals.get(&at)) {
            (Some(from), Some(at)) => from == at,
            _ => *from == at && writes[at.at()] == 1,
        };
        let is_field = (view, offset, Memory::Value(of)) == (*loaded, *from_offset, *lies_as);
        writes[value.at()] == 1 && is_there && is_field
    };
    each_of(&body.code, &mut |op| match *op {
        Op::Store { view, offset, of, .. } if !is_same(op) => {
            changed[usize::from(view)].push((offset, offset + of.bytes()));
        }
        _ => {}
    });
    retain(&mut body.code, &mut |op| {
        let Op::Store { view, offset, of, .. } = *op else { return true };
        let changed = &changed[usize::from(view)];
        let may_change = changed.iter().any(|(from, to)| *from < offset + of.bytes() && offset < *to);
        changed.is_empty() || may_change || !is_same(op)
    });
}

/// Removes operations whose result no operation reads. Returns true if it has removed any.
fn drop_unread(code: &mut Vec<Op>, registers: usize, removable: &[bool]) -> bool {
    let mut is_read = vec![false; registers];
    each_of(code, &mut |op| op.each_read(|register| is_read[register.at()] = true));
    let mut has_dropped = false;
    retain(code, &mut |op| {
        let stays = match op {
            Op::If { then, otherwise, .. } => !(then.is_empty() && otherwise.is_empty()),
            Op::Block { body } => !body.is_empty(),
            op => op.written().is_none_or(|to| is_read[to.at()] || !removable[to.at()]),
        };
        has_dropped |= !stays;
        stays
    });
    has_dropped
}

/// Removes unused result registers of atomics. Devices then execute atomics that return no value.
fn forget_unread(body: &mut Body) {
    let mut is_read = vec![false; body.registers.len()];
    each_of(&body.code, &mut |op| op.each_read(|register| is_read[register.at()] = true));
    each(&mut body.code, &mut |op| {
        if let Op::Atomic { to, .. } = op {
            *to = to.filter(|to| is_read[to.at()]);
        }
    });
}

fn retain(code: &mut Vec<Op>, stays: &mut impl FnMut(&Op) -> bool) {
    for op in code.iter_mut() {
        match op {
            Op::If { then, otherwise, .. } => {
                retain(then, stays);
                retain(otherwise, stays);
            }
            Op::Block { body } | Op::Loop { body } => retain(body, stays),
            _ => {}
        }
    }
    code.retain(|op| stays(op));
}

/// Declares the fields of views that the code accesses.
fn declare_fields(body: &mut Body) {
    let mut fields: Vec<Vec<(u32, Memory)>> = vec![Vec::new(); body.views.len()];
    each_of(&body.code, &mut |op| {
        let (view, field) = match *op {
            Op::Load { view, offset, of, .. } | Op::Store { view, offset, of, .. } => (view, (offset, of)),
            Op::Atomic { place: Place::View { view, offset, .. }, value, .. } => {
                (view, (offset, Memory::Value(body.registers[value.at()])))
            }
            _ => return,
        };
        let fields = &mut fields[usize::from(view)];
        if !fields.contains(&field) {
            fields.push(field);
        }
    });
    for (view, mut fields) in body.views.iter_mut().zip(fields) {
        fields.sort_by_key(|field| field.0);
        view.fields = fields;
    }
}

/// Removes unused registers, and renumbers the others.
fn number_anew(body: &mut Body) {
    let mut numbers: HashMap<Reg, Reg> = HashMap::new();
    let mut types: Vec<Type> = Vec::new();
    let old = std::mem::take(&mut body.registers);
    each(&mut body.code, &mut |op| {
        op.each_register_mut(|register, _| {
            let new = *numbers.entry(*register).or_insert_with(|| {
                types.push(old[register.at()]);
                Reg((types.len() - 1) as u32)
            });
            *register = new;
        });
    });
    body.registers = types;
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend_api::kernel::{Binary, ViewDecl};

    const LEAVE: Op = Op::Break { out: 0 };
    const NEXT: Op = Op::Literal { to: Reg(0), bits: 1 };

    #[test]
    fn blocks_without_exits_are_flattened() {
        let on = |then| Op::If { when: Reg(1), then, otherwise: vec![] };
        // The inner block disappears, so breaks out of the outer block have a lower level.
        let inner = Op::Block { body: vec![on(vec![Op::Break { out: 1 }]), NEXT] };
        let code = vec![Op::Block { body: vec![inner, NEXT] }];
        let flat = flattened(code);
        assert_eq!(flat, [Op::Block { body: vec![on(vec![LEAVE]), NEXT, NEXT] }]);
        assert_eq!(
            flattened(vec![Op::Block { body: vec![NEXT, on(vec![NEXT, LEAVE])] }]),
            [NEXT, on(vec![NEXT])]
        );
        assert_eq!(flattened(vec![Op::Loop { body: vec![LEAVE, NEXT] }]), [Op::Loop { body: vec![LEAVE] }]);
    }

    #[test]
    fn arrays_that_constants_index_become_registers() {
        use backend_api::kernel::{ArrayDecl, Space};
        let array = ArrayDecl { space: Space::Item, of: Type::U64, len: 2 };
        let (at, value) = (Reg(0), Reg(1));
        let mut body = Body {
            registers: vec![Type::U64, Type::U64, Type::U64],
            arrays: vec![array, array],
            code: vec![
                Op::Literal { to: at, bits: 1 },
                Op::Param { to: value, number: 0 },
                Op::Put { array: 0, at, value },
                Op::Get { to: Reg(2), array: 0, at },
                Op::Put { array: 1, at: Reg(2), value },
            ],
            ..Body::default()
        };
        simplify(&mut body, vec![true; 3], None);
        // The copies and the literal have been removed.
        let value = Reg(0);
        assert_eq!(body.code, [Op::Param { to: value, number: 0 }, Op::Put { array: 0, at: value, value }]);
        assert_eq!((body.arrays.len(), body.registers.len()), (1, 1));
    }

    #[test]
    fn fields_that_keep_their_value_are_not_written() {
        let (at, old, other, new) = (Reg(0), Reg(1), Reg(2), Reg(3));
        let of = Memory::Value(Type::U64);
        let load = |to, offset| Op::Load { to, view: 0, at, offset, of };
        let store = |value, offset| Op::Store { view: 0, at, offset, of, value };
        let left = |stores: [Op; 3]| {
            let begin = [Op::Literal { to: at, bits: 0 }, load(old, 0), load(other, 8)];
            let new = Op::Binary { op: Binary::Add, to: new, left: old, right: other };
            let mut body = Body {
                registers: vec![Type::U64; 4],
                views: vec![ViewDecl { access: Access::Write { tile: 1 }, fields: vec![] }],
                code: begin.into_iter().chain([new]).chain(stores).collect(),
                ..Body::default()
            };
            drop_unchanged(&mut body);
            body.code[4..].to_vec()
        };
        assert_eq!(left([store(old, 0), store(new, 8), store(old, 0)]), [store(new, 8)]);
        // These stores stay: the value is from another field, other stores follow, or it is the only store.
        let crossed = [store(other, 0), store(new, 8), store(new, 16)];
        assert_eq!(left(crossed.clone()), crossed);
        let changed = [store(new, 4), store(old, 0), store(other, 8)];
        assert_eq!(left(changed.clone()), changed);
        let same = [store(old, 0), store(other, 8), store(old, 0)];
        assert_eq!(left(same.clone()), same);
    }

    #[test]
    fn a_register_written_twice_is_no_copy() {
        let (a, b, c) = (Reg(0), Reg(1), Reg(2));
        let code = vec![
            Op::Param { to: a, number: 0 },
            Op::Copy { to: b, of: a },
            Op::Param { to: a, number: 1 },
            Op::Binary { op: Binary::Add, to: c, left: a, right: b },
            Op::Fail { code: 0, detail: c },
        ];
        let mut body = Body { registers: vec![Type::U64; 3], code: code.clone(), ..Body::default() };
        replace_copies(&mut body);
        assert_eq!(body.code, code);
        assert!(!drop_unread(&mut body.code, 3, &[true; 3]));
    }
}
