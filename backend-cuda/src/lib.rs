//! The cuda backend of `vmarray`.
