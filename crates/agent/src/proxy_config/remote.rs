use std::path::PathBuf;

use super::fields::{Fields, WrongField};

/// Who gets traces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Tracer {
    Zipkin,
    Lightstep { token: String },
    Datadog,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tracing {
    pub(crate) tracer: Tracer,
    pub(crate) address: HostPort,
    pub(crate) tls: Option<Tls>,
}

/// A service that Envoy itself calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Remote {
    pub(crate) address: HostPort,
    pub(crate) tls: Option<Tls>,
    pub(crate) keepalive: Option<Keepalive>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostPort {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// How Envoy shows who it is, and whom it trusts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tls {
    pub(crate) mode: TlsMode,
    pub(crate) client_certificate: Option<PathBuf>,
    pub(crate) private_key: Option<PathBuf>,
    pub(crate) ca_certificates: Option<PathBuf>,
    pub(crate) names: Vec<String>,
    pub(crate) sni: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsMode {
    Simple,
    Mutual,
    IstioMutual,
}

/// In seconds; `None` leaves it to the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keepalive {
    pub(crate) probes: Option<u32>,
    pub(crate) time: Option<u64>,
    pub(crate) interval: Option<u64>,
}

pub(super) fn tracing(fields: &Fields<'_>) -> Result<Option<Tracing>, WrongField> {
    let tracing = fields.map("tracing")?;
    for (name, tracer) in [("zipkin", Tracer::Zipkin), ("datadog", Tracer::Datadog)] {
        if let Some(address) = address(&tracing.map(name)?, "address")? {
            return Ok(Some(Tracing { tracer, address, tls: tls(&tracing)? }));
        }
    }
    let lightstep = tracing.map("lightstep")?;
    let Some(address) = address(&lightstep, "address")? else { return Ok(None) };
    let token = lightstep.text("accessToken")?.unwrap_or_default();
    Ok(Some(Tracing { tracer: Tracer::Lightstep { token }, address, tls: tls(&tracing)? }))
}

/// `old` is a field that has the address alone.
pub(super) fn service(
    fields: &Fields<'_>,
    field: &str,
    old: Option<&str>,
) -> Result<Option<Remote>, WrongField> {
    let service = fields.map(field)?;
    let address = match (address(&service, "address")?, old) {
        (Some(address), _) => address,
        (None, Some(old)) => match self::address(fields, old)? {
            Some(address) => address,
            None => return Ok(None),
        },
        (None, None) => return Ok(None),
    };
    Ok(Some(Remote { address, tls: tls(&service)?, keepalive: keepalive(&service)? }))
}

pub(super) fn address(fields: &Fields<'_>, field: &str) -> Result<Option<HostPort>, WrongField> {
    // An empty text is as if nothing were written.
    if fields.text(field)?.is_none() {
        return Ok(None);
    }
    fields.read(field, "host:port", |value| {
        let text = value.as_str()?;
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // A colon is part of an address only in brackets.
        let host = bare.or(Some(host).filter(|host| !host.contains(':')))?;
        (!host.is_empty()).then_some(HostPort { host: host.to_owned(), port: port.parse().ok()? })
    })
}

fn tls(fields: &Fields<'_>) -> Result<Option<Tls>, WrongField> {
    let settings = fields.map("tlsSettings")?;
    let known = |value: &serde_json::Value| match value.as_str()? {
        "DISABLE" => Some(None),
        "SIMPLE" => Some(Some(TlsMode::Simple)),
        "MUTUAL" => Some(Some(TlsMode::Mutual)),
        "ISTIO_MUTUAL" => Some(Some(TlsMode::IstioMutual)),
        _ => None,
    };
    let mode = settings.read("mode", "DISABLE, SIMPLE, MUTUAL or ISTIO_MUTUAL", known)?;
    let Some(mode) = mode.flatten() else { return Ok(None) };
    let path = |field| Ok(settings.text(field)?.map(PathBuf::from));
    Ok(Some(Tls {
        mode,
        client_certificate: path("clientCertificate")?,
        private_key: path("privateKey")?,
        ca_certificates: path("caCertificates")?,
        names: settings.texts("subjectAltNames")?,
        sni: settings.text("sni")?,
    }))
}

fn keepalive(fields: &Fields<'_>) -> Result<Option<Keepalive>, WrongField> {
    let settings = fields.map("tcpKeepalive")?;
    if settings.is_absent() {
        return Ok(None);
    }
    let seconds = |field| Ok(settings.span(field)?.map(|span| span.as_secs()).filter(|seconds| *seconds > 0));
    Ok(Some(Keepalive {
        probes: settings.number("probes")?.filter(|probes| *probes > 0),
        time: seconds("time")?,
        interval: seconds("interval")?,
    }))
}
