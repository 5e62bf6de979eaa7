//! Arguments that a program passes to a kernel when the interpreter runs the kernel.

use crate::KernelType;

/// The argument for one parameter of a kernel that the interpreter runs.
#[derive(Debug)]
pub enum InterpreterArgument<'s> {
    /// No data: the parameter is the item's position (`At`).
    Place,
    /// The bits of all scalars of a value or a table.
    Values(Vec<u64>),
    /// Elements to read: their bytes, and the size of an element in bytes.
    Read(&'s [u8], usize),
    /// The extents of the result along its axes.
    Shape(Vec<usize>),
    /// Elements that items read by position: the first position, the extents, the bytes, and the size of an
    /// element in bytes.
    Around(Vec<isize>, Vec<usize>, &'s [u8], usize),
    /// Elements to read and write: their bytes, and the size of an element in bytes.
    Write(&'s mut [u8], usize),
    /// Elements to append: the counter (8 bytes), the bytes of the elements, and the size of an element in
    /// bytes.
    Append(&'s mut [u8], &'s mut [u8], usize),
}

impl InterpreterArgument<'_> {
    /// Creates the argument for a parameter that is a value.
    pub(crate) fn values_of(value: impl KernelType) -> Self {
        let mut values = Vec::new();
        value.values(&mut values);
        InterpreterArgument::Values(values)
    }
}
