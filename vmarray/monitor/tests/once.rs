//! Programs that publish, and the monitor's output about them.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use vmarray::prelude::*;

const NAME: &str = "VMARRAY_TEST_PUBLISHES";

/// The main function of the child processes: publishes an array of some pages until its standard input
/// ends.
#[test]
fn publishes() {
    let Ok(name) = std::env::var(NAME) else { return };
    let pages: usize = name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
    let devices = vmarray::Discovery::new().select("host").unwrap().open().unwrap();
    let builder = VirtualArray::<u32>::builder(pages * 256).devices(devices).page_len(256).count_hits(true);
    let array = builder.publish(&name).build().unwrap();
    for index in 0..array.len() {
        array.set(index, 7).unwrap();
    }
    array.flush(..).unwrap();
    vmarray::monitor::publish_now();
    println!("\npublished");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A folder for published files, and the processes that publish.
struct Folder {
    path: PathBuf,
    children: Vec<Child>,
    /// The children's output pipes, open while they run.
    outputs: Vec<BufReader<ChildStdout>>,
}

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(vmarray::support::private_dir::random_name());
        std::fs::create_dir(&path).unwrap();
        Self { path, children: Vec::new(), outputs: Vec::new() }
    }

    /// Starts a process that publishes, and waits until it has published.
    fn start(&mut self, name: &str) -> u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "publishes", "--nocapture"])
            .env(NAME, name)
            .env("XDG_RUNTIME_DIR", &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let said = output.by_ref().lines();
        assert!(said.map_while(Result::ok).any(|line| line == "published"), "{name}");
        let process = child.id();
        self.children.push(child);
        self.outputs.push(output);
        process
    }

    fn once(&self) -> String {
        let mut monitor = Command::new(env!("CARGO_BIN_EXE_vmarray-monitor"));
        let output = monitor.arg("--once").env("XDG_RUNTIME_DIR", &self.path).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path.join("vmarray")).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        // Ignore temporary files that are still being written.
        files.retain(|path| path.extension().is_some_and(|extension| extension == "stats"));
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take());
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Returns the cells of an array's row.
fn row<'a>(table: &'a str, array: &str) -> Vec<&'a str> {
    let rows = table.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()));
    rows.map(Iterator::collect)
        .find(|row: &Vec<&str>| row.get(2) == Some(&array))
        .unwrap_or_else(|| panic!("{table}"))
}

#[test]
fn two_programs_are_shown_with_their_counts() {
    let mut folder = Folder::new();
    assert_eq!(folder.once().lines().filter(|line| line.contains("host")).count(), 1, "the header");
    let [one, other] = ["array of 8", "array of 16"].map(|name| (name, folder.start(name)));
    let table = folder.once();
    for ((name, process), pages) in [(one, 8_u64), (other, 16)] {
        let row = row(&table, name);
        assert_eq!(row[1], process.to_string(), "{table}");
        let bytes = if pages == 8 { "8192 bytes" } else { "16.0 KiB" };
        // One of 256 accesses to a page misses.
        let counted = (row[3], row[4], row[6], row[7], row[8], row[9]);
        assert_eq!(counted, (bytes, "0", "99.6 %", &*pages.to_string(), "0 bytes", bytes), "{table}");
        assert!(row[5].contains("host:0"), "{table}");
    }
    let card = table.lines().find(|line| line.contains("host:0")).unwrap();
    assert!(card.contains("  2  ") && card.contains("24.0 KiB"), "both have the same device: {table}");
    assert_eq!(folder.files().len(), 2);
    end(&mut folder, one.1);
    assert!(!folder.once().contains(one.0));
    assert_eq!(folder.files().len(), 1, "it goes with the array");
}

/// Ends a process.
fn end(folder: &mut Folder, process: u32) {
    let child = folder.children.iter_mut().find(|child| child.id() == process).unwrap();
    child.stdin.take().unwrap().write_all(b"enough\n").unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
#[cfg(target_os = "linux")]
fn garbage_is_skipped_and_files_of_killed_processes_removed() {
    use std::os::unix::fs::PermissionsExt;
    let mut folder = Folder::new();
    let [killed, lives] = ["array of 3", "array of 5"].map(|name| (name, folder.start(name)));
    let child = folder.children.iter_mut().find(|child| child.id() == killed.1).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let left = folder.files();
    assert_eq!(left.len(), 2);
    let garbage = |name: &str, bytes: &[u8]| {
        let path = folder.path.join("vmarray").join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let of_own = std::fs::read_to_string(of(&left, lives.1)).unwrap();
    // The file with garbage has the name that a running process would use.
    garbage(&format!("{}-{}.stats", std::process::id(), start_of_own()), b"\x1b[2Jgarbage");
    garbage("notes", of_own.replace("array of 5", "another one").as_bytes());
    std::os::unix::fs::symlink("/dev/zero", folder.path.join("vmarray/1-0.stats")).unwrap();
    let table = folder.once();
    assert_eq!(row(&table, lives.0)[7], "5", "{table}");
    assert!(
        ["array of 3", "another one", "garbage", "\x1b"].iter().all(|text| !table.contains(text)),
        "{table}"
    );
    assert!(!of(&left, killed.1).exists());
    let mode = std::fs::metadata(of(&left, lives.1)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The monitor ignores a folder that other users can write to.
    let shared = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path.join("vmarray"), shared).unwrap();
    assert!(!folder.once().contains(lives.0));
}

/// Returns the file of a process.
#[cfg(target_os = "linux")]
fn of(files: &[PathBuf], process: u32) -> &std::path::Path {
    let prefix = format!("{process}-");
    files.iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&prefix)).unwrap()
}

#[cfg(target_os = "linux")]
fn start_of_own() -> String {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    text.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().to_owned()
}
