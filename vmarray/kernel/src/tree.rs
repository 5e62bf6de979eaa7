//! The syntax tree of a kernel function, which `#[kernel]` generates. It has resolved names, but no types.

use backend_api::expr::Type;

/// The label number of a block without a label.
pub const NO_LABEL: u16 = u16::MAX;

/// The syntax tree of a kernel function.
#[derive(Debug)]
pub struct Tree {
    /// The name of the function.
    pub name: &'static str,
    /// The source file of the function.
    pub file: &'static str,
    /// The line of the function's name in the file.
    pub line: u32,
    /// The number of the function's local variables.
    pub locals: u16,
    /// The patterns of the function's parameters.
    pub parameters: &'static [Pattern],
    /// The body of the function.
    pub body: TreeExpr,
}

/// A binary operator in the syntax tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are called as Rust's traits and functions for them")]
pub enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// An expression of a kernel function in the syntax tree. An index of a slot, type or constant refers to the
/// lists of the [`Definition`](crate::inferred_types::Definition). A *slot* is a position in the function
/// whose type or callee rustc infers. Variables and labels are numbered within the function.
#[derive(Debug)]
pub enum TreeExpr {
    /// An expression with its source line.
    Line(u32, &'static Self),
    /// A literal of `bool`.
    Bool(bool),
    /// A literal of inferred type: the slot with its type, and its source text.
    Literal(u16, &'static str),
    /// A literal with a type suffix: its type, and its source text.
    Number(Type, &'static str),
    /// A variable, by its number.
    Local(u16),
    /// A named constant, by its index in the definition.
    Constant(u16),
    /// A binary operation: the operator, and the two operands.
    Binary(Operator, &'static Self, &'static Self),
    /// `a && b`.
    Both(&'static Self, &'static Self),
    /// `a || b`.
    Either(&'static Self, &'static Self),
    /// A call of a function in the rule table of `backend_api::expr`: the name, and the arguments.
    Call(&'static str, &'static [Self]),
    /// A call of a kernel function: the slot with the function, and the arguments.
    CallSlot(u16, &'static [Self]),
    /// A call whose arguments are the parts of a tuple: the slot with the function, and the tuple.
    CallTuple(u16, &'static Self),
    /// A call of a method of a parameter: the parameter, the method's name, and the arguments.
    Method(&'static Self, &'static str, &'static [Self]),
    /// A cast (`as`): the value, and the index of the type.
    Cast(&'static Self, u16),
    /// A float from bits: the bits, and the index of the float type.
    FromBits(&'static Self, u16),
    /// A 16-bit float from an `f32`: the value, and the index of the 16-bit type.
    FromF32(&'static Self, u16),
    /// An allocation of private memory: the number of elements, and the index of their type.
    Alloc(&'static Self, u16),
    /// An element: the array, and the index.
    Index(&'static Self, &'static Self),
    /// A field: the struct, and the field's name.
    Field(&'static Self, &'static str),
    /// A reference to a variable or element, as an argument of a call.
    Reference(&'static Self),
    /// A dereference: the variable or element to which a reference refers.
    Deref(&'static Self),
    /// A tuple of values.
    Tuple(&'static [Self]),
    /// An array of values.
    Array(&'static [Self]),
    /// An array of equal elements: the value, and the index of the constant that is the length.
    Repeat(&'static Self, u16),
    /// A struct literal: the slot with its type, the given fields, and the value after `..`, if any.
    Struct(u16, &'static [(&'static str, Self)], Option<&'static Self>),
    /// An assignment: the target, and the value.
    Assign(&'static Self, &'static Self),
    /// A compound assignment such as `+=`: the operator, the target, and the second operand.
    Compound(Operator, &'static Self, &'static Self),
    /// A block: its label or [`NO_LABEL`], its statements, and its last expression.
    Block(u16, &'static [Stmt], Option<&'static Self>),
    /// An `if`: the condition, and the two branches.
    If(&'static Self, &'static Self, Option<&'static Self>),
    /// A `match`: the value, and the arms.
    Match(&'static Self, &'static [Arm]),
    /// A `loop`: its label, and its body.
    Loop(u16, &'static Self),
    /// A `while` loop: its label, its condition, and its body.
    While(u16, &'static Self, &'static Self),
    /// A `for` loop over a range: its label, its variable, the range, and its body.
    For(u16, Pattern, Range, &'static Self),
    /// A `break`: the label of the loop or block, and the value.
    Break(u16, Option<&'static Self>),
    /// A `continue`: the label of the loop.
    Continue(u16),
    /// A `return`, with the value.
    Return(Option<&'static Self>),
}

/// A statement of a kernel function.
#[derive(Debug)]
pub enum Stmt {
    /// A `let`: the pattern, and the value.
    Let(Pattern, Option<TreeExpr>),
    /// An expression whose value is not used.
    Expr(TreeExpr),
}

/// The range of a `for` loop.
#[derive(Debug)]
pub struct Range {
    /// The first number of the range.
    pub start: &'static TreeExpr,
    /// The end of the range: the last number if `is_closed`, else the number after the last one.
    pub end: &'static TreeExpr,
    /// True if the range includes `end`.
    pub is_closed: bool,
    /// True if the loop counts down.
    pub is_reversed: bool,
    /// The step; `None` for 1.
    pub step: Option<&'static TreeExpr>,
}

/// An arm of a `match`.
#[derive(Debug)]
pub struct Arm {
    /// The pattern that the value must match.
    pub pattern: Pattern,
    /// The condition after `if`, if the arm has one.
    pub guard: Option<TreeExpr>,
    /// The expression to evaluate if `match` selects the arm.
    pub body: TreeExpr,
}

/// A pattern of a parameter, a `let` or a `match` arm.
#[derive(Debug)]
pub enum Pattern {
    /// The pattern `_`, which matches every value.
    Wild,
    /// A variable: its number, true if it is mutable, and the subpattern after `@`, if any.
    Bind(u16, bool, Option<&'static Self>),
    /// Patterns of the parts of a tuple.
    Tuple(&'static [Self]),
    /// Patterns of some fields of a struct, by name.
    Struct(&'static [(&'static str, Self)]),
    /// A literal of the matched value's type; a bool is 0 or 1.
    Literal(&'static str),
    /// A named constant, by its index in the definition.
    Constant(u16),
    /// A range: its start, its end, and true if it includes the end.
    Range(Option<&'static Self>, Option<&'static Self>, bool),
    /// A list of alternative patterns.
    Or(&'static [Self]),
}
