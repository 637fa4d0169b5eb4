//! Identities of one mesh under several names of its trust domain.

use pilot_base::Name;
use pilot_model::MeshConfig;

/// In policies this stands for the mesh's own trust domain, whatever it is called.
const LOCAL: &str = "cluster.local";

/// The trust domain of the mesh, and its other names.
pub fn trust_domains(mesh: &MeshConfig) -> impl Iterator<Item = &Name> + Clone {
    std::iter::once(&mesh.trust_domain).chain(&mesh.trust_domain_aliases)
}

/// Principals (`domain/ns/namespace/sa/account`), each under every name of its trust domain if that is the mesh's.
pub fn principals_with_aliases(principals: &[Name], mesh: &MeshConfig) -> Vec<Name> {
    principals.iter().flat_map(|principal| with_aliases(principal, mesh)).collect()
}

fn with_aliases(principal: &Name, mesh: &MeshConfig) -> Vec<Name> {
    let parts: Vec<&str> = principal.split('/').collect();
    let domain = parts[0];
    // What has another form names no trust domain, and a lone wildcard means any.
    let is_ours = || domain == LOCAL || trust_domains(mesh).any(|ours| matches_either_way(domain, ours));
    if parts.len() != 5 || domain == "*" || !is_ours() {
        return vec![principal.clone()];
    }
    let mut out: Vec<Name> = Vec::new();
    for ours in trust_domains(mesh) {
        let renamed = if domain.strip_prefix('*').is_some_and(|suffix| ours.ends_with(suffix)) {
            principal.clone()
        } else {
            Name::from(format!("{ours}/{}", parts[1..].join("/")))
        };
        if !out.contains(&renamed) {
            out.push(renamed);
        }
    }
    out
}

/// Trust domains, each of the mesh's own with all its other names.
pub fn domains_with_aliases(domains: &[Name], mesh: &MeshConfig) -> Vec<Name> {
    let mut out: Vec<Name> = Vec::new();
    let mut add = |domain: &Name| {
        if !out.contains(domain) {
            out.push(domain.clone());
        }
    };
    for domain in domains {
        if trust_domains(mesh).any(|ours| ours == domain) {
            trust_domains(mesh).for_each(&mut add);
        } else {
            add(domain);
        }
    }
    out
}

/// Either may be a pattern, with a wildcard at one end.
fn matches_either_way(a: &str, b: &str) -> bool {
    let covers = |pattern: &str, text: &str| {
        pattern.strip_suffix('*').is_some_and(|prefix| text.starts_with(prefix))
            || pattern.strip_prefix('*').is_some_and(|suffix| text.ends_with(suffix))
    };
    a == b || covers(a, b) || covers(b, a)
}

#[cfg(test)]
mod tests {
    use super::{domains_with_aliases, principals_with_aliases};
    use pilot_base::Name;
    use pilot_model::MeshConfig;

    #[test]
    fn principals_are_known_by_every_name_of_the_mesh() {
        let names = |texts: &[&str]| texts.iter().map(|t| Name::new(t)).collect::<Vec<_>>();
        let mesh = MeshConfig {
            trust_domain: "new-td".into(),
            trust_domain_aliases: names(&["old-td", "some-td"]),
            ..MeshConfig::default()
        };
        let all = |principal: &str| principals_with_aliases(&names(&[principal]), &mesh);
        let three = names(&["new-td/ns/a/sa/b", "old-td/ns/a/sa/b", "some-td/ns/a/sa/b"]);
        assert_eq!(all("old-td/ns/a/sa/b"), three);
        assert_eq!(all("cluster.local/ns/a/sa/b"), three);
        assert_eq!(all("*/ns/a/sa/b"), names(&["*/ns/a/sa/b"]));
        assert_eq!(all("*-td/ns/a/sa/b"), names(&["*-td/ns/a/sa/b"]));
        assert_eq!(all("other/ns/a/sa/b"), names(&["other/ns/a/sa/b"]));
        assert_eq!(all("*"), names(&["*"]));
        assert_eq!(
            domains_with_aliases(&names(&["old-td", "x"]), &mesh),
            names(&["new-td", "old-td", "some-td", "x"])
        );
    }
}
