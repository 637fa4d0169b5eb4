//! Tables of routes that are put together from hosts that were encoded before, and extensions.

use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3::TypedExtensionConfig;
use pilot_envoy_api::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use pilot_xds::{ChildMap, Chunk, Encoded, TypeUrl};
use prost::Message;

use super::route::{RouteScope, RouteSide};
use super::{Faults, Patches};
use crate::virtual_host::VIRTUAL_HOSTS;

/// What patches do to one outbound table of routes, host by host.
pub struct TablePatches<'a>(RouteScope<'a>);

impl<'a> TablePatches<'a> {
    /// Nothing, if no patch is for the table.
    pub fn new(table: &str, patches: &'a Patches) -> Option<Self> {
        let scope = RouteScope::new(table, patches, RouteSide::Outbound);
        (!scope.is_empty()).then_some(Self(scope))
    }

    /// The entry of a host after its patches: nothing if it is as before, `Some(None)` if it is gone.
    pub fn entry(&self, before: &Chunk, faults: &mut Faults) -> Option<Option<Chunk>> {
        let mut host = VirtualHost::decode(before.message()).ok()?;
        if !self.0.patch_host(&mut host, faults) {
            return Some(None);
        }
        let after = Chunk::new(VIRTUAL_HOSTS, &host.encode_to_vec());
        (after != *before).then_some(Some(after))
    }

    /// The whole table, given the entries that have changed. Nothing if all is as before.
    pub fn table(&self, before: &Encoded, changes: &ChildMap, faults: &mut Faults) -> Option<Arc<Encoded>> {
        let header = RouteConfiguration::decode(before.header()).ok()?;
        let mut patched = header.clone();
        self.0.patch_header(&mut patched, faults);
        let last = before.children().last();
        let mut tail: Vec<VirtualHost> =
            last.and_then(|last| VirtualHost::decode(last.message()).ok()).into_iter().collect();
        tail.append(&mut patched.virtual_hosts);
        let mut removed = Vec::new();
        for host in &mut tail {
            let name = host.name.clone();
            if !self.0.patch_host(host, faults) {
                removed.push(name);
            }
        }
        tail.extend(self.0.added_hosts());
        // A name that is removed is removed from what is added too.
        let is_gone =
            |name: &str| matches!(changes.get(name), Some(None)) || removed.iter().any(|r| r == name);
        tail.retain(|host| !is_gone(&host.name));
        let tail: Vec<Vec<u8>> = tail.iter().map(Message::encode_to_vec).collect();
        let tail = Chunk::of_many(VIRTUAL_HOSTS, tail.iter().map(Vec::as_slice));
        if changes.is_empty() && patched == header && last == Some(&tail) {
            return None;
        }
        let children = before.children().changed(changes, Some(tail));
        let name = before.name().clone();
        Some(Arc::new(Encoded::assemble(TypeUrl::Route, name, &patched.encode_to_vec(), children)))
    }
}

/// Configurations of extensions that patches bring.
pub fn added_extensions(patches: &Patches, faults: &mut Faults) -> Vec<Arc<Encoded>> {
    let mut out = Vec::new();
    for patch in patches.iter() {
        let config: TypedExtensionConfig = patch.value();
        if config.name.is_empty() {
            faults.add(patch, "the configuration of an extension needs a name");
        } else {
            let name = Name::new(&config.name);
            out.push(Arc::new(Encoded::new(TypeUrl::ExtensionConfig, name, &config.encode_to_vec())));
        }
    }
    out
}
