use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::Value;

/// Show what each registry and store of a running server has
#[derive(clap::Args)]
pub(crate) struct Args {
    what: What,
    /// The monitoring address of the server
    #[arg(long, default_value = "127.0.0.1:15014")]
    address: String,
    /// Only what this source has
    #[arg(long)]
    source: Option<String>,
    /// Only this host
    #[arg(long)]
    host: Option<String>,
    /// Show it again every two seconds, until interrupted
    #[arg(short, long)]
    watch: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Every source: what it has, whether it can be asked, and how fresh it is
    Sources,
    /// The services of registries
    Services,
    /// Their endpoints
    Endpoints,
}

/// As often as `top` and `watch` do about.
const EVERY: Duration = Duration::from_secs(2);
/// Moves to the beginning of the screen and clears what is there.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

const SOURCES: [&str; 9] =
    ["SOURCE", "STATE", "SERVICES", "ENDPOINTS", "RULES", "CHANGES", "LAST HEARD", "LAST TOLD", "LAG"];

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout();
    if !args.watch {
        write!(out, "{}", shown(args)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        // A server that starts again is there again soon.
        let shown = shown(args).unwrap_or_else(|error| format!("{error:#}\n"));
        write!(out, "{CLEAR}{shown}")?;
        out.flush()?;
        std::thread::sleep(EVERY);
    }
}

fn shown(args: &Args) -> anyhow::Result<String> {
    let page = match args.what {
        What::Sources => "sources",
        What::Services => "services",
        What::Endpoints => "endpoints",
    };
    let asked = [("source", &args.source), ("host", &args.host)];
    let asked = asked.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
    let query = asked.collect::<Vec<_>>().join("&");
    let body = crate::page(&args.address, &format!("/debug/registry/{page}?{query}"))?;
    let list: Vec<Value> = serde_json::from_str(&body).context("the answer is not a list")?;
    let rows = match args.what {
        What::Sources => table(&SOURCES, &list, source),
        What::Services => table(&["SOURCE", "HOST", "PORTS", "ENDPOINTS"], &list, service),
        What::Endpoints => {
            table(&["SOURCE", "HOST", "ADDRESS", "PORTS", "LOCALITY", "LABELS"], &list, endpoint)
        }
    };
    Ok(rows)
}

/// Columns that are as wide as what stands in them.
fn table(title: &[&str], list: &[Value], row: fn(&Value) -> Vec<String>) -> String {
    let title = title.iter().map(|word| (*word).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(title).chain(list.iter().map(row)).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn text(value: &Value, field: &str) -> String {
    match &value[field] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn source(value: &Value) -> Vec<String> {
    let state = match (&value["trouble"], &value["complete"], &value["warning"]) {
        (Value::String(trouble), _, _) => trouble.clone(),
        (_, Value::Bool(true), Value::String(warning)) => format!("ok, but {warning}"),
        (_, Value::Bool(true), _) => "ok".to_owned(),
        _ => "has not told everything yet".to_owned(),
    };
    let ago = |field: &str| match &value[field] {
        Value::Number(seconds) => format!("{seconds} s ago"),
        _ => "-".to_owned(),
    };
    let lag = value["lagMicros"].as_f64().unwrap_or_default() / 1000.0;
    vec![
        text(value, "name"),
        state,
        text(value, "services"),
        text(value, "endpoints"),
        text(value, "rules"),
        text(value, "changes"),
        ago("lastHeardSecondsAgo"),
        ago("lastToldSecondsAgo"),
        format!("{lag:.1} ms"),
    ]
}

fn service(value: &Value) -> Vec<String> {
    let hosts = value["hosts"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let ports = value["ports"].as_array().into_iter().flatten();
    let ports = ports.map(|port| format!("{}/{}", text(port, "number"), text(port, "protocol")));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    vec![text(value, "source"), hosts, ports.collect::<Vec<_>>().join(","), text(value, "endpoints")]
}

fn endpoint(value: &Value) -> Vec<String> {
    let pairs = |field: &str, between: &str| {
        let all = value[field].as_object().into_iter().flatten();
        let each = all.map(|(key, value)| {
            format!("{key}{between}{}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        });
        each.collect::<Vec<_>>().join(",")
    };
    let (ports, labels) = (pairs("ports", ":"), pairs("labels", "="));
    vec![
        text(value, "source"),
        text(value, "host"),
        text(value, "address"),
        ports,
        text(value, "locality"),
        labels,
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{SOURCES, endpoint, service, source, table};

    #[test]
    fn sources_services_and_endpoints_are_tables() {
        let sources = [
            json!({"name": "consul", "complete": true, "trouble": null, "warning": null, "services": 2, "endpoints": 5,
                "rules": 0, "changes": 9, "lastHeardSecondsAgo": 0, "lastToldSecondsAgo": 3, "lagMicros": 1500}),
            json!({"name": "eureka", "complete": false, "trouble": "cannot be asked", "services": 0, "endpoints": 0,
                "rules": 0, "changes": 0, "lastHeardSecondsAgo": null, "lastToldSecondsAgo": 1, "lagMicros": 0}),
            json!({"name": "nomad", "complete": true, "trouble": null, "warning": "slow", "services": 0, "endpoints": 0,
                "rules": 0, "changes": 0, "lastHeardSecondsAgo": 2, "lastToldSecondsAgo": 2, "lagMicros": 0}),
        ];
        assert_eq!(
            table(&SOURCES, &sources, source),
            "SOURCE  STATE            SERVICES  ENDPOINTS  RULES  CHANGES  LAST HEARD  LAST TOLD  LAG\n\
             consul  ok               2         5          0      9        0 s ago     3 s ago    1.5 ms\n\
             eureka  cannot be asked  0         0          0      0        -           1 s ago    0.0 ms\n\
             nomad   ok, but slow     0         0          0      0        2 s ago     2 s ago    0.0 ms\n"
        );
        let one = json!({"source": "consul", "hosts": ["a.com"], "ports": [{"number": 80, "protocol": "HTTP"}], "endpoints": 1});
        assert_eq!(service(&one), ["consul", "a.com", "80/HTTP", "1"]);
        let one = json!({"source": "consul", "host": "a.com", "address": "10.0.0.1", "ports": {"port-80": 8080},
            "labels": {"version": "v1"}, "locality": "r/z"});
        assert_eq!(endpoint(&one), ["consul", "a.com", "10.0.0.1", "port-80:8080", "r/z", "version=v1"]);
    }
}
