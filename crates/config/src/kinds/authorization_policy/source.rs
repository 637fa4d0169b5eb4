//! Sources and operations: lists of values, some of which must have a form.

use std::net::IpAddr;

use pilot_api::security as api;
use pilot_base::Name;
use pilot_model::{AuthzAttribute, AuthzMatch};

use crate::check::{Check, names};

/// More would make configuration too large.
const MOST_ACCOUNTS: usize = 16;
const LONGEST_ACCOUNT: usize = 320;

/// A field, the one that is its opposite, and what they are about.
struct Field {
    name: &'static str,
    not_name: &'static str,
    attribute: AuthzAttribute,
    values: Vec<String>,
    not_values: Vec<String>,
}

fn field(
    name: &'static str,
    not_name: &'static str,
    attribute: AuthzAttribute,
    values: Vec<String>,
    not_values: Vec<String>,
) -> Field {
    Field { name, not_name, attribute, values, not_values }
}

/// In the order in which they are checked.
pub(super) fn source(message: api::Source, path: &str, check: &mut Check<'_>) -> Vec<AuthzMatch> {
    use AuthzAttribute as A;
    let m = message;
    let out = decode(
        [
            field("principals", "notPrincipals", A::Principal, m.principals, m.not_principals),
            field(
                "requestPrincipals",
                "notRequestPrincipals",
                A::RequestPrincipal,
                m.request_principals,
                m.not_request_principals,
            ),
            field(
                "serviceAccounts",
                "notServiceAccounts",
                A::ServiceAccount,
                m.service_accounts,
                m.not_service_accounts,
            ),
            field("trustDomains", "notTrustDomains", A::TrustDomain, m.trust_domains, m.not_trust_domains),
            field("namespaces", "notNamespaces", A::Namespace, m.namespaces, m.not_namespaces),
            field(
                "remoteIpBlocks",
                "notRemoteIpBlocks",
                A::RemoteIp,
                m.remote_ip_blocks,
                m.not_remote_ip_blocks,
            ),
            field("ipBlocks", "notIpBlocks", A::SourceIp, m.ip_blocks, m.not_ip_blocks),
        ],
        path,
        check,
    );
    let has = |attribute: &AuthzAttribute| out.iter().any(|m| m.attribute == *attribute);
    if has(&A::ServiceAccount) && (has(&A::Principal) || has(&A::Namespace)) {
        let message = "cannot be given beside principals or namespaces, which they already say";
        check.reject(format!("{path}.serviceAccounts"), message);
    }
    out
}

pub(super) fn operation(message: api::Operation, path: &str, check: &mut Check<'_>) -> Vec<AuthzMatch> {
    use AuthzAttribute as A;
    let m = message;
    decode(
        [
            field("hosts", "notHosts", A::Host, m.hosts, m.not_hosts),
            field("methods", "notMethods", A::Method, m.methods, m.not_methods),
            field("paths", "notPaths", A::Path, m.paths, m.not_paths),
            field("ports", "notPorts", A::DestinationPort, m.ports, m.not_ports),
        ],
        path,
        check,
    )
}

fn decode<const N: usize>(fields: [Field; N], path: &str, check: &mut Check<'_>) -> Vec<AuthzMatch> {
    let mut out = Vec::new();
    for field in fields {
        for (name, values) in [(field.name, &field.values), (field.not_name, &field.not_values)] {
            check_values(&field.attribute, values, &format!("{path}.{name}"), check);
        }
        if !field.values.is_empty() || !field.not_values.is_empty() {
            let (values, not_values) = (names(field.values), names(field.not_values));
            out.push(AuthzMatch { attribute: field.attribute, values, not_values });
        }
    }
    if out.is_empty() {
        check.reject(path, "is empty: leave it out if everything is meant");
    }
    out
}

/// Values of which some attributes want a form.
pub(super) fn check_values(attribute: &AuthzAttribute, values: &[String], path: &str, check: &mut Check<'_>) {
    if *attribute == AuthzAttribute::ServiceAccount && values.len() > MOST_ACCOUNTS {
        check.reject(path, format!("has more than {MOST_ACCOUNTS} values"));
    }
    for (i, value) in values.iter().enumerate() {
        let wrong = if value.is_empty() { Some("must not be empty") } else { fault(attribute, value) };
        if let Some(why) = wrong {
            check.reject(format!("{path}[{i}]"), format!("{value:?} {why}"));
        }
    }
}

fn fault(attribute: &AuthzAttribute, value: &str) -> Option<&'static str> {
    use AuthzAttribute as A;
    match attribute {
        A::SourceIp | A::RemoteIp | A::DestinationIp => {
            (!is_ip_block(value)).then_some("is neither an address nor a range such as 10.0.0.0/8")
        }
        A::DestinationPort => (!is_port(value)).then_some("is not a port"),
        A::ServiceAccount => account_fault(value),
        A::TrustDomain => trust_domain_fault(value),
        A::Path => template_fault(value),
        _ => None,
    }
}

fn is_ip_block(value: &str) -> bool {
    match value.split_once('/') {
        None => value.parse::<IpAddr>().is_ok(),
        Some((address, length)) => {
            let Ok(address) = address.parse::<IpAddr>() else { return false };
            let most = if address.is_ipv4() { 32 } else { 128 };
            let plain = length == "0" || !length.starts_with(['0', '+']);
            plain && length.parse::<u8>().is_ok_and(|length| length <= most)
        }
    }
}

fn is_port(value: &str) -> bool {
    value.chars().all(|c| c.is_ascii_digit()) && value.parse::<u32>().is_ok_and(|port| port <= 65535)
}

fn account_fault(value: &str) -> Option<&'static str> {
    let form = "is not of the form account or namespace/account";
    let parts: Vec<&str> = value.split('/').collect();
    if value.contains('*') {
        Some("has a wildcard, which service accounts cannot have")
    } else if value.len() > LONGEST_ACCOUNT {
        Some("is longer than 320 characters")
    } else {
        (parts.len() > 2 || parts.iter().any(|part| part.is_empty())).then_some(form)
    }
}

fn trust_domain_fault(value: &str) -> Option<&'static str> {
    if value.contains('/') {
        return Some("has a slash, which no trust domain has");
    }
    wildcard_fault(value)
}

pub(super) fn wildcard_fault(value: &str) -> Option<&'static str> {
    match value.matches('*').count() {
        0 => None,
        1 if value.starts_with('*') || value.ends_with('*') => None,
        _ => Some("can have one *, at its beginning or at its end"),
    }
}

/// `{*}` stands for one part of a path, `{**}` for all that follow.
fn template_fault(path: &str) -> Option<&'static str> {
    let is_template = path.contains("{*}") || path.contains("{**}");
    if is_template && !path.starts_with('/') {
        return Some("is a template and must begin with a slash");
    }
    let mut ended = false;
    for part in path.trim_matches('/').split('/') {
        match part {
            "{*}" | "{**}" if ended => {
                return Some("has something after {**}, which must be the last operator");
            }
            "{*}" => (),
            "{**}" => ended = true,
            _ if part.contains(['{', '}']) => return Some("has braces that are neither {*} nor {**}"),
            _ if is_template && !is_literal(part) => {
                return Some("has a part that no path can have beside a template");
            }
            _ => (),
        }
    }
    None
}

fn is_literal(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~%!$&'()+,;:@=".contains(c);
    !part.is_empty() && part.chars().all(allowed)
}

/// The name of something in one pair of brackets.
pub(super) fn in_brackets(text: &str) -> Option<Name> {
    text.strip_prefix('[')?.strip_suffix(']').map(Name::new)
}

#[cfg(test)]
mod tests {
    use super::{is_ip_block, template_fault, wildcard_fault};

    #[test]
    fn templates_have_their_own_rules() {
        for good in ["/a/{*}/b", "/{**}", "/a/{*}/{**}/b", "/a*", "*", "plain"] {
            assert_eq!(template_fault(good), None, "{good}");
        }
        for bad in ["/{**}/{*}", "/a{*}", "/{a}", "/{*}/b b", "{*}/a", "/{*}//b"] {
            assert!(template_fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn blocks_and_wildcards() {
        assert!(is_ip_block("10.0.0.0/8") && is_ip_block("::1") && is_ip_block("1.2.3.4/0"));
        assert!(!is_ip_block("10.0.0.0/33") && !is_ip_block("10.0.0/8") && !is_ip_block("1.2.3.4/08"));
        assert_eq!(wildcard_fault("a*"), None);
        assert!(wildcard_fault("a*b").is_some());
        assert!(wildcard_fault("*a*").is_some());
    }
}
