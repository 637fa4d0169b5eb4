use std::time::Duration;

use anyhow::bail;
use tokio::time::{Instant, sleep};

use crate::args::WaitArgs;
use crate::http_client::Question;

/// Asks until the answer is yes.
pub(crate) async fn run(args: WaitArgs) -> anyhow::Result<()> {
    let WaitArgs { timeout_seconds, request_timeout_millis, period_millis, url } = args;
    tracing::info!(timeout_seconds, "waiting for Envoy to be ready");
    let deadline = Instant::now() + Duration::from_secs(timeout_seconds);
    let question = Question::get(url, Duration::from_millis(request_timeout_millis));
    let mut last = "it was not asked".to_owned();
    while Instant::now() < deadline {
        sleep(Duration::from_millis(period_millis)).await;
        match question.clone().ask().await {
            Ok(answer) if answer.status.as_u16() == 200 => {
                tracing::info!("Envoy is ready");
                return Ok(());
            }
            Ok(answer) => last = format!("status {}: {}", answer.status.as_u16(), answer.body.trim_end()),
            Err(error) => last = error.to_string(),
        }
        tracing::debug!(reason = last, "Envoy is not ready yet");
    }
    bail!("Envoy was not ready within {timeout_seconds}s; at last: {last}")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::run;
    use crate::args::WaitArgs;

    static ASKED: AtomicU32 = AtomicU32::new(0);

    async fn third_time() -> (StatusCode, &'static str) {
        match ASKED.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => (StatusCode::SERVICE_UNAVAILABLE, "not yet\n"),
            _ => (StatusCode::OK, ""),
        }
    }

    #[tokio::test]
    async fn waits_until_the_answer_is_yes_or_time_is_up() {
        let mut tasks = JoinSet::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/ready", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/ready", get(third_time))
            .route("/never", get(|| async { (StatusCode::SERVICE_UNAVAILABLE, "no\n") }));
        tasks.spawn(async move { axum::serve(listener, router).await });
        let args = |url: &str, timeout_seconds: u64| WaitArgs {
            timeout_seconds,
            request_timeout_millis: 60_000,
            period_millis: 1,
            url: url.to_owned(),
        };
        run(args(&url, 60)).await.unwrap();
        assert_eq!(ASKED.load(Ordering::SeqCst), 3);
        let error = run(args(&url.replace("ready", "never"), 1)).await.unwrap_err().to_string();
        assert!(error.ends_with("at last: status 503: no"), "{error}");
    }
}
