//! `cargo xtask sanitize`: runs all test suites with AddressSanitizer.

use crate::project;
use crate::steps::Outcome;
use crate::test_host::merged;
use crate::tools::{self, SANITIZER_TARGET};
use anyhow::Result;
use xshell::{Shell, cmd};

/// Suppressed leaks: PoCL's compiler, LLVM and GPU drivers keep memory until the process ends. This project
/// has no C++.
const NOT_OURS: &str = "leak:libstdc++.so\nleak:libLLVM\nleak:libcuda\nleak:libnvidia\n";

/// The options of a sample's build: the array's own tests on host RAM, without optimisation.
const SAMPLE: [&str; 10] = [
    "-p",
    "vmarray",
    "-p",
    "vmarray-engine",
    "--lib",
    "--no-default-features",
    "--features",
    "vmarray/host",
    "--cargo-profile",
    "dev",
];
/// Tests that a sample excludes: modules that measure, look for drivers, simulate GPUs, use no unsafe
/// memory accesses, or need more stack without optimisation.
const NOT_IN_SAMPLE: &str = "test(array::large_element::) | test(profile::) | test(discovery::) \
                             | test(evict::) \
                             | test(sort::tests::) | test(on_devices::) | test(sources::sort::)";
/// The tests that take more than ten seconds with the sanitizer.
const LONG: &str = "of_equal_indices|blocks_cover|kernels_that_read_slots";
/// The number of cases of each random test in a sample, by default.
const SAMPLE_CASES: &str = "16";

/// Builds the tests of all crates except for xtask with AddressSanitizer, in a separate folder, and runs
/// them. The build of a sample is not optimised, because the optimisation would take longer than the tests.
///
/// Sets the cfg `portable_copy`, because the sanitizer does not check copies in inline assembly.
pub fn check(sh: &Shell, sample: bool) -> Result<Outcome> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(Outcome::Skipped(format!("this machine is no {SANITIZER_TARGET}")));
    }
    if !tools::has_address_sanitizer(sh)? {
        let reason = "the toolchain in use has no run-time library of AddressSanitizer";
        return Ok(Outcome::Skipped(reason.into()));
    }
    tools::need(sh, "nextest")?;
    let folder = project::members()?.target_directory.join("asan");
    let _target = sh.push_env("CARGO_TARGET_DIR", &folder);
    let _flags =
        sh.push_env("RUSTFLAGS", merged("RUSTFLAGS", " ", "-Zsanitizer=address --cfg portable_copy"));
    // Line tables are enough debug information for the sanitizer's reports.
    let _debug = ["DEV", "TEST"]
        .map(|profile| sh.push_env(format!("CARGO_PROFILE_{profile}_DEBUG"), "line-tables-only"));
    // Keep the signal stacks that PoCL and LLVM set. Let a failed allocation return null instead of aborting.
    let _options = sh.push_env(
        "ASAN_OPTIONS",
        merged("ASAN_OPTIONS", ":", "use_sigaltstack=0:allocator_may_return_null=1"),
    );
    let not_ours = folder.join("not-ours.supp");
    sh.write_file(&not_ours, NOT_OURS)?;
    let suppressions = format!("suppressions={}:print_suppressions=0", not_ours);
    let _leaks = sh.push_env("LSAN_OPTIONS", merged("LSAN_OPTIONS", ":", &suppressions));
    // The variable permits unstable flags on the stable compiler.
    let _bootstrap = sh.push_env("RUSTC_BOOTSTRAP", "1");
    let not_all = format!("not ({NOT_IN_SAMPLE} | test(/{LONG}/))");
    let options = match sample {
        true => [&SAMPLE[..], &["-E", &not_all]].concat(),
        false => ["--workspace", "--exclude", "xtask", "--all-features", "--tests"].to_vec(),
    };
    let _cases = sample.then(|| sh.push_env("PROPTEST_CASES", SAMPLE_CASES));
    let profile = ["--profile", "sanitizer", "--target", SANITIZER_TARGET];
    cmd!(sh, "cargo nextest run {profile...} {options...}").run()?;
    Ok(Outcome::Passed(if sample { "a sample; all by `cargo xtask sanitize`".into() } else { String::new() }))
}
