//! What the kernel says about this process, under the names that every client library of Prometheus uses.

use std::io::Write;

/// Linux' unit of processor time in `/proc`, the same on all its machines.
const TICKS_PER_SECOND: f64 = 100.0;

/// Writes what can be found out and leaves out the rest.
pub(super) fn write(prefix: &str, out: &mut Vec<u8>) {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    let page = rustix::param::page_size();
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let Some(process) = Process::read(&stat, page) else { return };
    let lines = [
        ("cpu_seconds_total", "counter", "Processor time used.", process.cpu_seconds),
        ("resident_memory_bytes", "gauge", "Memory in use.", process.resident as f64),
        ("virtual_memory_bytes", "gauge", "Addresses in use.", process.addresses as f64),
        ("open_fds", "gauge", "Open files and sockets.", open as f64),
    ];
    for (name, kind, help, value) in lines {
        let name = format!("{prefix}_process_{name}");
        // Writing into memory does not fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
}

#[derive(PartialEq, Debug)]
struct Process {
    cpu_seconds: f64,
    resident: usize,
    addresses: usize,
}

impl Process {
    /// See proc_pid_stat(5). The name, which may hold anything, ends at the last parenthesis.
    fn read(stat: &str, page: usize) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        Some(Self {
            cpu_seconds: ticks / TICKS_PER_SECOND,
            addresses: fields.get(20)?.parse().ok()?,
            resident: fields.get(21)?.parse::<usize>().ok()?.checked_mul(page)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Process;

    #[test]
    fn names_may_hold_anything() {
        let stat =
            "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 3 0 99 8192 3 18446744073709551615";
        let read = Process { cpu_seconds: 2.0, resident: 12_288, addresses: 8_192 };
        assert_eq!(Process::read(stat, 4_096), Some(read));
        assert_eq!(Process::read("nonsense", 4_096), None);
    }
}
