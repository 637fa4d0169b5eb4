//! What a process costs, as the kernel tells it.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;

/// Length of a tick of `/proc/PID/stat`: a hundredth of a second on every Linux that is in use.
const TICK: Duration = Duration::from_millis(10);

/// A process that is measured.
pub struct Process {
    pub id: u32,
    /// Nanoseconds of each thread when it was last looked at: threads that ended keep theirs.
    threads: BTreeMap<u32, u64>,
}

/// Processor time of a process, counted in two ways.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cpu {
    /// To the nanosecond, without what ended threads did since they were last seen.
    fine: Duration,
    /// In ticks, with all threads.
    coarse: Duration,
}

impl Cpu {
    /// The fine count, unless threads have ended that it does not know.
    pub fn since(self, before: Self) -> Duration {
        let (fine, coarse) =
            (self.fine.saturating_sub(before.fine), self.coarse.saturating_sub(before.coarse));
        if coarse > fine + 3 * TICK { coarse } else { fine }
    }
}

impl Process {
    pub fn new(id: u32) -> Self {
        Self { id, threads: BTreeMap::new() }
    }

    /// The process on this machine that listens at an address.
    pub fn listening_at(address: SocketAddr) -> anyhow::Result<Self> {
        let inode = listening_socket(address.port())
            .with_context(|| format!("nobody on this machine listens at {address}"))?;
        let wanted = format!("socket:[{inode}]");
        for entry in fs::read_dir("/proc").context("/proc is needed to measure a process")?.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Processes of other users, and those that just ended, cannot be looked into.
            let Ok(files) = fs::read_dir(entry.path().join("fd")) else { continue };
            let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
            if targets.any(|target| target.as_os_str() == wanted.as_str()) {
                return Ok(Self::new(id));
            }
        }
        anyhow::bail!("the process behind {address} belongs to another user: measure it as that user")
    }

    pub fn cpu(&mut self) -> anyhow::Result<Cpu> {
        let id = self.id;
        let gone = || format!("process {id} has ended; look at its log");
        for entry in fs::read_dir(format!("/proc/{id}/task")).with_context(gone)?.flatten() {
            let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
            if let Some(spent) = text.split(' ').next().and_then(|text| text.parse().ok()) {
                self.threads.insert(thread, spent);
            }
        }
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).with_context(gone)?;
        // The name before the last bracket may have anything in it.
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
        let ticks: u32 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u32>().ok()).sum();
        Ok(Cpu { fine: Duration::from_nanos(self.threads.values().sum()), coarse: TICK * ticks })
    }

    /// Memory in use, in bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        self.status("VmRSS:")
    }

    /// The most that was in use since the last [`forget_peak`](Self::forget_peak).
    pub fn peak(&self) -> anyhow::Result<u64> {
        self.status("VmHWM:")
    }

    pub fn forget_peak(&self) -> anyhow::Result<()> {
        let path = format!("/proc/{}/clear_refs", self.id);
        fs::write(&path, "5").with_context(|| format!("{path}: its peak of memory cannot be reset"))
    }

    fn status(&self, field: &str) -> anyhow::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.id))
            .with_context(|| format!("process {} has ended; look at its log", self.id))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        Ok(kilobytes.with_context(|| format!("process {} has no {field}", self.id))? * 1024)
    }
}

/// The inode of the socket that listens at a port.
fn listening_socket(port: u16) -> Option<String> {
    const LISTENS: &str = "0A";
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let text = fs::read_to_string(table).ok()?;
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let found = fields.get(1)?.ends_with(&port) && fields.get(3) == Some(&LISTENS);
            found.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
        })
    })
}

/// Processor time of the whole machine.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Machine {
    pub busy: Duration,
    /// What the machine below took for others.
    pub stolen: Duration,
}

impl Machine {
    pub(crate) fn now() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u32> =
            line.split_ascii_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect();
        let of = |fields: &[usize]| TICK * fields.iter().filter_map(|at| ticks.get(*at)).sum::<u32>();
        // user, nice, system, idle, iowait, irq, softirq, steal
        Self { busy: of(&[0, 1, 2, 5, 6]), stolen: of(&[7]) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::{Cpu, Process};

    #[test]
    fn this_process_is_found_by_where_it_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut process = Process::listening_at(listener.local_addr().unwrap()).unwrap();
        assert_eq!(process.id, std::process::id());
        assert!(process.memory().unwrap() > 0);
        process.forget_peak().unwrap();
        assert!(process.peak().unwrap() > 0);
        process.cpu().unwrap();
        drop(listener);
    }

    #[test]
    fn what_ended_threads_did_is_not_lost() {
        let cpu =
            |fine, coarse| Cpu { fine: Duration::from_millis(fine), coarse: Duration::from_millis(coarse) };
        assert_eq!(cpu(107, 110).since(cpu(100, 100)), Duration::from_millis(7));
        assert_eq!(cpu(107, 300).since(cpu(100, 100)), Duration::from_millis(200));
    }
}
