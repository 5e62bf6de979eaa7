//! The host backend of `vmarray`.
