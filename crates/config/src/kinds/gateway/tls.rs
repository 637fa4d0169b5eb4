use std::collections::BTreeSet;

use data_encoding::BASE64;
use pilot_api::networking as api;
use pilot_base::Name;
use pilot_model::{CertificatePair, ServerTls, ServerTlsMode, ServerTlsVersion};

use crate::check::{Check, names};

/// Suites by their own name that Envoy knows. Anything that begins with a sign is an expression, and left to Envoy.
const CIPHER_SUITES: [&str; 15] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-SHA",
    "AES256-SHA",
    "DES-CBC3-SHA",
];

/// Envoy takes one certificate of each kind of key.
const MOST_CERTIFICATES: usize = 2;

pub(crate) fn decode(message: api::ServerTlsSettings, path: &str, check: &mut Check<'_>) -> ServerTls {
    use api::server_tls_settings::TlSmode as Mode;
    let mode = match Mode::try_from(message.mode).unwrap_or_default() {
        Mode::Passthrough => ServerTlsMode::Passthrough,
        Mode::Simple => ServerTlsMode::Simple,
        Mode::Mutual => ServerTlsMode::Mutual,
        Mode::AutoPassthrough => ServerTlsMode::AutoPassthrough,
        Mode::IstioMutual => ServerTlsMode::IstioMutual,
        Mode::OptionalMutual => ServerTlsMode::OptionalMutual,
    };
    let min_version = version(message.min_protocol_version);
    let too_old = min_version.is_some_and(|version| version < ServerTlsVersion::V1_2);
    if too_old && message.cipher_suites.is_empty() {
        let message = "versions before 1.2 need cipherSuites of their time: the default has none of them";
        check.warn(format!("{path}.minProtocolVersion"), message);
    }
    let cipher_suites = cipher_suites(&message.cipher_suites, &format!("{path}.cipherSuites"), check);
    match mode {
        ServerTlsMode::IstioMutual => no_files_of_its_own(&message, path, check),
        ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough => {
            nothing_to_decrypt_with(&message, path, check);
            one_source(&message, path, check);
            if !message.ca_crl.is_empty() && !message.credential_name.is_empty() {
                check.reject(format!("{path}.caCrl"), "belongs into the secret that credentialName names");
            }
        }
        ServerTlsMode::Simple | ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual => {
            one_source(&message, path, check);
            if message.credential_name.is_empty() && message.credential_names.is_empty() {
                files(&message, mode, path, check);
            }
        }
    }
    if mode == ServerTlsMode::Simple && !message.subject_alt_names.is_empty() {
        let message = "has no effect with SIMPLE: clients are not asked who they are";
        check.warn(format!("{path}.subjectAltNames"), message);
    }
    let verify_spki = SPKI.read(&message.verify_certificate_spki, path, check);
    let verify_hash = HASH.read(&message.verify_certificate_hash, path, check);
    let credentials = if message.credential_names.is_empty() {
        Some(message.credential_name).filter(|name| !name.is_empty()).into_iter().collect()
    } else {
        message.credential_names
    };
    ServerTls {
        https_redirect: message.https_redirect,
        mode,
        certificates: certificates(message.tls_certificates, message.server_certificate, message.private_key),
        ca_certificates: message.ca_certificates.into(),
        ca_crl: message.ca_crl.into(),
        credentials: names(credentials),
        ca_credential: message.ca_cert_credential_name.into(),
        subject_alt_names: names(message.subject_alt_names),
        verify_spki,
        verify_hash,
        min_version,
        max_version: version(message.max_protocol_version),
        cipher_suites,
        skip_verify: message.insecure_skip_verify.unwrap_or(false),
    }
}

/// A list of the only certificates that are good. Envoy refuses the whole listener for one entry that it cannot read.
struct Pins {
    field: &'static str,
    form: &'static str,
    is_readable: fn(&str) -> bool,
    /// Stands in when nothing readable is left, so that nobody gets in rather than everybody.
    nobodys: &'static str,
}

const SPKI: Pins = Pins {
    field: "verifyCertificateSpki",
    form: "a SHA-256 in base 64",
    is_readable: |text| BASE64.decode(text.as_bytes()).is_ok_and(|hash| hash.len() == 32),
    nobodys: "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
};

const HASH: Pins = Pins {
    field: "verifyCertificateHash",
    form: "a SHA-256 in hexadecimal",
    is_readable: |text| {
        let digits = if text.len() == 95 { text.replace(':', "") } else { text.to_owned() };
        digits.len() == 64 && digits.chars().all(|c| c.is_ascii_hexdigit())
    },
    nobodys: "0000000000000000000000000000000000000000000000000000000000000000",
};

impl Pins {
    fn read(&self, texts: &[String], path: &str, check: &mut Check<'_>) -> Vec<Name> {
        let mut readable = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            if (self.is_readable)(text) {
                readable.push(Name::new(text));
            } else {
                let message = format!("{text:?} is not {} and fits no certificate", self.form);
                check.warn(format!("{path}.{}[{i}]", self.field), message);
            }
        }
        if readable.is_empty() && !texts.is_empty() {
            readable.push(Name::new(self.nobodys));
        }
        readable
    }
}

fn certificates(
    several: Vec<api::server_tls_settings::TlsCertificate>,
    certificate: String,
    private_key: String,
) -> Vec<CertificatePair> {
    if !several.is_empty() {
        let files = |files: api::server_tls_settings::TlsCertificate| CertificatePair {
            certificate: files.server_certificate.into(),
            private_key: files.private_key.into(),
        };
        return several.into_iter().map(files).collect();
    }
    if certificate.is_empty() && private_key.is_empty() {
        return Vec::new();
    }
    vec![CertificatePair { certificate: certificate.into(), private_key: private_key.into() }]
}

fn version(number: i32) -> Option<ServerTlsVersion> {
    use api::server_tls_settings::TlsProtocol;
    match TlsProtocol::try_from(number).unwrap_or_default() {
        TlsProtocol::TlsAuto => None,
        TlsProtocol::Tlsv10 => Some(ServerTlsVersion::V1_0),
        TlsProtocol::Tlsv11 => Some(ServerTlsVersion::V1_1),
        TlsProtocol::Tlsv12 => Some(ServerTlsVersion::V1_2),
        TlsProtocol::Tlsv13 => Some(ServerTlsVersion::V1_3),
    }
}

/// Those that Envoy would take, each once.
fn cipher_suites(suites: &[String], path: &str, check: &mut Check<'_>) -> Vec<Name> {
    let mut seen = BTreeSet::new();
    let mut out = Vec::new();
    for (i, suite) in suites.iter().enumerate() {
        let is_name = suite.starts_with(char::is_alphanumeric) && suite != "ALL";
        if is_name && !CIPHER_SUITES.contains(&suite.as_str()) {
            check.warn(format!("{path}[{i}]"), format!("{suite:?} is not a cipher suite and is left out"));
        } else if !seen.insert(suite.as_str()) {
            check.warn(format!("{path}[{i}]"), format!("{suite:?} is there twice"));
        } else {
            out.push(Name::new(suite));
        }
    }
    out
}

/// The certificates of mutual TLS within the mesh come from the mesh.
fn no_files_of_its_own(tls: &api::ServerTlsSettings, path: &str, check: &mut Check<'_>) {
    let fields = [
        ("serverCertificate", !tls.server_certificate.is_empty()),
        ("privateKey", !tls.private_key.is_empty()),
        ("caCertificates", !tls.ca_certificates.is_empty()),
        ("tlsCertificates", !tls.tls_certificates.is_empty()),
        ("credentialName", !tls.credential_name.is_empty()),
        ("credentialNames", !tls.credential_names.is_empty()),
    ];
    for (field, is_said) in fields {
        if is_said {
            check.reject(format!("{path}.{field}"), "ISTIO_MUTUAL uses the mesh's certificates: remove it");
        }
    }
}

fn nothing_to_decrypt_with(tls: &api::ServerTlsSettings, path: &str, check: &mut Check<'_>) {
    let any = !tls.ca_crl.is_empty()
        || !tls.server_certificate.is_empty()
        || !tls.private_key.is_empty()
        || !tls.ca_certificates.is_empty()
        || !tls.tls_certificates.is_empty()
        || !tls.credential_name.is_empty()
        || !tls.credential_names.is_empty();
    if any {
        check.warn(path, "passes TLS on without a look inside: its certificates have no effect");
    }
}

fn one_source(tls: &api::ServerTlsSettings, path: &str, check: &mut Check<'_>) {
    let sources = [
        !tls.server_certificate.is_empty() && !tls.private_key.is_empty(),
        !tls.credential_name.is_empty(),
        !tls.credential_names.is_empty(),
        !tls.tls_certificates.is_empty(),
    ];
    if sources.into_iter().filter(|is_said| *is_said).count() > 1 {
        let all = "credentialName, credentialNames, serverCertificate with privateKey, and tlsCertificates";
        check.reject(path, format!("only one of {all} can be said"));
    }
}

fn files(tls: &api::ServerTlsSettings, mode: ServerTlsMode, path: &str, check: &mut Check<'_>) {
    let mutual = mode != ServerTlsMode::Simple;
    if mutual && tls.ca_certificates.is_empty() {
        check.reject(format!("{path}.caCertificates"), "is missing: clients are to be verified by it");
    }
    if tls.tls_certificates.len() > MOST_CERTIFICATES {
        check.warn(format!("{path}.tlsCertificates"), "more than two certificates cannot be served");
    }
    if tls.tls_certificates.is_empty() {
        pair(&tls.server_certificate, &tls.private_key, path, check);
    }
    for (i, files) in tls.tls_certificates.iter().enumerate() {
        pair(&files.server_certificate, &files.private_key, &format!("{path}.tlsCertificates[{i}]"), check);
    }
    if !tls.ca_crl.is_empty() && !mutual {
        check.reject(format!("{path}.caCrl"), "has no meaning with SIMPLE: no client is verified");
    }
}

fn pair(certificate: &str, private_key: &str, path: &str, check: &mut Check<'_>) {
    if certificate.is_empty() {
        check.reject(format!("{path}.serverCertificate"), "is missing, and so is credentialName");
    }
    if private_key.is_empty() {
        check.reject(format!("{path}.privateKey"), "is missing, and so is credentialName");
    }
}
