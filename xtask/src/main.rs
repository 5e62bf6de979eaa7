//! The commands of a contributor: `cargo xtask …`.

fn main() {}
