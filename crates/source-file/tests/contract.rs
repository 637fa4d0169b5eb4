//! The contract of sources on real folders, and what only folders can do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use pilot_config::ReadOptions;
use pilot_model::{Object, Registry};
use pilot_source::Source;
use pilot_source::contract::{Follower, Mirror, Rig, check};
use pilot_source_file::{FileSource, MeshFile};

fn entry(name: &str, port: u32) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{hosts: [{name}.example.com], resolution: STATIC, ports: [{{number: {port}, name: http, protocol: HTTP}}], endpoints: [{{address: 10.0.0.1}}]}}\n"
    )
}

fn port(object: &Object) -> Option<(String, u32)> {
    match object {
        Object::ServiceEntry(entry) => {
            Some((entry.id.name.to_string(), u32::from(entry.spec.ports[0].number)))
        }
        _ => None,
    }
}

fn ports(mirror: &Mirror) -> Vec<(String, u32)> {
    mirror.objects().filter_map(port).collect()
}

fn is(mirror: &Mirror, expected: &[(&str, u32)]) -> bool {
    mirror.ready
        && ports(mirror).iter().map(|(name, port)| (name.as_str(), *port)).eq(expected.iter().copied())
}

fn follow(folder: &Path) -> Follower {
    Follower::start(Box::new(FileSource::open(folder, ReadOptions::default()).unwrap()))
}

struct Files {
    root: PathBuf,
    away: PathBuf,
}

impl Rig for Files {
    fn source(&self) -> Box<dyn Source> {
        Box::new(FileSource::open(&self.root, ReadOptions::default()).unwrap())
    }

    async fn put(&mut self, thing: &str, value: u32) {
        fs::write(self.root.join(format!("{thing}.yaml")), entry(thing, 1000 + value)).unwrap();
    }

    async fn remove(&mut self, thing: &str) {
        fs::remove_file(self.root.join(format!("{thing}.yaml"))).unwrap();
    }

    async fn lose(&mut self) -> bool {
        fs::rename(&self.root, &self.away).unwrap();
        true
    }

    async fn find(&mut self) {
        fs::rename(&self.away, &self.root).unwrap();
    }

    fn read(&self, object: &Object) -> Option<(String, u32)> {
        port(object).map(|(name, port)| (name, port - 1000))
    }
}

#[tokio::test]
async fn a_folder_keeps_the_contract() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("mesh");
    fs::create_dir(&root).unwrap();
    check(&mut Files { root, away: scratch.path().join("away") }).await;
}

#[tokio::test]
async fn every_kind_of_one_folder_describes_a_mesh() {
    let scratch = tempfile::tempdir().unwrap();
    let deep = scratch.path().join("a/b");
    fs::create_dir_all(&deep).unwrap();
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec: {clusterIP: 10.1.0.1, ports: [{port: 80, name: http}]}\n";
    fs::write(deep.join("two.yml"), format!("{service}---\n{}", entry("one", 80))).unwrap();
    fs::write(
        scratch.path().join("pod.json"),
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}"#,
    )
    .unwrap();
    fs::write(scratch.path().join(".hidden.yaml"), entry("hidden", 80)).unwrap();
    fs::write(scratch.path().join("notes.txt"), "not ours").unwrap();
    let mut follower = follow(scratch.path());
    follower.until("three objects", |mirror| mirror.objects().count() == 3).await;
    let kubernetes =
        |object: &Object| matches!(object, Object::Service(_, s) if s.registry == Registry::Kubernetes);
    assert!(follower.mirror.objects().any(kubernetes));
    assert_eq!(ports(&follower.mirror), [("one".to_owned(), 80)]);
    assert!(follower.mirror.issues.is_empty());

    // A new folder, and files that come with it.
    let new = scratch.path().join("c/d");
    fs::create_dir_all(&new).unwrap();
    fs::write(new.join("late.yaml"), entry("late", 81)).unwrap();
    follower.until("a file in a new folder", |mirror| is(mirror, &[("late", 81), ("one", 80)])).await;
    fs::remove_dir_all(scratch.path().join("a")).unwrap();
    follower.until("a folder going away", |mirror| is(mirror, &[("late", 81)])).await;
}

#[tokio::test]
async fn what_is_broken_keeps_what_it_last_said() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("shop.yaml");
    fs::write(&file, format!("{}---\n{}", entry("a", 80), entry("b", 80))).unwrap();
    let mut follower = follow(scratch.path());
    follower.until("two objects", |mirror| is(mirror, &[("a", 80), ("b", 80)])).await;

    fs::write(&file, format!("{}---\nkind: [", entry("a", 81))).unwrap();
    follower.until("an issue", |mirror| !mirror.issues.is_empty()).await;
    assert_eq!(ports(&follower.mirror), [("a".to_owned(), 80), ("b".to_owned(), 80)], "a whole file is kept");
    let issue = follower.mirror.issues.values().next().unwrap()[0].to_string();
    assert!(issue.contains("shop.yaml:") && issue.contains("not YAML"), "{issue}");

    // One object is wrong: the others of the file change all the same.
    fs::write(&file, format!("{}---\n{}", entry("a", 82), entry("b", 80).replace("hosts:", "hostz:")))
        .unwrap();
    follower.until("the good one to change", |mirror| is(mirror, &[("a", 82), ("b", 80)])).await;
    let issues: Vec<String> = follower.mirror.issues.values().flatten().map(ToString::to_string).collect();
    assert!(issues.iter().any(|issue| issue.contains("ServiceEntry shop/b")), "{issues:?}");

    fs::write(&file, entry("a", 83)).unwrap();
    follower.until("all to be well", |mirror| is(mirror, &[("a", 83)]) && mirror.issues.is_empty()).await;
}

#[tokio::test]
async fn of_two_files_that_say_the_same_the_last_counts() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, second) = (scratch.path().join("1.yaml"), scratch.path().join("2.yaml"));
    fs::write(&first, entry("a", 80)).unwrap();
    fs::write(&second, entry("a", 81)).unwrap();
    let mut follower = follow(scratch.path());
    follower.until("the last one", |mirror| is(mirror, &[("a", 81)]) && !mirror.issues.is_empty()).await;
    fs::write(&first, entry("a", 90)).unwrap();
    fs::remove_file(&second).unwrap();
    follower.until("the first one", |mirror| is(mirror, &[("a", 90)]) && mirror.issues.is_empty()).await;
    fs::remove_file(&first).unwrap();
    follower.until("none", |mirror| is(mirror, &[])).await;
}

/// Editors and version control remove a file before they write it anew.
#[tokio::test]
async fn a_file_that_is_replaced_is_never_gone() {
    let scratch = tempfile::tempdir().unwrap();
    let (file, backup) = (scratch.path().join("a.yaml"), scratch.path().join("a.yaml~"));
    fs::write(&file, entry("a", 80)).unwrap();
    let mut follower = follow(scratch.path());
    follower.until("the first version", |mirror| is(mirror, &[("a", 80)])).await;
    for port in 81..91 {
        fs::rename(&file, &backup).unwrap();
        fs::write(&file, entry("a", port)).unwrap();
        fs::remove_file(&backup).unwrap();
        follower
            .until("the next version", |mirror| {
                assert_eq!(ports(mirror).len(), 1, "it is there at every moment");
                is(mirror, &[("a", port)])
            })
            .await;
    }
    fs::remove_file(&file).unwrap();
    follower.until("that it is gone", |mirror| is(mirror, &[])).await;
}

/// The same without a word of where it went, and where others have much to do.
#[tokio::test]
async fn a_file_that_is_removed_and_written_is_never_gone() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("a.yaml");
    fs::write(&file, entry("a", 80)).unwrap();
    let mut follower = follow(scratch.path());
    follower.until("the first version", |mirror| is(mirror, &[("a", 80)])).await;
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let hogs = std::thread::available_parallelism().map_or(1, usize::from);
    let hogs: Vec<_> = (0..hogs)
        .map(|_| {
            let done = std::sync::Arc::clone(&done);
            std::thread::spawn(move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let gone = std::cell::Cell::new(0);
    for port in 81..1081 {
        fs::remove_file(&file).unwrap();
        fs::write(&file, entry("a", port)).unwrap();
        follower
            .until("the next version", |mirror| {
                gone.set(gone.get() + usize::from(ports(mirror).is_empty()));
                is(mirror, &[("a", port)])
            })
            .await;
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    hogs.into_iter().for_each(|hog| hog.join().unwrap());
    println!("gone {} times", gone.get());
    assert_eq!(gone.get(), 0, "it is there at every moment");
    fs::remove_file(&file).unwrap();
    follower.until("that it is gone", |mirror| is(mirror, &[])).await;
}

/// Who writes a file empties it first, and may do so while it is read.
#[tokio::test]
async fn a_file_that_is_written_again_and_again_is_never_empty() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("a.yaml");
    let two = |port| format!("{}---\n{}", entry("a", port), entry("b", port));
    fs::write(&file, two(80)).unwrap();
    let mut follower = follow(scratch.path());
    follower.until("the first version", |mirror| ports(mirror).len() == 2).await;
    let writer = std::thread::spawn(move || {
        for port in 81..=400 {
            fs::write(&file, "").unwrap();
            fs::write(&file, entry("a", port)).unwrap();
            fs::write(&file, two(port)).unwrap();
        }
    });
    follower
        .until("the last version", |mirror| {
            assert_eq!(ports(mirror).len(), 2, "both are there at every moment");
            is(mirror, &[("a", 400), ("b", 400)])
        })
        .await;
    writer.join().unwrap();
}

#[tokio::test]
async fn a_folder_that_is_replaced_is_followed_again() {
    let scratch = tempfile::tempdir().unwrap();
    let (folder, new) = (scratch.path().join("mesh/sub"), scratch.path().join("new"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("a.yaml"), entry("a", 80)).unwrap();
    let mut follower = follow(&scratch.path().join("mesh"));
    follower.until("the first version", |mirror| is(mirror, &[("a", 80)])).await;
    for round in 0..5 {
        fs::create_dir(&new).unwrap();
        fs::write(new.join("a.yaml"), entry("a", 81 + round)).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        fs::rename(&new, &folder).unwrap();
        follower.until("the new folder", |mirror| is(mirror, &[("a", 81 + round)])).await;
        fs::write(folder.join("a.yaml"), entry("a", 91 + round)).unwrap();
        follower.until("a change in the new folder", |mirror| is(mirror, &[("a", 91 + round)])).await;
    }
}

#[tokio::test]
async fn what_cannot_be_read_for_a_while_is_kept() {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("sub");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), entry("a", 80)).unwrap();
    let mut follower = follow(scratch.path());
    follower.until("the file", |mirror| is(mirror, &[("a", 80)])).await;
    let allow = |mode: u32| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    allow(0o000);
    fs::write(scratch.path().join("b.yaml"), entry("b", 80)).unwrap();
    // Who may do everything reads it all the same.
    let unreadable = fs::read_dir(&folder).is_err();
    follower.until("the other file", |mirror| is(mirror, &[("a", 80), ("b", 80)])).await;
    allow(0o755);
    fs::create_dir(scratch.path().join("c")).unwrap();
    fs::write(scratch.path().join("c/c.yaml"), entry("c", 80)).unwrap();
    follower
        .until("all", |mirror| is(mirror, &[("a", 80), ("b", 80), ("c", 80)]) && mirror.issues.is_empty())
        .await;
    println!("the folder was {}", if unreadable { "unreadable" } else { "readable all the time" });
}

/// Kubernetes mounts a ConfigMap as links through a hidden link that it swaps.
#[tokio::test]
async fn a_swapped_link_changes_all_files_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    for (version, port) in [("..v1", 80), ("..v2", 81)] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("a.yaml"), entry("a", port)).unwrap();
        fs::write(at(version).join("b.yaml"), entry("b", port)).unwrap();
    }
    symlink("..v1", at("..data")).unwrap();
    symlink("..data/a.yaml", at("a.yaml")).unwrap();
    symlink("..data/b.yaml", at("b.yaml")).unwrap();
    let mut follower = follow(scratch.path());
    follower.until("the first version", |mirror| is(mirror, &[("a", 80), ("b", 80)])).await;
    symlink("..v2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    follower
        .until("the second version", |mirror| {
            assert_ne!(ports(mirror), [("a".to_owned(), 80), ("b".to_owned(), 81)], "both change together");
            is(mirror, &[("a", 81), ("b", 81)])
        })
        .await;
}

#[tokio::test]
async fn mesh_settings_follow_their_file() {
    use pilot_source::{Batch, Event};
    let scratch = tempfile::tempdir().unwrap();
    // Istio's default name has no ending, and the folder may come later.
    let path = scratch.path().join("etc/config/mesh");
    let (sink, mut batches) = tokio::sync::mpsc::channel(8);
    let mut running = tokio::task::JoinSet::new();
    running.spawn(Box::new(MeshFile::open(&path).unwrap()).run(sink));
    let root = |batch: &Batch| {
        batch.events.iter().find_map(|event| match event {
            Event::Mesh(mesh) => Some(mesh.root_namespace.to_string()),
            _ => None,
        })
    };
    let first = batches.recv().await.unwrap();
    assert_eq!(root(&first).as_deref(), Some("istio-system"));
    assert_eq!(first.events.last(), Some(&Event::InitDone));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "rootNamespace: mesh").unwrap();
    assert_eq!(root(&batches.recv().await.unwrap()).as_deref(), Some("mesh"));
    fs::write(&path, "rootNamespace: [").unwrap();
    let broken = batches.recv().await.unwrap();
    assert_eq!((root(&broken), broken.issues[0].1.len()), (None, 1));
    fs::write(&path, "rootNamespace: other").unwrap();
    let healed = batches.recv().await.unwrap();
    assert_eq!(root(&healed).as_deref(), Some("other"));
    assert!(healed.issues[0].1.is_empty());
}
