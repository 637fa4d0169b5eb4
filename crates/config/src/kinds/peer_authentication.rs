use std::collections::BTreeMap;

use pilot_api::security as api;
use pilot_model::{MtlsMode, PeerAuthentication};

use crate::check::Check;

pub(crate) fn decode(message: api::PeerAuthentication, check: &mut Check<'_>) -> PeerAuthentication {
    let selector = message.selector.map(|selector| check.selector(selector.match_labels)).unwrap_or_default();
    if selector.is_empty() && !message.port_level_mtls.is_empty() {
        let message = "needs a selector: the ports of a whole namespace or mesh cannot be spoken of";
        check.reject("spec.portLevelMtls", message);
    }
    let mut ports = BTreeMap::new();
    for (port, mtls) in message.port_level_mtls {
        let number = check.port(format!("spec.portLevelMtls.{port}"), port);
        ports.insert(number, mode(mtls));
    }
    PeerAuthentication { selector, mode: message.mtls.and_then(mode), ports }
}

fn mode(mtls: api::peer_authentication::MutualTls) -> Option<MtlsMode> {
    use api::peer_authentication::mutual_tls::Mode;
    match Mode::try_from(mtls.mode).unwrap_or(Mode::Unset) {
        Mode::Unset => None,
        Mode::Disable => Some(MtlsMode::Disable),
        Mode::Permissive => Some(MtlsMode::Permissive),
        Mode::Strict => Some(MtlsMode::Strict),
    }
}
