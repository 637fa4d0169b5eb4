use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use pilot_base::parse_span;
use serde_json::Value;

use crate::files::collect;

/// Wait until the server knows objects as they stand in files, and every proxy that they concern has accepted them. Exit
/// status 1 if the time is over before that, or if something is refused
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files or folders with the objects; may be given several times
    #[arg(short, long, value_name = "PATH", required = true)]
    filename: Vec<PathBuf>,
    /// How long to wait at most: 30s, 5m, 1h
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_span)]
    timeout: Duration,
    /// The monitoring address of the server
    #[arg(long, default_value = "127.0.0.1:15014")]
    address: String,
}

/// So long the server may keep one question: what lies between may cut off connections on which nothing happens.
const IN_ONE_GO: Duration = Duration::from_secs(25);

/// What has become of all objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Done,
    Waiting,
    /// Waiting on would not help.
    Hopeless,
}

#[allow(clippy::disallowed_methods, reason = "people count the time until they give up by a real clock")]
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let until = std::time::Instant::now() + args.timeout;
    let text = text_of(&args.filename)?;
    // Anything is news to who has seen nothing.
    let mut seen = "&seen=0".to_owned();
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        let path = format!("/debug/propagation?wait={}{seen}", left.min(IN_ONE_GO).as_secs_f64());
        let report = match pilot_cli::request(&args.address, "POST", &path, &text)? {
            (200, body) => serde_json::from_str::<Value>(&body).context("the answer is not a report")?,
            (422, issues) => {
                eprint!("{issues}");
                return Ok(ExitCode::FAILURE);
            }
            (404, _) => bail!(
                "{} does not know who has accepted what: it is another server, or an older one",
                args.address
            ),
            (status, why) => bail!("{} answered with status {status}: {}", args.address, why.trim_end()),
        };
        let objects = report["objects"].as_array().cloned().unwrap_or_default();
        if objects.is_empty() {
            bail!("nothing in these files is an object that the server reads");
        }
        let mark = format!("&seen={}", report["seen"].as_str().unwrap_or_default());
        if mark != seen {
            objects.iter().for_each(|object| println!("{}", line(object)));
            seen = mark;
        }
        match state(&objects) {
            State::Done => return Ok(ExitCode::SUCCESS),
            State::Hopeless => return Ok(ExitCode::FAILURE),
            State::Waiting if std::time::Instant::now() >= until => {
                eprintln!("Error: not everybody has everything after {:?}", args.timeout);
                return Ok(ExitCode::FAILURE);
            }
            State::Waiting => {}
        }
    }
}

/// All of it as one stream of documents.
fn text_of(paths: &[PathBuf]) -> anyhow::Result<String> {
    let paths: Vec<_> = paths.iter().map(PathBuf::as_path).collect();
    let read = |file: PathBuf| std::fs::read_to_string(&file).with_context(|| file.display().to_string());
    let texts: Vec<String> = collect(&paths)?.into_iter().map(read).collect::<anyhow::Result<_>>()?;
    Ok(texts.join("\n---\n"))
}

fn state(objects: &[Value]) -> State {
    let count = |object: &Value, field: &str| object[field].as_u64().unwrap_or_default();
    let is_known = |object: &Value| object["known"] == "yes";
    if objects
        .iter()
        .all(|object| is_known(object) && count(object, "accepted") == count(object, "concerned"))
    {
        return State::Done;
    }
    // What the server cannot use it keeps as it was; what a proxy has refused it is not sent again.
    let is_rejected =
        |object: &Value| !is_known(object) && object["issues"].as_array().is_some_and(|all| !all.is_empty());
    let is_refused = |object: &Value| count(object, "refusedCount") > 0;
    let all_answered = objects.iter().all(|object| is_known(object) && count(object, "behindCount") == 0);
    if objects.iter().any(is_rejected) || all_answered && objects.iter().any(is_refused) {
        return State::Hopeless;
    }
    State::Waiting
}

/// `VirtualService shop/cart: 12 of 20 proxies have it; not yet: a.shop, b.shop and 6 more`
fn line(object: &Value) -> String {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let count = |field: &str| object[field].as_u64().unwrap_or_default();
    let name = match text("namespace") {
        "" => text("name").to_owned(),
        namespace => format!("{namespace}/{}", text("name")),
    };
    let mut out = format!("{} {name}: ", text("kind"));
    match text("known") {
        "no" => out.push_str("the server does not have it"),
        "otherwise" => out.push_str("the server still has another version of it"),
        _ => out.push_str(&format!("{} of {} proxies have it", count("accepted"), count("concerned"))),
    }
    if object["followed"] == false {
        out.push_str(" (it shapes so much that all proxies are counted)");
    }
    let list = |field: &str| object[field].as_array().cloned().unwrap_or_default();
    let behind = list("behind");
    if !behind.is_empty() {
        let names: Vec<&str> = behind.iter().filter_map(Value::as_str).collect();
        out.push_str(&format!("; not yet: {}{}", names.join(", "), more(count("behindCount"), names.len())));
    }
    for refusal in list("refused") {
        let of = |field: &str| refusal[field].as_str().unwrap_or_default().to_owned();
        out.push_str(&format!("\n  {} refuses it ({}): {}", of("proxy"), of("type"), of("reason")));
    }
    for issue in list("issues") {
        out.push_str(&format!("\n  {}", issue["message"].as_str().unwrap_or_default()));
    }
    out
}

fn more(all: u64, named: usize) -> String {
    match all.saturating_sub(named as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{State, line, state};

    fn object(known: &str, [concerned, accepted, behind, refused]: [u64; 4]) -> Value {
        let names: Vec<String> = (0..behind.min(2)).map(|i| format!("p{i}.shop")).collect();
        let refusals: Vec<Value> = (0..refused)
            .map(|i| json!({"proxy": format!("r{i}.shop"), "type": "rds", "reason": "no"}))
            .collect();
        json!({
            "kind": "VirtualService", "namespace": "shop", "name": "cart", "known": known, "concerned": concerned,
            "accepted": accepted, "behindCount": behind, "behind": names, "refusedCount": refused,
            "refused": refusals, "issues": [],
        })
    }

    #[test]
    fn it_is_over_when_all_have_it_or_somebody_will_not() {
        for (objects, expected) in [
            (vec![object("yes", [3, 3, 0, 0])], State::Done),
            (vec![object("yes", [0, 0, 0, 0])], State::Done),
            (vec![object("yes", [3, 3, 0, 0]), object("no", [0, 0, 0, 0])], State::Waiting),
            (vec![object("otherwise", [0, 0, 0, 0])], State::Waiting),
            (vec![object("yes", [3, 1, 1, 1])], State::Waiting),
            (vec![object("yes", [3, 2, 0, 1])], State::Hopeless),
        ] {
            assert_eq!(state(&objects), expected, "{objects:?}");
        }
        let mut rejected = object("otherwise", [0, 0, 0, 0]);
        rejected["issues"] = json!([{"message": "spec.http: is missing"}]);
        assert_eq!(state(&[rejected]), State::Hopeless);
    }

    #[test]
    fn an_object_is_a_line_and_each_refusal_one_more() {
        assert_eq!(line(&object("yes", [3, 3, 0, 0])), "VirtualService shop/cart: 3 of 3 proxies have it");
        assert_eq!(
            line(&object("yes", [9, 4, 4, 1])),
            "VirtualService shop/cart: 4 of 9 proxies have it; not yet: p0.shop, p1.shop and 2 more\n  r0.shop refuses it (rds): no"
        );
        let mut wide = object("yes", [3, 3, 0, 0]);
        wide["followed"] = json!(false);
        assert_eq!(
            line(&wide),
            "VirtualService shop/cart: 3 of 3 proxies have it (it shapes so much that all proxies are counted)"
        );
        assert_eq!(
            line(&object("no", [0, 0, 0, 0])),
            "VirtualService shop/cart: the server does not have it"
        );
    }
}
