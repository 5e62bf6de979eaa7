//! `cargo xtask test-gpu`: runs all tests on a machine with GPUs.

use crate::project;
use crate::steps::{Outcome, Steps};
use crate::tools;
use anyhow::{Result, bail};
use std::path::PathBuf;
use xshell::{Shell, cmd};

/// The assembler of an installed CUDA toolkit.
const TOOLKIT: &str = "/usr/local/cuda/bin/ptxas";

/// Runs the conformance tests on the GPUs, and the ignored stress tests. Fails on a machine without a GPU.
#[derive(clap::Args)]
pub struct Args {
    /// Names of tests, or any arguments of `cargo nextest run`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    filter: Vec<String>,
}

pub fn run(args: Args) -> Result<()> {
    let sh = project::shell()?;
    eprintln!("{}", cards(&sh)?);
    tools::need(&sh, "nextest")?;
    let has_nvidia = has_nvidia(&sh);
    let filter = &args.filter;
    let mut steps = Steps::new();
    steps.run("tests on the cards", || {
        // Skip the CUDA suites without a GPU, because they would fail.
        let without: &[&str] = if has_nvidia { &[] } else { &["--exclude", "vmarray-backend-cuda"] };
        // Let tests fail, not skip, if an OpenCL driver lists no device.
        let _opencl = tools::opencl().is_ok().then(|| sh.push_env("VMARRAY_REQUIRE_DEVICE", "1"));
        // Skip tests that need `ptxas`, NVIDIA's assembler, if no CUDA toolkit is installed.
        let given = std::env::var_os("VMARRAY_PTXAS").map(PathBuf::from);
        let ptxas = given.or_else(|| tools::find("ptxas")).or_else(|| Some(TOOLKIT.into()));
        let ptxas = ptxas.filter(|file| file.is_file());
        let assembled: &[&str] =
            if ptxas.is_some() { &[] } else { &["-E", "not test(/the_assembler_takes/)"] };
        let _ptxas = ptxas.map(|ptxas| sh.push_env("VMARRAY_PTXAS", ptxas));
        let options = ["--profile", "gpu", "--all-features", "--run-ignored", "all"];
        cmd!(sh, "cargo nextest run --workspace {without...} {options...} {assembled...} {filter...}")
            .run()?;
        Ok(Outcome::Passed(match assembled {
            [] => String::new(),
            _ => "without the tests that need ptxas of the CUDA toolkit".into(),
        }))
    });
    steps.finish()
}

fn has_nvidia(sh: &Shell) -> bool {
    cmd!(sh, "nvidia-smi -L").quiet().ignore_stderr().read().is_ok_and(|list| !list.trim().is_empty())
}

/// Describes the GPUs of this machine, from the drivers' own listing; an error without a GPU.
fn cards(sh: &Shell) -> Result<String> {
    if has_nvidia(sh) {
        return Ok(cmd!(sh, "nvidia-smi -L").quiet().ignore_stderr().read()?);
    }
    let render = std::fs::read_dir("/dev/dri")
        .map(|nodes| {
            nodes.flatten().filter(|node| node.file_name().to_string_lossy().starts_with("renderD")).count()
        })
        .unwrap_or(0);
    match tools::opencl() {
        Ok(drivers) if render > 0 => Ok(format!("{render} cards; OpenCL: {drivers}")),
        _ => bail!("no GPU: `nvidia-smi -L` lists none, and there is no render node with an OpenCL driver"),
    }
}
