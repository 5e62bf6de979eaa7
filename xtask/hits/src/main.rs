//! Counts the instructions of an access to a resident page one by one, for `cargo xtask hits`.
//!
//! With the processor's trap flag it stops after each instruction, and the system sends a signal each
//! time. So the counts are exact, and equal in each run and on each processor. They need no hardware
//! counter, which virtual machines often lack. They depend on the compiler: the table is for rustc 1.95,
//! optimised by the release profile.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod counting;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn main() -> anyhow::Result<()> {
    counting::run()
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn main() {
    println!("SKIPPED, NOT CHECKED: instructions are counted on Linux on x86-64 only");
}
