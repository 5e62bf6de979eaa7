//! Shapes of arrays and views: several dimensions, rows of different lengths, and boundary modes for
//! positions outside.

pub mod boundary;
pub(crate) mod nd;
#[forbid(unsafe_code)]
pub(crate) mod ragged;
