//! Interpretation of kernels whose items (GPU threads) work in groups. The interpreter decodes each operation
//! once, and then executes it for all items that have reached the operation.
//!
//! If items take different branches, the items of one branch wait at the point at which the branches join.
//! This is the end of an `If`, the end of the block or loop that the items leave, or the next iteration of
//! their loop. All items of a group therefore reach a barrier at the same time, and the interpreter needs no
//! code for barriers.

use std::ops::Range;

use super::state::{self, ItemState, LaunchState};
use super::views::Views;
use crate::Result;
use crate::kernel::{Access, Body, Op, Reg, Report, Space, SubgroupOp};

/// The values of a register in 32 consecutive items.
type Lanes = [u64; 32];

/// Number of 32-bit words with one bit for each item of a group.
const WORDS: usize = Body::GROUP_LEN_MAX as usize / 32;

/// A set of items of a group.
#[derive(Clone, Copy, Default)]
struct Set([u32; WORDS]);

impl Set {
    fn first(len: usize) -> Self {
        let mut set = Self::default();
        (0..len).for_each(|item| set.add(item));
        set
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn add(&mut self, item: usize) {
        self.0[item / 32] |= 1 << (item % 32);
    }

    fn remove(&mut self, item: usize) {
        self.0[item / 32] &= !(1 << (item % 32));
    }

    fn with(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        self
    }

    fn items(self) -> impl Iterator<Item = usize> {
        (0..).step_by(32).zip(self.0).flat_map(|(first, mut word)| {
            std::iter::from_fn(move || {
                let lane = word.trailing_zeros() as usize;
                word &= word.checked_sub(1)?;
                Some(first + lane)
            })
        })
    }
}

/// An operation with its number, its nested operations, and a flag for loops that all items run together.
struct Node<'a> {
    op: &'a Op,
    site: u32,
    is_common: bool,
    /// True if each item continues with the next operation, independently of other items.
    is_step: bool,
    within: [Vec<Self>; 2],
}

fn nodes<'a>(code: &'a [Op], common: &[u32], site: &mut u32) -> Vec<Node<'a>> {
    let mut node = |op: &'a Op| {
        let own = *site;
        *site += 1;
        let within = op.within().map(|code| nodes(code, common, site));
        let is_step = !matches!(
            op,
            Op::If { .. }
                | Op::Block { .. }
                | Op::Loop { .. }
                | Op::Break { .. }
                | Op::Continue { .. }
                | Op::Barrier
                | Op::Subgroup { .. }
        );
        Node { op, site: own, is_common: common.contains(&own), is_step, within }
    };
    code.iter().map(&mut node).collect()
}

/// Returns true if the interpreter can run the items of a group together. If a loop reads atomic changes, an
/// item may wait in it for other items, so the interpreter must run them independently.
pub(super) fn can(body: &Body) -> bool {
    fn sees(body: &Body, code: &[Op], in_loop: bool) -> bool {
        code.iter().any(|op| {
            let in_loop = in_loop || matches!(op, Op::Loop { .. });
            let is_seen = match *op {
                Op::Atomic { to, .. } => to.is_some(),
                Op::Load { view, .. } => body.views[usize::from(view)].access == Access::Atomic,
                _ => false,
            };
            in_loop && is_seen || op.within().into_iter().any(|within| sees(body, within, in_loop))
        })
    }
    let mut has_atomics = false;
    body.operations(|_, op| has_atomics |= matches!(op, Op::Atomic { .. }));
    body.group_len.is_some() && !(has_atomics && sees(body, &body.code, false))
}

/// Runs a range of groups, and reports each item that failed.
pub(super) fn run<V: Views>(
    state: LaunchState<'_, V>,
    groups: Range<u64>,
    mut failed: impl FnMut(Report),
) -> Result<()> {
    let (body, flat) = (state.body, state.flat);
    let len = body.group_len.unwrap_or(1) as usize;
    let code = nodes(&body.code, &flat.common, &mut 0);
    let items = (0..len).map(|_| ItemState { registers: Vec::new(), ..ItemState::new(body) }).collect();
    let words = len.div_ceil(32);
    let registers = vec![[0; 32]; body.registers.len() * words];
    let mut together = Together { state, items, words, registers, labels: Vec::new() };
    for group in groups {
        together.start(group);
        together.code(&code, Set::first(len))?;
        together.items.iter().filter_map(ItemState::report).for_each(&mut failed);
        if let Some(over) = together.state.over {
            failed(over);
            break;
        }
    }
    Ok(())
}

/// For a block or loop: the items that have left it, and the items that continue with its next iteration.
#[derive(Clone, Copy, Default)]
struct Label {
    left: Set,
    again: Set,
}

struct Together<'s, V> {
    state: LaunchState<'s, V>,
    /// The state of the group's items without their registers.
    items: Vec<ItemState>,
    words: usize,
    registers: Vec<Lanes>,
    /// One entry for each enclosing block and loop.
    labels: Vec<Label>,
}

impl<V: Views> Together<'_, V> {
    fn start(&mut self, group: u64) {
        self.state.group = group;
        self.state.clock.begin();
        self.state.shared.clone_from(&self.state.initial);
        let first = group * self.items.len() as u64;
        for (number, item) in (first..).zip(&mut self.items) {
            item.start(number, number - first, number < self.state.launch.items);
        }
        if self.state.launch.budget.is_some() {
            // Set registers to zero: if a loop ends early, later code may read a register before its first
            // write.
            self.registers.fill([0; 32]);
        }
    }

    fn lanes(&self, register: Reg, word: usize) -> &Lanes {
        &self.registers[register.at() * self.words + word]
    }

    /// Runs code for a set of items; returns the items that reach its end.
    fn code(&mut self, code: &[Node<'_>], mut items: Set) -> Result<Set> {
        let mut left = code;
        while let Some(node) = left.first() {
            if items.is_empty() {
                break;
            }
            // Run all straight-line operations for 32 items (threads) before the next 32, so that the
            // registers of these items stay in the cache.
            let steps = left.iter().take_while(|node| node.is_step).count();
            if steps > 0 {
                for word in (0..self.words).filter(|word| items.0[*word] != 0) {
                    let bits = items.0[word];
                    left[..steps].iter().try_for_each(|node| self.step(node.site, node.op, (word, bits)))?;
                }
                left = &left[steps..];
                continue;
            }
            left = &left[1..];
            let [first, second] = &node.within;
            match *node.op {
                Op::If { when, .. } => {
                    let (mut yes, mut no) = (items, items);
                    for word in (0..self.words).filter(|word| items.0[*word] != 0) {
                        let lanes = self.lanes(when, word);
                        let bits = (0..32).fold(0, |bits, lane| bits | u32::from(lanes[lane] != 0) << lane);
                        yes.0[word] &= bits;
                        no.0[word] &= !bits;
                    }
                    items = self.code(first, yes)?.with(self.code(second, no)?);
                }
                Op::Block { .. } => {
                    self.labels.push(Label::default());
                    items = self.code(first, items)?;
                    items = items.with(self.labels.pop().unwrap_or_default().left);
                }
                Op::Loop { .. } => items = self.turns(node, items)?,
                Op::Break { out } | Op::Continue { out } => {
                    let at = self.labels.len() - 1 - usize::from(out);
                    let Label { left, again } = &mut self.labels[at];
                    let set = if matches!(node.op, Op::Break { .. }) { left } else { again };
                    *set = set.with(items);
                    items = Set::default();
                }
                Op::Subgroup { how, to, of } => self.subgroup_op(how, to, of),
                // A barrier has no effect here, because all items (threads) reach it at the same time.
                _ => {}
            }
        }
        Ok(items)
    }

    /// Runs a loop for a set of items; returns the items that have left it.
    fn turns(&mut self, node: &Node<'_>, mut turning: Set) -> Result<Set> {
        let mut gone = Set::default();
        self.labels.push(Label::default());
        while !turning.is_empty() {
            let end = self.code(&node.within[0], turning)?;
            let Label { left, again } = self.labels.last_mut().map(std::mem::take).unwrap_or_default();
            (turning, gone) = (end.with(again), gone.with(left));
            let first = turning.items().next();
            if let Some((number, overtime)) =
                first.and_then(|number| Some((number, self.state.clock.turn()?)))
            {
                self.state.end(overtime, node.site, self.items[number].number);
            }
            if self.state.over.is_some() {
                // The time limit has ended the launch, so no thread continues here or in enclosing loops.
                (turning, gone) = (Set::default(), Set::default());
                continue;
            }
            let Some(budget) = self.state.launch.budget else { continue };
            for number in turning.items() {
                let item = &mut self.items[number];
                let turns = &mut item.turns[usize::from(node.is_common)];
                if *turns < budget {
                    *turns += 1;
                    continue;
                }
                item.fail(node.site, budget);
                turning.remove(number);
                if self.state.flat.meets {
                    gone.add(number);
                }
            }
        }
        self.labels.pop();
        Ok(gone)
    }

    /// Runs an operation without control flow, for some of 32 items.
    fn step(&mut self, site: u32, op: &Op, (word, bits): (usize, u32)) -> Result<()> {
        if let Op::Get { to, array, at } = *op
            && self.state.body.arrays[usize::from(array)].space == Space::Group
        {
            self.get(site, (to, usize::from(array), at), (word, bits));
            return Ok(());
        }
        let mut values = [0; 32];
        if let Some(to) = op.written()
            && self.values(op, word, &mut values)
        {
            let into = &mut self.registers[to.at() * self.words + word];
            if bits == u32::MAX {
                *into = values;
            } else {
                (0..32).filter(|lane| bits >> lane & 1 == 1).for_each(|lane| into[lane] = values[lane]);
            }
            return Ok(());
        }
        let Self { state, items, registers, words, .. } = self;
        for lane in (0..32).filter(|lane| bits >> lane & 1 == 1) {
            let get = |register: Reg| &registers[register.at() * *words + word][lane];
            let value = state.step(&mut items[word * 32 + lane], get, site, op)?;
            if let Some(to) = op.written() {
                registers[to.at() * *words + word][lane] = value;
            }
        }
        Ok(())
    }

    /// Computes an operation on values for 32 items. If an item has not reached the operation, its result is
    /// arbitrary. Returns false if the operation has other effects.
    fn values(&self, op: &Op, word: usize, into: &mut Lanes) -> bool {
        let state = &self.state;
        match *op {
            Op::Literal { bits, .. } => into.fill(bits),
            Op::Param { number, .. } => into.fill(state.launch.params[usize::from(number)]),
            Op::Builtin { what, .. } => {
                let places = into.iter_mut().zip(&self.items[word * 32..]);
                places.for_each(|(value, item)| *value = state.place(item, what));
            }
            _ => return state::values(state.body, op, |register| self.lanes(register, word), into),
        }
        true
    }

    /// Loads each item's element of a group array: a fast path, because kernels may spend most time here.
    fn get(&mut self, site: u32, (to, array, at): (Reg, usize, Reg), (word, bits): (usize, u32)) {
        let (elements, places) = (&self.state.shared[array], *self.lanes(at, word));
        let into = &mut self.registers[to.at() * self.words + word];
        for lane in (0..32).filter(|lane| bits >> lane & 1 == 1) {
            let at = places[lane];
            if at < elements.len() as u64 {
                into[lane] = elements[at as usize];
            } else {
                into[lane] = 0;
                self.items[word * 32 + lane].fail(site, at);
            }
        }
    }

    /// Runs an operation across lanes. All items of the group have reached it.
    fn subgroup_op(&mut self, how: SubgroupOp, to: Reg, of: Reg) {
        let found = self.state.of(of);
        for word in 0..self.words {
            let chosen =
                if let SubgroupOp::Shuffle { lane } = how { *self.lanes(lane, word) } else { [0; 32] };
            let values = state::subgroup_op(how, found, self.lanes(of, word), &chosen);
            self.registers[to.at() * self.words + word] = values;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Interpreter, Slices};
    use super::*;

    #[test]
    fn items_that_may_wait_for_one_another_run_alone() {
        use crate::expr::Geometry;
        use crate::kernel::{ArrayDecl, Binary, Memory, Place, Rmw, Scope, Type, VerifiedKernel, ViewDecl};
        let [zero, one, seen, ticket] = [0, 1, 2, 4].map(Reg);
        let of = Memory::Value(Type::U64);
        let place = Place::Array { array: 0, at: zero };
        let scope = Scope::Group;
        let change = |op, value, to| Op::Atomic { op, to, place, value, scope };
        let in_view = |number, op, to| {
            let place = Place::View { view: 0, at: number, offset: 0 };
            Op::Atomic { op, to, place, value: one, scope: Scope::Device }
        };
        // The loop ends when the observed value equals the expected value.
        let until = |look: Op, wanted| {
            let is_there = Op::Binary { op: Binary::Eq, to: Reg(3), left: seen, right: wanted };
            let leave = Op::If { when: Reg(3), then: vec![Op::Break { out: 0 }], otherwise: vec![] };
            Op::Loop { body: vec![look, is_there, leave] }
        };
        let load = Op::Load { to: seen, view: 0, at: one, offset: 0, of };
        // Each item takes a lock, and releases it when all other items have left the loop.
        let locks = [
            vec![until(change(Rmw::Exchange, one, Some(seen)), zero), change(Rmw::Exchange, zero, None)],
            vec![until(change(Rmw::Or, one, Some(seen)), zero), change(Rmw::Exchange, zero, None)],
            // A ticket lock: each item polls the number that is served.
            vec![in_view(zero, Rmw::Add, Some(ticket)), until(load, ticket), in_view(one, Rmw::Add, None)],
        ];
        for lock in locks {
            let literals = [Op::Literal { to: zero, bits: 0 }, Op::Literal { to: one, bits: 1 }];
            let kernel = VerifiedKernel::new(Body {
                registers: vec![Type::U64, Type::U64, Type::U64, Type::Bool, Type::U64],
                views: vec![ViewDecl { access: Access::Atomic, fields: vec![(0, of)] }],
                arrays: vec![ArrayDecl { space: Space::Group, of: Type::U64, len: 1 }],
                group_len: Some(8),
                code: literals.into_iter().chain(lock).collect(),
                ..Body::default()
            })
            .unwrap();
            let alone = Interpreter::new(&kernel, 24, Geometry::plain(0));
            let interpreter = Interpreter { budget: Some(100), ..alone };
            let mut tickets = [0; 16];
            let mut views = Slices::new(vec![(&mut tickets[..], 8)]);
            let report = interpreter.run_together(0..3, &mut views).unwrap();
            assert_eq!(report, Report::default());
        }
    }
}
