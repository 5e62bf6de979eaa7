//! The places where cuBLAS may be installed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// File names of the versions whose functions this crate calls, newest first.
const NAMES: [&str; 2] = match cfg!(windows) {
    true => ["cublas64_13.dll", "cublas64_12.dll"],
    false => ["libcublas.so.13", "libcublas.so.12"],
};
/// The folders of a CUDA toolkit that contain libraries.
const TOOLKIT_FOLDERS: &[&str] = if cfg!(windows) { &["bin/x64", "bin"] } else { &["lib64"] };
/// The usual folders of a CUDA toolkit.
const TOOLKITS: &[&str] = match cfg!(windows) {
    true => &[],
    false => &["/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-12", "/opt/cuda"],
};
/// The folders with cuBLAS in a folder of Python packages.
const PACKAGES: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cublas/lib"];

/// Returns the files to try, best first. `mapped` is the contents of Linux' `/proc/self/maps`.
///
/// The order avoids a second version in the process: a loaded library is first, then the packages of the
/// running Python, because other packages such as PyTorch load these later. Windows would search the current
/// folder for a file name alone, so there all candidates are paths.
pub(super) fn candidates(variable: &dyn Fn(&str) -> Option<OsString>, mapped: &str) -> Vec<PathBuf> {
    let mapped = mapped.lines().filter_map(|line| line.find('/').map(|start| Path::new(&line[start..])));
    let mut files: Vec<PathBuf> = Vec::new();
    let mut packages: Vec<&Path> = Vec::new();
    for path in mapped {
        let named = |names: &[&str], path: &Path| {
            path.file_name().is_some_and(|own| names.iter().any(|name| own == *name))
        };
        if named(&NAMES, path) {
            files.push(path.into());
        }
        packages.extend(path.ancestors().find(|folder| named(&["site-packages", "dist-packages"], folder)));
    }
    packages.dedup();
    let toolkits = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(|name| variable(name)).map(PathBuf::from);
    let toolkits = toolkits.chain(TOOLKITS.iter().map(PathBuf::from));
    let toolkits =
        toolkits.flat_map(|toolkit| TOOLKIT_FOLDERS.iter().map(move |folder| toolkit.join(folder)));
    let packages = packages.into_iter().flat_map(|of| PACKAGES.iter().map(move |folder| of.join(folder)));
    let in_folder = |folder: PathBuf| NAMES.map(|name| folder.join(name));
    files.extend(packages.flat_map(in_folder));
    files.extend(NAMES.iter().filter(|_| cfg!(not(windows))).map(PathBuf::from));
    files.extend(toolkits.flat_map(in_folder));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(windows))]
    fn loaded_libraries_are_first_then_python_packages_then_toolkits() {
        let mapped = "7f00-7f01 r--p 00000000 08:01 42    /usr/lib/libc.so.6\n\
                      7f01-7f02 rw-p 00000000 00:00 0     [heap]\n\
                      7f02-7f03 r-xp 00000000 08:01 43    /opt/some env/site-packages/numpy/core/a.so\n\
                      7f03-7f04 r-xp 00000000 08:01 44    /opt/some env/site-packages/vmarray/_native.so\n\
                      7f04-7f05 r-xp 00000000 08:01 45    /srv/lib/libcublas.so.12\n\
                      7f05-7f06 r-xp 00000000 08:01 46    /srv/lib/libcublasLt.so.12\n";
        let variable = |name: &str| (name == "CUDA_HOME").then(|| OsString::from("/srv/cuda"));
        let found = candidates(&variable, mapped);
        let expected = [
            "/srv/lib/libcublas.so.12",
            "/opt/some env/site-packages/nvidia/cu13/lib/libcublas.so.13",
            "/opt/some env/site-packages/nvidia/cu13/lib/libcublas.so.12",
            "/opt/some env/site-packages/nvidia/cublas/lib/libcublas.so.13",
            "/opt/some env/site-packages/nvidia/cublas/lib/libcublas.so.12",
            "libcublas.so.13",
            "libcublas.so.12",
            "/srv/cuda/lib64/libcublas.so.13",
            "/srv/cuda/lib64/libcublas.so.12",
            "/usr/local/cuda/lib64/libcublas.so.13",
        ];
        assert_eq!(found[..expected.len()], expected.map(PathBuf::from));
        assert_eq!(found.len(), 8 + 5 * 2 - 1, "each toolkit once: {found:?}");
    }

    #[test]
    #[cfg(windows)]
    fn all_candidates_are_paths() {
        let variable = |name: &str| (name == "CUDA_PATH").then(|| OsString::from(r"C:\CUDA\v13.0"));
        let found = candidates(&variable, "");
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|path| path.starts_with(r"C:\CUDA\v13.0\bin")));
    }
}
