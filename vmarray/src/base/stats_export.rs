//! Statistics for other processes of the same user: each publishing process writes them to a private file in
//! a memory file system, twice a second.
//!
//! A separate thread reads the arrays' counters; accesses do no extra work. The thread replaces the file as a
//! whole, so a reader never sees half of it. Readers limit the bytes that they read.

mod published;

use std::io;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};
use vmarray_support::private_dir;
use vmarray_support::private_dir::PrivateDir;

use crate::base::trace;

pub use published::{PublishedArray, PublishedChannel, PublishedProgram};

/// The environment variable by which a process publishes all arrays.
const VARIABLE: &str = "VMARRAY_PUBLISH";
/// The period in which the file is written.
const PERIOD: Duration = Duration::from_millis(500);
/// The maximum size of a file. Arrays beyond it are only counted.
const BYTES_MAX: usize = 256 << 10;
/// The maximum number of files that a reader checks.
const FILES_MAX: usize = 256;
/// If the system does not report processes, a process counts as ended this time after its last update.
const SILENT: Duration = Duration::from_secs(10);

/// A function that queries an array. It is not called after the array's [`Publication`] is dropped.
type Ask = Box<dyn Fn() -> PublishedArray + Send>;

#[derive(Default)]
struct Publisher {
    arrays: Vec<(u64, Ask)>,
    /// Number of arrays published so far, which numbers unnamed ones.
    begun: u64,
    /// The folder and the name of the file, once it exists.
    file: Option<(PrivateDir, String)>,
    has_thread: bool,
    /// True if the library has logged a failure.
    has_failed: bool,
}

static PUBLISHER: LazyLock<Mutex<Publisher>> = LazyLock::new(Mutex::default);
/// Notified when the program builds or drops an array.
static CHANGED: Condvar = Condvar::new();

/// The registration of an array for publishing, which the drop ends.
#[derive(Debug)]
pub(crate) struct Publication(u64);

/// Returns true if the environment requests that the process publishes all arrays.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|word| !word.is_empty() && word != "0")
}

impl Publication {
    /// From now on publishes the statistics that `ask` returns; an array without a name gets a number.
    pub(crate) fn begin(ask: impl Fn() -> PublishedArray + Send + 'static) -> Self {
        let mut publisher = PUBLISHER.lock();
        publisher.begun += 1;
        let number = publisher.begun;
        let named = move || {
            let mut array = ask();
            if array.name.is_empty() {
                array.name = format!("array {number}");
            }
            array
        };
        publisher.arrays.push((number, Box::new(named)));
        if !publisher.has_thread {
            // If the thread cannot start, only calls of `publish_now` update the file.
            let thread = std::thread::Builder::new().name("vmarray-publish".into()).spawn(keep_publishing);
            publisher.has_thread = thread.is_ok();
        }
        CHANGED.notify_one();
        Self(number)
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        let mut publisher = PUBLISHER.lock();
        publisher.arrays.retain(|(number, _)| *number != self.0);
        if publisher.arrays.is_empty() {
            publisher.end();
        }
        CHANGED.notify_one();
    }
}

/// Writes the published statistics of this process at once, in addition to the two writes per second. Has no
/// effect if no array is [published](crate::Builder::publish).
pub fn publish_now() {
    publish(&mut PUBLISHER.lock());
}

/// Writes the statistics to the file. Logs the first failure, without holding the lock.
fn publish(publisher: &mut MutexGuard<'_, Publisher>) {
    let failure = if publisher.arrays.is_empty() { None } else { publisher.write().err() };
    if let Some(error) = failure.filter(|_| !publisher.has_failed) {
        publisher.has_failed = true;
        MutexGuard::unlocked(publisher, || trace::not_published(&error));
    }
}

fn keep_publishing() {
    let mut publisher = PUBLISHER.lock();
    while !publisher.arrays.is_empty() {
        publish(&mut publisher);
        wait(&mut publisher);
    }
    publisher.has_thread = false;
}

fn wait(publisher: &mut MutexGuard<'_, Publisher>) {
    // Wait for the whole period, although other threads may build or drop arrays and notify.
    let until = std::time::Instant::now() + PERIOD;
    while !publisher.arrays.is_empty() && !CHANGED.wait_until(publisher, until).timed_out() {}
}

impl Publisher {
    fn write(&mut self) -> io::Result<()> {
        let process = std::process::id();
        if self.file.is_none() {
            let folder = PrivateDir::create(&folder())?;
            read_all(&folder);
            self.file = Some((folder, file_name(process, started(process).unwrap_or(0))));
        }
        let mut program = PublishedProgram {
            process,
            name: std::env::current_exe()
                .ok()
                .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .unwrap_or_default(),
            at: now(),
            ..PublishedProgram::default()
        };
        program.arrays = self.arrays.iter().map(|(_, ask)| ask()).collect();
        let text = published::print(program, BYTES_MAX);
        match &self.file {
            Some((folder, name)) => folder.write(name, &[text.as_bytes()]),
            None => Ok(()),
        }
    }

    /// Removes the file of this process.
    fn end(&mut self) {
        if let Some((folder, name)) = &self.file {
            // Ignore the error, because the file may not exist.
            let _ = folder.remove(name);
        }
    }
}

/// Returns the running programs of this user that publish statistics, in the order of process IDs. The call
/// removes the files of programs that have ended, and ignores files with invalid contents.
#[must_use]
pub fn programs() -> Vec<PublishedProgram> {
    PrivateDir::open(&folder()).map(|folder| read_all(&folder)).unwrap_or_default()
}

fn folder() -> PathBuf {
    private_dir::runtime_path("vmarray")
}

fn read_all(folder: &PrivateDir) -> Vec<PublishedProgram> {
    let Ok(entries) = std::fs::read_dir(folder.path()) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let named = names.filter_map(|name| Some((process_of(&name)?, name)));
    let read = |((process, start), name): ((u32, u64), String)| {
        let bytes = folder.read(&name, BYTES_MAX as u64).ok();
        let program = bytes.and_then(|bytes| published::parse(std::str::from_utf8(&bytes).ok()?));
        let runs = match started(process) {
            Some(running) => running == start,
            // If the system reports the start of this process but not of the other one, the other one has
            // ended. If the system reports no starts at all, decide by the file's age.
            None if started(std::process::id()).is_some() => false,
            None => program.as_ref().is_some_and(|program| now().saturating_sub(program.at) < SILENT),
        };
        if !runs {
            // Ignore an error: another reader may have removed the file first.
            let _ = folder.remove(&name);
            return None;
        }
        program.filter(|program| program.process == process)
    };
    let mut programs: Vec<_> = named.take(FILES_MAX).filter_map(read).collect();
    programs.sort_by_key(|program| program.process);
    programs
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the file name of a process. The start time distinguishes a later process with the same id.
fn file_name(process: u32, start: u64) -> String {
    format!("{process}-{start}.stats")
}

fn process_of(name: &str) -> Option<(u32, u64)> {
    let (process, start) = name.strip_suffix(".stats")?.split_once('-')?;
    let numbers = (process.parse().ok()?, start.parse().ok()?);
    (file_name(numbers.0, numbers.1) == name).then_some(numbers)
}

/// Returns the start time of a process, by the clock of the system. Returns `None` if the process does not
/// exist or is a zombie, or if the system does not report it.
fn started(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field, in brackets, is a name with any characters. So parse after the last bracket.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_over = matches!(fields.next()?, "Z" | "X");
    let start = fields.nth(18)?.parse().ok()?;
    (!is_over).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_distinguish_processes() {
        assert_eq!(process_of(&file_name(12, 345)), Some((12, 345)));
        for other in ["12.stats", "-1.stats", "12-345", "012-345.stats", "+12-345.stats", "a-b.stats", ""] {
            assert_eq!(process_of(other), None, "{other}");
        }
    }

    #[test]
    fn files_of_processes_that_do_not_run_are_removed_and_others_skipped() {
        let path = std::env::temp_dir().join(private_dir::random_name());
        let folder = PrivateDir::create(&path).unwrap();
        let process = std::process::id();
        let start = started(process).unwrap_or(0);
        let program = |process| PublishedProgram { process, at: now(), ..PublishedProgram::default() };
        let write = |name: &str, process| {
            folder.write(name, &[published::print(program(process), BYTES_MAX).as_bytes()]).unwrap();
        };
        write(&file_name(process, start), process);
        assert_eq!(read_all(&folder).len(), 1);
        // Write files of another process that had the same number, and of a number that no process has.
        if start > 0 {
            write(&file_name(process, start + 1), process);
            write(&file_name(u32::MAX, 7), u32::MAX);
            folder.write(&file_name(u32::MAX, 8), &[b"garbage"]).unwrap();
        }
        // The reader ignores a file with another name, and a file that names another process.
        write("notes.stats", process);
        assert_eq!(read_all(&folder).len(), 1);
        let mut names: Vec<_> =
            std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [file_name(process, start).as_str(), "notes.stats"]);
        for garbage in [&b"garbage"[..], b"", &[0xFF; 100], &vec![b'x'; BYTES_MAX + 1]] {
            folder.write(&file_name(process, start), &[garbage]).unwrap();
            assert_eq!(read_all(&folder), []);
        }
        write(&file_name(process, start), process + 1);
        assert_eq!(read_all(&folder), [], "the file of another process");
        std::fs::remove_dir_all(path).unwrap();
    }
}
