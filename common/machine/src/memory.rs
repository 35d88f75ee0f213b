//! The memory that this process can allocate before the kernel must kill a process.

use std::fs;
use std::path::Path;

use crate::system;

/// Returns the bytes that this process can still allocate: the minimum of the kernel's estimate for the
/// machine, the limits of its control groups, and its own limit (`ulimit -v`). Returns `None` if the kernel
/// reports none of them, as on Windows.
#[must_use]
pub fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").ok();
    let groups = groups.and_then(|text| of_groups(Path::new("/sys/fs/cgroup"), &text));
    let own = system::own_memory_limit();
    [machine, groups, own].into_iter().flatten().min()
}

/// Parses the text of `/proc/meminfo`.
fn of_machine(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the free memory of the control groups (version 2) in the text of `/proc/self/cgroup` and of their
/// ancestors.
fn of_groups(root: &Path, text: &str) -> Option<u64> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(path);
    group.ancestors().take_while(|group| group.starts_with(root)).filter_map(of_group).min()
}

fn of_group(group: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // The kernel first frees file pages that have not been used lately.
    let cache = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_it_in_kib() {
        assert_eq!(of_machine("MemTotal: 9 kB\nMemAvailable:     123 kB\n"), Some(123 << 10));
        assert_eq!((of_machine("MemTotal: 9 kB"), of_machine("MemAvailable: much")), (None, None));
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_narrowest_group_counts() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        let write = |group: &str, name: &str, text: &str| {
            fs::create_dir_all(root.join(group)).unwrap();
            fs::write(root.join(group).join(name), text).unwrap();
        };
        assert_eq!(of_groups(root, "0::/a/b\n"), None);
        write("a/b", "memory.max", "max\n");
        write("a/b", "memory.current", "5\n");
        assert_eq!(of_groups(root, "0::/a/b\n"), None, "no limit");
        write("a", "memory.max", "1000\n");
        write("a", "memory.current", "700\n");
        assert_eq!(of_groups(root, "1:cpu:/x\n0::/a/b\n"), Some(300));
        write("a", "memory.stat", "anon 400\ninactive_file 100\n");
        assert_eq!(of_groups(root, "0::/a/b\n"), Some(400));
        assert_eq!(of_groups(root, "0::/\n"), None);
    }
}
