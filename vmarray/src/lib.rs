//! An array larger than RAM whose pages live in the memory of all GPUs of the machine.
