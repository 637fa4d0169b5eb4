//! Certificates that are asked for and issued, and how long the authority's own are good.

use std::sync::atomic::{AtomicI64, Ordering};

use prometheus::{IntCounter, IntCounterVec, IntGauge, Result};

use super::register::Register;
use crate::clock::unix_seconds;

pub(crate) struct Ca {
    requests: IntCounter,
    issued: IntCounter,
    authentication_failures: IntCounter,
    parse_failures: IntCounter,
    id_failures: IntCounter,
    sign_failures: IntCounterVec,
    root: Expiry,
    chain: Expiry,
}

/// When something ends, for two metrics; zero while there is nothing.
struct Expiry {
    at: AtomicI64,
    timestamp: IntGauge,
    seconds: IntGauge,
}

impl Ca {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        Ok(Self {
            requests: register.counter("citadel_server_csr_count", "Requests for certificates.")?,
            issued: register
                .counter("citadel_server_success_cert_issuance_count", "Certificates that were issued.")?,
            authentication_failures: register.counter(
                "citadel_server_authentication_failure_count",
                "Requests for certificates by callers who did not prove who they are.",
            )?,
            parse_failures: register.counter(
                "citadel_server_csr_parsing_err_count",
                "Requests for certificates that could not be read.",
            )?,
            id_failures: register.counter(
                "citadel_server_id_extraction_err_count",
                "Requests for certificates whose caller could not be made out.",
            )?,
            sign_failures: register.counters_by(
                "citadel_server_csr_sign_err_count",
                "Requests for certificates that were not signed.",
                "error",
            )?,
            root: Expiry::new(register, "root_cert", "The end of the root certificate")?,
            chain: Expiry::new(register, "cert_chain", "The end of the certificate below the root")?,
        })
    }

    pub(crate) fn asked(&self) {
        self.requests.inc();
    }

    pub(crate) fn issued(&self) {
        self.issued.inc();
    }

    pub(crate) fn not_authenticated(&self) {
        self.authentication_failures.inc();
    }

    /// A caller who is known, but not as anybody who could have a certificate.
    pub(crate) fn nobody(&self) {
        self.id_failures.inc();
    }

    pub(crate) fn not_signed(&self, kind: &str) {
        if kind == "CSR_ERROR" {
            self.parse_failures.inc();
        }
        self.sign_failures.with_label_values(&[kind]).inc();
    }

    pub(crate) fn expires(&self, root: i64, chain: Option<i64>) {
        self.root.set(root);
        self.chain.set(chain.unwrap_or(0));
    }

    pub(super) fn refresh(&self) {
        let now = unix_seconds();
        self.root.refresh(now);
        self.chain.refresh(now);
    }
}

impl Expiry {
    fn new(register: &Register<'_>, what: &str, help: &str) -> Result<Self> {
        Ok(Self {
            at: AtomicI64::new(0),
            timestamp: register.gauge(
                &format!("citadel_server_{what}_expiry_timestamp"),
                &format!("{help}, in seconds since 1970."),
            )?,
            seconds: register.gauge(
                &format!("citadel_server_{what}_expiry_seconds"),
                &format!("{help}, in seconds from now."),
            )?,
        })
    }

    fn set(&self, at: i64) {
        self.at.store(at, Ordering::Relaxed);
        self.timestamp.set(at);
    }

    fn refresh(&self, now: i64) {
        let at = self.at.load(Ordering::Relaxed);
        self.seconds.set(if at == 0 { 0 } else { at - now });
    }
}
