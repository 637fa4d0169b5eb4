use std::time::Duration;

use anyhow::{Context, bail};

use crate::args::RequestArgs;
use crate::http_client::Question;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Prints the answer and nothing else: scripts read it.
pub(crate) async fn run(args: RequestArgs) -> anyhow::Result<()> {
    let RequestArgs { method, path, body, debug_port } = args;
    let question = Question {
        method: method.parse().with_context(|| format!("\"{method}\" is not an HTTP method"))?,
        url: format!("http://localhost:{debug_port}/{}", path.strip_prefix('/').unwrap_or(&path)),
        body,
        timeout: TIMEOUT,
    };
    let answer = question.ask().await?;
    if answer.status.as_u16() >= 400 && answer.status.as_u16() != 404 {
        bail!("the answer has status {}: {}", answer.status.as_u16(), answer.body);
    }
    println!("{}", answer.body);
    Ok(())
}
