//! Builds and runs the executable that implements a command of `cargo xtask`.

use std::io;
use std::process::{Command, ExitCode};

/// Cargo's options for the executable of `cargo xtask demo` and `devices`; cargo shows its progress.
pub const DEMO: [&str; 4] = ["--profile", "light", "--package", "demo"];
/// Cargo's options for the executable of all other commands.
pub const XTASK: [&str; 3] = ["--quiet", "--package", "xtask"];

/// Runs `cargo run` with these options. The program gets the arguments of this process. Returns its exit
/// code; on Unix the program replaces this process, so that it receives the signals.
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
