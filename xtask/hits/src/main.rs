//! The program behind `cargo xtask hits`: counts the instructions of an access to a cached page.
//!
//! The program sets the processor's trap flag, and the system then sends a signal after each instruction. So
//! the counts are exact, and equal in each run and on each processor. No hardware counter is necessary, which
//! virtual machines often lack. The table is for rustc 1.95 with the release profile.

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
