//! Takes flags out of a command line that nobody knows, so that an old or new template still starts a proxy.

use std::collections::{BTreeMap, BTreeSet};

use clap::Command;

/// Which flags nobody needs to know.
pub struct Lenience<'a> {
    /// The subcommand that does not mind.
    pub subcommand: &'a str,
    /// Words that are never the value of a flag, though the subcommand does not know them either.
    pub words: &'a [&'a str],
}

/// Does a flag take the word after it?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    NextWord,
}

struct Known {
    flags: BTreeMap<String, Takes>,
    words: BTreeSet<String>,
}

/// The command line without unknown flags, and their names. Other subcommands are left alone.
pub fn without_unknown(
    command: Command,
    lenience: &Lenience<'_>,
    argv: Vec<String>,
) -> (Vec<String>, Vec<String>) {
    let known = Known::new(command, lenience);
    let mut kept = Vec::with_capacity(argv.len());
    let mut unknown = Vec::new();
    let mut words = argv.iter().cloned().peekable();
    kept.extend(words.next());
    let mut subcommand = None;
    while let Some(word) = words.next() {
        if word == "--" {
            kept.push(word);
            kept.extend(words);
            break;
        }
        if !is_flag(&word) {
            subcommand.get_or_insert_with(|| word.clone());
            kept.push(word);
            continue;
        }
        let (name, value) =
            word.split_once('=').map_or((&word[..], None), |(name, value)| (name, Some(value)));
        match known.flags.get(name) {
            Some(takes) => {
                let next = (*takes == Takes::NextWord && value.is_none()).then(|| words.next()).flatten();
                kept.push(word);
                kept.extend(next);
            }
            None => {
                unknown.push(name.to_owned());
                if value.is_none() {
                    words.next_if(|next| !is_flag(next) && !known.words.contains(next));
                }
            }
        }
    }
    match subcommand.as_deref() {
        Some(name) if name == lenience.subcommand => (kept, unknown),
        _ => (argv, Vec::new()),
    }
}

/// A lone dash is a word.
fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

impl Known {
    fn new(mut command: Command, lenience: &Lenience<'_>) -> Self {
        // Only then are the flags that are for all subcommands, and help, among those of each.
        command.build();
        let words = lenience.words.iter().map(|word| (*word).to_owned()).collect();
        let mut known = Self { flags: BTreeMap::new(), words };
        known.words.extend(command.get_subcommands().map(|sub| sub.get_name().to_owned()));
        known.add(&command);
        if let Some(lenient) = command.find_subcommand(lenience.subcommand) {
            known.add(lenient);
        }
        known
    }

    fn add(&mut self, command: &Command) {
        for arg in command.get_arguments() {
            let alone = !arg.get_action().takes_values() || arg.is_require_equals_set();
            let takes = if alone { Takes::Nothing } else { Takes::NextWord };
            let long = arg.get_long().map(|name| format!("--{name}"));
            let short = arg.get_short().map(|name| format!("-{name}"));
            self.flags.extend(long.into_iter().chain(short).map(|name| (name, takes)));
            if arg.is_positional() {
                let values = arg.get_possible_values();
                self.words.extend(values.iter().map(|value| value.get_name().to_owned()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::{Lenience, without_unknown};

    fn command() -> Command {
        let switch = |name: &'static str| Arg::new(name).long(name).num_args(0..=1).require_equals(true);
        let proxy = Command::new("proxy")
            .arg(Arg::new("type").value_parser(["sidecar", "router"]))
            .arg(Arg::new("domain").long("domain"))
            .arg(switch("restartEnvoy"));
        Command::new("agent")
            .arg(Arg::new("target").long("log_target").global(true))
            .arg(switch("log_as_json").global(true))
            .subcommand(proxy)
            .subcommand(Command::new("wait"))
    }

    #[test]
    fn unknown_flags_go_with_their_values() {
        for (line, kept, unknown) in [
            ("proxy sidecar", "proxy sidecar", ""),
            ("proxy --domain x sidecar", "proxy --domain x sidecar", ""),
            ("proxy --domain --x sidecar", "proxy --domain --x sidecar", ""),
            ("proxy --old sidecar", "proxy sidecar", "--old"),
            ("proxy --old value sidecar", "proxy sidecar", "--old"),
            ("proxy --old=value sidecar", "proxy sidecar", "--old"),
            ("proxy --old=value other", "proxy other", "--old"),
            ("proxy --old --domain x", "proxy --domain x", "--old"),
            ("proxy --old -x --new router", "proxy router", "--old -x --new"),
            ("proxy --old waypoint", "proxy waypoint", "--old"),
            ("proxy --old -", "proxy", "--old"),
            ("proxy --old", "proxy", "--old"),
            ("--old proxy router", "proxy router", "--old"),
            ("--old 5 proxy router", "proxy router", "--old"),
            ("--log_target stderr --old proxy", "--log_target stderr proxy", "--old"),
            ("proxy --log_as_json --old router", "proxy --log_as_json router", "--old"),
            ("proxy --restartEnvoy router", "proxy --restartEnvoy router", ""),
            ("proxy --help", "proxy --help", ""),
            ("proxy -- --old", "proxy -- --old", ""),
            ("wait --old 5", "wait --old 5", ""),
            ("--old wait", "--old wait", ""),
            ("--old", "--old", ""),
            ("", "", ""),
        ] {
            let argv = std::iter::once("agent").chain(line.split_whitespace()).map(str::to_owned).collect();
            let lenience = Lenience { subcommand: "proxy", words: &["waypoint"] };
            let (left, gone) = without_unknown(command(), &lenience, argv);
            assert_eq!((left[1..].join(" ").as_str(), gone.join(" ").as_str()), (kept, unknown), "{line}");
        }
    }
}
