use std::time::Duration;

use serde::Deserialize;

use crate::http_client::Question;
use crate::supervise::{Epoch, Life};

/// Whoever waits asks again soon.
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct ServerInfo {
    state: String,
    command_line_options: Options,
}

#[derive(Deserialize)]
struct Options {
    #[serde(default)]
    restart_epoch: Epoch,
}

/// Is the Envoy that answers there this one, and does it serve? Two Envoys have the administrator's port one after the
/// other.
pub(crate) async fn ask(admin_port: u16, epoch: Epoch) -> Life {
    let url = format!("http://localhost:{admin_port}/server_info");
    match Question::get(url, TIMEOUT).ask().await {
        Ok(answer) => judge(&answer.body, epoch),
        Err(error) => {
            tracing::debug!(%error, epoch, "the new Envoy does not answer yet");
            Life::NotYet
        }
    }
}

fn judge(text: &str, epoch: Epoch) -> Life {
    match serde_json::from_str::<ServerInfo>(text) {
        Ok(info) if info.state == "LIVE" && info.command_line_options.restart_epoch == epoch => Life::Live,
        _ => Life::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::judge;
    use crate::supervise::Life;

    #[test]
    fn live_is_the_right_one_and_serving() {
        let info = |state: &str, epoch: u32| {
            format!(
                r#"{{"state": "{state}", "command_line_options": {{"restart_epoch": {epoch}, "x": 1}}, "y": 2}}"#
            )
        };
        assert_eq!(judge(&info("LIVE", 2), 2), Life::Live);
        assert_eq!(judge(&info("LIVE", 1), 2), Life::NotYet);
        assert_eq!(judge(&info("INITIALIZING", 2), 2), Life::NotYet);
        assert_eq!(judge(r#"{"state": "LIVE", "command_line_options": {}}"#, 0), Life::Live);
        assert_eq!(judge("busy", 0), Life::NotYet);
    }
}
