//! Dubbo's providers: each is a URL in the name of a node.

use std::collections::BTreeMap;

use pilot_source::{Instance, InstancePort};

pub(super) fn instance(name: &str) -> Result<Instance, String> {
    let url = decoded(name);
    let (scheme, rest) = url.split_once("://").ok_or("it is not a URL")?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = place.split('/').next().unwrap_or_default();
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (address, port) = authority.rsplit_once(':').ok_or("it has no port")?;
    let number = port.parse().map_err(|_| format!("{port:?} is not a port"))?;
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut metadata: BTreeMap<String, String> = pairs
        .filter(|(_, value)| !value.is_empty())
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
    Ok(Instance { id: url.clone(), address, ports, metadata, weight, is_unhealthy, ..Instance::default() })
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
    use super::instance;

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
