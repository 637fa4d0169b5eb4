//! The rules of the house, as far as a program can check them. ARCHITECTURE.md tells people the same.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Which of our crates each may use. A new crate, or a new arrow, is a decision: it is made here and in ARCHITECTURE.md.
const MAY_USE: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("api", &[]),
    ("envoy-api", &[]),
    ("incr", &["base"]),
    ("model", &["base"]),
    ("config", &["api", "base", "envoy-api", "model"]),
    ("mesh", &["base", "model"]),
    ("xds", &["base"]),
    ("envoy", &["base", "envoy-api", "mesh", "model", "xds"]),
    ("pipeline", &["base", "envoy", "incr", "mesh", "model", "xds"]),
    ("ca", &[]),
    ("source", &["base", "model"]),
    ("source-file", &["base", "config", "model", "source"]),
    ("source-kube", &["base", "config", "model", "source"]),
    (
        "server",
        &["base", "ca", "config", "envoy-api", "incr", "model", "pipeline", "source", "webhook", "xds"],
    ),
    ("webhook", &["base", "config"]),
    ("kube-write", &["base", "ca", "config", "model", "server", "source-kube"]),
    ("source-http", &[]),
    ("source-store", &["base", "config", "model", "source"]),
    ("source-memory", &["base", "config", "source", "source-store"]),
    ("source-cloudfoundry", &["base", "config", "source", "source-http", "source-store"]),
    ("source-consul", &["base", "config", "source", "source-http", "source-store"]),
    ("source-etcd", &["base", "config", "source", "source-http", "source-store"]),
    ("source-eureka", &["base", "source", "source-http"]),
    ("source-dns", &["base", "source"]),
    ("source-marathon", &["base", "source", "source-http"]),
    ("source-nomad", &["base", "source", "source-http"]),
    ("source-url", &["source-http", "source-store"]),
    ("source-zookeeper", &["base", "source"]),
    ("cli", &["base"]),
    (
        "discovery",
        &[
            "base",
            "ca",
            "cli",
            "config",
            "kube-write",
            "model",
            "server",
            "source",
            "source-cloudfoundry",
            "source-consul",
            "source-dns",
            "source-etcd",
            "source-eureka",
            "source-file",
            "source-http",
            "source-kube",
            "source-marathon",
            "source-memory",
            "source-nomad",
            "source-store",
            "source-url",
            "source-zookeeper",
        ],
    ),
    ("gotmpl", &[]),
    ("agent", &["base", "ca", "cli", "config", "gotmpl"]),
    ("ctl", &["base", "cli", "config", "incr", "model", "pipeline", "source-kube"]),
    ("bench", &["base", "cli", "config"]),
];

/// Free of I/O, of time and of everything that is not a function of its inputs.
const CORE: &[&str] = &["base", "incr", "model", "config", "mesh", "envoy", "xds", "pipeline", "gotmpl"];

/// Only for tests: may use anything, and nobody else may use it.
const FOR_TESTS: &[&str] = &["sim", "testkit"];

const MOST_LINES: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

struct Package {
    name: String,
    /// All that it uses outside of tests and build scripts.
    uses: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--format-version=1", "--offline", "--manifest-path"]);
    let output = command.arg(root().join("Cargo.toml")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let package = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let used =
            dependencies.filter(|d| d["kind"].is_null()).map(|d| d["name"].as_str().unwrap().to_owned());
        let name =
            package["name"].as_str().unwrap().strip_prefix("pilot-").expect("our crates are called pilot-…");
        Package { name: name.to_owned(), uses: used.collect() }
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            all.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            all.push(path);
        }
    }
    all.sort();
    all
}

/// The code of a file without the tests at its end.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned()
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for package in packages() {
        if FOR_TESTS.contains(&package.name.as_str()) {
            continue;
        }
        let may = allowed
            .get(package.name.as_str())
            .unwrap_or_else(|| panic!("crate {} has no place yet", package.name));
        for used in package.uses.iter().filter_map(|name| name.strip_prefix("pilot-")) {
            assert!(may.contains(&used), "{} may not use {used}", package.name);
        }
        let known: BTreeSet<&str> =
            package.uses.iter().filter_map(|name| name.strip_prefix("pilot-")).collect();
        let unused: Vec<_> = may.iter().filter(|name| !known.contains(**name)).collect();
        assert!(unused.is_empty(), "{} does not use {unused:?} any more: take it off the list", package.name);
    }
}

#[test]
fn the_core_knows_no_outside_world() {
    let outside = ["tokio", "hyper", "tonic", "axum", "notify", "tracing", "libc", "clap", "tempfile"];
    for package in packages().iter().filter(|package| CORE.contains(&package.name.as_str())) {
        for name in outside {
            assert!(!package.uses.contains(name), "{} uses {name}", package.name);
        }
    }
    let banned = [
        "async fn",
        ".await",
        "std::time::Instant",
        "SystemTime",
        "std::env::",
        "std::fs",
        "std::thread",
        "TcpStream",
        "println!",
    ];
    for name in CORE {
        for file in files(&root().join("crates").join(name).join("src"), ".rs") {
            let code = code(&file);
            for word in banned {
                assert!(!code.contains(word), "{} has {word}", file.display());
            }
        }
    }
}

#[test]
fn files_are_small() {
    for file in files(&root().join("crates"), ".rs") {
        let lines = code(&file).lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines without its tests", file.display());
    }
}

#[test]
fn nothing_is_left_open() {
    let open = ["TODO", "FIXME", "XXX", "#[ignore"];
    for file in files(&root().join("crates"), ".rs") {
        // This file has to name what it looks for.
        if file.ends_with("testkit/tests/architecture.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for word in open {
            assert!(!text.contains(word), "{} has {word}", file.display());
        }
    }
}

#[test]
fn every_kind_has_one_file() {
    let text = fs::read_to_string(root().join("crates/model/src/config.rs")).unwrap();
    let kinds = text.split("pub enum Kind {").nth(1).unwrap().split('}').next().unwrap();
    let kinds: Vec<&str> = kinds
        .lines()
        .map(|line| line.trim().trim_end_matches(','))
        .filter(|l| l.starts_with(char::is_uppercase))
        .collect();
    assert!(kinds.len() >= 11, "{kinds:?}");
    let snake = |kind: &str| {
        kind.chars().enumerate().fold(String::new(), |text, (i, c)| {
            let dash = if c.is_uppercase() && i > 0 { "_" } else { "" };
            format!("{text}{dash}{}", c.to_lowercase())
        })
    };
    let config = root().join("crates/config/src");
    for kind in kinds {
        // Both ways in which Kubernetes tells endpoints are read in one file.
        let name = if kind == "EndpointSlice" { "endpoints".to_owned() } else { snake(kind) };
        let found = ["kinds", "kube"]
            .map(|folder| config.join(folder).join(format!("{name}.rs")))
            .iter()
            .filter(|p| p.exists())
            .count();
        assert_eq!(found, 1, "{kind} has no file of its own in crates/config");
    }
}

#[test]
fn documents_are_true() {
    let root = root();
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    assert!(architecture.lines().count() <= 300);
    for package in packages() {
        let told = [format!("crates/{}", package.name), format!("`{}`", package.name)];
        let is_told = told.iter().any(|text| architecture.contains(text));
        assert!(is_told, "ARCHITECTURE.md does not tell of {}", package.name);
    }
    let makefile = fs::read_to_string(root.join("Makefile")).unwrap();
    for file in files(&root, ".md") {
        let text = fs::read_to_string(&file).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap();
            if !path.is_empty() && !path.contains("://") {
                assert!(
                    file.parent().unwrap().join(path).exists(),
                    "{}: {link} leads nowhere",
                    file.display()
                );
            }
        }
        for target in text.split("`make ").skip(1).filter_map(|rest| rest.split(['`', ' ']).next()) {
            assert!(
                makefile.contains(&format!("\n{target}:")),
                "{}: there is no `make {target}`",
                file.display()
            );
        }
    }
}

#[test]
fn what_code_refers_to_exists() {
    for file in files(&root().join("crates"), ".rs") {
        let text = fs::read_to_string(&file).unwrap();
        for start in ["tests/behaviour/", "docs/"] {
            for rest in text.split(start).skip(1) {
                let path: String =
                    rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "/-_.".contains(*c)).collect();
                let path = format!("{start}{}", path.trim_end_matches('.'));
                if path.ends_with(".yaml") || path.ends_with(".md") {
                    assert!(root().join(&path).exists(), "{} refers to {path}", file.display());
                }
            }
        }
    }
}

#[test]
fn only_tests_use_test_crates() {
    for package in packages().iter().filter(|package| !FOR_TESTS.contains(&package.name.as_str())) {
        for name in FOR_TESTS {
            assert!(!package.uses.contains(&format!("pilot-{name}")), "{} uses {name}", package.name);
        }
    }
}
