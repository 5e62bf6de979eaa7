//! The instruction list of an expression. The methods of expressions build it, and devices execute it.

use std::time::Duration;

use backend_api::expr::{Instruction, Program, Value};

use crate::base::error::{Error, ErrorKind, Result};

/// The instructions of an expression, without duplicates.
#[derive(Clone, Debug, Default)]
pub struct Instructions {
    /// The instructions. A list that is too long stops growing at one instruction above the maximum of a
    /// program, so that [`program`](Self::program) returns an error.
    pub instructions: Vec<Instruction>,
    /// The error that [`program`](Self::program) returns, if the expression calls an invalid function.
    pub refused: Option<Box<vmarray_kernel::Error>>,
}

impl Instructions {
    /// Copies the instructions of a program without duplicates. Returns the list, and the new index of
    /// `value`.
    pub fn of_program(program: &Program, value: Value) -> (Self, Value) {
        let (whole, mut list) = (program.instructions(), Self::default());
        let value = list.append(&Self { instructions: whole, refused: None }, value);
        (list, value)
    }

    /// Adds an instruction unless the list already contains it, and returns its index in the list.
    pub fn push(&mut self, instruction: Instruction) -> Value {
        let list = &mut self.instructions;
        let at = list.iter().position(|known| *known == instruction).unwrap_or_else(|| {
            // Let the list grow to one instruction above the maximum, so that `program` returns an error.
            if list.len() <= Program::INSTRUCTIONS_MAX {
                list.push(instruction);
            }
            list.len() - 1
        });
        Value(at as u16)
    }

    /// Appends the instructions of another expression, and returns the new index of `value`.
    pub fn append(&mut self, other: &Self, value: Value) -> Value {
        self.refuse(&other.refused);
        let mut places: Vec<Value> = Vec::with_capacity(other.instructions.len());
        for instruction in &other.instructions {
            places.push(self.push(moved(instruction.clone(), &places)));
        }
        place(value, &places)
    }

    /// Sets the time limit of each function that the instructions call.
    pub fn limit(&mut self, limit: Option<Duration>) {
        for instruction in &mut self.instructions {
            if let Instruction::Call { function, .. } = instruction {
                *function = function.clone().with_time_limit(limit);
            }
        }
    }

    /// Takes over `refused`, the error of another list, unless this list already has an error.
    pub fn refuse(&mut self, refused: &Option<Box<vmarray_kernel::Error>>) {
        if self.refused.is_none() {
            self.refused.clone_from(refused);
        }
    }

    /// Converts the instructions to a program for devices.
    ///
    /// # Errors
    /// An error if the program is too long, or calls a function that expressions cannot call.
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

/// Returns the error for a function that expressions cannot call.
pub(crate) fn refused(error: &vmarray_kernel::Error) -> Error {
    ErrorKind::KernelRefused { kernel: error.function().into(), reason: error.to_string() }.into()
}

/// Returns the new index of a value after its instructions were moved to `places`.
pub(super) fn place(value: Value, places: &[Value]) -> Value {
    places.get(value.at()).copied().unwrap_or(value)
}

/// Returns an instruction whose operands have their new indices.
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
        other @ (Instruction::Field { .. }
        | Instruction::FieldEquals { .. }
        | Instruction::Literal { .. }
        | Instruction::Index) => other,
    }
}
