//! Wrappers around any device.
