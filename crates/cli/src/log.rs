//! The `--log_*` flags that Istio's programs share, and what they set up.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use pilot_base::parse_bool;

const DEFAULT_SCOPE: &str = "default";
/// Names every scope at once.
const ALL_SCOPES: &str = "all";

#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// Least level that is written, for all or for some scopes: `info`, `default:info,ads:debug`, `all:debug`. Levels are
    /// debug, info, warn, error, fatal and none
    #[arg(
        long = "log_output_level",
        global = true,
        value_name = "SCOPE:LEVEL,…",
        default_value = "default:info"
    )]
    output_level: String,
    /// Write each line as a JSON object
    #[arg(
        long = "log_as_json",
        global = true,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        value_parser = parse_bool
    )]
    pub as_json: bool,
    /// Where lines go: stdout, stderr or a file. May be given more than once
    #[arg(long = "log_target", global = true, value_name = "PATH", default_value = "stdout")]
    target: Vec<String>,
    /// Scopes whose lines tell the place in the code; any scope turns it on for all
    #[arg(
        long = "log_caller",
        global = true,
        value_name = "SCOPE,…",
        default_value = "",
        hide_default_value = true
    )]
    caller: String,
    /// Accepted, without effect
    #[arg(
        long = "log_stacktrace_level",
        global = true,
        value_name = "SCOPE:LEVEL,…",
        default_value = "",
        hide_default_value = true
    )]
    stacktrace_level: String,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A level or its form is not known.
    #[error(
        "--log_output_level: \"{0}\" is not a level or scope:level; levels are debug, info, warn, error, fatal and none"
    )]
    Level(String),
    /// A file for the log cannot be opened.
    #[error("--log_target: cannot open {path}")]
    Target { path: PathBuf, source: io::Error },
    /// Somebody set up a log before.
    #[error("the log is set up already")]
    Again(#[from] TryInitError),
}

impl LogArgs {
    /// Sets up the log of this process.
    pub fn init(&self) -> Result<(), LogError> {
        let filter = filter(&self.output_level)?;
        let has_place = !self.caller.is_empty();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(writer(&self.target)?)
            .with_file(has_place)
            .with_line_number(has_place);
        let layer = if self.as_json { layer.json().boxed() } else { layer.boxed() };
        Ok(tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()?)
    }
}

fn filter(levels: &str) -> Result<Targets, LogError> {
    let mut filter = Targets::new().with_default(LevelFilter::INFO);
    let mut all = None;
    for part in levels.split(',').filter(|part| !part.is_empty()) {
        let (scope, word) = part.split_once(':').unwrap_or((DEFAULT_SCOPE, part));
        let level = level(word).ok_or_else(|| LogError::Level(part.to_owned()))?;
        match scope {
            DEFAULT_SCOPE => filter = filter.with_default(level),
            ALL_SCOPES => all = Some(level),
            scope => filter = filter.with_target(scope, level),
        }
    }
    Ok(all.map_or(filter, |level| Targets::new().with_default(level)))
}

fn level(word: &str) -> Option<LevelFilter> {
    Some(match word {
        "debug" => LevelFilter::DEBUG,
        "info" => LevelFilter::INFO,
        "warn" => LevelFilter::WARN,
        "error" | "fatal" => LevelFilter::ERROR,
        "none" => LevelFilter::OFF,
        _ => return None,
    })
}

fn writer(targets: &[String]) -> Result<BoxMakeWriter, LogError> {
    let mut writers = targets.iter().map(|target| open(target));
    let first = writers.next().unwrap_or_else(|| Ok(BoxMakeWriter::new(io::stdout)))?;
    writers.try_fold(first, |all, writer| Ok(BoxMakeWriter::new(all.and(writer?))))
}

fn open(target: &str) -> Result<BoxMakeWriter, LogError> {
    Ok(match target {
        "stdout" => BoxMakeWriter::new(io::stdout),
        "stderr" => BoxMakeWriter::new(io::stderr),
        path => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file = file.map_err(|source| LogError::Target { path: path.into(), source })?;
            BoxMakeWriter::new(Arc::new(file))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tracing::Level;
    use tracing_subscriber::fmt::MakeWriter;

    use super::{filter, writer};

    #[test]
    fn levels_are_for_all_or_for_scopes() {
        let logs =
            |levels: &str, scope: &str, level: Level| filter(levels).unwrap().would_enable(scope, &level);
        assert!(logs("", "any", Level::INFO) && !logs("", "any", Level::DEBUG));
        assert!(logs("debug", "any", Level::DEBUG));
        assert!(logs("default:warn,ads:debug", "ads", Level::DEBUG));
        assert!(!logs("default:warn,ads:debug", "any", Level::INFO));
        assert!(logs("ads:none,all:debug", "ads", Level::DEBUG));
        assert!(!logs("none", "any", Level::ERROR));
    }

    #[test]
    fn unknown_levels_are_told() {
        for text in ["loud", "default:loud", "a:b:info"] {
            assert!(filter(text).unwrap_err().to_string().contains(text), "{text}");
        }
    }

    #[test]
    fn lines_go_to_every_target() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| directory.path().join(name).to_str().unwrap().to_owned());
        writer(&paths).unwrap().make_writer().write_all(b"line\n").unwrap();
        for path in &paths {
            assert_eq!(std::fs::read_to_string(path).unwrap(), "line\n");
        }
        assert!(writer(&[format!("{}/none/x", paths[0])]).is_err());
    }
}
