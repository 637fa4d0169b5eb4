//! Looks at the rules that are there and brings them to what they should be.

#[cfg(test)]
mod tests;

use super::config::{Config, Families};
use super::iptables::{self, Verb, Words};
use super::rule::{Family, Rule};
use super::state::State;
use super::tools::{ToolError, Tools};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What to do about rules of an earlier run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Intent {
    /// Leave them if they are equal; if not, it is an error.
    Apply,
    /// Put ours in their place if they differ.
    Reconcile,
    /// Add ours, whatever is there.
    Force,
    /// Take them away.
    Cleanup,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    /// Rules of other settings are in place.
    #[error(
        "there are chains ISTIO_… of another run whose rules differ, and nothing was changed; replace them with --reconcile, or take them away with --cleanup-only"
    )]
    Drift,
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
}

/// What there was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Found {
    /// Rules, ours or others', where ours are to be.
    residue: bool,
    /// Something of ours is missing, or there is too much of it.
    differs: bool,
    /// Chains that are to be made.
    in_the_way: bool,
}

pub(super) fn apply(
    config: &Config,
    rules: &[Rule],
    intent: Intent,
    tools: &mut dyn Tools,
) -> Result<(), ApplyError> {
    let mut work = Work { rules, families: families(config), tools };
    let found = work.look();
    tracing::info!(?found, ?intent, "rules that are there");
    let done = match intent {
        Intent::Cleanup => {
            work.remove(found);
            Ok(())
        }
        Intent::Reconcile if found.residue && found.differs => work.exchange(found),
        Intent::Apply | Intent::Reconcile if !found.differs => {
            tracing::info!("the rules are in place");
            Ok(())
        }
        Intent::Apply | Intent::Reconcile if found.in_the_way => Err(ApplyError::Drift),
        Intent::Apply | Intent::Reconcile | Intent::Force => work.add(found),
    };
    work.tell();
    done
}

fn families(config: &Config) -> &'static [Family] {
    match config.families {
        Families::V4 => &FAMILIES[..1],
        Families::Both => &FAMILIES,
    }
}

struct Work<'a> {
    rules: &'a [Rule],
    /// Those that get rules.
    families: &'static [Family],
    tools: &'a mut dyn Tools,
}

impl Work<'_> {
    fn look(&mut self) -> Found {
        let mut all = Found::default();
        for family in FAMILIES {
            let planned = self.families.contains(&family);
            let found = match self.tools.save(family) {
                Ok(text) => self.compare(family, &State::parse(&text)),
                Err(error) => {
                    tracing::debug!(%error, "cannot look at the rules: taken as if there were none");
                    Found { differs: planned, ..Found::default() }
                }
            };
            all.residue |= found.residue && planned;
            all.differs |= found.differs;
            all.in_the_way |= found.in_the_way;
        }
        // Without a rule anywhere all of ours are missing.
        Found { differs: all.differs || !all.residue, ..all }
    }

    fn compare(&mut self, family: Family, state: &State) -> Found {
        let rules: &[Rule] = if self.families.contains(&family) { self.rules } else { &[] };
        let same = state.has_the_shape_of(rules, family)
            && iptables::checks(rules, family).iter().all(|words| self.tools.call(family, words).is_ok());
        Found { residue: !state.is_empty(), differs: !same, in_the_way: state.has_chain_of(rules, family) }
    }

    /// On an error everything is as before, unless our own chains were there.
    fn add(&mut self, found: Found) -> Result<(), ApplyError> {
        for family in self.families {
            if let Err(error) = self.tools.restore(*family, &iptables::restore(self.rules, *family)) {
                if !found.in_the_way {
                    self.undo();
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Nothing passes between the old rules and the new ones.
    fn exchange(&mut self, found: Found) -> Result<(), ApplyError> {
        // One that died here may have left its own.
        self.try_all(&iptables::barrier(Verb::Delete));
        let closed = self.close();
        let done = match closed {
            Ok(()) => {
                self.remove(found);
                self.add(Found::default())
            }
            Err(error) => Err(error.into()),
        };
        self.try_all(&iptables::barrier(Verb::Delete));
        done
    }

    fn close(&mut self) -> Result<(), ToolError> {
        for family in self.families {
            for words in iptables::barrier(Verb::Add) {
                self.tools.call(*family, &words)?;
            }
        }
        Ok(())
    }

    /// First what these settings would have made, then whatever else is ours.
    fn remove(&mut self, found: Found) {
        self.undo();
        if !found.residue && !found.in_the_way {
            return;
        }
        for family in FAMILIES {
            let left = self.tools.save(family).map(|text| State::parse(&text).leftovers());
            for words in left.unwrap_or_default().removal() {
                self.attempt(family, &words);
            }
        }
    }

    fn undo(&mut self) {
        for family in self.families {
            for words in iptables::undo(self.rules, *family) {
                self.attempt(*family, &words);
            }
        }
    }

    fn try_all(&mut self, calls: &[Words]) {
        for family in self.families {
            for words in calls {
                self.attempt(*family, words);
            }
        }
    }

    /// What is not there cannot be taken away, and need not.
    fn attempt(&mut self, family: Family, words: &Words) {
        if let Err(error) = self.tools.call(family, words) {
            tracing::debug!(%error, "not there");
        }
    }

    fn tell(&mut self) {
        for family in self.families {
            if let Ok(text) = self.tools.save(*family) {
                tracing::info!(?family, rules = text, "rules now");
            }
        }
    }
}
