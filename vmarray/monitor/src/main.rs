//! Shows what the arrays of running programs do, which [publish](vmarray::monitor) their statistics.

mod screen;
mod table;
mod watched;

use std::io::{self, Write};
use std::process::ExitCode;

use table::Table;
use watched::Watched;

const HELP: &str = "\
Shows what the arrays of running programs of this user do.

Usage: vmarray-monitor [--once]

  --once     Prints a plain table of what was counted since each array was built, and ends.
  --help     Prints this.
  --version  Prints the version.

Programs take part with the environment variable VMARRAY_PUBLISH=1, or by `publish` where they build an array.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let shown = match arguments[..] {
        [] => screen::run(),
        ["--once"] => print(&once()),
        ["--help" | "-h"] => print(HELP),
        ["--version" | "-V"] => print(&format!("vmarray-monitor {}\n", env!("CARGO_PKG_VERSION"))),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmarray-monitor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What was counted so far, as text.
fn once() -> String {
    let mut watched = Watched::default();
    watched.read(vmarray::monitor::programs());
    format!("{}\n{}", Table::of_cards(&watched), Table::of_channels(&watched))
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
