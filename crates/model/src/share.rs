use pilot_base::Words;

use crate::{Object, WorkloadEntry};

impl Object {
    /// Puts shared copies in place of words that this object has in common with thousands of others. Only of what there
    /// are many: endpoints and pods.
    pub fn share(&mut self, words: &mut Words) {
        match self {
            Self::ServiceEntry(entry) => {
                words.name(&mut entry.id.namespace);
                words.labels(&mut entry.labels);
                words.labels(&mut entry.annotations);
                entry.spec.ports.iter_mut().for_each(|port| words.name(&mut port.name));
                entry.spec.endpoints.iter_mut().for_each(|endpoint| workload(endpoint, words));
            }
            Self::WorkloadEntry(entry) => {
                words.name(&mut entry.id.namespace);
                words.labels(&mut entry.labels);
                words.labels(&mut entry.annotations);
                workload(&mut entry.spec, words);
            }
            Self::EndpointSlice(id, slice) => {
                words.name(&mut id.cluster);
                words.name(&mut id.namespace);
                slice.ports.iter_mut().for_each(|port| words.name(&mut port.name));
            }
            Self::Pod(id, pod) => {
                words.name(&mut id.cluster);
                words.name(&mut id.namespace);
                words.labels(&mut pod.labels);
                words.labels(&mut pod.annotations);
                words.name(&mut pod.service_account);
                words.name(&mut pod.node);
                words.name(&mut pod.workload);
            }
            _ => {}
        }
    }
}

fn workload(entry: &mut WorkloadEntry, words: &mut Words) {
    let WorkloadEntry {
        address: _,
        ports: _,
        labels,
        network,
        locality,
        weight: _,
        service_account,
        is_healthy: _,
    } = entry;
    words.labels(labels);
    words.name(network);
    words.name(locality);
    words.name(service_account);
}
