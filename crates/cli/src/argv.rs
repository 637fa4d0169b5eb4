use clap::Command;

/// A command line without the flags that the command does not know.
#[derive(PartialEq, Eq, Debug)]
pub struct Known {
    pub argv: Vec<String>,
    /// The flags that were left out, as they were written.
    pub unknown: Vec<String>,
}

/// Istio's binaries take flags they do not know, so that a chart may be newer or older than the binary; so do ours. A
/// word after an unknown flag is taken for its value unless the command has a place for it.
pub fn keep_known(command: &Command, argv: impl IntoIterator<Item = String>) -> Known {
    let mut command = command;
    let mut known = Known { argv: Vec::new(), unknown: Vec::new() };
    let mut words = argv.into_iter().peekable();
    known.argv.extend(words.next());
    while let Some(word) = words.next() {
        if word == "--" {
            known.argv.push(word);
            known.argv.extend(words);
            break;
        }
        let Some(flag) = Flag::parse(&word) else {
            if let Some(sub) = command.find_subcommand(&word) {
                command = sub;
            }
            known.argv.push(word);
            continue;
        };
        match flag.takes_value(command) {
            Some(takes_value) => {
                known.argv.push(word.clone());
                if takes_value && !flag.has_value {
                    known.argv.extend(words.next());
                }
            }
            None => {
                let is_value = |next: &String| Flag::parse(next).is_none() && !has_place(command, next);
                if !flag.has_value {
                    words.next_if(is_value);
                }
                known.unknown.push(word);
            }
        }
    }
    known
}

struct Flag<'a> {
    name: &'a str,
    is_long: bool,
    has_value: bool,
}

impl<'a> Flag<'a> {
    fn parse(word: &'a str) -> Option<Self> {
        let (text, is_long) = match word.strip_prefix("--") {
            Some(text) => (text, true),
            None => (word.strip_prefix('-')?, false),
        };
        let (name, has_value) = text.split_once('=').map_or((text, false), |(name, _)| (name, true));
        // A lone dash is a word, and negative numbers are values.
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        Some(Self { name, is_long, has_value })
    }

    /// Nothing if the command does not know the flag.
    fn takes_value(&self, command: &Command) -> Option<bool> {
        if matches!(self.name, "help" | "h" | "version" | "V") {
            return Some(false);
        }
        let arg = command.get_arguments().find(|arg| {
            if self.is_long {
                let aliases = arg.get_all_aliases().unwrap_or_default();
                arg.get_long() == Some(self.name) || aliases.contains(&self.name)
            } else {
                arg.get_short().is_some_and(|short| self.name.starts_with(short))
            }
        })?;
        let attached = !self.is_long && self.name.len() > 1;
        Some(arg.get_action().takes_values() && !arg.is_require_equals_set() && !attached)
    }
}

/// Is there a positional argument or a subcommand for this word?
fn has_place(command: &Command, word: &str) -> bool {
    let fits = |arg: &clap::Arg| {
        let values = arg.get_possible_values();
        values.is_empty() || values.iter().any(|value| value.matches(word, false))
    };
    command.find_subcommand(word).is_some() || command.get_positionals().any(fits)
}

#[cfg(test)]
mod tests {
    use super::keep_known;
    use clap::{Arg, ArgAction, Command};

    fn command() -> Command {
        let proxy = Command::new("proxy")
            .arg(Arg::new("type").value_parser(["sidecar", "router"]))
            .arg(Arg::new("domain").long("domain").short('d'))
            .arg(Arg::new("quiet").long("quiet").action(ArgAction::SetTrue))
            .arg(Arg::new("profile").long("profile").num_args(0..=1).require_equals(true));
        Command::new("agent").subcommand(proxy)
    }

    fn check(line: &str, argv: &str, unknown: &str) {
        let known = keep_known(&command(), line.split(' ').map(str::to_owned));
        assert_eq!(
            (known.argv.join(" ").as_str(), known.unknown.join(" ").as_str()),
            (argv, unknown),
            "{line}"
        );
    }

    #[test]
    fn unknown_flags_are_left_out_with_their_values() {
        check("agent proxy sidecar --domain x --quiet", "agent proxy sidecar --domain x --quiet", "");
        check("agent proxy --new=1 --domain=x", "agent proxy --domain=x", "--new=1");
        check("agent proxy --new 1 --domain x", "agent proxy --domain x", "--new");
        check("agent proxy --new sidecar", "agent proxy sidecar", "--new");
        check("agent proxy --new --quiet", "agent proxy --quiet", "--new");
        check("agent --new proxy", "agent proxy", "--new");
        check("agent proxy -d x -z y", "agent proxy -d x", "-z");
        check("agent proxy -dx", "agent proxy -dx", "");
        check("agent proxy --profile sidecar", "agent proxy --profile sidecar", "");
        check("agent proxy --domain --new", "agent proxy --domain --new", "");
        check("agent proxy --new -1 --quiet", "agent proxy --quiet", "--new");
        check("agent proxy --help -- --new", "agent proxy --help -- --new", "");
    }
}
