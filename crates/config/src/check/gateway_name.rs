//! Names of gateways, as rules give them.

use super::Check;
use super::host::{is_host_name, is_label};

impl Check<'_> {
    /// Names of gateways: `namespace/name`, a name, or the word `mesh`. istiod looks at none behind the first without a
    /// namespace, so forms like `./name` are in use there, and work.
    pub(crate) fn gateway_names(&mut self, path: &str, names: &[String]) {
        let looked_at =
            names.iter().position(|name| !name.contains('/')).map_or(names.len(), |bare| bare + 1);
        for (i, name) in names[..looked_at].iter().enumerate() {
            let path = format!("{path}[{i}]");
            match name.split_once('/') {
                Some((namespace, gateway)) => {
                    if !is_label(namespace) || !is_label(gateway) {
                        self.reject(path, format!("{name:?} is not of the form namespace/name"));
                    }
                }
                None if !is_host_name(name) => {
                    self.reject(path, format!("{name:?} is not the name of a gateway"));
                }
                None => {
                    if let [gateway, namespace, ..] = name.split('.').collect::<Vec<_>>()[..] {
                        let message = format!("{name:?} is an old form; write {namespace}/{gateway} instead");
                        self.warn(path, message);
                    }
                }
            }
        }
    }
}
