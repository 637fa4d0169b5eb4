use std::path::Path;

use tokio::net::UnixListener;

use super::Place;
use crate::Env;
use crate::grpc::{self, Socket};

const USUAL: &str = "var/run/secrets/workload-spiffe-uds/socket";

async fn find(root: &Path, file: &str) -> Result<Place, String> {
    let env = Env::from([("WORKLOAD_IDENTITY_SOCKET_FILE", file)]);
    Place::find(&env, root).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn who_was_there_before_keeps_its_place() {
    let root = tempfile::tempdir().unwrap();
    assert!(matches!(find(root.path(), "").await, Ok(Place::Own(_))));
    let missing = find(root.path(), "theirs").await.unwrap_err();
    assert!(missing.contains("nobody does") && missing.contains("theirs"), "{missing}");
    assert!(find(root.path(), "../theirs").await.unwrap_err().contains("not a path"));

    let path = root.path().join(USUAL);
    let socket = Socket::bind(&path, "").unwrap();
    let mut server = tokio::task::JoinSet::new();
    server.spawn(grpc::serve(socket, |_| async {}));
    assert!(matches!(find(root.path(), "").await, Ok(Place::Files(_))), "it answers");
    server.shutdown().await;
}

#[tokio::test]
async fn the_socket_of_who_is_dead_or_mute_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(USUAL);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(find(root.path(), "").await, Ok(Place::Own(_))));
    assert!(!path.exists());
    let _mute = UnixListener::bind(&path).unwrap();
    assert!(matches!(find(root.path(), "").await, Ok(Place::Own(_))));
    assert!(!path.exists());
}
