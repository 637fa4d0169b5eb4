use std::time::Duration;

use crate::http_client::{HttpError, Question};
use crate::supervise::Count;

const STATISTIC: &str = "downstream_cx_active";
const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks Envoy how many connections from others it has.
pub(crate) async fn count(admin_port: u16, own_ports: &[u16]) -> Result<Count, HttpError> {
    let url = format!("http://localhost:{admin_port}/stats?usedonly&filter={STATISTIC}$");
    let answer = Question::get(url, TIMEOUT).ask().await?;
    if !answer.status.is_success() {
        return Ok(Count::Failed);
    }
    Ok(from_statistics(&answer.body, own_ports))
}

fn from_statistics(text: &str, own_ports: &[u16]) -> Count {
    if text.trim().is_empty() {
        return Count::Unknown;
    }
    let pairs = text.lines().filter_map(|line| line.rsplit_once(':'));
    let counts = pairs.filter(|(name, _)| is_of_others(name, own_ports));
    Count::Connections(counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum())
}

/// Probes and scrapes, Envoy's own plumbing and its administrator are nobody to wait for. Workers count again what their
/// listener counts.
fn is_of_others(name: &str, own_ports: &[u16]) -> bool {
    let Some(listener) =
        name.strip_prefix("listener.").and_then(|rest| rest.strip_suffix(&format!(".{STATISTIC}")))
    else {
        return false;
    };
    let own = own_ports.iter().any(|port| listener == format!("0.0.0.0_{port}"));
    !own && !listener.contains("worker_")
        && !listener.starts_with("envoy_internal_")
        && listener != "admin"
        && listener != "admin.main_thread"
}

#[cfg(test)]
mod tests {
    use super::from_statistics;
    use crate::supervise::Count;

    #[test]
    fn only_connections_of_others_count() {
        let text = "\
http.inbound_0.0.0.0_8080;.downstream_cx_active: 9
listener.0.0.0.0_15006.downstream_cx_active: 2
listener.0.0.0.0_15006.worker_0.downstream_cx_active: 2
listener.0.0.0.0_15021.downstream_cx_active: 1
listener.[__]_8443.downstream_cx_active: 3
listener.admin.downstream_cx_active: 1
listener.admin.main_thread.downstream_cx_active: 1
listener.envoy_internal_main_internal.downstream_cx_active: 4
";
        assert_eq!(from_statistics(text, &[15021, 15090]), Count::Connections(5));
        assert_eq!(from_statistics("listener.admin.downstream_cx_active: 1\n", &[]), Count::Connections(0));
        assert_eq!(from_statistics("\n", &[]), Count::Unknown);
    }
}
