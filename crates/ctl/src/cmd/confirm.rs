use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// Say that it is true that most of what a cluster had is gone. Without `--place` and `--all` it is only shown what the
/// server holds back until somebody says so
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What is gone, as it is shown; may be given several times
    #[arg(long, value_name = "PLACE", conflicts_with = "all")]
    place: Vec<String>,
    /// All of it
    #[arg(long)]
    all: bool,
    /// The monitoring address of the server, which must be on this machine; several servers are asked one by one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15014")]
    address: Vec<String>,
}

/// Exit status 1 if there is nothing to confirm.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut places = 0;
    for address in &args.address {
        if args.all {
            places += confirm(address, "")?;
            continue;
        }
        for place in &args.place {
            places += confirm(address, &format!("?place={}", escaped(place)))?;
        }
        if args.place.is_empty() {
            places += show(address)?;
        }
    }
    if places == 0 {
        println!("nothing is held back{}", if args.place.is_empty() { "" } else { " there" });
        return Ok(ExitCode::from(u8::from(args.all || !args.place.is_empty())));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(address: &str) -> anyhow::Result<usize> {
    let held: Vec<Value> =
        read(&crate::page(address, "/debug/held")?)?.as_array().cloned().unwrap_or_default();
    for held in &held {
        let text = |field: &str| held[field].as_str().unwrap_or_default();
        println!("{}: {}; counts in {}s", text("place"), text("what"), held["secondsLeft"]);
    }
    Ok(held.len())
}

fn confirm(address: &str, query: &str) -> anyhow::Result<usize> {
    let (status, body) = pilot_cli::request(address, "POST", &format!("/debug/held{query}"), "")?;
    if status != 200 {
        bail!("{address} answered with status {status}: {}", body.trim_end());
    }
    let confirmed = read(&body)?["confirmed"].as_array().cloned().unwrap_or_default();
    for place in &confirmed {
        println!("{}: confirmed", place.as_str().unwrap_or_default());
    }
    Ok(confirmed.len())
}

fn read(body: &str) -> anyhow::Result<Value> {
    serde_json::from_str(body).context("the answer is not JSON")
}

/// As it may stand in a query.
fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn a_place_may_stand_in_a_query() {
        assert_eq!(escaped("cluster a/b: pods"), "cluster%20a%2Fb%3A%20pods");
    }
}
