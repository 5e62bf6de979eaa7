//! The syntax tree of a kernel function from `#[kernel]`, with resolved names and without types.

use backend_api::expr::Type;

/// The label of an unlabelled block.
pub const NO_LABEL: u16 = u16::MAX;

/// The syntax tree of a kernel function.
#[derive(Debug)]
pub struct Tree {
    /// The name of the function.
    pub name: &'static str,
    /// The source file of the function.
    pub file: &'static str,
    /// The line of its name.
    pub line: u32,
    /// The number of the function's variables.
    pub locals: u16,
    /// The patterns of its arguments.
    pub parameters: &'static [Pattern],
    /// The body of the function.
    pub body: Expr,
}

/// An operator between two values.
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

/// An expression. Numbers of slots, types and constants refer to the
/// [`Definition`](crate::inferred_types::Definition); numbers of variables, loops and labels belong to the
/// function.
#[derive(Debug)]
pub enum Expr {
    /// An expression with its line.
    Line(u32, &'static Self),
    /// A literal of `bool`.
    Bool(bool),
    /// A literal whose type is that of a slot.
    Literal(u16, &'static str),
    /// A literal with a type suffix.
    Number(Type, &'static str),
    /// A variable.
    Local(u16),
    /// A constant.
    Constant(u16),
    /// An operation.
    Binary(Operator, &'static Self, &'static Self),
    /// `a && b`.
    Both(&'static Self, &'static Self),
    /// `a || b`.
    Either(&'static Self, &'static Self),
    /// A function of the rule table, by its name.
    Call(&'static str, &'static [Self]),
    /// The function of a slot.
    CallSlot(u16, &'static [Self]),
    /// The function of a slot, with the parts of a tuple as arguments.
    CallTuple(u16, &'static Self),
    /// A method of a parameter, by its name.
    Method(&'static Self, &'static str, &'static [Self]),
    /// A value as another type.
    Cast(&'static Self, u16),
    /// Bits as a float of a type.
    FromBits(&'static Self, u16),
    /// An `f32` as a type of 16 bits.
    FromF32(&'static Self, u16),
    /// Allocation of a number of elements of a type.
    Alloc(&'static Self, u16),
    /// An element.
    Index(&'static Self, &'static Self),
    /// A field, by its name.
    Field(&'static Self, &'static str),
    /// A reference to a place, as an argument.
    Reference(&'static Self),
    /// The target of a reference.
    Deref(&'static Self),
    /// A tuple of values.
    Tuple(&'static [Self]),
    /// An array of values.
    Array(&'static [Self]),
    /// An array of a value, as often as a constant says.
    Repeat(&'static Self, u16),
    /// A struct of the type of a slot: its fields, and the base of the others.
    Struct(u16, &'static [(&'static str, Self)], Option<&'static Self>),
    /// Place and value.
    Assign(&'static Self, &'static Self),
    /// Place and second operand.
    Compound(Operator, &'static Self, &'static Self),
    /// A block with a label or [`NO_LABEL`].
    Block(u16, &'static [Stmt], Option<&'static Self>),
    /// Condition, and the two branches.
    If(&'static Self, &'static Self, Option<&'static Self>),
    /// The arms for a value.
    Match(&'static Self, &'static [Arm]),
    /// A `loop`.
    Loop(u16, &'static Self),
    /// A `while` loop.
    While(u16, &'static Self, &'static Self),
    /// A `for` loop over numbers.
    For(u16, Pattern, Range, &'static Self),
    /// Leaves a loop or block.
    Break(u16, Option<&'static Self>),
    /// Continues with a loop's next iteration.
    Continue(u16),
    /// Leaves the function.
    Return(Option<&'static Self>),
}

/// A statement.
#[derive(Debug)]
pub enum Stmt {
    /// New variables.
    Let(Pattern, Option<Expr>),
    /// An expression whose value is not used.
    Expr(Expr),
}

/// The numbers of a loop.
#[derive(Debug)]
pub struct Range {
    /// The first number.
    pub start: &'static Expr,
    /// The number after the last one, or the last.
    pub end: &'static Expr,
    /// True if the range includes `end`.
    pub is_closed: bool,
    /// True if the loop counts down.
    pub is_reversed: bool,
    /// The step; 1 if none is given.
    pub step: Option<&'static Expr>,
}

/// An arm of a `match`.
#[derive(Debug)]
pub struct Arm {
    /// The pattern.
    pub pattern: Pattern,
    /// The guard.
    pub guard: Option<Expr>,
    /// The body.
    pub body: Expr,
}

/// A pattern.
#[derive(Debug)]
pub enum Pattern {
    /// Anything.
    Wild,
    /// A variable, its mutability, and a subpattern.
    Bind(u16, bool, Option<&'static Self>),
    /// The parts of a tuple.
    Tuple(&'static [Self]),
    /// Some fields of a struct.
    Struct(&'static [(&'static str, Self)]),
    /// A number or bool (0 or 1) of the value's type.
    Literal(&'static str),
    /// A constant.
    Constant(u16),
    /// Start, end, and inclusion of the end.
    Range(Option<&'static Self>, Option<&'static Self>, bool),
    /// One of several patterns.
    Or(&'static [Self]),
}
