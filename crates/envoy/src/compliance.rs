//! Standards that all TLS has to keep to. They have the last word.

use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_model::Compliance;
use tls::tls_parameters::{CompliancePolicy, TlsProtocol};

/// All that the standards allow.
const CIPHERS: [&str; 4] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
];

pub(crate) fn enforce(context: &mut tls::CommonTlsContext, policy: Option<Compliance>) {
    let Some(policy) = policy else { return };
    let parameters = context.tls_params.get_or_insert_default();
    match policy {
        Compliance::Fips140v2 => {
            parameters.tls_minimum_protocol_version = TlsProtocol::TlSv12 as i32;
            parameters.tls_maximum_protocol_version = TlsProtocol::TlSv12 as i32;
            // What an Envoy that was built for the standard uses by itself is good; so is its one curve.
            parameters.cipher_suites.retain(|cipher| CIPHERS.contains(&cipher.as_str()));
            parameters.ecdh_curves.clear();
        }
        Compliance::Fips140v3 => {
            parameters.compliance_policies = vec![CompliancePolicy::Fips202205 as i32];
        }
        Compliance::PostQuantum => {
            parameters.tls_minimum_protocol_version = TlsProtocol::TlSv13 as i32;
            parameters.cipher_suites = CIPHERS.iter().map(|cipher| (*cipher).to_owned()).collect();
            parameters.ecdh_curves = vec!["X25519MLKEM768".to_owned()];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{enforce, tls};
    use pilot_model::Compliance;

    fn context(ciphers: &[&str]) -> tls::CommonTlsContext {
        let cipher_suites = ciphers.iter().map(|cipher| (*cipher).to_owned()).collect();
        let parameters = tls::TlsParameters { cipher_suites, ..tls::TlsParameters::default() };
        tls::CommonTlsContext { tls_params: Some(parameters), ..tls::CommonTlsContext::default() }
    }

    #[test]
    fn without_a_standard_nothing_changes() {
        let mut context = tls::CommonTlsContext::default();
        enforce(&mut context, None);
        assert_eq!(context, tls::CommonTlsContext::default());
    }

    #[test]
    fn ciphers_that_users_ask_for_must_be_good_enough() {
        let mut context = context(&["AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"]);
        enforce(&mut context, Some(Compliance::Fips140v2));
        let parameters = context.tls_params.unwrap();
        assert_eq!(parameters.cipher_suites, ["ECDHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(parameters.tls_minimum_protocol_version, parameters.tls_maximum_protocol_version);
    }

    #[test]
    fn contexts_without_parameters_are_held_to_it_too() {
        for policy in [Compliance::Fips140v2, Compliance::Fips140v3, Compliance::PostQuantum] {
            let mut context = tls::CommonTlsContext::default();
            enforce(&mut context, Some(policy));
            assert!(context.tls_params.is_some());
        }
    }
}
