//! Arrays of several dimensions, of rows of different lengths, and what lies beyond their edges.

pub mod boundary;
pub(crate) mod nd;
#[forbid(unsafe_code)]
pub(crate) mod ragged;
