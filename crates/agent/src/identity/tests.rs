use std::path::Path;
use std::sync::Arc;

use pilot_ca::{Authority, Curve, Limits, Material, Order, SigningRequest};

use super::secrets::Issued;
use super::{CertificateFiles, Secret, Secrets, Settings};
use crate::Env;
use crate::metrics::Metrics;

const NOW: i64 = 1_800_000_000;

/// A root, and somebody whom it certifies.
fn issued() -> Issued {
    let material = Material::self_signed("tests", 1_000_000, NOW).unwrap();
    let authority = Authority::new(&material, NOW).unwrap();
    let names = ["spiffe://cluster.local/ns/a/sa/b".to_owned()];
    let id = pilot_ca::SpiffeId::parse(&names[0]).unwrap();
    let request = SigningRequest::new(&id, Curve::P256).unwrap();
    let order = Order { csr: &request.csr, names: &names, ttl: 60, now: NOW };
    let texts = authority.sign(&order, Limits { default_ttl: 60, max_ttl: 60 }).unwrap();
    Issued { chain: texts.concat(), key: request.key, root: material.root, expires: NOW + 60 }
}

fn secrets<const N: usize>(folder: &Path, variables: [(&str, &str); N]) -> Secrets {
    let mut settings = Settings::read(&Env::from(variables), "shop").unwrap();
    settings.files = CertificateFiles::of(&folder.join("certs").display().to_string());
    Secrets::new(&settings, Arc::new(Metrics::new().unwrap()))
}

fn put(folder: &Path, issued: &Issued) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, text) in
        [("cert-chain.pem", &issued.chain), ("key.pem", &issued.key), ("root-cert.pem", &issued.root)]
    {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

fn pair(secrets: &Secrets, name: &str) -> Result<String, String> {
    match secrets.get(name) {
        Ok(Secret::Pair { chain, .. }) => Ok(chain),
        Ok(Secret::Roots(_)) => panic!("{name} is no pair"),
        Err(error) => Err(error.to_string()),
    }
}

fn roots(secrets: &Secrets, name: &str) -> Result<String, String> {
    match secrets.get(name) {
        Ok(Secret::Roots(text)) => Ok(text),
        Ok(Secret::Pair { .. }) => panic!("{name} is no root"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn what_the_authority_issued_is_served_until_files_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let (secrets, first, second) = (secrets(folder.path(), []), issued(), issued());
    assert_eq!(pair(&secrets, "default"), Err("there is no certificate yet".to_owned()));
    secrets.set_issued(first.clone());
    assert_eq!(pair(&secrets, "default"), Ok(first.chain));
    assert_eq!(roots(&secrets, "ROOTCA"), Ok(first.root.clone()));
    secrets.set_more_roots(vec![second.root.clone(), first.root.clone()]);
    assert_eq!(roots(&secrets, "ROOTCA"), Ok(format!("{}{}", first.root, second.root)));
    put(&folder.path().join("certs"), &second);
    assert_eq!(pair(&secrets, "default"), Ok(second.chain));
}

#[test]
fn files_are_served_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (secrets, one, other) = (secrets(folder.path(), []), issued(), issued());
    put(&folder.path().join("one"), &one);
    put(&folder.path().join("other"), &other);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let both = |chain: &str, key: &str| format!("file-cert:{}~{}", path(chain), path(key));
    assert_eq!(pair(&secrets, &both("one/cert-chain.pem", "one/key.pem")), Ok(one.chain));
    let mixed = pair(&secrets, &both("one/cert-chain.pem", "other/key.pem")).unwrap_err();
    assert!(mixed.contains("does not belong"), "{mixed}");
    let missing = pair(&secrets, &both("none", "one/key.pem")).unwrap_err();
    assert!(missing.contains("none: it cannot be read"), "{missing}");
    assert_eq!(roots(&secrets, &format!("file-root:{}", path("one/root-cert.pem"))), Ok(one.root));
    assert!(roots(&secrets, &format!("file-root:{}", path("one/key.pem"))).is_err());
    for unknown in ["", "other", "file-cert:a", "file-cert:a~b~c"] {
        assert_eq!(pair(&secrets, unknown), Err("there is no secret of this name".to_owned()), "{unknown}");
    }
}

#[tokio::test(start_paused = true)]
async fn files_that_change_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = Arc::new(secrets(folder.path(), []));
    let (first, second) = (issued(), issued());
    let certs = folder.path().join("certs");
    put(&certs, &first);
    assert_eq!(pair(&secrets, "default"), Ok(first.chain));
    let mut changes = secrets.changes();
    let mut following = tokio::task::JoinSet::new();
    following.spawn(Arc::clone(&secrets).follow_files());
    put(&certs, &second);
    changes.changed().await.unwrap();
    assert_eq!(pair(&secrets, "default"), Ok(second.chain));
}

#[test]
fn output_is_written_and_not_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let certs = folder.path().join("certs");
    let secrets = secrets(folder.path(), [("OUTPUT_CERTS", certs.to_str().unwrap())]);
    let (first, second) = (issued(), issued());
    for issued in [first, second] {
        secrets.set_issued(issued.clone());
        let read = |name: &str| std::fs::read_to_string(certs.join(name)).unwrap();
        assert_eq!([read("cert-chain.pem"), read("key.pem")], [issued.chain.clone(), issued.key]);
        assert_eq!(read("root-cert.pem"), issued.root);
        assert_eq!(pair(&secrets, "default"), Ok(issued.chain));
    }
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(certs.join("key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn settings_that_mean_nothing_are_refused() {
    let error = |name: &str, value: &str| {
        Settings::read(&Env::from([(name, value)]), "shop").unwrap_err().to_string()
    };
    assert!(error("CREDENTIAL_FETCHER_TYPE", "GoogleComputeEngine").contains("GoogleComputeEngine"));
    assert!(error("CA_PROVIDER", "GoogleCA").contains("GoogleCA"));
    assert!(error("SERVICE_ACCOUNT", "a/b").contains("a/b"));
    assert!(error("ECC_SIGNATURE_ALGORITHM", "DSA").contains("ECDSA"));
    let settings = Settings::read(&Env::default(), "shop").unwrap();
    assert_eq!(settings.id.to_string(), "spiffe://cluster.local/ns/shop/sa/default");
}
