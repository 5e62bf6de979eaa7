//! The syntax tree of a kernel function, as `#[kernel]` writes it down: names are resolved, types are not
//! known.

use backend_api::expr::Type;

/// The label of a block that has none.
pub const NO_LABEL: u16 = u16::MAX;

/// A function.
#[derive(Debug)]
pub struct Tree {
    /// Its name.
    pub name: &'static str,
    /// The file it is written in.
    pub file: &'static str,
    /// The line of its name there.
    pub line: u32,
    /// How many variables it has.
    pub locals: u16,
    /// What its arguments are bound to.
    pub parameters: &'static [Pattern],
    /// What it does.
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
/// [`Definition`](crate::slots::Definition); those of variables, loops and labels are the function's own.
#[derive(Debug)]
pub enum Expr {
    /// An expression that stands on this line.
    Line(u32, &'static Self),
    /// A literal of `bool`.
    Bool(bool),
    /// A literal whose type is that of a slot.
    Literal(u16, &'static str),
    /// A literal that says its type.
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
    /// Memory for so many elements of a type.
    Alloc(&'static Self, u16),
    /// An element.
    Index(&'static Self, &'static Self),
    /// A field, by its name.
    Field(&'static Self, &'static str),
    /// A reference to a place, as an argument.
    Reference(&'static Self),
    /// What a reference refers to.
    Deref(&'static Self),
    /// A tuple of values.
    Tuple(&'static [Self]),
    /// An array of values.
    Array(&'static [Self]),
    /// An array of a value, as often as a constant says.
    Repeat(&'static Self, u16),
    /// A struct of the type of a slot: its fields, and what the others are taken from.
    Struct(u16, &'static [(&'static str, Self)], Option<&'static Self>),
    /// Place and value.
    Assign(&'static Self, &'static Self),
    /// Place and second operand.
    Compound(Operator, &'static Self, &'static Self),
    /// A block with a label or [`NO_LABEL`].
    Block(u16, &'static [Stmt], Option<&'static Self>),
    /// Condition, what is done if it holds, and what otherwise.
    If(&'static Self, &'static Self, Option<&'static Self>),
    /// The arms for a value.
    Match(&'static Self, &'static [Arm]),
    /// A loop without an end of its own.
    Loop(u16, &'static Self),
    /// A loop while a condition holds.
    While(u16, &'static Self, &'static Self),
    /// A loop over numbers.
    For(u16, Pattern, Range, &'static Self),
    /// Leaves a loop or block.
    Break(u16, Option<&'static Self>),
    /// Goes on with a loop's next turn.
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

/// What a loop counts over.
#[derive(Debug)]
pub struct Range {
    /// The first number.
    pub start: &'static Expr,
    /// The number after the last one, or the last.
    pub end: &'static Expr,
    /// Whether `end` is the last.
    pub is_closed: bool,
    /// Whether it counts down.
    pub is_reversed: bool,
    /// The distance of two numbers; 1 if none is given.
    pub step: Option<&'static Expr>,
}

/// An arm of a `match`.
#[derive(Debug)]
pub struct Arm {
    /// What the value has to be.
    pub pattern: Pattern,
    /// What has to hold besides.
    pub guard: Option<Expr>,
    /// What is done.
    pub body: Expr,
}

/// A pattern.
#[derive(Debug)]
pub enum Pattern {
    /// Anything.
    Wild,
    /// A variable, whether it is mutable, and what the value has to be.
    Bind(u16, bool, Option<&'static Self>),
    /// The parts of a tuple.
    Tuple(&'static [Self]),
    /// Some fields of a struct.
    Struct(&'static [(&'static str, Self)]),
    /// A number or bool (0 or 1) of the value's type.
    Literal(&'static str),
    /// A constant.
    Constant(u16),
    /// From, to, and whether the latter is included.
    Range(Option<&'static Self>, Option<&'static Self>, bool),
    /// Any of some.
    Or(&'static [Self]),
}
