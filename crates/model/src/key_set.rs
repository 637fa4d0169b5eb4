use pilot_base::Name;

/// Where keys are asked for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KeySource {
    Uri(Name),
    /// An issuer that tells where its keys are, by OpenID Connect Discovery.
    Issuer(Name),
}

impl KeySource {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Uri(name) | Self::Issuer(name) => name,
        }
    }
}

/// What came of asking.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeySet {
    /// The newest keys that somebody had.
    pub keys: Option<Name>,
    /// Why the last attempt brought none.
    pub failure: Option<Name>,
}

/// A public key whose private half nobody has, in place of keys that did not come or cannot be used: then no token is good.
pub const NOBODYS_KEYS: &str = r#"{
  "keys": [
    {
      "kty": "RSA",
      "e": "AQAB",
      "n": "0xObjM0UvS_oaazjpEYlAbwctEJ4L8pH3OuTb7qth7gUwqet-EzQB4dgFdvSdMgrLnSncQGRjpEYz3F3viIbH-3EN3TxSlPNviHxeOdyiBVfumN8dMxbLvVJUpfNOnvmMxJcl-8NNjAwcOjk4otSALaYgYYyOPyvKtgVdrQr-FoubWX4yrjxW-MJ2-7OBeepUUNOsVwGV23YX03sVkkyvY3otRflkBcY3_HKpBxJl9wk2GyOShN4_PNUF9-vwfnvOXMbCDX-w4PTef4geeb_GiT40YCKHTKMSPVanGRn5GExIWmki-mmqh94-mPTJyBR74ShspL3BxPZitDL574T1w"
    }
  ]
}"#;
