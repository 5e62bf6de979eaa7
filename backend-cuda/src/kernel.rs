//! CUDA kernels of this backend, embedded as PTX text, which the driver translates at the first use.

pub(crate) mod compute;
pub(crate) mod fill;
pub(crate) mod indexed;
pub(crate) mod launch;
pub(crate) mod modules;
pub(crate) mod search;
#[forbid(unsafe_code)]
mod text;

use std::ffi::c_void;

use vmarray_support::texts::PackedTexts;

/// Returns the PTX text of a kernel file, as a C string.
fn ptx(name: &str) -> &'static str {
    static TEXTS: PackedTexts =
        PackedTexts::new(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/ptx.zlib")));
    TEXTS.c_text(name)
}

/// Returns the address of a kernel's argument.
pub(crate) fn argument<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// The offsets, in bytes, of the parts of a queue's scratch memory.
pub(crate) mod scratch {
    /// Offset of a search's state: four 64-bit numbers.
    pub(crate) const STATE: u64 = 0;
    pub(crate) const STATE_BYTES: u64 = 64;
    /// Offset of the failures of launches.
    pub(crate) const LAUNCH: u64 = STATE + STATE_BYTES;
    /// Offset of the value that a search compares with.
    pub(crate) const VALUE: u64 = LAUNCH + 64;
    /// Offset of a fill pattern, repeated to a multiple of 16 bytes, or of the tables of a launch.
    pub(crate) const PATTERN: u64 = VALUE + 4096;
    /// Offset of the number of matches in each chunk, 32 bits each.
    pub(crate) const COUNTS: u64 = PATTERN + 16 * 4096;
    /// Offset of two 64-bit numbers for each chunk with matches: the chunk, and the position of its matches
    /// in the result.
    pub(crate) const HITS: u64 = COUNTS + 4 * CHUNKS_MAX;
    /// Offset of the counts of a histogram, 64 bits each.
    pub(crate) const BINS: u64 = HITS + 16 * CHUNKS_MAX;
    pub(crate) const BYTES: u64 = BINS + 8 * backend_api::Compute::BINS_MAX as u64;
    pub(crate) const CHUNKS_MAX: u64 = 96 << 10;
    /// The scratch memory fits into 2 MiB, the driver's step of allocation.
    const _: () = assert!(BYTES <= 2 << 20);
    const _: () = assert!(COUNTS - PATTERN >= backend_api::kernel::Body::TABLE_BYTES_MAX);
}

/// Translates a PTX text by NVIDIA's assembler, which `VMARRAY_PTXAS` names. The driver contains the same
/// assembler, but needs a GPU. If the assembler no longer knows the target, translates for the oldest target
/// of CUDA 13.
#[cfg(test)]
fn assemble(target: &str, text: &str) {
    let text = text.trim_end_matches('\0');
    let mut result = assembled(target, text);
    if result.as_ref().is_err_and(|words| words.contains("is not defined for option 'gpu-name'")) {
        result = assembled("sm_75", text);
    }
    result.unwrap_or_else(|words| panic!("{words}\n{text}"));
}

/// Runs the assembler for one target; returns its messages if it fails.
#[cfg(test)]
fn assembled(target: &str, text: &str) -> Result<(), String> {
    use std::io::Write;
    use std::process::{Command, Stdio};

    let ptxas = std::env::var_os("VMARRAY_PTXAS").expect("VMARRAY_PTXAS must name the assembler");
    let mut child = Command::new(&ptxas)
        .args([&format!("-arch={target}"), "-o", "/dev/null", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the assembler must start");
    let written = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    written.expect("the assembler must read all of its input");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_parts_are_aligned() {
        for start in [scratch::VALUE, scratch::PATTERN, scratch::COUNTS, scratch::HITS, scratch::BINS] {
            assert_eq!(start % 16, 0);
        }
    }
}
