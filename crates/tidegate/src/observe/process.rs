//! Resource usage of this process, from Linux's procfs. On other systems, and if a file cannot be read, the figure is
//! left out rather than invented.

use std::fs;

use super::exposition::Exposition;

/// `USER_HZ`: fixed by the kernel's interface, whatever its own tick is.
const TICKS_PER_SEC: f64 = 100.0;

/// Writes the usual `process_*` families.
pub fn expose(page: &mut Exposition) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(secs) = cpu_secs(&stat) {
        page.counter("process_cpu_seconds_total", "User and system CPU time spent in seconds.", secs);
    }
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Resident memory size in bytes.", kib_field(&status, "VmRSS:")),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", kib_field(&status, "VmSize:")),
        ("process_threads", "Number of OS threads in the process.", field(&status, "Threads:")),
        ("process_open_fds", "Number of open file descriptors.", open_fds()),
        ("process_max_fds", "Maximum number of open file descriptors.", max_fds().map(|max| max as f64)),
        ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", start_secs(&stat)),
    ] {
        if let Some(value) = value {
            page.gauge(name, help, value);
        }
    }
}

/// The maximum of open files of this process. `None` if unknown.
pub fn max_fds() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn open_fds() -> Option<f64> {
    // The listing itself holds one descriptor.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

/// A field after the command name, which may itself contain blanks and brackets.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(number - 3)?.parse().ok()
}

fn cpu_secs(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS_PER_SEC)
}

fn start_secs(stat: &str) -> Option<f64> {
    let system = fs::read_to_string("/proc/stat").ok()?;
    Some(field(&system, "btime ")? + stat_field(stat, 22)? / TICKS_PER_SEC)
}

fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}

fn kib_field(text: &str, name: &str) -> Option<f64> {
    field(text, name).map(|kib| kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 4 0 1234 0";
        assert_eq!(cpu_secs(stat), Some(2.0));
        assert_eq!(stat_field(stat, 22), Some(1234.0));
    }

    #[test]
    fn a_field_with_a_unit_is_read_as_bytes() {
        assert_eq!(kib_field("VmSize:\t 9 kB\nVmRSS:\t   12 kB\n", "VmRSS:"), Some(12_288.0));
        assert_eq!(kib_field("", "VmRSS:"), None);
    }
}
