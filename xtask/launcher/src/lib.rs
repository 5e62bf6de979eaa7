//! Builds and runs the executable that implements a command of `cargo xtask`.

use std::io;
use std::process::{Command, ExitCode};

/// Options of `cargo run` for `cargo xtask demo` and `cargo xtask devices`, which show cargo's progress.
pub const DEMO: [&str; 4] = ["--profile", "light", "--package", "demo"];
/// Options of `cargo run` for all other commands of `cargo xtask`.
pub const XTASK: [&str; 3] = ["--quiet", "--package", "xtask"];

/// Runs `cargo run` with `options`. The program gets the arguments of this process. Returns the exit code of
/// `cargo run`. On Unix, `cargo run` instead replaces this process, so that it receives the signals.
pub fn run(options: &[&str]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.arg("run").args(options).arg("--").args(std::env::args_os().skip(1));
    #[cfg(unix)]
    let result: io::Result<Option<i32>> = Err(std::os::unix::process::CommandExt::exec(&mut command));
    #[cfg(not(unix))]
    let result: io::Result<Option<i32>> = command.status().map(|status| status.code());
    match result {
        Ok(code) => code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(error) => {
            eprintln!("error: cannot run cargo: {error}");
            ExitCode::FAILURE
        }
    }
}
