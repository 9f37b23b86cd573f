//! How many threads this machine has room for: the physical cores this process may run on, no more than
//! its share of processor time. Reads a few small files, once.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;

/// Physical cores in the affinity mask, limited by the quota of the control group; at least 1.
pub(super) fn count() -> usize {
    // Knows the affinity mask and the quotas of both generations of control groups.
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    match allowed_processors() {
        Some(processors) => {
            allowed.min(physical(&processors, Path::new("/sys/devices/system/cpu")))
        }
        None => allowed,
    }
    .max(1)
}

/// Numbers of the processors that this process may use.
fn allowed_processors() -> Option<Vec<usize>> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    parse_list(list.trim())
}

/// `0-3,8,10-11` as numbers.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // A mask names thousands of processors at most; anything else is not a mask.
        if last < first || last > 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Cores that `processors` belong to. A processor whose siblings are not listed counts as a core.
fn physical(processors: &[usize], root: &Path) -> usize {
    processors
        .iter()
        .map(|processor| {
            let topology = root.join(format!("cpu{processor}/topology"));
            ["core_cpus_list", "thread_siblings_list"]
                .iter()
                .find_map(|name| std::fs::read_to_string(topology.join(name)).ok())
                .map_or_else(|| processor.to_string(), |text| text.trim().to_owned())
        })
        .collect::<BTreeSet<_>>()
        .len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-99999999"), None);
        assert_eq!(parse_list("x"), None);
    }

    #[test]
    fn siblings_count_once() {
        let root = tempfile::tempdir().unwrap();
        for (processor, siblings) in [(0, "0,4"), (1, "1,5"), (4, "0,4"), (5, "1,5")] {
            let folder = root.path().join(format!("cpu{processor}/topology"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("core_cpus_list"), format!("{siblings}\n")).unwrap();
        }
        assert_eq!(physical(&[0, 1, 4, 5], root.path()), 2);
        assert_eq!(physical(&[0, 1, 4], root.path()), 2);
        assert_eq!(physical(&[0, 4], root.path()), 1);
        // No topology: each is taken for a core.
        assert_eq!(physical(&[7, 8], root.path()), 2);
    }

    #[test]
    fn there_is_always_one() {
        assert!(count() >= 1);
    }
}
