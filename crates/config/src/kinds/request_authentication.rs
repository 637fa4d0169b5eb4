use std::time::Duration;

use pilot_api::security as api;
use pilot_base::Name;
use pilot_model::{ClaimToHeader, JwtRule, NOBODYS_KEYS, RequestAuthentication};

use crate::check::jwks::{KeySet, private_keys, usable_keys};
use crate::check::{Check, names};

pub(crate) fn decode(message: api::RequestAuthentication, check: &mut Check<'_>) -> RequestAuthentication {
    let target = check.policy_target(message.selector, message.target_ref, message.target_refs);
    let rules = message.jwt_rules.into_iter().enumerate();
    let rules = rules.map(|(i, rule)| jwt_rule(rule, &format!("spec.jwtRules[{i}]"), check)).collect();
    RequestAuthentication { target, rules }
}

fn jwt_rule(message: api::JwtRule, path: &str, check: &mut Check<'_>) -> JwtRule {
    let at = |field: &str| format!("{path}.{field}");
    if message.issuer.is_empty() && message.jwks_uri.is_empty() {
        check.reject(path, "needs an issuer or a jwksUri");
    }
    if !message.jwks_uri.is_empty() {
        jwks_uri(&message.jwks_uri, &at("jwksUri"), check);
    }
    let is_usable = message.jwks.is_empty() || jwks(&message.jwks, &at("jwks"), check);
    for (field, texts) in [
        ("audiences", &message.audiences),
        ("fromParams", &message.from_params),
        ("fromCookies", &message.from_cookies),
    ] {
        for i in texts.iter().enumerate().filter(|(_, text)| text.is_empty()).map(|(i, _)| i) {
            check.reject(format!("{path}.{field}[{i}]"), "must not be empty");
        }
    }
    for (i, header) in message.from_headers.iter().enumerate() {
        let name = format!("{path}.fromHeaders[{i}].name");
        if header.name.is_empty() {
            check.reject(&name, "must not be empty");
        }
        check.header_text(name, &header.name);
        check.header_text(format!("{path}.fromHeaders[{i}].prefix"), &header.prefix);
    }
    check.header_text(at("outputPayloadToHeader"), &message.output_payload_to_header);
    for (i, output) in message.output_claim_to_headers.iter().enumerate() {
        claim_to_header(output, &format!("{path}.outputClaimToHeaders[{i}]"), check);
    }
    for (i, claim) in message.space_delimited_claims.iter().enumerate() {
        if claim.is_empty() {
            check.reject(format!("{path}.spaceDelimitedClaims[{i}]"), "is empty: name a claim");
        }
    }
    let headers = message.from_headers.into_iter();
    let outputs = message.output_claim_to_headers.into_iter();
    JwtRule {
        issuer: message.issuer.into(),
        audiences: names(message.audiences),
        jwks_uri: message.jwks_uri.into(),
        jwks: if is_usable { message.jwks.into() } else { Name::new(NOBODYS_KEYS) },
        from_headers: headers.map(|header| (header.name.into(), header.prefix.into())).collect(),
        from_params: names(message.from_params),
        from_cookies: names(message.from_cookies),
        output_payload_to_header: message.output_payload_to_header.into(),
        forward_original_token: message.forward_original_token,
        output_claims: outputs
            .map(|output| ClaimToHeader { header: output.header.into(), claim: output.claim.into() })
            .collect(),
        timeout: timeout(message.timeout, &at("timeout"), check),
        space_delimited_claims: names(message.space_delimited_claims),
    }
}

fn jwks_uri(uri: &str, path: &str, check: &mut Check<'_>) {
    let rest = uri.strip_prefix("https://").or_else(|| uri.strip_prefix("http://"));
    let Some(rest) = rest else {
        check.reject(path, format!("{uri:?} must begin with http:// or https://"));
        return;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = match authority.rsplit_once(']') {
        Some((_, after)) => after.strip_prefix(':'),
        None => authority.split_once(':').map(|(_, port)| port),
    };
    if port.is_some_and(|port| !port.chars().all(|c| c.is_ascii_digit())) || uri.contains([' ', '\n']) {
        check.reject(path, format!("{uri:?} is not a URI"));
    }
}

/// Tells whether proxies can be sent these keys. A rule without any still stands: it refuses all tokens of its issuer.
fn jwks(text: &str, path: &str, check: &mut Check<'_>) -> bool {
    match KeySet::parse(text) {
        Err(why) => check.reject(path, format!("is not a set of keys: {why}")),
        Ok(keys) => {
            for i in private_keys(&keys) {
                let message = format!("the key at {i} is a private one; only public keys are used");
                check.warn(path, message);
            }
        }
    }
    let usable = usable_keys(text);
    if let Err(why) = &usable {
        let message =
            format!("Envoy could use none of these keys: {why}; all tokens of this issuer are refused");
        check.warn(path, message);
    }
    usable.is_ok()
}

fn claim_to_header(output: &api::ClaimToHeader, path: &str, check: &mut Check<'_>) {
    if output.claim.is_empty() || output.header.is_empty() {
        check.reject(path, "needs both a header and a claim");
        return;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !output.header.chars().all(plain) {
        let message = format!("{:?} can only have letters, digits, - and _", output.header);
        check.reject(format!("{path}.header"), message);
    }
}

fn timeout(duration: Option<pilot_api::Duration>, path: &str, check: &mut Check<'_>) -> Option<Duration> {
    let span = check.span(path, duration)?;
    if span < Duration::from_millis(1) || span.subsec_nanos() % 1_000_000 != 0 {
        check.reject(path, "must be at least 1ms, and whole milliseconds");
    }
    Some(span)
}
