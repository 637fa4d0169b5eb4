//! Dubbo's providers: each is a URL in the name of a node.

use std::collections::BTreeMap;

use pilot_source::{Instance, InstancePort};

pub(super) fn instance(name: &str) -> Result<Instance, String> {
    let url = decoded(name);
    let (scheme, rest) = url.split_once("://").ok_or("it is not a URL")?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = place.split('/').next().unwrap_or_default();
    let authority = without_user(authority);
    let (address, port) = authority.rsplit_once(':').ok_or("it has no port")?;
    let number = port.parse().map_err(|_| format!("{port:?} is not a port"))?;
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut metadata: BTreeMap<String, String> = pairs
        .filter(|(key, value)| !value.is_empty() && !is_secret(key))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let weight = metadata.remove("weight").and_then(|text| text.parse().ok()).unwrap_or_default();
    let is = |key: &str, value: &str| metadata.get(key).is_some_and(|found| found == value);
    let is_unhealthy = is("enabled", "false") || is("disabled", "true");
    let protocol = match scheme {
        "tri" | "grpc" => "grpc",
        "rest" | "http" | "hessian" | "webservice" => "http",
        _ => "tcp",
    };
    let ports = vec![InstancePort { number, protocol: protocol.to_owned(), ..InstancePort::default() }];
    let address = address.trim_matches(['[', ']']).to_owned();
    Ok(Instance { id: shown(name), address, ports, metadata, weight, is_unhealthy, ..Instance::default() })
}

/// Providers are told there how callers prove who they are, and some say it in their URL.
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["token", "password", "secret", "username"].iter().any(|word| key.contains(word))
}

/// By which people know a provider, and what tells it from others: its URL without what is to be said to nobody.
pub(super) fn shown(name: &str) -> String {
    let url = decoded(name);
    let (place, query) = url.split_once('?').unwrap_or((&url, ""));
    let (scheme, rest) = place.split_once("://").unwrap_or(("", place));
    let rest = match rest.split_once('/') {
        Some((authority, path)) => format!("{}/{path}", without_user(authority)),
        None => without_user(rest).to_owned(),
    };
    let of_service =
        query.split('&').filter(|pair| pair.starts_with("group=") || pair.starts_with("version="));
    let of_service: Vec<&str> = of_service.collect();
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    let behind = if of_service.is_empty() { "" } else { "?" };
    format!("{scheme}{rest}{behind}{}", of_service.join("&"))
}

fn without_user(authority: &str) -> &str {
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// Takes back what was done to a text so that it could stand in a URL.
fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let mut ahead = bytes.clone();
        let hex = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (byte, hex(ahead.next()), hex(ahead.next())) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                bytes = ahead;
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{instance, shown};

    #[test]
    fn what_a_provider_is_told_in_secret_is_shown_to_nobody() {
        let node = "dubbo%3A%2F%2Fpilot%3Ahunter2%4010.0.0.7%3A20880%2Fcom.shop.Cart%3Fgroup%3Dg%26token%3Dhunter2%26version%3D1.0.0%26dubbo.accessSecret%3Dhunter2";
        let read = instance(node).unwrap();
        assert_eq!(
            (read.id.as_str(), read.address.as_str()),
            ("dubbo://10.0.0.7:20880/com.shop.Cart?group=g&version=1.0.0", "10.0.0.7")
        );
        assert!(!format!("{read:?}").contains("hunter2"), "{read:?}");
        assert_eq!(shown("dubbo%3A%2F%2Fa%3Ahunter2%40host"), "dubbo://host");
    }

    #[test]
    fn a_provider_is_an_instance() {
        let node = "dubbo%3A%2F%2F10.0.0.7%3A20880%2Fcom.shop.Cart%3Fapplication%3Dshop%26version%3D1.0.0%26weight%3D50";
        let read = instance(node).unwrap();
        assert_eq!((read.address.as_str(), read.ports[0].number, read.weight), ("10.0.0.7", 20880, 50));
        assert_eq!((read.metadata["version"].as_str(), read.ports[0].protocol.as_str()), ("1.0.0", "tcp"));
        let tri = instance("tri%3A%2F%2F%5B%3A%3A1%5D%3A50051%2Fcom.shop.Cart%3Fdisabled%3Dtrue").unwrap();
        assert_eq!(
            (tri.address.as_str(), tri.ports[0].protocol.as_str(), tri.is_unhealthy),
            ("::1", "grpc", true)
        );
        for odd in ["%", "a%2", "dubbo%3A%2F%2Fhost", "dubbo%3A%2F%2Fhost%3Ax", "%ff%fe"] {
            assert!(instance(odd).is_err(), "{odd}");
        }
    }
}
