use std::process::Command;

use super::{ToolError, Tools, WAIT_FOR_LOCK, run};
use crate::redirect::iptables::Words;
use crate::redirect::rule::Family;

/// The first version whose restore waits for a lock.
const FIRST_WITH_LOCK: [u32; 3] = [1, 6, 2];
/// What iptables-save prints at least if there is a rule.
const LINES_WITH_RULES: usize = 3;

/// iptables has two ways into the kernel, whose rules do not see each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::redirect) enum Kind {
    Legacy,
    Nft,
}

/// A program that was tried.
#[derive(Clone, Debug)]
struct Binary {
    name: String,
    /// Must it wait for others?
    waits: bool,
    has_rules: bool,
}

/// The programs of this machine.
pub(in crate::redirect) struct Real {
    v4: Binary,
    /// A machine that has no addresses of version 6 may have no program for it.
    v6: Result<Binary, ToolError>,
    lock_file: Option<String>,
}

impl Real {
    /// Finds programs that work. `lock_file` takes the place of the lock that the whole node shares.
    pub(in crate::redirect) fn find(
        forced: Option<Kind>,
        lock_file: Option<String>,
    ) -> Result<Self, ToolError> {
        Ok(Self { v4: choose(forced, Family::V4)?, v6: choose(forced, Family::V6), lock_file })
    }

    /// Fails if there is no program for version 6.
    pub(in crate::redirect) fn needing_v6(self) -> Result<Self, ToolError> {
        Ok(Self { v6: Ok(self.v6?), ..self })
    }

    fn command(&self, family: Family, ending: &str) -> Result<(Command, bool), ToolError> {
        let binary = match (family, &self.v6) {
            (Family::V4, _) => &self.v4,
            (Family::V6, Ok(binary)) => binary,
            (Family::V6, Err(error)) => {
                return Err(ToolError::None { family, reasons: vec![error.to_string()] });
            }
        };
        let mut command = Command::new(format!("{}{ending}", binary.name));
        if let Some(file) = self.lock_file.as_ref().filter(|_| binary.waits) {
            command.env("XTABLES_LOCKFILE", file);
        }
        Ok((command, binary.waits))
    }
}

impl Tools for Real {
    fn save(&mut self, family: Family) -> Result<String, ToolError> {
        run(&mut self.command(family, "-save")?.0, "")
    }

    fn restore(&mut self, family: Family, text: &str) -> Result<(), ToolError> {
        let (mut command, waits) = self.command(family, "-restore")?;
        // What others have in the same tables stays.
        command.arg("--noflush").args(waits.then_some(WAIT_FOR_LOCK));
        tracing::info!(?command, rules = text, "restoring");
        run(&mut command, text).map(|_| ())
    }

    fn call(&mut self, family: Family, words: &Words) -> Result<(), ToolError> {
        let (mut command, waits) = self.command(family, "")?;
        run(command.args(words).args(waits.then_some(WAIT_FOR_LOCK)), "").map(|_| ())
    }
}

/// Legacy if it has rules here, else nft, else whatever is called iptables: rules must go where the others are.
fn choose(forced: Option<Kind>, family: Family) -> Result<Binary, ToolError> {
    let stem = super::plain(family);
    let [legacy, nft] = ["legacy", "nft"].map(|kind| format!("{stem}-{kind}"));
    match forced {
        Some(Kind::Legacy) => return probe(&legacy),
        Some(Kind::Nft) => return probe(&nft),
        None => (),
    }
    let mut reasons = Vec::new();
    match probe(&legacy) {
        Ok(binary) if binary.has_rules => return Ok(binary),
        Ok(_) => (),
        Err(error) => reasons.push(error.to_string()),
    }
    for name in [nft.as_str(), stem] {
        match probe(name) {
            Ok(binary) => return Ok(binary),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(ToolError::None { family, reasons })
}

/// Is it there, and can the kernel do what it asks? A rule that no packet fits comes and goes.
fn probe(name: &str) -> Result<Binary, ToolError> {
    let save = format!("{name}-save");
    let rules = run(&mut Command::new(&save), "")?;
    // Very old ones know no flags, and these use no lock.
    let version = run(Command::new(&save).arg("--version"), "").unwrap_or_default();
    let waits = !version.contains("nf_tables") && number(&version).is_some_and(|v| v >= FIRST_WITH_LOCK);
    for verb in ["-A", "-D"] {
        let words = ["-t", "nat", verb, "INPUT", "-p", "255", "-j", "RETURN"];
        run(Command::new(name).args(words).args(waits.then_some(WAIT_FOR_LOCK)), "")?;
    }
    Ok(Binary { name: name.to_owned(), waits, has_rules: rules.lines().count() >= LINES_WITH_RULES })
}

/// `iptables-save v1.8.9 (nf_tables)` has the number 1.8.9.
fn number(version: &str) -> Option<[u32; 3]> {
    let word = version.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut parts = word.split('.').map(|part| part.parse().ok());
    let mut next = || parts.next().unwrap_or(Some(0));
    Some([next()?, next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(number("iptables-save v1.8.9 (nf_tables)\n"), Some([1, 8, 9]));
        assert_eq!(number("iptables v1.10 (legacy)"), Some([1, 10, 0]));
        assert!(number("v1.10.0") > number("v1.8.9"));
        assert_eq!(number("iptables-save: unknown option"), None);
        assert_eq!(number("v1.x"), None);
    }
}
