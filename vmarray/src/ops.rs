//! Operations on elements where they lie: questions and assignments by expressions, searches, lists of
//! indices.

pub(crate) mod compute;
pub mod expr;
pub(crate) mod find;
pub(crate) mod gather;
pub(crate) mod view;
