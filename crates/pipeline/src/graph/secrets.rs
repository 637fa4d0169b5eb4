//! Certificates and keys for gateways, by the namespace whose proxies may read them.

use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy::{CA_SUFFIX, authority_secret, key_pair_secret, secret_names};
use pilot_incr::{Graph, Table};
use pilot_model::{ConfigId, Secret, SecretAccess};
use pilot_xds::{Encoded, Layer as Resources, Manifest};

use super::inputs::Inputs;

/// A cluster and a namespace in it.
pub(super) type Place = (Name, Name);

#[derive(Clone, Copy)]
pub(super) struct Secrets {
    pairs: Table<Place, Resources>,
    /// Whom to trust, by what stands beside a certificate, and by Secrets that are called by their whole name. These count.
    beside: Table<Place, Resources>,
    alone: Table<Place, Resources>,
}

impl Secrets {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let mut of_each = |name, made: fn(&ConfigId, &Secret) -> Vec<Arc<Encoded>>| {
            graph.group(name, |feeds| {
                feeds.from(&inputs.secrets, move |id: &ConfigId, secret: &Secret, out| {
                    for encoded in made(id, secret) {
                        let place = (id.cluster.clone(), id.namespace.clone());
                        out.emit(place, encoded.name().clone(), Some(encoded));
                    }
                });
            })
        };
        Self {
            pairs: of_each("key pairs by namespace", |id, secret| {
                let pair = secret.pair.as_ref().filter(|_| !id.name.ends_with(CA_SUFFIX));
                pair.map(|pair| secret_names(id, "").map(|name| key_pair_secret(name, pair)))
                    .into_iter()
                    .flatten()
                    .collect()
            }),
            beside: of_each("authorities by namespace", |id, secret| authorities(id, CA_SUFFIX, secret)),
            alone: of_each("named authorities by namespace", |id, secret| {
                if id.name.ends_with(CA_SUFFIX) { authorities(id, "", secret) } else { Vec::new() }
            }),
        }
    }

    /// What a proxy may read.
    pub(super) fn manifest(
        &self,
        (access, place): &(SecretAccess, Place),
        reader: &pilot_incr::Reader<'_>,
    ) -> Manifest {
        let layer = |table: &Table<Place, Resources>| reader.get(table, place).cloned().unwrap_or_default();
        match access {
            SecretAccess::None => Manifest::default(),
            SecretAccess::Authorities => Manifest::new([layer(&self.beside), layer(&self.alone)]),
            SecretAccess::All => Manifest::new([layer(&self.beside), layer(&self.alone), layer(&self.pairs)]),
        }
    }
}

fn authorities(id: &ConfigId, suffix: &str, secret: &Secret) -> Vec<Arc<Encoded>> {
    let named = |authority| secret_names(id, suffix).map(|name| authority_secret(name, authority));
    secret.authority.as_ref().map(named).into_iter().flatten().collect()
}
