use clap::Args;
use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use pilot_base::parse_bool;

/// Istio's logging flags.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// What is logged, by scope: `default:info,ads:debug`. Levels: debug, info, warn, error, none
    #[arg(long = "log_output_level", value_name = "SCOPE:LEVEL,…", default_value = "default:info")]
    level: String,
    /// Log lines as JSON objects
    #[arg(long = "log_as_json", value_name = "BOOL", num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true, value_parser = parse_bool)]
    json: bool,
    /// Where to log: stdout or stderr
    #[arg(long = "log_target", value_name = "TARGET", default_value = "stdout")]
    target: String,
    /// Accepted, has no effect
    #[arg(long = "log_caller", hide = true, default_value = "")]
    caller: String,
    /// Accepted, has no effect
    #[arg(long = "log_stacktrace_level", hide = true, default_value = "")]
    stacktrace_level: String,
}

/// What is logged, and how.
#[derive(Clone, PartialEq, Debug)]
pub struct Log {
    filter: Targets,
    json: bool,
    to_stderr: bool,
}

impl LogArgs {
    pub fn log(&self) -> Result<Log, String> {
        let to_stderr = match self.target.as_str() {
            "stdout" => false,
            "stderr" => true,
            other => return Err(format!("--log_target {other:?}: use stdout or stderr")),
        };
        Ok(Log { filter: filter(&self.level)?, json: self.json, to_stderr })
    }
}

/// `scope:level` pairs; a level alone is the default's, `all` is everybody's.
fn filter(text: &str) -> Result<Targets, String> {
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    let pairs = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pairs: Vec<(&str, &str)> =
        pairs.map(|part| part.split_once(':').unwrap_or(("default", part))).collect();
    for (scope, name) in &pairs {
        let level = level(name).ok_or_else(|| {
            format!("--log_output_level {scope}:{name}: use debug, info, warn, error or none")
        })?;
        targets = match *scope {
            "default" | "all" => targets.with_default(level),
            scope => targets.with_target(scope.to_owned(), level),
        };
    }
    if let Some((_, name)) = pairs.iter().find(|(scope, _)| *scope == "all") {
        let level = level(name).unwrap_or(LevelFilter::INFO);
        return Ok(Targets::new().with_default(level));
    }
    Ok(targets)
}

fn level(name: &str) -> Option<LevelFilter> {
    Some(match name {
        "debug" => Level::DEBUG.into(),
        "info" => Level::INFO.into(),
        "warn" | "warning" => Level::WARN.into(),
        "error" | "fatal" => Level::ERROR.into(),
        "none" => LevelFilter::OFF,
        _ => return None,
    })
}

impl Log {
    /// Everything that is logged from now on goes where it should.
    pub fn start(self) {
        let Self { filter, json, to_stderr } = self;
        let writer = move || -> Box<dyn std::io::Write> {
            if to_stderr { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) }
        };
        let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(false);
        let registry = tracing_subscriber::registry().with(filter);
        if json { registry.with(layer.json()).init() } else { registry.with(layer).init() }
    }
}

#[cfg(test)]
mod tests {
    use super::filter;
    use tracing::Level;

    #[test]
    fn levels_are_set_by_scope() {
        let is_on = |text: &str, scope: &str, level: Level| filter(text).unwrap().would_enable(scope, &level);
        assert!(is_on("", "ads", Level::INFO) && !is_on("", "ads", Level::DEBUG));
        assert!(is_on("default:info,ads:debug", "ads", Level::DEBUG));
        assert!(!is_on("default:info,ads:debug", "model", Level::DEBUG));
        assert!(is_on("ads:none,all:debug", "ads", Level::DEBUG));
        assert!(!is_on("ads:none", "ads", Level::ERROR));
        assert!(is_on("warning", "x", Level::WARN) && !is_on("warning", "x", Level::INFO));
        assert!(filter("default:loud").unwrap_err().contains("default:loud"));
    }
}
