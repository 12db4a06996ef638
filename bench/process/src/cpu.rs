//! Processor seconds of a process, in user space and in the kernel, by `/proc/PID/stat`.

use std::{fs, io};

/// Clock ticks in a second of `/proc/PID/stat`: the same on every Linux.
const TICKS_PER_SEC: f64 = 100.0;

/// Processor seconds of the process `pid` since it started.
///
/// # Errors
///
/// When there is no such process.
pub fn of(pid: u32) -> io::Result<f64> {
    secs(&pid.to_string(), OWN)
}

/// Processor seconds of this process.
///
/// # Errors
///
/// Where there is no `/proc`.
pub fn own() -> io::Result<f64> {
    secs("self", OWN)
}

/// Processor seconds of the children of this process that have ended and been waited for.
///
/// # Errors
///
/// Where there is no `/proc`.
pub fn of_ended_children() -> io::Result<f64> {
    secs("self", ENDED_CHILDREN)
}

/// The first of two fields, counted from the one after the name.
const OWN: usize = 11;
const ENDED_CHILDREN: usize = 13;

fn secs(process: &str, field: usize) -> io::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let ticks = ticks(&stat, field);
    let ticks = ticks.ok_or_else(|| io::Error::other("no processor time in /proc/PID/stat"))?;
    Ok(ticks / TICKS_PER_SEC)
}

fn ticks(stat: &str, field: usize) -> Option<f64> {
    // The second field is the program's name in brackets and may hold spaces and brackets.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(field);
    let user: f64 = fields.next()?.parse().ok()?;
    let kernel: f64 = fields.next()?.parse().ok()?;
    Some(user + kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) R 1 7 7 0 -1 0 0 0 0 0 30 12 5 4 20 0";
        assert_eq!(ticks(stat, OWN), Some(42.0));
        assert_eq!(ticks(stat, ENDED_CHILDREN), Some(9.0));
    }

    #[test]
    fn a_line_without_times_has_no_figure() {
        assert_eq!(ticks("7 (a) R 1", OWN), None);
    }
}
