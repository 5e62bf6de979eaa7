//! Lowering of a kernel's control flow: blocks, branches and loops.

use super::expr::constant;
use super::frame::{FlowOutcome, JumpTarget, Next};
use super::value::{Leaf, LoweredValue, Node, ScalarOperand};
use super::{Exit, Lower, Result};
use crate::layout::Layout;
use crate::tree::{Arm, NO_LABEL, Operator, Pattern, Range, Stmt, TreeExpr};
use backend_api::kernel::{Binary, Op, Type};

/// Maximum number of iterations of a loop that lowering unrolls.
const TURNS_MAX: usize = 32;
/// Maximum total number of unrolled iterations of nested loops.
const WRITTEN_OUT_MAX: usize = 1024;
/// Maximum number of operations of a branch that the lowered code evaluates speculatively, if none can fail.
const SELECT_MAX: usize = 8;

impl Lower {
    /// Lowers an expression that changes the control flow, such as `if`, `loop` or `return`.
    pub fn flow(&mut self, expr: &'static TreeExpr) -> Result<LoweredValue> {
        match expr {
            TreeExpr::Block(NO_LABEL, statements, value) => self.block(statements, *value),
            TreeExpr::Block(label, statements, value) => {
                let outer = self.open(*label, None)?;
                let end = self.ended(|lower| lower.block(statements, *value))?;
                let (value, body) = self.close(outer, end)?;
                self.code.push(Op::Block { body });
                value.ok_or(Exit::Diverges)
            }
            TreeExpr::If(condition, then, otherwise) => {
                let condition = self.computed(condition)?;
                self.branches(
                    condition,
                    |lower| lower.expr(then),
                    |lower| {
                        otherwise.map_or_else(|| Ok(LoweredValue::unit()), |otherwise| lower.expr(otherwise))
                    },
                )
            }
            TreeExpr::Match(of, arms) => self.choice(of, arms),
            TreeExpr::Loop(label, body) => {
                let line = self.frame()?.line;
                let outer = self.open(*label, Some(Next::Continue(self.nesting + 1)))?;
                let _ = self.ended(|lower| lower.expr(body))?;
                let (value, body) = self.close(outer, None)?;
                self.looped(line, body)?;
                value.ok_or(Exit::Diverges)
            }
            TreeExpr::While(label, condition, body) => self.while_loop(*label, condition, body),
            TreeExpr::For(label, pattern, range, body) => self.counted(*label, pattern, range, body),
            TreeExpr::Break(label, value) => {
                let value = match value {
                    Some(value) => Some(self.expr(value)?),
                    None => None,
                };
                self.leave(*label, value.as_ref())
            }
            TreeExpr::Continue(label) => {
                let target = self.frame()?.targets.iter().rev().find(|target| target.label == *label);
                let op = match target.and_then(|target| target.next) {
                    Some(Next::Continue(level)) => Op::Continue { out: self.out(level) },
                    Some(Next::Leave(level)) => Op::Break { out: self.out(level) },
                    None => return Err(self.unexpected("this `continue`")),
                };
                self.code.push(op);
                Err(Exit::Diverges)
            }
            TreeExpr::Return(value) => self.return_from_function(*value),
            _ => Err(self.unexpected("this")),
        }
    }

    fn while_loop(
        &mut self,
        label: u16,
        condition: &'static TreeExpr,
        body: &'static TreeExpr,
    ) -> Result<LoweredValue> {
        let line = self.frame()?.line;
        let outer = self.open(label, Some(Next::Continue(self.nesting + 1)))?;
        let level = self.nesting;
        let end = self.ended(|lower| {
            let condition = lower.computed(condition)?;
            if condition != ScalarOperand::Constant(Type::Bool, 1) {
                let (when, out) = (lower.register(condition), lower.out(level));
                lower.code.push(Op::If { when, then: Vec::new(), otherwise: vec![Op::Break { out }] });
                if let Some(target) = lower.frame()?.targets.last_mut() {
                    target.is_left = true;
                }
            }
            lower.expr(body)
        })?;
        drop(end);
        let (value, body) = self.close(outer, None)?;
        self.looped(line, body)?;
        value.ok_or(Exit::Diverges)
    }

    fn return_from_function(&mut self, value: Option<&'static TreeExpr>) -> Result<LoweredValue> {
        let value = match value {
            Some(value) => self.expr(value)?,
            None => LoweredValue::unit(),
        };
        let mut outcome = std::mem::take(&mut self.frame()?.outcome);
        let given = self.give(&mut outcome, &value);
        let frame = self.frame()?;
        (frame.outcome, frame.is_left) = (outcome, true);
        let level = frame.level;
        given?;
        let out = self.out(level);
        self.code.push(Op::Break { out });
        Err(Exit::Diverges)
    }

    /// Returns the number of blocks between the current code and `level`, for `Break` and `Continue`.
    fn out(&self, level: usize) -> u16 {
        (self.nesting - level) as u16
    }

    /// Lowers code whose end may be unreachable. Returns `None` in this case.
    fn ended(
        &mut self,
        code: impl FnOnce(&mut Self) -> Result<LoweredValue>,
    ) -> Result<Option<LoweredValue>> {
        match code(self) {
            Ok(value) => Ok(Some(value)),
            Err(Exit::Diverges) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a block or loop in the lowered code. Returns the code so far.
    fn open(&mut self, label: u16, next: Option<Next>) -> Result<Vec<Op>> {
        self.nesting += 1;
        let outcome = FlowOutcome { place: None, depth: self.depth };
        let target = JumpTarget { label, level: self.nesting, next, outcome, is_left: false };
        self.frame()?.targets.push(target);
        Ok(std::mem::take(&mut self.code))
    }

    /// Closes the block or loop. Returns its code, and its value, which is `None` if it has no exit.
    fn close(
        &mut self,
        outer: Vec<Op>,
        end: Option<LoweredValue>,
    ) -> Result<(Option<LoweredValue>, Vec<Op>)> {
        let Some(mut target) = self.frame()?.targets.pop() else { return Err(self.unexpected("this")) };
        let value = self.joined(&mut target.outcome, target.is_left, end)?;
        self.nesting -= 1;
        Ok((value, std::mem::replace(&mut self.code, outer)))
    }

    /// Lowers a `break` out of a loop or block, with or without a value.
    fn leave(&mut self, label: u16, value: Option<&LoweredValue>) -> Result<LoweredValue> {
        let targets = &mut self.frame()?.targets;
        let Some(at) = targets.iter().rposition(|target| target.label == label) else {
            return Err(self.unexpected("this `break`"));
        };
        targets[at].is_left = true;
        let level = targets[at].level;
        if let Some(value) = value {
            let mut outcome = std::mem::take(&mut targets[at].outcome);
            self.give(&mut outcome, value)?;
            self.frame()?.targets[at].outcome = outcome;
        }
        let out = self.out(level);
        self.code.push(Op::Break { out });
        Err(Exit::Diverges)
    }

    fn block(
        &mut self,
        statements: &'static [Stmt],
        value: Option<&'static TreeExpr>,
    ) -> Result<LoweredValue> {
        for statement in statements {
            match statement {
                Stmt::Let(pattern, None) => self.declare(pattern)?,
                Stmt::Let(pattern, Some(value)) => {
                    let value = self.expr(value)?;
                    self.bind(pattern, &value)?;
                }
                Stmt::Expr(expr) => {
                    let value = self.expr(expr)?;
                    if !value.is_reference {
                        self.settled(&value)?;
                    }
                }
            }
        }
        value.map_or_else(|| Ok(LoweredValue::unit()), |value| self.expr(value))
    }

    /// Lowers code into a separate list. Returns the list and the code's result.
    fn apart(
        &mut self,
        code: impl FnOnce(&mut Self) -> Result<LoweredValue>,
    ) -> Result<(Vec<Op>, Option<LoweredValue>)> {
        let outer = std::mem::take(&mut self.code);
        let end = self.ended(|lower| {
            let value = code(lower)?;
            lower.settled(&value)
        })?;
        Ok((std::mem::replace(&mut self.code, outer), end))
    }

    /// Lowers an `if`. If `condition` is constant, lowers only the alternative that the condition selects.
    pub fn branches(
        &mut self,
        condition: ScalarOperand,
        then: impl FnOnce(&mut Self) -> Result<LoweredValue>,
        otherwise: impl FnOnce(&mut Self) -> Result<LoweredValue>,
    ) -> Result<LoweredValue> {
        match condition {
            ScalarOperand::Constant(_, 0) => return otherwise(self),
            ScalarOperand::Constant(..) => return then(self),
            ScalarOperand::Register(_) => {}
        }
        let (mut yes, yes_value) = self.apart(then)?;
        let (mut no, no_value) = self.apart(otherwise)?;
        let when = self.register(condition);
        let (yes_value, no_value) = match (yes_value, no_value) {
            (Some(yes), Some(no)) => (yes, no),
            (one, other) => {
                self.code.push(Op::If { when, then: yes, otherwise: no });
                return one.or(other).ok_or(Exit::Diverges);
            }
        };
        if yes_value.layout == Layout::UNIT {
            self.code.push(Op::If { when, then: yes, otherwise: no });
            return Ok(LoweredValue::unit());
        }
        if let (Node::Leaf(Leaf::Value(a)), Node::Leaf(Leaf::Value(b))) = (&yes_value.node, &no_value.node)
            && self.is_harmless(&yes)
            && self.is_harmless(&no)
        {
            let (a, b) = (*a, *b);
            self.code.append(&mut yes);
            self.code.append(&mut no);
            let value = self.select(condition, a, b);
            return Ok(LoweredValue::scalar(self.type_of(value), value));
        }
        let mut outcome = FlowOutcome { place: None, depth: self.depth };
        for (code, value) in [(&mut yes, &yes_value), (&mut no, &no_value)] {
            std::mem::swap(&mut self.code, code);
            self.give(&mut outcome, value)?;
            std::mem::swap(&mut self.code, code);
        }
        self.code.push(Op::If { when, then: yes, otherwise: no });
        let place = outcome.place.ok_or_else(|| self.unexpected("this branch"))?;
        Ok(place.fresh())
    }

    /// Returns true if code cannot fail and costs little, so the lowered code may evaluate it speculatively.
    fn is_harmless(&self, code: &[Op]) -> bool {
        code.len() <= SELECT_MAX
            && code
                .iter()
                .all(|op| op.is_value() && op.written().is_some_and(|to| !self.is_variable[to.at()]))
    }

    fn choice(&mut self, of: &'static TreeExpr, arms: &'static [Arm]) -> Result<LoweredValue> {
        let of = self.expr(of)?;
        let of = LoweredValue { is_fresh: false, ..self.kept(&of)? };
        let mut outcome = FlowOutcome { place: None, depth: self.depth };
        let outer = std::mem::take(&mut self.code);
        self.nesting += 1;
        let level = self.nesting;
        let (mut is_left, mut end) = (false, None);
        for (number, arm) in arms.iter().enumerate() {
            let mut fits = self.fits(&arm.pattern, &of)?;
            if arm.guard.is_none() && number + 1 == arms.len() {
                // rustc has checked that the patterns are exhaustive, so the last arm needs no comparison.
                fits = ScalarOperand::Constant(Type::Bool, 1);
            }
            match (fits, &arm.guard) {
                (ScalarOperand::Constant(_, 0), _) => {}
                (ScalarOperand::Constant(..), None) => {
                    end = self.ended(|lower| {
                        lower.bind(&arm.pattern, &of)?;
                        let value = lower.expr(&arm.body)?;
                        lower.settled(&value)
                    })?;
                    break;
                }
                _ => {
                    let (then, _) = self.apart(|lower| {
                        lower.bind(&arm.pattern, &of)?;
                        let holds = match &arm.guard {
                            Some(guard) => lower.computed(guard)?,
                            None => ScalarOperand::Constant(Type::Bool, 1),
                        };
                        let body = |lower: &mut Self| {
                            let value = lower.expr(&arm.body)?;
                            lower.give(&mut outcome, &value)?;
                            is_left = true;
                            let out = lower.out(level);
                            lower.code.push(Op::Break { out });
                            Err(Exit::Diverges)
                        };
                        lower.branches(holds, body, |_| Ok(LoweredValue::unit()))
                    })?;
                    match fits {
                        ScalarOperand::Constant(..) => self.code.extend(then),
                        ScalarOperand::Register(when) => {
                            self.code.push(Op::If { when, then, otherwise: Vec::new() });
                        }
                    }
                }
            }
        }
        let value = self.joined(&mut outcome, is_left, end)?;
        self.nesting -= 1;
        let body = std::mem::replace(&mut self.code, outer);
        self.code.push(Op::Block { body });
        value.ok_or(Exit::Diverges)
    }

    /// Lowers a `for` loop over a range.
    fn counted(
        &mut self,
        label: u16,
        pattern: &'static Pattern,
        range: &'static Range,
        body: &'static TreeExpr,
    ) -> Result<LoweredValue> {
        let line = self.frame()?.line;
        let start = self.computed(range.start)?;
        let start = self.kept_operand(start)?;
        let end = self.computed(range.end)?;
        let end = self.kept_operand(end)?;
        let step = match range.step {
            Some(step) => {
                let step = self.computed(step)?;
                let step = self.kept_operand(step)?;
                self.binary(Binary::Max, step, ScalarOperand::Constant(Type::U64, 1))
            }
            None => ScalarOperand::Constant(Type::U64, 1),
        };
        if let (
            ScalarOperand::Constant(of, a),
            ScalarOperand::Constant(_, b),
            ScalarOperand::Constant(_, step),
        ) = (start, end, step)
        {
            let numbers = numbers(of, [a, b], range, step);
            if numbers.len() <= TURNS_MAX && self.is_unrolled && self.turns * numbers.len() <= WRITTEN_OUT_MAX
            {
                return self.unrolled(label, pattern, of, &numbers, body);
            }
        }
        let of = self.type_of(start);
        let one = ScalarOperand::Constant(of, 1);
        let op = if range.is_closed { Binary::Le } else { Binary::Lt };
        let some = self.binary(op, start, end);
        self.branches(
            some,
            |lower| {
                let greatest = if range.is_closed { end } else { lower.binary(Binary::Sub, end, one) };
                let (first, last) = if range.is_reversed { (greatest, start) } else { (start, greatest) };
                let counter = lower.new_variable(of);
                let first = lower.register(first);
                lower.code.push(Op::Copy { to: counter, of: first });
                lower.frame()?.line = line;
                lower.counting(
                    label,
                    pattern,
                    range.is_reversed,
                    [ScalarOperand::Register(counter), last, step],
                    body,
                )
            },
            |_| Ok(LoweredValue::unit()),
        )
    }

    /// Lowers a loop over a range that is not empty. `counter` contains the first number.
    fn counting(
        &mut self,
        label: u16,
        pattern: &'static Pattern,
        is_reversed: bool,
        [counter, last, step]: [ScalarOperand; 3],
        body: &'static TreeExpr,
    ) -> Result<LoweredValue> {
        let (of, line) = (self.type_of(counter), self.frame()?.line);
        let outer = self.open(label, None)?;
        let level = self.nesting;
        // `continue` jumps to the end of the iteration's block, after which the counter advances.
        let before = std::mem::take(&mut self.code);
        self.nesting += 1;
        let next = Next::Leave(self.nesting);
        if let Some(target) = self.frame()?.targets.last_mut() {
            target.next = Some(next);
            target.is_left = true;
        }
        let _ = self.ended(|lower| {
            let number = LoweredValue::scalar(of, counter);
            // In an iteration the counter is constant: use the counter's register for the variable.
            if let Pattern::Bind(local, false, None) = pattern {
                let register = lower.register(counter);
                lower.is_variable[register.at()] = false;
                lower.frame()?.locals[usize::from(*local)] = Some(number);
            } else {
                lower.bind(pattern, &number)?;
            }
            lower.expr(body)
        })?;
        self.nesting -= 1;
        let inner = std::mem::replace(&mut self.code, before);
        self.code.push(Op::Block { body: inner });
        let is_last = if step == ScalarOperand::Constant(Type::U64, 1) {
            self.binary(Binary::Eq, counter, last)
        } else {
            let (from, to) = if is_reversed { (last, counter) } else { (counter, last) };
            let (from, to) = (self.cast(from, Type::U64), self.cast(to, Type::U64));
            let left = self.binary(Binary::Sub, to, from);
            self.binary(Binary::Lt, left, step)
        };
        let (when, out) = (self.register(is_last), self.out(level));
        self.code.push(Op::If { when, then: vec![Op::Break { out }], otherwise: Vec::new() });
        let step = self.cast(step, of);
        let to = self.register(counter);
        let op = if is_reversed { Operator::Sub } else { Operator::Add };
        let after = self.operated(op, counter, step);
        let after = self.register(after);
        self.code.push(Op::Copy { to, of: after });
        self.is_variable[to.at()] = true;
        let (_, body) = self.close(outer, None)?;
        self.looped(line, body)?;
        Ok(LoweredValue::unit())
    }

    /// Emits a loop, with the source line of its start.
    fn looped(&mut self, line: u32, body: Vec<Op>) -> Result<()> {
        let last = std::mem::replace(&mut self.frame()?.line, line);
        self.mark();
        self.frame()?.line = last;
        self.code.push(Op::Loop { body });
        Ok(())
    }

    /// Lowers a loop by copying its body for each number.
    fn unrolled(
        &mut self,
        label: u16,
        pattern: &'static Pattern,
        of: Type,
        numbers: &[u64],
        body: &'static TreeExpr,
    ) -> Result<LoweredValue> {
        let outer = self.open(label, None)?;
        let turns = self.turns;
        self.turns *= numbers.len().max(1);
        let mut end = Some(LoweredValue::unit());
        for number in numbers {
            let before = std::mem::take(&mut self.code);
            (self.nesting, self.depth) = (self.nesting + 1, self.depth + 1);
            let next = Next::Leave(self.nesting);
            if let Some(target) = self.frame()?.targets.last_mut() {
                target.next = Some(next);
            }
            let turn = self.ended(|lower| {
                lower.bind(pattern, &constant(of, *number))?;
                lower.expr(body)
            })?;
            (self.nesting, self.depth) = (self.nesting - 1, self.depth - 1);
            let inner = std::mem::replace(&mut self.code, before);
            let goes_on = turn.is_some() || leaves(&inner, 0);
            self.code.push(Op::Block { body: inner });
            self.release();
            if !goes_on {
                end = None;
                break;
            }
        }
        self.turns = turns;
        let (value, body) = self.close(outer, end)?;
        self.code.push(Op::Block { body });
        value.ok_or(Exit::Diverges)
    }
}

/// Returns true if code breaks out of the enclosing block number `out`.
fn leaves(code: &[Op], out: u16) -> bool {
    code.iter().any(|op| match op {
        Op::Break { out: of } => *of == out,
        Op::Block { body } | Op::Loop { body } => leaves(body, out + 1),
        Op::If { then, otherwise, .. } => leaves(then, out) || leaves(otherwise, out),
        _ => false,
    })
}

/// Returns the numbers of a range with constant ends, at most one more than the limit for unrolling.
fn numbers(of: Type, [start, end]: [u64; 2], range: &Range, step: u64) -> Vec<u64> {
    let wide = |bits: u64| match of.is_signed() {
        true => i128::from(((bits << (64 - 8 * of.bytes())) as i64) >> (64 - 8 * of.bytes())),
        false => i128::from(bits),
    };
    let (start, end) = (wide(start), wide(end) - i128::from(!range.is_closed));
    let numbers = std::iter::successors(Some(0_i128), |number| Some(number + i128::from(step)));
    let numbers = numbers.map(|by| if range.is_reversed { end - by } else { start + by });
    let numbers = numbers.take_while(|number| (start..=end).contains(number));
    numbers.map(|number| number as u64 & of.mask()).take(TURNS_MAX + 1).collect()
}
