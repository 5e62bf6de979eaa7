//! Tests of the reports of device discovery: defective drivers, and device filters without a match. A process
//! loads drivers once, so each case runs in its own process.

#![cfg(all(unix, feature = "cuda", feature = "opencl", feature = "host"))]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use vmarray::Discovery;

const CHILD: &str = "VMARRAY_DISCOVERS";
/// True if warnings go to standard error; else they go to `tracing`, which has no subscriber here.
const SAYS_SO: bool = cfg!(not(feature = "tracing"));

/// Body of the other process: prints its devices.
#[test]
fn discovers() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    match Discovery::from_env() {
        Ok(discovery) => println!("{}", discovery.report()),
        Err(error) => println!("not understood: {error}"),
    }
    for _ in 0..2 {
        match vmarray::devices() {
            Ok(devices) => println!("opened {}", devices.len()),
            Err(error) => println!("error: {error}"),
        }
    }
}

/// A temporary folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("vmarray-discovery-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Variables of this machine that choose drivers.
const CHOOSE_DRIVERS: [&str; 6] = [
    "VMARRAY_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "OPENCL_DYLIB_PATH",
    "OCL_ICD_VENDORS",
    "OCL_ICD_FILENAMES",
    "OPENCL_VENDOR_PATH",
];

/// Runs another process with these variables; returns its output and its errors.
fn discover(variables: &[(&str, &OsStr)]) -> (String, String) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "discovery::discovers", "--nocapture"]).env(CHILD, "1");
    CHOOSE_DRIVERS.iter().for_each(|name| _ = child.env_remove(name));
    let said = child.envs(variables.iter().copied()).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    (String::from_utf8(said.stdout).unwrap(), String::from_utf8(said.stderr).unwrap())
}

/// Files in a folder replace the drivers of both backends, under all their names.
fn shadow_drivers<'a>(folder: &'a Folder, contents: &[u8]) -> (&'static str, &'a OsStr) {
    for name in ["libcuda.so", "libcuda.so.1", "libOpenCL.so.1"] {
        folder.file(name, contents);
    }
    ("LD_LIBRARY_PATH", folder.0.as_os_str())
}

/// Hides all cards from CUDA.
fn no_cards() -> (&'static str, &'static OsStr) {
    ("CUDA_VISIBLE_DEVICES", OsStr::new(""))
}

/// A folder without drivers replaces the system's list of OpenCL drivers. Some loaders ignore it.
fn no_opencl(folder: &Folder) -> (&'static str, &OsStr) {
    ("OCL_ICD_VENDORS", folder.0.as_os_str())
}

/// The line of a table that begins with `start`.
fn row<'a>(table: &'a str, start: &str) -> &'a str {
    table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{table}"))
}

/// The first row of a backend without devices; `None` if it has some.
fn absence<'a>(table: &'a str, backend: &str) -> Option<&'a str> {
    let mut rows = table.lines().filter(|line| line.starts_with(backend));
    rows.all(|row| row.contains("  no: ")).then(|| row(table, backend))
}

#[test]
fn a_broken_driver_is_named_and_host_ram_in_its_place_warned_of() {
    let folder = Folder::new("broken");
    let shadows = shadow_drivers(&folder, b"this is no library");
    let (table, warnings) = discover(&[shadows, no_cards()]);
    if row(&table, "cuda").contains("finds no GPU") {
        return; // The driver of this machine has a different file name.
    }
    for (backend, library) in [("cuda", "libcuda.so"), ("opencl", "libOpenCL.so.1")] {
        let row = row(&table, backend);
        assert!(
            row.contains("no: unusable") && row.contains(library) && row.contains("reinstall"),
            "{table}"
        );
    }
    assert!(row(&table, "host").ends_with("yes"), "{table}");
    assert_eq!(table.matches("opened 1").count(), 2, "{table}");
    if SAYS_SO {
        assert_eq!(warnings.matches("host RAM is used, but").count(), 1, "once: {warnings}");
        assert!(warnings.contains("libcuda.so"), "{warnings}");
    }
}

#[test]
fn a_library_of_another_kind_is_unusable() {
    let libm = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"];
    let Some(libm) = libm.iter().map(Path::new).find(|path| path.exists()) else { return };
    let folder = Folder::new("other");
    let (table, warnings) = discover(&[shadow_drivers(&folder, &std::fs::read(libm).unwrap())]);
    assert!(row(&table, "cuda").contains("has no function cuInit"), "{table}");
    assert!(row(&table, "opencl").contains("libOpenCL.so.1 has no function cl"), "{table}");
    assert!(!SAYS_SO || warnings.contains("cuInit"), "{warnings}");
}

#[test]
fn a_listed_driver_that_does_not_load_is_unusable() {
    let folder = Folder::new("listed");
    folder.file("broken.icd", b"/no/such/driver.so\n");
    let (table, _) = discover(&[no_opencl(&folder)]);
    // A loader is installed, and it reads that list.
    if let Some(absence) = absence(&table, "opencl")
        && !absence.contains("not installed")
    {
        assert!(absence.contains("no: unusable") && absence.contains("broken.icd"), "{table}");
    }
}

#[test]
fn a_named_loader_that_does_not_load_is_reported() {
    let folder = Folder::new("loader");
    let loader = folder.file("libOther.so", b"no library either");
    let (table, _) = discover(&[("OPENCL_DYLIB_PATH", loader.as_os_str())]);
    let names_loader = |line: &str| line.contains("libOther.so") && line.contains("OPENCL_DYLIB_PATH");
    assert!(table.lines().any(names_loader), "{table}");
}

#[test]
fn a_backend_without_devices_says_why() {
    let folder = Folder::new("none");
    let (table, warnings) = discover(&[no_opencl(&folder), no_cards()]);
    let cuda = absence(&table, "cuda").expect("its cards are hidden");
    let mut is_broken = false;
    for row in [Some(cuda), absence(&table, "opencl")].into_iter().flatten() {
        is_broken |= row.contains("no: unusable: ");
        let kinds = ["no: not installed: ", "no: no devices: ", "no: unusable: "];
        assert!(kinds.iter().any(|kind| row.contains(kind)), "{table}");
        let advice = ["install", "nvidia-smi", "check", "LD_LIBRARY_PATH"];
        assert!(advice.iter().any(|advice| row.contains(advice)), "what to do: {table}");
    }
    assert!(is_broken || !warnings.contains("vmarray:"), "nothing is broken: {warnings}");
}

#[test]
fn each_filter_without_a_device_has_its_reason() {
    let folder = Folder::new("filters");
    let none = [shadow_drivers(&folder, b"this is no library"), no_cards()];
    let ask = |filters: &OsStr| discover(&[none[0], none[1], ("VMARRAY_DEVICES", filters)]);
    for (filter, reason) in [
        ("opencl", "no device for \"opencl\": unusable: libOpenCL.so.1 cannot be loaded"),
        ("host:99", "no device for \"host:99\": the only device of host is number 0"),
    ] {
        let (said, _) = ask(filter.as_ref());
        let error = row(&said, "error: ");
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("found: host RAM (host host:0)"), "{error}");
        assert!(error.contains("opencl: unusable"), "what is missing, and why: {error}");
        assert!(error.contains("; `Discovery::report` lists all"), "{error}");
        assert!(row(&said, "no device for ").contains(reason), "{said}");
    }
    let (said, warnings) = ask("host, gpu".as_ref());
    assert_eq!(said.matches("opened 1").count(), 2, "{said}");
    assert!(!SAYS_SO || warnings.matches("no device for \"gpu\"").count() == 1, "{warnings}");
    let (said, _) = ask(&OsString::from_vec(vec![b'h', 0xFF]));
    assert!(said.contains("not understood") && said.contains("not UTF-8"), "{said}");
    assert!(said.contains("error: invalid device filter"), "{said}");
}
