use pilot_base::Name;

use crate::{PolicyTarget, Span};

/// Which tokens workloads take: one that is sent must be good; none need be sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestAuthentication {
    pub target: PolicyTarget,
    pub rules: Vec<JwtRule>,
}

/// Tokens of one issuer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JwtRule {
    pub issuer: Name,
    pub audiences: Vec<Name>,
    /// Where the keys are.
    pub jwks_uri: Name,
    /// The keys themselves.
    pub jwks: Name,
    /// Headers that hold a token, and what stands before it there.
    pub from_headers: Vec<(Name, Name)>,
    pub from_params: Vec<Name>,
    pub from_cookies: Vec<Name>,
    pub output_payload_to_header: Name,
    pub forward_original_token: bool,
    pub output_claims: Vec<ClaimToHeader>,
    /// For fetching the keys.
    pub timeout: Option<Span>,
    pub space_delimited_claims: Vec<Name>,
}

impl JwtRule {
    pub fn fetch_timeout(&self) -> Span {
        self.timeout.unwrap_or(Span::from_secs(5))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimToHeader {
    pub header: Name,
    pub claim: Name,
}
