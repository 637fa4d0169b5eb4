//! What the kernel knows about this process, under the names that every dashboard knows.

use std::fmt::Write as _;

/// The kernel counts processor time in hundredths of a second, on every machine that we run on.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE: u64 = 4096;

/// What this process has used and holds; zero where there is no /proc.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
}

impl Usage {
    pub(crate) fn of_this_process() -> Self {
        let resident_bytes = memory().map(|(_, resident)| resident).unwrap_or_default();
        Self { cpu_seconds: cpu_seconds().unwrap_or_default(), resident_bytes }
    }
}

/// What an allocator has, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    /// In use by the program.
    pub allocated: u64,
    /// In pages of which something is in use.
    pub active: u64,
    /// Had from the kernel.
    pub mapped: u64,
}

impl Heap {
    /// Under the names of Go's collector, which dashboards of istiod show.
    pub(super) fn text(self) -> String {
        let mut out = String::new();
        line(&mut out, "go_memstats_alloc_bytes", "gauge", self.allocated);
        line(&mut out, "go_memstats_heap_alloc_bytes", "gauge", self.allocated);
        line(&mut out, "go_memstats_heap_inuse_bytes", "gauge", self.active);
        line(&mut out, "go_memstats_heap_sys_bytes", "gauge", self.mapped);
        out
    }
}

/// Empty where there is no /proc.
pub(super) fn text() -> String {
    let mut out = String::new();
    if let Some(cpu) = cpu_seconds() {
        line(&mut out, "process_cpu_seconds_total", "counter", cpu);
    }
    if let Some((virtual_bytes, resident)) = memory() {
        line(&mut out, "process_virtual_memory_bytes", "gauge", virtual_bytes);
        line(&mut out, "process_resident_memory_bytes", "gauge", resident);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        line(&mut out, "process_open_fds", "gauge", open.count());
    }
    out
}

fn line(out: &mut String, name: &str, kind: &str, value: impl std::fmt::Display) {
    // Writing to memory does not fail.
    let _written = writeln!(out, "# TYPE {name} {kind}\n{name} {value}");
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in brackets, may hold spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_SECOND)
}

fn memory() -> Option<(u64, u64)> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_whitespace().map_while(|field| field.parse::<u64>().ok());
    Some((pages.next()? * PAGE, pages.next()? * PAGE))
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_uses_something() {
        let text = super::text();
        for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            assert!(value.is_some(), "{name} in {text}");
        }
        assert!(text.contains("process_resident_memory_bytes ") && !text.contains("memory_bytes 0\n"));
    }
}
