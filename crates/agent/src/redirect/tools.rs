//! The programs that know the kernel's rules, and a stand-in that only writes down what they would be asked.

mod binary;

use std::io::{self, Write as _};
use std::process::{Command, Output, Stdio};

use super::iptables::Words;
use super::rule::Family;
pub(super) use binary::{Kind, Real};

/// As long as Istio waits for others who change rules.
const WAIT_FOR_LOCK: &str = "--wait=30";

#[derive(Debug, thiserror::Error)]
pub(super) enum ToolError {
    /// There is no such program, or it may not be run.
    #[error(
        "cannot run {program}: {source}; install it (packages iptables, nftables), or choose another with --force-iptables-binary or --native-nftables"
    )]
    Start { program: String, source: io::Error },
    /// The program did not do what it was asked.
    #[error("{program} failed: {said}")]
    Failed { program: String, said: String },
    /// None of the programs can be used.
    #[error("no iptables for {family:?} can be used, and nothing was changed ({}); changing rules needs the capabilities NET_ADMIN and NET_RAW", .reasons.join("; "))]
    None { family: Family, reasons: Vec<String> },
}

/// Who is asked to look at rules and to change them.
pub(super) trait Tools {
    fn save(&mut self, family: Family) -> Result<String, ToolError>;
    /// All of a table's rules or none of them.
    fn restore(&mut self, family: Family, text: &str) -> Result<(), ToolError>;
    fn call(&mut self, family: Family, words: &Words) -> Result<(), ToolError>;
}

/// Writes down what would be asked.
#[derive(Default)]
pub(super) struct DryRun {
    pub(super) lines: Vec<String>,
}

impl Tools for DryRun {
    /// As if there were no rules.
    fn save(&mut self, family: Family) -> Result<String, ToolError> {
        self.lines.push(format!("{}-save", plain(family)));
        Ok(String::new())
    }

    fn restore(&mut self, _family: Family, text: &str) -> Result<(), ToolError> {
        self.lines.extend(text.lines().map(str::to_owned));
        Ok(())
    }

    fn call(&mut self, family: Family, words: &Words) -> Result<(), ToolError> {
        self.lines.push(format!("{} {}", plain(family), words.join(" ")));
        Ok(())
    }
}

fn plain(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Runs a transaction of nftables: all of it or nothing.
pub(super) fn nft(text: &str) -> Result<(), ToolError> {
    run(Command::new("nft").args(["-f", "-"]), text).map(|_| ())
}

/// Names of the tables that nftables have for both families.
pub(super) fn nft_tables() -> Result<String, ToolError> {
    run(Command::new("nft").args(["list", "tables", "inet"]), "")
}

/// What the program printed. What it says of an error comes with the error.
fn run(command: &mut Command, input: &str) -> Result<String, ToolError> {
    let program = command.get_program().to_string_lossy().into_owned();
    tracing::debug!(?command, "running");
    let Output { status, stdout, stderr } =
        output(command, input).map_err(|source| ToolError::Start { program: program.clone(), source })?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr).trim().replace('\n', "; ");
    let said = if said.is_empty() { status.to_string() } else { format!("{said} ({status})") };
    Err(ToolError::Failed { program, said })
}

fn output(command: &mut Command, input: &str) -> io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    // Who ends before reading everything says why in its status.
    if output.status.success() {
        written?;
    }
    Ok(output)
}
