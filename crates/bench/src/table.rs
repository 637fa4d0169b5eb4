//! All lines of a run side by side.

use std::fmt::Write as _;

use crate::measure::Measure;
use crate::shape::Phase;

/// One figure of a line.
struct Figure {
    words: &'static str,
    of: fn(&Measure) -> Option<f64>,
}

const fn figure(words: &'static str, of: fn(&Measure) -> Option<f64>) -> Figure {
    Figure { words, of }
}

const CPU_MS: Figure = figure("CPU ms", |m| m.cpu_ms);
const CPU_S: Figure = figure("CPU s", |m| Some(m.cpu_ms? / 1_000.0));
const LAST: Figure = figure("last proxy, ms", |m| m.last_ms);
const PEAK: Figure = figure("peak memory, MB", |m| m.memory_mb);
const RECEIVED: Figure = figure("received, MB", |m| Some(m.received_mb));

fn figures(phase: Phase) -> &'static [Figure] {
    const START: &[Figure] =
        &[figure("ready, ms", |m| m.last_ms), CPU_S, figure("idle memory, MB", |m| m.memory_mb)];
    const COLD: &[Figure] = &[CPU_S, LAST, figure("median proxy, ms", |m| m.p50_ms), PEAK, RECEIVED];
    const CHANGE: &[Figure] = &[CPU_MS, LAST, RECEIVED];
    const CHURN: &[Figure] = &[
        figure("achieved a second", |m| m.achieved_rate),
        CPU_MS,
        figure("median, ms", |m| m.p50_ms),
        figure("p99, ms", |m| m.p99_ms),
        PEAK,
    ];
    const RECONNECT: &[Figure] = &[CPU_S, figure("last message, ms", |m| m.last_ms), RECEIVED];
    match phase {
        Phase::Start => START,
        Phase::Cold => COLD,
        Phase::Endpoint | Phase::Route | Phase::Overtake | Phase::Service => CHANGE,
        Phase::Churn => CHURN,
        Phase::Reconnect => RECONNECT,
    }
}

/// A table per shape: a row per figure, a column per server, and ratios of the first server to each of the others.
pub fn render(measures: &[Measure]) -> String {
    let mut out = String::new();
    for shape in distinct(measures.iter().map(|measure| measure.shape.as_str())) {
        let of_shape: Vec<&Measure> = measures.iter().filter(|measure| measure.shape == shape).collect();
        let _infallible = writeln!(out, "\n{}\n", heading(shape, &of_shape));
        table(&of_shape, &mut out);
    }
    out
}

fn heading(shape: &str, measures: &[&Measure]) -> String {
    let with_proxies = measures.iter().find(|measure| measure.proxies > 0).or(measures.first());
    let size =
        with_proxies.map(|m| format!("{} services, {} proxies, {:?}", m.services, m.proxies, m.protocol));
    format!("{shape}: {}", size.unwrap_or_default().to_lowercase())
}

fn table(measures: &[&Measure], out: &mut String) {
    let servers = distinct(measures.iter().map(|measure| measure.server.as_str()));
    let [first, others @ ..] = servers.as_slice() else { return };
    let ratios = others.iter().map(|other| format!("{first}/{other}"));
    let heads: Vec<String> = servers.iter().map(|server| (*server).to_owned()).chain(ratios).collect();
    let _infallible = writeln!(out, "| | {} |\n|---|{}", heads.join(" | "), "---:|".repeat(heads.len()));
    let phases = distinct(measures.iter().map(|measure| (measure.phase, measure.detail.as_str())));
    let mut below = String::new();
    for (phase, detail) in phases {
        let of = |server: &str| {
            let is_it = |m: &&&Measure| m.phase == phase && m.detail == detail && m.server == server;
            measures.iter().find(is_it).copied()
        };
        for figure in figures(phase) {
            let values: Vec<Option<f64>> =
                servers.iter().map(|server| of(server).and_then(figure.of)).collect();
            let ratio = |other: &Option<f64>| Some(values[0]? / (*other)?).filter(|ratio| ratio.is_finite());
            let cells: Vec<String> =
                values.iter().copied().chain(values[1..].iter().map(ratio)).map(cell).collect();
            let words = format!("{phase:?} {detail}").to_lowercase();
            let _infallible = writeln!(out, "| {}: {} | {} |", words.trim(), figure.words, cells.join(" | "));
        }
        for measure in servers.iter().filter_map(|server| of(server)) {
            remarks(measure, &mut below);
        }
    }
    if !below.is_empty() {
        let _infallible = write!(out, "\n{below}");
    }
}

/// What makes a line worth less, or worthless.
fn remarks(measure: &Measure, out: &mut String) {
    let words = format!("{:?} {}", measure.phase, measure.detail).to_lowercase();
    let mut tell = |what: String| {
        let _infallible = writeln!(out, "- {}, {}: {what}", words.trim(), measure.server);
    };
    if measure.missing > 0 {
        tell(format!("**{} proxies did not get everything**", measure.missing));
    }
    if measure.refused + measure.lost > 0 {
        tell(format!("{} streams refused, {} lost", measure.refused, measure.lost));
    }
    let ours = measure.cpu_ms.unwrap_or(0.0) * measure.changes as f64 + measure.tool_cpu_ms;
    if measure.other_cpu_ms + measure.stolen_ms > (ours / 2.0).max(200.0) {
        tell(format!("noisy, {:.0} ms went elsewhere", measure.other_cpu_ms + measure.stolen_ms));
    }
}

/// Three digits that matter.
fn cell(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.fold(Vec::new(), |mut all, item| {
        if !all.contains(&item) {
            all.push(item);
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::render;
    use crate::measure::Measure;

    fn measure(server: &str, cpu: f64, missing: usize) -> Measure {
        let text = format!(
            r#"{{"shape": "small", "server": "{server}", "phase": "cold", "services": 10, "proxies": 2,
                "protocol": "delta", "changes": 1, "cpu_ms": {cpu}, "last_ms": 20, "memory_mb": 30, "received_mb": 1,
                "resources": 5, "missing": {missing}, "refused": 0, "lost": 0, "tool_cpu_ms": 1, "other_cpu_ms": 0,
                "stolen_ms": 0}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn servers_stand_side_by_side_with_ratios_to_the_first() {
        let table = render(&[measure("pilot", 500.0, 0), measure("floor", 250.0, 0)]);
        assert!(table.contains("small: 10 services, 2 proxies, delta"), "{table}");
        assert!(table.contains("| | pilot | floor | pilot/floor |"), "{table}");
        assert!(table.contains("| cold: CPU s | 0.50 | 0.25 | 2.00 |"), "{table}");
        assert!(!table.contains("did not get"), "{table}");
    }

    #[test]
    fn who_did_not_get_everything_is_told() {
        let table = render(&[measure("pilot", 500.0, 3)]);
        assert!(table.contains("cold, pilot: **3 proxies did not get everything**"), "{table}");
    }
}
