use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::{FilesError, Plugged, keep_self_signed, plugged_in};
use crate::Authority;

const NOW: i64 = 1_800_000_000;
const YEAR: i64 = 365 * 24 * 3600;

#[test]
fn a_self_signed_authority_is_made_once_and_only_for_its_owner() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("var/lib/ca");
    let made = keep_self_signed(&folder, "cluster.local", YEAR, NOW).unwrap();
    assert!(Authority::new(&made, NOW).is_ok());
    for name in ["ca-cert.pem", "ca-key.pem"] {
        let mode = fs::metadata(folder.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o077, 0);
    let again = keep_self_signed(&folder, "another", YEAR, NOW + 5).unwrap();
    assert!(made == again, "it is kept");
    let beside = fs::read_dir(folder.parent().unwrap()).unwrap().count();
    assert_eq!(beside, 1, "nothing half-written is left");
}

#[test]
fn what_is_not_whole_is_not_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("ca");
    keep_self_signed(&folder, "cluster.local", YEAR, NOW).unwrap();
    fs::remove_file(folder.join("ca-key.pem")).unwrap();
    let error = keep_self_signed(&folder, "cluster.local", YEAR, NOW).err().unwrap();
    assert!(error.to_string().contains("ca-cert.pem but not ca-key.pem"), "{error}");
    assert!(folder.join("ca-cert.pem").exists());
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    let error = keep_self_signed(&file.join("ca"), "cluster.local", YEAR, NOW).err().unwrap();
    assert!(error.to_string().contains("file/ca"), "{error}");
}

#[test]
fn both_layouts_are_read_and_half_ones_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    assert!(matches!(plugged_in(folder), Ok(Plugged::Absent)));
    assert!(matches!(plugged_in(&folder.join("nowhere")), Ok(Plugged::Absent)));
    for (name, text) in [("tls.crt", "chain"), ("tls.key", "key")] {
        fs::write(folder.join(name), text).unwrap();
    }
    assert!(matches!(plugged_in(folder), Err(FilesError::Incomplete { missing: "ca.crt", .. })));
    fs::write(folder.join("ca.crt"), "root").unwrap();
    let Ok(Plugged::Present(found)) = plugged_in(folder) else { panic!("it is whole") };
    assert_eq!([found.certificate, found.key, found.chain, found.root], ["chain", "key", "chain", "root"]);
    for name in ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"] {
        fs::write(folder.join(name), name).unwrap();
    }
    let Ok(Plugged::Present(found)) = plugged_in(folder) else { panic!("it is whole") };
    assert_eq!(found.chain, "cert-chain.pem", "Istio's own names come first");
    fs::write(folder.join("ca-key.pem"), vec![b'x'; 2 << 20]).unwrap();
    assert!(matches!(plugged_in(folder), Err(FilesError::Read(..))));
}
