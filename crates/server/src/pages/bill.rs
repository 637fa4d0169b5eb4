//! What each rule and service has cost, as data.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use pilot_base::{Millis, ObjectRef};
use serde_json::{Value, json};

use super::{Pages, written};
use crate::bill::{Line, Statement, Totals};
use crate::metrics::Usage;

/// So many objects are listed if nobody says how many.
const TOP: usize = 100;

/// The most expensive objects first; `?top=` says how many of them, `?pretty` is for people.
pub(super) async fn page(State(pages): State<Pages>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let top = match query.iter().find(|(key, _)| key == "top").map(|(_, value)| value.parse()) {
        None => TOP,
        Some(Ok(top)) => top,
        Some(Err(_)) => return (StatusCode::BAD_REQUEST, "top must be a number").into_response(),
    };
    let statement = pages.engine.bill().statement(top);
    written(&data(&statement, Usage::of_this_process(), pages.clock.now()), &query)
}

fn data(statement: &Statement, usage: Usage, now: Millis) -> Value {
    let Statement { totals, lines, objects, others } = statement;
    let Totals { commits, nanos, bytes, pushes, proxies, audiences } = *totals;
    let lines: Vec<Value> = lines.iter().map(|(object, line)| listed(object, line, now)).collect();
    json!({
        "server": {
            "uptimeSeconds": now / 1000,
            "cpuSeconds": usage.cpu_seconds,
            "residentBytes": usage.resident_bytes,
            "commits": commits,
            "commitCpuSeconds": seconds(nanos as f64),
            "bytesPushed": bytes,
            "pushes": pushes,
            "proxies": proxies,
            "audiences": audiences,
        },
        "objects": objects,
        "lines": lines,
        "others": costs(others),
    })
}

fn listed(object: &ObjectRef, line: &Line, now: Millis) -> Value {
    let mut value = costs(line);
    value["kind"] = object.kind.as_str().into();
    value["namespace"] = object.namespace.as_str().into();
    value["name"] = object.name.as_str().into();
    if line.changes > 0 {
        value["lastChangeSecondsAgo"] = (now.saturating_sub(line.last_change) / 1000).into();
    }
    value
}

fn costs(line: &Line) -> Value {
    json!({
        "cpuSeconds": seconds(line.nanos),
        "bytesPushed": line.bytes.round(),
        "pushes": line.pushes,
        "changes": line.changes,
    })
}

fn seconds(nanos: f64) -> f64 {
    nanos / 1e9
}

#[cfg(test)]
mod tests {
    use pilot_base::ObjectRef;
    use serde_json::json;

    use super::data;
    use crate::bill::{Line, Statement, Totals};
    use crate::metrics::Usage;

    #[test]
    fn a_bill_is_data() {
        let rule = ObjectRef::new("VirtualService", "shop", "cart");
        let line = Line { nanos: 1_500_000.0, bytes: 2048.4, pushes: 3, changes: 2, last_change: 4_000 };
        let statement = Statement {
            totals: Totals { commits: 9, nanos: 2_000_000, bytes: 4096, pushes: 8, proxies: 2, audiences: 1 },
            lines: vec![(rule, line)],
            objects: 5,
            others: Line::default(),
        };
        let usage = Usage { cpu_seconds: 0.25, resident_bytes: 1 << 20 };
        let told = data(&statement, usage, 65_000);
        let server = json!({
            "uptimeSeconds": 65, "cpuSeconds": 0.25, "residentBytes": 1_048_576, "commits": 9, "commitCpuSeconds": 0.002,
            "bytesPushed": 4096, "pushes": 8, "proxies": 2, "audiences": 1,
        });
        let listed = json!([{
            "kind": "VirtualService", "namespace": "shop", "name": "cart", "cpuSeconds": 0.0015, "bytesPushed": 2048.0,
            "pushes": 3, "changes": 2, "lastChangeSecondsAgo": 61,
        }]);
        assert_eq!((&told["server"], &told["lines"], &told["objects"]), (&server, &listed, &json!(5)));
    }
}
