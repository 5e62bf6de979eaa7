//! The executable that `cargo xtask demo` and `cargo xtask devices` build and run.

use clap::{Parser, Subcommand};
use demo::{DemoArgs, DevicesArgs};
use std::process::ExitCode;

/// Demonstrates vmarray.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the demo on real input: a genome store and two images, each larger than its cache and verified.
    Demo(DemoArgs),
    /// Lists the devices that an array could use on this machine.
    Devices(DevicesArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(args),
        Command::Devices(args) => demo::devices::list(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
