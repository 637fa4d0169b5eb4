//! Which objects lead to what proxies refuse.
//!
//! To find out, tables are walked, and a thousand proxies may refuse something at once: each something of its own. So it is
//! done between two commits, a little each time, and who is told of an endpoint does not wait for it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use pilot_base::{FastMap, Issue, Name, ObjectRef};
use pilot_model::ProxyId;
use pilot_pipeline::Pipeline;
use pilot_xds::{Encoded, TypeUrl};

use crate::refusal::Refusal;

#[derive(Default)]
pub(crate) struct Suspects {
    /// Proxies of which it is not known yet what leads to all that they refuse.
    open: BTreeMap<ProxyId, Vec<Refusal>>,
    /// Whose turn it was last.
    last: Option<ProxyId>,
    /// What leads to a resource, by its address, for as long as it is the same one.
    found: FastMap<usize, (Arc<Encoded>, Arc<[ObjectRef]>)>,
}

/// So many rows are looked through between two commits, and then those of the resource that it was about: some milliseconds.
const ROWS: usize = 50_000;
/// So much of what was found is kept. Nobody refuses so many different things for long.
const KEPT: usize = 4096;

impl Suspects {
    /// What is wrong with a proxy, as far as that is known; the rest is [found](Self::find).
    pub(crate) fn note(&mut self, pipeline: &Pipeline, proxy: ProxyId, refusals: Vec<Refusal>) -> Vec<Issue> {
        let issues = self.issues(pipeline, proxy, &refusals);
        let is_known = |refusal: &Refusal| {
            refusal.names.iter().all(|name| self.is_known(pipeline, proxy, refusal.type_url, name))
        };
        if refusals.iter().all(is_known) {
            self.open.remove(&proxy);
        } else {
            self.open.insert(proxy, refusals);
        }
        issues
    }

    pub(crate) fn leave(&mut self, proxy: ProxyId) {
        self.open.remove(&proxy);
    }

    /// Is there something left to find?
    pub(crate) fn are_sought(&self) -> bool {
        !self.open.is_empty()
    }

    /// Goes on looking for a while. Tells what is wrong with those proxies of which all is known now.
    pub(crate) fn find(&mut self, pipeline: &Pipeline) -> Vec<(ProxyId, Vec<Issue>)> {
        let (mut done, mut rows) = (Vec::new(), 0);
        self.forget();
        while let Some((proxy, refusals)) = self.next() {
            let names = refusals.iter().flat_map(|r| r.names.iter().map(|name| (r.type_url, name)));
            for (type_url, name) in names {
                if rows >= ROWS {
                    break;
                }
                rows += self.look(pipeline, proxy, type_url, name);
            }
            if rows >= ROWS {
                // What was found of it by now is not looked for again.
                self.open.insert(proxy, refusals);
                break;
            }
            let issues = self.issues(pipeline, proxy, &refusals);
            done.push((proxy, issues));
        }
        done
    }

    fn next(&mut self) -> Option<(ProxyId, Vec<Refusal>)> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut later = self.open.range((after, Bound::Unbounded)).chain(&self.open);
        let next = later.next().map(|(proxy, _)| *proxy)?;
        self.last = Some(next);
        self.open.remove_entry(&next)
    }

    /// Tells how many rows that took.
    fn look(&mut self, pipeline: &Pipeline, proxy: ProxyId, type_url: TypeUrl, name: &Name) -> usize {
        // What is not sent any more nothing leads to.
        let Some(sent) = pipeline.sent(proxy, type_url, name) else { return 0 };
        let place = Arc::as_ptr(sent).addr();
        if self.found.contains_key(&place) {
            return 0;
        }
        let behind = pipeline.behind(proxy, name);
        self.found.insert(place, (Arc::clone(sent), behind.suspects().into()));
        behind.looked_at
    }

    fn is_known(&self, pipeline: &Pipeline, proxy: ProxyId, type_url: TypeUrl, name: &Name) -> bool {
        let sent = pipeline.sent(proxy, type_url, name);
        sent.is_none_or(|sent| self.found.contains_key(&Arc::as_ptr(sent).addr()))
    }

    fn issues(&self, pipeline: &Pipeline, proxy: ProxyId, refusals: &[Refusal]) -> Vec<Issue> {
        let of = |refusal: &Refusal| {
            refusal.issues(|name| {
                let sent = pipeline.sent(proxy, refusal.type_url, name);
                let found = sent.and_then(|sent| self.found.get(&Arc::as_ptr(sent).addr()));
                found.map(|(_, objects)| objects.to_vec()).unwrap_or_default()
            })
        };
        refusals.iter().flat_map(of).collect()
    }

    /// What only we hold is sent to nobody any more.
    fn forget(&mut self) {
        if self.found.len() > KEPT {
            self.found.retain(|_, (resource, _)| Arc::strong_count(resource) > 1);
        }
        if self.found.len() > KEPT {
            self.found.clear();
        }
    }
}

#[cfg(test)]
mod tests;
