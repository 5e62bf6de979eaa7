//! Frames: the variables, open blocks and source line of each call that lowering is inlining.

use super::value::LoweredValue;
use crate::inferred_types::Definition;
use crate::tree::TreeExpr;

/// The result of a block, a branch, a loop or a call that has several exits.
#[derive(Default)]
pub struct FlowOutcome {
    /// The variables that receive the result; `None` until the type of the result is known.
    pub place: Option<LoweredValue>,
    /// The nesting depth of the code that uses the result.
    pub depth: usize,
}

/// A block or loop that a `break` or `continue` in its body can target.
pub struct JumpTarget {
    /// The index of the block's label in the function.
    pub label: u16,
    /// Nesting level of the block or loop in the lowered kernel, including itself.
    pub level: usize,
    /// For loops, the way in which `continue` reaches the next iteration; `None` for blocks.
    pub next: Option<Next>,
    /// The result of the block or loop.
    pub outcome: FlowOutcome,
    /// True if a `break` in the body leaves the block or loop.
    pub is_left: bool,
}

/// The way in which a loop's `continue` reaches the next iteration.
#[derive(Clone, Copy)]
pub enum Next {
    /// `continue` becomes a `Continue` of the loop at this nesting level.
    Continue(usize),
    /// `continue` becomes a `Break` out of the block at this nesting level, the body of one iteration.
    Leave(usize),
}

/// The state of lowering while it inlines a call: the called function, its variables and its open blocks.
pub struct InlineFrame {
    /// The definition of the inlined function.
    pub definition: Definition,
    /// The values of the function's variables; `None` before they are bound.
    pub locals: Vec<Option<LoweredValue>>,
    /// The loops and blocks that enclose the current expression.
    pub targets: Vec<JumpTarget>,
    /// The nesting level of the block that `return` leaves.
    pub level: usize,
    /// The result of the function.
    pub outcome: FlowOutcome,
    /// True if nested code returns from the function.
    pub is_left: bool,
    /// The nesting depth of the function's own variables.
    pub depth: usize,
    /// The source line of the current expression.
    pub line: u32,
}

impl InlineFrame {
    /// Creates the frame (variables, open blocks) of a function before its first expression is lowered.
    pub fn new(definition: Definition) -> Self {
        let locals = vec![None; usize::from(definition.tree.locals)];
        let line = definition.tree.line;
        Self {
            definition,
            locals,
            targets: Vec::new(),
            level: 0,
            outcome: FlowOutcome::default(),
            is_left: false,
            depth: 0,
            line,
        }
    }
}

/// Returns true if an expression may assign to a variable, or write to memory.
pub fn may_assign(expr: &TreeExpr) -> bool {
    match expr {
        TreeExpr::Line(_, of)
        | TreeExpr::Field(of, _)
        | TreeExpr::Cast(of, _)
        | TreeExpr::FromBits(of, _)
        | TreeExpr::FromF32(of, _)
        | TreeExpr::Repeat(of, _)
        | TreeExpr::Deref(of) => may_assign(of),
        TreeExpr::Bool(_)
        | TreeExpr::Literal(..)
        | TreeExpr::Number(..)
        | TreeExpr::Local(_)
        | TreeExpr::Constant(_) => false,
        TreeExpr::Binary(_, a, b) | TreeExpr::Both(a, b) | TreeExpr::Either(a, b) | TreeExpr::Index(a, b) => {
            may_assign(a) || may_assign(b)
        }
        TreeExpr::Call(name, parts) => *name == "barrier" || parts.iter().any(may_assign),
        TreeExpr::Tuple(parts) | TreeExpr::Array(parts) => parts.iter().any(may_assign),
        // A variable that is passed may be a reference, through which the called function can assign.
        TreeExpr::CallSlot(_, parts) => {
            parts.iter().any(|part| matches!(part, TreeExpr::Local(_)) || may_assign(part))
        }
        TreeExpr::CallTuple(_, of) => may_assign(of),
        TreeExpr::Method(of, name, parts) => {
            let only_asks = matches!(
                *name,
                "get"
                    | "len"
                    | "row_len"
                    | "shape"
                    | "index"
                    | "plus"
                    | "in_group"
                    | "group"
                    | "groups"
                    | "is_inside"
            );
            !only_asks || may_assign(of) || parts.iter().any(may_assign)
        }
        TreeExpr::Struct(_, fields, rest) => {
            fields.iter().any(|(_, part)| may_assign(part)) || rest.is_some_and(may_assign)
        }
        _ => true,
    }
}

/// Returns true if an expression cannot fail and has no effects: its code may then run speculatively.
pub fn is_pure(expr: &TreeExpr) -> bool {
    match expr {
        TreeExpr::Line(_, of)
        | TreeExpr::Field(of, _)
        | TreeExpr::Cast(of, _)
        | TreeExpr::FromBits(of, _)
        | TreeExpr::FromF32(of, _)
        | TreeExpr::Deref(of) => is_pure(of),
        TreeExpr::Bool(_)
        | TreeExpr::Literal(..)
        | TreeExpr::Number(..)
        | TreeExpr::Local(_)
        | TreeExpr::Constant(_) => true,
        TreeExpr::Binary(_, a, b) | TreeExpr::Both(a, b) | TreeExpr::Either(a, b) => is_pure(a) && is_pure(b),
        // A barrier or subgroup operation must run only in the items (GPU threads) that the source selects.
        TreeExpr::Call(name, parts) => {
            *name != "barrier" && !name.starts_with("lanes_") && parts.iter().all(is_pure)
        }
        _ => false,
    }
}
