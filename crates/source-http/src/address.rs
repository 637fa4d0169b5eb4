use std::fmt;

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Uri};

/// Where a server is: a URL, and what it says about who asks.
#[derive(Clone)]
pub struct ServerAddress {
    base: Uri,
    authorization: Option<HeaderValue>,
}

/// Why a text is not the address of a server.
#[derive(thiserror::Error, Debug)]
pub enum AddressError {
    /// It is no URL.
    #[error("is not a URL such as http://127.0.0.1:8500")]
    Form,
    /// It is something other than HTTP.
    #[error("has the scheme {0:?}; http and https are spoken")]
    Scheme(String),
}

impl ServerAddress {
    /// Reads `http://user:password@host:port/prefix`; user and password become an authorization, in which `%2F` is a slash.
    /// Without a scheme it is plain HTTP.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let rest = rest.trim_end_matches('/');
        if !matches!(scheme, "http" | "https") {
            return Err(AddressError::Scheme(scheme.to_owned()));
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let authorization =
            user.map(|user| HeaderValue::from_str(&format!("Basic {}", BASE64.encode(&decoded(user)))));
        let mut authorization = authorization.transpose().map_err(|_| AddressError::Form)?;
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        let base: Uri = format!("{scheme}://{host}{path}").parse().map_err(|_| AddressError::Form)?;
        if base.host().is_none_or(str::is_empty) || base.query().is_some() {
            return Err(AddressError::Form);
        }
        Ok(Self { base, authorization })
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.base.scheme() == Some(&Scheme::HTTPS)
    }

    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// A page of the server; a path that cannot be one is none.
    pub(crate) fn page(&self, path: &str) -> Option<Uri> {
        let whole = format!("{}{path}", self.base.path().trim_end_matches('/'));
        let mut parts = self.base.clone().into_parts();
        parts.path_and_query = Some(whole.parse::<PathAndQuery>().ok()?);
        Uri::from_parts(parts).ok()
    }
}

/// Without what it says about who asks.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base.to_string().trim_end_matches('/'))
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A text as it may stand in a path or a query: names may have anything in them that registries allow.
pub fn encoded(text: &str) -> String {
    let safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~*".contains(byte);
    let each = text
        .bytes()
        .map(|byte| if safe(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
    each.collect()
}

/// The opposite; what is no such code stays as it is.
fn decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| *first == b'%');
        match digits.and_then(|digits| HEXLOWER_PERMISSIVE.decode(digits).ok()) {
            Some(byte) => {
                out.extend(byte);
                rest = &behind[2..];
            }
            None => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64;

    use super::{ServerAddress, encoded};

    #[test]
    fn who_asks_is_never_shown() {
        let address = ServerAddress::parse("https://user:secret@eureka.example.com:8761/eureka/").unwrap();
        assert_eq!(format!("{address} {address:?}").matches("secret").count(), 0);
        assert_eq!(address.to_string(), "https://eureka.example.com:8761/eureka");
        assert_eq!(address.authorization().unwrap(), "Basic dXNlcjpzZWNyZXQ=");
        assert!(format!("{:?}", address.authorization()).contains("Sensitive"));
        assert_eq!(
            address.page("/apps?x=1").unwrap().to_string(),
            "https://eureka.example.com:8761/eureka/apps?x=1"
        );
    }

    #[test]
    fn a_password_may_have_any_characters() {
        let address = ServerAddress::parse("http://pilot:a%2fb%2Cc%25d%zz%4@eureka:8761/eureka").unwrap();
        let expected = format!("Basic {}", BASE64.encode(b"pilot:a/b,c%d%zz%4"));
        assert_eq!(address.authorization().unwrap(), expected.as_str());
    }

    #[test]
    fn any_text_can_stand_in_a_path() {
        assert_eq!(encoded("a b/c?ä"), "a%20b%2Fc%3F%C3%A4");
    }

    #[test]
    fn what_is_no_address_is_told() {
        assert_eq!(ServerAddress::parse("127.0.0.1:8500").unwrap().to_string(), "http://127.0.0.1:8500");
        for text in ["", "http://", "ftp://host", "http://a b", "http://host?x=y"] {
            assert!(ServerAddress::parse(text).is_err(), "{text}");
        }
    }
}
