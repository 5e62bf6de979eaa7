//! `cargo xtask miri`: tests in an interpreter that finds undefined behaviour.
//!
//! Miri makes no foreign calls, so it excludes drivers, and the system except for memory and threads;
//! barriers are full fences there, and copies are loops over atomic bytes.

use crate::steps::Outcome;
use crate::tools;
use anyhow::Result;
use xshell::{Shell, cmd};

/// Tests of one package that Miri interprets in one process.
struct Part {
    package: &'static str,
    target: &'static [&'static str],
    /// Names of tests, or prefixes of their paths; all if empty.
    tests: &'static [&'static str],
    /// The `tests` of a sample; excluded from it if `None`.
    sample: Option<&'static [&'static str]>,
    /// True if loads may return older values, as the memory model allows. In this mode Miri aborts if
    /// atomic accesses of different sizes meet, even ordered ones. Accesses of elements and of bytes in a
    /// frame do.
    has_weak_memory: bool,
    /// True if idle threads may outlive the tests, so that Miri must not look for leaks.
    leaves_threads: bool,
}

const PARTS: [Part; 7] = [
    Part {
        package: "vmarray-backend-api",
        target: &["--lib"],
        tests: &[],
        sample: None,
        has_weak_memory: true,
        leaves_threads: false,
    },
    Part {
        package: "vmarray-support",
        target: &["--lib"],
        tests: &[],
        sample: None,
        has_weak_memory: true,
        leaves_threads: false,
    },
    Part {
        package: "vmarray-engine",
        target: &["--lib"],
        tests: &["page::"],
        sample: Some(&["page::"]),
        has_weak_memory: true,
        leaves_threads: false,
    },
    Part {
        package: "vmarray-engine",
        target: &["--lib"],
        tests: &["nontemporal_copy::", "scoped_threads::"],
        sample: None,
        has_weak_memory: true,
        leaves_threads: true,
    },
    Part {
        package: "vmarray",
        target: &["--lib"],
        tests: &["base::element::"],
        sample: Some(&["base::element::"]),
        has_weak_memory: true,
        leaves_threads: true,
    },
    Part {
        package: "vmarray",
        target: &["--lib"],
        tests: &[
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
        sample: None,
        has_weak_memory: false,
        leaves_threads: true,
    },
    Part {
        package: "vmarray-tests",
        target: &["--test", "it"],
        tests: &["interpreted::"],
        sample: Some(&["interpreted::accesses_to_bytes"]),
        has_weak_memory: false,
        leaves_threads: false,
    },
];

/// Runs the tests in Miri; skips them if Miri is missing and cannot be installed.
pub fn check(sh: &Shell, sample: bool) -> Result<Outcome> {
    if let Err(reason) = tools::miri(sh) {
        return Ok(Outcome::Skipped(reason.to_string()));
    }
    for part in PARTS {
        let Part { package, target, .. } = part;
        let Some(tests) = (if sample { part.sample } else { Some(part.tests) }) else { continue };
        // Locks of dependencies store addresses as integers. No test needs the system's files or clock.
        let mut flags = "-Zmiri-permissive-provenance -Zmiri-isolation-error=hide".to_string();
        if !part.has_weak_memory {
            flags.push_str(" -Zmiri-disable-weak-memory-emulation");
        }
        if part.leaves_threads {
            flags.push_str(" -Zmiri-ignore-leaks");
        }
        let _flags = sh.push_env("MIRIFLAGS", flags);
        let is_array = matches!(package, "vmarray" | "vmarray-tests");
        let features: &[&str] = if is_array { &["--no-default-features", "--features", "host"] } else { &[] };
        cmd!(sh, "cargo +nightly miri test -p {package} {features...} {target...} -- {tests...}").run()?;
    }
    Ok(Outcome::Passed(if sample { "a sample; all by `cargo xtask miri`".into() } else { String::new() }))
}
