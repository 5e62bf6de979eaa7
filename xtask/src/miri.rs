//! `cargo xtask miri`: runs tests in Miri, an interpreter that finds undefined behaviour.
//!
//! Miri cannot call foreign functions. So these tests call no GPU driver, and call the system only for memory
//! and threads. Under Miri, barriers are full fences, and copies are loops over atomic bytes.

use crate::steps::Outcome;
use crate::tools;
use anyhow::Result;
use xshell::{Shell, cmd};

/// Flags for tests in which loads may return older values, as the memory model allows.
const WEAK: &str = "";
/// Flags for tests in which loads return the newest value. With weak memory Miri aborts if atomic accesses of
/// different sizes meet, as accesses of elements and of bytes in a cached page do.
const STRONG: &str = " -Zmiri-disable-weak-memory-emulation";
/// Flags for tests whose idle threads or constants outlive them, so that Miri must not look for leaks.
const THREADS: &str = " -Zmiri-ignore-leaks";

/// Names of tests, or prefixes of their paths; all if empty.
type Tests = &'static [&'static str];

/// Tests that Miri interprets in one process: the package, the tests, the tests of a sample (excluded from it
/// if `None`), and flags.
const PARTS: [(&str, Tests, Option<Tests>, [&str; 2]); 7] = [
    ("vmarray-backend-api", &[], None, [WEAK, ""]),
    ("vmarray-support", &[], None, [WEAK, THREADS]),
    ("vmarray-engine", &["page::"], Some(&["page::"]), [WEAK, ""]),
    ("vmarray-engine", &["nontemporal_copy::", "scoped_threads::"], None, [WEAK, THREADS]),
    ("vmarray", &["base::element::"], Some(&["base::element::"]), [WEAK, THREADS]),
    (
        "vmarray",
        &[
            "array::element_place::",
            "array::cursor::",
            "array::page_guard::",
            "base::racy_slice::",
            "base::registered_memory::",
            "engine::channel::places::",
            "ops::gather::in_place::tests::one_device",
            "ops::gather::stage::",
            "sources::home::",
        ],
        None,
        [STRONG, THREADS],
    ),
    ("vmarray-tests", &["interpreted::"], Some(&["interpreted::accesses_to_bytes"]), [STRONG, ""]),
];

/// Runs the tests in Miri; skips them if Miri is missing and cannot be installed.
pub fn check(sh: &Shell, sample: bool) -> Result<Outcome> {
    if let Err(reason) = tools::miri(sh) {
        return Ok(Outcome::Skipped(reason.to_string()));
    }
    for (package, tests, of_sample, flags) in PARTS {
        let Some(tests) = (if sample { of_sample } else { Some(tests) }) else { continue };
        // Permit integers as addresses, which dependencies use. Let system calls fail without a warning.
        let flags =
            format!("-Zmiri-permissive-provenance -Zmiri-isolation-error=hide{}{}", flags[0], flags[1]);
        let _flags = sh.push_env("MIRIFLAGS", flags);
        let is_array = matches!(package, "vmarray" | "vmarray-tests");
        let features: &[&str] = if is_array { &["--no-default-features", "--features", "host"] } else { &[] };
        let target: &[&str] = if package == "vmarray-tests" { &["--test", "it"] } else { &["--lib"] };
        cmd!(sh, "cargo +nightly miri test -p {package} {features...} {target...} -- {tests...}").run()?;
    }
    Ok(Outcome::Passed(if sample { "a sample; all by `cargo xtask miri`".into() } else { String::new() }))
}
