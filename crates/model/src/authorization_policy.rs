use pilot_base::Name;

use crate::PolicyTarget;

/// Who may call what.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuthorizationPolicy {
    pub target: PolicyTarget,
    pub action: AuthzAction,
    /// Any of them. None at all never matches: a policy that allows then allows nothing.
    pub rules: Vec<AuthzRule>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum AuthzAction {
    #[default]
    Allow,
    Deny,
    /// Only notes what matched.
    Audit,
    /// Asks this provider of the mesh configuration.
    Custom(Name),
}

/// One of the sources calls one of the operations, and every condition holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuthzRule {
    /// All matches of one source must hold. None at all means anyone.
    pub from: Vec<Vec<AuthzMatch>>,
    /// All matches of one operation must hold. None at all means anything.
    pub to: Vec<Vec<AuthzMatch>>,
    pub when: Vec<AuthzMatch>,
}

/// An attribute is one of `values`, if there are any, and none of `not_values`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthzMatch {
    pub attribute: AuthzAttribute,
    pub values: Vec<Name>,
    pub not_values: Vec<Name>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AuthzAttribute {
    // Of the caller.
    SourceIp,
    RemoteIp,
    Namespace,
    ServiceAccount,
    TrustDomain,
    Principal,
    RequestPrincipal,
    Audiences,
    Presenter,
    /// A claim of the token, by the keys that lead to it.
    Claim(Vec<Name>),
    Header(Name),
    // Of what is called.
    DestinationIp,
    DestinationPort,
    Sni,
    /// What a filter of Envoy's left under a key.
    FilterMetadata {
        filter: Name,
        key: Name,
    },
    Host,
    Method,
    Path,
}

impl AuthzAttribute {
    /// Is it about what is called, and not about who calls?
    pub fn is_of_operation(&self) -> bool {
        match self {
            Self::SourceIp
            | Self::RemoteIp
            | Self::Namespace
            | Self::ServiceAccount
            | Self::TrustDomain
            | Self::Principal
            | Self::RequestPrincipal
            | Self::Audiences
            | Self::Presenter
            | Self::Claim(_)
            | Self::Header(_) => false,
            Self::DestinationIp
            | Self::DestinationPort
            | Self::Sni
            | Self::FilterMetadata { .. }
            | Self::Host
            | Self::Method
            | Self::Path => true,
        }
    }

    /// Does it exist only where requests are looked at?
    pub fn is_http_only(&self) -> bool {
        matches!(
            self,
            Self::RequestPrincipal
                | Self::Audiences
                | Self::Presenter
                | Self::Claim(_)
                | Self::Header(_)
                | Self::Host
                | Self::Method
                | Self::Path
        )
    }
}
