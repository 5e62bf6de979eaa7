//! Affine analysis of a kernel's indices, for threads that run several consecutive work-items: finds loads of
//! adjacent elements, which one wide load can replace.
//!
//! The analysis represents each integer as a sum: terms that are equal for all of a thread's work-items, a
//! multiple of the work-item's index, and a literal. It assumes that a condition, and a quotient, are equal
//! for all of the thread's work-items. The generated code checks both at the thread's first and last
//! work-item. The work-items between them need no check: the compared or divided value rises by a constant
//! from one to the next, and the code also checks that the value does not wrap around.

use std::collections::HashMap;

use backend_api::kernel::{Access, Binary, Body, Builtin, Memory, Op, Reg, Type, Unary};

use super::known::{KnownValue, known};

/// Limits of the analysis; beyond them, threads run items one by one.
const OPERATIONS_MAX: usize = 768;
const SPAN_MAX: i64 = 96;
const RUNS_MAX: usize = 16;

/// Loads of one view at constant distances from each other.
#[derive(Clone, Debug)]
pub(in super::super) struct LoadRun {
    pub view: usize,
    pub of: Memory,
    /// True if consecutive work-items load consecutive elements; false if they all load the same element.
    pub follows: bool,
    /// The lowest distance, in elements, of a load from the work-item's own element, and the index of this
    /// load. `high` is the same for the highest distance.
    pub low: (i64, u32),
    pub high: (i64, u32),
    sum: Sum,
}

/// Assumption to verify at a thread's first and last item, by the number of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granted {
    /// The condition has this value at the item.
    Is(bool),
    /// The register's value does not fall from the first to the last item.
    Rises(Reg),
    /// The operation's result is equal at the first and the last item.
    Stays,
}

/// Result of the analysis of consecutive items.
#[derive(Debug, Default)]
pub(in super::super) struct LaneAnalysis {
    pub(in super::super) runs: Vec<LoadRun>,
    /// For each load, its run and its distance in elements.
    pub(super) loads: HashMap<u32, (usize, i64)>,
    pub(super) granted: HashMap<u32, Granted>,
    /// For each operation, true if it computes the position of a run or a condition.
    pub(super) places: Vec<bool>,
    /// Kernel parameter with the distance of rows, if positions are multiples of one.
    pub(in super::super) pitch: Option<u16>,
}

/// An affine sum in the arithmetic of its type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Sum {
    /// Terms common to all items, by number, each with its factor.
    terms: Vec<(u32, u64)>,
    /// Increment of the sum from item to item.
    step: u64,
    literal: u64,
    /// True if the sum was extended from a shorter type, which may have wrapped around.
    is_extended: bool,
}

/// A term that is equal for all items of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Term {
    Param(u16),
    Item,
    Index,
    /// Cast of a sum between two types, because the bits alone do not determine the extension.
    Cast([Type; 2], Sum),
    Unary(Unary, Type, Sum),
    Binary(Binary, Type, Sum, Sum),
    /// Upper half of a product of two sums.
    High(Type, Sum, Sum),
    /// Quotient of a sum that differs between items, shifted right by this number of bits.
    Quotient(u32, Sum),
}

#[derive(Clone, Debug)]
enum Form {
    Sum(Sum),
    /// A condition that has the same value for all items if it has it for the first and the last.
    Truth {
        falls: bool,
        holds: bool,
    },
    /// The value rises from item to item by an unknown amount.
    Rising(u32),
    Unknown,
    /// The value is computed from loaded values.
    Loaded,
}

struct Follower<'a> {
    body: &'a Body,
    known: Vec<Option<KnownValue>>,
    forms: Vec<Form>,
    terms: HashMap<Term, u32>,
    lanes: LaneAnalysis,
    site: u32,
}

/// Analyses a kernel without loops, groups and arrays; `None` if its items do not read adjacent elements.
pub(in super::super) fn lanes(body: &Body) -> Option<LaneAnalysis> {
    let count = body.code.iter().map(Op::count).sum();
    if count > OPERATIONS_MAX {
        return None;
    }
    let mut follower = Follower {
        body,
        known: known(body),
        forms: vec![Form::Unknown; body.registers.len()],
        terms: HashMap::new(),
        lanes: LaneAnalysis { places: vec![false; count], ..LaneAnalysis::default() },
        site: 0,
    };
    follower.code(&body.code)?;
    let Follower { lanes, .. } = follower;
    let is_short = |run: &LoadRun| run.high.0 - run.low.0 < SPAN_MAX;
    let fits = lanes.runs.len() <= RUNS_MAX && lanes.runs.iter().all(is_short);
    (fits && lanes.runs.iter().any(|run| run.follows)).then_some(lanes)
}

fn stores_anything(code: &[Op]) -> bool {
    let stores =
        |op: &Op| matches!(op, Op::Store { .. }) || op.within().iter().any(|within| stores_anything(within));
    code.iter().any(stores)
}

impl Follower<'_> {
    fn code(&mut self, code: &[Op]) -> Option<()> {
        for op in code {
            let site = self.site;
            self.site += 1;
            let form = match op {
                Op::If { when, then, otherwise } if otherwise.is_empty() => {
                    let Form::Truth { falls, holds } = self.form(*when) else { return None };
                    // One thread runs several work-items, so all must take the same branch. Assume that they
                    // take branches with stores, and skip others. Give up if no code can verify this
                    // (`holds`, `falls`).
                    let stores = stores_anything(then);
                    if stores && !holds || !stores && !falls {
                        return None;
                    }
                    self.lanes.granted.insert(site, Granted::Is(stores));
                    if stores {
                        self.code(then)?;
                    } else {
                        self.site += then.iter().map(Op::count).sum::<usize>() as u32;
                    }
                    continue;
                }
                Op::Load { view, at, offset, of, .. } => {
                    self.load(site, usize::from(*view), *at, *offset, *of)?;
                    Form::Loaded
                }
                Op::Lookup { table, at, .. } => {
                    let len = u64::from(self.body.tables[usize::from(*table)].len);
                    matches!(self.known[at.at()], Some(KnownValue::Literal(at)) if at < len).then_some(())?;
                    Form::Loaded
                }
                Op::Store { at, .. } => {
                    (self.known[at.at()] == Some(KnownValue::Literal(0))).then_some(())?;
                    continue;
                }
                _ if op.is_value()
                    || matches!(op, Op::Literal { .. } | Op::Param { .. } | Op::Builtin { .. }) =>
                {
                    let mut is_loaded = false;
                    op.each_read(|register| is_loaded |= matches!(self.form(register), Form::Loaded));
                    self.lanes.places[site as usize] = !is_loaded;
                    if is_loaded { Form::Loaded } else { self.computed(site, op) }
                }
                _ => return None,
            };
            if let Some(to) = op.written() {
                self.forms[to.at()] = form;
            }
        }
        Some(())
    }

    fn form(&self, register: Reg) -> Form {
        self.forms[register.at()].clone()
    }

    fn of(&self, register: Reg) -> Type {
        self.body.registers[register.at()]
    }

    fn load(&mut self, site: u32, view: usize, at: Reg, offset: u32, of: Memory) -> Option<()> {
        let access = self.body.views[view].access;
        if access.is_written() {
            return (self.known[at.at()] == Some(KnownValue::Literal(0))).then_some(());
        }
        if self.known[at.at()] == Some(KnownValue::Item) {
            return (access == Access::Read).then_some(());
        }
        let Form::Sum(sum) = self.form(at) else { return None };
        if access != Access::Read || offset != 0 || sum.step > 1 {
            return None;
        }
        let distance = sum.literal.cast_signed();
        let sum = Sum { literal: 0, ..sum };
        // A run consists of all loads of a view that differ only in a constant. The test of its lowest and
        // highest sum covers all of these loads.
        let is_it = |run: &LoadRun| (run.view, run.of, &run.sum) == (view, of, &sum);
        let number = match self.lanes.runs.iter().position(is_it) {
            Some(number) => number,
            None => {
                let (follows, end) = (sum.step == 1, (distance, site));
                self.lanes.runs.push(LoadRun { view, of, follows, low: end, high: end, sum: sum.clone() });
                self.lanes.runs.len() - 1
            }
        };
        let run = &mut self.lanes.runs[number];
        if distance < run.low.0 {
            run.low = (distance, site);
        }
        if distance > run.high.0 {
            run.high = (distance, site);
        }
        self.lanes.loads.insert(site, (number, distance));
        Some(())
    }

    fn term(&mut self, term: Term) -> u32 {
        let next = self.terms.len() as u32;
        *self.terms.entry(term).or_insert(next)
    }

    fn common(&mut self, term: Term) -> Form {
        let terms = vec![(self.term(term), 1)];
        Form::Sum(Sum { terms, ..Sum::default() })
    }

    /// Returns the result of an operation on operands that are not loaded.
    fn computed(&mut self, site: u32, op: &Op) -> Form {
        let both = Form::Truth { falls: true, holds: true };
        match *op {
            Op::Literal { to, .. } | Op::Param { to, .. } if self.of(to) == Type::Bool => both,
            Op::Literal { to, bits } if self.of(to).is_integer() => {
                Form::Sum(Sum { literal: bits & self.of(to).mask(), ..Sum::default() })
            }
            Op::Param { to, number } if self.of(to).is_integer() => self.common(Term::Param(number)),
            Op::Builtin { what: Builtin::Live, .. } => both,
            Op::Builtin { what: what @ (Builtin::Item | Builtin::Index), .. } => {
                let term = if what == Builtin::Item { Term::Item } else { Term::Index };
                let terms = vec![(self.term(term), 1)];
                Form::Sum(Sum { terms, step: 1, ..Sum::default() })
            }
            Op::Copy { of, .. } => self.form(of),
            Op::Unary { op: Unary::Not, of, .. } if self.of(of) == Type::Bool => match self.form(of) {
                Form::Truth { falls, holds } => Form::Truth { falls: holds, holds: falls },
                other => other,
            },
            Op::Unary { op, to, of } if self.of(to).is_integer() => match self.form(of) {
                Form::Sum(sum) if sum.step == 0 => self.common(Term::Unary(op, self.of(to), sum)),
                _ => Form::Unknown,
            },
            Op::Cast { to, of } => self.cast(self.of(of), self.of(to), of),
            Op::MulHigh { to, left, right } => match (self.form(left), self.form(right)) {
                (Form::Sum(left), Form::Sum(right)) if left.step == 0 && right.step == 0 => {
                    self.common(Term::High(self.of(to), left, right))
                }
                (Form::Sum(of), Form::Sum(by)) if self.rises(&of, left) && by.step == 0 => {
                    self.lanes.granted.insert(site, Granted::Rises(left));
                    Form::Rising(self.term(Term::High(self.of(to), of, by)))
                }
                _ => Form::Unknown,
            },
            Op::Select { to, when, no, .. } if self.of(to).is_integer() => {
                match (self.form(when), self.form(no)) {
                    (Form::Truth { falls: true, .. }, form @ Form::Sum(_)) => {
                        self.lanes.granted.insert(site, Granted::Is(false));
                        form
                    }
                    _ => Form::Unknown,
                }
            }
            Op::Binary { op, left, right, .. } => self.binary(site, op, left, right),
            _ => Form::Unknown,
        }
    }

    /// Returns true if a sum rises by a small step from item to item, except at a wrap-around.
    fn rises(&self, sum: &Sum, register: Reg) -> bool {
        matches!(self.of(register), Type::U32 | Type::U64) && (1..=16).contains(&sum.step) && !sum.is_extended
    }

    fn cast(&mut self, from: Type, to: Type, register: Reg) -> Form {
        let Form::Sum(sum) = self.form(register) else { return Form::Unknown };
        if !from.is_integer() || !to.is_integer() {
            return Form::Unknown;
        }
        let Sum { mut terms, step, literal, is_extended } = sum.clone();
        if to.bytes() == from.bytes() {
            return Form::Sum(sum);
        }
        if to.bytes() < from.bytes() {
            if is_extended {
                return Form::Unknown;
            }
            for (term, factor) in &mut terms {
                let whole = Sum { terms: vec![(*term, 1)], ..Sum::default() };
                *term = self.term(Term::Cast([from, to], whole));
                *factor &= to.mask();
            }
            terms.retain(|(_, factor)| *factor != 0);
            terms.sort_unstable();
            return Form::Sum(Sum {
                terms,
                step: step & to.mask(),
                literal: literal & to.mask(),
                is_extended,
            });
        }
        if terms.is_empty() && step == 0 && !from.is_signed() {
            return Form::Sum(sum);
        }
        if is_extended || from.is_signed() {
            return if step == 0 { self.common(Term::Cast([from, to], sum)) } else { Form::Unknown };
        }
        // Compute the sum in the wider type, because it could wrap around in the shorter one.
        let unused = 64 - 8 * from.bytes();
        let extended = |number: u64| ((number << unused).cast_signed() >> unused).cast_unsigned() & to.mask();
        let whole = Sum { terms, ..Sum::default() };
        let is_extended = step != 0 || literal != 0;
        let terms = vec![(self.term(Term::Cast([from, to], whole)), 1)];
        Form::Sum(Sum { terms, step: extended(step), literal: extended(literal), is_extended })
    }

    fn binary(&mut self, site: u32, op: Binary, left: Reg, right: Reg) -> Form {
        let of = self.of(left);
        let (a, b) = match (self.form(left), self.form(right)) {
            (Form::Sum(a), Form::Sum(b)) => (a, b),
            (Form::Rising(term), Form::Sum(by)) if op == Binary::Shr && by.step == 0 => {
                self.lanes.granted.insert(site, Granted::Stays);
                return self.common(Term::Quotient(term, by));
            }
            (Form::Truth { falls, holds }, Form::Truth { falls: other_falls, holds: other_holds }) => {
                return match op {
                    Binary::And => Form::Truth { falls: false, holds: holds && other_holds },
                    Binary::Or => Form::Truth { falls: falls && other_falls, holds: false },
                    _ => Form::Unknown,
                };
            }
            _ => return Form::Unknown,
        };
        let is_common = a.step == 0 && b.step == 0;
        if op.is_comparison() {
            let orders = matches!(op, Binary::Lt | Binary::Le);
            let rising = [(&a, &b, left), (&b, &a, right)];
            let rising = rising.into_iter().find(|(one, other, at)| self.rises(one, *at) && other.step == 0);
            return match rising {
                _ if is_common => Form::Truth { falls: true, holds: true },
                Some((.., register)) if orders => {
                    self.lanes.granted.insert(site, Granted::Rises(register));
                    Form::Truth { falls: true, holds: true }
                }
                _ => Form::Unknown,
            };
        }
        let is_literal = |sum: &Sum| sum.terms.is_empty() && sum.step == 0;
        let can_add = !(a.is_extended && b.is_extended);
        match op {
            Binary::Add if can_add => return Form::Sum(sum(of, &a, &b, 1)),
            Binary::Sub if can_add && !b.is_extended => return Form::Sum(sum(of, &a, &b, u64::MAX)),
            Binary::Mul if is_literal(&b) && !a.is_extended => {
                return Form::Sum(sum(of, &Sum::default(), &a, b.literal));
            }
            Binary::Mul if is_literal(&a) && !b.is_extended => {
                return Form::Sum(sum(of, &Sum::default(), &b, a.literal));
            }
            Binary::Shl if is_literal(&b) && !a.is_extended && b.literal < 8 * u64::from(of.bytes()) => {
                return Form::Sum(sum(of, &Sum::default(), &a, 1 << b.literal));
            }
            _ => {}
        }
        if !is_common {
            return Form::Unknown;
        }
        if op == Binary::Mul {
            self.note_pitch(&a);
            self.note_pitch(&b);
        }
        self.common(Term::Binary(op, of, a, b))
    }

    /// Records a parameter, or a part of its bits, as the distance of rows.
    fn note_pitch(&mut self, factor: &Sum) {
        let [(term, 1)] = factor.terms[..] else { return };
        let of = |term: u32| self.terms.iter().find(|(_, number)| **number == term).map(|(of, _)| of);
        self.lanes.pitch = match of(term) {
            Some(Term::Param(number)) => Some(*number),
            Some(Term::Cast(_, whole)) => match (&whole.terms[..], whole.literal) {
                ([(inner, 1)], 0) => match of(*inner) {
                    Some(Term::Param(number)) => Some(*number),
                    _ => return,
                },
                _ => return,
            },
            _ => return,
        };
    }
}

/// Returns a sum plus `times` times another sum.
fn sum(of: Type, one: &Sum, other: &Sum, times: u64) -> Sum {
    let mask = of.mask();
    let mut terms = one.terms.clone();
    for (term, factor) in &other.terms {
        let factor = factor.wrapping_mul(times) & mask;
        match terms.iter_mut().find(|(known, _)| known == term) {
            Some((_, known)) => *known = known.wrapping_add(factor) & mask,
            None => terms.push((*term, factor)),
        }
    }
    terms.retain(|(_, factor)| *factor != 0);
    terms.sort_unstable();
    let both = |a: u64, b: u64| a.wrapping_add(b.wrapping_mul(times)) & mask;
    Sum {
        terms,
        step: both(one.step, other.step),
        literal: both(one.literal, other.literal),
        is_extended: one.is_extended || other.is_extended,
    }
}
