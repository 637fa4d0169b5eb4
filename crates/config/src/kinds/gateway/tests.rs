use pilot_base::Severity;
use pilot_model::Object;

use crate::{ReadOptions, read};

/// The severities and fields of what is wrong with a gateway that has this server.
fn faults(server: &str) -> Vec<(Severity, String)> {
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g}}\nspec:\n  servers:\n  - {server}\n"
    );
    let reading = read(&text, "f.yaml", &ReadOptions::default()).unwrap();
    reading.issues.into_iter().map(|issue| (issue.severity, issue.path)).collect()
}

fn error(path: &str) -> (Severity, String) {
    (Severity::Error, path.to_owned())
}

fn warning(path: &str) -> (Severity, String) {
    (Severity::Warning, path.to_owned())
}

#[test]
fn a_good_server_has_no_faults() {
    let port = "port: {number: 80, name: http, protocol: HTTP}";
    assert_eq!(faults(&format!("{{{port}, hosts: ['*', ns/a.com, ./b.com, '*/c.com', 10.0.0.1]}}")), []);
    assert_eq!(faults(&format!("{{{port}, hosts: ['*'], tls: {{httpsRedirect: true}}}}")), []);
}

#[test]
fn hosts_are_whole_names() {
    let port = "port: {number: 80, name: http, protocol: HTTP}";
    for bad in ["short", "'*a.com'", "a.*.com", "Ns_/a.com", "/a.com"] {
        assert_eq!(
            faults(&format!("{{{port}, hosts: [{bad}]}}")),
            [error("spec.servers[0].hosts[0]")],
            "{bad}"
        );
    }
}

#[test]
fn ports_are_complete() {
    assert_eq!(
        faults("{port: {number: 0, protocol: FOO}, hosts: ['*']}"),
        [
            error("spec.servers[0].port.protocol"),
            error("spec.servers[0].port.name"),
            error("spec.servers[0].port.number"),
        ]
    );
    assert_eq!(faults("{bind: unix:///x, port: {number: 0, name: a, protocol: HTTP}, hosts: ['*']}"), []);
    assert_eq!(
        faults("{bind: nowhere, port: {number: 80, name: a, protocol: HTTP}, hosts: ['*']}"),
        [error("spec.servers[0].bind")]
    );
}

#[test]
fn tls_fits_its_mode_and_protocol() {
    let server = |protocol: &str, tls: &str| {
        faults(&format!(
            "{{port: {{number: 443, name: a, protocol: {protocol}}}, hosts: ['*'], tls: {{{tls}}}}}"
        ))
    };
    assert_eq!(server("HTTPS", "mode: SIMPLE, credentialName: c"), []);
    assert_eq!(
        server("HTTPS", "mode: SIMPLE"),
        [error("spec.servers[0].tls.serverCertificate"), error("spec.servers[0].tls.privateKey")]
    );
    assert_eq!(
        server("HTTPS", "mode: MUTUAL, serverCertificate: a, privateKey: b"),
        [error("spec.servers[0].tls.caCertificates")]
    );
    assert_eq!(
        server("HTTPS", "mode: ISTIO_MUTUAL, credentialName: c"),
        [error("spec.servers[0].tls.credentialName")]
    );
    assert_eq!(server("HTTP", "mode: SIMPLE, credentialName: c"), [error("spec.servers[0].tls")]);
    assert_eq!(server("TCP", "mode: SIMPLE, credentialName: c"), [error("spec.servers[0].tls")]);
    assert_eq!(server("TLS", "mode: PASSTHROUGH, credentialName: c"), [warning("spec.servers[0].tls")]);
    assert_eq!(
        server("HTTPS", "mode: SIMPLE, credentialName: c, cipherSuites: [NONE-SUCH, ALL, ALL]"),
        [warning("spec.servers[0].tls.cipherSuites[0]"), warning("spec.servers[0].tls.cipherSuites[2]")]
    );
}

#[test]
fn names_of_ports_differ() {
    let server = "{port: {number: 80, name: a, protocol: HTTP}, hosts: ['*']}\n  - {port: {number: 81, name: a, protocol: HTTP}, hosts: ['*']}";
    assert_eq!(faults(server), [error("spec.servers[1].port.name")]);
}

#[test]
fn every_host_of_every_namespace_is_one_host() {
    let text = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec:\n  servers:\n  - {port: {number: 80, name: a, protocol: HTTP}, hosts: [a.com, '*/*']}\n";
    let reading = read(text, "f.yaml", &ReadOptions::default()).unwrap();
    let Object::Gateway(gateway) = &reading.objects[0].2 else { panic!("a gateway") };
    let hosts: Vec<&str> = gateway.spec.servers[0].hosts.iter().map(|h| h.host.as_str()).collect();
    assert_eq!(hosts, ["*"]);
}

#[test]
fn certificates_that_cannot_be_told_let_nobody_in() {
    let server = |more: &str| {
        format!(
            "{{port: {{number: 443, name: a, protocol: HTTPS}}, hosts: ['*'], tls: {{mode: MUTUAL, credentialName: c, {more}}}}}"
        )
    };
    let good = "ab".repeat(32);
    let told =
        faults(&server(&format!("verifyCertificateHash: [abcd, {good}], verifyCertificateSpki: [abcd]")));
    let at = |field: &str| warning(&format!("spec.servers[0].tls.{field}[0]"));
    assert_eq!(told, [at("verifyCertificateSpki"), at("verifyCertificateHash")]);
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g}}\nspec:\n  servers:\n  - {}\n",
        server(&format!("verifyCertificateHash: [abcd, {good}], verifyCertificateSpki: [abcd]"))
    );
    let reading = read(&text, "f.yaml", &ReadOptions::default()).unwrap();
    let Some((_, _, Object::Gateway(gateway))) = reading.objects.first() else {
        panic!("a gateway was written")
    };
    let tls = gateway.spec.servers[0].tls.as_ref().unwrap();
    assert_eq!(tls.verify_hash, [good.as_str()], "one that can be told is enough");
    assert_eq!(tls.verify_spki, ["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]);
}

#[test]
fn names_of_clients_need_clients_that_tell_theirs() {
    let server = "{port: {number: 443, name: a, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: c, subjectAltNames: [x]}}";
    assert_eq!(faults(server), [warning("spec.servers[0].tls.subjectAltNames")]);
}
