//! A network of one's own: API servers refuse endpoints on loopback addresses, so what they are told to call must be
//! elsewhere, and still on this machine.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Set for a program that runs in a network of its own.
const INSIDE: &str = "PILOT_INSIDE_NETWORK";
/// Where `ip` is, which not everybody's path has.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Every address of this block is this machine's, once inside.
pub const OURS: &str = "10.0.0.0/8";

/// What is to be done where a program called [`enter`].
#[derive(PartialEq, Eq, Debug)]
pub enum Entered {
    /// Go on: this is the network.
    Inside,
    /// Nothing: the same program has run there, and this is whether it did well.
    Done(bool),
}

/// Why networks cannot be made here.
pub fn why_not() -> Option<String> {
    let mut command = Command::new("unshare");
    command.args(["--net", "ip", "link", "set", "lo", "up"]).env("PATH", PATH).stderr(Stdio::null());
    let made = command.status();
    let is_possible = made.is_ok_and(|status| status.success());
    (!is_possible).then(|| "network namespaces need root, unshare of util-linux, and iproute2".to_owned())
}

/// Runs this program again, with these arguments, in a network of its own, in which all of [`OURS`] leads here.
#[allow(clippy::disallowed_methods, reason = "a program is told by its environment where it runs")]
pub fn enter(arguments: &[String]) -> anyhow::Result<Entered> {
    if std::env::var_os(INSIDE).is_none() {
        let program = std::env::current_exe()?;
        let status = Command::new("unshare")
            .args(["--net", "--"])
            .arg(program)
            .args(arguments)
            .env(INSIDE, "1")
            .status();
        return Ok(Entered::Done(status.context("unshare")?.success()));
    }
    for words in [&["link", "set", "lo", "up"][..], &["route", "add", "local", OURS, "dev", "lo"]] {
        let status = Command::new("ip").args(words).env("PATH", PATH).status().context("ip")?;
        if !status.success() {
            bail!("ip {words:?} ended with {status}");
        }
    }
    Ok(Entered::Inside)
}

/// The same for a test, by its name: true inside, where it is to go on.
pub fn entered_by_test(name: &str) -> anyhow::Result<bool> {
    let words = ["--exact", name, "--nocapture"].map(str::to_owned);
    match enter(&words)? {
        Entered::Inside => Ok(true),
        Entered::Done(true) => Ok(false),
        Entered::Done(false) => bail!("{name} failed in a network of its own: see above"),
    }
}
