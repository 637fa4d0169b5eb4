//! The messages of Istio's certificate service, which agents ask for certificates.

/// The service.
pub const SERVICE: &str = "istio.v1.auth.IstioCertificateService";
/// Its one method, as a path of HTTP/2.
pub const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// `istio.v1.auth.IstioCertificateRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub struct CertificateRequest {
    /// PEM. Only its public key is used, once it was seen to be the caller's.
    #[prost(string, tag = "1")]
    pub csr: String,
    /// Seconds; nothing or less for what the authority finds right.
    #[prost(int64, tag = "3")]
    pub validity_duration: i64,
    /// `CertSigner` and `ImpersonatedIdentity`, for those who have them.
    #[prost(message, optional, tag = "4")]
    pub metadata: Option<prost_types::Struct>,
}

/// `istio.v1.auth.IstioCertificateResponse`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CertificateResponse {
    /// PEM: the certificate, then each intermediate, and at the end all roots in one text.
    #[prost(string, repeated, tag = "1")]
    pub cert_chain: Vec<String>,
}
