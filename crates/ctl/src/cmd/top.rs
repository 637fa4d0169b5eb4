use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

/// Show what a running server costs, and which rules and services cost how much of it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The monitoring address of the server
    #[arg(long, default_value = "127.0.0.1:15014")]
    address: String,
    /// How many objects are shown, the most expensive first
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20)]
    top: usize,
    /// Show it again every two seconds, until interrupted
    #[arg(short, long)]
    watch: bool,
}

/// As often as `top` and `watch` do about.
const EVERY: Duration = Duration::from_secs(2);
/// Moves to the beginning of the screen and clears what is there.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = || -> anyhow::Result<String> {
        let body = crate::page(&args.address, &format!("/debug/bill?top={}", args.top))?;
        let bill = serde_json::from_str(&body).context("the answer is not a bill")?;
        Ok(table(&bill))
    };
    let mut out = std::io::stdout();
    if !args.watch {
        write!(out, "{}", shown()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        write!(out, "{CLEAR}{}", shown()?)?;
        out.flush()?;
        std::thread::sleep(EVERY);
    }
}

/// The whole bill, as people read it.
fn table(bill: &Value) -> String {
    let mut out = head(&bill["server"]);
    let lines: Vec<&Value> = bill["lines"].as_array().into_iter().flatten().collect();
    let title = ["OBJECT", "CPU", "BYTES", "PUSHES", "CHANGES", "LAST CHANGE"].map(str::to_owned);
    let mut rows: Vec<[String; 6]> =
        std::iter::once(title).chain(lines.iter().map(|line| row(line))).collect();
    let others = &bill["others"];
    if whole(others, "changes") > 0 {
        let [_, cpu, bytes, pushes, changes, _] = row(others);
        rows.push(["(others)".to_owned(), cpu, bytes, pushes, changes, String::new()]);
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for [object, numbers @ .., last] in &rows {
        let mut line = format!("{object:<0$}", widths[0]);
        for (number, width) in numbers.iter().zip(&widths[1..]) {
            // Writing to memory does not fail.
            let _written = write!(line, "  {number:>width$}");
        }
        let _written = writeln!(out, "{}", format!("{line}  {last}").trim_end());
    }
    let listed = lines.len() as u64;
    if whole(bill, "objects") > listed {
        let _written = writeln!(out, "{listed} of {} objects", whole(bill, "objects"));
    }
    out
}

fn head(server: &Value) -> String {
    format!(
        "up {}, cpu {}, memory {}, proxies {}, audiences {}\n\
         commits {} took {} of cpu; {} pushes sent {}\n\n",
        span(whole(server, "uptimeSeconds")),
        time(number(server, "cpuSeconds")),
        size(number(server, "residentBytes")),
        whole(server, "proxies"),
        whole(server, "audiences"),
        whole(server, "commits"),
        time(number(server, "commitCpuSeconds")),
        whole(server, "pushes"),
        size(number(server, "bytesPushed")),
    )
}

fn row(line: &Value) -> [String; 6] {
    let text = |field: &str| line[field].as_str().unwrap_or_default();
    let name = match (text("kind"), text("namespace"), text("name")) {
        // Which of them came does not matter to who reads rules, so all of them are one object.
        ("Proxy", ..) => "(all)".to_owned(),
        (_, "", name) => name.to_owned(),
        (_, namespace, name) => format!("{namespace}/{name}"),
    };
    let last = line["lastChangeSecondsAgo"].as_u64().map(|ago| format!("{} ago", span(ago)));
    [
        format!("{} {name}", text("kind")).trim_end().to_owned(),
        time(number(line, "cpuSeconds")),
        size(number(line, "bytesPushed")),
        whole(line, "pushes").to_string(),
        whole(line, "changes").to_string(),
        last.unwrap_or_default(),
    ]
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_default()
}

fn whole(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

fn size(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.2} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.2} kB", b / 1e3),
        b => format!("{b:.0} B"),
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        s if s >= 86_400 => format!("{}d{}h", s / 86_400, s % 86_400 / 3600),
        s if s >= 3600 => format!("{}h{}m", s / 3600, s % 3600 / 60),
        s if s >= 60 => format!("{}m{}s", s / 60, s % 60),
        s => format!("{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::table;

    #[test]
    fn a_bill_is_a_table() {
        let bill = json!({
            "server": {
                "uptimeSeconds": 3725, "cpuSeconds": 12.5, "residentBytes": 48_300_000, "commits": 1042,
                "commitCpuSeconds": 0.518, "bytesPushed": 1_234_000_000, "pushes": 9100, "proxies": 100, "audiences": 3,
            },
            "objects": 250,
            "lines": [
                {"kind": "Proxy", "namespace": "", "name": "", "cpuSeconds": 0.3, "bytesPushed": 1_200_000_000.0,
                 "pushes": 400, "changes": 100, "lastChangeSecondsAgo": 61},
                {"kind": "VirtualService", "namespace": "shop", "name": "cart", "cpuSeconds": 0.0021, "bytesPushed": 64_512.0,
                 "pushes": 100, "changes": 1, "lastChangeSecondsAgo": 5},
                {"kind": "MeshConfig", "namespace": "", "name": "", "cpuSeconds": 0.000_04, "bytesPushed": 0.0,
                 "pushes": 0, "changes": 1, "lastChangeSecondsAgo": 3720},
            ],
            "others": {"cpuSeconds": 0.0001, "bytesPushed": 12.0, "pushes": 2, "changes": 7},
        });
        let expected = "\
up 1h2m, cpu 12.50 s, memory 48.30 MB, proxies 100, audiences 3
commits 1042 took 518.00 ms of cpu; 9100 pushes sent 1.23 GB

OBJECT                          CPU     BYTES  PUSHES  CHANGES  LAST CHANGE
Proxy (all)               300.00 ms   1.20 GB     400      100  1m1s ago
VirtualService shop/cart    2.10 ms  64.51 kB     100        1  5s ago
MeshConfig                    40 µs       0 B       0        1  1h2m ago
(others)                     100 µs      12 B       2        7
3 of 250 objects
";
        assert_eq!(table(&bill), expected);
    }

    #[test]
    fn an_empty_bill_is_a_title() {
        let told = table(&json!({}));
        assert!(told.ends_with("OBJECT  CPU  BYTES  PUSHES  CHANGES  LAST CHANGE\n"), "{told}");
    }
}
