//! The instructions of an access to a resident page, counted one by one: what `cargo xtask hits` runs.
//!
//! The processor's trap flag has it stop after each instruction, and the system sends a signal each time. So
//! the counts are exact, the same in each run and on each processor, and no counter of the hardware is
//! needed, which virtual machines often lack. They depend on the compiler: the table is that of rustc 1.95,
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
