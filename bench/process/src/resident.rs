//! Resident bytes of a process, by `/proc/PID/status`.

use std::{fs, io};

/// Resident bytes of the process `pid` now, without the kernel memory of its sockets.
pub(crate) fn of(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    bytes(&status).ok_or_else(|| io::Error::other("no resident bytes in /proc/PID/status"))
}

fn bytes(status: &str) -> Option<u64> {
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(name, _)| *name == "VmRSS")?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_kb_means_kibibytes() {
        assert_eq!(bytes("VmHWM:\t   9 kB\nVmRSS:\t     40 kB\n"), Some(40 << 10));
    }

    #[test]
    fn a_process_that_has_ended_has_no_figure() {
        assert_eq!(bytes("Name:\tgone\nState:\tZ (zombie)\n"), None);
    }
}
