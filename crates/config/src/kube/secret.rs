use std::collections::BTreeMap;

use data_encoding::BASE64;
use pilot_model::{Authority, Content, KeyPair, Secret};
use serde::Deserialize;

use crate::check::Check;
use crate::kube::read_part;
use crate::yaml;

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    data: BTreeMap<String, String>,
    string_data: BTreeMap<String, String>,
}

/// Istio's own names for what is kept, and those of Kubernetes' type for TLS.
const PAIRS: [[&str; 3]; 2] = [["cert", "key", ""], ["tls.crt", "tls.key", "tls.ocsp-staple"]];
const AUTHORITIES: [[&str; 2]; 2] = [["cacert", "crl"], ["ca.crt", "ca.crl"]];

/// Nothing for a Secret that no gateway can use: most are for somebody else.
pub(crate) fn decode(node: &yaml::Node<'_>, check: &mut Check<'_>) -> Option<Secret> {
    let object: Object = read_part(node, check)?;
    let mut content = |name: &str| {
        if let Some(text) = object.string_data.get(name) {
            return Content::new(text.clone().into_bytes());
        }
        let text = object.data.get(name)?;
        // Files have long texts in several lines.
        let text: String = text.split_whitespace().collect();
        let bytes = BASE64.decode(text.as_bytes());
        if bytes.is_err() {
            check.leave_out(format!("data[{name}]"), "is not Base64");
        }
        Content::new(bytes.ok()?)
    };
    let pair = PAIRS.into_iter().find_map(|[chain, key, staple]| {
        Some(KeyPair { chain: content(chain)?, key: content(key)?, staple: content(staple) })
    });
    let authority = AUTHORITIES
        .into_iter()
        .find_map(|[roots, revoked]| Some(Authority { roots: content(roots)?, revoked: content(revoked) }));
    let found = Secret { pair, authority };
    (found != Secret::default()).then_some(found)
}
