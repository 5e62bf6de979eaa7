//! The instructions of an expression.

use backend_api::expr::{Instruction, Program, Value};

use crate::base::error::{Error, ErrorKind, Result};

/// Instructions, none of them twice.
#[derive(Clone, Debug, Default)]
pub struct Instructions {
    /// One more than a program can have at most, so that its check finds out.
    pub instructions: Vec<Instruction>,
    /// Why a function cannot be called, if one cannot.
    pub refused: Option<Box<vmarray_kernel::Error>>,
}

impl Instructions {
    /// Those of a program, none of them twice; says where a value of it is.
    pub fn of_program(program: &Program, value: Value) -> (Self, Value) {
        let (whole, mut list) = (program.instructions().to_vec(), Self::default());
        let value = list.append(&Self { instructions: whole, refused: None }, value);
        (list, value)
    }

    /// Adds an instruction, unless it is there already; says where it is.
    pub fn push(&mut self, instruction: Instruction) -> Value {
        let list = &mut self.instructions;
        let at = list.iter().position(|known| *known == instruction).unwrap_or_else(|| {
            // One more than a program can have is enough to be refused.
            if list.len() <= Program::INSTRUCTIONS_MAX {
                list.push(instruction);
            }
            list.len() - 1
        });
        Value(at as u16)
    }

    /// Adds the instructions of another expression; says where its value is.
    pub fn append(&mut self, other: &Self, value: Value) -> Value {
        self.refuse(&other.refused);
        let mut places: Vec<Value> = Vec::with_capacity(other.instructions.len());
        for instruction in &other.instructions {
            places.push(self.push(moved(instruction.clone(), &places)));
        }
        place(value, &places)
    }

    /// Takes over why another list is refused.
    pub fn refuse(&mut self, refused: &Option<Box<vmarray_kernel::Error>>) {
        if self.refused.is_none() {
            self.refused.clone_from(refused);
        }
    }

    /// # Errors
    /// If it is too long, or calls a function that cannot be called.
    pub fn program(self) -> Result<Program> {
        if let Some(error) = self.refused {
            return Err(refused(&error));
        }
        if self.instructions.len() > Program::INSTRUCTIONS_MAX {
            return Err(ErrorKind::ExpressionTooLong { most: Program::INSTRUCTIONS_MAX }.into());
        }
        Ok(Program::new(self.instructions)?)
    }
}

/// A function that cannot be lowered.
pub(crate) fn refused(error: &vmarray_kernel::Error) -> Error {
    ErrorKind::KernelRefused { kernel: error.function().into(), reason: error.to_string() }.into()
}

/// Where a value is, of those that were moved to these places.
pub(super) fn place(value: Value, places: &[Value]) -> Value {
    places.get(value.at()).copied().unwrap_or(value)
}

/// An instruction that takes its operands from the places that they were moved to.
pub(super) fn moved(instruction: Instruction, places: &[Value]) -> Instruction {
    let place = |value| place(value, places);
    match instruction {
        Instruction::Unary { op, of } => Instruction::Unary { op, of: place(of) },
        Instruction::Cast { of, to } => Instruction::Cast { of: place(of), to },
        Instruction::Binary { op, left, right } => {
            Instruction::Binary { op, left: place(left), right: place(right) }
        }
        Instruction::Select { condition, yes, no } => {
            Instruction::Select { condition: place(condition), yes: place(yes), no: place(no) }
        }
        Instruction::Fma { a, b, c } => Instruction::Fma { a: place(a), b: place(b), c: place(c) },
        Instruction::Call { function, arguments } => {
            Instruction::Call { function, arguments: arguments.into_iter().map(place).collect() }
        }
        other @ (Instruction::Field { .. } | Instruction::Literal { .. } | Instruction::Index) => other,
    }
}
