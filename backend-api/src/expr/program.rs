//! Programs: checked lists of instructions, evaluated once for each element.
//!
//! A program is lowered to the [`Body`] of a kernel without control flow, which devices translate or run:
//!
//! | program | body |
//! |---|---|
//! | value `n` | register `n`, which only one operation writes |
//! | source (array) `n` | view `n`, with [`Access::Read`] and the fields that the program reads |
//! | `Field` | `Load` of the element of this item (thread): the last register holds the item's number |
//! | `Index` | `Builtin::Index` |
//! | `Call` | `Call`, which bodies of kernels must not contain |
//! | `FieldEquals` | `FieldEquals`, likewise of this item's element |
//! | any other instruction | the operation of the same name |
//!
//! The first operation writes the item's number; after it, one operation writes each value, in order. The
//! body stores nothing in memory: the [`Action`](super::Action) of the request then uses the values in each
//! item's registers.

use std::sync::Arc;

use super::{Binary, Geometry, Type, Unary};
use crate::kernel::{
    Access, Body, Builtin, Interpreter, Memory, Op, Reg, ScalarFunction, Slices, VerifiedKernel, ViewDecl,
    Views,
};
use crate::{Error, ErrorKind, Result};

/// The value of an instruction, given by the index of the instruction in the program.
///
/// ```
/// use backend_api::expr::{Instruction, Program, Type, Unary, Value};
/// // Value 0 is the literal, and value 1 is its negative.
/// let literal = Instruction::Literal { of: Type::I32, bits: 7 };
/// let program = Program::new(vec![literal.clone(), Instruction::Unary { op: Unary::Neg, of: Value(0) }])?;
/// assert_eq!(program.instructions()[Value(0).at()], literal);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u16);

impl Value {
    /// Returns the index of the instruction.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

impl From<Value> for Reg {
    /// Returns the register that holds a value in the body of a [program](Program).
    #[inline]
    fn from(value: Value) -> Self {
        Self(value.0.into())
    }
}

/// One step of a program, which computes one value. Its operands must be values of earlier instructions.
///
/// ```
/// use backend_api::expr::{Instruction, Program, Type, Value, evaluate_all};
/// let index_as_byte = Instruction::Cast { of: Value(0), to: Type::U8 };
/// let program = Program::new(vec![Instruction::Index, index_as_byte])?;
/// assert_eq!(evaluate_all(&program, 0x1234, &[]), [0x1234, 0x34]);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// A field of the element, of any type except bool.
    Field {
        /// Index of the source (the array) that contains the element.
        source: u8,
        /// Offset of the field in the element, in bytes.
        offset: u32,
        /// The field's type.
        of: Type,
    },
    /// True if the bytes of the element at an offset equal a given value. A program has at most one
    /// `FieldEquals`. It compares bytes of any type, with any alignment.
    FieldEquals {
        /// Index of the source (the array) that contains the element.
        source: u8,
        /// Offset of the compared bytes in the element, in bytes.
        offset: u32,
        /// The bytes to compare with: 1 to [`Search::VALUE_MAX_BYTES`](crate::Search::VALUE_MAX_BYTES) bytes.
        bytes: Arc<[u8]>,
    },
    /// A constant.
    Literal {
        /// Type of the constant.
        of: Type,
        /// The constant as 64 bits; see [`Type`].
        bits: u64,
    },
    /// The element's index in the program's array, a `U64`; see [`Geometry`](super::Geometry).
    Index,
    /// An operation on one value.
    Unary {
        /// The operation.
        op: Unary,
        /// The operand.
        of: Value,
    },
    /// An operation on two values of the same type.
    Binary {
        /// The operation.
        op: Binary,
        /// The first operand.
        left: Value,
        /// The second operand.
        right: Value,
    },
    /// One of two values of the same type, selected by a bool.
    Select {
        /// The bool that selects the result.
        condition: Value,
        /// The result if the condition is true.
        yes: Value,
        /// The result if the condition is false.
        no: Value,
    },
    /// A value converted to another type of number. Bools become 0 and 1; no value becomes a bool.
    Cast {
        /// The value to convert.
        of: Value,
        /// The type to convert to.
        to: Type,
    },
    /// `a * b + c` of floats of one type, rounded once.
    Fma {
        /// The first factor.
        a: Value,
        /// The second factor.
        b: Value,
        /// The summand.
        c: Value,
    },
    /// The result of a scalar function. The device calls the function for all elements, including elements
    /// that a filter excludes.
    Call {
        /// The function.
        function: ScalarFunction,
        /// Arguments, with the types of the function's parameters.
        arguments: Vec<Value>,
    },
}

/// A program: a list of instructions that a device evaluates for each element. The list is verified: operands
/// have valid types, and instructions refer only to earlier values.
///
/// ```
/// use backend_api::{ErrorKind, expr::{Binary, Instruction, Program, Type, Unary, Value}, kernel::{Op, Reg}};
/// let instructions = vec![
///     Instruction::Field { source: 0, offset: 4, of: Type::F32 },
///     Instruction::Literal { of: Type::F32, bits: 0 },
///     Instruction::Binary { op: Binary::Lt, left: Value(0), right: Value(1) },
/// ];
/// let program = Program::new(instructions.clone())?;
/// assert_eq!((program.instructions(), program.body().code.len()), (instructions.clone(), 4));
/// assert_eq!(program.ops()[1], Op::Literal { to: Reg(1), bits: 0 });
/// assert_eq!((program.types(), program.type_of(Value(3))), (&[Type::F32, Type::F32, Type::Bool][..], None));
/// assert_eq!(program.needed(&[Value(1)]), [false, true, false]);
/// let not = Instruction::Unary { op: Unary::Not, of: Value(0) };
/// assert_eq!(Program::new(vec![instructions[0].clone(), not]).unwrap_err().kind(), ErrorKind::InvalidArgument);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program(VerifiedKernel);

impl Program {
    /// Maximum number of instructions of a program.
    pub const INSTRUCTIONS_MAX: usize = 256;

    /// Verifies instructions, and creates a program from them.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the list is too long, if a type does not fit, or if
    /// an instruction refers to a later value.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self> {
        if instructions.len() > Self::INSTRUCTIONS_MAX {
            let (number, most) = (instructions.len(), Self::INSTRUCTIONS_MAX);
            return Err(invalid(format!("{number} instructions exceed the limit of {most}")));
        }
        let item = Reg(instructions.len() as u32);
        let mut body = Body { code: vec![Op::Builtin { to: item, what: Builtin::Item }], ..Body::default() };
        for (at, instruction) in instructions.into_iter().enumerate() {
            let of = type_of(&body.registers, &instruction).ok_or_else(|| {
                invalid(format!("instruction {at} refers to a later value: {instruction:?}"))
            })?;
            body.registers.push(of);
            match instruction {
                Instruction::Field { source, offset, of } => {
                    declare(&mut body.views, source.into(), Some((offset, Memory::Value(of))));
                }
                Instruction::FieldEquals { source, .. } => {
                    if body.code.iter().any(|op| matches!(op, Op::FieldEquals { .. })) {
                        return Err(invalid(format!(
                            "instruction {at} is a second `FieldEquals`; at most one is allowed"
                        )));
                    }
                    declare(&mut body.views, source.into(), None);
                }
                _ => {}
            }
            body.code.push(operation(instruction, Reg(at as u32), item));
        }
        body.registers.push(Type::U64);
        let kernel = VerifiedKernel::of_program(body).map_err(|error| invalid(error.detail().to_owned()))?;
        Ok(Self(kernel))
    }

    /// Returns the instructions of the program.
    #[must_use]
    pub fn instructions(&self) -> Vec<Instruction> {
        self.ops().iter().zip(self.types()).map(|(op, of)| instruction(op, *of)).collect()
    }

    /// Returns the program as a kernel body. View `n` is source (array) `n`; register `n` holds value `n`.
    #[must_use]
    pub fn body(&self) -> &Body {
        self.0.body()
    }

    /// Returns the kernel operations that compute the values, in order: operation `n` writes value `n`.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.body().code[1..]
    }

    /// Returns the types of all values, in the order of the instructions.
    #[must_use]
    pub fn types(&self) -> &[Type] {
        &self.body().registers[..self.ops().len()]
    }

    /// Returns the type of a value; `None` if the program does not have the value.
    #[must_use]
    pub fn type_of(&self, value: Value) -> Option<Type> {
        self.types().get(value.at()).copied()
    }

    /// Returns the program's `FieldEquals` instruction, if it has one: the index of the instruction, the
    /// source (array), the field's offset in bytes, and the compared bytes.
    #[must_use]
    pub fn field_equals(&self) -> Option<(usize, usize, u32, &[u8])> {
        self.ops().iter().enumerate().find_map(|(at, op)| match op {
            Op::FieldEquals { view, offset, bytes, .. } => {
                Some((at, usize::from(*view), *offset, &bytes[..]))
            }
            _ => None,
        })
    }

    /// Returns, for each instruction, true if at least one of `values` depends on its result.
    #[must_use]
    pub fn needed(&self, values: &[Value]) -> Vec<bool> {
        let mut needed = vec![false; self.ops().len()];
        let need = |needed: &mut [bool], register: Reg| {
            if let Some(place) = needed.get_mut(register.at()) {
                *place = true;
            }
        };
        values.iter().for_each(|value| need(&mut needed, (*value).into()));
        for (at, op) in self.ops().iter().enumerate().rev() {
            if needed[at] {
                op.each_read(|register| need(&mut needed, register));
            }
        }
        needed
    }

    /// Evaluates the program for `count` elements on the host with the
    /// [interpreter](crate::kernel::Interpreter). View `n` has the elements of source (array) `n`. After each
    /// element, calls `visit` with the element's number, all values as 64 bits (see [`Type`]), and the views.
    ///
    /// A field reads as 0 if its element does not exist.
    ///
    /// # Errors
    /// The errors of the views and of `visit`.
    pub fn evaluate<V: Views>(
        &self,
        count: u64,
        geometry: Geometry,
        views: &mut V,
        mut visit: impl FnMut(u64, &[u64], &mut V) -> Result<()>,
    ) -> Result<()> {
        let values = self.ops().len();
        let interpreter = Interpreter::new(&self.0, count, geometry);
        interpreter.each_item(views, |number, registers, views| visit(number, &registers[..values], views))
    }
}

/// Evaluates a program for one element. Returns the values of all instructions as 64 bits; see
/// [`Type`](super::Type). `index` is the element's index in the program's array, and `elements` has the
/// element's bytes in each source.
///
/// # Panics
/// If a source (array) of the program is missing.
#[must_use]
pub fn evaluate_all(program: &Program, index: u64, elements: &[&[u8]]) -> Vec<u64> {
    let (mut elements, mut all) =
        (elements.iter().map(|bytes| bytes.to_vec()).collect::<Vec<_>>(), Vec::new());
    let slices = elements.iter_mut().map(|bytes| (bytes.len().max(1), &mut bytes[..]));
    let mut views = Slices::new(slices.map(|(stride, bytes)| (bytes, stride)).collect());
    let evaluated = program.evaluate(1, Geometry::plain(index), &mut views, |_, values, _| {
        all.extend_from_slice(values);
        Ok(())
    });
    evaluated.expect("accesses to slices never fail");
    all
}

/// Declares a view, all views before it, and a field of the view, unless they are declared.
fn declare(views: &mut Vec<ViewDecl>, view: usize, field: Option<(u32, Memory)>) {
    if views.len() <= view {
        views.resize(view + 1, ViewDecl { access: Access::Read, fields: Vec::new() });
    }
    let fields = &mut views[view].fields;
    fields.extend(field.filter(|field| !fields.contains(field)));
}

/// Returns the kernel operation of an instruction. The operation writes the register `to`. The register
/// `item` holds the item's number.
fn operation(instruction: Instruction, to: Reg, item: Reg) -> Op {
    match instruction {
        Instruction::Field { source, offset, of } => {
            Op::Load { to, view: source.into(), at: item, offset, of: Memory::Value(of) }
        }
        Instruction::FieldEquals { source, offset, bytes } => {
            Op::FieldEquals { to, view: source.into(), at: item, offset, bytes }
        }
        Instruction::Literal { bits, .. } => Op::Literal { to, bits },
        Instruction::Index => Op::Builtin { to, what: Builtin::Index },
        Instruction::Unary { op, of } => Op::Unary { op, to, of: of.into() },
        Instruction::Binary { op, left, right } => {
            Op::Binary { op, to, left: left.into(), right: right.into() }
        }
        Instruction::Select { condition, yes, no } => {
            Op::Select { to, when: condition.into(), yes: yes.into(), no: no.into() }
        }
        Instruction::Cast { of, .. } => Op::Cast { to, of: of.into() },
        Instruction::Fma { a, b, c } => Op::Fma { to, a: a.into(), b: b.into(), c: c.into() },
        Instruction::Call { function, arguments } => {
            Op::Call { to, function, arguments: arguments.into_iter().map(Reg::from).collect() }
        }
    }
}

/// Returns the instruction from which [`operation`] has made `op`. `result` is the type of its value.
fn instruction(op: &Op, result: Type) -> Instruction {
    let value = |register: Reg| Value(register.0 as u16);
    match *op {
        Op::Load { view, offset, of, .. } => {
            Instruction::Field { source: view as u8, offset, of: of.value() }
        }
        Op::FieldEquals { view, offset, ref bytes, .. } => {
            Instruction::FieldEquals { source: view as u8, offset, bytes: bytes.clone() }
        }
        Op::Literal { bits, .. } => Instruction::Literal { of: result, bits },
        Op::Unary { op, of, .. } => Instruction::Unary { op, of: value(of) },
        Op::Binary { op, left, right, .. } => {
            Instruction::Binary { op, left: value(left), right: value(right) }
        }
        Op::Select { when, yes, no, .. } => {
            Instruction::Select { condition: value(when), yes: value(yes), no: value(no) }
        }
        Op::Cast { of, .. } => Instruction::Cast { of: value(of), to: result },
        Op::Fma { a, b, c, .. } => Instruction::Fma { a: value(a), b: value(b), c: value(c) },
        Op::Call { ref function, ref arguments, .. } => Instruction::Call {
            function: function.clone(),
            arguments: arguments.iter().map(|argument| value(*argument)).collect(),
        },
        // The remaining operation can only be `Index`: a program's body has no others.
        _ => Instruction::Index,
    }
}

/// Returns the type of an instruction's value, if it is known. `VerifiedKernel` checks the types.
fn type_of(types: &[Type], instruction: &Instruction) -> Option<Type> {
    let known = |value: Value| types.get(value.at()).copied();
    Some(match *instruction {
        Instruction::Field { of, .. } | Instruction::Literal { of, .. } => of,
        Instruction::FieldEquals { .. } => Type::Bool,
        Instruction::Index => Type::U64,
        Instruction::Unary { op, of } => op.gives(known(of)?),
        Instruction::Binary { op, left, .. } if op.is_comparison() => known(left).map(|_| Type::Bool)?,
        Instruction::Binary { left: of, .. }
        | Instruction::Select { yes: of, .. }
        | Instruction::Fma { a: of, .. } => known(of)?,
        Instruction::Cast { of, to } => known(of).map(|_| to)?,
        Instruction::Call { ref function, .. } => function.gives(),
    })
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, "program").with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_instructions_are_refused() {
        let literal = |of| Instruction::Literal { of, bits: 1 };
        let pair = |a, b, op| {
            let last = Instruction::Binary { op, left: Value(0), right: Value(1) };
            Program::new(vec![literal(a), literal(b), last])
        };
        assert!(pair(Type::U8, Type::U8, Binary::Add).is_ok());
        assert!(pair(Type::U8, Type::I8, Binary::Add).is_err());
        assert!(pair(Type::Bool, Type::Bool, Binary::Add).is_err());
        assert!(pair(Type::Bool, Type::Bool, Binary::And).is_ok());
        assert!(pair(Type::F32, Type::F32, Binary::Rem).is_err());
        assert!(pair(Type::F64, Type::F64, Binary::Xor).is_err());
        assert!(Program::new(vec![Instruction::Unary { op: Unary::Not, of: Value(0) }]).is_err());
        assert!(Program::new(vec![Instruction::Field { source: 0, offset: 0, of: Type::Bool }]).is_err());
        assert!(Program::new(vec![Instruction::Literal { of: Type::U8, bits: 256 }]).is_err());
        assert!(Program::new(vec![Instruction::Index; 257]).is_err());
    }
}
