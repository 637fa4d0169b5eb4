//! The contract of stores of rules on a folder.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use pilot_config::ReadOptions;
use pilot_model::Object;
use pilot_source::Source;
use pilot_source::contract::{Follower, Mirror};
use pilot_source_file::FileSource;
use pilot_source_store::contract::{StoreRig, check_store, check_store_load, rule};
use tempfile::TempDir;

struct Folder(TempDir);

impl StoreRig for Folder {
    fn about(&self) -> &'static str {
        "files"
    }

    fn source(&self, _: SocketAddr) -> Box<dyn Source> {
        Box::new(FileSource::open(self.0.path(), ReadOptions::default()).unwrap())
    }

    fn server(&self) -> Option<SocketAddr> {
        None
    }

    async fn put(&mut self, key: &str, bytes: &[u8]) -> bool {
        std::fs::write(self.0.path().join(format!("{key}.yaml")), bytes).unwrap();
        true
    }

    async fn delete(&mut self, key: &str) {
        std::fs::remove_file(self.0.path().join(format!("{key}.yaml"))).unwrap();
    }

    async fn list(&mut self) -> BTreeSet<String> {
        let files = std::fs::read_dir(self.0.path()).unwrap().flatten();
        files.filter_map(|file| Some(file.path().file_stem()?.to_string_lossy().into_owned())).collect()
    }
}

#[tokio::test]
async fn a_folder_keeps_the_contract_of_stores() {
    check_store(&mut Folder(tempfile::tempdir().unwrap())).await;
    check_store_load(&mut Folder(tempfile::tempdir().unwrap())).await;
}

#[tokio::test]
async fn a_folder_that_is_polled_does_without_a_word_of_the_kernel() {
    let scratch = tempfile::tempdir().unwrap();
    let (mesh, other) = (scratch.path().join("mesh"), scratch.path().join("other.yaml"));
    std::fs::create_dir(&mesh).unwrap();
    std::fs::write(&other, rule("first", 1)).unwrap();
    // Who writes it by its other name is not noticed by those who watch this folder.
    std::fs::hard_link(&other, mesh.join("first.yaml")).unwrap();
    let source = FileSource::open(&mesh, ReadOptions::default()).unwrap();
    let mut follower = Follower::start(Box::new(source.polled(Duration::from_millis(50))));
    let says = |mirror: &Mirror, host: &str| {
        mirror.objects().any(|object| match object {
            Object::DestinationRule(rule) => rule.spec.host.as_str() == host,
            _ => false,
        })
    };
    follower.until("what was there", |mirror| says(mirror, "h1.example.com")).await;
    std::fs::write(&other, rule("first", 2)).unwrap();
    follower.until("a change that is not told", |mirror| says(mirror, "h2.example.com")).await;
    follower.stop().await;
}
