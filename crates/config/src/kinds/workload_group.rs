use pilot_api::networking as api;
use pilot_base::Labels;
use pilot_model::{Span, WorkloadGroup, WorkloadProbe, WorkloadProbeMethod};

use crate::check::{Check, names};
use crate::kinds::service_entry::{rules, workload};

pub(crate) fn decode(message: api::WorkloadGroup, check: &mut Check<'_>) -> WorkloadGroup {
    let Some(template) = message.template else {
        check.reject("spec.template", "is missing: it says what workloads of the group have in common");
        return WorkloadGroup::default();
    };
    let metadata = message.metadata.unwrap_or_default();
    check.label_map("spec.metadata.labels", &metadata.labels);
    for name in template.ports.keys().filter(|name| !crate::check::is_label(name)) {
        check.reject(format!("spec.template.ports.{name}"), format!("{name:?} cannot be a name"));
    }
    if !template.address.is_empty() && !rules::is_reachable(&template.address) {
        check.reject("spec.template.address", "is neither an IP nor a host name");
    }
    WorkloadGroup {
        labels: Labels::new(metadata.labels),
        annotations: Labels::new(metadata.annotations),
        template: workload(template, "spec.template", check),
        probe: message.probe.map(|message| probe(message, check)),
    }
}

fn probe(message: api::ReadinessProbe, check: &mut Check<'_>) -> WorkloadProbe {
    let mut count = |field: &str, value: i32| check.count(format!("spec.probe.{field}"), value);
    let seconds = |seconds: u32| Span::from_secs(u64::from(seconds));
    let times = [
        count("initialDelaySeconds", message.initial_delay_seconds),
        count("timeoutSeconds", message.timeout_seconds),
        count("periodSeconds", message.period_seconds),
    ];
    let thresholds = [
        count("successThreshold", message.success_threshold),
        count("failureThreshold", message.failure_threshold),
    ];
    WorkloadProbe {
        initial_delay: seconds(times[0]),
        timeout: seconds(times[1]),
        period: seconds(times[2]),
        success_threshold: thresholds[0],
        failure_threshold: thresholds[1],
        method: method(message.health_check_method, check),
    }
}

fn method(
    message: Option<api::readiness_probe::HealthCheckMethod>,
    check: &mut Check<'_>,
) -> Option<WorkloadProbeMethod> {
    use api::readiness_probe::HealthCheckMethod as Api;
    match message {
        None => {
            check.reject("spec.probe", "does not say how: httpGet, tcpSocket, exec or grpc");
            None
        }
        Some(Api::HttpGet(http)) => {
            if !matches!(http.scheme.as_str(), "" | "HTTP" | "HTTPS") {
                check.reject("spec.probe.httpGet.scheme", "is neither HTTP nor HTTPS");
            }
            let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            for (i, header) in http.http_headers.iter().enumerate() {
                if header.name.is_empty() || !header.name.bytes().all(is_name) {
                    check.reject(
                        format!("spec.probe.httpGet.httpHeaders[{i}].name"),
                        format!("{:?} cannot be the name of a header", header.name),
                    );
                }
            }
            Some(WorkloadProbeMethod::Http {
                path: http.path.into(),
                port: check.port("spec.probe.httpGet.port", http.port),
                host: http.host.into(),
                scheme: http.scheme.into(),
                headers: http.http_headers.into_iter().map(|h| (h.name.into(), h.value.into())).collect(),
            })
        }
        Some(Api::TcpSocket(tcp)) => Some(WorkloadProbeMethod::Tcp {
            host: tcp.host.into(),
            port: check.port("spec.probe.tcpSocket.port", tcp.port),
        }),
        Some(Api::Exec(exec)) => {
            if exec.command.is_empty() {
                check.reject("spec.probe.exec.command", "is missing");
            }
            Some(WorkloadProbeMethod::Exec { command: names(exec.command) })
        }
        Some(Api::Grpc(grpc)) => Some(WorkloadProbeMethod::Grpc {
            port: check.port("spec.probe.grpc.port", grpc.port),
            service: grpc.service.into(),
        }),
    }
}
