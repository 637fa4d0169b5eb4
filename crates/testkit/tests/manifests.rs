//! Our manifests as kustomize sees them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pilot_testkit::kube::MANIFESTS;
use serde_json::Value;

const LIST: &str = "kustomization.yaml";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests")
}

fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join(file)).unwrap();
    text.split("\n---\n").map(|text| pilot_config::read_value(text, file).unwrap()).collect()
}

fn texts(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn everything_is_installed_that_is_there_and_that_tests_install() {
    let list = documents(LIST).remove(0);
    let named = texts(&list["resources"]);
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name());
    let there: BTreeSet<String> =
        files.map(|name| name.to_string_lossy().into_owned()).filter(|name| name != LIST).collect();
    assert_eq!(named, there);
    // Tests install the webhook by itself: it calls an address there.
    let tested = MANIFESTS.into_iter().chain(["validation"]).map(|name| format!("{name}.yaml"));
    assert_eq!(named, tested.collect());
}

#[test]
fn what_kustomize_changes_is_there_to_be_changed() {
    let list = documents(LIST).remove(0);
    let namespace = &list["namespace"];
    let image = &list["images"][0]["name"];
    let mut images = BTreeSet::new();
    for file in texts(&list["resources"]) {
        for object in documents(&file) {
            let said = &object["metadata"]["namespace"];
            assert!(said.is_null() || said == namespace, "{file}: {said}");
            for container in
                object.pointer("/spec/template/spec/containers").into_iter().flat_map(Value::as_array)
            {
                images.extend(container.iter().map(|one| one["image"].clone().to_string()));
            }
        }
    }
    assert_eq!(images, BTreeSet::from([image.to_string()]));
}
