//! The size of the system's RAM, and the part that this process may use.

use std::fs::read_to_string;
use std::path::Path;

/// The amount of RAM in the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Total RAM, in bytes.
    pub total_bytes: u64,
    /// Bytes that a program can allocate before the system swaps, or kills processes.
    pub available_bytes: u64,
}

impl SystemMemory {
    /// Returns the machine's RAM, or the limits of the process's control groups (cgroups) if they are
    /// smaller. Returns `None` if Linux does not report the RAM, and on other systems.
    #[must_use]
    pub fn of_linux() -> Option<Self> {
        let text = read_to_string("/proc/meminfo").ok()?;
        let field = |name| kib_field(&text, name).map(|kib| kib.saturating_mul(1024));
        let machine = Self { total_bytes: field("MemTotal:")?, available_bytes: field("MemAvailable:")? };
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        let path = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
        let root = Path::new("/sys/fs/cgroup");
        let own = root.join(path.trim_start_matches('/'));
        let limits = own.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(limit);
        let first_version = limited(&root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes");
        Some(limits.chain(first_version).fold(machine, |least, limit| Self {
            total_bytes: least.total_bytes.min(limit.total_bytes),
            available_bytes: least.available_bytes.min(limit.available_bytes),
        }))
    }

    /// Returns the number of bytes to offer for allocation: the available bytes, less a reserve for other
    /// programs (a sixteenth of all RAM, at most 2 GiB).
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        let head_room = (self.total_bytes / 16).min(2 << 30);
        self.available_bytes.saturating_sub(head_room)
    }
}

/// Parses the number in a line such as `Name: 123 kB`.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim_end().parse().ok()
}

/// Returns the memory limit of a control group (cgroup) and the bytes free below it, if it has a limit.
fn limit(folder: &Path) -> Option<SystemMemory> {
    let mut limit = limited(folder, "memory.max", "memory.current")?;
    // Linux counts cached files as used, but frees their memory if needed. So count it as available.
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok());
    limit.available_bytes = limit.total_bytes.min(limit.available_bytes.saturating_add(cached.unwrap_or(0)));
    Some(limit)
}

/// Reads a control group's limit from one file and its usage from another, and returns the limit and the
/// difference.
fn limited(folder: &Path, limit: &str, used: &str) -> Option<SystemMemory> {
    let number = |name| read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let total_bytes = number(limit)?;
    Some(SystemMemory { total_bytes, available_bytes: total_bytes.saturating_sub(number(used)?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_linux_are_read() {
        assert_eq!(kib_field("MemTotal:       24 kB\nMemFree: 7 kB\n", "MemFree:"), Some(7));
        assert_eq!(kib_field("MemTotal:       24 kB\n", "MemAvailable:"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "Miri hides the files of the system")]
    fn the_machine_has_memory() {
        let ram = SystemMemory::of_linux().unwrap();
        assert!(ram.total_bytes >= ram.available_bytes && ram.available_bytes > 0);
        assert!(ram.usable_bytes() < ram.total_bytes);
    }
}
