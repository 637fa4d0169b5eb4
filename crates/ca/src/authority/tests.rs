use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{Authority, CaError, Limits, Order};
use crate::material::{Material, MaterialError};
use crate::spiffe::identities;

const NOW: i64 = 1_800_000_000;
const DAY: i64 = 24 * 3600;
const LIMITS: Limits = Limits { default_ttl: DAY, max_ttl: 90 * DAY };
const ME: &str = "spiffe://cluster.local/ns/shop/sa/cart";

fn self_signed() -> Material {
    Material::self_signed("cluster.local", 3650 * DAY, NOW).unwrap()
}

fn csr(names: &[&str]) -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.subject_alt_names =
        names.iter().map(|name| rcgen::SanType::URI((*name).try_into().unwrap())).collect();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

fn sign(authority: &Authority, csr: &str, ttl: i64) -> Result<Vec<String>, CaError> {
    authority.sign(&Order { csr, names: &[ME.to_owned()], ttl, now: NOW }, LIMITS)
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn the_name_is_the_callers_and_not_the_requests() {
    let authority = Authority::new(&self_signed(), NOW).unwrap();
    let texts = sign(&authority, &csr(&["spiffe://cluster.local/ns/istio-system/sa/admin"]), 0).unwrap();
    assert_eq!(texts.len(), 2, "the root signs by itself");
    assert_eq!(texts[1], authority.root());
    let leaf = der(&texts[0]);
    assert_eq!(identities(&leaf).iter().map(ToString::to_string).collect::<Vec<_>>(), [ME]);
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    assert_eq!(leaf.validity().not_before.timestamp(), NOW - 120);
    assert_eq!(leaf.validity().not_after.timestamp(), NOW + DAY);
    assert!(!leaf.is_ca());
    let usage = leaf.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
    let extended = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.server_auth && extended.client_auth);
    assert_eq!(leaf.subject().iter().count(), 0);
    assert!(leaf.subject_alternative_name().unwrap().unwrap().critical, "there is no other name");
}

#[test]
fn no_two_certificates_have_one_number() {
    let authority = Authority::new(&self_signed(), NOW).unwrap();
    let request = csr(&[]);
    let numbers: Vec<_> = (0..2)
        .map(|_| {
            let leaf = der(&sign(&authority, &request, 60).unwrap()[0]);
            X509Certificate::from_der(&leaf).unwrap().1.raw_serial().to_vec()
        })
        .collect();
    assert_ne!(numbers[0], numbers[1]);
}

#[test]
fn lifetimes_have_limits() {
    let short = Material::self_signed("cluster.local", 2 * DAY, NOW).unwrap();
    let authority = Authority::new(&short, NOW).unwrap();
    let request = csr(&[ME]);
    let end = |ttl: i64| {
        let leaf = der(&sign(&authority, &request, ttl).unwrap()[0]);
        X509Certificate::from_der(&leaf).unwrap().1.validity().not_after.timestamp() - NOW
    };
    assert_eq!([end(3600), end(-5), end(10 * DAY)], [3600, DAY, 2 * DAY]);
    let error = sign(&authority, &request, 90 * DAY + 1).unwrap_err();
    assert_eq!((error.kind(), sign(&authority, &request, i64::MAX).is_err()), ("TTL_ERROR", true));
    let late = Order { csr: &request, names: &[ME.to_owned()], ttl: 0, now: NOW + 3 * DAY };
    assert_eq!(authority.sign(&late, LIMITS), Err(CaError::NotReady));
}

#[test]
fn requests_that_prove_nothing_are_refused() {
    let authority = Authority::new(&self_signed(), NOW).unwrap();
    let good = csr(&[ME]);
    // One bit of the signature, which stands at the end.
    let mut bytes =
        rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(good.as_bytes()).unwrap().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let forged = super::pem(&bytes).replace("CERTIFICATE", "CERTIFICATE REQUEST");
    for text in ["", "hello", &good[..good.len() / 2], &forged, authority.root()] {
        let error = sign(&authority, text, 0).unwrap_err();
        assert_eq!(error.kind(), "CSR_ERROR", "{error}");
    }
    assert!(sign(&authority, &good, 0).is_ok());
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// An intermediate below a root.
fn intermediate() -> Material {
    let (root_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let root = authority_params("root").self_signed(&root_key).unwrap().pem();
    let issuer = Issuer::new(authority_params("root"), root_key);
    let own = authority_params("between").signed_by(&key, &issuer).unwrap().pem();
    Material { certificate: own.clone(), key: key.serialize_pem(), chain: own, root }
}

#[test]
fn an_intermediate_stands_between_leaf_and_root() {
    let material = intermediate();
    let authority = Authority::new(&material, NOW).unwrap();
    let texts = sign(&authority, &csr(&[ME]), 0).unwrap();
    assert_eq!(texts.len(), 3);
    assert_eq!(der(&texts[1]), der(&material.chain));
    assert!(texts[1].ends_with("-----\n"), "who puts them together gets good PEM");
    assert_eq!(texts[2], material.root);
    assert!(authority.chain_not_after().is_some());
}

#[test]
fn what_cannot_certify_is_refused_with_the_reason() {
    let why = |material: &Material| Authority::new(material, NOW).err().unwrap();
    let good = intermediate();
    let no_chain = Material { chain: String::new(), ..good.clone() };
    assert!(matches!(why(&no_chain), MaterialError::Chain(_)));
    let other_root = Material { root: self_signed().root, ..good.clone() };
    assert!(matches!(why(&other_root), MaterialError::Chain(_)));
    let other_key = Material { key: KeyPair::generate().unwrap().serialize_pem(), ..good.clone() };
    assert_eq!(why(&other_key), MaterialError::OtherKey);
    let garbage = Material { key: "hello".to_owned(), ..good.clone() };
    assert!(matches!(why(&garbage), MaterialError::Key(_)));
    let empty = Material { certificate: "hello".to_owned(), ..good };
    assert_eq!(why(&empty), MaterialError::NoCertificate("CA certificate"));
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["host".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
    let leaf =
        Material { certificate: leaf.clone(), key: key.serialize_pem(), chain: String::new(), root: leaf };
    assert_eq!(why(&leaf), MaterialError::NoAuthority);
    let old = Material::self_signed("old", DAY, NOW - 2 * DAY).unwrap();
    assert_eq!(why(&old), MaterialError::Expired);
}

#[test]
fn roots_can_only_be_added() {
    let (first, second) = (self_signed(), self_signed());
    let both = Material { root: format!("{}{}", first.root, second.root), ..first.clone() };
    let [first, second, both] = [first, second, both].map(|material| Authority::new(&material, NOW).unwrap());
    assert!(both.includes_roots_of(&first) && both.includes_roots_of(&second));
    assert!(!first.includes_roots_of(&second) && !first.includes_roots_of(&both));
}
