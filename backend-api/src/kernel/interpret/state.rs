//! The interpreter's state of a launch and of each item (GPU thread), and the execution of single operations.

use std::sync::atomic::{Ordering, fence};

use super::interpreter::Interpreter;
use super::views::{Views, from_bits, to_bits};
use crate::expr::Number;
use crate::kernel::arithmetic::{self, binary, binary_lanes, each, pairs};
use crate::kernel::{
    Access, ArrayDecl, Binary, Body, Builtin, LoopClock, Memory, Op, Overtime, Place, Reg, Report, Rmw,
    Space, SubgroupOp, Type,
};
use crate::{Result, by_integer};

/// The position at which an item continues.
#[derive(Clone, Copy, Debug)]
pub(super) enum Continuation {
    /// The item continues at the operation with this number.
    At(u32),
    /// The item begins another iteration of the loop with this number.
    Again(u32),
    /// The item has ended.
    End,
}

/// The operations of a body in a flat list, indexed by their numbers.
pub(super) struct FlatBody<'a> {
    ops: Vec<Step<'a>>,
    /// True if the items of a group synchronise; and the numbers of the loops that they run together.
    pub(super) meets: bool,
    pub(super) common: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Step<'a> {
    op: &'a Op,
    /// The position after the operation.
    next: Continuation,
    /// The starts of the nested code: both branches of an `If`, or the body of a block or loop.
    within: [Continuation; 2],
}

impl<'a> FlatBody<'a> {
    pub(super) fn new(body: &'a Body) -> Self {
        let mut flat = Self { ops: Vec::new(), meets: body.meets(), common: body.common_loops() };
        flat.add(&body.code, Continuation::End, &mut Vec::new());
        flat
    }

    /// Adds code that continues at `after`, and returns its start. `labels` has the targets of `Break` and
    /// `Continue` for each enclosing block and loop.
    fn add(
        &mut self,
        code: &'a [Op],
        after: Continuation,
        labels: &mut Vec<(Continuation, Continuation)>,
    ) -> Continuation {
        let begin = self.ops.len() as u32;
        let mut at = begin;
        for (number, op) in code.iter().enumerate() {
            let site = at;
            at += op.count() as u32;
            let next = if number + 1 < code.len() { Continuation::At(at) } else { after };
            let next = match *op {
                Op::Break { out } => labels[labels.len() - 1 - usize::from(out)].0,
                Op::Continue { out } => labels[labels.len() - 1 - usize::from(out)].1,
                _ => next,
            };
            self.ops.push(Step { op, next, within: [next; 2] });
            match op {
                Op::If { then, otherwise, .. } => {
                    let within = [self.add(then, next, labels), self.add(otherwise, next, labels)];
                    self.ops[site as usize].within = within;
                }
                Op::Block { body } => {
                    labels.push((next, next));
                    self.ops[site as usize].within[0] = self.add(body, next, labels);
                    labels.pop();
                }
                Op::Loop { body } => {
                    labels.push((next, Continuation::Again(site)));
                    self.ops[site as usize].within[0] = self.add(body, Continuation::Again(site), labels);
                    labels.pop();
                }
                _ => {}
            }
        }
        if code.is_empty() { after } else { Continuation::At(begin) }
    }
}

/// The interpreter's state of one item.
pub(super) struct ItemState {
    pub(super) number: u64,
    pub(super) in_group: u64,
    pub(super) live: bool,
    pub(super) registers: Vec<u64>,
    /// The elements of each of the item's private arrays.
    pub(super) arrays: Vec<Vec<u64>>,
    pub(super) private_heap: Vec<u8>,
    pub(super) next: Continuation,
    /// Number of loop iterations of the item: in loops of its own, and in loops that its group runs together.
    pub(super) turns: [u64; 2],
    pub(super) failed: Option<(u32, u64)>,
}

pub(super) fn arrays_of(body: &Body, space: Space) -> Vec<Vec<u64>> {
    let len = |array: &ArrayDecl| if array.space == space { array.len as usize } else { 0 };
    body.arrays.iter().map(|array| vec![0; len(array)]).collect()
}

impl ItemState {
    pub(super) fn new(body: &Body) -> Self {
        Self {
            number: 0,
            in_group: 0,
            live: true,
            registers: vec![0; body.registers.len()],
            arrays: arrays_of(body, Space::Item),
            private_heap: Vec::new(),
            next: Continuation::End,
            turns: [0; 2],
            failed: None,
        }
    }

    pub(super) fn start(&mut self, number: u64, in_group: u64, live: bool) {
        (self.number, self.in_group, self.live) = (number, in_group, live);
        (self.next, self.turns, self.failed) = (Continuation::At(0), [0; 2], None);
        self.private_heap.clear();
        // Set registers to zero: if a loop ends early, later code may read a register that was never written.
        self.registers.fill(0);
        self.arrays.iter_mut().for_each(|array| array.fill(0));
    }

    pub(super) fn report(&self) -> Option<Report> {
        self.failed.map(|(site, detail)| Report { failures: 1, site, detail, item: self.number })
    }

    pub(super) fn get(&self, register: Reg) -> u64 {
        self.registers[register.at()]
    }

    fn set(&mut self, register: Reg, value: u64) {
        self.registers[register.at()] = value;
    }

    pub(super) fn fail(&mut self, site: u32, detail: u64) {
        if self.live && self.failed.is_none() {
            self.failed = Some((site, detail));
        }
    }
}

/// The interpreter's state that all items of a launch share.
pub(super) struct LaunchState<'s, V> {
    pub(super) launch: &'s Interpreter<'s>,
    pub(super) body: &'s Body,
    pub(super) flat: &'s FlatBody<'s>,
    pub(super) views: &'s mut V,
    /// The elements of each array of the current group.
    pub(super) shared: Vec<Vec<u64>>,
    /// The same at the start of each group.
    pub(super) initial: Vec<Vec<u64>>,
    pub(super) group: u64,
    pub(super) clock: LoopClock<'s>,
    /// The report of the item that exceeded the time limit. If it is set, no item continues.
    pub(super) over: Option<Report>,
}

impl<'s, V: Views> LaunchState<'s, V> {
    pub(super) fn new(launch: &'s Interpreter<'s>, flat: &'s FlatBody<'s>, views: &'s mut V) -> Self {
        let (body, clock) = (launch.kernel.body(), LoopClock::new(launch.limit));
        let mut initial = arrays_of(body, Space::Group);
        for (number, (array, decl)) in initial.iter_mut().zip(&body.arrays).enumerate() {
            if decl.space == Space::Group && !launch.kernel.starts_zeroed(number) {
                // A kernel that reads an element before writing it then computes wrong results.
                array.fill(if decl.of == Type::Bool { 1 } else { u64::MAX >> (64 - 8 * decl.of.bytes()) });
            }
        }
        Self { launch, body, flat, views, shared: Vec::new(), initial, group: 0, clock, over: None }
    }

    /// Runs a group: each item up to its next barrier, then all of them from there, until all have ended.
    pub(super) fn group(&mut self, group: u64, items: &mut [ItemState]) -> Result<()> {
        self.group = group;
        self.clock.begin();
        self.shared.clone_from(&self.initial);
        let first = group * items.len() as u64;
        for (lane, item) in items.iter_mut().enumerate() {
            let number = first + lane as u64;
            item.start(number, lane as u64, number < self.launch.items);
            if self.body.code.is_empty() {
                item.next = Continuation::End;
            }
        }
        loop {
            let mut waiting = None;
            for item in items.iter_mut() {
                waiting = self.run(item)?.or(waiting);
                if self.over.is_some() {
                    return Ok(());
                }
            }
            let Some(site) = waiting else { return Ok(()) };
            debug_assert!(items.iter().all(|item| matches!(item.next, Continuation::At(at) if at == site)));
            let Step { op, next, .. } = self.flat.ops[site as usize];
            if let Op::Subgroup { how, to, of } = *op {
                self.subgroup_op(how, to, of, items);
            }
            items.iter_mut().for_each(|item| item.next = next);
        }
    }

    /// Runs an item until it ends or reaches a barrier or subgroup operation, whose number it returns.
    fn run(&mut self, item: &mut ItemState) -> Result<Option<u32>> {
        loop {
            let site = match item.next {
                Continuation::End => return Ok(None),
                Continuation::At(site) => site,
                Continuation::Again(site) => {
                    let turns = &mut item.turns[usize::from(self.flat.common.contains(&site))];
                    match self.launch.budget.filter(|budget| *turns >= *budget) {
                        None => {
                            *turns += 1;
                            if let Some(overtime) = self.clock.turn() {
                                self.end(overtime, site, item.number);
                                return Ok(None);
                            }
                            site
                        }
                        Some(budget) => {
                            item.fail(site, budget);
                            // If the kernel has barriers, the failed item (thread) continues after the loop,
                            // because other items may wait for the item at a later barrier.
                            let after = self.flat.ops[site as usize].next;
                            item.next = if self.flat.meets { after } else { Continuation::End };
                            continue;
                        }
                    }
                }
            };
            let Step { op, next, within: [first, second] } = self.flat.ops[site as usize];
            item.next = next;
            match op {
                Op::If { when, .. } => item.next = if item.get(*when) != 0 { first } else { second },
                Op::Block { .. } | Op::Loop { .. } => item.next = first,
                Op::Break { .. } | Op::Continue { .. } => {}
                Op::Barrier | Op::Subgroup { .. } => {
                    item.next = Continuation::At(site);
                    return Ok(Some(site));
                }
                _ => {
                    let registers = std::mem::take(&mut item.registers);
                    let value = self.step(item, |register| &registers[register.at()], site, op);
                    item.registers = registers;
                    if let Some(to) = op.written() {
                        item.set(to, value?);
                    } else {
                        value?;
                    }
                }
            }
        }
    }

    /// Ends all items, because one item has exceeded the time limit in the loop `site`.
    pub(super) fn end(&mut self, overtime: Overtime, site: u32, item: u64) {
        self.over = Some(match overtime {
            Overtime::Own => Report::time_over(site, item),
            Overtime::OfAnother => Report::default(),
        });
    }

    pub(super) fn of(&self, register: Reg) -> Type {
        self.body.registers[register.at()]
    }

    /// Runs an operation without control flow. Returns its result, or 0 if it has no result register.
    pub(super) fn step<'r>(
        &mut self,
        item: &mut ItemState,
        get: impl Fn(Reg) -> &'r u64,
        site: u32,
        op: &Op,
    ) -> Result<u64> {
        let place = |register| std::array::from_ref(get(register));
        let get = |register| *get(register);
        Ok(match *op {
            Op::Literal { bits, .. } => bits,
            Op::Param { number, .. } => self.launch.params[usize::from(number)],
            Op::Builtin { what, .. } => self.place(item, what),
            Op::Load { view, at, offset, of, .. } => match self.element(item, site, view, get(at)) {
                Some(element) => arithmetic::loaded(of, self.read(view, element, offset, of)?),
                None => 0,
            },
            Op::FieldEquals { view, at, offset, ref bytes, .. } => {
                let mut field = vec![0; bytes.len()];
                if let Some(element) = self.element(item, site, view, get(at)) {
                    self.views.read(view.into(), element, offset, &mut field)?;
                }
                u64::from(field == **bytes)
            }
            Op::Store { view, at, offset, of, value } => {
                if let Some(element) = self.element(item, site, view, get(at)) {
                    self.write(view, element, offset, of, arithmetic::stored(of, get(value)))?;
                }
                0
            }
            Op::Lookup { table, at, .. } => self.lookup(item, site, usize::from(table), get(at)),
            Op::Get { array, at, .. } => self.array(item, site, array, get(at)).map_or(0, |place| *place),
            Op::Put { array, at, value } => {
                if let Some(place) = self.array(item, site, array, get(at)) {
                    *place = get(value);
                }
                0
            }
            Op::Atomic { op, place, value, .. } => {
                let expected = if let Rmw::CompareExchange { expected } = op { get(expected) } else { 0 };
                let (at, operands) = (get(place.at()), [get(value), expected]);
                self.atomic(item, site, op, (place, at), (self.of(value), operands))?
            }
            Op::PrivateAlloc { bytes, .. } => self.private_heap(item, site, get(bytes)),
            Op::PrivateLoad { to, at } => match private_heap_place(item, site, get(at), self.of(to)) {
                Some(place) => to_bits(place),
                None => 0,
            },
            Op::PrivateStore { at, value } => {
                if let Some(place) = private_heap_place(item, site, get(at), self.of(value)) {
                    from_bits(place, get(value).to_le_bytes());
                }
                0
            }
            Op::Fail { detail, .. } => {
                item.fail(site, get(detail));
                0
            }
            Op::Call { ref function, ref arguments, .. } => {
                function.call(&arguments.iter().map(|argument| get(*argument)).collect::<Vec<_>>())
            }
            // The caller, `run`, executes operations that change the control flow.
            _ => {
                let mut value = [0];
                let is_value = values(self.body, op, place, &mut value);
                debug_assert!(is_value, "{op:?} does not lead to the next operation");
                value[0]
            }
        })
    }

    pub(super) fn place(&self, item: &ItemState, what: Builtin) -> u64 {
        match what {
            Builtin::Item => item.number,
            Builtin::Index => self.launch.geometry.index(item.number),
            Builtin::InGroup => item.in_group,
            Builtin::Group => self.group,
            Builtin::Groups => self.launch.parts(),
            Builtin::Live => item.live.into(),
        }
    }

    /// Returns the number of the view's element that an item's index refers to, if the element exists.
    fn element(&self, item: &mut ItemState, site: u32, view: u16, at: u64) -> Option<u64> {
        let count = self.views.count(view.into());
        let element = match self.body.views[usize::from(view)].access {
            Access::Write { tile } if at < tile.into() => {
                item.number.checked_mul(tile.into()).and_then(|first| first.checked_add(at))
            }
            Access::Write { .. } => None,
            Access::Read | Access::Atomic | Access::Append => Some(at),
        };
        let inside = element.filter(|element| *element < count);
        if inside.is_none() {
            item.fail(site, at);
        }
        inside.filter(|_| item.live)
    }

    fn read(&mut self, view: u16, element: u64, offset: u32, of: Memory) -> Result<u64> {
        let mut bytes = [0; 8];
        let field = &mut bytes[..of.bytes() as usize];
        self.views.read(view.into(), element, offset, field)?;
        Ok(to_bits(field))
    }

    fn write(&mut self, view: u16, element: u64, offset: u32, of: Memory, bits: u64) -> Result<()> {
        let mut bytes = [0; 8];
        let field = &mut bytes[..of.bytes() as usize];
        from_bits(field, bits.to_le_bytes());
        self.views.write(view.into(), element, offset, field)
    }

    fn lookup(&self, item: &mut ItemState, site: u32, table: usize, at: u64) -> u64 {
        let decl = self.body.tables[table];
        if at >= decl.len.into() {
            item.fail(site, at);
            return 0;
        }
        let begin = self.body.table_offset(table) + at * u64::from(decl.of.bytes());
        let field = &self.launch.table[begin as usize..][..decl.of.bytes() as usize];
        arithmetic::loaded(decl.of, to_bits(field))
    }

    fn array<'i>(
        &'i mut self,
        item: &'i mut ItemState,
        site: u32,
        array: u16,
        at: u64,
    ) -> Option<&'i mut u64> {
        let array = usize::from(array);
        if at >= self.body.arrays[array].len.into() {
            item.fail(site, at);
            return None;
        }
        let of = match self.body.arrays[array].space {
            Space::Item => &mut item.arrays,
            Space::Group => &mut self.shared,
        };
        Some(&mut of[array][at as usize])
    }

    fn atomic(
        &mut self,
        item: &mut ItemState,
        site: u32,
        op: Rmw,
        (place, at): (Place, u64),
        (of, [value, expected]): (Type, [u64; 2]),
    ) -> Result<u64> {
        if op == Rmw::Release {
            fence(Ordering::Release);
        }
        let changed = |old: u64| match op {
            Rmw::Add => binary(Binary::Add, of, old, value),
            Rmw::Min => binary(Binary::Min, of, old, value),
            Rmw::Max => binary(Binary::Max, of, old, value),
            Rmw::And => binary(Binary::And, of, old, value),
            Rmw::Or => binary(Binary::Or, of, old, value),
            Rmw::Xor => binary(Binary::Xor, of, old, value),
            Rmw::Exchange | Rmw::Release => value,
            Rmw::CompareExchange { .. } if old == expected => value,
            Rmw::CompareExchange { .. } | Rmw::Acquire => old,
        };
        match place {
            Place::View { view, offset, .. } => {
                let Some(element) = self.element(item, site, view, at) else { return Ok(0) };
                if op == Rmw::Acquire {
                    let value = self.read(view, element, offset, Memory::Value(of));
                    fence(Ordering::Acquire);
                    return value;
                }
                self.views.change(view.into(), element, offset, of.bytes(), &mut |old| changed(old))
            }
            Place::Array { array, .. } => Ok(match self.array(item, site, array, at) {
                Some(place) => std::mem::replace(place, changed(*place)),
                None => 0,
            }),
        }
    }

    fn private_heap(&self, item: &mut ItemState, site: u32, bytes: u64) -> u64 {
        let begin = item.private_heap.len() as u64;
        let end = bytes.checked_next_multiple_of(8).and_then(|bytes| begin.checked_add(bytes));
        match end.filter(|end| *end <= self.launch.private_heap_bytes) {
            Some(end) => {
                item.private_heap.resize(end as usize, 0);
                begin
            }
            None => {
                item.fail(site, bytes);
                u64::MAX
            }
        }
    }

    fn subgroup_op(&self, how: SubgroupOp, to: Reg, of: Reg, items: &mut [ItemState]) {
        for warp in items.chunks_mut(32) {
            let lanes = |register: Reg| std::array::from_fn(|lane| warp[lane].get(register));
            let chosen = if let SubgroupOp::Shuffle { lane } = how { lanes(lane) } else { [0; 32] };
            let results = subgroup_op(how, self.of(of), &lanes(of), &chosen);
            warp.iter_mut().zip(results).for_each(|(item, result)| item.set(to, result));
        }
    }
}

/// Computes an [operation on values](Op::is_value) for `N` items. Returns false for other operations.
#[inline(always)]
pub(super) fn values<'r, const N: usize>(
    body: &Body,
    op: &Op,
    get: impl Fn(Reg) -> &'r [u64; N],
    into: &mut [u64; N],
) -> bool {
    let found = |register: Reg| body.registers[register.at()];
    match *op {
        Op::Copy { of, .. } | Op::Bits { of, .. } => *into = *get(of),
        Op::Unary { op, of, .. } => each(get(of), into, |a| arithmetic::unary(op, found(of), a)),
        Op::Binary { op, left, right, .. } => {
            binary_lanes(op, found(left), get(left), get(right), into);
        }
        Op::MulHigh { to, left, right } => {
            let of = found(to);
            pairs(get(left), get(right), into, |a, b| arithmetic::mul_high(of, a, b));
        }
        Op::Fma { to, a, b, c } => {
            let (of, [a, b, c]) = (found(to), [a, b, c].map(get));
            (0..N).for_each(|lane| into[lane] = arithmetic::fma(of, a[lane], b[lane], c[lane]));
        }
        Op::Select { when, yes, no, .. } => {
            let [when, yes, no] = [when, yes, no].map(get);
            (0..N).for_each(|lane| into[lane] = if when[lane] != 0 { yes[lane] } else { no[lane] });
        }
        Op::Cast { to, of } => cast_lanes(found(of), found(to), get(of), into),
        _ => return false,
    }
    true
}

fn cast_lanes<const N: usize>(from: Type, to: Type, a: &[u64; N], into: &mut [u64; N]) {
    if to.is_float() || from.is_float() {
        return each(a, into, |a| arithmetic::cast(from, to, a));
    }
    // Convert through `i128`: it holds every integer, and extends the sign of signed types.
    let mask = to.mask();
    by_integer!(from, T => each(a, into, |a| T::from_value(a) as i128 as u64 & mask), _ => {});
}

/// Returns a subgroup operation's results, given the values of 32 lanes and the lanes that they chose.
pub(super) fn subgroup_op(how: SubgroupOp, of: Type, values: &[u64; 32], chosen: &[u64; 32]) -> [u64; 32] {
    let ballot = values.iter().rev().fold(0, |bits, value| bits << 1 | value);
    match how {
        SubgroupOp::Shuffle { .. } => chosen.map(|lane| values[lane as usize % 32]),
        SubgroupOp::ShuffleXor(mask) => std::array::from_fn(|lane| values[lane ^ usize::from(mask)]),
        SubgroupOp::Sync => *values,
        SubgroupOp::Ballot => [ballot; 32],
        SubgroupOp::Alike { bits } => {
            let digits = values.map(|value| value & (u64::MAX >> (64 - u32::from(bits))));
            digits.map(|own| digits.iter().rev().fold(0, |all, digit| all << 1 | u64::from(*digit == own)))
        }
        SubgroupOp::Any => [u64::from(ballot != 0); 32],
        SubgroupOp::All => [u64::from(ballot == 0xFFFF_FFFF); 32],
        SubgroupOp::Reduce(op) => [16, 8, 4, 2, 1].into_iter().fold(*values, |values, apart| {
            std::array::from_fn(|lane| binary(op, of, values[lane & !apart], values[lane | apart]))
        }),
        SubgroupOp::Scan(op) => [1, 2, 4, 8, 16].into_iter().fold(*values, |values, below| {
            std::array::from_fn(|lane: usize| match lane.checked_sub(below) {
                Some(other) => binary(op, of, values[other], values[lane]),
                None => values[lane],
            })
        }),
    }
}

fn private_heap_place(item: &mut ItemState, site: u32, at: u64, of: Type) -> Option<&mut [u8]> {
    let bytes = u64::from(of.bytes());
    let end = at
        .checked_add(bytes)
        .filter(|end| at.is_multiple_of(bytes) && *end <= item.private_heap.len() as u64);
    if end.is_none() {
        item.fail(site, at);
    }
    end.map(|end| &mut item.private_heap[at as usize..end as usize])
}
