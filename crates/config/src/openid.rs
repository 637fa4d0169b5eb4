//! OpenID Connect Discovery, as far as it tells where keys are.

use serde_json::Value;

/// Where an issuer tells about itself, behind its own address.
const PATH: &str = "/.well-known/openid-configuration";

/// The page where an issuer tells about itself.
pub fn discovery_uri(issuer: &str) -> String {
    format!("{}{PATH}", issuer.strip_suffix('/').unwrap_or(issuer))
}

/// Where such a page says that the keys are.
pub fn told_jwks_uri(page: &str) -> Option<String> {
    let told: Value = serde_json::from_str(page).ok()?;
    told.get("jwks_uri")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{discovery_uri, told_jwks_uri};

    #[test]
    fn issuers_tell_about_themselves_with_or_without_a_slash_at_their_end() {
        let page = "https://issuer.example.com/tenant/.well-known/openid-configuration";
        assert_eq!(discovery_uri("https://issuer.example.com/tenant"), page);
        assert_eq!(discovery_uri("https://issuer.example.com/tenant/"), page);
    }

    #[test]
    fn only_a_page_with_an_address_tells_one() {
        assert_eq!(told_jwks_uri(r#"{"jwks_uri": "https://keys"}"#).as_deref(), Some("https://keys"));
        for page in ["<html>", "{}", r#"{"jwks_uri": 1}"#, "[]"] {
            assert_eq!(told_jwks_uri(page), None, "{page}");
        }
    }
}
