//! How much RAM can be page-locked without harm.

/// Bytes of RAM that can be taken now, as far as the system tells: what the kernel estimates to be available,
/// and what the control group of the process has left, if it has a limit.
///
/// Page-locked memory cannot be swapped out. A system asked for more than it has may end a process instead of
/// refusing, so the question is asked here first. `None` where the system does not tell; then the driver
/// decides.
pub(crate) fn available_bytes() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = |limit: &str, used: &str| Some(number(limit)?.saturating_sub(number(used)?));
    let version_2 = group("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    let version_1 =
        group("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    [system, version_2, version_1].into_iter().flatten().min()
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_of_the_kernel_is_read() {
        let text = "MemTotal:       16316412 kB\nMemFree:          123 kB\nMemAvailable:    8000 kB\n";
        assert_eq!(available_in(text), Some(8000 << 10));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
    }
}
