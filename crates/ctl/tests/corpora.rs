//! Istio's own examples of good and bad objects, through `pilotctl validate`. They come with Istio's module at test time;
//! `PILOT_ISTIO_MODULE` says where it lies.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// What only an API server can judge, because the rule stands in the schema of the CRD alone.
const ONLY_IN_THE_SCHEMA: [&str; 5] = [
    "envoyfilter-invalid.yaml waypoint-wrong-match",
    "envoyfilter-invalid.yaml waypoint-wrong-port",
    "peerauth-invalid.yaml empty-port-level",
    "wasm-invalid.yaml invalid-imagePullSecret",
    "wasm-invalid.yaml invalid-pluginName",
];

#[allow(clippy::disallowed_methods, reason = "tests are told by the environment where test data is")]
fn module() -> Option<PathBuf> {
    let found = std::env::var_os("PILOT_ISTIO_MODULE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let required = std::env::var_os("PILOT_REQUIRE_ALL").is_some_and(|v| !v.is_empty());
    assert!(found.is_some() || !required, "Istio's module is not there: `make corpora` gets it");
    if found.is_none() {
        eprintln!("skipped: Istio's module is not there; `make corpora` gets it");
    }
    found
}

/// Is an object refused, and with which words?
fn refused(folder: &Path, text: &str) -> Option<String> {
    let file = folder.join("object.yaml");
    std::fs::write(&file, text).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_pilotctl")).args(["validate", "-f"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => None,
        Some(1) => Some(said),
        other => panic!("ended with {other:?}: {said}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn documents(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut all = vec![String::new()];
    for line in text.lines() {
        match line.trim_end() {
            "---" => all.push(String::new()),
            line => all.last_mut().unwrap().push_str(&format!("{line}\n")),
        }
    }
    all.retain(|document| document.lines().any(|line| !line.is_empty() && !line.starts_with('#')));
    all
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

fn name(document: &str) -> &str {
    let named = document.lines().find_map(|line| line.trim().strip_prefix("name: "));
    named.unwrap_or_default()
}

#[test]
fn the_examples_of_the_schemas_are_judged_as_by_istio() {
    let Some(module) = module() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files(&module.join("pkg/config/validation/testdata/crds")) {
        for document in documents(&file) {
            count += 1;
            let expected = document.lines().find_map(|line| line.strip_prefix("_err: "));
            let object: String = document
                .lines()
                .filter(|line| !line.starts_with("_err"))
                .map(|line| format!("{line}\n"))
                .collect();
            let id = format!("{} {}", file.file_name().unwrap().display(), name(&object));
            match (expected, refused(scratch.path(), &object)) {
                (Some(_), Some(_)) | (None, None) => {}
                (Some(why), None) if !ONLY_IN_THE_SCHEMA.contains(&id.as_str()) => {
                    wrong.push(format!("{id}: accepted, though: {why}"));
                }
                (Some(_), None) => {}
                (None, Some(said)) => wrong.push(format!("{id}: refused: {said}")),
            }
        }
    }
    assert!(count > 100, "only {count} documents were found");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_valid_objects_are_accepted_unless_they_ask_to_be_refused() {
    let Some(module) = module() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files(&module.join("pkg/test/datasets/validation/dataset")) {
        for document in documents(&file) {
            count += 1;
            let id = format!("{} {}", file.file_name().unwrap().display(), name(&document));
            if let Some(said) = refused(scratch.path(), &document) {
                wrong.push(format!("{id}: refused: {said}"));
            }
            let marked = document.replacen(
                "metadata:\n",
                "metadata:\n  annotations: {internal.istio.io/webhook-always-reject: \"true\"}\n",
                1,
            );
            if refused(scratch.path(), &marked).is_none() {
                wrong.push(format!("{id}: accepted, though it asks to be refused"));
            }
        }
    }
    assert!(count > 30, "only {count} documents were found");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
