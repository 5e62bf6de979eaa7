//! Arrays of several dimensions, arrays of rows of different lengths, and boundary modes beyond their
//! edges.

pub mod boundary;
pub(crate) mod nd;
#[forbid(unsafe_code)]
pub(crate) mod ragged;
