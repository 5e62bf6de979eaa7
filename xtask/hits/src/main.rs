//! The program behind `cargo xtask hits`: counts the instructions of an access to a cached page.
//!
//! The program sets the processor's trap flag, so the processor stops after each instruction, and a signal
//! handler counts it. The counts are therefore exact, and equal in each run and on each processor. Hardware
//! counters, which virtual machines often lack, are not necessary. The table of expected counts is for rustc
//! 1.95 with the profile `hits`; with `release`, three of the counts are lower by one.

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
