//! Who is given which Secrets.
#![allow(clippy::panic, reason = "a test that cannot go on fails")]

mod world;

use pilot_base::Name;
use pilot_model::{MeshOptions, Proxy, SecretAccess};
use pilot_xds::TypeUrl;

use world::{World, sidecar};

fn secret(namespace: &str, name: &str, data: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Secret, metadata: {{name: {name}, namespace: {namespace}}}, data: {{{data}}}}}\n---\n"
    )
}

const PAIR: &str = "tls.crt: YQ==, tls.key: Yg==";

/// The names that a gateway in the namespace `shop` of a cluster may ask for.
fn names(world: &mut World, cluster: &str, secrets: SecretAccess) -> Vec<String> {
    let cluster = Name::new(cluster);
    world.connect(Proxy { cluster, secrets, ..sidecar("edge", "10.9.9.9") });
    let names = world.names_of(TypeUrl::Secret);
    names.into_iter().filter(|name| !name.contains("//shop/")).collect()
}

#[test]
fn a_gateway_has_those_of_its_namespace_in_its_cluster() {
    let mut world = World::new(MeshOptions::default());
    world.tell(&secret("shop", "cert", PAIR));
    world.tell(&secret("shop", "both", "cert: YQ==, key: Yg==, cacert: Yw=="));
    world.tell(&secret("other", "foreign", PAIR));
    world.tell_in("far", &secret("shop", "distant", PAIR));
    let all = ["kubernetes://both-cacert", "kubernetes://both", "kubernetes://cert"];
    assert_eq!(names(&mut world, "Kubernetes", SecretAccess::All), all);
    assert_eq!(world.names_of(TypeUrl::Secret).len(), 2 * all.len(), "each with its namespace, too");
    assert_eq!(names(&mut world, "Kubernetes", SecretAccess::Authorities), ["kubernetes://both-cacert"]);
    assert_eq!(names(&mut world, "Kubernetes", SecretAccess::None), [""; 0]);
    assert_eq!(names(&mut world, "far", SecretAccess::All), ["kubernetes://distant"]);
    assert_eq!(names(&mut world, "nowhere", SecretAccess::All), [""; 0]);
}

#[test]
fn what_is_called_an_authority_is_none_else_and_counts_more() {
    let mut world = World::new(MeshOptions::default());
    world.tell(&secret("shop", "cert-cacert", "ca.crt: eA==, tls.crt: YQ==, tls.key: Yg=="));
    assert_eq!(
        names(&mut world, "Kubernetes", SecretAccess::All),
        ["kubernetes://cert-cacert-cacert", "kubernetes://cert-cacert"]
    );
    let version = |world: &World| world.version_of(TypeUrl::Secret, "kubernetes://cert-cacert");
    let alone = version(&world);
    let told = world.tell(&secret("shop", "cert", "ca.crt: eQ==, tls.crt: YQ==, tls.key: Yg=="));
    assert!(!told.manifests.is_empty());
    assert_eq!(version(&world), alone, "what stands beside a certificate counts less");
    world.forget(&secret("shop", "cert-cacert", PAIR));
    assert_ne!(version(&world), alone);
}

#[test]
fn a_secret_that_nobody_may_read_changes_nothing_for_anybody() {
    let mut world = World::new(MeshOptions::default());
    world.connect(sidecar("web", "10.9.9.9"));
    assert!(world.tell(&secret("shop", "cert", PAIR)).manifests.is_empty());
}
