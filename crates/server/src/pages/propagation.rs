//! Who has accepted an object, who is behind, who refuses it: for people, and for `pilotctl wait`.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use pilot_base::{Hash64, Name};
use pilot_config::read;
use pilot_model::{ConfigId, Kind};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Pages, issue, written};
use crate::propagation::{Asked, Known, LONGEST_WAIT, Progress, Wait, progress};
use crate::refusal::Refusal;

type Asking = Query<Vec<(String, String)>>;

/// As much as is looked at in one go.
const MAX_TEXT: usize = 4 << 20;
const MAX_OBJECTS: usize = 1000;
/// So many proxies are named; all are counted.
const NAMED: usize = 20;

const USAGE: &str = "say which object is meant: ?kind=VirtualService&namespace=shop&name=cart, or send it\n";

/// One object, by its name: `?kind=VirtualService&namespace=shop&name=cart`.
pub(super) async fn by_name(State(pages): State<Pages>, Query(query): Asking) -> Response {
    let text = |key: &str| query.iter().find(|(k, _)| k == key).map_or("", |(_, value)| value.as_str());
    let Some(kind) = Kind::of_name(text("kind")).filter(|_| !text("name").is_empty()) else {
        return (StatusCode::BAD_REQUEST, USAGE).into_response();
    };
    let asked = Asked::Name((kind, ConfigId::new(text("namespace"), text("name"))));
    answer(&pages, &query, vec![asked], 0).await
}

/// Objects as they stand in the body: known once the server says what is said there.
pub(super) async fn as_written(State(pages): State<Pages>, Query(query): Asking, body: Body) -> Response {
    let Ok(body) = to_bytes(body, MAX_TEXT).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "the text is too long, or broke off\n").into_response();
    };
    let text = String::from_utf8_lossy(&body);
    let reading = match read(&text, "", pages.engine.reading()) {
        Ok(reading) => reading,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    if !reading.broken.is_empty() {
        let all: Vec<String> = reading.issues.iter().map(ToString::to_string).collect();
        return (StatusCode::UNPROCESSABLE_ENTITY, format!("{}\n", all.join("\n"))).into_response();
    }
    if reading.objects.len() > MAX_OBJECTS {
        return (StatusCode::PAYLOAD_TOO_LARGE, "there are more than 1000 objects\n").into_response();
    }
    let written = |(_, _, object)| Asked::Written(Box::new(object));
    let asked = reading.objects.into_iter().map(written).collect();
    answer(&pages, &query, asked, reading.issues.len()).await
}

async fn answer(pages: &Pages, query: &[(String, String)], asked: Vec<Asked>, notes: usize) -> Response {
    let wait = match wait(query) {
        Ok(wait) => wait,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let mark = |told: &[Progress]| Hash64::of(shown(told).to_string().as_bytes()).0;
    let Some(told) = progress(&pages.engine, asked, wait, mark).await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let complete = told.iter().all(Progress::is_complete);
    let seen = format!("{:x}", mark(&told));
    written(&json!({"objects": shown(&told), "complete": complete, "seen": seen, "notes": notes}), query)
}

/// `?wait=30s` until everybody has everything; with `&seen=` what was told before, until there is news.
fn wait(query: &[(String, String)]) -> Result<Wait, &'static str> {
    let text = |key: &str| query.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let seconds = match text("wait").map(|wait| wait.trim_end_matches('s').parse::<f64>()) {
        None => 0.0,
        Some(Ok(seconds)) if (0.0..=1e6).contains(&seconds) => seconds,
        Some(_) => return Err("wait is a number of seconds: wait=30s\n"),
    };
    let seen = text("seen").map(|seen| u64::from_str_radix(seen, 16)).transpose();
    let seen = seen.map_err(|_| "seen is what the answer before called so\n")?;
    let patience = Duration::from_secs_f64(seconds).min(LONGEST_WAIT);
    Ok(Wait { until: Instant::now() + patience, seen })
}

fn shown(told: &[Progress]) -> Value {
    told.iter().map(object).collect()
}

fn object(progress: &Progress) -> Value {
    let Progress { object, known, is_followed, concerned, accepted, behind, refused, issues } = progress;
    let (known, epoch) = match known {
        Known::Missing => ("no", None),
        Known::Otherwise => ("otherwise", None),
        Known::Since(epoch) => ("yes", Some(epoch)),
    };
    json!({
        "kind": object.kind.as_str(),
        "namespace": object.namespace.as_str(),
        "name": object.name.as_str(),
        "known": known,
        "epoch": epoch,
        "followed": is_followed,
        "concerned": concerned,
        "accepted": accepted,
        "behindCount": behind.len(),
        "behind": behind.iter().take(NAMED).map(Name::as_str).collect::<Vec<_>>(),
        "refusedCount": refused.len(),
        "refused": refused.iter().take(NAMED).map(refusal).collect::<Value>(),
        "issues": issues.iter().take(NAMED).map(issue).collect::<Value>(),
    })
}

fn refusal(refusal: &Refusal) -> Value {
    let Refusal { proxy, type_url, names, more, reason } = refusal;
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    json!({"proxy": proxy.as_str(), "type": type_url.short(), "names": names, "more": more, "reason": reason})
}
