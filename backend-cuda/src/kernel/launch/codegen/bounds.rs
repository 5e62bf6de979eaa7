//! Bounds analysis: computes upper bounds of a kernel's integer registers, to omit bounds checks of indices.

use std::collections::HashMap;

use backend_api::kernel::{Binary, Body, Builtin, Op, Reg, Type};

/// Maximum length of followed chains of copies or sums, because unreachable code may contain cycles.
const STEPS_MAX: usize = 16;

/// Known upper bounds of a kernel's integer registers.
pub(super) struct IntegerBounds {
    /// Upper bound of each register's value, as an unsigned number, valid at all reads of the register.
    pub most: Vec<u64>,
    /// For each register that is the sum of another register and a literal: both summands. The entry is valid
    /// while the other register keeps its value.
    pub sums: Vec<Option<(Reg, u64)>>,
    /// Loop counters with their first and last value (inclusive), equal in every run of the loop.
    pub counts: HashMap<Reg, (u64, u64)>,
}

impl IntegerBounds {
    /// Returns trivial bounds for a kernel with this number of registers, without an analysis.
    pub fn unknown(registers: usize) -> Self {
        Self { most: vec![u64::MAX; registers], sums: vec![None; registers], counts: HashMap::new() }
    }
}

/// Computes the upper bounds of a kernel's registers.
///
/// A register with one write gets a bound from the bounds of the operands. Of other registers only loop
/// counters have a bound: they count from one literal up to another in steps of 1.
pub(super) fn bounds(body: &Body) -> IntegerBounds {
    let mut sources: Vec<Vec<&Op>> = vec![Vec::new(); body.registers.len()];
    collect(&body.code, &mut |op| {
        if let Some(to) = op.written() {
            sources[to.at()].push(op);
        }
    });
    let bounds = body.registers.iter().map(|of| of.mask()).collect();
    let mut finder = Finder { body, bounds, counts: HashMap::new(), sources };
    finder.code(&body.code);
    let sums = (0..body.registers.len()).map(|at| finder.sum(Reg(at as u32))).collect();
    IntegerBounds { most: finder.bounds, sums, counts: finder.counts }
}

fn collect<'a>(code: &'a [Op], visit: &mut impl FnMut(&'a Op)) {
    for op in code {
        visit(op);
        op.within().into_iter().for_each(|within| collect(within, visit));
    }
}

struct Finder<'a> {
    body: &'a Body,
    bounds: Vec<u64>,
    counts: HashMap<Reg, (u64, u64)>,
    /// For each register, the operations that write it.
    sources: Vec<Vec<&'a Op>>,
}

impl<'a> Finder<'a> {
    fn code(&mut self, code: &'a [Op]) {
        for (number, op) in code.iter().enumerate() {
            if let Op::Loop { body } = op
                && let Some((counter, first, last)) = self.counter(body)
            {
                self.bounds[counter.at()] = last;
                // Record the bounds of the counter only if earlier code initialises the counter. Otherwise a
                // second run of the loop starts with the counter's last value.
                if code[..number].iter().any(|op| op.written() == Some(counter)) {
                    self.counts.insert(counter, (first, last));
                }
            }
            if let Some(to) = op.written()
                && self.sources[to.at()].len() == 1
            {
                let mask = self.of(to).mask();
                self.bounds[to.at()] = self.bound(op).map_or(mask, |bound| bound.min(mask));
            }
            op.within().into_iter().for_each(|within| self.code(within));
        }
    }

    fn of(&self, register: Reg) -> Type {
        self.body.registers[register.at()]
    }

    fn literal(&self, mut register: Reg) -> Option<u64> {
        for _ in 0..STEPS_MAX {
            match self.sources[register.at()][..] {
                [Op::Literal { bits, .. }] => return Some(*bits & self.of(register).mask()),
                [Op::Copy { of, .. }] => register = *of,
                _ => return None,
            }
        }
        None
    }

    /// Returns the base register of a chain of sums with literals, and the total of the literals.
    fn sum(&self, register: Reg) -> Option<(Reg, u64)> {
        let mut sum = self.parts(register)?;
        for _ in 1..STEPS_MAX {
            let Some((part, literal)) = self.parts(sum.0) else { break };
            sum = (part, sum.1.checked_add(literal)?);
        }
        Some(sum)
    }

    /// Returns the base register and the literal, if a register is their sum and never wraps around.
    ///
    /// Each register is written once, so the base does not change in between. A path from the base to a
    /// reader that skips the sum would, from the start, read a register that was never written.
    fn parts(&self, register: Reg) -> Option<(Reg, u64)> {
        let [Op::Binary { op: Binary::Add, left, right, .. }] = self.sources[register.at()][..] else {
            return None;
        };
        let (part, literal) = match (self.literal(*left), self.literal(*right)) {
            (None, Some(literal)) => (*left, literal),
            (Some(literal), None) => (*right, literal),
            _ => return None,
        };
        // Addresses wrap around as indices of 64 bits do.
        let never_wraps = self.of(part).bytes() == 8 && self.of(part).is_integer()
            || self.is_counted(part)
                && self.bounds[part.at()]
                    .checked_add(literal)
                    .is_some_and(|most| most <= greatest(self.of(part)));
        (never_wraps && self.sources[part.at()].len() == 1).then_some((part, literal))
    }

    /// Returns counter, first value and last value of a loop that ends at the last value, and else adds 1.
    fn counter(&self, body: &[Op]) -> Option<(Reg, u64, u64)> {
        let (step, rest) = body.split_last()?;
        let Op::Copy { to: counter, of: after } = *step else { return None };
        let (mut end, mut adds) = (None, false);
        for op in rest.iter().rev() {
            match op {
                // This literal does not affect the counter.
                Op::Literal { to, .. } if *to != counter && *to != after && end != Some(*to) => {}
                Op::Binary { op: Binary::Add, to, left, right } if !adds && *to == after => {
                    adds = *left == counter && self.literal(*right)? == 1;
                    adds.then_some(())?;
                }
                Op::If { when, then, otherwise } if adds && otherwise.is_empty() && end.is_none() => {
                    matches!(then[..], [Op::Break { .. }]).then_some(())?;
                    end = Some(*when);
                }
                Op::Binary { op: Binary::Eq, to, left, right } if end == Some(*to) => {
                    (*left == counter).then_some(())?;
                    let last = self.literal(*right)?;
                    return Some((counter, self.begins_below(counter, last, step)?, last));
                }
                _ => return None,
            }
        }
        None
    }

    /// Returns the initial literal of a counter, if it is at most `last`, and only `step` writes the counter.
    fn begins_below(&self, counter: Reg, last: u64, step: &Op) -> Option<u64> {
        // Compare by address, because an operation equal to `step` may be elsewhere in the code.
        let others: Vec<_> =
            self.sources[counter.at()].iter().filter(|op| !std::ptr::eq(**op, step)).collect();
        let first = match others[..] {
            [Op::Copy { of, .. }] => self.literal(*of)?,
            [Op::Literal { bits, .. }] => *bits & self.of(counter).mask(),
            _ => return None,
        };
        (self.of(counter).is_integer() && first <= last).then_some(first)
    }

    /// Returns the upper bound of an operation's result; `None` if all values of its type are possible.
    fn bound(&self, op: &Op) -> Option<u64> {
        let at = |register: &Reg| self.bounds[register.at()];
        match op {
            Op::Literal { bits, .. } => Some(*bits),
            Op::Copy { of, .. } => Some(at(of)),
            Op::Builtin { what: Builtin::InGroup, .. } => Some(u64::from(self.body.group_len?) - 1),
            Op::Select { yes, no, .. } => Some(at(yes).max(at(no))),
            // The cast keeps the value, because the number is not negative.
            Op::Cast { of, .. } if self.is_counted(*of) => Some(at(of)),
            Op::Binary { op, left, right, .. } if self.is_counted(*left) && self.is_counted(*right) => {
                let (a, b) = (at(left), at(right));
                let fits = |bound: &u64| *bound <= greatest(self.of(*left));
                match op {
                    Binary::Add => a.checked_add(b).filter(fits),
                    Binary::Mul => a.checked_mul(b).filter(fits),
                    Binary::Div => a.checked_div(self.literal(*right)?),
                    Binary::Shr => {
                        let by = self.literal(*right)?;
                        (by < u64::from(8 * self.of(*left).bytes())).then(|| a >> by)
                    }
                    Binary::Rem => Some(a.min(self.literal(*right)?.checked_sub(1)?)),
                    Binary::Min | Binary::And => Some(a.min(b)),
                    Binary::Max => Some(a.max(b)),
                    Binary::Or | Binary::Xor => {
                        Some(u64::MAX.checked_shr((a | b).leading_zeros()).unwrap_or(0))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns true if a register is a bool or a non-negative integer.
    fn is_counted(&self, register: Reg) -> bool {
        let of = self.of(register);
        of == Type::Bool || of.is_integer() && self.bounds[register.at()] <= greatest(of)
    }
}

fn greatest(of: Type) -> u64 {
    if of.is_signed() { of.mask() >> 1 } else { of.mask() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that counts in register 0 from `first` to `last`; register 4 is 8 times the counter.
    fn counting(first: u64, last: u64, step: u64) -> Vec<u64> {
        let literal = |to, bits| Op::Literal { to: Reg(to), bits };
        let binary = |op, to, right| Op::Binary { op, to: Reg(to), left: Reg(0), right: Reg(right) };
        let registers = vec![Type::U64; 8].into_iter().chain([Type::Bool]).collect();
        let body = vec![
            binary(Binary::Mul, 4, 5),
            binary(Binary::Eq, 8, 2),
            Op::If { when: Reg(8), then: vec![Op::Break { out: 0 }], otherwise: vec![] },
            binary(Binary::Add, 6, 3),
            Op::Copy { to: Reg(0), of: Reg(6) },
        ];
        let literals = [literal(1, first), literal(2, last), literal(3, step), literal(5, 8)];
        let begin = Op::Copy { to: Reg(0), of: Reg(1) };
        let code = literals.into_iter().chain([begin, Op::Loop { body }]).collect();
        bounds(&Body { registers, code, ..Body::default() }).most
    }

    #[test]
    fn counters_end_where_their_loops_do() {
        let bounds = counting(0, 31, 1);
        assert_eq!((bounds[0], bounds[4], bounds[6]), (31, 248, 32));
        // These counters wrap around, or step over the number at which the loop ends.
        for bounds in [counting(32, 31, 1), counting(0, 31, 2)] {
            assert_eq!((bounds[0], bounds[4]), (u64::MAX, u64::MAX));
        }
    }

    /// Bound of register 0, which counts to 31. Optional literals overwrite register 4, the sum, or register
    /// 3, the comparison, or the counter.
    fn overwritten(sum: Option<u64>, comparison: Option<u64>, counter: Option<u64>) -> u64 {
        let literal = |to, bits| Op::Literal { to: Reg(to), bits };
        let binary = |op, to, right| Op::Binary { op, to: Reg(to), left: Reg(0), right: Reg(right) };
        let over = |to, bits: Option<u64>| bits.map(|bits| literal(to, bits));
        let mut turn = vec![
            Op::Put { array: 0, at: Reg(0), value: Reg(1) },
            binary(Binary::Eq, 3, 2),
            Op::If { when: Reg(3), then: vec![Op::Break { out: 0 }], otherwise: vec![] },
            binary(Binary::Add, 4, 1),
            literal(5, 0x10000),
        ];
        turn.extend(over(4, sum));
        turn.push(Op::Copy { to: Reg(0), of: Reg(4) });
        turn.splice(2..2, over(3, comparison).into_iter().chain(over(0, counter)));
        let registers = [Type::U64, Type::U64, Type::U64, Type::Bool, Type::U64, Type::U64].to_vec();
        let mut code = vec![literal(1, 1), literal(2, 31), Op::Loop { body: turn }];
        // The loop body or the code before the loop initialises the counter.
        code.extend(counter.is_none().then(|| literal(0, 0)));
        code.rotate_right(1);
        bounds(&Body { registers, code, ..Body::default() }).most[0]
    }

    #[test]
    fn counters_that_literals_overwrite_are_not_known() {
        assert_eq!(overwritten(None, None, None), 31);
        assert_eq!(overwritten(Some(0x10000), None, None), u64::MAX);
        assert_eq!(overwritten(None, Some(0), None), u64::MAX);
        assert_eq!(overwritten(None, None, Some(31)), u64::MAX);
    }

    #[test]
    fn copies_and_sums_may_go_round() {
        let copy = |to, of| Op::Copy { to: Reg(to), of: Reg(of) };
        let add =
            |to, left, right| Op::Binary { op: Binary::Add, to: Reg(to), left: Reg(left), right: Reg(right) };
        let zero = Op::Literal { to: Reg(3), bits: 0 };
        // This code is unreachable, so its registers need no value.
        let around = vec![Op::Break { out: 0 }, copy(0, 1), copy(1, 0), add(2, 0, 1), zero, add(4, 4, 3)];
        let body =
            Body { registers: vec![Type::U64; 5], code: vec![Op::Block { body: around }], ..Body::default() };
        assert_eq!(bounds(&body).sums[2..], [None, None, Some((Reg(4), 0))]);
    }

    #[test]
    fn operations_bound_their_results() {
        let binary = |op, to, left| Op::Binary { op, to: Reg(to), left: Reg(left), right: Reg(1) };
        let body = Body {
            registers: [
                vec![Type::U64; 7],
                vec![Type::I64, Type::U8, Type::I8, Type::U64, Type::U64, Type::U64],
            ]
            .concat(),
            group_len: Some(64),
            params: vec![Type::U8],
            code: vec![
                Op::Builtin { to: Reg(0), what: Builtin::InGroup },
                Op::Literal { to: Reg(1), bits: 10 },
                binary(Binary::Div, 2, 0),
                binary(Binary::Rem, 3, 0),
                binary(Binary::Mul, 4, 2),
                binary(Binary::Or, 5, 4),
                binary(Binary::Sub, 6, 0),
                Op::Cast { to: Reg(7), of: Reg(0) },
                Op::Param { to: Reg(8), number: 0 },
                Op::Bits { to: Reg(9), of: Reg(8) },
                // This value may be negative.
                Op::Cast { to: Reg(10), of: Reg(9) },
                Op::Cast { to: Reg(11), of: Reg(8) },
                binary(Binary::Shr, 12, 6),
            ],
            ..Body::default()
        };
        let all = u64::MAX;
        assert_eq!(bounds(&body).most, [63, 10, 6, 9, 60, 63, all, 63, 255, 255, all, 255, all >> 10]);
    }

    #[test]
    fn sums_with_literals_are_known_unless_they_wrap() {
        let add =
            |to, left, right| Op::Binary { op: Binary::Add, to: Reg(to), left: Reg(left), right: Reg(right) };
        let body = Body {
            registers: [vec![Type::U64; 7], vec![Type::U32; 3]].concat(),
            group_len: Some(64),
            params: vec![Type::U64, Type::U32],
            code: vec![
                Op::Builtin { to: Reg(0), what: Builtin::InGroup },
                Op::Literal { to: Reg(1), bits: 10 },
                Op::Param { to: Reg(2), number: 0 },
                add(3, 0, 1),
                add(4, 1, 3),
                add(5, 2, 1),
                add(6, 3, 0),
                Op::Literal { to: Reg(7), bits: 10 },
                Op::Param { to: Reg(8), number: 1 },
                add(9, 8, 7),
            ],
            ..Body::default()
        };
        let sums = bounds(&body).sums;
        let known = |register, literal| Some((Reg(register), literal));
        // Addresses wrap around as sums of 64 bits do, but not as the sum of 32 bits in the last register.
        assert_eq!(sums[3..], [known(0, 10), known(0, 20), known(2, 10), None, None, None, None]);
    }
}
