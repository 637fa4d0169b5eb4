//! What only the operating system can do. The one file with unsafe code.
#![allow(
    unsafe_code,
    reason = "a child that outlives a killed agent would go on serving with nobody to watch it; the standard library has no safe way to say so"
)]

use std::io;

use tokio::process::Command;

/// Has the kernel kill the child when the thread that starts it dies. Start it from a thread that lives as long as the
/// agent does.
#[cfg(target_os = "linux")]
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let ask = move || {
        // SAFETY: both calls are safe to make between fork and exec: they allocate nothing and take no locks.
        let (asked, now) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
        if asked != 0 {
            return Err(io::Error::last_os_error());
        }
        // The agent may have died before the kernel was asked.
        if u32::try_from(now) != Ok(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    };
    // SAFETY: the closure only makes the calls above.
    unsafe {
        command.pre_exec(ask);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn die_with_parent(_command: &mut Command) {}

/// SIGTERM to a child that was not waited for yet, so that its number cannot have become another's.
pub(crate) fn stop(pid: u32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: kill takes two numbers and touches no memory.
    match unsafe { libc::kill(pid, libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
