//! How much RAM there is.

use std::fs::read_to_string;
use std::path::Path;

/// How much RAM there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// What a program can take before the system starts to swap or to kill, in bytes.
    pub available_bytes: u64,
}

impl SystemMemory {
    /// What Linux tells of the machine, and of the control groups that the process lives in, whichever is
    /// less. `None` where it does not tell, and on other systems.
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

    /// What may be handed out of it: a sixteenth of the machine, at most 2 GiB, is left to everybody else.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        let head_room = (self.total_bytes / 16).min(2 << 30);
        self.available_bytes.saturating_sub(head_room)
    }
}

/// `Name:   123 kB` -> 123.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim_end().parse().ok()
}

/// The limit of a control group, if it has one, and what is left up to there.
fn limit(folder: &Path) -> Option<SystemMemory> {
    let mut limit = limited(folder, "memory.max", "memory.current")?;
    // Cached file contents count as used, but the kernel gives them up first.
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok());
    limit.available_bytes = limit.total_bytes.min(limit.available_bytes.saturating_add(cached.unwrap_or(0)));
    Some(limit)
}

/// The limit of a control group in a file, and how much is left beside what is used according to another.
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
    fn the_machine_has_memory() {
        let ram = SystemMemory::of_linux().unwrap();
        assert!(ram.total_bytes >= ram.available_bytes && ram.available_bytes > 0);
        assert!(ram.usable_bytes() < ram.total_bytes);
    }
}
