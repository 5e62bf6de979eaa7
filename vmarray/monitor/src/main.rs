//! `vmarray-monitor`: a terminal program that shows the cache and bus activity of arrays in other processes.
//! These processes must [publish](vmarray::monitor) their statistics.

mod screen;
mod table;
mod watched;

use std::io::{self, Write};
use std::process::ExitCode;

use table::Table;
use watched::Watched;

const HELP: &str = "\
Shows what the arrays of running programs of this user do.

Usage: vmarray-monitor [--once | --check FILE... | --convert FILE NEW]

  --once     Prints a plain table of what was counted since each array was built, and ends.
  --check    Reads arrays in files through, and says what is wrong with them. Fails if anything is.
  --convert  Writes an array file of an earlier version to a new file of this version. An array in several
             files has each of them converted.
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
        ["--check", ref files @ ..] if !files.is_empty() => return check(files),
        ["--convert", file, new] => return convert(file, new),
        ["--help" | "-h"] => print(HELP),
        ["--version" | "-V"] => print(&format!("vmarray-monitor {}\n", env!("CARGO_PKG_VERSION"))),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // This is no error: the reader of the output has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmarray-monitor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Copies the array in a file to a new file in the current format. Fails if the file is damaged.
fn convert(file: &str, new: &str) -> ExitCode {
    match vmarray::store::StoreDevice::convert(file, new) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmarray-monitor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads files completely, and fails if any of them is damaged.
fn check(files: &[&str]) -> ExitCode {
    let mut is_sound = true;
    for file in files {
        match vmarray::store::StoreDevice::check(file) {
            Ok(report) => {
                let stored = report.stored_pages * report.page_bytes;
                println!("{file}: {} pages stored, {stored} bytes", report.stored_pages);
                if report.damaged_superblocks > 0 {
                    println!("{file}: one of its two superblocks is damaged, which is no loss");
                }
                if !report.is_closed && report.version > 2 {
                    println!("{file}: not closed by the last program that wrote to it");
                }
                if report.version == 2 {
                    println!("{file}: version 2, which can only be read; `--convert` it to write to it");
                }
                if report.unfinished_pages > 0 {
                    println!("{file}: a commit of {} pages was interrupted", report.unfinished_pages);
                }
                report.damaged_pages.iter().for_each(|(_, what)| println!("{file}: {what}"));
                is_sound &= report.damaged_pages.is_empty();
            }
            Err(error) => {
                println!("{error}");
                is_sound = false;
            }
        }
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the present statistics as text, for scripts.
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
