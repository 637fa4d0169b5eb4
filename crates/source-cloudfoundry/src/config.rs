use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pilot_base::{Issue, parse_span};
use pilot_source_http::TlsFiles;
use serde_json::Value;

/// What `--cfConfig` says, in the form that old Pilot had.
#[derive(Clone, Debug)]
pub struct CfConfig {
    /// Copilot's host and port.
    pub address: String,
    /// Whom to trust, and who we are.
    pub tls: TlsFiles,
    /// How often it is asked.
    pub every: Duration,
    /// The port by which all services are called.
    pub service_port: u16,
    /// Gateways through which the world calls hosts; old Pilot took all that there were.
    pub gateways: Vec<String>,
}

/// Why the file cannot be used.
#[derive(thiserror::Error, Debug)]
pub enum CfConfigError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is not YAML.
    #[error("{0}")]
    Yaml(Issue),
    /// A field is missing or means nothing.
    #[error("{field}: {why}")]
    Field { field: &'static str, why: String },
}

impl CfConfig {
    pub fn read(file: &Path) -> Result<Self, CfConfigError> {
        let text = std::fs::read_to_string(file)?;
        let value =
            pilot_config::read_value(&text, &file.display().to_string()).map_err(CfConfigError::Yaml)?;
        let path = |field| text_of(&value, field).map(PathBuf::from);
        let address = text_of(&value, "copilot.address")?;
        // As in old Pilot, the scheme may stand there and means nothing: it is TLS in any case.
        let address = address.rsplit_once("//").map_or(address.as_str(), |(_, rest)| rest).to_owned();
        let own = (path("copilot.client_cert_path")?, path("copilot.client_key_path")?);
        let roots = path("copilot.server_ca_cert_path")?;
        Ok(Self {
            address,
            tls: TlsFiles { roots: Some(roots), own: Some(own) },
            every: interval(&value)?,
            service_port: service_port(&value)?,
            gateways: gateways(&value)?,
        })
    }
}

fn find<'a>(value: &'a Value, field: &str) -> &'a Value {
    field.split('.').fold(value, |at, key| &at[key])
}

fn wrong(field: &'static str, why: &str) -> CfConfigError {
    CfConfigError::Field { field, why: why.to_owned() }
}

fn text_of(value: &Value, field: &'static str) -> Result<String, CfConfigError> {
    let text = find(value, field).as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned).ok_or_else(|| wrong(field, "is missing"))
}

/// A duration as people write it; a plain number is nanoseconds, as old Pilot wrote it.
fn interval(value: &Value) -> Result<Duration, CfConfigError> {
    const FIELD: &str = "copilot.poll_interval";
    let every = match find(value, FIELD) {
        Value::Null => return Err(wrong(FIELD, "is missing")),
        Value::String(text) => parse_span(text).map_err(|why| wrong(FIELD, &why))?,
        other => {
            let nanos = other.as_f64().ok_or_else(|| wrong(FIELD, "is no duration"))?;
            Duration::try_from_secs_f64(nanos / 1e9).map_err(|why| wrong(FIELD, &why.to_string()))?
        }
    };
    // More often would only keep Copilot busy.
    if every < Duration::from_millis(10) { Err(wrong(FIELD, "is less than 10ms")) } else { Ok(every) }
}

fn service_port(value: &Value) -> Result<u16, CfConfigError> {
    const FIELD: &str = "service_port";
    let number = find(value, FIELD).as_f64().unwrap_or_default();
    // What is no port is none after the cast either.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked right after")]
    let port = number as u16;
    if port == 0 || f64::from(port).to_bits() != number.to_bits() {
        return Err(wrong(FIELD, "is missing or no port; usually it is 8080"));
    }
    Ok(port)
}

fn gateways(value: &Value) -> Result<Vec<String>, CfConfigError> {
    const FIELD: &str = "gateways";
    let list = match find(value, FIELD) {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => return Err(wrong(FIELD, "is a list of names")),
    };
    let names = list.iter().map(|name| name.as_str().map(str::to_owned));
    names.collect::<Option<_>>().ok_or_else(|| wrong(FIELD, "is a list of names"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::CfConfig;

    const WHOLE: &str = "copilot:\n  server_ca_cert_path: /ca.pem\n  client_cert_path: /own.pem\n  \
        client_key_path: /own.key\n  address: https://copilot.cf.internal:9000\n  poll_interval: 10s\n\
        service_port: 8080\n";

    fn read(text: &str) -> Result<CfConfig, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cf.yaml");
        std::fs::write(&file, text).unwrap();
        CfConfig::read(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn old_pilots_file_is_read() {
        let config = read(WHOLE).unwrap();
        assert_eq!(config.address, "copilot.cf.internal:9000");
        assert_eq!((config.every, config.service_port), (Duration::from_secs(10), 8080));
        assert_eq!(config.tls.own.unwrap().1.to_str(), Some("/own.key"));
        let nanos = read(&WHOLE.replace("10s", "2000000000")).unwrap();
        assert_eq!(nanos.every, Duration::from_secs(2));
        let gateways = read(&format!("{WHOLE}gateways: [istio-system/public]\n")).unwrap().gateways;
        assert_eq!(gateways, ["istio-system/public"]);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (from, to, why) in [
            ("address", "adress", "copilot.address: is missing"),
            ("poll_interval", "interval", "copilot.poll_interval: is missing"),
            ("10s", "soon", "copilot.poll_interval: \"soon\" is not a duration"),
            ("10s", "1ms", "less than 10ms"),
            ("8080", "80800", "service_port: is missing or no port"),
            ("client_key_path", "key", "copilot.client_key_path: is missing"),
            ("copilot:", "copilot: [", "not YAML"),
        ] {
            let error = read(&WHOLE.replace(from, to)).err().unwrap();
            assert!(error.contains(why), "{error} should say {why}");
        }
    }
}
