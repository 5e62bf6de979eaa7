//! The small program that `cargo xtask` runs: it builds and starts the executable of the given command.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(command) if command == "demo" || command == "devices" => launcher::run(&launcher::DEMO),
        _ => launcher::run(&launcher::XTASK),
    }
}
